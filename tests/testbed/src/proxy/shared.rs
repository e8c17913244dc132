//! What the proxy's owner and its thread both see: the orders that hold, the connections, the counts.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::Duration;

use tokio::sync::watch;

use super::{Connections, Transferred};
use crate::processes::PATIENCE;

/// How a connection ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    /// As if both sides had been closed.
    Close,
    /// As if a machine had forgotten it.
    Reset,
}

/// A way through the proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Way {
    /// From the client to the server.
    Up,
    /// From the server to the client.
    Down,
}

/// Tells one connection its end.
pub(super) type Told = watch::Receiver<Option<End>>;

/// The common state.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) upstream: u16,
    delay_nanos: AtomicU64,
    hole: watch::Sender<bool>,
    budget: Mutex<Option<u64>>,
    open: Mutex<HashMap<u64, watch::Sender<Option<End>>>>,
    closed: Condvar,
    opened: AtomicU64,
    up: AtomicU64,
    down: AtomicU64,
    round_trips: AtomicU64,
}

impl Shared {
    pub(super) fn new(upstream: u16) -> Self {
        Shared {
            upstream,
            delay_nanos: AtomicU64::new(0),
            hole: watch::Sender::new(false),
            budget: Mutex::default(),
            open: Mutex::default(),
            closed: Condvar::new(),
            opened: AtomicU64::new(0),
            up: AtomicU64::new(0),
            down: AtomicU64::new(0),
            round_trips: AtomicU64::new(0),
        }
    }

    pub(super) fn set_delay(&self, delay: Duration) {
        self.delay_nanos.store(u64::try_from(delay.as_nanos()).unwrap_or(u64::MAX), Relaxed);
    }

    pub(super) fn delay(&self) -> Duration {
        Duration::from_nanos(self.delay_nanos.load(Relaxed))
    }

    pub(super) fn set_hole(&self, on: bool) {
        self.hole.send_replace(on);
    }

    /// Waits until bytes may pass.
    pub(super) async fn passable(&self) {
        let mut hole = self.hole.subscribe();
        // The sender lives as long as this does.
        let _ = hole.wait_for(|on| !on).await;
    }

    pub(super) fn set_budget(&self, bytes: u64) {
        *lock(&self.budget) = Some(bytes);
    }

    /// How many of these bytes may pass, and if all connections end after that.
    pub(super) fn allow(&self, bytes: usize) -> (usize, bool) {
        let mut budget = lock(&self.budget);
        let Some(left) = *budget else { return (bytes, false) };
        let wanted = u64::try_from(bytes).expect("a piece is small");
        if wanted < left {
            *budget = Some(left - wanted);
            return (bytes, false);
        }
        *budget = None;
        (usize::try_from(left).expect("it is at most the size of a piece"), true)
    }

    /// Registers a connection.
    pub(super) fn open(&self) -> (u64, Told) {
        let id = self.opened.fetch_add(1, Relaxed);
        let sender = watch::Sender::new(None);
        let told = sender.subscribe();
        lock(&self.open).insert(id, sender);
        (id, told)
    }

    /// Says that a connection's sockets are closed.
    pub(super) fn close(&self, id: u64) {
        lock(&self.open).remove(&id);
        self.closed.notify_all();
    }

    /// Tells all connections to end.
    pub(super) fn end_all(&self, end: End) {
        for connection in lock(&self.open).values() {
            connection.send_replace(Some(end));
        }
    }

    /// The same, from another thread, and waits until they have.
    pub(super) fn end_all_and_wait(&self, end: End) {
        self.end_all(end);
        let open = lock(&self.open);
        let still_told = |open: &mut HashMap<u64, watch::Sender<Option<End>>>| {
            open.values().any(|connection| connection.borrow().is_some())
        };
        let waited = self.closed.wait_timeout_while(open, PATIENCE, still_told);
        assert!(!waited.expect("nobody panics in between").1.timed_out(), "connections do not end");
    }

    /// Counts bytes that came out.
    pub(super) fn count(&self, way: Way, bytes: usize) {
        let counter = if way == Way::Up { &self.up } else { &self.down };
        counter.fetch_add(u64::try_from(bytes).expect("a piece is small"), Relaxed);
    }

    pub(super) fn count_round_trip(&self) {
        self.round_trips.fetch_add(1, Relaxed);
    }

    pub(super) fn connections(&self) -> Connections {
        let open = lock(&self.open).len();
        Connections { opened: self.opened.load(Relaxed), open }
    }

    pub(super) fn bytes(&self) -> Transferred {
        Transferred { up: self.up.load(Relaxed), down: self.down.load(Relaxed) }
    }

    pub(super) fn round_trips(&self) -> u64 {
        self.round_trips.load(Relaxed)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("nobody panics in between")
}
