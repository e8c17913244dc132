//! What the two drivers have in common: a way to log in, the connection that this gives, and the commands that run over it.

use std::fmt;
use std::sync::Arc;

use async_trait::async_trait;
use farcell_core::remote::Remote;

use crate::failure::Failure;

/// A way to log in to one host.
#[async_trait]
pub(crate) trait Dial: Send + Sync + fmt::Debug {
    /// Logs in. The host bounds how long that takes where nobody is asked for anything.
    async fn dial(&self) -> Result<Arc<dyn Live>, Failure>;

    /// A person may be asked for a password, so that logging in takes as long as that.
    fn may_ask(&self) -> bool {
        false
    }
}

/// A connection. To drop it closes it, once the commands over it have been dropped too.
#[async_trait]
pub(crate) trait Live: Send + Sync + fmt::Debug {
    /// Starts a command, one line for the login shell. Returns when the server has agreed to it.
    async fn start(&self, line: &str) -> Result<Remote, NotStarted>;

    /// It is known to be lost.
    fn is_over(&self) -> bool;

    /// It gives no sign of life: nothing more is started over it, and what waits for it shall not wait any longer.
    fn give_up(&self);
}

/// Why a command was not started. It certainly does not run.
#[derive(Debug)]
pub(crate) enum NotStarted {
    /// The server has no room for it just now.
    Busy,
    /// The connection is lost.
    Lost(String),
}
