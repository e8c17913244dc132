//! Who looks after a running command: listens to its stderr, learns how it ends, and ends it on the far side when its caller gives it up.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use farcell_core::leash::{END, Leash};
use farcell_core::streams::Tail;
use farcell_core::{Ended, Pauses, Running};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::sync::oneshot;
use tokio::time::Instant;

use crate::channels::Channel;
use crate::live::{Ending, Live, NotStarted, Remote};

/// How long a command that has ended is still listened to.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// How long a command that was given up may take to tell its process id: a login shell can be slow.
const ID: Duration = Duration::from_secs(20);
/// How long it is tried to end it.
const END_WITHIN: Duration = Duration::from_secs(30);

/// What its user holds of a running command. To drop it ends the command, unless that has ended.
#[derive(Debug)]
pub(crate) struct Kept {
    said: Arc<Mutex<Tail>>,
    ended: Option<oneshot::Receiver<Ended>>,
    live: Arc<dyn Live>,
    /// The keeper sees this end when it is dropped.
    _held: oneshot::Sender<()>,
}

/// The streams of a command that is looked after.
pub(crate) struct Ends {
    pub(crate) stdin: Box<dyn tokio::io::AsyncWrite + Send + Unpin>,
    pub(crate) stdout: Box<dyn AsyncRead + Send + Unpin>,
}

/// Looks after a command from now on.
pub(crate) fn keep(remote: Remote, live: Arc<dyn Live>, channel: Channel) -> (Ends, Kept) {
    let Remote { stdin, stdout, stderr, ending } = remote;
    let said = Arc::new(Mutex::new(Tail::default()));
    let (tell, ended) = oneshot::channel();
    let (held, dropped) = oneshot::channel();
    let keeper = Keeper {
        stderr: Some(stderr),
        ending,
        leash: Leash::new(),
        said: Arc::clone(&said),
        live: Arc::clone(&live),
        _channel: channel,
    };
    tokio::spawn(keeper.run(dropped, tell));
    (Ends { stdin, stdout }, Kept { said, ended: Some(ended), live, _held: held })
}

impl Kept {
    /// Waits for the end of the command; `None` if the connection was lost before.
    pub(crate) async fn ended(&mut self) -> Option<Ended> {
        let ended = match self.ended.take() {
            Some(ended) => ended.await.unwrap_or(Ended::Unknown),
            None => Ended::Unknown,
        };
        let is_lost = ended == Ended::Unknown && self.live.is_over();
        (!is_lost).then_some(ended)
    }
}

impl Running for Kept {
    fn stderr(&self) -> Bytes {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).to_bytes()
    }
}

struct Keeper {
    stderr: Option<Box<dyn AsyncRead + Send + Unpin>>,
    ending: Ending,
    leash: Leash,
    said: Arc<Mutex<Tail>>,
    live: Arc<dyn Live>,
    _channel: Channel,
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
                () = kill(&*self.live, process) => {
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

/// Runs the command that ends a process, beyond the count of channels: it makes one free.
async fn kill(live: &dyn Live, process: u64) {
    let mut pauses = Pauses::new();
    let until = Instant::now() + END_WITHIN;
    while Instant::now() < until {
        match live.start(&END.login_shell_line()).await {
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
