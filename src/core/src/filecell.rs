//! The driver that works over every transport: kernels as directories on the target, spoken to through a link.

mod bounds;
mod breath;
mod down;
mod drive;
mod kernel;
mod lane;
mod once;
pub(crate) mod page;

use std::collections::HashMap;
use std::fmt;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::{OnceCell, Semaphore};
use tokio::time::Instant;

use self::kernel::FileCellKernel;
use self::lane::Lane;
use crate::cell::Cell;
use crate::error::{Error, ErrorKind, Result, Step};
use crate::event::EventSink;
use crate::id::CellNumber;
use crate::kernel::{Diagnosis, Driver, Identity, Kernel, KernelSpec, Started};
use crate::link::{self, Call, ExecLink, Link, StreamLink};
use crate::reply::Reply;
use crate::target::Target;
use crate::transfer::{FileSite, ProgressSink, TransferOptions, Transferred};
use crate::transport::{Capabilities, Transport};
use crate::wire::message::{KernelRecord, Operation, Probe, Spawned};

/// How long opening a transport may take.
const CONNECT: Duration = Duration::from_secs(30);
/// How long starting a kernel may take.
const SPAWN: Duration = Duration::from_secs(60);
/// How long a question about kernels may take.
const QUESTION: Duration = Duration::from_secs(30);

/// Opens transports for the targets of some schemes. With a [`Transport`], this is all that a new kind of target needs.
#[async_trait]
pub trait Connector: Send + Sync + fmt::Debug {
    /// The schemes that it serves.
    fn schemes(&self) -> &'static [&'static str];

    /// Checks a target without reaching for it.
    fn check(&self, target: &Target) -> Result<()>;

    /// Opens a transport, or prepares one that opens itself when it is used.
    async fn connect(&self, target: &Target) -> Result<Connection>;

    /// Closes the connections that were left for later processes; returns how many.
    async fn close_kept(&self) -> usize {
        0
    }
}

/// A transport, and what the target's options say of the kernels behind it.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Connection {
    /// The transport.
    pub transport: Arc<dyn Transport>,
    /// The base directory to use (`dir=`).
    pub dir: Option<String>,
    /// The Python to use (`python=`).
    pub python: Option<String>,
    /// The working directory of a kernel, where the caller names none.
    pub cwd: Option<String>,
}

impl Connection {
    /// A transport to a target whose options say nothing.
    pub fn new(transport: impl Transport + 'static) -> Self {
        Connection { transport: Arc::new(transport), dir: None, python: None, cwd: None }
    }

    /// The base directory to use.
    #[must_use]
    pub fn dir(self, dir: Option<String>) -> Self {
        Connection { dir, ..self }
    }

    /// The Python to use.
    #[must_use]
    pub fn python(self, python: Option<String>) -> Self {
        Connection { python, ..self }
    }

    /// The working directory of a kernel, where the caller names none.
    #[must_use]
    pub fn cwd(self, cwd: Option<String>) -> Self {
        Connection { cwd, ..self }
    }
}

/// A target that has been connected to.
#[derive(Debug)]
struct Site {
    link: Arc<dyn Link>,
    /// What is not to go over a stream.
    commands: Arc<ExecLink>,
    dir: Option<String>,
    python: Option<String>,
    cwd: Option<String>,
    /// Cells may take the lane of their kernel.
    has_lanes: bool,
}

impl Site {
    fn files(&self) -> FileSite<'_> {
        FileSite {
            link: &self.link,
            dir: self.dir.as_deref(),
            python: self.python.as_deref(),
            cwd: self.cwd.as_deref(),
        }
    }
}

/// How steps get to a target.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum LinkChoice {
    /// Over a stream where the transport can keep a command open, and by commands where there is none.
    #[default]
    Best,
    /// By a command each.
    ExecOnly,
}

/// The file-cell driver over some connector.
#[derive(Debug)]
pub struct FileCellDriver<C> {
    connector: C,
    links: LinkChoice,
    sites: Mutex<HashMap<Target, Arc<OnceCell<Arc<Site>>>>>,
    lanes: Arc<Semaphore>,
}

impl<C: Connector> FileCellDriver<C> {
    /// A driver for the targets of `connector`.
    pub fn new(connector: C) -> Self {
        let lanes = Arc::new(Semaphore::new(lane::MOST));
        FileCellDriver { connector, links: LinkChoice::default(), sites: Mutex::default(), lanes }
    }

    /// Chooses how steps get to the targets.
    #[must_use]
    pub fn links(self, links: LinkChoice) -> Self {
        FileCellDriver { links, ..self }
    }

    /// The site of a target; one connection for any number of concurrent first callers.
    async fn site(&self, target: &Target) -> Result<Arc<Site>> {
        let cell = {
            let mut sites = self.sites.lock().unwrap_or_else(PoisonError::into_inner);
            Arc::clone(sites.entry(target.clone()).or_default())
        };
        let site = cell
            .get_or_try_init(|| async {
                let connecting = tokio::time::timeout(CONNECT, self.connector.connect(target));
                let Connection { transport, dir, python, cwd } = connecting.await.map_err(|_| {
                    let message = format!("no connection within {} seconds", CONNECT.as_secs());
                    Error::new(ErrorKind::Transport, message).on(target).at(Step::Connect)
                })??;
                let Capabilities { opens, is_here, .. } = transport.capabilities();
                let has_lanes = is_here && self.links == LinkChoice::Best;
                let (link, commands): (Arc<dyn Link>, _) = match self.links {
                    LinkChoice::Best if opens => {
                        let stream = StreamLink::new(transport);
                        let commands = stream.commands();
                        (Arc::new(stream), commands)
                    }
                    _ => {
                        tracing::debug!(%target, opens, links = ?self.links, "each step is a command");
                        let commands = Arc::new(ExecLink::new(transport));
                        (Arc::<ExecLink>::clone(&commands), commands)
                    }
                };
                Ok::<_, Error>(Arc::new(Site { link, commands, dir, python, cwd, has_lanes }))
            })
            .await?;
        Ok(Arc::clone(site))
    }

    /// The ways to a kernel.
    fn ways(&self, site: &Site, record: &KernelRecord) -> (Arc<dyn Link>, Option<Lane>) {
        let lane = site.has_lanes.then(|| Lane::new(&record.dir, record.pid, Arc::clone(&self.lanes)));
        (Arc::clone(&site.link), lane)
    }

    async fn ask<T: for<'de> Deserialize<'de>>(
        &self,
        site: &Site,
        operation: Operation,
        dir: Option<&str>,
        python: Option<&str>,
    ) -> Result<T> {
        let call = Call {
            operation: &operation,
            base: None,
            dir: dir.or(site.dir.as_deref()),
            python: python.or(site.python.as_deref()),
            deadline: Instant::now() + QUESTION,
        };
        link::ask(site.link.as_ref(), call).await
    }
}

#[async_trait]
impl<C: Connector> Driver for FileCellDriver<C> {
    fn schemes(&self) -> &'static [&'static str] {
        self.connector.schemes()
    }

    fn keeps_kernels(&self) -> bool {
        true
    }

    fn check(&self, target: &Target) -> Result<()> {
        self.connector.check(target)
    }

    async fn spawn(&self, spec: &KernelSpec) -> Result<Started> {
        let site = self.site(&spec.target).await?;
        let deadline = Instant::now() + SPAWN;
        let mut first = None;
        let (spawned, reused) = loop {
            let mut message = spec.to_spawn()?;
            message.cwd = message.cwd.or_else(|| site.cwd.clone());
            let id = message.id.clone();
            let operation = Operation::Spawn { key: spec.key.clone(), spec: message };
            let call = Call {
                operation: &operation,
                base: None,
                dir: spec.dir.as_deref().or(site.dir.as_deref()),
                python: spec.python.as_deref().or(site.python.as_deref()),
                deadline,
            };
            match link::ask::<Spawned>(site.link.as_ref(), call).await {
                Ok(spawned) => {
                    // One that our first try has started is not an old one.
                    let reused = spawned.reused && first.as_ref() != Some(&spawned.kernel.id);
                    break (spawned, reused);
                }
                // The key leads to the kernel if there is one by now; a start that was cut off has used up its id.
                Err(e) if first.is_none() && may_have_arrived(&e) => {
                    tracing::debug!(error = %e, "a spawn of unknown fate is asked for again");
                    first = Some(id);
                }
                Err(e) => return Err(e),
            }
        };
        tracing::debug!(kernel = %spawned.kernel.id, reused, "kernel ready");
        let kernel = FileCellKernel::new(
            self.ways(&site, &spawned.kernel),
            spec.identity(),
            spawned.kernel,
            spec.grace,
            Vec::new(),
        );
        Ok(Started { kernel: Arc::new(kernel), reused, previous: spawned.previous })
    }

    async fn once(
        &self,
        spec: &KernelSpec,
        cell: &Cell,
        why: &Error,
        events: &dyn EventSink,
    ) -> Result<Option<Reply>> {
        self.run_once(spec, cell, why, events).await.map(Some)
    }

    async fn adopt(
        &self,
        identity: &Identity,
        record: &KernelRecord,
        delivered: &[CellNumber],
    ) -> Result<Option<Arc<dyn Kernel>>> {
        let site = self.site(&identity.target).await?;
        let kernel = FileCellKernel::new(
            self.ways(&site, record),
            identity.clone(),
            record.clone(),
            kernel::DEFAULT_GRACE,
            delivered.to_vec(),
        );
        Ok(Some(Arc::new(kernel)))
    }

    async fn doctor(&self, target: &Target, dir: Option<&str>, python: Option<&str>) -> Result<Diagnosis> {
        let site = self.site(target).await?;
        let facts: Value = self.ask(&site, Operation::Doctor {}, dir, python).await?;
        let base = facts.get("base").and_then(Value::as_str);
        let python = facts.get("python").and_then(Value::as_str);
        if python.is_none() {
            return Err(Error::new(ErrorKind::Protocol, "the far side told no facts").on(target));
        }
        // A step as cells take it, with the runner in place and the Python known: a question about a kernel, if one that is not there.
        let operation =
            base.map_or(Operation::List {}, |base| Operation::Probe { dir: format!("{base}/k-{:016}", 0) });
        let deadline = Instant::now() + QUESTION;
        let started = Instant::now();
        let step = Call { operation: &operation, base, dir: None, python, deadline };
        match site.link.call(step, &mut |_| ()).await {
            Err(e) if e.kind() != ErrorKind::NoKernel => return Err(e),
            _ => {}
        }
        let round_trip_ms = started.elapsed().as_secs_f64() * 1000.0;
        Ok(Diagnosis { round_trip_ms, carrier: site.link.carrier(), facts })
    }

    async fn list(&self, target: &Target, dir: Option<&str>) -> Result<Vec<Probe>> {
        #[derive(Deserialize)]
        struct Listed {
            kernels: Vec<Probe>,
        }
        let site = self.site(target).await?;
        let listed: Listed = self.ask(&site, Operation::List {}, dir, None).await?;
        Ok(listed.kernels)
    }

    async fn sweep(&self, target: &Target, older_than: Duration) -> Result<u64> {
        #[derive(Deserialize)]
        struct Swept {
            removed: Vec<Value>,
        }
        let site = self.site(target).await?;
        let operation = Operation::Sweep { older_than_s: older_than.as_secs() };
        let swept: Swept = self.ask(&site, operation, None, None).await?;
        Ok(swept.removed.len() as u64)
    }

    async fn close_kept(&self) -> usize {
        self.connector.close_kept().await
    }

    async fn put(
        &self,
        target: &Target,
        from: &Path,
        to: &str,
        options: &TransferOptions,
        progress: ProgressSink<'_>,
    ) -> Result<Transferred> {
        self.site(target).await?.files().put(from, to, options, progress).await
    }

    async fn get(
        &self,
        target: &Target,
        from: &str,
        to: &Path,
        options: &TransferOptions,
        progress: ProgressSink<'_>,
    ) -> Result<Transferred> {
        self.site(target).await?.files().get(from, to, options, progress).await
    }

    async fn cool(&self, target: &Target, base: &str) -> Result<u64> {
        #[derive(Deserialize)]
        struct Cooled {
            ended: u64,
        }
        let site = self.site(target).await?;
        let call = Call {
            operation: &Operation::Cool {},
            base: Some(base),
            dir: None,
            python: site.python.as_deref(),
            deadline: Instant::now() + QUESTION,
        };
        let cooled: Cooled = link::ask(site.link.as_ref(), call).await?;
        Ok(cooled.ended)
    }
}

/// The connection failed, and not before anything was sent.
fn may_have_arrived(e: &Error) -> bool {
    e.kind() == ErrorKind::Transport && e.step() != Some(Step::Connect)
}
