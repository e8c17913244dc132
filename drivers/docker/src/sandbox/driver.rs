//! The driver of sandboxes: for each session a container, and in it the file-cell driver.

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use farcell_core::kernel::{Diagnosis, Identity, Started};
use farcell_core::wire::message::KernelRecord;
use farcell_core::{
    CellNumber, Connection, Connector, Driver, Error, ErrorKind, EventSink, FileCellDriver, Instant, Kernel,
    KernelId, KernelSpec, LinkChoice, NoEvents, Probe, ProgressSink, Result, Step, Target, TransferOptions,
    Transferred,
};

use super::body::Whose;
use super::house::{self, House};
use super::kernel::SandboxKernel;
use super::order::{self, DOCKER_RUN, Order, PODMAN_RUN};
use crate::address::{Address, Container};
use crate::engine::Engine;
use crate::site::Site;
use crate::transport::DockerTransport;

const SCHEMES: &[&str] = &[DOCKER_RUN, PODMAN_RUN];
/// How long a sandbox that was lost in the moment of a spawn may take to be made again.
const AGAIN: Duration = Duration::from_secs(60);

/// The engine's address, if the target says one, and whether it is Podman's.
type EngineName = (Option<String>, bool);

/// Serves `docker+run:` and `podman+run:`.
#[derive(Debug, Default)]
pub struct SandboxDriver {
    links: LinkChoice,
    engines: Mutex<HashMap<EngineName, Arc<Engine>>>,
    /// By target and kernel's key.
    sandboxes: Mutex<HashMap<(Target, String), Arc<Sandbox>>>,
}

/// A container, and the driver of the kernels in it.
#[derive(Debug)]
struct Sandbox {
    house: Arc<House>,
    driver: FileCellDriver<Inside>,
}

/// Opens the transport into a sandbox. Errors and replies name the target as the user wrote it.
#[derive(Debug)]
struct Inside(Arc<House>);

#[async_trait]
impl Connector for Inside {
    fn schemes(&self) -> &'static [&'static str] {
        SCHEMES
    }

    fn check(&self, target: &Target) -> Result<()> {
        order::read(target).map(drop)
    }

    async fn connect(&self, target: &Target) -> Result<Connection> {
        let House { engine, order, name, .. } = &*self.0;
        let mark = (!order.podman).then(|| self.0.mark());
        let address = Address {
            container: Container::Sandbox(name.clone()),
            podman: order.podman,
            host: order.host.clone(),
            // The container was made for them.
            user: None,
            workdir: None,
            dir: None,
            python: None,
        };
        let transport =
            DockerTransport::new(target.clone(), Arc::new(Site::new(address, Arc::clone(engine))))
                .stands(mark);
        Ok(Connection::new(transport)
            .dir(order.dir.clone())
            .python(order.python.clone())
            .cwd(order.workdir.clone()))
    }
}

impl SandboxDriver {
    /// A driver that knows no sandbox yet.
    pub fn new() -> Self {
        SandboxDriver::default()
    }

    /// Chooses how steps get into the sandboxes.
    #[must_use]
    pub fn links(self, links: LinkChoice) -> Self {
        SandboxDriver { links, ..self }
    }

    fn engine(&self, order: &Order) -> Arc<Engine> {
        let mut engines = self.engines.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || Arc::new(Engine::new(order.host.clone(), order.podman));
        Arc::clone(engines.entry((order.host.clone(), order.podman)).or_insert_with(new))
    }

    /// The sandbox of a key, whether it is there or not.
    fn sandbox(&self, target: &Target, key: &str) -> Result<Arc<Sandbox>> {
        let order = order::read(target)?;
        let engine = self.engine(&order);
        let new = || {
            let house = Arc::new(House::new(engine, order, target.clone(), key));
            let driver = FileCellDriver::new(Inside(Arc::clone(&house))).links(self.links);
            Arc::new(Sandbox { house, driver })
        };
        let mut sandboxes = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(sandboxes.entry((target.clone(), key.to_owned())).or_insert_with(new)))
    }

    /// What was learnt of a sandbox does not hold for the next one of its name.
    fn forget(&self, target: &Target, key: &str) {
        let mut sandboxes = self.sandboxes.lock().unwrap_or_else(PoisonError::into_inner);
        sandboxes.remove(&(target.clone(), key.to_owned()));
    }

    /// All sandboxes of a target that run.
    async fn all(&self, target: &Target) -> Result<Vec<Arc<Sandbox>>> {
        let engine = self.engine(&order::read(target)?);
        let keys = house::keys(&engine, target).await.map_err(|e| e.on(target))?;
        keys.iter().map(|key| self.sandbox(target, key)).collect()
    }

    /// The sandbox that files are moved to and from.
    fn of_session(&self, target: &Target, options: &TransferOptions) -> Result<Arc<Sandbox>> {
        match &options.key {
            Some(key) => self.sandbox(target, key),
            None => Err(Error::new(
                ErrorKind::BadInput,
                "each session has a sandbox of its own, and no session is named",
            )
            .on(target)
            .at(Step::Transfer)
            .with_hint("move files by a session (`Session::put`), whose first cell makes its sandbox")),
        }
    }
}

#[async_trait]
impl Driver for SandboxDriver {
    fn schemes(&self) -> &'static [&'static str] {
        SCHEMES
    }

    fn keeps_kernels(&self) -> bool {
        true
    }

    fn check(&self, target: &Target) -> Result<()> {
        order::read(target).map(drop)
    }

    fn houses(&self) -> bool {
        true
    }

    async fn house(&self, spec: &KernelSpec, until: Instant, events: &dyn EventSink) -> Result<()> {
        self.forget(&spec.target, &spec.key);
        let house = &self.sandbox(&spec.target, &spec.key)?.house;
        house.make(&Whose::of(spec), until, events).await.map_err(|e| e.on(&spec.target))
    }

    async fn housing(&self, target: &Target, key: &str) -> Result<Option<String>> {
        self.sandbox(target, key)?.house.describe().await.map_err(|e| e.on(target))
    }

    async fn unhouse(&self, target: &Target, key: &str) -> Result<bool> {
        let removed = self.sandbox(target, key)?.house.remove().await;
        self.forget(target, key);
        removed.map_err(|e| e.on(target))
    }

    async fn spawn(&self, spec: &KernelSpec) -> Result<Started> {
        let mut sandbox = self.sandbox(&spec.target, &spec.key)?;
        let mut started = sandbox.driver.spawn(spec).await;
        // It ended in this very moment, or was never made.
        if started.as_ref().is_err_and(|e| e.kind() == ErrorKind::NoKernel) {
            self.house(spec, Instant::now() + AGAIN, &NoEvents).await?;
            sandbox = self.sandbox(&spec.target, &spec.key)?;
            started = sandbox.driver.spawn(spec).await;
        }
        match started {
            Ok(started) => {
                let kernel = SandboxKernel::new(started.kernel, Arc::clone(&sandbox.house));
                Ok(Started { kernel: Arc::new(kernel), ..started })
            }
            Err(e) => {
                sandbox.house.undo().await;
                Err(e)
            }
        }
    }

    async fn adopt(
        &self,
        identity: &Identity,
        record: &KernelRecord,
        delivered: &[CellNumber],
    ) -> Result<Option<Arc<dyn Kernel>>> {
        let sandbox = self.sandbox(&identity.target, &record.key)?;
        let kernel = sandbox.driver.adopt(identity, record, delivered).await?;
        let wrap =
            |kernel| Arc::new(SandboxKernel::new(kernel, Arc::clone(&sandbox.house))) as Arc<dyn Kernel>;
        Ok(kernel.map(wrap))
    }

    /// Facts about a sandbox of the target, which is made for that and removed again.
    async fn doctor(&self, target: &Target, dir: Option<&str>, python: Option<&str>) -> Result<Diagnosis> {
        let key = format!("doctor-{}", KernelId::random()?);
        let sandbox = self.sandbox(target, &key)?;
        let made = sandbox.house.make(&Whose::nobody("doctor"), Instant::now() + AGAIN, &NoEvents).await;
        let found = match made {
            Ok(()) => sandbox.driver.doctor(target, dir, python).await,
            Err(e) => Err(e.on(target)),
        };
        sandbox.house.undo().await;
        self.forget(target, &key);
        found
    }

    /// The kernels in all sandboxes of the target.
    async fn list(&self, target: &Target, dir: Option<&str>) -> Result<Vec<Probe>> {
        let mut kernels = Vec::new();
        for sandbox in self.all(target).await? {
            match sandbox.driver.list(target, dir).await {
                Ok(found) => kernels.extend(found),
                // It has ended meanwhile.
                Err(e) if e.kind() == ErrorKind::NoKernel => {}
                Err(e) => return Err(e),
            }
        }
        Ok(kernels)
    }

    async fn sweep(&self, target: &Target, older_than: Duration) -> Result<u64> {
        let mut removed = 0;
        for sandbox in self.all(target).await? {
            removed += sandbox.driver.sweep(target, older_than).await?;
        }
        Ok(removed)
    }

    async fn put(
        &self,
        target: &Target,
        from: &Path,
        to: &str,
        options: &TransferOptions,
        progress: ProgressSink<'_>,
    ) -> Result<Transferred> {
        let sandbox = self.of_session(target, options)?;
        sandbox.driver.put(target, from, to, options, progress).await.map_err(no_sandbox)
    }

    async fn get(
        &self,
        target: &Target,
        from: &str,
        to: &Path,
        options: &TransferOptions,
        progress: ProgressSink<'_>,
    ) -> Result<Transferred> {
        let sandbox = self.of_session(target, options)?;
        sandbox.driver.get(target, from, to, options, progress).await.map_err(no_sandbox)
    }
}

fn no_sandbox(e: Error) -> Error {
    if e.kind() != ErrorKind::NoKernel {
        return e;
    }
    e.with_hint("the session's first cell makes its sandbox: `farcell run` one, and move the file then")
}
