//! Pauses between attempts. The only place that knows the crate which computes them.

use std::time::Duration;

use backoff::ExponentialBackoff;
use backoff::backoff::Backoff as _;

/// Exponentially growing pauses with jitter. How often to try is the caller's decision.
#[derive(Debug)]
pub struct Pauses {
    inner: ExponentialBackoff,
}

impl Default for Pauses {
    fn default() -> Self {
        Pauses::new()
    }
}

impl Pauses {
    /// From 50 ms up to 3 s: between two questions to a target that was lost.
    pub fn new() -> Self {
        Pauses::between(Duration::from_millis(50), Duration::from_secs(3))
    }

    /// About `first` at the beginning, twice as long each time, up to about `last`.
    pub fn between(first: Duration, last: Duration) -> Self {
        let inner = ExponentialBackoff {
            current_interval: first,
            initial_interval: first,
            max_interval: last,
            multiplier: 2.0,
            max_elapsed_time: None,
            ..ExponentialBackoff::default()
        };
        Pauses { inner }
    }

    /// The next pause.
    pub fn next_pause(&mut self) -> Duration {
        self.inner.next_backoff().unwrap_or(self.inner.max_interval)
    }

    /// Back to short pauses, after a success.
    pub fn reset(&mut self) {
        self.inner.reset();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_their_bound_and_start_over() {
        let mut pauses = Pauses::new();
        assert!(pauses.next_pause() <= Duration::from_millis(100));
        for _ in 0..20 {
            pauses.next_pause();
        }
        let later = pauses.next_pause();
        assert!(later >= Duration::from_secs(1) && later <= Duration::from_millis(4500), "{later:?}");
        pauses.reset();
        assert!(pauses.next_pause() <= Duration::from_millis(100));
    }
}
