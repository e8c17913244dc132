//! What an sshd is asked for, and the files of OpenSSH that say so.

use std::fmt::Write;
use std::path::Path;

use super::Sshd;
use crate::account::Account;
use crate::trouble::Trouble;

/// A kind of host key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HostKey {
    /// Ed25519.
    Ed25519,
    /// ECDSA on the curve P-256.
    Ecdsa,
    /// RSA with 2048 bits.
    Rsa,
}

impl HostKey {
    pub(super) fn file(self) -> &'static str {
        match self {
            HostKey::Ed25519 => "host_ed25519",
            HostKey::Ecdsa => "host_ecdsa",
            HostKey::Rsa => "host_rsa",
        }
    }

    pub(super) fn keygen(self) -> &'static [&'static str] {
        match self {
            HostKey::Ed25519 => &["-t", "ed25519"],
            HostKey::Ecdsa => &["-t", "ecdsa", "-b", "256"],
            HostKey::Rsa => &["-t", "rsa", "-b", "2048"],
        }
    }
}

/// What an sshd is to be like.
#[derive(Debug, Clone)]
pub struct SshdOptions {
    max_sessions: u32,
    pub(super) login: Option<String>,
    force_command: Option<String>,
    environment: Vec<(String, String)>,
    password: Option<String>,
    extra: Vec<String>,
    pub(super) host_keys: Vec<HostKey>,
}

impl Default for SshdOptions {
    fn default() -> Self {
        SshdOptions {
            max_sessions: 200,
            login: None,
            force_command: None,
            environment: Vec::new(),
            password: None,
            extra: Vec::new(),
            host_keys: vec![HostKey::Ed25519],
        }
    }
}

impl SshdOptions {
    /// How many sessions one connection may have at once; OpenSSH's own default is 10, here it is 200.
    #[must_use]
    pub fn max_sessions(mut self, sessions: u32) -> Self {
        self.max_sessions = sessions;
        self
    }

    /// Who logs in, if not the user that the test runs as; needs root.
    #[must_use]
    pub fn login_as(mut self, user: &str) -> Self {
        self.login = Some(user.to_owned());
        self
    }

    /// What runs in place of the commands that clients send.
    #[must_use]
    pub fn force_command(mut self, command: &str) -> Self {
        self.force_command = Some(command.to_owned());
        self
    }

    /// A variable that every session has from its beginning, login shells too.
    #[must_use]
    pub fn set_env(mut self, name: &str, value: &str) -> Self {
        self.environment.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Logs in as an account, with its password ([`Account::set_password`]), by the host `password` of the ssh configuration; by `box` its
    /// key counts as well.
    #[must_use]
    pub fn password_auth(mut self, account: &Account) -> Self {
        self.password = Some(account.name().to_owned());
        self.login_as(account.name())
    }

    /// A line of sshd's configuration. It goes before all others, and the first one counts.
    #[must_use]
    pub fn extra(mut self, line: &str) -> Self {
        self.extra.push(line.to_owned());
        self
    }

    /// Which host keys there are; an Ed25519 one if nothing is said.
    #[must_use]
    pub fn host_keys(mut self, kinds: &[HostKey]) -> Self {
        self.host_keys = kinds.to_vec();
        self
    }

    /// Starts it, and waits until it answers.
    pub fn start(self) -> Result<Sshd, Trouble> {
        Sshd::with(self)
    }

    /// sshd's configuration.
    pub(super) fn sshd_config(&self, dir: &Path, port: u16, user: &str) -> String {
        let dir = dir.display();
        let mut text = self.extra.iter().fold(String::new(), |all, line| all + line + "\n");
        let passwords = if self.password.is_some() { "yes" } else { "no" };
        let sessions = self.max_sessions;
        _ = write!(
            text,
            "Port {port}\n\
             ListenAddress 127.0.0.1\n\
             AuthorizedKeysFile {dir}/authorized_keys\n\
             AllowUsers {user}\n\
             PidFile none\n\
             PasswordAuthentication {passwords}\n\
             KbdInteractiveAuthentication no\n\
             PermitRootLogin prohibit-password\n\
             # The directory is a temporary one, whose parents anyone may write to.\n\
             StrictModes no\n\
             # OpenSSH's first choice takes 0.2 s a connection in Debian's build, which tests have no use for.\n\
             KexAlgorithms curve25519-sha256\n\
             UsePAM no\n\
             UseDNS no\n\
             PrintMotd no\n\
             AcceptEnv LANG LC_*\n\
             MaxSessions {sessions}\n\
             MaxStartups 200:30:400\n\
             Subsystem sftp internal-sftp\n"
        );
        for kind in &self.host_keys {
            _ = writeln!(text, "HostKey {dir}/{}", kind.file());
        }
        if let Some(command) = &self.force_command {
            _ = writeln!(text, "ForceCommand {command}");
        }
        text + &self.set_env_line()
    }

    /// Only the first SetEnv counts, so there is one.
    fn set_env_line(&self) -> String {
        let mut environment: Vec<_> =
            self.environment.iter().map(|(name, value)| format!(" \"{name}={value}\"")).collect();
        if self.login.is_none() {
            // bash reads ~/.bashrc for a command over ssh where it believes to be the outermost shell; what the user who runs the tests has in
            // there shall not be in them.
            environment.push(" SHLVL=1".to_owned());
        }
        if environment.is_empty() { String::new() } else { format!("SetEnv{}\n", environment.concat()) }
    }

    /// Entries of the ssh client's configuration for the host at some port.
    pub(super) fn host(&self, name: &str, dir: &Path, port: u16, user: &str) -> String {
        let dir = dir.display();
        let entry = |name: &str, how: &str| {
            format!(
                "Host {name}\n\
                 \x20   HostName 127.0.0.1\n\
                 \x20   Port {port}\n\
                 \x20   User {user}\n\
                 \x20   IdentityAgent none\n\
                 \x20   IdentitiesOnly yes\n\
                 \x20   UserKnownHostsFile {dir}/known_hosts\n\
                 \x20   GlobalKnownHostsFile none\n\
                 \x20   HostKeyAlias box\n\
                 \x20   StrictHostKeyChecking yes\n\
                 \x20   LogLevel ERROR\n\
                 {how}"
            )
        };
        let mut text = entry(name, &format!("    IdentityFile {dir}/key\n    BatchMode yes\n"));
        if self.password.is_some() && name == "box" {
            text +=
                &entry("password", "    PreferredAuthentications password\n    NumberOfPasswordPrompts 1\n");
        }
        text
    }
}
