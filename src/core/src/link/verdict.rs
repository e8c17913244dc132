//! What an answer of the far side means: done, or refused with a code.

use bytes::Bytes;
use serde::Deserialize;

use super::{Reported, does_not_fit};
use crate::error::{Error, ErrorKind, Result};
use crate::target::Target;
use crate::wire::message::FarError;

/// An answer, read as far as the link has to.
pub(super) enum Verdict {
    Done(Reported),
    /// The modules are not there, and nothing was done.
    NeedRunner,
}

/// The fields that all answers have.
#[derive(Deserialize)]
struct Head {
    #[serde(default)]
    ok: bool,
    #[serde(default)]
    error: Option<FarError>,
}

/// Reads an answer.
///
/// # Errors
/// The far side's.
pub(super) fn judge(target: &Target, text: Bytes) -> Result<Verdict> {
    let head: Head = serde_json::from_slice(&text).map_err(|e| does_not_fit(&e, target))?;
    match head.error {
        _ if head.ok => Ok(Verdict::Done(Reported { text })),
        Some(far) if far.code == "need-runner" => Ok(Verdict::NeedRunner),
        Some(far) => Err(far.into()),
        None => Err(Error::new(ErrorKind::Protocol, "the far side says no, and not why").on(target)),
    }
}

impl From<FarError> for Error {
    fn from(far: FarError) -> Self {
        let kind = match far.code.as_str() {
            "no-directory" | "unsafe-directory" | "spawn-failed" => ErrorKind::Spawn,
            "kernel-dead" => ErrorKind::KernelDead,
            "no-kernel" => ErrorKind::NoKernel,
            "kernel-gone" => ErrorKind::KernelGone,
            "unknown-cell" => ErrorKind::UnknownCell,
            "busy" | "disk-full" => ErrorKind::Refused,
            "bad-request" => ErrorKind::BadInput,
            _ => ErrorKind::Protocol,
        };
        let error = Error::new(kind, far.message);
        match far.hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}
