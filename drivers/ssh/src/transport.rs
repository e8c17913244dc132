//! The transport over a host's connection, whichever driver has opened it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use farcell_core::streams::read_all;
use farcell_core::{
    Capabilities, Command, Duplex, Error, ErrorKind, Instant, Output, Result, Running as _, Step, Target,
    Transport,
};
use tokio::io::AsyncWriteExt as _;

use crate::failure::Failure;
use crate::host::Host;
use crate::keeper::{Ends, Kept, keep};

/// A way to run commands on one host.
#[derive(Debug)]
pub(crate) struct SshTransport {
    target: Target,
    host: Arc<Host>,
    capabilities: Capabilities,
}

impl SshTransport {
    pub(crate) fn new(target: Target, host: Arc<Host>, capabilities: Capabilities) -> Self {
        SshTransport { target, host, capabilities }
    }

    /// Starts a command on a leash. A caller who is gone by the time it runs ends it.
    async fn start(&self, command: &Command, deadline: Instant) -> Result<(Ends, Kept)> {
        let (host, line) = (Arc::clone(&self.host), command.leashed_line());
        let started = tokio::spawn(async move {
            let (remote, live, channel) = host.start(&line, deadline).await?;
            Ok::<_, Failure>(keep(remote, live, channel))
        });
        match started.await {
            Ok(started) => started.map_err(|failure| failure.error(&self.target)),
            Err(e) => {
                let message = "the command was not started: this process is about to end";
                Err(Error::new(ErrorKind::Local, message).on(&self.target).at(Step::Connect).with_source(e))
            }
        }
    }
}

#[async_trait]
impl Transport for SshTransport {
    fn target(&self) -> &Target {
        &self.target
    }

    fn capabilities(&self) -> Capabilities {
        self.capabilities
    }

    async fn exec(&self, command: &Command, stdin: Bytes, deadline: Instant) -> Result<Output> {
        let (Ends { stdin: mut input, stdout }, mut kept) = self.start(command, deadline).await?;
        let feed = async move {
            // A command that ends without reading all of its input is judged by its answer, not by this.
            let _ = input.write_all(&stdin).await;
            let _ = input.shutdown().await;
        };
        let work = async {
            let (stdout, ended) = tokio::select! {
                // The command may end before it has read all of its input.
                read = async { (read_all(stdout).await, kept.ended().await) } => read,
                never = async { feed.await; std::future::pending().await } => never,
            };
            (stdout, ended)
        };
        let Ok((stdout, ended)) = tokio::time::timeout_at(deadline, work).await else {
            return Err(Error::new(ErrorKind::Deadline, "the command did not end in time").on(&self.target));
        };
        let lost = || Error::new(ErrorKind::Transport, "the connection was lost").on(&self.target);
        let stdout = stdout.map_err(|e| lost().with_source(e))?;
        let ended = ended.ok_or_else(lost)?;
        Ok(Output::new(ended, stdout, kept.stderr()))
    }

    async fn open(&self, command: &Command, deadline: Instant) -> Result<Duplex> {
        let (ends, kept) = self.start(command, deadline).await?;
        Ok(Duplex::new(ends.stdin, ends.stdout, kept))
    }
}
