//! Why a host could not be reached, in a form that every caller who waited for the connection gets; and what both drivers say in the same words.

use std::fmt::Display;
use std::time::Duration;

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

/// The host has another key than the one that is known, which stands at `place`, if that is known.
pub(crate) fn key_has_changed(host: impl Display, place: Option<&str>) -> Failure {
    let place = place.map_or(String::new(), |place| format!(": {place} has another one"));
    Failure::lasting(format!("the host key of {host} has changed{place}"))
        .hint("if the host was set up anew, remove that line; if not, somebody may be in between")
}

pub(crate) fn key_is_not_known(host: impl Display) -> Failure {
    Failure::lasting(format!("the host key of {host} is not known"))
        .hint("log in once by ssh and compare the key, or write host_key=accept-new")
}

/// The host takes none of what it was offered. `methods` are the ones that it has, with commas.
pub(crate) fn login_is_refused(host: impl Display, methods: &str) -> Failure {
    let message = format!("{host} refused the login ({methods})");
    Failure::lasting(message.replace(" ()", "")).hint(
        "check user and key with `ssh -v`; identity=PATH names a key, and password_env in the config a variable with the password",
    )
}

pub(crate) fn too_many_wrong_keys(host: impl Display) -> Failure {
    Failure::lasting(format!("{host} had enough of wrong keys"))
        .hint("identity=PATH names the one key to offer")
}

pub(crate) fn name_is_not_known(message: impl Into<String>) -> Failure {
    Failure::lasting(message).hint("check how the host is spelled; aliases stand in the ssh config")
}

/// Something on the way to the host, not the host itself, has ended.
pub(crate) fn way_has_ended(host: impl Display) -> Failure {
    Failure::passing(format!("the way to {host} ended before its ssh server was reached"))
        .hint("check the jump host, or the ProxyCommand, with `ssh -v` to the same host")
}

pub(crate) fn no_answer(host: impl Display, within: Duration) -> Failure {
    Failure::passing(format!("{host} did not answer within {} s", within.as_secs_f64()))
        .hint("check that it is up and that the address and port are right; connect_timeout in the config gives it more time")
}

/// What can be advised about an error of the network, told by its text.
pub(crate) fn network_hint(said: &str) -> Option<&'static str> {
    let has = |text: &str| said.contains(text);
    if has("Connection refused") {
        Some("no ssh server listens there; check address and port")
    } else if has("timed out") || has("No route to host") || has("Network is unreachable") {
        Some("the host is down, or a firewall is in between")
    } else if has("Connection closed") || has("Connection reset") {
        Some("the server ended the connection: it may be overloaded (MaxStartups), or refuse this address")
    } else {
        None
    }
}
