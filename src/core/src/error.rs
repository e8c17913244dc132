//! The one error type of the engine: what failed, on which target, at which step, and whether trying again can help.

use std::error::Error as StdError;
use std::fmt;

use crate::target::Target;

/// What kind of failure it was. Callers decide by this, never by a message's text.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The target, an option of it, or another input of the caller is wrong.
    BadInput,
    /// The target could not be reached, or the connection ended before the answer was whole.
    Transport,
    /// A bounded wait ran out.
    Deadline,
    /// The target was reached and no kernel could be started there.
    Spawn,
    /// The same, because there is no directory that a kernel could live in. Nothing was named that is wrong.
    NoPlace,
    /// The same, because the target has no process to spare.
    NoProcess,
    /// The kernel is dead. The request that met this was not run and never will be.
    KernelDead,
    /// The kernel was removed from the target while the cell was there. The cell may have run.
    KernelGone,
    /// There is no such kernel on the target. What was sent to it earlier may have run.
    NoKernel,
    /// The request was understood and turned down (no room, wrong state).
    Refused,
    /// The caller has interrupted it. It was not run, or its end is not known; the message says which.
    Interrupted,
    /// There is no such cell: it never arrived, or its reply was acknowledged.
    UnknownCell,
    /// The far side said something that the protocol does not know.
    Protocol,
    /// There is no such file or directory, on the target or here.
    NoFile,
    /// The user may not read or write that file.
    Denied,
    /// A file was changed or removed by somebody else while it was moved.
    FileChanged,
    /// What arrived of a file is not what was sent. It was removed.
    Damaged,
    /// Something on this machine failed: a file, a process, a lock.
    Local,
}

/// Whether trying again can help.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Retry {
    /// No: the same call fails the same way.
    Never,
    /// Yes: the cause passes by itself (a lost connection, a busy server).
    Later,
}

/// At which step something failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Step {
    /// Reading the target or the request, before anything was done.
    Parse,
    /// Opening the connection. Nothing has reached the target.
    Connect,
    /// Starting a kernel.
    Spawn,
    /// Sending a cell. It may have arrived.
    Submit,
    /// Waiting for a cell that was sent.
    Wait,
    /// Asking about a kernel, or controlling it.
    Control,
    /// Reading or writing records on this machine.
    Records,
    /// Moving a file to or from the target.
    Transfer,
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Parse => "reading the request",
            Step::Connect => "connecting",
            Step::Spawn => "starting a kernel",
            Step::Submit => "sending the cell",
            Step::Wait => "waiting for the reply",
            Step::Control => "talking to the kernel",
            Step::Records => "reading the records",
            Step::Transfer => "moving a file",
        })
    }
}

/// An error of the engine or of a driver.
///
/// Its `Display` is a lower-case fragment that fits behind "failed to …" or "error: "; the [hint](Error::hint) says what to do about it.
#[derive(Debug)]
pub struct Error {
    inner: Box<Inner>,
}

#[derive(Debug)]
struct Inner {
    kind: ErrorKind,
    retry: Retry,
    step: Option<Step>,
    target: Option<Target>,
    message: String,
    hint: Option<String>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The engine's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The longest message. It is one sentence, and part of it may have been said by somebody who means no good.
const LONGEST: usize = 4096;

/// The beginning of a text that is too long to be read.
fn clipped(mut text: String) -> String {
    if text.len() > LONGEST {
        let whole = text.len();
        let end = (0..=LONGEST).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
        text.shrink_to_fit();
        text.push_str(&format!("\u{2026} (of {whole} bytes)"));
    }
    text
}

impl Error {
    /// A new error. [`ErrorKind::Transport`] can be tried again, everything else cannot, unless [`Error::retry`] says otherwise.
    pub fn new(kind: ErrorKind, message: impl Into<String>) -> Self {
        let retry = if kind == ErrorKind::Transport { Retry::Later } else { Retry::Never };
        let inner = Inner {
            kind,
            retry,
            step: None,
            target: None,
            message: clipped(message.into()),
            hint: None,
            source: None,
        };
        Error { inner: Box::new(inner) }
    }

    /// Names the target, unless an inner layer has named it already.
    #[must_use]
    pub fn on(mut self, target: &Target) -> Self {
        self.inner.target.get_or_insert_with(|| target.clone());
        self
    }

    /// Names the step, unless an inner layer has named it already.
    #[must_use]
    pub fn at(mut self, step: Step) -> Self {
        self.inner.step.get_or_insert(step);
        self
    }

    /// Says what to do about it.
    #[must_use]
    pub fn with_hint(mut self, hint: impl Into<String>) -> Self {
        self.inner.hint = Some(clipped(hint.into()));
        self
    }

    /// Keeps the cause.
    #[must_use]
    pub fn with_source(mut self, source: impl Into<Box<dyn StdError + Send + Sync>>) -> Self {
        self.inner.source = Some(source.into());
        self
    }

    /// Overrides whether trying again can help.
    #[must_use]
    pub fn retry(mut self, retry: Retry) -> Self {
        self.inner.retry = retry;
        self
    }

    /// Changes the message alone.
    #[must_use]
    pub(crate) fn with_message(mut self, change: impl Fn(&str) -> String) -> Self {
        self.inner.message = change(&self.inner.message);
        self
    }

    /// Changes message and hint.
    #[must_use]
    pub(crate) fn map_texts(mut self, change: impl Fn(&mut String)) -> Self {
        change(&mut self.inner.message);
        self.inner.hint.iter_mut().for_each(change);
        self
    }

    /// The kind of failure.
    pub fn kind(&self) -> ErrorKind {
        self.inner.kind
    }

    /// True if trying again can help.
    pub fn is_temporary(&self) -> bool {
        self.inner.retry == Retry::Later
    }

    /// The step at which it failed, where that is known.
    pub fn step(&self) -> Option<Step> {
        self.inner.step
    }

    /// The target on which it failed, where there is one.
    pub fn target(&self) -> Option<&Target> {
        self.inner.target.as_ref()
    }

    /// What to do about it, where that is known.
    pub fn hint(&self) -> Option<&str> {
        self.inner.hint.as_deref()
    }

    /// The message alone, without target and step.
    pub fn message(&self) -> &str {
        &self.inner.message
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.inner.message)?;
        let step = self.inner.step.filter(|step| *step != Step::Parse);
        match (&self.inner.target, step) {
            (Some(target), Some(step)) => write!(f, " (on {target}, while {step})"),
            (Some(target), None) => write!(f, " (on {target})"),
            (None, Some(step)) => write!(f, " (while {step})"),
            (None, None) => Ok(()),
        }
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.inner.source.as_ref().map(|s| s.as_ref() as &(dyn StdError + 'static))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_is_no_longer_than_one_can_read() {
        let e = Error::new(ErrorKind::Protocol, "\u{20ac}".repeat(1 << 20)).with_hint("x".repeat(1 << 20));
        assert!(e.message().len() < LONGEST + 100 && e.message().ends_with("(of 3145728 bytes)"));
        assert!(e.hint().is_some_and(|hint| hint.len() < LONGEST + 100));
    }

    #[test]
    fn a_message_names_target_and_step_once() {
        let target: Target = "local:".parse().unwrap();
        let e =
            Error::new(ErrorKind::Transport, "connection lost").on(&target).at(Step::Wait).at(Step::Connect);
        assert_eq!(e.to_string(), "connection lost (on local:, while waiting for the reply)");
        assert!(e.is_temporary());
    }
}
