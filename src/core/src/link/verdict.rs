//! What an answer of the far side means: done, or refused with a code.

use std::borrow::Cow;
use std::fmt;

use bytes::Bytes;
use serde::Deserialize;
use serde::de::{Deserializer as _, IgnoredAny, MapAccess, Visitor};

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
    if says_ok(&text) {
        return Ok(Verdict::Done(Reported { text }));
    }
    let head: Head = serde_json::from_slice(&text).map_err(|e| does_not_fit(&e, target))?;
    match head.error {
        _ if head.ok => Ok(Verdict::Done(Reported { text })),
        Some(far) if far.code == "need-runner" => Ok(Verdict::NeedRunner),
        Some(far) => Err(far.into()),
        None => Err(Error::new(ErrorKind::Protocol, "the far side says no, and not why").on(target)),
    }
}

/// True if the first `ok` is true. What is behind it, as a large reply, is left to whoever reads the answer.
fn says_ok(text: &[u8]) -> bool {
    let mut ok = false;
    // Reading on ends with an error on purpose.
    let _ = serde_json::Deserializer::from_slice(text).deserialize_map(Look(&mut ok));
    ok
}

/// Looks through the fields of an object until it has found `ok`.
struct Look<'a>(&'a mut bool);

impl<'de> Visitor<'de> for Look<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an answer")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key::<Cow<'_, str>>()? {
            if name == "ok" {
                *self.0 = map.next_value()?;
                break;
            }
            map.next_value::<IgnoredAny>()?;
        }
        Ok(())
    }
}

impl From<FarError> for Error {
    fn from(far: FarError) -> Self {
        let kind = match far.code.as_str() {
            "no-directory" | "unsafe-directory" | "spawn-failed" => ErrorKind::Spawn,
            "no-place" => ErrorKind::NoPlace,
            "no-process" => ErrorKind::NoProcess,
            "kernel-dead" => ErrorKind::KernelDead,
            "no-kernel" => ErrorKind::NoKernel,
            "kernel-gone" => ErrorKind::KernelGone,
            "unknown-cell" => ErrorKind::UnknownCell,
            "no-file" => ErrorKind::NoFile,
            "denied" => ErrorKind::Denied,
            "gone" | "changed" => ErrorKind::FileChanged,
            "checksum" => ErrorKind::Damaged,
            "busy" | "disk-full" | "io" => ErrorKind::Refused,
            "bad-request" | "is-directory" | "not-a-directory" | "not-a-file" => ErrorKind::BadInput,
            _ => ErrorKind::Protocol,
        };
        let error = Error::new(kind, far.message);
        match far.hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}
