//! What an answer of the far side means: done, or refused with a code.

use serde_json::Value;

use super::read_answer;
use crate::error::{Error, ErrorKind, Result};
use crate::target::Target;
use crate::wire::message::FarError;

/// An answer, read.
pub(super) enum Verdict {
    Done(Value),
    /// The modules are not there, and nothing was done.
    NeedRunner,
}

/// Reads an answer.
///
/// # Errors
/// The far side's.
pub(super) fn judge(target: &Target, answer: Value) -> Result<Verdict> {
    if answer.get("ok").and_then(Value::as_bool) == Some(true) {
        return Ok(Verdict::Done(answer));
    }
    let error = answer.get("error").cloned().unwrap_or_default();
    let far: FarError = read_answer(target, error)?;
    if far.code == "need-runner" {
        return Ok(Verdict::NeedRunner);
    }
    Err(far.into())
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
