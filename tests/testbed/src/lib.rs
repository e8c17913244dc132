//! What farcell's own tests reach, made on the spot: an sshd, a proxy that delays, cuts and swallows, accounts with odd login shells,
//! containers of several engines.
//!
//! All of it is real: OpenSSH's server on a free port of 127.0.0.1, TCP, accounts in `/etc/passwd`. All of it goes with the value that
//! stands for it, and what was started through it goes too, kernels that were detached on purpose among them.
//!
//! ```no_run
//! use farcell_testbed::{Proxy, Sshd, available};
//!
//! let Some(sshd) = available(Sshd::start()) else { return };
//! let proxy = Proxy::start(sshd.port()).unwrap();
//! proxy.delay(Proxy::FAR);
//! sshd.alias("far", proxy.port()).unwrap();
//! assert!(sshd.ssh("far").arg("true").status().unwrap().success());
//! ```
//!
//! Nothing here is asynchronous, so that it can be used from any test and from `Drop`: the proxy runs in a thread of its own, and what the
//! rest waits for takes milliseconds. For tests that are, there is [`bounded`].
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a library for tests")]

mod account;
mod bare;
mod bounded;
mod boxes;
mod engine;
mod keeper;
mod port;
pub mod processes;
mod proxy;
mod sshd;
mod trouble;

pub use account::{ACCOUNT_PREFIX, Account, NOISY_BASHRC, SLOW_BASHRC, account};
pub use bare::Bare;
pub use bounded::bounded;
pub use boxes::{Boxes, Compose};
pub use engine::{Container, Engine, Image};
pub use proxy::{Connections, Proxy, Transferred};
pub use sshd::{HostKey, Sshd, SshdOptions};
pub use trouble::{Trouble, available};
