//! Which pieces of a file are missing, and how they are moved: several at a time, more of them where the way is quick.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::far::Far;
use super::here::{self, File};
use super::{ProgressSink, TransferProgress};
use crate::error::Result;
use crate::wire::file::{BLOCK, BLOCKS, Checked};
use crate::wire::message::Operation;

/// A piece of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Piece {
    pub(super) offset: u64,
    pub(super) length: u64,
}

/// How long the pieces are, and how many are on their way at most: enough to fill a long line, and few enough to stay small in memory.
#[derive(Debug, Clone, Copy)]
pub(super) struct Manner {
    length: u64,
    first: usize,
    most: usize,
}

impl Manner {
    /// Of messages on a stream, no piece being longer than the courier's window; of commands, which have a process to start for each.
    pub(super) fn of(far: &Far) -> Self {
        if far.is_by_command() {
            Manner { length: 8 * BLOCK, first: 2, most: 3 }
        } else {
            Manner { length: BLOCK, first: 4, most: 8 }
        }
    }
}

/// A piece that took less is a reason to have more on their way; one that took longer, to have fewer.
const QUICK: Duration = Duration::from_secs(2);
const SLOW: Duration = Duration::from_secs(10);

/// What is missing of a file of `size` bytes, where the first `have` bytes of it may be there. `check` asks the far side for the checksums of blocks.
pub(super) async fn missing(
    far: &Far,
    file: &Arc<File>,
    have: u64,
    size: u64,
    check: impl Fn(u64, u64) -> Operation,
) -> Result<Vec<Piece>> {
    let mut missing = Missing::default();
    // The last block may be a short one; anything else that is not a whole block is not worth asking for.
    // A part that is longer than the file is one of another file, or none.
    let have = if have > size { 0 } else { have };
    let blocks = if have == size { size.div_ceil(BLOCK) } else { have / BLOCK };
    let mut next = 0;
    while next < blocks {
        let count = BLOCKS.min(blocks - next);
        let operation = check(next * BLOCK, count);
        let ours = here::block_hashes(file, next * BLOCK, count);
        let (theirs, ours) = tokio::join!(far.step::<Checked>(&operation, count * BLOCK), ours);
        let (theirs, ours) = (theirs?.0.blocks, ours?);
        for (at, hash) in (next..).zip(&ours) {
            if theirs.get(usize::try_from(at - next).unwrap_or(usize::MAX)) != Some(hash) {
                missing.add(at * BLOCK, ((at + 1) * BLOCK).min(size));
            }
        }
        next += count;
    }
    missing.add((blocks * BLOCK).min(size), size);
    Ok(missing.pieces)
}

#[derive(Default)]
struct Missing {
    pieces: Vec<Piece>,
}

impl Missing {
    fn add(&mut self, from: u64, to: u64) {
        match self.pieces.last_mut() {
            _ if from >= to => {}
            Some(last) if last.offset + last.length == from => last.length += to - from,
            _ => self.pieces.push(Piece { offset: from, length: to - from }),
        }
    }
}

fn cut(pieces: Vec<Piece>, length: u64) -> impl Iterator<Item = Piece> {
    pieces.into_iter().flat_map(move |piece| {
        let end = piece.offset + piece.length;
        let offsets = (0..piece.length.div_ceil(length)).map(move |n| piece.offset + n * length);
        offsets.map(move |offset| Piece { offset, length: length.min(end - offset) })
    })
}

/// Has all pieces moved by `work`, and tells how far it has come of `total` bytes. The first failure ends it.
pub(super) async fn move_all<F>(
    pieces: Vec<Piece>,
    total: u64,
    manner: Manner,
    work: impl Fn(Piece) -> F,
    progress: ProgressSink<'_>,
) -> Result<()>
where
    F: Future<Output = Result<()>> + Send + 'static,
{
    let mut done = total - pieces.iter().map(|piece| piece.length).sum::<u64>();
    let mut waiting = cut(pieces, manner.length);
    let mut limit = manner.first;
    let mut moving = JoinSet::new();
    progress(TransferProgress { done, total });
    loop {
        while moving.len() < limit
            && let Some(piece) = waiting.next()
        {
            let moved = work(piece);
            moving.spawn(async move {
                let began = Instant::now();
                moved.await.map(|()| (piece.length, began.elapsed()))
            });
        }
        let Some(moved) = moving.join_next().await else { return Ok(()) };
        let (length, took) = moved.unwrap_or_else(|e| Err(here::task_failed(&e)))?;
        done += length;
        progress(TransferProgress { done, total });
        if took < QUICK {
            limit = (limit + 1).min(manner.most);
        } else if took > SLOW {
            limit = (limit / 2).max(1);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_cover_what_is_missing_and_nothing_else() {
        let mut missing = Missing::default();
        for (from, to) in [(0, 0), (10, 20), (20, 25), (40, 41), (50, 50)] {
            missing.add(from, to);
        }
        let piece = |offset, length| Piece { offset, length };
        assert_eq!(missing.pieces, [piece(10, 15), piece(40, 1)]);
        let pieces: Vec<_> = cut(missing.pieces, 8).collect();
        assert_eq!(pieces, [piece(10, 8), piece(18, 7), piece(40, 1)]);
    }

    #[tokio::test(start_paused = true)]
    async fn several_pieces_are_on_their_way_and_fewer_where_it_is_slow() {
        use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
        for (pause, expected) in [(Duration::from_millis(50), 8), (Duration::from_secs(20), 4)] {
            let now = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
            let work = |_| {
                let now = Arc::clone(&now);
                async move {
                    let there = now.0.fetch_add(1, SeqCst) + 1;
                    now.1.fetch_max(there, SeqCst);
                    tokio::time::sleep(pause).await;
                    now.0.fetch_sub(1, SeqCst);
                    Ok(())
                }
            };
            let mut told = Vec::new();
            let manner = Manner { length: 10, first: 4, most: 8 };
            let all = vec![Piece { offset: 0, length: 995 }];
            move_all(all, 1000, manner, work, &mut |p| told.push(p.done)).await.unwrap();
            assert_eq!((now.1.load(SeqCst), told[0], told.last()), (expected, 5, Some(&1000)));
        }
    }
}
