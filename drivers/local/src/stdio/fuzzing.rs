//! The reading end of a stdio kernel, as fuzz targets reach it. No part of the interface.

use std::sync::Mutex;

use bytes::{Bytes, BytesMut};
use farcell_core::fuzzing::Said;
use farcell_core::{CellId, KernelId, Nonce, Result};
use tokio::io::AsyncReadExt as _;
use tokio::sync::mpsc::Receiver;
use tokio::sync::oneshot;

use super::channel::{self, Heard, Routes};

/// What was heard of one cell.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Told {
    /// What it printed, both streams, and displays.
    pub output: Vec<u8>,
    /// How often it was said to wait or to have started.
    pub placed: usize,
    /// How many replies it had.
    pub replies: usize,
}

/// Listens to a supervisor that says `said` after its greeting, for two cells. Returns what was heard of them, and how many numbers are remembered then.
pub async fn listen(ids: &[CellId; 2], said: Bytes, cut: usize) -> ([Told; 2], usize) {
    let (said, buffer) = (&mut Said::new(said, cut), &mut BytesMut::new());
    let (_held, mut dropped) = oneshot::channel();
    let routes = Mutex::new(Routes::default());
    let [one, two] = ids.each_ref().map(|id| channel::follow(&routes, id));
    let reading = async {
        channel::listen(said, buffer, &routes, &mut dropped).await;
        channel::close(&routes)
    };
    let (numbers, one, two) = tokio::join!(reading, take(one), take(two));
    ([one, two], numbers)
}

async fn take(mut hear: Receiver<Heard>) -> Told {
    let mut told = Told::default();
    while let Some(heard) = hear.recv().await {
        match heard {
            Heard::Accepted(..) | Heard::Started(_) => told.placed += 1,
            Heard::Output(record) => told.output.extend_from_slice(&record.payload),
            Heard::Reply(_) => told.replies += 1,
        }
    }
    told
}

/// Reads a greeting in pieces of `cut` bytes: whether there is a kernel, and what is left for frames.
///
/// # Errors
/// What the driver says of it.
pub async fn greet(nonce: &Nonce, id: &KernelId, said: Bytes, cut: usize) -> Result<(bool, Bytes)> {
    let (mut said, mut buffer) = (Said::new(said, cut), BytesMut::new());
    let greeted = channel::first_answer(nonce, id, &mut said, &mut buffer).await?;
    // It cannot fail.
    while matches!(said.read_buf(&mut buffer).await, Ok(n) if n > 0) {}
    Ok((greeted.is_some(), buffer.freeze()))
}
