//! The permission to call tools: who has it, and for how long.

use std::any::Any;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::Serialize;
use subtle::ConstantTimeEq as _;
use tokio::sync::watch;

use crate::error::Result;
use crate::id::{CellId, KernelId, Nonce};
use crate::target::Target;

/// What a call shows that it comes from the cell that it claims to come from. New for each cell, and worth nothing after it.
#[derive(Clone, Serialize, PartialEq, Eq)]
#[serde(transparent)]
pub struct Token(Arc<str>);

impl Token {
    pub(super) fn random() -> Result<Self> {
        Ok(Token(Nonce::random()?.as_str().into()))
    }

    /// True if `shown` is this one. How long that takes does not tell how much of it is right.
    pub(super) fn is(&self, shown: &str) -> bool {
        self.0.as_bytes().ct_eq(shown.as_bytes()).into()
    }

    #[cfg(test)]
    pub(super) fn shown(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Token(…)")
    }
}

/// The permission of one cell to call tools. It ends with the cell.
pub struct Authority {
    pub(super) owner: String,
    pub(super) session: String,
    pub(super) target: Target,
    pub(super) kernel: KernelId,
    pub(super) cell: CellId,
    pub(super) calls_left: AtomicU32,
    pub(super) context: Option<Arc<dyn Any + Send + Sync>>,
    pub(super) over: watch::Receiver<bool>,
}

impl Authority {
    /// Whose cell it is.
    pub fn owner(&self) -> &str {
        &self.owner
    }

    /// The session's name.
    pub fn session(&self) -> &str {
        &self.session
    }

    /// Where the cell runs.
    pub fn target(&self) -> &Target {
        &self.target
    }

    /// The kernel that runs it.
    pub fn kernel(&self) -> &KernelId {
        &self.kernel
    }

    /// The cell. Its id is never used twice, and the cell runs in one generation of the interpreter only: this names that, too.
    pub fn cell(&self) -> &CellId {
        &self.cell
    }

    /// How many calls the cell may still make.
    pub fn calls_left(&self) -> u32 {
        self.calls_left.load(Ordering::Relaxed)
    }

    /// What the caller gave along with the tools, if it is a `T`.
    pub fn context<T: Any + Send + Sync>(&self) -> Option<Arc<T>> {
        self.context.clone()?.downcast().ok()
    }

    /// True when the cell has ended, or nobody waits for it any more.
    pub fn is_over(&self) -> bool {
        *self.over.borrow() || self.over.has_changed().is_err()
    }

    /// Waits until it is over: for what a tool has started elsewhere and has to end there.
    pub async fn over(&self) {
        // Whoever could say so has gone: that is the end as well.
        let _ = self.over.clone().wait_for(|over| *over).await;
    }
}

impl fmt::Debug for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Authority")
            .field("owner", &self.owner)
            .field("session", &self.session)
            .field("cell", &self.cell)
            .field("is_over", &self.is_over())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_random_compared_wholly_and_never_shown() {
        let (a, b) = (Token::random().unwrap(), Token::random().unwrap());
        assert!(a.is(a.shown()) && !a.is(b.shown()));
        assert!(!a.is("") && !a.is(&a.shown()[..31]) && !a.is(&format!("{}0", a.shown())));
        assert_eq!(format!("{a:?}"), "Token(…)");
    }
}
