//! What a command has printed and nobody has read yet: in memory up to a bound, then in a file without a name, up to a bound too.
//!
//! russh gives the server room for more as soon as something has arrived, whether it was read or not, and lets the whole connection wait where one channel's
//! messages are not taken. So they are always taken, and what has to wait waits here, where it is in nobody's way.

use std::collections::VecDeque;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use bytes::{Buf as _, Bytes};
use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::{Notify, watch};
use tokio::task::spawn_blocking;

use super::pipes::State;

/// The bounds of one stream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bounds {
    /// How many bytes wait in memory.
    memory: usize,
    /// How many more wait in the file.
    file: u64,
    /// How long the connection waits for a reader once both are full. One that reads nothing for so long does not read at all.
    patience: Duration,
}

pub(super) const BOUNDS: Bounds = Bounds { memory: 4 << 20, file: 1 << 30, patience: Duration::from_secs(1) };

/// What a piece costs besides its bytes: one that is a single byte is not for nothing.
const PIECE_COST: usize = 64;
/// How much is read back from the file at a time.
const PIECE: u64 = 256 << 10;

/// The end that is written to.
pub(super) struct Inlet {
    shared: Arc<Shared>,
    bounds: Bounds,
    /// What comes after that which is in memory.
    file: Option<Ring>,
    /// How it ends, once that is known.
    end: Option<Result<(), io::ErrorKind>>,
}

/// The end that is read from. What is written after it was dropped goes nowhere.
pub(super) struct Outlet {
    shared: Arc<Shared>,
    /// As long as somebody holds one, the command is wanted.
    _held: watch::Receiver<State>,
}

struct Shared {
    waiting: Mutex<Waiting>,
    /// Something was read, or nothing will be any more.
    taken: Notify,
}

#[derive(Default)]
struct Waiting {
    pieces: VecDeque<Bytes>,
    /// What all of them take.
    bytes: usize,
    end: Option<Result<(), io::ErrorKind>>,
    unwanted: bool,
    reader: Option<Waker>,
}

pub(super) fn spool(bounds: Bounds, held: watch::Receiver<State>) -> (Inlet, Outlet) {
    let shared = Arc::new(Shared { waiting: Mutex::default(), taken: Notify::new() });
    let inlet = Inlet { shared: Arc::clone(&shared), bounds, file: None, end: None };
    (inlet, Outlet { shared, _held: held })
}

impl Shared {
    fn waiting(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Waiting {
    fn put(&mut self, piece: Bytes) {
        self.bytes += piece.len() + PIECE_COST;
        self.pieces.push_back(piece);
        self.wake();
    }

    fn end(&mut self, end: Result<(), io::ErrorKind>) {
        self.end.get_or_insert(end);
        self.wake();
    }

    fn wake(&mut self) {
        if let Some(reader) = self.reader.take() {
            reader.wake();
        }
    }
}

impl Inlet {
    /// Takes a piece. An error means that nobody reads, or that there is no place for it.
    pub(super) async fn push(&mut self, piece: Bytes) -> io::Result<()> {
        if piece.is_empty() {
            return Ok(());
        }
        {
            let mut waiting = self.shared.waiting();
            if waiting.unwanted {
                self.file = None;
                return Ok(());
            }
            if self.file.is_none()
                && (waiting.bytes == 0 || waiting.bytes + piece.len() + PIECE_COST <= self.bounds.memory)
            {
                waiting.put(piece);
                return Ok(());
            }
        }
        while self.file.as_ref().is_some_and(|file| file.room() < piece.len() as u64) {
            let patience = self.bounds.patience;
            tokio::time::timeout(patience, self.refill()).await.map_err(|_| io::ErrorKind::TimedOut)??;
        }
        match &mut self.file {
            Some(file) => file.append(piece).await,
            None => self.file.insert(Ring::new(self.bounds.file).await?).append(piece).await,
        }
    }

    /// Moves something from the file to memory, as soon as there is room; never returns where there is no file. Nothing is lost if it is dropped.
    pub(super) async fn refill(&mut self) -> io::Result<()> {
        let Some(file) = &mut self.file else { return std::future::pending().await };
        loop {
            {
                let waiting = self.shared.waiting();
                if waiting.unwanted {
                    self.file = None;
                    return Ok(());
                }
                if waiting.bytes <= self.bounds.memory / 2 {
                    break;
                }
            }
            self.shared.taken.notified().await;
        }
        let piece = file.peek().await?;
        file.advance(piece.len());
        let is_empty = file.is_empty();
        let mut waiting = self.shared.waiting();
        waiting.put(piece);
        if is_empty {
            self.file = None;
            if let Some(end) = self.end {
                waiting.end(end);
            }
        }
        Ok(())
    }

    /// Nothing more comes. An error means that something is missing. What is said first counts.
    pub(super) fn finish(&mut self, end: Result<(), io::ErrorKind>) {
        let end = *self.end.get_or_insert(end);
        if self.file.is_none() {
            self.shared.waiting().end(end);
        }
    }

    /// Nothing more comes, and what is in the file is given up.
    pub(super) fn give_up(&mut self, why: io::ErrorKind) {
        self.file = None;
        self.finish(Err(why));
    }

    /// True if nothing is left to be moved.
    pub(super) fn is_done(&self) -> bool {
        self.end.is_some() && self.file.is_none()
    }
}

impl AsyncRead for Outlet {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let mut guard = self.shared.waiting();
        let before = buf.filled().len();
        let waiting = &mut *guard;
        while buf.remaining() > 0
            && let Some(piece) = waiting.pieces.front_mut()
        {
            let count = piece.len().min(buf.remaining());
            buf.put_slice(&piece[..count]);
            piece.advance(count);
            waiting.bytes -= count;
            if piece.is_empty() {
                waiting.pieces.pop_front();
                waiting.bytes -= PIECE_COST;
            }
        }
        let count = buf.filled().len() - before;
        if count > 0 || buf.remaining() == 0 {
            drop(guard);
            self.shared.taken.notify_one();
            return Poll::Ready(Ok(()));
        }
        match waiting.end {
            Some(end) => Poll::Ready(end.map_err(io::Error::from)),
            None => {
                waiting.reader = Some(cx.waker().clone());
                Poll::Pending
            }
        }
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        let mut waiting = self.shared.waiting();
        waiting.unwanted = true;
        waiting.pieces.clear();
        waiting.bytes = 0;
        drop(waiting);
        self.shared.taken.notify_one();
    }
}

/// A file that is written and read in a circle, so that it never gets longer than its bound.
struct Ring {
    file: Arc<File>,
    most: u64,
    read: u64,
    written: u64,
}

impl Ring {
    async fn new(most: u64) -> io::Result<Self> {
        let file = spawn_blocking(tempfile::tempfile).await??;
        Ok(Ring { file: Arc::new(file), most, read: 0, written: 0 })
    }

    fn room(&self) -> u64 {
        self.most - (self.written - self.read)
    }

    fn is_empty(&self) -> bool {
        self.written == self.read
    }

    /// There must be room for it.
    async fn append(&mut self, piece: Bytes) -> io::Result<()> {
        let (file, at, most) = (Arc::clone(&self.file), self.written % self.most, self.most);
        let len = piece.len() as u64;
        spawn_blocking(move || {
            let until_the_end = usize::try_from(most - at).unwrap_or(usize::MAX).min(piece.len());
            let (first, second) = piece.split_at(until_the_end);
            file.write_all_at(first, at)?;
            file.write_all_at(second, 0)
        })
        .await??;
        self.written += len;
        Ok(())
    }

    /// What is next, which stays where it is.
    async fn peek(&self) -> io::Result<Bytes> {
        let (file, at) = (Arc::clone(&self.file), self.read % self.most);
        let count = (self.written - self.read).min(self.most - at).min(PIECE);
        let piece = spawn_blocking(move || {
            let mut piece = vec![0; usize::try_from(count).unwrap_or(usize::MAX)];
            file.read_exact_at(&mut piece, at).map(|()| piece)
        });
        Ok(piece.await??.into())
    }

    fn advance(&mut self, count: usize) {
        self.read += count as u64;
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt as _;

    use super::*;

    const SMALL: Bounds = Bounds { memory: 1000, file: 10_000, patience: Duration::from_millis(50) };

    fn small() -> (Inlet, Outlet) {
        spool(SMALL, watch::channel(State::default()).1)
    }

    fn piece(number: usize) -> Bytes {
        vec![u8::try_from(number % 251).unwrap(); 333].into()
    }

    /// Does what the pump does.
    async fn pump(mut inlet: Inlet, mut pieces: tokio::sync::mpsc::Receiver<Bytes>) -> io::Result<()> {
        while !inlet.is_done() {
            tokio::select! {
                moved = inlet.refill() => moved?,
                piece = pieces.recv(), if inlet.end.is_none() => match piece {
                    Some(piece) => inlet.push(piece).await?,
                    None => inlet.finish(Ok(())),
                },
            }
        }
        Ok(())
    }

    #[tokio::test]
    async fn all_arrives_in_order_however_late_it_is_read() {
        let (inlet, mut outlet) = small();
        let (send, pieces) = tokio::sync::mpsc::channel(1);
        let pumping = tokio::spawn(pump(inlet, pieces));
        // More than there is room for in memory, and less than there is with the file.
        for number in 0..30 {
            send.send(piece(number)).await.unwrap();
        }
        let mut expected: Vec<u8> = (0..30).flat_map(piece).collect();
        let mut found = vec![0; 5000];
        outlet.read_exact(&mut found).await.unwrap();
        // The file is written in a circle.
        for number in 30..400 {
            send.send(piece(number)).await.unwrap();
            expected.extend(piece(number));
            let mut more = vec![0; 333];
            outlet.read_exact(&mut more).await.unwrap();
            found.extend(more);
        }
        drop(send);
        outlet.read_to_end(&mut found).await.unwrap();
        assert!(found == expected, "{} of {} bytes", found.len(), expected.len());
        pumping.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn who_never_reads_is_given_up_when_all_is_full() {
        let (mut inlet, mut outlet) = small();
        let mut taken = 0;
        let refused = loop {
            match inlet.push(piece(taken)).await {
                Ok(()) => taken += 1,
                Err(e) => break e,
            }
        };
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
        assert!((30..=33).contains(&taken), "{taken} pieces of 333 bytes in 11000");
        inlet.give_up(refused.kind());
        let mut found = Vec::new();
        assert!(outlet.read_to_end(&mut found).await.is_err(), "what is missing is told");
    }

    #[tokio::test]
    async fn an_end_before_its_time_is_an_error_after_all_that_came() {
        let (mut inlet, mut outlet) = small();
        for number in 0..10 {
            inlet.push(piece(number)).await.unwrap();
        }
        inlet.finish(Err(io::ErrorKind::ConnectionAborted));
        inlet.finish(Ok(()));
        let (send, pieces) = tokio::sync::mpsc::channel(1);
        drop(send);
        let pumping = tokio::spawn(pump(inlet, pieces));
        let mut found = Vec::new();
        let end = outlet.read_to_end(&mut found).await.unwrap_err();
        assert_eq!((end.kind(), found.len()), (io::ErrorKind::ConnectionAborted, 3330));
        pumping.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn what_nobody_wants_takes_no_room() {
        let (mut inlet, outlet) = small();
        drop(outlet);
        for number in 0..1000 {
            inlet.push(piece(number)).await.unwrap();
        }
        assert!(inlet.file.is_none() && inlet.shared.waiting().bytes == 0);
        inlet.finish(Ok(()));
        assert!(inlet.is_done());
    }
}
