//! What is done when the server shows its key, and when it ends the connection.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use russh::client::{DisconnectReason, Handler};
use russh::keys::PublicKeyOrCertificate;

use super::known_hosts::{KnownHosts, Verdict};
use crate::address::HostKeys;
use crate::failure::{self, Failure};

/// Why there is no connection.
#[derive(Debug)]
pub(super) enum Broken {
    Russh(russh::Error),
    Refused(Box<Failure>),
}

impl From<russh::Error> for Broken {
    fn from(e: russh::Error) -> Self {
        Broken::Russh(e)
    }
}

impl Broken {
    /// What a caller is told.
    pub(super) fn failure(self, name: &str, is_direct: bool) -> Failure {
        match self {
            Broken::Refused(failure) => *failure,
            Broken::Russh(russh::Error::NoCommonAlgo { kind, theirs, .. }) => Failure::lasting(format!(
                "{name} and russh have no {kind:?} algorithm in common; the host has {}",
                theirs.join(",")
            ))
            .hint("driver=openssh may know it, or the server's configuration is old"),
            Broken::Russh(russh::Error::Version) => {
                Failure::lasting(format!("what listens at {name} is no ssh server"))
                    .hint("check address and port")
            }
            Broken::Russh(russh::Error::HUP | russh::Error::Disconnect | russh::Error::IO(_))
                if !is_direct =>
            {
                failure::way_has_ended(name)
            }
            Broken::Russh(russh::Error::IO(e)) => Broken::closed(name, Some(&plain(&e))),
            Broken::Russh(russh::Error::HUP | russh::Error::Disconnect) => Broken::closed(name, None),
            Broken::Russh(e) => Failure::passing(format!("cannot agree with {name} on keys: {e}"))
                .hint("`ssh -v` to the same host tells more"),
        }
    }

    /// The server has ended the connection.
    pub(super) fn closed(name: &str, said: Option<&str>) -> Failure {
        let said = said.map_or(String::new(), |said| format!(": {said}"));
        Failure::passing(format!("{name} ended the connection before the login{said}"))
            .hint(failure::network_hint("Connection closed").unwrap_or_default())
    }
}

/// An error of the system without its number.
pub(super) fn plain(e: &std::io::Error) -> String {
    let text = e.to_string();
    text.split(" (os error").next().unwrap_or(&text).to_owned()
}

/// What the checker has to say to who has sent it.
#[derive(Debug, Clone, Default)]
pub(super) struct Shared {
    farewell: Arc<Mutex<Option<String>>>,
    doubtful: Arc<AtomicBool>,
}

impl Shared {
    /// The server's last words, if it had any.
    pub(super) fn farewell(&self) -> Option<String> {
        self.farewell.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// The host's key is another one than the known one, and was believed because that is configured.
    pub(super) fn is_doubtful(&self) -> bool {
        self.doubtful.load(Ordering::Acquire)
    }
}

/// Decides about host keys.
#[derive(Debug)]
pub(super) struct Checker {
    pub(super) known: KnownHosts,
    pub(super) host_keys: HostKeys,
    /// The host, for messages.
    pub(super) name: String,
    pub(super) shared: Shared,
}

impl Checker {
    fn decide(&self, key: &PublicKeyOrCertificate) -> Result<(), Failure> {
        let name = &self.name;
        match (self.known.judge(key), self.host_keys) {
            (Verdict::Known, _) | (Verdict::Unknown, HostKeys::Off) => Ok(()),
            (Verdict::Unknown, HostKeys::AcceptNew) => {
                match self.known.learn(key) {
                    Ok(()) => tracing::info!(host = name, "a new host key was accepted"),
                    Err(why) => tracing::warn!(
                        host = name,
                        why,
                        "a new host key was accepted, and cannot be written down"
                    ),
                }
                Ok(())
            }
            (Verdict::Unknown, HostKeys::Strict) => Err(failure::key_is_not_known(name)),
            (Verdict::Changed(_), HostKeys::Off) => {
                self.shared.doubtful.store(true, Ordering::Release);
                tracing::warn!(host = name, "the host key has changed");
                Ok(())
            }
            (Verdict::Changed(place), _) => Err(failure::key_has_changed(name, Some(&place))),
            (Verdict::Revoked(place), _) => {
                Err(Failure::lasting(format!("the host key of {name} is revoked: {place} says so"))
                    .hint("the host needs a new key; somebody else may have this one"))
            }
            (Verdict::Invalid(why), _) => {
                Err(Failure::lasting(format!("the host certificate of {name} is not valid: {why}"))
                    .hint("the host needs a new certificate from its authority"))
            }
        }
    }
}

impl Handler for Checker {
    type Error = Broken;

    async fn check_server_key(&mut self, key: &PublicKeyOrCertificate) -> Result<bool, Broken> {
        self.decide(key).map(|()| true).map_err(|failure| Broken::Refused(Box::new(failure)))
    }

    async fn disconnected(&mut self, reason: DisconnectReason<Broken>) -> Result<(), Broken> {
        let (said, result) = match reason {
            DisconnectReason::ReceivedDisconnect(said) => {
                (said.message.chars().filter(|c| !c.is_control()).take(200).collect(), Ok(()))
            }
            DisconnectReason::Error(Broken::Russh(russh::Error::IO(e))) => {
                (plain(&e), Err(Broken::Russh(russh::Error::Disconnect)))
            }
            DisconnectReason::Error(e) => {
                let said = match &e {
                    Broken::Russh(e) => e.to_string(),
                    Broken::Refused(failure) => failure.message.clone(),
                };
                (said, Err(e))
            }
        };
        *self.shared.farewell.lock().unwrap_or_else(PoisonError::into_inner) = Some(said);
        result
    }
}
