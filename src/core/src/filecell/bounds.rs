//! How long each wait of one cell may last, by the host's own clock.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use crate::cell::{Cell, clamped};
use crate::error::{Error, ErrorKind};
use crate::tools::HeldClock;

/// How long the far side holds one question before it answers that nothing has happened.
pub(super) const HOLD: Duration = Duration::from_secs(25);
/// How long a supervisor may take to begin a cell that is first in line.
const TAKE: Duration = Duration::from_secs(10);
/// How long a target that has gone is looked for at the least, and at the most for a cell without a timeout.
const LOOK: Duration = Duration::from_secs(5);
const LOOK_LONG: Duration = Duration::from_secs(600);

/// How often a cell is looked at again that could not be withdrawn, and that is said to wait all the same.
const LONGER: u32 = 3;

/// The bounds of one cell, and what has been seen of it.
pub(super) struct Bounds {
    timeout: Option<Duration>,
    /// From a cell's deadline to the moment where its supervisor must have replied.
    ladder: Duration,
    started: Instant,
    queue: Duration,
    wait_until: Instant,
    running_since: Option<Instant>,
    untaken_since: Option<Instant>,
    lost_since: Option<Instant>,
    queued: bool,
    /// The deadline may stand still.
    clock: Option<Arc<HeldClock>>,
    longer: u32,
}

impl Bounds {
    pub(super) fn new(cell: &Cell, grace: Duration) -> Self {
        let (started, queue) = (Instant::now(), clamped(cell.queue_timeout));
        Bounds {
            timeout: cell.timeout.map(clamped),
            ladder: grace * 2 + Duration::from_secs(5),
            started,
            queue,
            wait_until: started + queue,
            running_since: None,
            untaken_since: None,
            lost_since: None,
            queued: false,
            clock: None,
            longer: 0,
        }
    }

    /// Has the deadline stand still while this clock does.
    pub(super) fn held_by(&mut self, clock: Arc<HeldClock>) {
        self.clock = Some(clock);
    }

    /// How long a cell may be running by now, its deadline having stood still for some time.
    fn runtime(&self) -> Option<Duration> {
        let held = self.clock.as_ref().map_or(Duration::ZERO, |clock| clock.held());
        self.timeout.map(|timeout| timeout + held)
    }

    /// How long the far side may hold the next question.
    pub(super) fn hold(&self) -> Duration {
        if self.queued {
            return HOLD.min(self.wait_until.saturating_duration_since(Instant::now()));
        }
        self.timeout.map_or(HOLD, |timeout| HOLD.min(timeout + self.ladder))
    }

    /// The target answered the question of `asked`: the cell waits behind `ahead` others.
    pub(super) fn is_waiting(&mut self, asked: Instant, ahead: u64) {
        self.queued = true;
        self.lost_since = None;
        if ahead == 0 {
            self.untaken_since.get_or_insert(asked);
        } else {
            self.untaken_since = None;
        }
    }

    /// The target answered the question of `asked`: the cell runs.
    pub(super) fn is_running(&mut self, asked: Instant) {
        self.queued = false;
        self.lost_since = None;
        self.running_since.get_or_insert(asked);
    }

    /// The target did not answer. Until when to go on asking.
    pub(super) fn is_lost(&mut self) -> Instant {
        let lost = *self.lost_since.get_or_insert_with(Instant::now);
        let Some(timeout) = self.runtime() else { return lost + LOOK_LONG };
        let deadline =
            if self.queued { self.wait_until } else { self.running_since.unwrap_or(self.started) + timeout };
        deadline.max(lost + LOOK)
    }

    /// How long it may wait for other cells.
    pub(super) fn queue(&self) -> Duration {
        self.queue
    }

    /// It has waited for other cells for as long as it may.
    pub(super) fn waited_too_long(&self) -> bool {
        Instant::now() >= self.wait_until
    }

    /// It could not be withdrawn just now: look at it again, in a moment.
    pub(super) fn wait_a_little_longer(&mut self) {
        self.longer += 1;
        self.wait_until = Instant::now() + LOOK;
    }

    /// It has been looked at again often enough.
    pub(super) fn is_kept_waiting(&self) -> bool {
        self.longer >= LONGER
    }

    /// It is first in line and nobody takes it.
    pub(super) fn is_not_taken(&self) -> bool {
        self.untaken_since.is_some_and(|since| since.elapsed() >= TAKE)
    }

    /// A supervisor that lives and still has not ended a cell long after its deadline is not going to.
    pub(super) fn is_overdue(&self) -> bool {
        match (self.running_since, self.runtime()) {
            (Some(since), Some(timeout)) => since.elapsed() >= timeout + self.ladder,
            _ => false,
        }
    }
}

/// The error for a kernel that is there and does nothing.
pub(super) fn not_answering() -> Error {
    Error::new(ErrorKind::Deadline, "the kernel lives and does not answer").with_hint(
        "it may be stopped (SIGSTOP), starved of CPU, or out of disk space; `farcell stop` ends it",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(timeout: impl Into<Option<Duration>>) -> Bounds {
        Bounds::new(&Cell::new("1").timeout(timeout), Duration::from_secs(2))
    }

    #[tokio::test(start_paused = true)]
    async fn a_lost_target_is_looked_for_inside_the_deadline_and_a_little_at_the_least() {
        let now = Instant::now();
        assert_eq!(bounds(Duration::from_secs(60)).is_lost(), now + Duration::from_secs(60));
        assert_eq!(bounds(Duration::from_millis(100)).is_lost(), now + LOOK);
        assert_eq!(bounds(None).is_lost(), now + LOOK_LONG);
        // A cell that waited long has its whole deadline from its start.
        let mut late = bounds(Duration::from_secs(60));
        late.is_waiting(now, 1);
        tokio::time::advance(Duration::from_secs(100)).await;
        late.is_running(Instant::now());
        assert_eq!(late.is_lost(), now + Duration::from_secs(160));
    }

    #[tokio::test(start_paused = true)]
    async fn no_duration_is_too_long() {
        let mut cell = Cell::new("1").timeout(Duration::MAX);
        cell.queue_timeout = Duration::MAX;
        let mut bounds = Bounds::new(&cell, Duration::from_secs(2));
        bounds.is_running(Instant::now());
        assert!(!bounds.is_overdue() && !bounds.waited_too_long() && bounds.hold() == HOLD);
        bounds.is_lost();
    }
}
