//! What holds for all hosts.

use std::path::PathBuf;
use std::time::Duration;

use crate::failure::Failure;

/// Bounds and habits of all connections. What a target's own options say, and the ssh config, goes first where both can say something.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct SshOptions {
    /// How long opening a connection may take, logging in included, where nobody is asked for a password. 10 s.
    pub connect_timeout: Duration,
    /// After how long without a sign of life the host is asked for one. 10 s, which no firewall takes for idle.
    pub keepalive: Duration,
    /// How many such questions in a row may stay without an answer before the connection counts as lost. 3.
    pub keepalive_count: u32,
    /// How many commands may run over one connection at once; a server that allows fewer (`MaxSessions`) is found out. 10, as OpenSSH's own bound.
    pub max_sessions: usize,
    /// How long a connection of the ssh program is kept for the next process after the last one has gone. Zero, for a library: all is closed with the last handle.
    pub control_persist: Duration,
    /// Where control sockets lie, instead of a directory of our own.
    pub control_dir: Option<PathBuf>,
    /// The environment variable that holds the password or the passphrase of the key.
    pub password_env: Option<String>,
    /// A person may be asked for a password, on the terminal or by `SSH_ASKPASS`. Never, for a library.
    pub ask: bool,
    /// The first pause before a host is tried again that could not be reached, which then doubles. 200 ms.
    pub first_pause: Duration,
    /// The longest of these pauses. 10 s.
    pub last_pause: Duration,
}

impl Default for SshOptions {
    fn default() -> Self {
        SshOptions {
            connect_timeout: Duration::from_secs(10),
            keepalive: Duration::from_secs(10),
            keepalive_count: 3,
            max_sessions: 10,
            control_persist: Duration::ZERO,
            control_dir: None,
            password_env: None,
            ask: false,
            first_pause: Duration::from_millis(200),
            last_pause: Duration::from_secs(10),
        }
    }
}

impl SshOptions {
    /// The password or passphrase that the environment holds; `None` if no variable is named.
    pub(crate) fn password(&self) -> Result<Option<String>, Failure> {
        let Some(variable) = &self.password_env else { return Ok(None) };
        std::env::var(variable).map(Some).map_err(|_| {
            Failure::local(format!(
                "the environment variable {variable}, which is to hold the ssh password, is not set"
            ))
        })
    }
}
