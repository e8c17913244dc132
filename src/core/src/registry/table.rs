//! The registry's bookkeeping, without any I/O or clock of its own: who is used, who counts, who may go.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use super::key::Key;

/// A row of the table.
#[derive(Debug)]
pub(super) struct Row<S> {
    /// What the registry keeps for the key.
    pub(super) slot: Arc<S>,
    /// How many callers use it at the moment.
    users: usize,
    /// It has a kernel, or is getting one.
    occupied: bool,
    /// It has been chosen for teardown.
    leaving: bool,
    last_used: SystemTime,
}

/// All keys and their state.
#[derive(Debug)]
pub(super) struct Table<S> {
    rows: HashMap<Key, Row<S>>,
    cap: usize,
}

/// The answer to a wish for room.
#[derive(Debug, PartialEq)]
pub(super) enum Room {
    /// There is room, and the key has it now.
    Taken,
    /// This one has to go first.
    Evict(Key),
    /// All are in use.
    Full,
}

impl<S: Default> Table<S> {
    pub(super) fn new(cap: usize) -> Self {
        Table { rows: HashMap::new(), cap: cap.max(1) }
    }

    /// Adds a key that has a kernel from before, unless it is there already.
    pub(super) fn load(&mut self, key: Key, last_used: SystemTime) {
        self.rows.entry(key).or_insert_with(|| Row {
            slot: Arc::default(),
            users: 0,
            occupied: true,
            leaving: false,
            last_used,
        });
    }

    /// A caller begins to use the key. While it does, nobody evicts it.
    pub(super) fn enter(&mut self, key: &Key, now: SystemTime) -> Arc<S> {
        let row = self.rows.entry(key.clone()).or_insert_with(|| Row {
            slot: Arc::default(),
            users: 0,
            occupied: false,
            leaving: false,
            last_used: now,
        });
        row.users += 1;
        row.leaving = false;
        row.last_used = now;
        Arc::clone(&row.slot)
    }

    /// A caller has ended its use. A row without kernel and users is forgotten.
    pub(super) fn leave(&mut self, key: &Key, now: SystemTime) {
        if let Some(row) = self.rows.get_mut(key) {
            row.users = row.users.saturating_sub(1);
            row.last_used = now;
        }
        self.forget_if_empty(key);
    }

    /// Asks for room for the key's kernel. Pinned keys neither need room nor take it.
    pub(super) fn room_for(&mut self, key: &Key) -> Room {
        let taken = self.rows.iter().filter(|(k, row)| row.occupied && !k.is_pinned() && *k != key).count();
        let has_it = self.rows.get(key).is_some_and(|row| row.occupied);
        if has_it || key.is_pinned() || taken < self.cap {
            if let Some(row) = self.rows.get_mut(key) {
                row.occupied = true;
            }
            return Room::Taken;
        }
        match self.oldest(|_| true) {
            Some(victim) => Room::Evict(self.mark(victim)),
            None => Room::Full,
        }
    }

    /// True if it is still on its way out: nobody uses it, here or, after we last looked, elsewhere.
    pub(super) fn is_leaving(&mut self, key: &Key, used_elsewhere: Option<SystemTime>) -> bool {
        let Some(row) = self.rows.get_mut(key) else { return false };
        if used_elsewhere.is_some_and(|used| used > row.last_used) {
            row.last_used = used_elsewhere.unwrap_or(row.last_used);
            row.leaving = false;
        }
        row.leaving && row.users == 0
    }

    /// It has a kernel from elsewhere. That is a fact, whatever the cap says.
    pub(super) fn occupy(&mut self, key: &Key) {
        if let Some(row) = self.rows.get_mut(key) {
            row.occupied = true;
        }
    }

    /// The next key that has been idle since `before`, marked for teardown.
    pub(super) fn next_idle(&mut self, before: SystemTime) -> Option<Key> {
        let victim = self.oldest(|row| row.last_used < before)?;
        Some(self.mark(victim))
    }

    /// The keys that `wanted` chooses and that have a kernel.
    pub(super) fn keys(&self, wanted: impl Fn(&Key) -> bool) -> Vec<Key> {
        self.rows.iter().filter(|(k, row)| row.occupied && wanted(k)).map(|(k, _)| k.clone()).collect()
    }

    /// Its kernel is gone.
    pub(super) fn vacate(&mut self, key: &Key) {
        if let Some(row) = self.rows.get_mut(key) {
            row.occupied = false;
            row.leaving = false;
        }
        self.forget_if_empty(key);
    }

    /// It could not be torn down: somebody elsewhere uses it.
    pub(super) fn spare(&mut self, key: &Key, now: SystemTime) {
        if let Some(row) = self.rows.get_mut(key) {
            row.leaving = false;
            row.last_used = now;
        }
    }

    /// The slot of a key, without using it.
    pub(super) fn slot(&self, key: &Key) -> Option<Arc<S>> {
        self.rows.get(key).map(|row| Arc::clone(&row.slot))
    }

    fn oldest(&self, wanted: impl Fn(&Row<S>) -> bool) -> Option<Key> {
        self.rows
            .iter()
            .filter(|(key, row)| {
                row.occupied && !row.leaving && row.users == 0 && !key.is_pinned() && wanted(row)
            })
            .min_by_key(|(_, row)| row.last_used)
            .map(|(key, _)| key.clone())
    }

    fn mark(&mut self, key: Key) -> Key {
        if let Some(row) = self.rows.get_mut(&key) {
            row.leaving = true;
        }
        key
    }

    fn forget_if_empty(&mut self, key: &Key) {
        if self.rows.get(key).is_some_and(|row| row.users == 0 && !row.occupied) {
            self.rows.remove(key);
        }
    }
}

/// The moment before which a key counts as idle.
pub(super) fn idle_since(now: SystemTime, idle: Duration) -> SystemTime {
    now.checked_sub(idle).unwrap_or(SystemTime::UNIX_EPOCH)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::key::child_owner;
    use super::*;

    #[derive(Debug, Clone)]
    enum Op {
        Enter(usize),
        Leave(usize),
        Room(usize),
        Idle,
        Torn(bool),
        Died(usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            3 => (0..8usize).prop_map(Op::Enter),
            3 => (0..8usize).prop_map(Op::Leave),
            4 => (0..8usize).prop_map(Op::Room),
            1 => Just(Op::Idle),
            3 => any::<bool>().prop_map(Op::Torn),
            1 => (0..8usize).prop_map(Op::Died),
        ]
    }

    fn key(n: usize) -> Key {
        let owner = if n >= 6 { child_owner("o", &n.to_string()) } else { "o".into() };
        Key { owner, session: n.to_string(), target: "local:".parse().unwrap(), profile: "p".into() }
    }

    proptest! {
        #[test]
        fn the_cap_holds_and_nobody_in_use_or_pinned_is_chosen(ops in prop::collection::vec(op(), 0..200), cap in 1usize..5) {
            let mut table = Table::<()>::new(cap);
            let mut users = [0usize; 8];
            let mut leaving: Vec<Key> = Vec::new();
            let mut tick = 0;
            for op in ops {
                tick += 1;
                let now = SystemTime::UNIX_EPOCH + Duration::from_secs(tick);
                match op {
                    Op::Enter(n) => {
                        table.enter(&key(n), now);
                        users[n] += 1;
                        // Whoever was about to tear it down will find that it may not go.
                        prop_assert!(!table.is_leaving(&key(n), None));
                        leaving.retain(|k| *k != key(n));
                    }
                    Op::Leave(n) if users[n] > 0 => { table.leave(&key(n), now); users[n] -= 1; }
                    // Only somebody who uses a key asks for room.
                    Op::Room(n) if users[n] > 0 => match table.room_for(&key(n)) {
                        Room::Taken => {}
                        Room::Evict(victim) => {
                            let v: usize = victim.session.parse().unwrap();
                            prop_assert!(users[v] == 0 && v < 6 && !leaving.contains(&victim));
                            leaving.push(victim);
                        }
                        Room::Full => {
                            let idle = (0..6).any(|v| users[v] == 0 && table.rows.get(&key(v)).is_some_and(|r| r.occupied && !r.leaving));
                            prop_assert!(!idle, "there was somebody to evict");
                        }
                    },
                    Op::Idle => leaving.extend(table.next_idle(now)),
                    Op::Torn(done) => if let Some(victim) = leaving.pop() {
                        if done { table.vacate(&victim) } else { table.spare(&victim, now) }
                    },
                    Op::Died(n) => { table.vacate(&key(n)); leaving.retain(|k| *k != key(n)); }
                    Op::Leave(_) | Op::Room(_) => {}
                }
                let counted = table.keys(|k| !k.is_pinned()).len();
                prop_assert!(counted <= cap, "{counted} kernels under a cap of {cap}");
                prop_assert!(table.rows.len() <= 8);
            }
        }
    }

    #[test]
    fn the_one_used_longest_ago_goes() {
        let mut table = Table::<()>::new(2);
        let at = |s| SystemTime::UNIX_EPOCH + Duration::from_secs(s);
        table.load(key(0), at(10));
        table.load(key(1), at(5));
        table.enter(&key(2), at(20));
        assert_eq!(table.room_for(&key(2)), Room::Evict(key(1)));
        // It is on its way out; the other one is not touched for the same wish while there is no second need.
        table.vacate(&key(1));
        assert_eq!(table.room_for(&key(2)), Room::Taken);
    }
}
