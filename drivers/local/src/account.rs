//! Another account of this machine that a kernel runs under: `local:?user=NAME`. Only root can start one.

use std::ffi::OsString;
use std::path::PathBuf;

use farcell_core::{Error, ErrorKind, Result, Step};
use nix::unistd::User;
use rustix::process::geteuid;

use crate::env::kernel_environment;

/// What a kernel of another account does not get of our environment: places that are ours, and our screen.
const OURS: &[&str] =
    &["HOME", "USER", "LOGNAME", "SHELL", "TMPDIR", "TMP", "TEMP", "DISPLAY", "WAYLAND_DISPLAY"];

/// An account that is not ours.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    name: String,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    home: PathBuf,
    shell: PathBuf,
}

impl Account {
    /// The account of that name, if we may take it.
    pub(crate) fn find(name: &str) -> Result<Self> {
        let bad = |message: String| {
            Error::new(ErrorKind::BadInput, format!("user={name}: {message}")).at(Step::Parse)
        };
        let user = User::from_name(name)
            .map_err(|e| bad(format!("the accounts cannot be read: {e}")))?
            .ok_or_else(|| bad("there is no such account on this machine".to_owned()))?;
        if !geteuid().is_root() && user.uid.as_raw() != geteuid().as_raw() {
            return Err(bad("only root can start kernels of another account".to_owned())
                .with_hint(format!("as yourself, use a command that may: exec:sudo -n -u {name}")));
        }
        let User { name, uid, gid, dir, shell, .. } = user;
        Ok(Account { name, uid: uid.as_raw(), gid: gid.as_raw(), home: dir, shell })
    }

    /// Where its processes begin: at home, if there is one.
    pub(crate) fn directory(&self) -> PathBuf {
        if self.home.is_dir() { self.home.clone() } else { PathBuf::from("/") }
    }

    /// The environment of its kernels.
    pub(crate) fn environment(&self) -> Vec<(OsString, OsString)> {
        let is_ours = |name: &str| OURS.contains(&name) || name.starts_with("XDG_");
        let shared = kernel_environment().filter(|(name, _)| !name.to_str().is_some_and(is_ours));
        let own: [(&str, OsString); 4] = [
            ("HOME", self.home.clone().into()),
            ("USER", self.name.clone().into()),
            ("LOGNAME", self.name.clone().into()),
            ("SHELL", self.shell.clone().into()),
        ];
        shared.chain(own.map(|(name, value)| (name.into(), value))).collect()
    }
}

/// How a command of a kernel on this machine is run: in which environment, and as whom.
#[derive(Debug, Clone, Default)]
pub(crate) struct Setting {
    /// `None` for this process's own.
    pub(crate) env: Option<Vec<(OsString, OsString)>>,
    pub(crate) account: Option<Account>,
}

impl Setting {
    /// That of kernels: of this account, or of another.
    pub(crate) fn of_kernels(account: Option<Account>) -> Self {
        let env = account.as_ref().map_or_else(|| kernel_environment().collect(), Account::environment);
        Setting { env: Some(env), account }
    }
}
