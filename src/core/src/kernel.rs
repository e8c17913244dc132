//! The two traits that the registry knows: a driver starts kernels, a kernel runs cells. How is the driver's business.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::Value;
use tokio::time::Instant;

use crate::cell::{Cell, millis};
use crate::error::{Error, ErrorKind, Result, Step};
use crate::event::EventSink;
use crate::id::{self, CellId, CellNumber, KernelId};
use crate::link::Carrier;
use crate::reply::{CellInfo, ErrorInfo, KernelInfo, Reply, State, Status, TroubleKind};
use crate::target::Target;
use crate::transfer::{ProgressSink, TransferOptions, Transferred};
use crate::wire::message::{
    Action, Controlled, KernelRecord, Limits, Previous, Probe, RawReply, ReadFile, SpawnSpec,
};

/// What a new kernel shall be like, and whom it is for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KernelSpec {
    /// Where it runs.
    pub target: Target,
    /// Whose it is.
    pub owner: String,
    /// The session that it is for.
    pub session: String,
    /// Names (owner, session, target, profile); a live kernel under this key is taken instead of a new one.
    pub key: String,
    /// The Python to use.
    pub python: Option<String>,
    /// The base directory to use on the target, instead of looking for one.
    pub dir: Option<String>,
    /// Its working directory.
    pub cwd: Option<String>,
    /// Environment variables on top of the target's own.
    pub env: BTreeMap<String, String>,
    /// After how long without a cell it ends itself; `None` for never.
    pub idle: Option<Duration>,
    /// How long an interrupted cell is given to end before its interpreter is.
    pub grace: Duration,
    /// Its limits.
    pub limits: Limits,
    /// Modules that shall be imported before its first cell.
    pub preload: Vec<String>,
    /// How many of its kind shall stand ready from now on; `None` leaves that as it is.
    pub pool: Option<u32>,
}

impl KernelSpec {
    /// The message for the far side, with a new id.
    pub fn to_spawn(&self) -> Result<SpawnSpec> {
        Ok(SpawnSpec {
            id: KernelId::random()?,
            session: self.session.clone(),
            owner_hash: id::digest(&[&self.owner], 16),
            cwd: self.cwd.clone(),
            env: self.env.clone(),
            idle_ms: self.idle.map(millis),
            grace_ms: millis(self.grace),
            limits: self.limits.clone(),
            preload: self.preload.clone(),
            pool: self.pool,
        })
    }

    /// Whom the replies of this kernel are for.
    pub fn identity(&self) -> Identity {
        Identity { target: self.target.clone(), owner: self.owner.clone(), session: self.session.clone() }
    }
}

/// The names that a reply carries and that only the host knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    /// Where the kernel runs.
    pub target: Target,
    /// Whose it is.
    pub owner: String,
    /// The session's name.
    pub session: String,
}

impl Identity {
    /// The kernel of a reply.
    pub fn kernel(
        &self,
        id: Option<KernelId>,
        reused: bool,
        state: State,
        note: Option<String>,
    ) -> KernelInfo {
        KernelInfo {
            id,
            target: self.target.clone(),
            session: self.session.clone(),
            owner: self.owner.clone(),
            language: "python".to_owned(),
            reused,
            state,
            note,
        }
    }

    /// The reply of a cell that was withdrawn because it had waited for too long.
    pub fn withdrawn(&self, kernel: KernelId, cell: CellInfo, waited: Duration, ahead: u64) -> Reply {
        let error = ErrorInfo {
            kind: TroubleKind::Deadline,
            name: "QueueTimeout".to_owned(),
            message: format!(
                "the cell was withdrawn after waiting {waited:?} behind {} other(s); it was not run",
                ahead.max(1)
            ),
            traceback: None,
            hint: Some("wait for the running cell, or end it with `farcell interrupt`".to_owned()),
        };
        let kernel = self.kernel(Some(kernel), true, State::Kept, None);
        Reply::without_run(Status::Refused, error, cell, kernel)
    }

    /// Completes what the supervisor wrote.
    pub fn complete(&self, raw: RawReply) -> Reply {
        Reply {
            status: raw.status,
            stdout: raw.stdout,
            stderr: raw.stderr,
            result: raw.result,
            displays: raw.displays,
            error: raw.error,
            exit_code: raw.exit_code,
            signal: raw.signal,
            output: raw.output,
            tools: raw.tools,
            duration_ms: raw.duration_ms,
            queued_ms: raw.queued_ms,
            cell: CellInfo { id: raw.cell.id, number: Some(raw.cell.number) },
            kernel: self.kernel(Some(raw.kernel.id), true, raw.kernel.state, raw.kernel.note),
        }
    }
}

/// Which cell is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Which {
    /// The one that was sent last.
    Last,
    /// The one with this number.
    Number(CellNumber),
    /// The one with this id.
    Id(CellId),
}

/// What there is to say of a cell by now.
#[derive(Debug, Clone, PartialEq)]
pub enum Fetched {
    /// It has ended.
    Settled(Box<Reply>),
    /// It runs.
    Running {
        /// Its number.
        number: CellNumber,
        /// For how long.
        for_ms: f64,
    },
    /// It has not started.
    Waiting {
        /// Its number.
        number: CellNumber,
        /// How many are before it.
        ahead: u64,
    },
}

/// A piece of a kernel's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chunk {
    /// The bytes.
    pub bytes: Bytes,
    /// Where the next piece begins.
    pub next: u64,
    /// How long the file is by now.
    pub size: u64,
}

/// What to stop or interrupt, and under which condition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Control {
    /// What to do.
    pub action: Action,
    /// Only if this cell is the one that runs.
    pub number: Option<CellNumber>,
    /// Only if the cell with this id is the one that runs.
    pub id: Option<CellId>,
    /// Only if no cell runs or waits.
    pub if_idle: bool,
}

impl Control {
    /// An unconditional control.
    pub const fn new(action: Action) -> Self {
        Control { action, number: None, id: None, if_idle: false }
    }

    /// Ends the kernel unless it has something to do.
    pub const STOP_IF_IDLE: Control = Control { action: Action::Stop, number: None, id: None, if_idle: true };
}

/// One persistent interpreter with its supervisor.
#[async_trait]
pub trait Kernel: Send + Sync + fmt::Debug {
    /// What is known of it.
    fn record(&self) -> KernelRecord;

    /// Runs a cell and waits for its reply. Dropping the future does not end the cell.
    ///
    /// # Errors
    /// Only where the cell was not run. [`KernelDead`](crate::ErrorKind::KernelDead): it can be sent to another kernel. What goes wrong later is in the reply.
    async fn run(&self, cell: &Cell, events: &dyn EventSink) -> Result<Reply>;

    /// Sends a cell without waiting for it.
    ///
    /// # Errors
    /// As [`Kernel::run`], or that it is not known whether it arrived.
    async fn submit(&self, cell: &Cell) -> Result<(CellId, CellNumber)>;

    /// Takes a cell back that has not started. False if it has, or is not known.
    async fn withdraw(&self, id: &CellId) -> Result<bool>;

    /// Fetches the reply of a cell, waiting at most `wait` for it. The reply stays where it is; see [`Kernel::mark_delivered`].
    async fn fetch(&self, which: &Which, wait: Duration, events: &dyn EventSink) -> Result<Fetched>;

    /// Interrupts, resets or stops it.
    async fn control(&self, control: Control) -> Result<Controlled>;

    /// Asks whether it lives and what it does.
    async fn probe(&self) -> Result<Probe>;

    /// Reads a piece of one of its files.
    async fn read(&self, file: ReadFile, number: Option<CellNumber>, offset: u64, max: u64) -> Result<Chunk>;

    /// The caller has this reply: it may be removed when a later cell is sent.
    fn mark_delivered(&self, number: CellNumber);

    /// The replies that the caller has got and the far side still keeps.
    fn delivered(&self) -> Vec<CellNumber>;

    /// Frees what belongs to it on the target, after it has ended.
    async fn discard(&self) -> Result<()>;
}

/// A kernel that a driver has started or found.
#[derive(Debug)]
pub struct Started {
    /// The kernel.
    pub kernel: Arc<dyn Kernel>,
    /// It was there already.
    pub reused: bool,
    /// A dead one that the key had before.
    pub previous: Option<Previous>,
}

/// Turns targets of its schemes into kernels.
#[async_trait]
pub trait Driver: Send + Sync + fmt::Debug {
    /// The schemes that it serves.
    fn schemes(&self) -> &'static [&'static str];

    /// True if its kernels outlive this process.
    fn keeps_kernels(&self) -> bool;

    /// Checks a target without reaching for it.
    fn check(&self, target: &Target) -> Result<()>;

    /// True if its kernels live in something that is made for them, such as a container. What is made is put on record before, so that it is
    /// found where this process ends in the middle.
    fn houses(&self) -> bool {
        false
    }

    /// Sees to it that what a kernel of this spec lives in is there. That may take long: it is given up at `until`, and `events` hear how it
    /// goes. What was begun and given up ends by itself.
    async fn house(&self, _spec: &KernelSpec, _until: Instant, _events: &dyn EventSink) -> Result<()> {
        Ok(())
    }

    /// What there is for the kernels of a key (a [`Key::digest`](crate::Key::digest)), in words; `None` if nothing.
    async fn housing(&self, _target: &Target, _key: &str) -> Result<Option<String>> {
        Ok(None)
    }

    /// Removes it, and the kernel in it. False if there was nothing.
    async fn unhouse(&self, _target: &Target, _key: &str) -> Result<bool> {
        Ok(false)
    }

    /// Starts a kernel, or finds the live one of the spec's key.
    async fn spawn(&self, spec: &KernelSpec) -> Result<Started>;

    /// Runs one cell where [`Driver::spawn`] has found no place or no process for a kernel, as `why` says: once and by itself. `None` if it has no way
    /// to do that; then nothing was done. The cell is sent at most once, and a connection that is cut meanwhile makes it a reply that is
    /// [lost](Status::Lost).
    ///
    /// # Errors
    /// Only where the cell was not run.
    async fn once(
        &self,
        _spec: &KernelSpec,
        _cell: &Cell,
        _why: &Error,
        _events: &dyn EventSink,
    ) -> Result<Option<Reply>> {
        Ok(None)
    }

    /// Takes up a kernel that an earlier process recorded. It is not asked whether it lives: the next cell shows.
    /// `None` if this driver's kernels end with their process.
    async fn adopt(
        &self,
        identity: &Identity,
        record: &KernelRecord,
        delivered: &[CellNumber],
    ) -> Result<Option<Arc<dyn Kernel>>>;

    /// Facts about a target, as `docs/protocol.md` lists them, with the round trip's time.
    async fn doctor(&self, target: &Target, dir: Option<&str>, python: Option<&str>) -> Result<Diagnosis>;

    /// All kernels of this user on a target.
    async fn list(&self, target: &Target, dir: Option<&str>) -> Result<Vec<Probe>>;

    /// Removes what dead kernels left on a target that long ago; returns how many.
    async fn sweep(&self, target: &Target, older_than: Duration) -> Result<u64>;

    /// Puts the file `from` of this machine at `to` on a target.
    async fn put(
        &self,
        target: &Target,
        _from: &Path,
        _to: &str,
        _options: &TransferOptions,
        _progress: ProgressSink<'_>,
    ) -> Result<Transferred> {
        Err(no_files(target))
    }

    /// Gets the file `from` of a target, and puts it at `to` on this machine.
    async fn get(
        &self,
        target: &Target,
        _from: &str,
        _to: &Path,
        _options: &TransferOptions,
        _progress: ProgressSink<'_>,
    ) -> Result<Transferred> {
        Err(no_files(target))
    }

    /// Ends what is kept on a target only to make later spawns quick, in the base directory of some kernel of it; returns how many processes.
    async fn cool(&self, _target: &Target, _base: &str) -> Result<u64> {
        Ok(0)
    }

    /// Closes the connections that were left for later processes; returns how many.
    async fn close_kept(&self) -> usize {
        0
    }
}

fn no_files(target: &Target) -> Error {
    Error::new(ErrorKind::BadInput, "its driver cannot move files")
        .on(target)
        .at(Step::Transfer)
        .with_hint("move them in a cell, as bytes of a variable")
}

/// What `doctor` finds.
#[derive(Debug, Clone)]
pub struct Diagnosis {
    /// Time of one step, in milliseconds; the second of two, so that no set-up is in it.
    pub round_trip_ms: f64,
    /// How steps get there.
    pub carrier: Carrier,
    /// The facts, see `docs/protocol.md`.
    pub facts: Value,
}
