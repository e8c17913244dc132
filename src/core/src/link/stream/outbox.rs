//! What goes to the courier: whole frames, in turns, written by whoever has something to say as far as the pipe takes it, and by the stream's task from there on.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use bytes::{Buf as _, Bytes};
use tokio::io::AsyncWrite;
use tokio::time::Instant;

/// How much of a call goes in one piece. With its head it fills a pipe of the usual size in one go.
pub(super) const PIECE: usize = 64 * 1024 - HEAD;
/// Length, kind and number of a call: what goes before the payload of a frame.
pub(super) const HEAD: usize = 9;
/// The first length of which a caller leaves the writing to the stream's task.
const LONG: usize = 256 * 1024;
/// How many writes are done in a row.
const BURST: usize = 16;

/// The writing end of a stream.
pub(super) struct Outbox {
    writer: Option<Box<dyn AsyncWrite + Send + Unpin>>,
    /// What is being written. A frame that has begun is written to its end, whoever loses interest meanwhile.
    current: Current,
    /// Short frames that go before all others.
    urgent: VecDeque<Bytes>,
    /// Calls that are not out yet; they take turns.
    calls: VecDeque<Outgoing>,
    /// Those that carry bytes of files go one after the other, and all of them have one turn.
    files: VecDeque<Outgoing>,
    /// How many pieces of other calls have gone out since a file had its turn.
    since_file: usize,
    unflushed: bool,
    blocked: bool,
    /// When the pipe, having been full, took something again: somebody reads at the other end.
    progress: Option<Instant>,
    /// Goes on where the pipe was full.
    task: Option<Waker>,
}

#[derive(Default)]
struct Current {
    bytes: Bytes,
    /// The call whose last frame this is.
    last_of: Option<u32>,
}

/// A call on its way out.
struct Outgoing {
    number: u32,
    /// The payload, with room for a head before it as long as nothing of it is out.
    bytes: Bytes,
    begun: bool,
    /// The kinds of its frames: of a piece, and of the last one.
    kinds: [u8; 2],
}

/// Of a call, and of one that bytes of a file stand behind.
const CALL: [u8; 2] = *b"cC";
const DATA: [u8; 2] = *b"dD";

impl fmt::Debug for Outbox {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Outbox").field("calls", &self.calls.len()).finish_non_exhaustive()
    }
}

impl Outbox {
    /// An outbox that begins with `greeting`, which is no frame.
    pub(super) fn new(writer: Box<dyn AsyncWrite + Send + Unpin>, greeting: Bytes) -> Self {
        Outbox {
            writer: Some(writer),
            current: Current { bytes: greeting, last_of: None },
            urgent: VecDeque::new(),
            calls: VecDeque::new(),
            files: VecDeque::new(),
            since_file: 0,
            unflushed: false,
            blocked: false,
            progress: None,
            task: None,
        }
    }

    /// Takes a call: its payload behind [`HEAD`] bytes of room.
    pub(super) fn push(&mut self, number: u32, mut message: Vec<u8>, is_data: bool) {
        let kinds = if is_data { DATA } else { CALL };
        if message.len() <= HEAD + PIECE {
            let head = head(kinds[1], number, message.len() - HEAD);
            message[..HEAD].copy_from_slice(&head);
        }
        let long = message.len() > LONG;
        let queue = if is_data { &mut self.files } else { &mut self.calls };
        queue.push_back(Outgoing { number, bytes: message.into(), begun: false, kinds });
        self.advance(long);
    }

    /// Takes a short frame about a call, or about none.
    pub(super) fn push_urgent(&mut self, kind: u8, number: u32, payload: &[u8]) {
        let mut frame = head(kind, number, payload.len()).to_vec();
        frame.extend_from_slice(payload);
        self.urgent.push_back(frame.into());
        self.advance(false);
    }

    /// Nobody waits for this call any more.
    pub(super) fn cancel(&mut self, number: u32) {
        for queue in [&mut self.calls, &mut self.files] {
            if let Some(at) = queue.iter().position(|call| call.number == number)
                && queue.remove(at).is_some_and(|call| !call.begun)
            {
                return;
            }
        }
        self.push_urgent(b'X', number, &[]);
    }

    /// True if the courier cannot have got all of this call.
    pub(super) fn is_unsent(&self, number: u32) -> bool {
        let current = &self.current;
        self.calls.iter().chain(&self.files).any(|call| call.number == number)
            || (current.last_of == Some(number) && !current.bytes.is_empty())
    }

    /// Writes what the pipe takes. For the stream's task, which is woken when there is more to do; ready only with an error.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Error> {
        if !self.task.as_ref().is_some_and(|task| task.will_wake(cx.waker())) {
            self.task = Some(cx.waker().clone());
        }
        match self.write(cx) {
            Poll::Ready(Err(e)) => Poll::Ready(e),
            _ => Poll::Pending,
        }
    }

    /// The last sign that what is written is read.
    pub(super) fn progress(&self) -> Option<Instant> {
        self.progress
    }

    /// Drops the writer, which is end of file at the other end.
    pub(super) fn close(&mut self) {
        self.writer = None;
    }

    /// Writes for a caller; what is left over, errors included, is the task's.
    fn advance(&mut self, leave: bool) {
        let Some(task) = self.task.clone() else { return };
        if leave || matches!(self.write(&mut Context::from_waker(&task)), Poll::Ready(Err(_))) {
            task.wake();
        }
    }

    fn write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        for _ in 0..BURST {
            let more = !self.current.bytes.is_empty() || self.take_next();
            let Some(writer) = &mut self.writer else {
                return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
            };
            if more {
                let Poll::Ready(written) = Pin::new(writer).poll_write(cx, &self.current.bytes)? else {
                    self.blocked = true;
                    return Poll::Pending;
                };
                if std::mem::take(&mut self.blocked) {
                    self.progress = Some(Instant::now());
                }
                if written == 0 {
                    return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
                }
                self.current.bytes.advance(written);
                self.unflushed = true;
            } else if self.unflushed {
                std::task::ready!(Pin::new(writer).poll_flush(cx))?;
                self.unflushed = false;
            } else {
                return Poll::Ready(Ok(()));
            }
        }
        // A courier that reads as quickly as we write: others want the lock, too.
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// The next frame to write.
    fn take_next(&mut self) -> bool {
        if let Some(bytes) = self.urgent.pop_front() {
            self.current = Current { bytes, last_of: None };
            return true;
        }
        let is_file = !self.files.is_empty() && self.since_file >= self.calls.len();
        self.since_file = if is_file { 0 } else { self.since_file + 1 };
        let next = if is_file { self.files.pop_front() } else { self.calls.pop_front() };
        let Some(mut call) = next else { return false };
        if !call.begun && call.bytes.len() <= HEAD + PIECE {
            self.current = Current { bytes: call.bytes, last_of: Some(call.number) };
            return true;
        }
        if !std::mem::replace(&mut call.begun, true) {
            call.bytes.advance(HEAD);
        }
        let piece = call.bytes.split_to(call.bytes.len().min(PIECE));
        let is_last = call.bytes.is_empty();
        let mut frame = Vec::with_capacity(HEAD + piece.len());
        frame.extend_from_slice(&head(call.kinds[usize::from(is_last)], call.number, piece.len()));
        frame.extend_from_slice(&piece);
        self.current = Current { bytes: frame.into(), last_of: is_last.then_some(call.number) };
        match (is_last, is_file) {
            (true, _) => {}
            (false, true) => self.files.push_front(call),
            (false, false) => self.calls.push_back(call),
        }
        true
    }
}

fn head(kind: u8, number: u32, payload: usize) -> [u8; HEAD] {
    // A payload is at most one piece.
    let [a, b, c, d] = u32::try_from(payload + 4).unwrap_or(u32::MAX).to_be_bytes();
    let [e, f, g, h] = number.to_be_bytes();
    [a, b, c, d, kind, e, f, g, h]
}
