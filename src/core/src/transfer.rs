//! Moving files between this machine and a target: in pieces, several at a time, checked by their SHA-256, and whole or not at all.
//!
//! What has arrived lies in a file beside the destination until it is whole. A transfer that was cut off is begun again with the same call, and
//! goes on with what is missing. The steps are those of `docs/protocol.md`; each can be done twice.

mod far;
mod get;
mod here;
mod pieces;
mod put;

use std::path::Path;
use std::time::Duration;

use serde::Serialize;

use self::far::Far;
use crate::error::Result;
use crate::link::Link;

/// How long a target that was lost is looked for.
const PATIENCE: Duration = Duration::from_secs(60);

/// How a file shall be moved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransferOptions {
    /// Directories that the destination needs are made.
    pub parents: bool,
    /// The destination is a directory that the file goes into, and nothing else.
    pub into: bool,
    /// The file's name in a directory, instead of its own.
    pub name: Option<String>,
    /// How long it may take; `None` for as long as something gets through.
    pub timeout: Option<Duration>,
    /// How long a target that was reached and then lost is looked for.
    pub patience: Duration,
    /// Where relative paths on the target begin, instead of where a new kernel would.
    pub cwd: Option<String>,
    /// The base directory of kernels on the target.
    pub dir: Option<String>,
    /// The Python to use.
    pub python: Option<String>,
    /// Whose kernel's surroundings are meant (a [`Key::digest`](crate::Key::digest)), where a target has one for each session.
    pub key: Option<String>,
}

impl Default for TransferOptions {
    fn default() -> Self {
        TransferOptions {
            parents: false,
            into: false,
            name: None,
            timeout: None,
            patience: PATIENCE,
            cwd: None,
            dir: None,
            python: None,
            key: None,
        }
    }
}

/// How far a transfer has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransferProgress {
    /// How many bytes are where they shall be.
    pub done: u64,
    /// How many there are.
    pub total: u64,
}

/// Is told how far a transfer has come.
pub type ProgressSink<'a> = &'a mut (dyn FnMut(TransferProgress) + Send);

/// A file that was moved.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Transferred {
    /// Where it is now.
    pub path: String,
    /// How long it is.
    pub bytes: u64,
    /// Its checksum, in hex digits.
    pub sha256: String,
    /// How many bytes were there already, from a transfer that was cut off.
    pub resumed_from: u64,
    /// How long it took.
    pub seconds: f64,
}

/// A target that files are moved to and from, as a driver sees it.
#[derive(Debug, Clone, Copy)]
pub struct FileSite<'a> {
    /// The link to it.
    pub link: &'a std::sync::Arc<dyn Link>,
    /// The base directory of kernels there.
    pub dir: Option<&'a str>,
    /// The Python to use.
    pub python: Option<&'a str>,
    /// Where relative paths begin; the home directory if not given.
    pub cwd: Option<&'a str>,
}

impl FileSite<'_> {
    /// Puts the file `from` of this machine at `to`.
    ///
    /// # Errors
    /// Of either side; the destination is then as it was.
    pub async fn put(
        &self,
        from: &Path,
        to: &str,
        options: &TransferOptions,
        progress: ProgressSink<'_>,
    ) -> Result<Transferred> {
        put::put(&Far::new(self, options), from, to, options, progress).await
    }

    /// Gets the file `from`, and puts it at `to` on this machine.
    ///
    /// # Errors
    /// Of either side; the destination is then as it was.
    pub async fn get(
        &self,
        from: &str,
        to: &Path,
        options: &TransferOptions,
        progress: ProgressSink<'_>,
    ) -> Result<Transferred> {
        get::get(&Far::new(self, options), from, to, options, progress).await
    }
}
