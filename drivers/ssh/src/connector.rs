//! From a target to a transport, with one connection for all targets that lead to the same host in the same way.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use async_trait::async_trait;
use farcell_core::{Capabilities, Connection, Connector, Error, ErrorKind, Result, Step, Target};

use crate::address::{self, Address, Program};
use crate::host::Host;
use crate::live::Dial;
use crate::options::SshOptions;
use crate::transport::SshTransport;

/// Serves `ssh:`.
#[derive(Debug)]
pub struct SshConnector {
    options: SshOptions,
    hosts: Mutex<HashMap<Address, Weak<Host>>>,
}

impl SshConnector {
    /// A connector whose connections keep to `options`.
    pub fn new(options: SshOptions) -> Self {
        SshConnector { options, hosts: Mutex::default() }
    }

    /// The host of an address; the same one for all that use it at the same time.
    fn host(&self, address: &Address) -> Option<Arc<Host>> {
        let mut hosts = self.hosts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = hosts.get(address).and_then(Weak::upgrade) {
            return Some(host);
        }
        hosts.retain(|_, host| host.strong_count() > 0);
        let host = Arc::new(Host::new(address.to_string(), self.dial(address)?, &self.options));
        hosts.insert(address.clone(), Arc::downgrade(&host));
        Some(host)
    }

    /// `None` if the driver is not compiled in.
    fn dial(&self, address: &Address) -> Option<Box<dyn Dial>> {
        match address.program {
            #[cfg(feature = "openssh")]
            Program::Openssh => {
                Some(Box::new(crate::openssh::Openssh::new(address.clone(), self.options.clone())))
            }
            #[cfg(feature = "russh")]
            Program::Russh => Some(Box::new(crate::russh::Russh::new(address.clone(), self.options.clone()))),
            #[allow(unreachable_patterns, reason = "depends on the features")]
            _ => None,
        }
    }
}

impl Default for SshConnector {
    fn default() -> Self {
        SshConnector::new(SshOptions::default())
    }
}

#[async_trait]
impl Connector for SshConnector {
    fn schemes(&self) -> &'static [&'static str] {
        &["ssh"]
    }

    fn check(&self, target: &Target) -> Result<()> {
        let (address, _) = address::read(target)?;
        self.dial(&address).map(drop).ok_or_else(|| not_there(target, address.program))
    }

    async fn connect(&self, target: &Target) -> Result<Connection> {
        let (address, place) = address::read(target)?;
        let host = self.host(&address).ok_or_else(|| not_there(target, address.program))?;
        let capabilities = Capabilities::new()
            .channels(self.options.max_sessions.max(1))
            .tells_signals(address.program == Program::Russh)
            .opens(true);
        let transport = SshTransport::new(target.clone(), host, capabilities);
        Ok(Connection::new(transport).dir(place.dir).python(place.python))
    }

    #[cfg(feature = "openssh")]
    async fn close_kept(&self) -> usize {
        crate::openssh::close_kept(&self.options).await
    }
}

fn not_there(target: &Target, program: Program) -> Error {
    Error::new(ErrorKind::BadInput, format!("the driver {program} is not compiled into this program"))
        .on(target)
        .at(Step::Parse)
        .with_hint(format!("build farcell with the feature {program}, or take the other driver"))
}
