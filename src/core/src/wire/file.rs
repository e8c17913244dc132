//! The steps of moving a file, as `docs/protocol.md` lists them under Operations.

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// How much of a file is compared at once when a transfer goes on.
pub const BLOCK: u64 = 1 << 20;
/// How many blocks one step compares at most.
pub const BLOCKS: u64 = 1024;

/// A step of putting a file on a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "do", rename_all = "lowercase")]
#[allow(missing_docs, reason = "each field is described in docs/protocol.md, section Operations")]
pub enum PutStep {
    Open {
        path: String,
        cwd: Option<String>,
        name: String,
        size: u64,
        sha256: String,
        mode: u32,
        parents: bool,
        into: bool,
        /// The whole file, where it is small.
        #[serde(skip)]
        data: Option<Bytes>,
    },
    Check {
        part: String,
        offset: u64,
        count: u64,
    },
    Piece {
        part: String,
        offset: u64,
        #[serde(skip)]
        data: Bytes,
    },
    Finish {
        part: String,
        path: String,
        size: u64,
        sha256: String,
        mode: u32,
    },
    Drop {
        part: String,
    },
}

impl PutStep {
    /// What goes behind the header.
    pub fn data(&self) -> Option<&Bytes> {
        match self {
            PutStep::Open { data, .. } => data.as_ref(),
            PutStep::Piece { data, .. } => Some(data),
            _ => None,
        }
    }
}

/// A step of getting a file from a target.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(tag = "do", rename_all = "lowercase")]
#[allow(missing_docs, reason = "each field is described in docs/protocol.md, section Operations")]
pub enum GetStep {
    Open { path: String, cwd: Option<String>, max: u64 },
    Check { path: String, stamp: String, offset: u64, count: u64 },
    Piece { path: String, stamp: String, offset: u64, max: u64 },
    Digest { path: String, stamp: String, size: u64 },
}

/// The answer to `put` with `do: open`.
#[derive(Debug, Clone, Deserialize)]
pub struct PutOpened {
    /// Where the file will be.
    pub path: String,
    /// Where it is until then.
    pub part: String,
    /// How long the part was.
    pub have: u64,
    /// It is there already: it came with this step.
    pub done: bool,
    /// A base directory that has the runner.
    #[serde(default)]
    pub base: Option<String>,
}

/// The answer to `get` with `do: open`.
#[derive(Debug, Clone, Deserialize)]
pub struct GetOpened {
    /// Where the file is.
    pub path: String,
    /// How long it is.
    pub size: u64,
    /// Its permissions.
    pub mode: u32,
    /// When it was changed, in a form that is only to be compared.
    pub changed: String,
    /// Which file it is.
    pub stamp: String,
    /// Its checksum, if all of it came with this answer.
    #[serde(default)]
    pub sha256: Option<String>,
    /// A base directory that has the runner.
    #[serde(default)]
    pub base: Option<String>,
}

/// The answer to `check`.
#[derive(Debug, Clone, Deserialize)]
pub struct Checked {
    /// The SHA-256 of each block.
    pub blocks: Vec<String>,
}

/// The answer to `finish`.
#[derive(Debug, Clone, Deserialize)]
pub struct Finished {
    /// Where the file is.
    pub path: String,
}

/// The answer to `digest`.
#[derive(Debug, Clone, Deserialize)]
pub struct Digest {
    /// The SHA-256 of the whole.
    pub sha256: String,
}
