//! Exit statuses: that of the cell where it has one, else what shells use for the like.

use std::process::ExitCode;

use farcell::{Error, ErrorKind, Reply, Status, Step};

/// How the program ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Exit(u8);

impl Exit {
    /// All went well.
    pub(crate) const OK: Exit = Exit(0);
    /// What was asked for is not there, or did not happen.
    pub(crate) const NOT_DONE: Exit = Exit(1);
    /// Wrong usage.
    pub(crate) const USAGE: Exit = Exit(2);
    /// A deadline passed.
    pub(crate) const DEADLINE: Exit = Exit(124);
    /// farcell itself failed.
    pub(crate) const FAILED: Exit = Exit(125);
    /// Interrupted.
    pub(crate) const INTERRUPTED: Exit = Exit(130);
    /// The interpreter died.
    pub(crate) const DIED: Exit = Exit(137);

    /// Ended by a signal.
    pub(crate) fn of_signal(signal: u8) -> Exit {
        Exit(128 + signal)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.0)
    }
}

/// The exit status of a reply.
pub(crate) fn of_reply(reply: &Reply) -> Exit {
    match reply.status {
        Status::Ok => Exit::OK,
        Status::Error => Exit(1),
        // As a process would: the lowest byte counts.
        Status::Exit => Exit((reply.exit_code.unwrap_or(1) & 0xff) as u8),
        Status::Timeout => Exit::DEADLINE,
        Status::Interrupted => Exit::INTERRUPTED,
        Status::Died => Exit::DIED,
        Status::Lost | Status::Refused => Exit::FAILED,
    }
}

/// The exit status of an error: 2 where the command line is to blame.
pub(crate) fn of_error(error: &Error) -> Exit {
    match error.kind() {
        ErrorKind::BadInput if error.step() == Some(Step::Parse) => Exit::USAGE,
        ErrorKind::UnknownCell => Exit::NOT_DONE,
        ErrorKind::Interrupted => Exit::INTERRUPTED,
        _ => Exit::FAILED,
    }
}
