//! What is remembered of kernels: who has one, which were lost, and which replies still lie with dead ones.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::Inner;
use super::key::Key;
use super::store::{Loss, Stored};
use crate::id::KernelId;
use crate::kernel::Kernel;
use crate::wire::message::Previous;

/// How long a loss is on record for the session that has lost its kernel.
pub(super) const TELL_FOR: Duration = Duration::from_secs(30 * 24 * 3600);

/// How many delivered replies of a kernel are on record, to be acknowledged with a later cell.
const MOST_DELIVERED: usize = 256;

/// How many losses are remembered; beyond that, the oldest sessions of a very long-lived program may not hear of theirs.
const MOST_LOSSES: usize = 10_000;

impl Inner {
    /// Clears away what an ended kernel has left, and remembers what is to be told of it. One with replies that nobody has fetched
    /// stays on record, so that they can be.
    pub(super) async fn lay_to_rest(&self, key: &Key, kernel: &dyn Kernel, loss: Option<Loss>) {
        // On record first: a caller that is dropped from here on loses only the tidying.
        let record = kernel.record();
        self.forget(key, &record.id, loss.clone());
        if clear_away(kernel).await {
            return;
        }
        let Some(store) = &self.options.store else { return };
        let done = store.update(key, |old| match old {
            Some(old) if old.kernel.is_some() => Some(old),
            _ => {
                let delivered = kernel.delivered();
                Some(Stored { delivered, loss, ..Stored::new(key.clone(), Some(record)) })
            }
        });
        if let Err(e) = done {
            tracing::warn!(error = %e, "replies that nobody has fetched cannot be found by the next process");
        }
    }

    /// Remembers a kernel, also for other processes if it outlives this one.
    pub(super) fn remember(&self, key: &Key, kernel: &Arc<dyn Kernel>) {
        self.losses().remove(key);
        let Some(store) = &self.options.store else { return };
        if !self.drivers.of(&key.target).is_ok_and(|d| d.keeps_kernels()) {
            return;
        }
        let record = kernel.record();
        let done = store.update(key, |old| {
            let mut delivered = kernel.delivered();
            // Those that other processes have got from the same kernel.
            let same = old.filter(|old| old.kernel.as_ref().is_some_and(|k| k.id == record.id));
            delivered.extend(same.into_iter().flat_map(|old| old.delivered));
            delivered.sort_unstable();
            delivered.dedup();
            delivered.drain(..delivered.len().saturating_sub(MOST_DELIVERED));
            Some(Stored { delivered, ..Stored::new(key.clone(), Some(record)) })
        });
        if let Err(e) = done {
            tracing::warn!(error = %e, "the kernel cannot be found by the next process");
        }
    }

    /// Remembers that a kernel has ended, and what is to be told of that.
    pub(super) fn forget(&self, key: &Key, ended: &KernelId, loss: Option<Loss>) {
        let mut losses = self.losses();
        match &loss {
            Some(loss) if losses.len() < MOST_LOSSES => losses.insert(key.clone(), loss.clone()),
            _ => losses.remove(key),
        };
        drop(losses);
        let Some(store) = &self.options.store else { return };
        let done = store.update(key, |old| match old {
            // Another process has a successor already.
            Some(old) if old.kernel.as_ref().is_some_and(|k| k.id != *ended) => Some(old),
            _ => loss.map(|loss| Stored { loss: Some(loss), ..Stored::new(key.clone(), None) }),
        });
        if let Err(e) = done {
            tracing::warn!(error = %e, "the record of an ended kernel stays");
        }
    }

    /// The loss that is remembered of a key.
    pub(super) fn recall(&self, key: &Key) -> Option<Loss> {
        let here = self.losses().get(key).cloned();
        here.or_else(|| self.options.store.as_ref()?.load(key)?.loss)
    }

    fn losses(&self) -> MutexGuard<'_, HashMap<Key, Loss>> {
        self.losses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The loss of a kernel that ended without anybody of ours having a hand in it. One that was stopped on request is no loss.
pub(super) fn ended_by_itself(previous: Previous) -> Option<Loss> {
    let why = match previous.why.as_str() {
        "stopped" => return None,
        "idle" => "it was idle for too long".to_owned(),
        "terminated" => "it was terminated by a signal".to_owned(),
        "died" => "it died".to_owned(),
        other => format!("it ended: {other}"),
    };
    Some(Loss { kernel: Some(previous.id), why, told: false })
}

/// Frees what a dead kernel has left on its target. False if replies are among it that nobody has fetched: those stay until the sweep.
pub(super) async fn clear_away(kernel: &dyn Kernel) -> bool {
    let delivered = kernel.delivered();
    let done = match kernel.probe().await {
        Ok(probe) if probe.replies.iter().any(|n| !delivered.contains(n)) => return false,
        Ok(probe) if probe.alive => Ok(()),
        Ok(_) => kernel.discard().await,
        Err(e) => Err(e),
    };
    if let Err(e) = done {
        tracing::debug!(error = %e, "what a dead kernel left stays until the next sweep");
    }
    true
}
