//! The driver that runs the user's own ssh: it logs in once, as a master that others share by its control socket, and commands are channels of that.
//!
//! The crate `openssh` speaks to the control socket, so that a command costs no process on this machine. The master is started here, because that crate would start it
//! in a way that can ask nobody for a password and decides about host keys itself.

mod askpass;
mod master;
mod sockets;
mod verdict;
mod watched;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use farcell_core::remote::Remote;
use farcell_core::{ClosesOnShutdown, Ended};
use openssh::{Child, Error, Session, Stdio};
use openssh_mux_client::Error as MuxError;
use tokio::io::AsyncReadExt as _;
use tokio::net::UnixStream;
use tokio::task::JoinHandle;

use self::sockets::Socket;
use self::watched::watch;
use crate::address::Address;
use crate::failure::Failure;
use crate::live::{Dial, Live, NotStarted};
use crate::options::SshOptions;

pub(crate) use self::sockets::close_kept;

/// How long a command whose stdout has ended is still listened to.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Logs in by the ssh program.
#[derive(Debug)]
pub(crate) struct Openssh {
    address: Address,
    options: SshOptions,
}

impl Openssh {
    pub(crate) fn new(address: Address, options: SshOptions) -> Self {
        Openssh { address, options }
    }
}

#[async_trait]
impl Dial for Openssh {
    async fn dial(&self) -> Result<Arc<dyn Live>, Failure> {
        self.address.check_files()?;
        let socket = Socket::of(&self.address, &self.options).await?;
        if !socket.has_master().await {
            master::start(&self.address, &self.options, &socket).await?;
        }
        Ok(Arc::new(Master::join(socket).await?))
    }

    fn may_ask(&self) -> bool {
        self.options.ask
    }
}

/// A master that is logged in.
#[derive(Debug)]
struct Master {
    session: Arc<Session>,
    path: PathBuf,
    inode: u64,
    over: Arc<AtomicBool>,
    /// Holds a connection to the master, which therefore does not take itself for idle, and sees it end.
    watch: JoinHandle<()>,
}

impl Master {
    async fn join(socket: Socket) -> Result<Self, Failure> {
        let path = socket.path().to_owned();
        let gone = |e: std::io::Error| {
            Failure::passing(format!(
                "ssh has logged in, and its control socket {} does not answer: {e}",
                path.display()
            ))
        };
        let inode = sockets::inode(&path).map_err(gone)?;
        let mut held = UnixStream::connect(&path).await.map_err(gone)?;
        let over = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&over);
        let watch = tokio::spawn(async move {
            let mut greeting = [0; 64];
            while matches!(held.read(&mut greeting).await, Ok(n) if n > 0) {}
            seen.store(true, Ordering::Release);
        });
        Ok(Master { session: Arc::new(socket.into_session()), path, inode, over, watch })
    }
}

impl Drop for Master {
    fn drop(&mut self) {
        self.watch.abort();
    }
}

#[async_trait]
impl Live for Master {
    async fn start(&self, line: &str) -> Result<Remote, NotStarted> {
        let mut command = Arc::clone(&self.session).arc_raw_command(line);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().await.map_err(|e| match e {
            Error::SshMux(MuxError::RequestFailure(_)) => NotStarted::Busy,
            Error::SshMux(e) => NotStarted::Lost(e.to_string()),
            e => NotStarted::Lost(e.to_string()),
        })?;
        let streams = (child.stdin().take(), child.stdout().take(), child.stderr().take());
        let (Some(stdin), Some(stdout), Some(stderr)) = streams else {
            return Err(NotStarted::Lost("it has no pipes".to_owned()));
        };
        let (stdout, stdout_over) = watch(stdout);
        let (stderr, stderr_over) = watch(stderr);
        let ending = async move {
            // The master throws away what it has not written yet when its client leaves, and to wait for the status ends in that.
            stdout_over.wait().await;
            // A process that is left in the background may hold this one for ever.
            let _ = tokio::time::timeout(LAST_WORDS, stderr_over.wait()).await;
            ended(child).await
        };
        Ok(Remote::new(ClosesOnShutdown::new(stdin), stdout, stderr, ending))
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    fn give_up(&self) {
        self.over.store(true, Ordering::Release);
        // Nobody shall find it any more: to all others on this machine it still looks alive. It ends when it notices, or has nothing to do.
        sockets::remove(&self.path, self.inode);
    }
}

async fn ended(child: Child<Arc<Session>>) -> Ended {
    match child.wait().await {
        Ok(status) => status.code().map_or(Ended::Unknown, Ended::Exit),
        // The crate makes an error of its own of this status.
        Err(Error::Remote(e)) if e.kind() == std::io::ErrorKind::NotFound => Ended::Exit(127),
        // By a signal, or the connection is lost: the control socket does not tell which.
        Err(_) => Ended::Unknown,
    }
}

/// A path for an option of ssh, which replaces `%` sequences in it and splits it at spaces.
fn quoted(path: &Path) -> String {
    format!("\"{}\"", percent(path))
}

fn percent(path: &Path) -> String {
    path.display().to_string().replace('%', "%%")
}
