//! What drivers do with the streams of a command.

use std::io;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _};

/// How much of a tail is kept.
const KEPT: usize = 64 * 1024;

/// More than any answer of ours has; a command that prints more is not one that we know.
const MOST: usize = 1 << 30;

/// Reads all of a stream.
///
/// # Errors
/// What reading brings, and a stream of more than 1 GiB.
pub async fn read_all(mut stream: impl AsyncRead + Unpin) -> io::Result<Bytes> {
    let mut all = BytesMut::new();
    while stream.read_buf(&mut all).await? > 0 {
        if all.len() > MOST {
            return Err(io::Error::other("it prints without end"));
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
