//! Carries the calls of one cell out, several at once, and sends the answers.

use std::collections::HashMap;
use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::Instant;

use super::approval::{ASK, HeldClock, approve};
use super::post::{Down, Post, compose, deliver};
use super::set::Tools;
use super::tool::{FailureKind, Tool, ToolCall, ToolFailure, ToolOutput};
use crate::event::{Event, EventSink};
use crate::id::CellNumber;

/// Carries the calls of one cell out. Dropped, it ends those that are under way.
#[derive(Debug)]
pub struct Clerk {
    hear: mpsc::UnboundedReceiver<Work>,
    tools: Tools,
    clock: Arc<HeldClock>,
}

/// What the desk passes on.
#[derive(Debug)]
pub(super) enum Work {
    Call(Job),
    /// Nobody waits for this call any more.
    GivenUp(u64),
}

/// A call that was taken in.
pub(super) struct Job {
    pub(super) call: u64,
    pub(super) name: Arc<str>,
    /// The number of its cell.
    pub(super) cell: CellNumber,
    /// What was decided about it.
    pub(super) verdict: Result<(Arc<dyn Tool>, ToolCall), ToolFailure>,
    /// Held until its answer is sent.
    pub(super) place: OwnedSemaphorePermit,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("call", &self.call).field("name", &self.name).finish_non_exhaustive()
    }
}

/// A call that has its outcome.
struct Done {
    call: u64,
    outcome: Result<ToolOutput, ToolFailure>,
}

/// A call that is under way, as the events tell of it.
struct Open {
    name: Arc<str>,
    begun: Instant,
    task: AbortHandle,
}

/// What all calls of the cell have in common.
struct Common {
    tools: Tools,
    clock: Arc<HeldClock>,
    /// How many more may run at once.
    places: Semaphore,
    post: Arc<dyn Post>,
    done: mpsc::UnboundedSender<Done>,
}

impl Clerk {
    pub(super) fn new(tools: Tools, hear: mpsc::UnboundedReceiver<Work>, clock: Arc<HeldClock>) -> Self {
        Clerk { hear, tools, clock }
    }

    /// Serves the cell for as long as this is polled. What comes of each call is told before its answer is sent.
    pub async fn serve(mut self, post: Arc<dyn Post>, events: &dyn EventSink) -> Infallible {
        let (done, mut hear_done) = mpsc::unbounded_channel();
        let common = Arc::new(Common {
            places: Semaphore::new(self.tools.parallel),
            tools: self.tools,
            clock: self.clock,
            post,
            done,
        });
        let mut tasks = JoinSet::new();
        let mut open: HashMap<u64, Open> = HashMap::new();
        let mut has_keeper = false;
        loop {
            tokio::select! {
                biased;
                Some(Done { call, outcome }) = hear_done.recv() => {
                    if let Some(Open { name, begun, .. }) = open.remove(&call) {
                        events.event(Event::ToolAnswer { call, name, outcome, duration: begun.elapsed() });
                    }
                }
                Some(work) = self.hear.recv() => match work {
                    Work::Call(job) => {
                        let needs = job.verdict.as_ref().is_ok_and(|(tool, _)| tool.needs_approval());
                        if needs && !std::mem::replace(&mut has_keeper, true) {
                            tasks.spawn(keep_clock(Arc::clone(&common), job.cell));
                        }
                        let (call, name) = (job.call, Arc::clone(&job.name));
                        let task = tasks.spawn(carry_out(Arc::clone(&common), job));
                        open.insert(call, Open { name, begun: Instant::now(), task });
                    }
                    Work::GivenUp(call) => {
                        if let Some(Open { name, begun, task }) = open.remove(&call) {
                            task.abort();
                            let outcome = Err(given_up());
                            events.event(Event::ToolAnswer { call, name, outcome, duration: begun.elapsed() });
                        }
                    }
                },
                Some(_) = tasks.join_next(), if !tasks.is_empty() => {}
                // The desk has gone, and all is said: what is left is to be dropped.
                else => std::future::pending::<()>().await,
            }
        }
    }
}

fn given_up() -> ToolFailure {
    ToolFailure::of(FailureKind::Cancelled, "Cancelled", "the call was given up by its caller")
}

/// One call, from its verdict to its answer.
async fn carry_out(common: Arc<Common>, job: Job) {
    let Job { call, cell, verdict, place: _place, .. } = job;
    let mut outcome = match verdict {
        Ok((tool, call)) => run(&common, tool, call).await,
        Err(failure) => Err(failure),
    };
    let answer = compose(&mut outcome);
    // Told first: with the answer the cell may end, and nobody listens any more.
    let _ = common.done.send(Done { call, outcome });
    deliver(common.post.as_ref(), cell, &Down::Answer { call, answer }).await;
}

async fn run(common: &Common, tool: Arc<dyn Tool>, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
    if tool.needs_approval() {
        approve(&common.tools, &call, &common.clock).await?;
    }
    // It is never closed.
    let _place = common.places.acquire().await;
    let name = Arc::clone(&call.name);
    // In a task of its own, so that what panics is the tool alone. It ends with this set.
    let mut task = JoinSet::new();
    task.spawn(async move { tool.call(call).await });
    match task.join_next().await {
        Some(Ok(outcome)) => outcome,
        Some(Err(e)) if e.is_panic() => {
            Err(ToolFailure::new("Panic", format!("{name} panicked; its host knows more")))
        }
        _ => Err(ToolFailure::of(FailureKind::Cancelled, "Cancelled", "the host is ending")),
    }
}

/// Has the far side's clock stand still while a question is open. One hold at a time, however many questions there are.
async fn keep_clock(common: Arc<Common>, cell: CellNumber) {
    let (post, clock) = (common.post.as_ref(), &common.clock);
    loop {
        clock.until(true).await;
        let holds = deliver(post, cell, &Down::Hold(ASK)).await;
        clock.until(false).await;
        // One that was sent twice because of a cut may stand twice.
        for _ in 0..holds {
            deliver(post, cell, &Down::Resume).await;
        }
        clock.goes_on();
    }
}
