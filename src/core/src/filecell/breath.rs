//! Pauses for a far side that answers without waiting.

use std::time::Duration;

use tokio::time::Instant;

use crate::retry::Pauses;
use crate::wire::message::{Fate, Progress};

/// An answer that comes sooner than this, and says what the one before has said, has not waited as it was asked to.
const SOON: Duration = Duration::from_millis(500);
/// Pauses before whoever answers so is asked again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(500));

/// Knows what was heard last of a cell.
pub(super) struct Breath {
    heard: Option<(Fate, u64, u64)>,
    pauses: Pauses,
}

impl Breath {
    pub(super) fn new() -> Self {
        Breath { heard: None, pauses: Pauses::between(PAUSES.0, PAUSES.1) }
    }

    /// Pauses where an answer came at once and brought nothing new: a far side that does not wait must not keep this one busy.
    pub(super) async fn take(&mut self, asked: Instant, hold: Duration, progress: &Progress, offset: u64) {
        let news = (progress.fate, progress.ahead, offset);
        let is_over = matches!(progress.fate, Fate::Settled | Fate::Dead | Fate::Unknown);
        if self.heard.replace(news) != Some(news) || is_over || asked.elapsed() >= SOON.min(hold) {
            self.pauses.reset();
            return;
        }
        tokio::time::sleep(self.pauses.next_pause()).await;
    }
}
