//! What drivers make for kernels to live in, such as containers: on record before it is made, so that a killed process leaves nothing unknown.

use tokio::time::Instant;

use super::key::Key;
use super::store::Stored;
use super::{Inner, Registry};
use crate::cell::{Cell, LONGEST, clamped};
use crate::error::Result;
use crate::event::EventSink;
use crate::kernel::{KernelSpec, Started};

/// The cell that a kernel is wanted for: how long it is worth waiting, and who hears of it.
#[derive(Clone, Copy)]
pub(crate) struct Cause<'a> {
    until: Instant,
    events: &'a dyn EventSink,
}

impl<'a> Cause<'a> {
    /// What a kernel lives in may take as long to make as the cell may run.
    pub(crate) fn new(cell: &Cell, events: &'a dyn EventSink) -> Self {
        Cause { until: Instant::now() + cell.timeout.map_or(LONGEST, clamped), events }
    }
}

impl Stored {
    /// Something was made for a kernel, and as far as is known no kernel came of it.
    pub fn is_empty_house(&self) -> bool {
        self.housed && self.kernel.is_none()
    }
}

impl Registry {
    /// What there is on the target for a key that has no kernel, in words; `None` if nothing.
    pub async fn housing(&self, key: &Key) -> Result<Option<String>> {
        self.driver(&key.target)?.housing(&key.target, &key.digest()).await
    }
}

impl Inner {
    /// A new kernel, and before it what it lives in.
    pub(super) async fn start(&self, key: &Key, spec: &KernelSpec, cause: Cause<'_>) -> Result<Started> {
        let driver = self.drivers.of(&key.target)?;
        if !driver.houses() {
            return driver.spawn(spec).await;
        }
        self.announce(key, true);
        let house = driver.house(spec, cause.until, cause.events);
        let started = match house.await {
            Ok(()) => driver.spawn(spec).await,
            Err(e) => Err(e),
        };
        if started.is_err() {
            // What was made is gone again, or ends by itself. A caller who loses patience leaves the record: then nobody knows.
            self.announce(key, false);
        }
        started
    }

    /// Removes what was made for a kernel that is not on record. False if there was nothing.
    pub(super) async fn unhouse(&self, key: &Key) -> Result<bool> {
        let stored = self.options.store.as_ref().and_then(|store| store.load(key));
        if !stored.is_some_and(|stored| stored.is_empty_house()) {
            return Ok(false);
        }
        let was_there = self.drivers.of(&key.target)?.unhouse(&key.target, &key.digest()).await?;
        self.announce(key, false);
        Ok(was_there)
    }

    /// Puts on record that something is made for a key, or that it is no more.
    fn announce(&self, key: &Key, housed: bool) {
        let Some(store) = &self.options.store else { return };
        let done = store.update(key, |old| match old {
            // Another process has a kernel by now.
            Some(old) if old.kernel.is_some() => Some(old),
            Some(Stored { loss: None, .. }) | None if !housed => None,
            old => {
                let loss = old.and_then(|old| old.loss);
                Some(Stored { loss, housed, ..Stored::new(key.clone(), None) })
            }
        });
        if let Err(e) = done {
            tracing::warn!(error = %e, "a sandbox without a kernel cannot be found by the next process");
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Duration;

    use async_trait::async_trait;

    use super::*;
    use crate::error::{Error, ErrorKind};
    use crate::event::NoEvents;
    use crate::id::CellNumber;
    use crate::kernel::{Diagnosis, Driver, Identity, Kernel};
    use crate::registry::{Drivers, Loss, RegistryOptions, SessionOptions, Store};
    use crate::target::Target;
    use crate::wire::message::{KernelRecord, Probe};

    /// Makes houses that are never finished, or refuses to.
    #[derive(Debug, Clone, Default)]
    struct Builder {
        refuses: bool,
        removed: Arc<AtomicUsize>,
    }

    fn nothing<T>() -> Result<T> {
        Err(Error::new(ErrorKind::Spawn, "there is nothing to build with"))
    }

    #[async_trait]
    impl Driver for Builder {
        fn schemes(&self) -> &'static [&'static str] {
            &["house"]
        }

        fn keeps_kernels(&self) -> bool {
            true
        }

        fn check(&self, _target: &Target) -> Result<()> {
            Ok(())
        }

        fn houses(&self) -> bool {
            true
        }

        async fn house(&self, _spec: &KernelSpec, _until: Instant, _events: &dyn EventSink) -> Result<()> {
            if self.refuses { nothing() } else { std::future::pending().await }
        }

        async fn housing(&self, _target: &Target, _key: &str) -> Result<Option<String>> {
            Ok(Some("a shell".to_owned()))
        }

        async fn unhouse(&self, _target: &Target, _key: &str) -> Result<bool> {
            self.removed.fetch_add(1, Ordering::Relaxed);
            Ok(true)
        }

        async fn spawn(&self, _spec: &KernelSpec) -> Result<Started> {
            nothing()
        }

        async fn adopt(
            &self,
            _identity: &Identity,
            _record: &KernelRecord,
            _delivered: &[CellNumber],
        ) -> Result<Option<Arc<dyn Kernel>>> {
            Ok(None)
        }

        async fn doctor(&self, _: &Target, _: Option<&str>, _: Option<&str>) -> Result<Diagnosis> {
            nothing()
        }

        async fn list(&self, _: &Target, _: Option<&str>) -> Result<Vec<Probe>> {
            nothing()
        }

        async fn sweep(&self, _: &Target, _: Duration) -> Result<u64> {
            nothing()
        }
    }

    fn registry(builder: &Builder, state: &tempfile::TempDir) -> Registry {
        let store = Some(Store::open(state.path()).unwrap());
        Registry::new(
            Drivers::new().with(builder.clone()),
            RegistryOptions { store, ..RegistryOptions::default() },
        )
    }

    #[tokio::test]
    async fn what_was_begun_is_on_record_and_can_be_removed() {
        let (builder, state) = (Builder::default(), tempfile::tempdir().unwrap());
        let begun = registry(&builder, &state);
        let session =
            begun.session("o", "s", &"house:x".parse().unwrap(), SessionOptions::default()).unwrap();
        let cell = Cell::new("1");
        // Its caller loses patience, as one that is killed does.
        let given_up = tokio::time::timeout(Duration::from_millis(50), session.run(&cell, &NoEvents)).await;
        assert!(given_up.is_err());
        let next = registry(&builder, &state);
        assert!(next.stored()[0].is_empty_house() && next.stored()[0].key == *session.key());
        assert_eq!(next.housing(session.key()).await.unwrap().as_deref(), Some("a shell"));
        assert_eq!(next.dispose(|key| key.owner == "another").await.unwrap(), 0);
        assert_eq!((next.dispose_all().await.unwrap(), builder.removed.load(Ordering::Relaxed)), (1, 1));
        assert!(next.stored().is_empty());
        assert_eq!(next.dispose_all().await.unwrap(), 0);
    }

    #[tokio::test]
    async fn what_was_refused_leaves_no_record_but_that_of_an_earlier_loss() {
        let (builder, state) =
            (Builder { refuses: true, ..Builder::default() }, tempfile::tempdir().unwrap());
        let registry = registry(&builder, &state);
        let session =
            registry.session("o", "s", &"house:x".parse().unwrap(), SessionOptions::default()).unwrap();
        session.run(&Cell::new("1"), &NoEvents).await.unwrap_err();
        assert!(registry.stored().is_empty());
        let loss = Loss { kernel: None, why: "it was idle".to_owned(), told: false };
        let stored = Stored { loss: Some(loss.clone()), ..Stored::new(session.key().clone(), None) };
        Store::open(state.path()).unwrap().update(session.key(), |_| Some(stored)).unwrap();
        session.run(&Cell::new("1"), &NoEvents).await.unwrap_err();
        assert!(!registry.stored()[0].is_empty_house());
        assert_eq!(registry.stored()[0].loss, Some(loss));
    }
}
