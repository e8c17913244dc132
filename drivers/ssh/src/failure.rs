//! Why a host could not be reached, in a form that every caller who waited for the connection gets.

use farcell_core::{Error, ErrorKind, Retry, Step, Target};

/// A connection that did not come about.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    pub(crate) kind: ErrorKind,
    pub(crate) message: String,
    pub(crate) hint: Option<String>,
    /// To try again cannot help: somebody has to change something first.
    pub(crate) is_final: bool,
}

impl Failure {
    /// One that may pass.
    pub(crate) fn passing(message: impl Into<String>) -> Self {
        Failure { kind: ErrorKind::Transport, message: message.into(), hint: None, is_final: false }
    }

    /// One that stays until somebody changes something.
    pub(crate) fn lasting(message: impl Into<String>) -> Self {
        Failure { is_final: true, ..Failure::passing(message) }
    }

    /// Something on this machine failed.
    pub(crate) fn local(message: impl Into<String>) -> Self {
        Failure { kind: ErrorKind::Local, ..Failure::lasting(message) }
    }

    pub(crate) fn hint(self, hint: impl Into<String>) -> Self {
        Failure { hint: Some(hint.into()), ..self }
    }

    pub(crate) fn error(&self, target: &Target) -> Error {
        let mut error = Error::new(self.kind, &self.message).on(target).at(Step::Connect);
        if let Some(hint) = &self.hint {
            error = error.with_hint(hint);
        }
        error.retry(if self.is_final { Retry::Never } else { Retry::Later })
    }
}
