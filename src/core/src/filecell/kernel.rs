//! A kernel that is a directory on a target.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use serde_json::Value;
use tokio::time::Instant;

use super::QUESTION;
use super::down::FileCellPost;
use super::drive::Drive;
use super::lane::Lane;
use crate::cell::{Cell, millis};
use crate::error::{Error, ErrorKind, Result, Step};
use crate::event::EventSink;
use crate::id::{CellId, CellNumber, KernelId};
use crate::kernel::{Chunk, Control, Fetched, Identity, Kernel, Which};
use crate::link::{self, Call, Link};
use crate::reply::Reply;
use crate::wire::message::{Action, Controlled, KernelRecord, Operation, Probe, ReadFile};

/// The grace of a kernel whose spec is not known any more.
pub(super) const DEFAULT_GRACE: Duration = Duration::from_secs(2);

/// A kernel behind a link.
#[derive(Debug)]
pub(super) struct FileCellKernel {
    pub(super) link: Arc<dyn Link>,
    /// The short way, where the kernel is on this machine.
    pub(super) lane: Option<Lane>,
    pub(super) identity: Identity,
    pub(super) grace: Duration,
    record: KernelRecord,
    /// Replies that the caller has: the next cell acknowledges them in passing.
    delivered: Mutex<Vec<CellNumber>>,
}

impl FileCellKernel {
    pub(super) fn new(
        (link, lane): (Arc<dyn Link>, Option<Lane>),
        identity: Identity,
        record: KernelRecord,
        grace: Duration,
        delivered: Vec<CellNumber>,
    ) -> Self {
        FileCellKernel { link, lane, identity, grace, record, delivered: Mutex::new(delivered) }
    }

    pub(super) fn id(&self) -> KernelId {
        self.record.id.clone()
    }

    /// What carries answers down to a cell.
    pub(super) fn post(&self, id: &CellId) -> Arc<FileCellPost> {
        Arc::new(FileCellPost::new(Arc::clone(&self.link), self.record.clone(), id.clone()))
    }

    pub(super) fn dir(&self) -> String {
        self.record.dir.clone()
    }

    /// A step of this kernel's, to be given up at `deadline`.
    pub(super) fn call<'a>(&'a self, operation: &'a Operation, deadline: Instant) -> Call<'a> {
        call(&self.record, operation, deadline)
    }

    async fn ask<T: for<'de> Deserialize<'de>>(&self, operation: Operation, bound: Duration) -> Result<T> {
        link::ask(self.link.as_ref(), self.call(&operation, Instant::now() + bound)).await
    }

    pub(super) fn take_delivered(&self) -> Vec<CellNumber> {
        std::mem::take(&mut *self.delivered.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(super) fn add_delivered(&self, numbers: impl IntoIterator<Item = CellNumber>) {
        let mut delivered = self.delivered.lock().unwrap_or_else(PoisonError::into_inner);
        for number in numbers {
            if !delivered.contains(&number) {
                delivered.push(number);
            }
        }
    }

    fn named(&self, error: Error, step: Step) -> Error {
        error.on(&self.identity.target).at(step)
    }
}

/// A step of a kernel, to be given up at `deadline`.
pub(super) fn call<'a>(kernel: &'a KernelRecord, operation: &'a Operation, deadline: Instant) -> Call<'a> {
    Call { operation, base: Some(&kernel.base), dir: None, python: Some(&kernel.python), deadline }
}

#[async_trait]
impl Kernel for FileCellKernel {
    fn record(&self) -> KernelRecord {
        self.record.clone()
    }

    async fn run(&self, cell: &Cell, events: &dyn EventSink) -> Result<Reply> {
        Drive::new(self, events).run(cell).await.map_err(|e| self.named(e, Step::Submit))
    }

    async fn submit(&self, cell: &Cell) -> Result<(CellId, CellNumber)> {
        Drive::new(self, &crate::event::NoEvents).submit(cell).await.map_err(|e| self.named(e, Step::Submit))
    }

    async fn withdraw(&self, id: &CellId) -> Result<bool> {
        #[derive(Deserialize)]
        struct Withdrawn {
            withdrawn: bool,
        }
        let operation = Operation::Withdraw { dir: self.dir(), id: id.clone() };
        let answer: Withdrawn = self.ask(operation, QUESTION).await?;
        Ok(answer.withdrawn)
    }

    async fn fetch(&self, which: &Which, wait: Duration, events: &dyn EventSink) -> Result<Fetched> {
        Drive::new(self, events).fetch(which, wait).await.map_err(|e| self.named(e, Step::Wait))
    }

    async fn control(&self, control: Control) -> Result<Controlled> {
        // The far side climbs from SIGINT to SIGKILL within one and a half times the grace.
        let hold = self.grace * 2 + Duration::from_secs(5);
        let operation = Operation::Control {
            dir: self.dir(),
            action: control.action,
            number: control.number,
            id: control.id,
            if_idle: control.if_idle,
            hold_ms: millis(hold),
        };
        match self.ask::<Controlled>(operation, hold + QUESTION).await {
            // What is dead is stopped.
            Err(e)
                if matches!(e.kind(), ErrorKind::KernelDead | ErrorKind::NoKernel)
                    && control.action == Action::Stop =>
            {
                Ok(Controlled { done: true, detail: Some("it had ended before".to_owned()) })
            }
            other => other,
        }
    }

    async fn probe(&self) -> Result<Probe> {
        self.ask(Operation::Probe { dir: self.dir() }, QUESTION).await
    }

    async fn read(&self, file: ReadFile, number: Option<CellNumber>, offset: u64, max: u64) -> Result<Chunk> {
        #[derive(Deserialize)]
        struct Read {
            offset: u64,
            size: u64,
        }
        let operation = Operation::Read { dir: self.dir(), file, number, offset, max };
        let call = self.call(&operation, Instant::now() + QUESTION);
        let (answer, bytes) = link::ask_for_bytes(self.link.as_ref(), call, operation.brings()).await?;
        let read: Read = answer.read(&self.identity.target)?;
        Ok(Chunk { bytes: bytes.into(), next: read.offset, size: read.size })
    }

    fn mark_delivered(&self, number: CellNumber) {
        self.add_delivered([number]);
    }

    fn delivered(&self) -> Vec<CellNumber> {
        self.delivered.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    async fn discard(&self) -> Result<()> {
        let _: Value = self.ask(Operation::Remove { dir: self.dir() }, QUESTION).await?;
        Ok(())
    }
}
