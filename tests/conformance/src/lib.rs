//! One suite that every driver must pass, written once: what farcell promises of a kernel, as cases that run against the real thing.
//!
//! Whoever writes a transport proves it with this crate: [`transport_cases`] for the trait itself, [`kernel_cases`] for kernels over it.
//! Each case is a name and an async function that panics where a promise is broken.
//!
//! The suite needs to look at processes of the target to see that they end, so the target has to share this machine's `/proc`, or the
//! subject has to say [`Subject::is_elsewhere`]; then those looks are taken from inside the target.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test suite that is a library")]

mod cases;
mod subject;
mod transport;

use std::future::Future;
use std::pin::Pin;

pub use subject::Subject;
pub use transport::{TransportCase, transport_cases};

/// What a case returns.
pub type CaseFuture<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// One promise, and how it is checked.
#[derive(Clone, Copy)]
pub struct Case {
    /// The promise, as a name.
    pub name: &'static str,
    /// Checks it; panics if it is broken.
    pub check: for<'a> fn(&'a Subject) -> CaseFuture<'a>,
}

/// All promises about kernels.
pub fn kernel_cases() -> Vec<Case> {
    cases::all()
}
