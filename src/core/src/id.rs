//! Identifiers as types, so that a number of a cell can never be taken for a generation, nor a name for an id.

use std::fmt;

use rand::TryRng as _;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use sha2::{Digest as _, Sha256};

use crate::error::{Error, ErrorKind, Result};

/// `N` random bytes from the operating system, as lower-case hex digits.
fn random_hex<const N: usize>() -> Result<String> {
    let mut bytes = [0u8; N];
    rand::rngs::SysRng.try_fill_bytes(&mut bytes).map_err(|e| {
        Error::new(ErrorKind::Local, "the operating system gave no random numbers").with_source(e.to_string())
    })?;
    Ok(hex(&bytes))
}

/// Lower-case hex digits of `bytes`.
pub(crate) fn hex(bytes: &[u8]) -> String {
    use fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut out, b| {
        // Writing to a String cannot fail.
        let _ = write!(out, "{b:02x}");
        out
    })
}

/// True for just so many lower-case hex digits.
fn is_hex(text: &str, digits: usize) -> bool {
    text.len() == digits && text.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// The first `bytes` bytes of the SHA-256 of some parts, as hex digits. The parts are length-prefixed, so that no two lists collide.
pub(crate) fn digest(parts: &[&str], bytes: usize) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hex(&hash.finalize()[..bytes])
}

/// The id of a kernel, `k-` and 16 hex digits; also the name of its directory on the target.
///
/// What is no such id is not read as one: it is said by far sides, and names directories and processes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct KernelId(#[serde(deserialize_with = "kernel_id")] String);

impl KernelId {
    /// Reads an id.
    ///
    /// # Errors
    /// What is not `k-` and 16 hex digits is none.
    pub fn parse(text: &str) -> Result<Self> {
        match text.strip_prefix("k-") {
            Some(digits) if is_hex(digits, 16) => Ok(KernelId(text.to_owned())),
            _ => Err(Error::new(ErrorKind::BadInput, format!("{text:?} is not the id of a kernel"))),
        }
    }

    /// A new random id.
    pub fn random() -> Result<Self> {
        Ok(KernelId(format!("k-{}", random_hex::<8>()?)))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for KernelId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The id of a cell: 32 hex digits, never used twice. It is what makes "at most once" possible.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CellId(#[serde(deserialize_with = "cell_id")] String);

impl CellId {
    /// Reads an id.
    ///
    /// # Errors
    /// What is not 32 hex digits is none. (A text of digits alone is read as a number where both can stand, and no id is likely to be one.)
    pub fn parse(text: &str) -> Result<Self> {
        if is_hex(text, 32) {
            return Ok(CellId(text.to_owned()));
        }
        Err(Error::new(ErrorKind::BadInput, format!("{text:?} is not the id of a cell")))
    }

    /// A new random id.
    pub fn random() -> Result<Self> {
        Ok(CellId(random_hex::<16>()?))
    }

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for CellId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn kernel_id<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    checked(from, |text| Ok(KernelId::parse(text)?.0))
}

fn cell_id<'de, D: Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    checked(from, |text| Ok(CellId::parse(text)?.0))
}

fn checked<'de, D: Deserializer<'de>>(
    from: D,
    parse: impl Fn(&str) -> Result<String>,
) -> Result<String, D::Error> {
    parse(&String::deserialize(from)?).map_err(D::Error::custom)
}

/// The place of a cell in its kernel's order, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct CellNumber(pub u64);

impl fmt::Display for CellNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Which interpreter of a kernel: 1 for the first, one more each time it is replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

/// The word that tells our frames from whatever else a far side prints.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Nonce(String);

impl Nonce {
    /// A new random nonce, 32 hex digits.
    pub fn random() -> Result<Self> {
        Ok(Nonce(random_hex::<16>()?))
    }

    /// A nonce of the caller's, for tests of the codec.
    #[cfg(any(test, feature = "fuzzing"))]
    pub(crate) fn fixed(text: &str) -> Self {
        Nonce(text.to_owned())
    }

    /// The nonce as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_are_random_and_well_formed() {
        let (a, b) = (KernelId::random().unwrap(), KernelId::random().unwrap());
        assert_ne!(a, b);
        assert_eq!(a.as_str().len(), 18);
        assert_eq!(CellId::random().unwrap().as_str().len(), 32);
    }

    #[test]
    fn what_is_no_id_is_not_read_as_one() {
        for text in
            ["", "k-", "k-0123456789ABCDEF", "k-../../../../tmp/", "k-0123456789abcdef0", "0123456789abcdef"]
        {
            assert!(KernelId::parse(text).is_err(), "{text}");
            assert!(serde_json::from_value::<KernelId>(text.into()).is_err(), "{text}");
        }
        let id = KernelId::random().unwrap();
        assert_eq!(serde_json::from_value::<KernelId>(serde_json::json!(id)).unwrap(), id);
        assert!(serde_json::from_value::<CellId>("7".into()).is_err());
    }

    #[test]
    fn a_digest_keeps_its_parts_apart() {
        assert_ne!(digest(&["ab", "c"], 16), digest(&["a", "bc"], 16));
    }
}
