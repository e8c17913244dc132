//! How many commands run over one connection: no more than the server has room for, which is found out where it is less than we think.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::Notify;

/// The channels of a connection, counted.
#[derive(Debug)]
pub(crate) struct Channels {
    most: usize,
    count: Mutex<Count>,
    changed: Notify,
}

#[derive(Debug)]
struct Count {
    running: usize,
    /// What the server has shown to have room for.
    limit: usize,
}

/// A channel in use, or about to be.
#[derive(Debug)]
pub(crate) struct Channel(Arc<Channels>);

impl Channels {
    pub(crate) fn new(most: usize) -> Arc<Self> {
        let most = most.max(1);
        Arc::new(Channels {
            most,
            count: Mutex::new(Count { running: 0, limit: most }),
            changed: Notify::new(),
        })
    }

    /// A channel, as soon as there is one.
    pub(crate) async fn take(self: &Arc<Self>) -> Channel {
        loop {
            let changed = self.changed.notified();
            tokio::pin!(changed);
            // From here on no change is missed.
            changed.as_mut().enable();
            {
                let mut count = self.count();
                if count.running < count.limit {
                    count.running += 1;
                    return Channel(Arc::clone(self));
                }
            }
            changed.await;
        }
    }

    /// Waits until a channel was given back.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Another connection, another server perhaps.
    pub(crate) fn forget_limit(&self) {
        self.count().limit = self.most;
        self.changed.notify_waiters();
    }

    fn count(&self) -> MutexGuard<'_, Count> {
        self.count.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Channel {
    /// The server had no room for it.
    pub(crate) fn was_refused(self) {
        let mut count = self.0.count();
        // Those of other processes may be in the way: one of ours is always tried.
        count.limit = count.running.saturating_sub(1).max(1);
    }
}

impl Drop for Channel {
    fn drop(&mut self) {
        self.0.count().running -= 1;
        self.0.changed.notify_waiters();
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    async fn try_take(channels: &Arc<Channels>) -> Option<Channel> {
        tokio::time::timeout(Duration::from_millis(10), channels.take()).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_with_less_room_is_not_asked_for_more() {
        let channels = Channels::new(10);
        let first = channels.take().await;
        let second = channels.take().await;
        channels.take().await.was_refused();
        assert!(try_take(&channels).await.is_none(), "the server has room for two");
        drop(first);
        let again = try_take(&channels).await.expect("one was given back");
        drop((second, again));
        channels.take().await.was_refused();
        let only = try_take(&channels).await.expect("one of ours is always tried");
        assert!(try_take(&channels).await.is_none());
        channels.forget_limit();
        assert!(try_take(&channels).await.is_some());
        drop(only);
    }
}
