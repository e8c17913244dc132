//! The transport over a host's connection, whichever driver has opened it.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use farcell_core::leash::END;
use farcell_core::remote::{Ender, Held, keep};
use farcell_core::{
    Capabilities, Command, Duplex, Error, ErrorKind, Instant, Output, Pauses, Result, Step, Target, Transport,
};
use tokio::io::AsyncWriteExt as _;

use crate::failure::Failure;
use crate::host::Host;
use crate::live::{Live, NotStarted};

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
    async fn start(&self, command: &Command, deadline: Instant) -> Result<Held> {
        let (host, line) = (Arc::clone(&self.host), command.leashed_line());
        let started = tokio::spawn(async move {
            let (remote, live, channel) = host.start(&line, deadline).await?;
            Ok::<_, Failure>(keep(remote, Arc::new(Over(live)), channel))
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
        let held = self.start(command, deadline).await?;
        held.run(stdin, deadline).await.map_err(|e| e.on(&self.target))
    }

    async fn open(&self, command: &Command, deadline: Instant) -> Result<Duplex> {
        Ok(self.start(command, deadline).await?.open())
    }
}

/// The connection that a command runs over.
#[derive(Debug)]
struct Over(Arc<dyn Live>);

#[async_trait]
impl Ender for Over {
    async fn end(&self, process: u64) {
        let mut pauses = Pauses::new();
        loop {
            // Beyond the count of channels: it makes one free.
            match self.0.start(&END.login_shell_line()).await {
                Ok(mut remote) => {
                    let _ = remote.stdin.write_all(format!("{process}\n").as_bytes()).await;
                    let _ = remote.stdin.shutdown().await;
                    remote.ending.await;
                    return;
                }
                Err(NotStarted::Busy) => tokio::time::sleep(pauses.next_pause()).await,
                // What the server ends of a lost connection is its own affair; our commands end with their stdin and their deadline.
                Err(NotStarted::Lost(_)) => return,
            }
        }
    }

    fn is_lost(&self) -> bool {
        self.0.is_over()
    }
}
