//! A link speaks the file protocol to one target. The engine does not see whether each step is a command or a message on a channel.

mod exec;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod header;
mod places;
mod stream;
mod verdict;

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio::sync::Notify;
use tokio::time::Instant;

pub use exec::ExecLink;
pub use stream::StreamLink;

use crate::error::{Error, ErrorKind, Result};
use crate::target::Target;
use crate::wire::message::Operation;

/// One step: an operation, and what is known of the target already.
#[derive(Debug, Clone, Copy)]
pub struct Call<'a> {
    /// What to do.
    pub operation: &'a Operation,
    /// The base directory that an earlier answer named.
    pub base: Option<&'a str>,
    /// The base directory that the user wants.
    pub dir: Option<&'a str>,
    /// The Python to use.
    pub python: Option<&'a str>,
    /// The step is given up at this moment, on both sides.
    pub deadline: Instant,
}

/// Takes chunks of output records as they come.
pub type ChunkSink<'a> = &'a mut (dyn FnMut(Bytes) + Send);

/// A way to speak the file protocol to one target.
///
/// # Errors
/// [`ErrorKind::Transport`] and [`ErrorKind::Deadline`] leave it open whether the operation was carried out, unless the error's step is
/// [`Step::Connect`](crate::Step::Connect). All other kinds are answers of the far side.
#[async_trait]
pub trait Link: Send + Sync + fmt::Debug {
    /// The target that it leads to.
    fn target(&self) -> &Target;

    /// How steps get there just now.
    fn carrier(&self) -> Carrier;

    /// Carries out one operation. Output records go to `chunks` before the answer is returned, perhaps long before.
    async fn call(&self, call: Call<'_>, chunks: ChunkSink<'_>) -> Result<Reported>;
}

/// How steps get to a target.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Carrier {
    /// Over the pipes of a child process.
    Pipes,
    /// Over a stream that is kept open.
    Stream,
    /// By a command each.
    Commands {
        /// Why not over a stream.
        why: String,
    },
}

/// The far side's answer to an operation that was carried out, as JSON text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reported {
    text: Bytes,
}

impl Reported {
    /// Reads it as `T`.
    ///
    /// # Errors
    /// [`ErrorKind::Protocol`] for one that does not fit.
    pub fn read<T: DeserializeOwned>(&self, target: &Target) -> Result<T> {
        serde_json::from_slice(&self.text).map_err(|e| does_not_fit(&e, target))
    }
}

/// Carries out an operation whose answer has no output records, and reads the answer as `T`.
pub async fn ask<T: DeserializeOwned>(link: &dyn Link, call: Call<'_>) -> Result<T> {
    link.call(call, &mut |_| ()).await?.read(link.target())
}

/// Carries out an operation whose answer brings at most `most` bytes.
///
/// # Errors
/// [`ErrorKind::Protocol`] as soon as there are more.
pub(crate) async fn ask_for_bytes(link: &dyn Link, call: Call<'_>, most: u64) -> Result<(Reported, Vec<u8>)> {
    let mut bytes = Vec::new();
    let (mut came, too_many) = (0, Notify::new());
    let mut take = |chunk: Bytes| {
        came += chunk.len() as u64;
        if came > most {
            too_many.notify_one();
        } else {
            bytes.extend_from_slice(&chunk);
        }
    };
    let reported = tokio::select! {
        biased;
        () = too_many.notified() => None,
        reported = link.call(call, &mut take) => Some(reported?),
    };
    // Too many may have come together with the answer.
    match reported.filter(|_| came <= most) {
        Some(reported) => Ok((reported, bytes)),
        None => {
            let message = format!("more bytes came than the {most} that were asked for");
            Err(Error::new(ErrorKind::Protocol, message).on(link.target()))
        }
    }
}

/// Reads an answer as `T`.
pub fn read_answer<T: DeserializeOwned>(target: &Target, answer: Value) -> Result<T> {
    serde_json::from_value(answer).map_err(|e| does_not_fit(&e, target))
}

fn does_not_fit(e: &serde_json::Error, target: &Target) -> Error {
    Error::new(ErrorKind::Protocol, format!("the far side gave an answer that does not fit: {e}")).on(target)
}
