//! A kernel in a sandbox, which goes with it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use farcell_core::kernel::Chunk;
use farcell_core::wire::message::{Controlled, KernelRecord};
use farcell_core::{
    Action, Cell, CellId, CellNumber, Control, Error, ErrorKind, EventSink, Fetched, Instant, Kernel, Probe,
    ReadFile, Reply, Result, Step, Which,
};

use super::house::House;

/// How long whoever waits for the reply of a cell that was stopped is given to fetch it.
const FETCH: Duration = Duration::from_secs(1);
/// Between two looks whether it was.
const LOOK: Duration = Duration::from_millis(50);

/// A kernel and its sandbox.
#[derive(Debug)]
pub(super) struct SandboxKernel {
    inner: Arc<dyn Kernel>,
    house: Arc<House>,
    /// The sandbox was removed by us.
    is_removed: AtomicBool,
}

impl SandboxKernel {
    pub(super) fn new(inner: Arc<dyn Kernel>, house: Arc<House>) -> Self {
        SandboxKernel { inner, house, is_removed: AtomicBool::new(false) }
    }

    fn is_removed(&self) -> bool {
        self.is_removed.load(Ordering::Acquire)
    }

    async fn remove(&self) -> Result<()> {
        self.house.remove().await.map_err(|e| e.at(Step::Control))?;
        self.is_removed.store(true, Ordering::Release);
        Ok(())
    }

    /// A kernel that was not there in a sandbox that runs: the sandbox was perhaps restarted, which empties its memory.
    async fn explained(&self, e: Error) -> Error {
        let created = Duration::try_from_secs_f64(self.inner.record().created).unwrap_or_default();
        let House { engine, name, .. } = &*self.house;
        let is_dead = e.kind() == ErrorKind::KernelDead && e.step() != Some(Step::Connect);
        if !is_dead || !engine.was_started_since(name, created).await {
            return e;
        }
        Error::new(ErrorKind::KernelDead, format!("the sandbox {name} was restarted")).with_source(e)
    }

    /// The reply of a cell that was ended lies in the sandbox. Whoever waits for it takes it, and clears the kernel away.
    async fn let_replies_be_fetched(&self) {
        let until = Instant::now() + FETCH;
        while let Ok(probe) = self.inner.probe().await {
            let delivered = self.inner.delivered();
            let all_fetched = probe.replies.iter().all(|number| delivered.contains(number));
            if all_fetched || Instant::now() + LOOK >= until {
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }
}

#[async_trait]
impl Kernel for SandboxKernel {
    fn record(&self) -> KernelRecord {
        self.inner.record()
    }

    async fn run(&self, cell: &Cell, events: &dyn EventSink) -> Result<Reply> {
        match self.inner.run(cell, events).await {
            Err(e) => Err(self.explained(e).await),
            reply => reply,
        }
    }

    async fn submit(&self, cell: &Cell) -> Result<(CellId, CellNumber)> {
        match self.inner.submit(cell).await {
            Err(e) => Err(self.explained(e).await),
            sent => sent,
        }
    }

    async fn withdraw(&self, id: &CellId) -> Result<bool> {
        self.inner.withdraw(id).await
    }

    async fn fetch(&self, which: &Which, wait: Duration, events: &dyn EventSink) -> Result<Fetched> {
        self.inner.fetch(which, wait, events).await
    }

    async fn control(&self, control: Control) -> Result<Controlled> {
        let (is_stop, if_idle) = (control.action == Action::Stop, control.if_idle);
        let controlled = match self.inner.control(control).await {
            Ok(controlled) if is_stop && controlled.done => {
                self.let_replies_be_fetched().await;
                controlled
            }
            // One that cannot be asked is stopped all the same, unless it is to be spared when it is busy.
            Err(e) if is_stop && !if_idle && e.kind() == ErrorKind::Transport => {
                tracing::debug!(error = %e, "a kernel is ended with its sandbox");
                Controlled { done: true, detail: Some("it could not be asked".to_owned()) }
            }
            other => return other,
        };
        self.remove().await?;
        Ok(controlled)
    }

    async fn probe(&self) -> Result<Probe> {
        if self.is_removed() {
            return Err(Error::new(ErrorKind::KernelDead, "it went with its sandbox"));
        }
        match self.inner.probe().await {
            Err(e) if e.kind() == ErrorKind::NoKernel && e.step() == Some(Step::Connect) => {
                Err(Error::new(ErrorKind::KernelDead, e.message()).with_source(e))
            }
            other => other,
        }
    }

    async fn read(&self, file: ReadFile, number: Option<CellNumber>, offset: u64, max: u64) -> Result<Chunk> {
        self.inner.read(file, number, offset, max).await
    }

    fn mark_delivered(&self, number: CellNumber) {
        self.inner.mark_delivered(number);
    }

    fn delivered(&self) -> Vec<CellNumber> {
        self.inner.delivered()
    }

    /// The sandbox stays: what the session has put into it is of use to its next kernel. Without one it ends by itself.
    async fn discard(&self) -> Result<()> {
        if self.is_removed() { Ok(()) } else { self.inner.discard().await }
    }
}
