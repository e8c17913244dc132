//! A child process that is kept open: pipes to and from it, the end of its stderr, and nothing of it left behind.

use std::ffi::OsString;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use farcell_core::streams::LastBytes;
use farcell_core::{ClosesOnShutdown, Duplex, Error, ErrorKind, Result, Running, Step};
use tokio::io::AsyncReadExt as _;
use tokio::process::{Child, ChildStderr};
use tokio::task::JoinHandle;

use crate::process::{self, Group};

/// Starts a command that runs until what is returned is dropped, or until it ends by itself.
pub(crate) fn open(argv: &[String], env: Option<Vec<(OsString, OsString)>>) -> Result<Duplex> {
    let (mut child, group) = process::start(argv, env)?;
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(Error::new(ErrorKind::Local, "the child process has no pipes").at(Step::Connect));
    };
    let said = Arc::new(Mutex::new(LastBytes::default()));
    let listening = tokio::spawn(listen(stderr, Arc::clone(&said)));
    let child = OpenChild { _group: group, _child: child, said, listening };
    Ok(Duplex::new(ClosesOnShutdown::new(stdin), stdout, child))
}

/// What its user holds of the child. It is not waited for as long as it is held, so that its number, and that of its group, is nobody else's.
#[derive(Debug)]
struct OpenChild {
    // Dropped in this order: killed, then left to the runtime to be waited for.
    _group: Group,
    _child: Child,
    said: Arc<Mutex<LastBytes>>,
    listening: JoinHandle<()>,
}

impl Running for OpenChild {
    fn stderr(&self) -> Bytes {
        self.said.lock().unwrap_or_else(PoisonError::into_inner).to_bytes()
    }
}

impl Drop for OpenChild {
    fn drop(&mut self) {
        // What it left in the background may keep its stderr open for ever.
        self.listening.abort();
    }
}

/// Keeps the end of what comes.
async fn listen(mut stderr: ChildStderr, said: Arc<Mutex<LastBytes>>) {
    let mut piece = Vec::with_capacity(4096);
    // What goes wrong with stderr is not worth an error of its own.
    while matches!(stderr.read_buf(&mut piece).await, Ok(n) if n > 0) {
        said.lock().unwrap_or_else(PoisonError::into_inner).push(&piece);
        piece.clear();
    }
}
