//! Times that were taken, and their percentiles.

use std::time::Duration;

/// How long something took, each time.
#[derive(Debug, Default, Clone)]
pub(crate) struct Samples(Vec<Duration>);

impl Samples {
    pub(crate) fn push(&mut self, took: Duration) {
        self.0.push(took);
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// The time that so many percent of all keep within.
    pub(crate) fn percentile_ms(&self, percent: usize) -> f64 {
        let mut sorted = self.0.clone();
        sorted.sort_unstable();
        let rank = (sorted.len() * percent).div_ceil(100).max(1);
        sorted.get(rank - 1).map_or(f64::NAN, |d| d.as_secs_f64() * 1000.0)
    }

    /// The median.
    pub(crate) fn p50_ms(&self) -> f64 {
        self.percentile_ms(50)
    }

    /// How many times as long as another's median this one's is.
    pub(crate) fn times(&self, other: &Samples) -> f64 {
        self.p50_ms() / other.p50_ms()
    }
}

impl Extend<Duration> for Samples {
    fn extend<T: IntoIterator<Item = Duration>>(&mut self, more: T) {
        self.0.extend(more);
    }
}

impl IntoIterator for Samples {
    type Item = Duration;
    type IntoIter = std::vec::IntoIter<Duration>;

    fn into_iter(self) -> Self::IntoIter {
        self.0.into_iter()
    }
}
