//! A child process that is kept open: pipes to and from it, the end of its stderr, and nothing of it left behind.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use farcell_core::{ClosesOnShutdown, Duplex, Error, ErrorKind, Result, Running, Step};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr};
use tokio::sync::oneshot;

use crate::process::{self, Group, LAST_WORDS, Tail};

/// Starts a command that runs until what is returned is dropped, or until it ends by itself.
pub(crate) fn open(argv: &[String], env: Option<Vec<(OsString, OsString)>>) -> Result<Duplex> {
    let (mut child, group) = process::start(argv, env)?;
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(Error::new(ErrorKind::Local, "the child process has no pipes").at(Step::Connect));
    };
    let said = Arc::new(Mutex::new(Tail::default()));
    let (wanted, dropped) = oneshot::channel();
    tokio::spawn(Keeper { group, child }.keep(stderr, Arc::clone(&said), dropped));
    Ok(Duplex::new(ClosesOnShutdown::new(stdin), stdout, OpenChild { said, _wanted: wanted }))
}

/// What its user holds of the child.
#[derive(Debug)]
struct OpenChild {
    said: Arc<Mutex<Tail>>,
    /// Dropping it ends the child.
    _wanted: oneshot::Sender<()>,
}

impl Running for OpenChild {
    fn stderr(&self) -> Bytes {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).to_bytes()
    }
}

/// What ends with its task. The group goes first: it must not outlive the child that its number stands for.
struct Keeper {
    group: Group,
    child: Child,
}

impl Keeper {
    /// Listens to stderr and waits until nobody wants the child any more, or until it ends; then sees to it that all of its group does.
    async fn keep(mut self, stderr: ChildStderr, said: Arc<Mutex<Tail>>, dropped: oneshot::Receiver<()>) {
        let ended = async {
            let listening = listen(stderr, &said);
            tokio::pin!(listening);
            tokio::select! {
                // It may close its stderr and live on.
                () = &mut listening => { let _ = self.child.wait().await; }
                _ = self.child.wait() => {
                    // What it left in the background may keep its stderr open for ever.
                    let _ = tokio::time::timeout(LAST_WORDS, listening).await;
                }
            }
        };
        tokio::select! {
            () = ended => {}
            _ = dropped => {
                self.group.kill();
                // Killed just now; it is only waited for so that it is no zombie.
                let _ = self.child.wait().await;
            }
        }
        self.group.is_over();
    }
}

/// Keeps the end of what comes.
async fn listen(mut stderr: ChildStderr, said: &Mutex<Tail>) {
    let mut piece = Vec::with_capacity(4096);
    // What goes wrong with stderr is not worth an error of its own.
    while matches!(stderr.read_buf(&mut piece).await, Ok(n) if n > 0) {
        said.lock().unwrap_or_else(PoisonError::into_inner).push(&piece);
        piece.clear();
    }
}
