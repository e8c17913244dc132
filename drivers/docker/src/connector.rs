//! From a target to a transport.

use std::sync::Arc;

use async_trait::async_trait;
use farcell_core::{Connection, Connector, Result, Target};

use crate::address::{self, COMPOSE, DOCKER, PODMAN};
use crate::engine::Engine;
use crate::site::Site;
use crate::transport::DockerTransport;

/// Serves `docker:`, `podman:` and `compose:`.
#[derive(Debug, Clone, Default)]
pub struct DockerConnector {}

#[async_trait]
impl Connector for DockerConnector {
    fn schemes(&self) -> &'static [&'static str] {
        &[DOCKER, PODMAN, COMPOSE]
    }

    fn check(&self, target: &Target) -> Result<()> {
        address::read(target).map(drop)
    }

    async fn connect(&self, target: &Target) -> Result<Connection> {
        let address = address::read(target)?;
        let (dir, python, cwd) = (address.dir.clone(), address.python.clone(), address.workdir.clone());
        let engine = Arc::new(Engine::new(address.host.clone(), address.podman));
        let transport = DockerTransport::new(target.clone(), Arc::new(Site::new(address, engine)));
        Ok(Connection::new(transport).dir(dir).python(python).cwd(cwd))
    }
}
