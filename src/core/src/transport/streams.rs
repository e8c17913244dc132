//! What drivers do with the streams of a command.

use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::task::JoinHandle;

/// How much of a tail is kept.
const KEPT: usize = 64 * 1024;

/// More than any answer of ours has; a command that prints more is not one that we know.
pub const MOST: usize = 384 << 20;

/// Reads all of a stream.
///
/// # Errors
/// What reading brings, and a stream of more than 384 MiB.
pub async fn read_all(stream: impl AsyncRead + Unpin) -> io::Result<Bytes> {
    read_at_most(stream, MOST).await
}

/// Reads all of a stream of at most `most` bytes.
///
/// # Errors
/// What reading brings, and a longer stream.
pub async fn read_at_most(mut stream: impl AsyncRead + Unpin, most: usize) -> io::Result<Bytes> {
    let mut all = BytesMut::new();
    while stream.read_buf(&mut all).await? > 0 {
        if all.len() > most {
            return Err(io::Error::other(format!("it prints more than {most} bytes")));
        }
    }
    Ok(all.freeze())
}

/// The last 64 KiB of a stream, where the reason of a failure stands.
#[derive(Debug, Default)]
pub struct LastBytes {
    bytes: BytesMut,
}

impl LastBytes {
    /// Keeps the end of what there was and of `piece`.
    pub fn push(&mut self, piece: &[u8]) {
        self.bytes.extend_from_slice(piece);
        if self.bytes.len() > 2 * KEPT {
            self.bytes = self.bytes.split_off(self.bytes.len() - KEPT);
        }
    }

    /// What is kept by now.
    pub fn to_bytes(&self) -> Bytes {
        Bytes::copy_from_slice(&self.bytes)
    }

    /// Reads to the end of the stream; what goes wrong meanwhile is not worth an error of its own.
    pub async fn read(&mut self, mut stream: impl AsyncRead + Unpin) {
        let mut piece = Vec::with_capacity(4096);
        while matches!(stream.read_buf(&mut piece).await, Ok(n) if n > 0) {
            self.push(&piece);
            piece.clear();
        }
    }
}

/// A stderr that is read all the time, for as long as this is held, with its last 64 KiB.
#[derive(Debug)]
pub struct Overheard {
    said: Arc<Mutex<LastBytes>>,
    listening: JoinHandle<()>,
}

impl Overheard {
    /// Reads from now on.
    ///
    /// # Panics
    /// Outside of a runtime.
    pub fn new(mut stderr: impl AsyncRead + Send + Unpin + 'static) -> Self {
        let said = Arc::new(Mutex::new(LastBytes::default()));
        let saying = Arc::clone(&said);
        let listening = tokio::spawn(async move {
            let mut piece = Vec::with_capacity(4096);
            // What goes wrong with stderr is not worth an error of its own.
            while matches!(stderr.read_buf(&mut piece).await, Ok(n) if n > 0) {
                saying.lock().unwrap_or_else(PoisonError::into_inner).push(&piece);
                piece.clear();
            }
        });
        Overheard { said, listening }
    }

    /// The end of what was said so far.
    pub fn to_bytes(&self) -> Bytes {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).to_bytes()
    }
}

impl Drop for Overheard {
    fn drop(&mut self) {
        // What a command left in the background may keep its stderr open for ever.
        self.listening.abort();
    }
}
