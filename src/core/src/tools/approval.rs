//! Asking a person whether a call may be made, and the cell's clock that stands still meanwhile.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use tokio::sync::watch;
use tokio::time::Instant;

use super::set::Tools;
use super::tool::{FailureKind, ToolCall, ToolFailure};

/// How long a person may take to answer, and how long a clock stands still at the most.
pub(super) const ASK: Duration = Duration::from_secs(3600);

/// What a person says about a call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// This call may be made.
    Approve,
    /// This one and all others of this tool, for as long as the set of tools lives.
    Always,
    /// It may not be made. The text is told to the caller.
    Deny(String),
}

/// Asks a person. The time that it takes does not count against the cell's deadline; after an hour the answer is no.
#[async_trait]
pub trait Approver: Send + Sync {
    /// Asks about one call. No other question is asked meanwhile. It is dropped when the call is given up.
    async fn ask(&self, call: &ToolCall) -> Decision;
}

/// How long a cell's deadline has stood still, by the host's clock.
#[derive(Debug)]
pub struct HeldClock {
    state: Mutex<State>,
    /// How many questions are open.
    open: watch::Sender<u32>,
}

#[derive(Debug, Default)]
struct State {
    since: Option<Instant>,
    before: Duration,
}

impl Default for HeldClock {
    fn default() -> Self {
        HeldClock { state: Mutex::default(), open: watch::Sender::new(0) }
    }
}

impl HeldClock {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long it has stood still by now, all in all.
    pub fn held(&self) -> Duration {
        let state = self.state();
        state.before + state.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    /// True while it stands still.
    pub fn is_held(&self) -> bool {
        self.state().since.is_some()
    }

    /// Stops it for a question.
    fn ask(&self) -> Question<'_> {
        self.state().since.get_or_insert_with(Instant::now);
        self.open.send_modify(|open| *open += 1);
        Question(self)
    }

    /// Waits until a question is open, or none is.
    pub(super) async fn until(&self, is_open: bool) {
        // It ends with the sender, which is ours.
        let _ = self.open.subscribe().wait_for(|open| (*open > 0) == is_open).await;
    }

    /// The far side's clock goes on.
    pub(super) fn goes_on(&self) {
        let mut state = self.state();
        if *self.open.borrow() == 0
            && let Some(since) = state.since.take()
        {
            state.before += since.elapsed();
        }
    }
}

/// A question that is open.
struct Question<'a>(&'a HeldClock);

impl Drop for Question<'_> {
    fn drop(&mut self) {
        self.0.open.send_modify(|open| *open -= 1);
    }
}

/// Asks about a call, unless a person has agreed to all of this tool.
pub(super) async fn approve(tools: &Tools, call: &ToolCall, clock: &HeldClock) -> Result<(), ToolFailure> {
    let denied = |why: String| ToolFailure::of(FailureKind::Denied, "Denied", why);
    let Some(approver) = &tools.approver else {
        let why = format!("{} needs a person's approval, and there is nobody to ask", call.name);
        return Err(denied(why));
    };
    if tools.asking.is_always(&call.name) {
        return Ok(());
    }
    let _question = clock.ask();
    let asked = tokio::time::timeout(ASK, async {
        let _turn = tools.asking.turn.lock().await;
        // It may have been said about the call before this one.
        if tools.asking.is_always(&call.name) { Decision::Approve } else { approver.ask(call).await }
    });
    match asked.await {
        Ok(Decision::Approve) => Ok(()),
        Ok(Decision::Always) => {
            tools.asking.set_always(&call.name);
            Ok(())
        }
        Ok(Decision::Deny(why)) => Err(denied(why)),
        Err(_) => Err(denied("nobody answered within an hour whether the call may be made".to_owned())),
    }
}
