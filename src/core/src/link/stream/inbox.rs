//! What comes from the courier for one call: its output records, then its answer, or the news that the stream is over.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};

use bytes::{Bytes, BytesMut};

use super::End;

/// What a piece costs besides its bytes: one that is a single byte is not for nothing.
const PIECE_COST: usize = 64;
/// Records of fewer bytes are copied, so that they do not hold on to a buffer that is many times as long.
const SMALL: usize = 16 * 1024;

/// Where the reading end lays down what is for a call, and its caller picks it up. Bounded by the window: what was not picked up is not sent.
#[derive(Debug, Default)]
pub(super) struct Inbox {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    records: VecDeque<Bytes>,
    /// How many bytes of records lie here.
    unread: usize,
    /// The answer as far as it has come. Its bytes are copied: the smallest piece would hold on to the whole buffer that it came in.
    answer: BytesMut,
    over: Option<Over>,
    caller: Option<Waker>,
}

/// How a call ended.
#[derive(Debug, Clone)]
pub(super) enum Over {
    Answer(Bytes),
    /// The stream has ended before the answer was whole.
    Ended(Arc<End>),
}

/// What a caller finds.
#[derive(Debug)]
pub(super) enum Found {
    Records(VecDeque<Bytes>),
    Over(Over),
}

impl Inbox {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lays down records. Returns how many bytes nobody has picked up.
    pub(super) fn put_records(&self, mut records: Bytes) -> usize {
        if records.len() < SMALL {
            records = Bytes::copy_from_slice(&records);
        }
        let (unread, caller) = {
            let mut state = self.state();
            state.unread += records.len() + PIECE_COST;
            state.records.push_back(records);
            (state.unread, state.caller.take())
        };
        wake(caller);
        unread
    }

    /// Lays down a piece of the answer. Returns how long the answer is by now.
    pub(super) fn put_piece(&self, piece: &[u8]) -> usize {
        let mut state = self.state();
        state.answer.extend_from_slice(piece);
        state.answer.len()
    }

    /// Lays down the last piece of the answer.
    pub(super) fn put_last_piece(&self, piece: Bytes) {
        let mut state = self.state();
        let answer = if state.answer.is_empty() {
            piece
        } else {
            let mut answer = std::mem::take(&mut state.answer);
            answer.extend_from_slice(&piece);
            answer.freeze()
        };
        Inbox::settle(state, Over::Answer(answer));
    }

    /// Nothing more comes.
    pub(super) fn end(&self, end: &Arc<End>) {
        let mut state = self.state();
        state.answer = BytesMut::new();
        Inbox::settle(state, Over::Ended(Arc::clone(end)));
    }

    fn settle(mut state: MutexGuard<'_, State>, over: Over) {
        state.over.get_or_insert(over);
        let caller = state.caller.take();
        drop(state);
        wake(caller);
    }

    /// Picks up what is there.
    pub(super) fn poll(&self, cx: &mut Context<'_>) -> Poll<Found> {
        let mut state = self.state();
        if !state.records.is_empty() {
            state.unread = 0;
            return Poll::Ready(Found::Records(std::mem::take(&mut state.records)));
        }
        if let Some(over) = state.over.clone() {
            return Poll::Ready(Found::Over(over));
        }
        state.caller = Some(cx.waker().clone());
        Poll::Pending
    }
}

fn wake(caller: Option<Waker>) {
    if let Some(caller) = caller {
        caller.wake();
    }
}
