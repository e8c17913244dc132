//! What is remembered of kernels: who has one, which were lost, and which replies still lie with dead ones.

use std::collections::HashMap;
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::Duration;

use super::Inner;
use super::key::Key;
use super::store::{Loss, Stored};
use crate::id::CellNumber;
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
        self.forget(key, kernel, loss.clone());
        let unfetched = clear_away(kernel).await;
        if unfetched.is_empty() {
            return;
        }
        let Some(store) = &self.options.store else { return };
        let done = store.update(key, |old| {
            let got = old.as_ref().map_or_else(Vec::new, |old| old.delivered.clone());
            match old {
                Some(old) if old.kernel.is_some() => Some(old),
                // Another process has fetched them meanwhile, and said so.
                old if unfetched.iter().all(|number| got.contains(number)) => old,
                _ => {
                    let delivered = merged(kernel.delivered(), got);
                    Some(Stored { delivered, loss, ..Stored::new(key.clone(), Some(record)) })
                }
            }
        });
        if let Err(e) = done {
            tracing::warn!(error = %e, "replies that nobody has fetched cannot be found by the next process");
        }
    }

    /// Remembers a kernel that was started or found, also for other processes if it outlives this one.
    pub(super) fn remember(&self, key: &Key, kernel: &Arc<dyn Kernel>) {
        self.losses().remove(key);
        self.record(key, kernel, |old, now| Some(renewed(old, now)));
    }

    /// Remembers that a kernel was used.
    pub(super) fn remember_use(&self, key: &Key, kernel: &Arc<dyn Kernel>) {
        self.losses().remove(key);
        self.record(key, kernel, after_use);
    }

    fn record(
        &self,
        key: &Key,
        kernel: &Arc<dyn Kernel>,
        change: fn(Option<Stored>, Stored) -> Option<Stored>,
    ) {
        let Some(store) = &self.options.store else { return };
        if !self.drivers.of(&key.target).is_ok_and(|d| d.keeps_kernels()) {
            return;
        }
        let now = Stored { delivered: kernel.delivered(), ..Stored::new(key.clone(), Some(kernel.record())) };
        if let Err(e) = store.update(key, |old| change(old, now)) {
            tracing::warn!(error = %e, "the kernel cannot be found by the next process");
        }
    }

    /// Remembers that a kernel has ended, and what is to be told of that. What other processes have got from it counts as delivered.
    pub(super) fn forget(&self, key: &Key, ended: &dyn Kernel, loss: Option<Loss>) {
        let mut losses = self.losses();
        match &loss {
            Some(loss) if losses.len() < MOST_LOSSES => losses.insert(key.clone(), loss.clone()),
            _ => losses.remove(key),
        };
        drop(losses);
        let Some(store) = &self.options.store else { return };
        let id = ended.record().id;
        let done = store.update(key, |old| match old {
            // Another process has a successor already.
            Some(old) if old.kernel.as_ref().is_some_and(|k| k.id != id) => Some(old),
            old => {
                old.into_iter().flat_map(|old| old.delivered).for_each(|number| ended.mark_delivered(number));
                loss.map(|loss| Stored { loss: Some(loss), ..Stored::new(key.clone(), None) })
            }
        });
        if let Err(e) = done {
            tracing::warn!(error = %e, "the record of an ended kernel stays");
        }
    }

    /// Whether a kernel of this key is on record, living or lost.
    pub(super) fn has_record(&self, key: &Key) -> bool {
        let store = self.options.store.as_ref();
        self.recall(key).is_some()
            || store.and_then(|store| store.load(key)).is_some_and(|stored| stored.kernel.is_some())
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

/// A record that is written anew: what other processes have got from the same kernel stays.
fn renewed(old: Option<Stored>, mut now: Stored) -> Stored {
    let same = old.filter(|old| old.kernel_id() == now.kernel_id());
    now.delivered = merged(now.delivered, same.map_or_else(Vec::new, |old| old.delivered));
    now
}

/// Since the reply came, another process may have stopped the kernel, or have a successor: that stays. What was got of one that was stopped is
/// noted, so that nobody keeps it to be fetched.
fn after_use(old: Option<Stored>, now: Stored) -> Option<Stored> {
    let mut old = old?;
    let ended = old.loss.as_ref().and_then(|loss| loss.kernel.as_ref());
    let is_ours = old.kernel_id().or(ended) == now.kernel_id();
    if is_ours {
        old.delivered = merged(old.delivered, now.delivered);
        old.kernel = old.kernel.and(now.kernel);
        old.last_used = now.last_used;
    }
    Some(old)
}

/// All of both, but for the oldest where there are too many.
fn merged(mut numbers: Vec<CellNumber>, more: Vec<CellNumber>) -> Vec<CellNumber> {
    numbers.extend(more);
    numbers.sort_unstable();
    numbers.dedup();
    numbers.drain(..numbers.len().saturating_sub(MOST_DELIVERED));
    numbers
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

/// Frees what a dead kernel has left on its target; or gives the replies among it that nobody has fetched: then all stays until the sweep.
pub(super) async fn clear_away(kernel: &dyn Kernel) -> Vec<CellNumber> {
    let delivered = kernel.delivered();
    let done = match kernel.probe().await {
        Ok(probe) => {
            let unfetched: Vec<_> = probe.replies.into_iter().filter(|n| !delivered.contains(n)).collect();
            if !unfetched.is_empty() {
                return unfetched;
            }
            if probe.alive { Ok(()) } else { kernel.discard().await }
        }
        Err(e) => Err(e),
    };
    if let Err(e) = done {
        tracing::debug!(error = %e, "what a dead kernel left stays until the next sweep");
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::id::KernelId;

    fn stored(id: &str, delivered: &[u64]) -> Stored {
        let record = json!({
            "v": 1, "id": id, "key": "", "pid": 1, "start_time": 0, "boot_id": "", "generation": 1, "language": "python",
            "python": "", "version": "", "session": "s", "created": 0.0, "idle_ms": 0, "runner": "",
        });
        let key = Key {
            owner: "o".into(),
            session: "s".into(),
            target: "local:".parse().unwrap(),
            profile: "default".into(),
        };
        let delivered = delivered.iter().copied().map(CellNumber).collect();
        Stored { delivered, ..Stored::new(key, Some(serde_json::from_value(record).unwrap())) }
    }

    #[test]
    fn a_kernel_that_another_process_has_stopped_does_not_come_back_by_its_last_use() {
        let (mine, theirs) = ("k-0000000000000001", "k-0000000000000002");
        let loss =
            Loss { kernel: Some(KernelId::parse(mine).unwrap()), why: "it made room".into(), told: false };
        let stopped = Stored { kernel: None, loss: Some(loss), ..stored(mine, &[]) };
        let noted = after_use(Some(stopped.clone()), stored(mine, &[3])).unwrap();
        assert_eq!(
            (&noted.kernel, &noted.loss, noted.delivered),
            (&None, &stopped.loss, vec![CellNumber(3)])
        );
        // On record for its replies alone: still dead, but what was got is known.
        let kept = Stored { loss: stopped.loss.clone(), ..stored(mine, &[1]) };
        let noted = after_use(Some(kept), stored(mine, &[3])).unwrap();
        assert_eq!((&noted.loss, noted.delivered), (&stopped.loss, vec![CellNumber(1), CellNumber(3)]));
        assert_eq!(after_use(None, stored(mine, &[3])), None);
        let successor = stored(theirs, &[1]);
        assert_eq!(after_use(Some(successor.clone()), stored(mine, &[3])), Some(successor));
        let used = after_use(Some(stored(mine, &[1])), stored(mine, &[3, 1])).unwrap();
        assert_eq!(used.delivered, [CellNumber(1), CellNumber(3)]);
    }
}
