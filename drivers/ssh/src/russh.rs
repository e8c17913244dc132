//! The driver that needs no ssh program: this process speaks the protocol, by the crate `russh`.
//!
//! Where there is an ssh program, `ssh -G` tells what its user has configured for a host; elsewhere a small part of the config is read here. Either way the same files are
//! used: keys, agent, known hosts. There is no Kerberos, no forwarding, no key that lies in a device (but by an agent), and nobody is asked about a host key.

mod ask;
mod auth;
mod check;
mod config;
mod connection;
mod keys;
mod known_hosts;
mod pattern;
mod pipes;
mod settings;
mod spool;
mod way;

use std::sync::Arc;

use async_trait::async_trait;

use self::connection::{Connection, connect};
use crate::address::Address;
use crate::failure::Failure;
use crate::live::{Dial, Live};
use crate::options::SshOptions;

/// Logs in by itself.
#[derive(Debug)]
pub(crate) struct Russh {
    address: Address,
    options: SshOptions,
}

impl Russh {
    pub(crate) fn new(address: Address, options: SshOptions) -> Self {
        Russh { address, options }
    }
}

#[async_trait]
impl Dial for Russh {
    async fn dial(&self) -> Result<Arc<dyn Live>, Failure> {
        self.address.check_files()?;
        let connection: Arc<Connection> = connect(&self.address, &self.options).await?;
        Ok(connection)
    }

    fn may_ask(&self) -> bool {
        self.options.ask
    }
}
