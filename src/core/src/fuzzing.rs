//! What fuzz targets (`fuzz/`) reach beside the public decoders. No part of the interface.

use std::fs::File;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use tokio::io::{AsyncRead, ReadBuf};
use tokio::time::Instant;

use crate::error::Result;
use crate::filecell::page::{Page, SIZE, VERSION};
use crate::id::Nonce;
use crate::link::fuzzing as link;
use crate::target::Target;
use crate::transport::{Duplex, Running};

/// A nonce that is known beforehand.
pub fn nonce(text: &str) -> Nonce {
    Nonce::fixed(text)
}

/// What a link makes of an answer: the text of one that was carried out, or `None` where the runner is missing.
///
/// # Errors
/// The far side's.
pub fn judge(target: &Target, text: Bytes) -> Result<Option<Bytes>> {
    link::judge(target, text)
}

/// What a page says: whether it is known, its words, its reply.
///
/// # Errors
/// What the file has brought.
pub fn page(file: &File) -> io::Result<(bool, Vec<u64>, Vec<u8>)> {
    let page = Page::read(file, SIZE)?;
    Ok((page.is_known(), (0..=VERSION).map(|word| page.word(word)).collect(), page.reply().to_vec()))
}

/// What a call over a stream has brought: its records, and its answer if there was one.
pub type Brought = (Vec<u8>, Option<Bytes>);

/// Two calls over a stream whose courier says `said`, in pieces of `cut` bytes.
pub async fn courier(nonce: Nonce, said: Bytes, cut: usize) -> [Brought; 2] {
    let duplex = Duplex::new(tokio::io::sink(), Said::new(said, cut), Silent);
    link::two_calls(duplex, nonce, Instant::now() + Duration::from_secs(60)).await
}

/// A far side that says so much, in pieces of a length, and ends.
#[derive(Debug)]
pub struct Said {
    bytes: Bytes,
    cut: usize,
}

impl Said {
    /// One that says `bytes`.
    pub fn new(bytes: Bytes, cut: usize) -> Self {
        Said { bytes, cut: cut.max(1) }
    }
}

impl AsyncRead for Said {
    fn poll_read(
        mut self: Pin<&mut Self>,
        _: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let most = self.bytes.len().min(self.cut).min(buf.remaining());
        buf.put_slice(&self.bytes.split_to(most));
        Poll::Ready(Ok(()))
    }
}

#[derive(Debug)]
struct Silent;

impl Running for Silent {
    fn stderr(&self) -> Bytes {
        Bytes::new()
    }
}
