//! The one answer to a cell, as it is given to the caller. Its JSON form is part of farcell's interface.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::error::{Error, ErrorKind};
use crate::id::{CellId, CellNumber, KernelId};
use crate::target::Target;
use crate::tools::FailureKind;

/// A value in several forms, by MIME type. Text is a JSON string, images are base64.
pub type MimeBundle = BTreeMap<String, Value>;

/// How a cell ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Status {
    /// It ran to its end.
    Ok,
    /// An exception left it.
    Error,
    /// It called `sys.exit`, or raised `SystemExit` in another way.
    Exit,
    /// Its deadline passed.
    Timeout,
    /// It was interrupted on request.
    Interrupted,
    /// Its interpreter or its kernel ended while it ran.
    Died,
    /// The target could not be reached again in time. The cell may still be running, and its reply can be fetched later.
    Lost,
    /// It was not run.
    Refused,
}

/// What became of the variables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// First cell of a new kernel.
    Fresh,
    /// As they were before the cell, with what the cell changed.
    Kept,
    /// Gone by this cell or on request; a new interpreter stands ready.
    Reset,
    /// As they were before this cell, which destroyed its interpreter.
    Restored,
    /// Those of earlier cells are gone: the kernel or its interpreter had ended. See the note.
    Lost,
    /// The session was stopped.
    Ended,
    /// Not known: the target cannot be reached.
    Unknown,
    /// There is no kernel behind this reply: the cell was not run, or once by itself where no kernel could be started.
    None,
}

/// What kind of trouble an [`ErrorInfo`] tells.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum TroubleKind {
    /// An exception of the cell's code.
    Exception,
    /// The code asked to exit.
    Exit,
    /// A signal ended the interpreter, or interrupted the cell.
    Signal,
    /// A deadline passed.
    Deadline,
    /// The target could not be reached.
    Transport,
    /// One side said something that the other does not understand.
    Protocol,
    /// No kernel could be started.
    Spawn,
}

/// What went wrong.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorInfo {
    /// The kind.
    pub kind: TroubleKind,
    /// A name, such as that of the exception or of the signal.
    pub name: String,
    /// One sentence.
    pub message: String,
    /// The cell's own frames, where it is an exception.
    #[serde(default)]
    pub traceback: Option<String>,
    /// What to do about it.
    #[serde(default)]
    pub hint: Option<String>,
}

/// Exact counts of what a cell printed, in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct OutputInfo {
    /// Bytes printed to stdout.
    pub stdout_bytes: u64,
    /// How many of them are not in `stdout`.
    pub stdout_omitted: u64,
    /// Bytes printed to stderr.
    pub stderr_bytes: u64,
    /// How many of them are not in `stderr`.
    pub stderr_omitted: u64,
    /// The file on the target that holds the full text, when something was omitted.
    pub spill: Option<String>,
}

/// The tool calls of a cell.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolInfo {
    /// How many calls were made.
    pub calls: u64,
    /// Those that failed; the first 20.
    pub errors: Vec<ToolError>,
}

/// A tool call that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ToolError {
    /// Its number among those of the cell, from 1.
    pub call: u64,
    /// The tool's name.
    pub name: String,
    /// Why it failed, in a word.
    pub kind: FailureKind,
    /// Why it failed, in a sentence.
    pub message: String,
}

/// Which cell it was.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CellInfo {
    /// The cell's id; absent if it never got one.
    pub id: Option<CellId>,
    /// Its place in the kernel's order; absent if it was never accepted.
    pub number: Option<CellNumber>,
}

/// Which kernel ran it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct KernelInfo {
    /// The kernel's id; absent where there is none.
    pub id: Option<KernelId>,
    /// The target.
    pub target: Target,
    /// The session's name.
    pub session: String,
    /// The owner.
    pub owner: String,
    /// The kernel's language.
    pub language: String,
    /// True if the kernel was there before this call.
    pub reused: bool,
    /// What became of the variables.
    pub state: State,
    /// A sentence about the state, where it is not what one expects.
    pub note: Option<String>,
}

/// The one answer to a cell.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Reply {
    /// How the cell ended.
    pub status: Status,
    /// What it printed to stdout: head and tail, if it was more than asked for.
    pub stdout: String,
    /// What it printed to stderr, likewise.
    pub stderr: String,
    /// The value of a last expression; absent when there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<MimeBundle>,
    /// What the cell displayed, in order.
    pub displays: Vec<MimeBundle>,
    /// What went wrong; absent when nothing did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<ErrorInfo>,
    /// The exit status that the cell stands for; null where it has none.
    pub exit_code: Option<i64>,
    /// The signal that ended the interpreter, such as `SIGSEGV`.
    pub signal: Option<String>,
    /// Exact counts of the output.
    pub output: OutputInfo,
    /// The tool calls.
    pub tools: ToolInfo,
    /// From the start of the cell to its end, in milliseconds.
    pub duration_ms: f64,
    /// How long it waited for other cells of its kernel, in milliseconds.
    pub queued_ms: f64,
    /// Which cell.
    pub cell: CellInfo,
    /// Which kernel.
    pub kernel: KernelInfo,
}

impl Reply {
    /// A reply for a cell that has none of its own (`refused`, `lost`, a dead kernel), with what went wrong.
    pub fn without_run(status: Status, error: ErrorInfo, cell: CellInfo, kernel: KernelInfo) -> Self {
        Reply {
            status,
            stdout: String::new(),
            stderr: String::new(),
            result: None,
            displays: Vec::new(),
            error: Some(error),
            exit_code: None,
            signal: None,
            output: OutputInfo::default(),
            tools: ToolInfo::default(),
            duration_ms: 0.0,
            queued_ms: 0.0,
            cell,
            kernel,
        }
    }

    /// The reply that stands for an error of the engine: `refused`, with the error's kind, message and hint.
    pub fn from_error(error: &Error, kernel: KernelInfo) -> Self {
        Reply::without_run(Status::Refused, ErrorInfo::from(error), CellInfo::default(), kernel)
    }
}

impl ErrorInfo {
    /// What a reply says of a cell whose fate is not known, because of `e`.
    pub(crate) fn lost(e: &Error, message: String, hint: &str) -> Self {
        let kind = match e.kind() {
            ErrorKind::Deadline => TroubleKind::Deadline,
            ErrorKind::Transport => TroubleKind::Transport,
            _ => TroubleKind::Protocol,
        };
        ErrorInfo { kind, name: "Lost".to_owned(), message, traceback: None, hint: Some(hint.to_owned()) }
    }
}

impl From<&Error> for ErrorInfo {
    fn from(error: &Error) -> Self {
        let (kind, name) = match error.kind() {
            ErrorKind::Transport => (TroubleKind::Transport, "TransportError"),
            ErrorKind::Deadline => (TroubleKind::Deadline, "DeadlineError"),
            ErrorKind::Spawn | ErrorKind::NoPlace | ErrorKind::NoProcess => {
                (TroubleKind::Spawn, "SpawnError")
            }
            ErrorKind::KernelDead | ErrorKind::KernelGone | ErrorKind::NoKernel => {
                (TroubleKind::Signal, "KernelDead")
            }
            ErrorKind::Interrupted => (TroubleKind::Signal, "Interrupted"),
            ErrorKind::BadInput => (TroubleKind::Protocol, "BadInput"),
            ErrorKind::Refused => (TroubleKind::Protocol, "Refused"),
            ErrorKind::UnknownCell => (TroubleKind::Protocol, "UnknownCell"),
            ErrorKind::NoFile => (TroubleKind::Protocol, "NoFile"),
            ErrorKind::Denied => (TroubleKind::Protocol, "Denied"),
            ErrorKind::FileChanged => (TroubleKind::Protocol, "FileChanged"),
            ErrorKind::Damaged => (TroubleKind::Protocol, "Damaged"),
            ErrorKind::Local => (TroubleKind::Spawn, "LocalError"),
            ErrorKind::Protocol => (TroubleKind::Protocol, "ProtocolError"),
        };
        ErrorInfo {
            kind,
            name: name.to_owned(),
            message: error.to_string(),
            traceback: None,
            hint: error.hint().map(str::to_owned),
        }
    }
}
