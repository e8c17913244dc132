//! The suite over ssh to a real server.

use std::sync::OnceLock;

use farcell::ssh::{SshConnector, SshOptions};
use farcell::{Drivers, FileCellDriver, LinkChoice};
use farcell_testbed::{Sshd, available};

/// One server for all cases; it ends with this process.
static SERVER: OnceLock<Option<Sshd>> = OnceLock::new();

/// A target of the server; `None` where there can be none.
pub(crate) fn target(driver: &str) -> Option<String> {
    let server = SERVER.get_or_init(|| available(Sshd::start())).as_ref()?;
    Some(format!("ssh:box?driver={driver}&config={}", server.ssh_config().display()))
}

pub(crate) fn connector() -> SshConnector {
    SshConnector::new(SshOptions::default())
}

pub(crate) fn drivers() -> Drivers {
    Drivers::new().with(FileCellDriver::new(connector()))
}

pub(crate) fn exec_only() -> Drivers {
    Drivers::new().with(FileCellDriver::new(connector()).links(LinkChoice::ExecOnly))
}
