//! A child process that is kept open: pipes to and from it, the end of its stderr, and nothing of it left behind.

use bytes::Bytes;
use farcell_core::streams::Overheard;
use farcell_core::{ClosesOnShutdown, Duplex, Error, ErrorKind, Result, Running, Step};
use tokio::process::Child;

use crate::account::Setting;
use crate::process::{self, Group};

/// Starts a command that runs until what is returned is dropped, or until it ends by itself.
pub(crate) fn open(argv: &[String], setting: Setting) -> Result<Duplex> {
    let (mut child, group) = process::start(argv, setting)?;
    let (Some(stdin), Some(stdout), Some(stderr)) =
        (child.stdin.take(), child.stdout.take(), child.stderr.take())
    else {
        return Err(Error::new(ErrorKind::Local, "the child process has no pipes").at(Step::Connect));
    };
    let child = OpenChild { _group: group, _child: child, said: Overheard::new(stderr) };
    Ok(Duplex::new(ClosesOnShutdown::new(stdin), stdout, child))
}

/// What its user holds of the child. It is not waited for as long as it is held, so that its number, and that of its group, is nobody else's.
#[derive(Debug)]
struct OpenChild {
    // Dropped in this order: killed, then left to the runtime to be waited for.
    _group: Group,
    _child: Child,
    said: Overheard,
}

impl Running for OpenChild {
    fn stderr(&self) -> Bytes {
        self.said.to_bytes()
    }
}
