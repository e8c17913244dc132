//! The transport into a container.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use farcell_core::remote::{Held, keep};
use farcell_core::{
    Attached, Capabilities, Command, Duplex, Error, ErrorKind, Instant, Output, Result, Step, Target,
    Transport,
};

use crate::site::Site;

/// A way to run commands in one container.
#[derive(Debug)]
pub(crate) struct DockerTransport {
    target: Target,
    site: Arc<Site>,
    /// What stands there knows its hosts' lines by this.
    mark: Option<String>,
}

impl DockerTransport {
    pub(crate) fn new(target: Target, site: Arc<Site>) -> Self {
        DockerTransport { target, site, mark: None }
    }

    /// The container's own program is one that answers lines with this mark.
    pub(crate) fn stands(self, mark: Option<String>) -> Self {
        DockerTransport { mark, ..self }
    }

    /// Starts a command on a leash. A caller who is gone by the time it runs ends it.
    async fn start(&self, argv: [&'static str; 5], deadline: Instant) -> Result<Held> {
        let site = Arc::clone(&self.site);
        let started = tokio::spawn(async move {
            let (remote, exec) = site.start(&argv).await?;
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
        Capabilities::new().opens(true).attaches(self.mark.is_some())
    }

    async fn exec(&self, command: &Command, stdin: Bytes, deadline: Instant) -> Result<Output> {
        // Podman fails to write to a command that has ended, and leaves what that has said where it is.
        let is_podman = self.site.engine().is_podman(deadline).await.map_err(|e| e.on(&self.target))?;
        let argv = if is_podman { command.leashed_argv_that_drains() } else { command.leashed_argv() };
        let held = self.start(argv, deadline).await?;
        held.run(stdin, deadline).await.map_err(|e| e.on(&self.target))
    }

    async fn open(&self, command: &Command, deadline: Instant) -> Result<Duplex> {
        Ok(self.start(command.leashed_argv(), deadline).await?.open())
    }

    async fn attach(&self, deadline: Instant) -> Result<Attached> {
        let Some(mark) = &self.mark else {
            let error = Error::new(ErrorKind::Transport, "nothing of ours stands in this container");
            return Err(error.on(&self.target).at(Step::Connect));
        };
        let attached = tokio::time::timeout_at(deadline, self.site.attach()).await.map_err(|_| {
            Error::new(ErrorKind::Deadline, "the engine did not attach in time")
                .with_hint("`docker info` tells whether it is well")
        });
        let duplex = attached.flatten().map_err(|e| e.on(&self.target))?;
        Ok(Attached::new(duplex, mark.clone()))
    }
}
