//! A transport is a way to run a command on a target. This trait is all that a new one has to implement.

mod duplex;
pub mod leash;
pub mod remote;
pub mod streams;

use std::fmt;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

pub use self::duplex::{ClosesOnShutdown, Duplex, Running};
use crate::error::{Error, ErrorKind, Result, Step};
use crate::runner::runner;
use crate::target::Target;

/// A command for a target: a POSIX shell script that is part of the program's text.
///
/// That it is `'static` is the point: nothing of the user's can travel in argv, where `ps` shows it and 128 KB is the end. All data goes by stdin.
/// The characters `'`, `\`, `!` and line breaks are refused at compile time, because login shells (fish, csh) disagree about them even between quotes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Command {
    script: &'static str,
}

impl Command {
    /// A command that runs `script` by `/bin/sh -c`.
    ///
    /// # Panics
    /// If the script contains a character that some login shell reads differently. Meant for constants, where it fails the build.
    pub const fn sh(script: &'static str) -> Self {
        let bytes = script.as_bytes();
        let mut i = 0;
        while i < bytes.len() {
            assert!(
                !matches!(bytes[i], b'\'' | b'\\' | b'!' | b'\n' | b'\r' | 0),
                "a login shell would misread this"
            );
            i += 1;
        }
        Command { script }
    }

    /// The command that every step is. Who provides something that stands on a target ([`Transport::attach`]) has that run it.
    pub fn runner() -> Self {
        runner().command
    }

    /// The program and its arguments, for a transport that passes them one by one.
    pub fn argv(&self) -> [&'static str; 3] {
        ["/bin/sh", "-c", self.script]
    }

    /// One line for a transport that hands its command to a login shell. sh, bash, zsh, fish, csh and tcsh all read it alike.
    pub fn login_shell_line(&self) -> String {
        format!("exec /bin/sh -c '{}'", self.script)
    }
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// It exited with this status.
    Exit(i32),
    /// It was ended by this signal.
    Signal(i32),
    /// It ended, and the transport cannot tell how (see [`Capabilities::tells_signals`]).
    Unknown,
}

/// What a command left.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Output {
    /// How it ended.
    pub ended: Ended,
    /// All of its stdout.
    pub stdout: Bytes,
    /// Its stderr, perhaps without the middle if it was long.
    pub stderr: Bytes,
}

impl Output {
    /// What a command left.
    pub fn new(ended: Ended, stdout: impl Into<Bytes>, stderr: impl Into<Bytes>) -> Self {
        Output { ended, stdout: stdout.into(), stderr: stderr.into() }
    }
}

/// What a transport can do, as a value, so that nothing has to be found out by failing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Capabilities {
    /// How many commands may run at the same time, open ones included; `None` for no known limit.
    pub channels: Option<usize>,
    /// A command that was ended by a signal is told apart from one that exited.
    pub tells_signals: bool,
    /// It can keep a command open ([`Transport::open`]).
    pub opens: bool,
    /// Something stands on the target that runs the runner's command for whoever comes ([`Transport::attach`]).
    pub attaches: bool,
    /// Its commands see the files and processes that this process sees, under the same names and numbers.
    pub is_here: bool,
}

impl Capabilities {
    /// What every transport can do: run commands to their end, any number at once.
    pub const fn new() -> Self {
        Capabilities { channels: None, tells_signals: false, opens: false, attaches: false, is_here: false }
    }

    /// At most so many commands at the same time.
    #[must_use]
    pub const fn channels(self, channels: usize) -> Self {
        Capabilities { channels: Some(channels), ..self }
    }

    /// Whether a command that was ended by a signal is told apart from one that exited.
    #[must_use]
    pub const fn tells_signals(self, tells_signals: bool) -> Self {
        Capabilities { tells_signals, ..self }
    }

    /// Whether it can keep a command open.
    #[must_use]
    pub const fn opens(self, opens: bool) -> Self {
        Capabilities { opens, ..self }
    }

    /// Whether something stands on the target that runs the runner's command for whoever comes.
    #[must_use]
    pub const fn attaches(self, attaches: bool) -> Self {
        Capabilities { attaches, ..self }
    }

    /// Whether its commands see the files and processes that this process sees.
    #[must_use]
    pub const fn is_here(self, is_here: bool) -> Self {
        Capabilities { is_here, ..self }
    }
}

impl Default for Capabilities {
    fn default() -> Self {
        Capabilities::new()
    }
}

/// A way to run a command on one target.
///
/// What every implementation owes (the crate `farcell-conformance` checks it):
/// - `stdin` of any size reaches the command, followed by end of file;
/// - stdout arrives whole and byte for byte, apart from stderr;
/// - the status is that of the command: one that cannot be known is [`Ended::Unknown`], never 0;
/// - when the deadline passes or the future is dropped, the command is ended on the far side, within a second or so;
/// - commands may run at the same time, as many as [`Capabilities::channels`] says.
///
/// # Errors
/// [`ErrorKind::Transport`](crate::ErrorKind::Transport) with [`Step::Connect`](crate::Step::Connect) if nothing can have reached the target, and
/// without that step if the command may have run; [`ErrorKind::Deadline`](crate::ErrorKind::Deadline) if the time was up.
/// A command that fails is not an error of the transport.
#[async_trait]
pub trait Transport: Send + Sync + fmt::Debug {
    /// The target that it leads to, for messages.
    fn target(&self) -> &Target;

    /// What it can do.
    fn capabilities(&self) -> Capabilities;

    /// Runs a command to its end.
    async fn exec(&self, command: &Command, stdin: Bytes, deadline: Instant) -> Result<Output>;

    /// Starts a command and keeps it open, where [`Capabilities::opens`] says that this can be done. `deadline` bounds the start only.
    ///
    /// What every implementation owes, beside what holds for [`Transport::exec`]:
    /// - bytes pass both ways at the same time, any number, as they come: nothing is held back for more;
    /// - an end that is not read holds up this command alone, and no other of the same connection;
    /// - a stdin that is shut down is end of file at the command (see [`ClosesOnShutdown`]); one that the command does not read any more, and a connection that is lost, is an error of
    ///   the write or the end of stdout, and no panic;
    /// - stderr is read all the time, so that the command never waits for it, and its end is kept for messages ([`Running::stderr`]);
    /// - when [`Duplex::running`] or the future is dropped, the command is ended on the far side, within a second or so.
    ///
    /// # Errors
    /// As [`Transport::exec`]. A command that ends at once is no error of this: its stdout ends.
    async fn open(&self, command: &Command, deadline: Instant) -> Result<Duplex> {
        let _ = (command, deadline);
        let error = Error::new(ErrorKind::Transport, "this transport cannot keep a command open");
        Err(error.on(self.target()).at(Step::Connect))
    }

    /// Goes to what stands on the target, where [`Capabilities::attaches`] says that there is something: a process whose stdin and stdout are there
    /// for one host after the other, as those of a container's own program. It waits for lines as `docs/protocol.md` has them ("A courier that stands")
    /// and runs the runner's command for them. So nothing has to be started there to reach it, nor is anything ended when its host goes.
    ///
    /// # Errors
    /// As [`Transport::open`], to which a caller turns then.
    async fn attach(&self, deadline: Instant) -> Result<Attached> {
        let _ = deadline;
        let error = Error::new(ErrorKind::Transport, "nothing stands on this target");
        Err(error.on(self.target()).at(Step::Connect))
    }
}

/// What stands on a target, as one host holds it.
#[derive(Debug)]
#[non_exhaustive]
pub struct Attached {
    /// Its streams, with what others have said and have been told there. To drop this ends nothing but the connection.
    pub duplex: Duplex,
    /// What it knows its hosts' lines by: a word that nobody can guess who has not made it.
    pub mark: String,
}

impl Attached {
    /// Something that stands there.
    pub fn new(duplex: Duplex, mark: impl Into<String>) -> Self {
        Attached { duplex, mark: mark.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[should_panic(expected = "misread")]
    fn a_script_that_a_login_shell_would_misread_is_refused() {
        Command::sh("echo it's");
    }

    #[test]
    fn a_login_shell_gets_one_plain_line() {
        assert_eq!(Command::sh("echo $x").login_shell_line(), "exec /bin/sh -c 'echo $x'");
    }
}
