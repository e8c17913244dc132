//! A command on another machine, or in a container, as a transport holds it: its streams, its end, and somebody who looks after it.
//!
//! For transports that start a process somewhere and cannot end it themselves. They start the command on a [leash](super::leash), hand what they got to [`keep`],
//! and have what [`Transport::exec`](super::Transport::exec) and [`Transport::open`](super::Transport::open) owe.

use std::any::Any;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::time::Instant;

use super::leash::Leash;
use super::streams::{LastBytes, read_all};
use super::{Duplex, Ended, Output, Running};
use crate::error::{Error, ErrorKind, Result};

/// How long a command that has ended is still listened to.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// How long a command that was given up may take to tell its process id: a login shell can be slow.
const ID: Duration = Duration::from_secs(20);
/// How long it is tried to end it.
const END_WITHIN: Duration = Duration::from_secs(30);

/// How a command ended, as soon as that is known.
pub type Ending = Pin<Box<dyn Future<Output = Ended> + Send>>;

/// A leashed command that runs somewhere. To drop this lets go of it, and does not end it.
#[non_exhaustive]
pub struct Remote {
    /// Its stdin; to shut it down is end of file there.
    pub stdin: Box<dyn AsyncWrite + Send + Unpin>,
    /// Its stdout, to the end.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// Its stderr, likewise.
    pub stderr: Box<dyn AsyncRead + Send + Unpin>,
    /// How it ends: [`Ended::Unknown`] where the connection is lost before.
    pub ending: Ending,
}

impl Remote {
    /// A command that runs.
    pub fn new(
        stdin: impl AsyncWrite + Send + Unpin + 'static,
        stdout: impl AsyncRead + Send + Unpin + 'static,
        stderr: impl AsyncRead + Send + Unpin + 'static,
        ending: impl Future<Output = Ended> + Send + 'static,
    ) -> Self {
        Remote {
            stdin: Box::new(stdin),
            stdout: Box::new(stdout),
            stderr: Box::new(stderr),
            ending: Box::pin(ending),
        }
    }
}

impl fmt::Debug for Remote {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Remote").finish_non_exhaustive()
    }
}

/// The connection of a command that runs.
#[async_trait]
pub trait Ender: Send + Sync + fmt::Debug {
    /// Ends the process with this id and its group, by running [`END`](super::leash::END) beside it; waits until that has been done. Bounded by the caller.
    async fn end(&self, process: u64);

    /// The connection is known to be lost.
    fn is_lost(&self) -> bool;
}

/// What its user holds of a command that is looked after. To drop it ends the command, unless that has ended.
#[derive(Debug)]
pub struct Kept {
    said: Arc<Mutex<LastBytes>>,
    ended: Option<oneshot::Receiver<Ended>>,
    ender: Arc<dyn Ender>,
    /// The keeper sees this end when it is dropped.
    _held: oneshot::Sender<()>,
}

/// A command that is looked after, with its streams.
#[derive(Debug)]
pub struct Held {
    stdin: Streamed<dyn AsyncWrite + Send + Unpin>,
    stdout: Streamed<dyn AsyncRead + Send + Unpin>,
    kept: Kept,
}

/// A stream without a word about itself.
struct Streamed<T: ?Sized>(Box<T>);

impl<T: ?Sized> fmt::Debug for Streamed<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("…")
    }
}

/// Looks after a command from now on. `guard` is dropped when nothing of the command is left.
///
/// # Panics
/// Outside of a runtime.
pub fn keep(remote: Remote, ender: Arc<dyn Ender>, guard: impl Any + Send) -> Held {
    let Remote { stdin, stdout, stderr, ending } = remote;
    let said = Arc::new(Mutex::new(LastBytes::default()));
    let (tell, ended) = oneshot::channel();
    let (held, dropped) = oneshot::channel();
    let keeper = Keeper {
        stderr: Some(stderr),
        ending,
        leash: Leash::new(),
        said: Arc::clone(&said),
        ender: Arc::clone(&ender),
        _guard: Box::new(guard),
    };
    tokio::spawn(keeper.run(dropped, tell));
    let kept = Kept { said, ended: Some(ended), ender, _held: held };
    Held { stdin: Streamed(stdin), stdout: Streamed(stdout), kept }
}

impl Held {
    /// Runs the command to its end, as [`Transport::exec`](super::Transport::exec) does.
    ///
    /// # Errors
    /// [`ErrorKind::Deadline`] and [`ErrorKind::Transport`], as there.
    pub async fn run(self, stdin: Bytes, deadline: Instant) -> Result<Output> {
        let Held { stdin: Streamed(mut input), stdout: Streamed(stdout), mut kept } = self;
        let feed = async move {
            // A command that ends without reading all of its input is judged by its answer, not by this.
            let _ = input.write_all(&stdin).await;
            let _ = input.shutdown().await;
            // Some take a closed stdin for the end of all.
            std::future::pending::<()>().await;
            drop(input);
        };
        let work = async {
            tokio::select! {
                read = async { (read_all(stdout).await, kept.ended().await) } => read,
                // The command may end before it has read all of its input, so this is not waited for.
                () = feed => unreachable!("it never ends"),
            }
        };
        let Ok((stdout, ended)) = tokio::time::timeout_at(deadline, work).await else {
            return Err(Error::new(ErrorKind::Deadline, "the command did not end in time"));
        };
        let lost = || Error::new(ErrorKind::Transport, "the connection was lost");
        let stdout = stdout.map_err(|e| lost().with_source(e))?;
        let ended = ended.ok_or_else(lost)?;
        Ok(Output::new(ended, stdout, kept.stderr()))
    }

    /// Keeps the command open, as [`Transport::open`](super::Transport::open) does.
    pub fn open(self) -> Duplex {
        Duplex { stdin: self.stdin.0, stdout: self.stdout.0, running: Box::new(self.kept) }
    }
}

impl Kept {
    /// Waits for the end of the command; `None` if the connection was lost before.
    async fn ended(&mut self) -> Option<Ended> {
        let ended = match self.ended.take() {
            Some(ended) => ended.await.unwrap_or(Ended::Unknown),
            None => Ended::Unknown,
        };
        let is_lost = ended == Ended::Unknown && self.ender.is_lost();
        (!is_lost).then_some(ended)
    }
}

impl Running for Kept {
    fn stderr(&self) -> Bytes {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).to_bytes()
    }
}

/// Listens to the command's stderr, learns how it ends, and ends it when its user gives it up.
struct Keeper {
    stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    ending: Ending,
    leash: Leash,
    said: Arc<Mutex<LastBytes>>,
    ender: Arc<dyn Ender>,
    _guard: Box<dyn Any + Send>,
}

impl Keeper {
    async fn run(mut self, mut dropped: oneshot::Receiver<()>, tell: oneshot::Sender<Ended>) {
        let mut piece = BytesMut::with_capacity(4096);
        let ended = loop {
            tokio::select! {
                ended = &mut self.ending => break ended,
                _ = &mut dropped => return self.end().await,
                more = read(&mut self.stderr, &mut piece) => self.hear(more, &mut piece),
            }
        };
        let rest = async {
            while self.stderr.is_some() {
                let more = read(&mut self.stderr, &mut piece).await;
                self.hear(more, &mut piece);
            }
        };
        // What it left in the background may keep its stderr open for ever.
        let _ = tokio::time::timeout(LAST_WORDS, rest).await;
        let held_back = self.leash.finish();
        self.say(&held_back);
        let _ = tell.send(ended);
    }

    fn hear(&mut self, more: bool, piece: &mut BytesMut) {
        if !more {
            self.stderr = None;
            return;
        }
        let own = self.leash.take(piece.split().freeze());
        self.say(&own);
    }

    fn say(&self, own: &[u8]) {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).push(own);
    }

    /// Nobody wants it any more: it is ended by another command, which needs its process id.
    async fn end(mut self) {
        let mut piece = BytesMut::with_capacity(4096);
        let told = async {
            while self.leash.process().is_none() {
                tokio::select! {
                    _ = &mut self.ending => return None,
                    more = read(&mut self.stderr, &mut piece), if self.stderr.is_some() => self.hear(more, &mut piece),
                }
            }
            self.leash.process()
        };
        let Ok(Some(process)) = tokio::time::timeout(ID, told).await else { return };
        let ending = async {
            tokio::select! {
                _ = &mut self.ending => {}
                () = self.ender.end(process) => {
                    (&mut self.ending).await;
                }
            }
        };
        if tokio::time::timeout(END_WITHIN, ending).await.is_err() {
            tracing::debug!(process, "a command that was given up may still run");
        }
    }
}

/// Reads a piece; false at the end. Never returns where there is nothing to read from.
async fn read(stream: &mut Option<Box<dyn AsyncRead + Send + Unpin>>, piece: &mut BytesMut) -> bool {
    match stream {
        Some(stream) => matches!(stream.read_buf(piece).await, Ok(n) if n > 0),
        None => std::future::pending().await,
    }
}
