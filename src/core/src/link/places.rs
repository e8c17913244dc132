//! How many commands run on a target at once: no more than its transport has channels, and always room for one that controls.

use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::transport::Capabilities;

/// The channels of a transport, shared by the links that use it.
#[derive(Debug)]
pub(super) struct Places {
    /// `None` for no known limit.
    limited: Option<Limited>,
}

#[derive(Debug)]
struct Limited {
    all: Arc<Semaphore>,
    /// Cells that run long may hold all other places; one that interrupts them must not wait for that.
    controls: Arc<Semaphore>,
}

/// A channel in use.
#[derive(Debug)]
pub(super) struct Place {
    _permit: Option<OwnedSemaphorePermit>,
}

impl Places {
    pub(super) fn new(capabilities: Capabilities) -> Self {
        let limited = capabilities.channels.map(|channels| {
            let kept = usize::from(channels > 1);
            let all = channels.saturating_sub(kept).clamp(1, Semaphore::MAX_PERMITS);
            Limited { all: Arc::new(Semaphore::new(all)), controls: Arc::new(Semaphore::new(kept)) }
        });
        Places { limited }
    }

    /// A place for a command, as soon as there is one.
    pub(super) async fn for_command(&self, is_control: bool) -> Place {
        let Some(Limited { all, controls }) = &self.limited else { return Place { _permit: None } };
        let permit = tokio::select! {
            biased;
            permit = Arc::clone(all).acquire_owned() => permit,
            permit = Arc::clone(controls).acquire_owned(), if is_control => permit,
        };
        // They are never closed, so there is one.
        Place { _permit: permit.ok() }
    }

    /// A place for a command that stays open. It is not waited for: commands that run may hold all places for long.
    pub(super) fn for_stream(&self) -> Option<Place> {
        let Some(Limited { all, .. }) = &self.limited else { return Some(Place { _permit: None }) };
        Arc::clone(all).try_acquire_owned().ok().map(|permit| Place { _permit: Some(permit) })
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn is_free(places: &Places, is_control: bool) -> bool {
        tokio::time::timeout(Duration::from_millis(10), places.for_command(is_control)).await.is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_control_has_a_place_where_cells_have_taken_all_others() {
        let places = Places::new(Capabilities::new().channels(3));
        let stream = places.for_stream().expect("it is free");
        let cell = places.for_command(false).await;
        assert!(!is_free(&places, false).await && places.for_stream().is_none());
        let control = places.for_command(true).await;
        assert!(!is_free(&places, true).await);
        drop(cell);
        assert!(is_free(&places, false).await && is_free(&places, true).await);
        drop((stream, control));
        assert!(is_free(&places, true).await);
    }

    #[tokio::test(start_paused = true)]
    async fn one_channel_is_for_all_and_no_limit_is_none() {
        let places = Places::new(Capabilities::new().channels(1));
        let cell = places.for_command(false).await;
        assert!(!is_free(&places, true).await);
        drop(cell);
        assert!(is_free(&places, true).await);
        let places = Places::new(Capabilities::new());
        let _all = [places.for_command(false).await, places.for_command(false).await];
        assert!(is_free(&places, false).await && places.for_stream().is_some());
    }
}
