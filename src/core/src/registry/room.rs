//! Room for kernels: who has to go for others, or because nobody has used it for long.

use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime};

use tokio::time::Instant;

use super::key::Key;
use super::store::Loss;
use super::table::{Room, idle_since};
use super::{Entered, Inner, Slot, Undo};
use crate::cell::clamped;
use crate::error::{Error, ErrorKind, Result, Step};
use crate::kernel::Control;

impl Inner {
    /// Takes room for the key, stopping the kernels that were used longest ago, and waiting while all are busy.
    pub(super) async fn make_room(&self, key: &Key) -> Result<()> {
        let until = Instant::now() + clamped(self.options.wait_for_room);
        let why = format!("it made room for the session {:?}", key.session);
        let mut spared = Vec::new();
        loop {
            let someone_left = self.room.notified();
            let room = self.table().room_for(key);
            match room {
                Room::Taken => return Ok(()),
                // All have been asked: what other processes use, or what cannot be reached, is asked again after a pause.
                Room::Evict(victim) if spared.contains(&victim) => {
                    self.table().spare(&victim, SystemTime::now());
                    if Instant::now() + ASK_AGAIN >= until {
                        return Err(self.no_room(key));
                    }
                    spared.clear();
                    tokio::time::sleep(ASK_AGAIN).await;
                }
                Room::Evict(victim) => {
                    match self.tear_down(&victim, Control::STOP_IF_IDLE, Some(&why)).await {
                        Ok(true) => {}
                        Ok(false) => spared.push(victim),
                        Err(e) => {
                            // It takes no room from anybody while its target cannot be reached; its own idle clock ends it.
                            tracing::info!(error = %e, "a kernel could not be stopped to make room");
                            self.table().vacate(&victim);
                        }
                    }
                }
                Room::Full => {
                    if tokio::time::timeout_at(until, someone_left).await.is_err() {
                        return Err(self.no_room(key));
                    }
                }
            }
        }
    }

    fn no_room(&self, key: &Key) -> Error {
        Error::new(ErrorKind::Refused, format!("all {} kernels are busy", self.options.cap))
            .on(&key.target)
            .at(Step::Spawn)
            .with_hint("wait for a cell to end, stop a session, or raise the cap (max_kernels)")
    }

    /// Stops a kernel. With `why`, its session is told in its next reply. False if there was none or it was spared.
    pub(super) async fn tear_down(&self, key: &Key, control: Control, why: Option<&str>) -> Result<bool> {
        let Some(slot) = self.slot(key) else { return Ok(false) };
        let spare = Undo { inner: self, key, change: Some(|table, key| table.spare(key, SystemTime::now())) };
        // The gate, not the table: a slow target holds up nobody but its own session.
        let mut seat = slot.gate.lock().await;
        if control.if_idle && !self.may_go(key) {
            return Ok(false);
        }
        let adopted = self.take_up(&mut seat, key).await;
        let Some(kernel) = seat.clone() else {
            spare.settle();
            self.table().vacate(key);
            return adopted.map(|()| false);
        };
        match kernel.control(control).await {
            Ok(controlled) if controlled.done => {}
            Ok(_) => return Ok(false),
            Err(e) if matches!(e.kind(), ErrorKind::KernelDead | ErrorKind::NoKernel) => {}
            Err(e) => return Err(e.on(&key.target)),
        }
        spare.settle();
        let id = kernel.record().id;
        tracing::debug!(kernel = %id, why, "kernel stopped");
        // Whoever wants a new kernel under this key waits at the gate until the old one has been cleared away: the far side locks its directory
        // for that, and whoever looks at it meanwhile takes it for one that lives.
        self.table().enter(key, SystemTime::now());
        let _entered = Entered { inner: self, key };
        *seat = None;
        self.table().vacate(key);
        let loss = why.map(|why| Loss { kernel: Some(id), why: why.to_owned(), told: false });
        self.lay_to_rest(key, kernel.as_ref(), loss).await;
        self.room.notify_waiters();
        Ok(true)
    }

    /// The slot of a key that has a kernel, perhaps by another process that came later.
    pub(super) fn slot(&self, key: &Key) -> Option<Arc<Slot>> {
        let mut table = self.table();
        if let Some(slot) = table.slot(key) {
            return Some(slot);
        }
        let stored = self.options.store.as_ref()?.load(key).filter(|stored| stored.kernel.is_some())?;
        table.load(key.clone(), stored.last_used());
        table.slot(key)
    }

    /// A kernel that was chosen for its age may have been used since, by us or by another process.
    fn may_go(&self, key: &Key) -> bool {
        let used_elsewhere = self.options.store.as_ref().and_then(|s| s.load(key)).map(|s| s.last_used());
        self.table().is_leaving(key, used_elsewhere)
    }
}

/// How long a kernel that was in use elsewhere is left in peace.
const ASK_AGAIN: Duration = Duration::from_millis(250);

/// Stops kernels that nobody has used for `idle`, until the registry is gone.
pub(super) async fn reap(inner: Weak<Inner>, idle: Duration) {
    let pause = (idle / 8).clamp(Duration::from_millis(20), Duration::from_secs(60));
    loop {
        tokio::time::sleep(pause).await;
        let Some(inner) = inner.upgrade() else { return };
        loop {
            let next = inner.table().next_idle(idle_since(SystemTime::now(), idle));
            let Some(key) = next else { break };
            if let Err(e) =
                inner.tear_down(&key, Control::STOP_IF_IDLE, Some("it was idle for too long")).await
            {
                tracing::warn!(error = %e, "an idle kernel could not be stopped");
            }
        }
    }
}
