//! Who has which kernel: one spawn for any number of first callers, a cap, idle reaping, disposal, and the memory of what was lost.

mod drivers;
mod files;
mod housing;
mod key;
mod memory;
mod once;
mod options;
mod room;
mod store;
mod table;

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::SystemTime;

use tokio::sync::{Mutex as AsyncMutex, Notify};

pub use self::drivers::Drivers;
pub(crate) use self::housing::Cause;
pub use self::key::{Key, child_owner};
use self::memory::{TELL_FOR, clear_away, ended_by_itself};
pub use self::options::{RegistryOptions, SessionOptions};
use self::room::reap;
pub use self::store::{Loss, Store, Stored};
use self::table::{Table, idle_since};
use crate::error::{Error, ErrorKind, Result, Step};
use crate::id::KernelId;
use crate::kernel::{Control, Driver, Identity, Kernel, KernelSpec};
use crate::output::{Cleaner, Secrets};
use crate::session::Session;
use crate::target::Target;
use crate::wire::message::Action;

/// All kernels of a program.
///
/// A registry is a value: make one, pass it around, clone it. Its last clone ends the kernels that cannot outlive the process.
#[derive(Debug, Clone)]
pub struct Registry {
    inner: Arc<Inner>,
}

struct Inner {
    drivers: Drivers,
    options: RegistryOptions,
    cleaner: Cleaner,
    table: Mutex<Table<Slot>>,
    /// Lost kernels of keys that have none now; the store, where there is one, has them as well.
    losses: Mutex<HashMap<Key, Loss>>,
    /// Somebody has left: there may be room.
    room: Notify,
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Registry").field("options", &self.options).finish_non_exhaustive()
    }
}

/// What is kept for a key. Its lock is the gate that lets one caller at a time start a kernel.
#[derive(Debug, Default)]
struct Slot {
    gate: AsyncMutex<Option<Arc<dyn Kernel>>>,
}

/// The place of a key's kernel, behind its gate.
type Seat = Option<Arc<dyn Kernel>>;

/// A kernel in use. While it is held, the kernel is neither evicted nor reaped.
#[derive(Debug)]
pub(crate) struct Lease {
    registry: Registry,
    key: Key,
    pub(crate) kernel: Arc<dyn Kernel>,
    /// It was there before this call.
    pub(crate) reused: bool,
    /// What the caller has to be told.
    pub(crate) loss: Option<Loss>,
}

impl Drop for Lease {
    fn drop(&mut self) {
        self.registry.inner.leave(&self.key);
    }
}

impl Registry {
    /// A registry over some drivers. With a store, it knows the kernels of earlier processes.
    ///
    /// Within a tokio runtime it also starts the timer that stops idle kernels; the timer ends with the registry.
    pub fn new(drivers: Drivers, options: RegistryOptions) -> Self {
        let mut table = Table::new(options.cap);
        for stored in options.store.iter().flat_map(Store::load_all) {
            let last_used = stored.last_used();
            if stored.kernel.is_some() {
                table.load(stored.key, last_used);
            } else if last_used < idle_since(SystemTime::now(), TELL_FOR) {
                // A loss that nobody has come to hear of.
                let expired = options.store.as_ref().map(|store| store.update(&stored.key, |_| None));
                tracing::debug!(?expired, "an old record was removed");
            }
        }
        let idle = options.idle;
        let inner = Arc::new(Inner {
            drivers,
            cleaner: Cleaner::new(&options.secrets),
            options,
            table: Mutex::new(table),
            losses: Mutex::default(),
            room: Notify::new(),
        });
        if let (Some(idle), Ok(runtime)) = (idle, tokio::runtime::Handle::try_current()) {
            runtime.spawn(reap(Arc::downgrade(&inner), idle));
        }
        Registry { inner }
    }

    /// A session: a name under an owner on a target. Nothing is started before its first cell.
    ///
    /// # Errors
    /// What is wrong with the target, or an empty name.
    pub fn session(
        &self,
        owner: &str,
        name: &str,
        target: &Target,
        options: SessionOptions,
    ) -> Result<Session> {
        self.inner.drivers.of(target)?;
        for (what, text) in [("owner", owner), ("session", name)] {
            if text.is_empty() || text.len() > 200 || text.chars().any(char::is_control) {
                return Err(Error::new(
                    ErrorKind::BadInput,
                    format!("{text:?} cannot be the name of a {what}"),
                )
                .at(Step::Parse)
                .with_hint("a name has 1 to 200 bytes and no control characters"));
            }
        }
        let profile = if options.profile.is_empty() { "default".to_owned() } else { options.profile.clone() };
        let key = Key { owner: owner.to_owned(), session: name.to_owned(), target: target.clone(), profile };
        Ok(Session::new(self.clone(), key, options))
    }

    /// What is redacted in whatever comes from any kernel.
    pub(crate) fn secrets(&self) -> &Secrets {
        &self.inner.options.secrets
    }

    /// What cleans texts that belong to no session: what a target says of itself.
    pub fn cleaner(&self) -> Cleaner {
        self.inner.cleaner.clone()
    }

    fn cleaned<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|e| self.inner.cleaner.error(e))
    }

    /// The driver of a target.
    pub fn driver(&self, target: &Target) -> Result<&Arc<dyn Driver>> {
        self.inner.drivers.of(target)
    }

    /// What is remembered of all kernels.
    pub fn stored(&self) -> Vec<Stored> {
        self.inner.options.store.as_ref().map(Store::load_all).unwrap_or_default()
    }

    /// How many sessions have a kernel, as far as this registry knows.
    pub fn session_count(&self) -> usize {
        self.inner.table().keys(|_| true).len()
    }

    /// Stops the kernels of an owner and of its children; returns how many.
    pub async fn dispose_owner(&self, owner: &str) -> Result<usize> {
        self.dispose(|key| key.belongs_to(owner)).await
    }

    /// Stops the kernels of a delegated child.
    pub async fn dispose_child(&self, owner: &str, child: &str) -> Result<usize> {
        let owner = child_owner(owner, child);
        self.dispose(|key| key.belongs_to(&owner)).await
    }

    /// Stops all kernels; returns how many.
    pub async fn dispose_all(&self) -> Result<usize> {
        self.dispose(|_| true).await
    }

    /// Closes the connections that were left for later processes; returns how many.
    pub async fn close_kept(&self) -> usize {
        self.inner.drivers.close_kept().await
    }

    /// Stops the kernels that `wanted` chooses, whatever they do, and removes what was made for kernels that never came. All are tried; the first
    /// error is returned.
    pub async fn dispose(&self, wanted: impl Fn(&Key) -> bool) -> Result<usize> {
        let mut keys: BTreeSet<Key> = self.inner.table().keys(&wanted).into_iter().collect();
        let houses = self.stored().into_iter().filter(Stored::is_empty_house).map(|stored| stored.key);
        keys.extend(houses.filter(wanted));
        let mut stopped = 0;
        let mut failed = None;
        for key in keys {
            match self.stop(&key, Control::new(Action::Stop)).await {
                Ok(true) => stopped += 1,
                Ok(false) => {}
                Err(e) => failed = failed.or(Some(e)),
            }
        }
        failed.map_or(Ok(stopped), Err)
    }

    /// A kernel for the key: the one that is there, the one that is remembered, or a new one.
    pub(crate) async fn lease(&self, key: &Key, spec: &KernelSpec, cause: Cause<'_>) -> Result<Lease> {
        let slot = self.inner.table().enter(key, SystemTime::now());
        // From here on the guard leaves the table again, whatever happens.
        let entered = Entered { inner: &self.inner, key };
        let mut seat = slot.gate.lock().await;
        let filled = self.inner.fill(&mut seat, key, spec, cause).await?;
        std::mem::forget(entered);
        Ok(Lease {
            registry: self.clone(),
            key: key.clone(),
            kernel: filled.kernel,
            reused: filled.reused,
            loss: filled.loss,
        })
    }

    /// A kernel in place of one that was found dead. Of many callers that found it so, one starts the new one; all are told.
    pub(crate) async fn replace(
        &self,
        lease: &mut Lease,
        spec: &KernelSpec,
        why: &str,
        cause: Cause<'_>,
    ) -> Result<()> {
        let dead = lease.kernel.record().id;
        let slot = self.inner.table().enter(&lease.key, SystemTime::now());
        let _entered = Entered { inner: &self.inner, key: &lease.key };
        let mut seat = slot.gate.lock().await;
        // Whoever ended it on purpose has left a better reason, and perhaps the user knows already.
        let known = self.inner.recall(&lease.key).filter(|loss| loss.kernel.as_ref() == Some(&dead));
        let loss = known.unwrap_or(Loss { kernel: Some(dead.clone()), why: why.to_owned(), told: false });
        if is_kernel(&seat, &dead) {
            *seat = None;
            self.inner.forget(&lease.key, lease.kernel.as_ref(), Some(loss.clone()));
            clear_away(lease.kernel.as_ref()).await;
        }
        let filled = self.inner.fill(&mut seat, &lease.key, spec, cause).await?;
        lease.loss = filled.loss.or(Some(loss)).filter(|loss| !loss.told);
        lease.reused = filled.reused;
        lease.kernel = filled.kernel;
        Ok(())
    }

    /// Remembers that a kernel has ended and that its user knows.
    pub(crate) async fn bury(&self, key: &Key, kernel: &Arc<dyn Kernel>) {
        let dead = kernel.record().id;
        let Some(slot) = self.inner.table().slot(key) else { return };
        let mut seat = slot.gate.lock().await;
        if is_kernel(&seat, &dead) {
            *seat = None;
            self.inner.table().vacate(key);
            let loss = Loss { kernel: Some(dead), why: String::new(), told: true };
            self.inner.lay_to_rest(key, kernel.as_ref(), Some(loss)).await;
        }
    }

    /// Remembers the use of a kernel for other processes.
    pub(crate) fn remember(&self, key: &Key, kernel: &Arc<dyn Kernel>) {
        self.inner.remember_use(key, kernel);
    }

    /// Stops the kernel of one key. False if there was none, or if it is in use and `control` asks for an idle one.
    pub(crate) async fn stop(&self, key: &Key, control: Control) -> Result<bool> {
        let stopped = self.inner.tear_down(key, control, None).await?;
        Ok(stopped || self.inner.unhouse(key).await?)
    }

    /// The kernel of a key, if there is one, without starting any.
    pub(crate) async fn existing(&self, key: &Key) -> Result<Option<Arc<dyn Kernel>>> {
        let slot = self.inner.table().enter(key, SystemTime::now());
        let _entered = Entered { inner: &self.inner, key };
        let mut seat = slot.gate.lock().await;
        self.inner.take_up(&mut seat, key).await?;
        Ok(seat.clone())
    }
}

fn is_kernel(seat: &Seat, id: &KernelId) -> bool {
    seat.as_ref().is_some_and(|kernel| kernel.record().id == *id)
}

/// A seat that has a kernel.
struct Filled {
    kernel: Arc<dyn Kernel>,
    /// It was there before.
    reused: bool,
    /// The one before it was lost, and the user does not know yet.
    loss: Option<Loss>,
}

/// Leaves the table when it goes.
struct Entered<'a> {
    inner: &'a Inner,
    key: &'a Key,
}

impl Drop for Entered<'_> {
    fn drop(&mut self) {
        self.inner.leave(self.key);
    }
}

/// Undoes a change of the table when a future is dropped half-way.
struct Undo<'a> {
    inner: &'a Inner,
    key: &'a Key,
    change: Option<fn(&mut Table<Slot>, &Key)>,
}

impl Undo<'_> {
    /// It has come to its end: nothing is to be undone.
    fn settle(mut self) {
        self.change = None;
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        if let Some(change) = self.change {
            change(&mut self.inner.table(), self.key);
            self.inner.room.notify_waiters();
        }
    }
}

impl Inner {
    fn table(&self) -> MutexGuard<'_, Table<Slot>> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn leave(&self, key: &Key) {
        self.table().leave(key, SystemTime::now());
        self.room.notify_waiters();
    }

    /// Sees to it that the seat has a kernel.
    async fn fill(&self, seat: &mut Seat, key: &Key, spec: &KernelSpec, cause: Cause<'_>) -> Result<Filled> {
        self.take_up(seat, key).await?;
        if let Some(kernel) = seat {
            return Ok(Filled { kernel: Arc::clone(kernel), reused: true, loss: None });
        }
        self.make_room(key).await?;
        // An error and a caller who loses patience give the room back.
        let room = Undo { inner: self, key, change: Some(Table::vacate) };
        let started = self.start(key, spec, cause).await.map_err(|e| e.on(&key.target))?;
        room.settle();
        let loss = match (self.recall(key), started.previous) {
            (Some(loss), Some(previous)) if loss.told && loss.kernel.as_ref() != Some(&previous.id) => {
                ended_by_itself(previous)
            }
            (Some(loss), _) => (!loss.told).then_some(loss),
            (None, Some(previous)) => ended_by_itself(previous),
            (None, None) => None,
        };
        self.remember(key, &started.kernel);
        *seat = Some(Arc::clone(&started.kernel));
        Ok(Filled { kernel: started.kernel, reused: started.reused, loss })
    }

    /// Takes up the kernel that an earlier process has recorded.
    async fn take_up(&self, seat: &mut Seat, key: &Key) -> Result<()> {
        if seat.is_some() {
            return Ok(());
        }
        let Some(stored) = self.options.store.as_ref().and_then(|s| s.load(key)) else { return Ok(()) };
        let Some(record) = stored.kernel else { return Ok(()) };
        let identity =
            Identity { target: key.target.clone(), owner: key.owner.clone(), session: key.session.clone() };
        let driver = self.drivers.of(&key.target)?;
        *seat = driver.adopt(&identity, &record, &stored.delivered).await?;
        if seat.is_some() {
            self.table().occupy(key);
        }
        Ok(())
    }
}
