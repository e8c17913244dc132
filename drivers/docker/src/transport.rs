//! The transport into a container.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use farcell_core::remote::{Held, keep};
use farcell_core::{
    Capabilities, Command, Duplex, Error, ErrorKind, Instant, Output, Result, Step, Target, Transport,
};

use crate::site::Site;

/// A way to run commands in one container.
#[derive(Debug)]
pub(crate) struct DockerTransport {
    target: Target,
    site: Arc<Site>,
}

impl DockerTransport {
    pub(crate) fn new(target: Target, site: Arc<Site>) -> Self {
        DockerTransport { target, site }
    }

    /// Starts a command on a leash. A caller who is gone by the time it runs ends it.
    async fn start(&self, command: &Command, deadline: Instant) -> Result<Held> {
        let (site, command) = (Arc::clone(&self.site), *command);
        let started = tokio::spawn(async move {
            let (remote, exec) = site.start(&command.leashed_argv()).await?;
            Ok::<_, Error>(keep(remote, Arc::new(exec), ()))
        });
        let started = tokio::time::timeout_at(deadline, started).await.map_err(|_| {
            Error::new(ErrorKind::Deadline, "the engine did not start the command in time")
                .on(&self.target)
                .with_hint("`docker info` tells whether it is well")
        })?;
        let started = started.map_err(|e| {
            let message = "the command was not started: this process is about to end";
            Error::new(ErrorKind::Local, message).at(Step::Connect).with_source(e)
        });
        started.flatten().map_err(|e| e.on(&self.target))
    }
}

#[async_trait]
impl Transport for DockerTransport {
    fn target(&self) -> &Target {
        &self.target
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new().opens(true)
    }

    async fn exec(&self, command: &Command, stdin: Bytes, deadline: Instant) -> Result<Output> {
        let held = self.start(command, deadline).await?;
        held.run(stdin, deadline).await.map_err(|e| e.on(&self.target))
    }

    async fn open(&self, command: &Command, deadline: Instant) -> Result<Duplex> {
        Ok(self.start(command, deadline).await?.open())
    }
}
