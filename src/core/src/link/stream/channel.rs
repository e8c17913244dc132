//! One stream to one courier, as its callers use it: any number of calls at once.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::Notify;
use tokio::time::Instant;

use super::End;
use super::inbox::{Found, Inbox, Over};
use super::outbox::Outbox;
use super::serve::Serving;
use crate::id::Nonce;
use crate::link::ChunkSink;
use crate::link::places::Place;
use crate::transport::Duplex;

/// How many bytes a caller takes before the courier hears of it. Much less than any window.
const CREDIT: usize = 128 * 1024;
/// After how long without a sign of life one is asked for, while somebody waits.
pub(super) const QUIET: Duration = Duration::from_secs(5);

/// An open stream. Dropping it ends the courier.
pub(super) struct Channel {
    shared: Arc<Shared>,
}

/// What callers and the stream's task have in common.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) calls: Mutex<Calls>,
    pub(super) outbox: Mutex<Outbox>,
    /// The handle has been dropped.
    pub(super) closed: Notify,
    /// The task's timer is set too late.
    pub(super) hurry: Notify,
}

/// The calls that are open.
#[derive(Debug)]
pub(super) struct Calls {
    next: u32,
    pub(super) open: HashMap<u32, Arc<Inbox>>,
    /// Since when there is one.
    pub(super) busy_since: Instant,
    /// When the task looks at the clock next.
    pub(super) timer: Instant,
    /// The courier has answered a call.
    pub(super) has_answered: bool,
    pub(super) end: Option<Arc<End>>,
}

/// Why a call has no answer.
#[derive(Debug)]
pub(super) enum Failed {
    /// The courier has certainly not looked at it.
    NotLookedAt(Arc<End>),
    /// It may have been carried out.
    Unknown(Arc<End>),
    /// The time was up.
    Deadline,
}

impl Channel {
    /// Speaks to the courier at the other end of `duplex`: `greeting` first, and calls right behind it, which have numbers from `first` on.
    pub(super) fn new(
        duplex: Duplex,
        nonce: Nonce,
        greeting: Bytes,
        first: u32,
        until: Instant,
        place: Place,
    ) -> Self {
        let Duplex { stdin, stdout, running, .. } = duplex;
        let now = Instant::now();
        let calls = Calls {
            next: first,
            open: HashMap::new(),
            busy_since: now,
            timer: now,
            has_answered: false,
            end: None,
        };
        let shared = Arc::new(Shared {
            calls: Mutex::new(calls),
            outbox: Mutex::new(Outbox::new(stdin, greeting)),
            closed: Notify::new(),
            hurry: Notify::new(),
        });
        tokio::spawn(Serving::new(Arc::clone(&shared), stdout, (running, place), nonce, until).run());
        Channel { shared }
    }

    /// Why it is over, if it is; and whether it was of use before.
    pub(super) fn end(&self) -> Option<(Arc<End>, bool)> {
        let calls = self.shared.calls();
        calls.end.as_ref().map(|end| (Arc::clone(end), calls.has_answered))
    }

    /// Carries out one call: its header as JSON behind [`HEAD`](super::outbox::HEAD) bytes of room. `is_data` if bytes of a file are behind that.
    pub(super) async fn call(
        &self,
        message: Vec<u8>,
        is_data: bool,
        deadline: Instant,
        chunks: ChunkSink<'_>,
    ) -> Result<Bytes, Failed> {
        let call = self.begin(message, is_data)?;
        let answered = tokio::time::timeout_at(deadline, call.answer(chunks)).await;
        answered.unwrap_or(Err(Failed::Deadline))
    }

    fn begin(&self, message: Vec<u8>, is_data: bool) -> Result<Open<'_>, Failed> {
        let inbox = Arc::new(Inbox::default());
        let number = self.shared.calls().add(&inbox, &self.shared.hurry).map_err(Failed::NotLookedAt)?;
        // From here on it is taken off again, whatever happens.
        let call = Open { shared: &self.shared, number, inbox, is_over: false };
        self.shared.outbox().push(number, message, is_data);
        Ok(call)
    }
}

impl fmt::Debug for Channel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Channel").field("end", &self.end()).finish_non_exhaustive()
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.shared.closed.notify_one();
    }
}

impl Shared {
    pub(super) fn calls(&self) -> MutexGuard<'_, Calls> {
        self.calls.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn outbox(&self) -> MutexGuard<'_, Outbox> {
        self.outbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells everybody that the stream is over. The first reason counts.
    pub(super) fn finish(&self, end: End) {
        let (end, open) = {
            let mut calls = self.calls();
            let end = Arc::clone(calls.end.get_or_insert_with(|| Arc::new(end)));
            (end, std::mem::take(&mut calls.open))
        };
        self.outbox().close();
        for inbox in open.into_values() {
            inbox.end(&end);
        }
    }
}

impl Calls {
    fn add(&mut self, inbox: &Arc<Inbox>, hurry: &Notify) -> Result<u32, Arc<End>> {
        if let Some(end) = &self.end {
            return Err(Arc::clone(end));
        }
        let number = self.next;
        let Some(next) = number.checked_add(1) else {
            return Err(Arc::new(End::Broken("it has no numbers left".to_owned())));
        };
        self.next = next;
        if self.open.is_empty() {
            self.busy_since = Instant::now();
            if self.timer > self.busy_since + QUIET {
                hurry.notify_one();
            }
        }
        self.open.insert(number, Arc::clone(inbox));
        Ok(number)
    }
}

/// A call that is open. Dropped before its answer is there, it is called off.
struct Open<'a> {
    shared: &'a Shared,
    number: u32,
    inbox: Arc<Inbox>,
    is_over: bool,
}

impl Open<'_> {
    /// Hands records to `chunks` until the answer is there.
    async fn answer(mut self, chunks: ChunkSink<'_>) -> Result<Bytes, Failed> {
        let mut taken = 0;
        loop {
            // Where there is always something more, the deadline is still looked at.
            tokio::task::consume_budget().await;
            match std::future::poll_fn(|cx| self.inbox.poll(cx)).await {
                Found::Records(records) => {
                    for piece in records {
                        taken += piece.len();
                        chunks(piece);
                    }
                    if taken >= CREDIT {
                        let credit = u32::try_from(taken).unwrap_or(u32::MAX);
                        taken -= credit as usize;
                        self.shared.outbox().push_urgent(b'W', self.number, &credit.to_be_bytes());
                    }
                }
                Found::Over(over) => {
                    self.is_over = true;
                    return match over {
                        Over::Answer(answer) => Ok(answer),
                        Over::Ended(end) => Err(self.failed(end)),
                    };
                }
            }
        }
    }

    fn failed(&self, end: Arc<End>) -> Failed {
        if end.is_refusal() || self.shared.outbox().is_unsent(self.number) {
            Failed::NotLookedAt(end)
        } else {
            Failed::Unknown(end)
        }
    }
}

impl Drop for Open<'_> {
    fn drop(&mut self) {
        if self.is_over {
            return;
        }
        self.shared.calls().open.remove(&self.number);
        self.shared.outbox().cancel(self.number);
    }
}
