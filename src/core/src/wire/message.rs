//! The messages of the protocol, version 1. Field names here are those of `docs/protocol.md`.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::id::{CellId, CellNumber, Generation, KernelId};
use crate::reply::{ErrorInfo, MimeBundle, OutputInfo, State, Status, ToolInfo};
use crate::tools::{AnswerText, Token};
use crate::wire::file::{GetStep, PutStep};

/// The version of the protocol that this engine speaks.
pub const VERSION: u32 = 1;

/// What the far side says of a kernel (`kernel.json`); enough to find it again from another process.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct KernelRecord {
    /// The protocol's version.
    pub v: u32,
    /// The kernel's id.
    pub id: KernelId,
    /// The key that it was spawned under.
    pub key: String,
    /// Its directory on the target; empty for one over pipes, which needs none.
    #[serde(default, deserialize_with = "null_as_default")]
    pub dir: String,
    /// The base directory on the target; likewise.
    #[serde(default, deserialize_with = "null_as_default")]
    pub base: String,
    /// The supervisor's process id.
    pub pid: i64,
    /// When that process started, in clock ticks since boot; 0 where it cannot be known.
    pub start_time: u64,
    /// Which boot of the target; empty where it cannot be known.
    pub boot_id: String,
    /// The interpreter's generation.
    pub generation: Generation,
    /// The interpreter's process id; absent while there is none.
    #[serde(default)]
    pub interpreter_pid: Option<i64>,
    /// The language of its cells.
    pub language: String,
    /// The Python that runs it.
    pub python: String,
    /// That Python's version.
    pub version: String,
    /// The session that it was spawned for.
    pub session: String,
    /// When it was spawned, in seconds since 1970.
    pub created: f64,
    /// The hash of the runner that it runs.
    pub runner: String,
}

fn null_as_default<'de, D: serde::Deserializer<'de>>(deserializer: D) -> Result<String, D::Error> {
    Ok(Option::<String>::deserialize(deserializer)?.unwrap_or_default())
}

/// Bounds for one kernel. `None` leaves the target's own limit.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Address space of the interpreter, in bytes.
    pub memory_bytes: Option<u64>,
    /// Processes of the user, as `RLIMIT_NPROC` counts them.
    pub processes: Option<u64>,
    /// CPU time of the interpreter, in seconds.
    pub cpu_seconds: Option<u64>,
    /// Open files.
    pub open_files: Option<u64>,
    /// Size of the record file of one cell, in bytes.
    pub spill_bytes: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            memory_bytes: None,
            processes: None,
            cpu_seconds: None,
            open_files: None,
            spill_bytes: 64 * 1024 * 1024,
        }
    }
}

/// What a new kernel shall be like.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct SpawnSpec {
    /// Its id.
    pub id: KernelId,
    /// The session that it is for, for people who look at the target.
    pub session: String,
    /// A digest of the owner.
    pub owner_hash: String,
    /// Its working directory; the home directory if not given.
    pub cwd: Option<String>,
    /// Environment variables on top of the target's own.
    pub env: BTreeMap<String, String>,
    /// After how long without a cell it ends itself; never if not given.
    pub idle_ms: Option<u64>,
    /// How long SIGINT is given before SIGTERM.
    pub grace_ms: u64,
    /// Its limits.
    pub limits: Limits,
    /// Modules that are imported before its first cell, where a kernel can be forked from a process that has done so.
    pub preload: Vec<String>,
    /// How many kernels of its kind shall stand ready for others; not given, the number stays as it is.
    pub pool: Option<u32>,
}

/// Which expression statements of a cell show their value.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Echo {
    /// The value of a last expression is the cell's result.
    #[default]
    Last,
    /// The value of every expression statement is printed, as at Python's own prompt.
    All,
}

/// A cell, as it is sent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Request {
    /// The protocol's version.
    pub v: u32,
    /// The cell's id.
    pub id: CellId,
    /// The code. It may be long, and each try to send it has a request of its own.
    pub code: Arc<str>,
    /// How long it may run, from its start.
    pub timeout_ms: Option<u64>,
    /// How many bytes of each stream the reply may hold.
    pub max_output: u64,
    /// Which values are shown.
    pub echo: Echo,
    /// Working directory to change to first.
    pub cwd: Option<String>,
    /// Environment variables to set first.
    pub env: BTreeMap<String, String>,
    /// Replace the interpreter first.
    pub reset: bool,
    /// The tools that it may call.
    pub tools: Option<Offer>,
}

/// What a cell is told of its tools.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Offer {
    /// What its calls have to show.
    pub token: Token,
    /// The module that they are imported from.
    pub import: Arc<str>,
    /// How long a call waits while nobody waits for the cell.
    pub patience_ms: u64,
    /// The tools.
    pub list: Arc<[OfferedTool]>,
}

/// One of them.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct OfferedTool {
    /// Its name.
    pub name: String,
    /// What it does.
    pub doc: String,
    /// The JSON schema of its arguments.
    pub schema: Value,
}

/// How long, and for what, the far side waits before it answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Watch {
    /// At most this long.
    pub hold_ms: u64,
    /// From which byte of the record file on output is wanted.
    pub offset: u64,
    /// Answer also when there is output.
    pub stream: bool,
    /// How long to collect output before answering with it.
    pub lull_ms: u64,
    /// Answer at once if the cell has to wait for others.
    pub tell: bool,
    /// Output may be left out of the reply if all of it is in the records that come before it.
    pub gather: bool,
}

/// What a kernel can be told to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Action {
    /// Interrupt the running cell.
    Interrupt,
    /// Replace the interpreter.
    Reset,
    /// End the kernel.
    Stop,
}

/// What can be done with the deadline of a cell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum ClockAction {
    /// It stands still.
    Hold,
    /// It goes on.
    Resume,
}

/// Which file of a kernel to read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReadFile {
    /// The output records of a cell.
    Out,
    /// The supervisor's log.
    Log,
}

/// One operation of the far side.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(tag = "op", rename_all = "lowercase")]
#[allow(missing_docs, reason = "each field is described in docs/protocol.md, section Operations")]
pub enum Operation {
    Spawn {
        key: String,
        spec: SpawnSpec,
    },
    Run {
        dir: String,
        cell: Request,
        wait: Watch,
        ack: Vec<CellNumber>,
        again: bool,
    },
    Wait {
        dir: String,
        id: Option<CellId>,
        number: Option<CellNumber>,
        wait: Watch,
        ack: Vec<CellNumber>,
    },
    Withdraw {
        dir: String,
        id: CellId,
    },
    Control {
        dir: String,
        #[serde(rename = "do")]
        action: Action,
        number: Option<CellNumber>,
        id: Option<CellId>,
        if_idle: bool,
        hold_ms: u64,
    },
    Probe {
        dir: String,
    },
    /// A control of a cell's deadline; [`Action`] has those of a kernel.
    #[serde(rename = "control")]
    Clock {
        dir: String,
        #[serde(rename = "do")]
        action: ClockAction,
        number: CellNumber,
        id: CellId,
        for_ms: u64,
        hold_ms: u64,
    },
    Answer {
        dir: String,
        number: CellNumber,
        id: CellId,
        call: u64,
        answer: AnswerText,
    },
    Ack {
        dir: String,
        numbers: Vec<CellNumber>,
    },
    Read {
        dir: String,
        file: ReadFile,
        number: Option<CellNumber>,
        offset: u64,
        max: u64,
    },
    List {},
    Sweep {
        older_than_s: u64,
    },
    Cool {},
    Remove {
        dir: String,
    },
    Doctor {},
    /// A cell without a kernel. Sent a second time it would run a second time.
    Once {
        spec: SpawnSpec,
        cell: Request,
    },
    Put(PutStep),
    Get(GetStep),
}

impl Operation {
    /// What goes behind its header: bytes of a file.
    pub fn data(&self) -> Option<&Bytes> {
        if let Operation::Put(step) = self { step.data() } else { None }
    }

    /// How many bytes of a file its answer brings at the most.
    pub fn brings(&self) -> u64 {
        match self {
            Operation::Get(GetStep::Open { max, .. } | GetStep::Piece { max, .. }) => *max,
            Operation::Read { max, .. } => *max,
            _ => 0,
        }
    }
}

/// Where a cell stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Fate {
    /// It has not started.
    Waiting,
    /// It runs.
    Running,
    /// Its reply is there.
    Settled,
    /// Its kernel died before it could reply; a reply was made from its output.
    Dead,
    /// There is no such cell.
    Unknown,
}

/// The answer to `run` and `wait`.
#[derive(Debug, Clone, Deserialize)]
pub struct Progress {
    /// The cell's number.
    pub number: Option<CellNumber>,
    /// The cell's id.
    #[serde(default)]
    pub id: Option<CellId>,
    /// Where it stands.
    pub fate: Fate,
    /// How many cells are before it.
    #[serde(default)]
    pub ahead: u64,
    /// Where the records after those of this answer begin.
    #[serde(default)]
    pub offset: u64,
    /// For how long it has been running.
    #[serde(default)]
    pub running_ms: Option<f64>,
    /// Its reply.
    #[serde(default)]
    pub reply: Option<RawReply>,
}

/// The answer to `spawn`.
#[derive(Debug, Clone, Deserialize)]
pub struct Spawned {
    /// The kernel.
    pub kernel: KernelRecord,
    /// The key had a live kernel already.
    pub reused: bool,
    /// A dead kernel that the key had before.
    #[serde(default)]
    pub previous: Option<Previous>,
}

/// The answer to `once`.
#[derive(Debug, Clone, Deserialize)]
pub struct RanOnce {
    /// The cell's reply; the kernel in it never was.
    pub reply: RawReply,
}

/// A kernel that a key had before.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub struct Previous {
    /// Its id.
    pub id: KernelId,
    /// Its directory.
    pub dir: String,
    /// Why it ended: `idle`, `stopped`, `terminated`, `died`, …
    pub why: String,
}

/// The running cell of a kernel.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
pub struct Running {
    /// Its number.
    pub number: CellNumber,
    /// Its id.
    pub id: CellId,
    /// For how long.
    pub since_ms: f64,
}

/// The answer to `probe`, and an entry of `list`.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Probe {
    /// The supervisor holds its lock.
    pub alive: bool,
    /// The record; absent if the directory holds none.
    pub kernel: Option<KernelRecord>,
    /// The running cell.
    #[serde(default)]
    pub running: Option<Running>,
    /// How many cells wait.
    #[serde(default)]
    pub waiting: u64,
    /// The numbers of the replies that were not acknowledged.
    #[serde(default)]
    pub replies: Vec<CellNumber>,
}

/// The answer to `control`.
#[derive(Debug, Clone, Deserialize)]
pub struct Controlled {
    /// It was done.
    pub done: bool,
    /// Why not, or what.
    #[serde(default)]
    pub detail: Option<String>,
}

/// An error of the far side.
#[derive(Debug, Clone, Deserialize)]
pub struct FarError {
    /// One of the codes of the protocol.
    pub code: String,
    /// One sentence.
    pub message: String,
    /// What to do about it.
    #[serde(default)]
    pub hint: Option<String>,
}

/// A reply as the supervisor writes it.
#[derive(Debug, Clone, Deserialize)]
#[allow(missing_docs, reason = "the fields are those of `Reply`")]
pub struct RawReply {
    pub v: u32,
    pub status: Status,
    pub stdout: String,
    pub stderr: String,
    /// Both are left out: they are what the cell's output records hold.
    #[serde(default)]
    pub gathered: bool,
    #[serde(default)]
    pub result: Option<MimeBundle>,
    #[serde(default)]
    pub displays: Vec<MimeBundle>,
    #[serde(default)]
    pub error: Option<ErrorInfo>,
    #[serde(default)]
    pub exit_code: Option<i64>,
    #[serde(default)]
    pub signal: Option<String>,
    pub output: OutputInfo,
    #[serde(default)]
    pub tools: ToolInfo,
    pub duration_ms: f64,
    pub queued_ms: f64,
    pub cell: RawCell,
    pub kernel: RawKernel,
}

/// The cell of a [`RawReply`].
#[derive(Debug, Clone, Deserialize)]
pub struct RawCell {
    /// The cell's id; absent for a request that could not be read.
    #[serde(default)]
    pub id: Option<CellId>,
    /// Its number.
    pub number: CellNumber,
}

/// The kernel of a [`RawReply`].
#[derive(Debug, Clone, Deserialize)]
pub struct RawKernel {
    /// The kernel's id.
    pub id: KernelId,
    /// The interpreter that stands ready after the cell.
    pub generation: Generation,
    /// What became of the variables.
    pub state: State,
    /// A sentence about it.
    #[serde(default)]
    pub note: Option<String>,
}
