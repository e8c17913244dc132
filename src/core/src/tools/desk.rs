//! Takes the calls of one cell in, and decides about each.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde::Deserialize;
use serde_json::value::RawValue;
use tokio::sync::{Semaphore, mpsc, watch};

use super::approval::HeldClock;
use super::authority::{Authority, Token};
use super::clerk::{Clerk, Job, Work};
use super::set::Tools;
use super::tool::{FailureKind, ToolArguments, ToolCall, ToolFailure};
use crate::cell::{Cell, millis};
use crate::error::Result;
use crate::event::{Event, EventSink};
use crate::id::{CellId, CellNumber, KernelId};
use crate::kernel::Identity;
use crate::wire::message::Offer;
use crate::wire::record::{self, Record};

/// How many calls of a cell may be open, whatever its far side says.
pub(super) const OPEN_MAX: usize = 1024;

/// Takes the calls of one cell in: each is begun at most once, and only with the cell's authority.
#[derive(Debug)]
pub struct Desk {
    tools: Tools,
    token: Token,
    authority: Arc<Authority>,
    /// The last call that was taken in. Their numbers rise, so that whatever comes again is known by its own.
    begun: u64,
    /// How many more calls may wait for their answer to be sent.
    open: Arc<Semaphore>,
    work: mpsc::UnboundedSender<Work>,
    clock: Arc<HeldClock>,
    /// Says so to all who hold the authority when it is dropped.
    over: watch::Sender<bool>,
}

/// The payload of a record `t`.
#[derive(Deserialize)]
struct Called {
    call: u64,
    token: String,
    number: CellNumber,
    name: String,
    /// Read later: a text in it that is none must not keep us from answering.
    arguments: Box<RawValue>,
}

/// The payload of a record `w`.
#[derive(Deserialize)]
struct GivenUp {
    call: u64,
}

/// Opens a desk for a cell that is about to be sent under `id`; `None` if it has no tools.
pub fn open(
    cell: &Cell,
    identity: &Identity,
    kernel: KernelId,
    id: &CellId,
) -> Result<Option<(Desk, Clerk)>> {
    let Some(tools) = &cell.tools else { return Ok(None) };
    let (over, hear_over) = watch::channel(false);
    let authority = Authority {
        owner: identity.owner.clone(),
        session: identity.session.clone(),
        target: identity.target.clone(),
        kernel,
        cell: id.clone(),
        calls_left: AtomicU32::new(tools.budget),
        context: tools.context.clone(),
        over: hear_over,
    };
    let (work, hear) = mpsc::unbounded_channel();
    let clock = Arc::new(HeldClock::default());
    let desk = Desk {
        tools: tools.clone(),
        token: Token::random()?,
        authority: Arc::new(authority),
        begun: 0,
        open: Arc::new(Semaphore::new(OPEN_MAX)),
        work,
        clock: Arc::clone(&clock),
        over,
    };
    let clerk = Clerk::new(tools.clone(), hear, clock);
    Ok(Some((desk, clerk)))
}

impl Desk {
    /// What the cell is told of its tools.
    pub fn offer(&self) -> Offer {
        Offer {
            token: self.token.clone(),
            import: Arc::clone(&self.tools.import),
            patience_ms: millis(self.tools.patience),
            list: Arc::clone(self.tools.list()),
        }
    }

    /// How long the cell's deadline has stood still.
    pub fn clock(&self) -> &Arc<HeldClock> {
        &self.clock
    }

    /// Takes a record in; false if it is none of a call.
    pub fn take(&mut self, record: &Record, events: &dyn EventSink) -> bool {
        match record.kind {
            record::CALL => match serde_json::from_slice::<Called>(&record.payload) {
                Ok(called) => self.call(called, events),
                Err(e) => tracing::warn!("a tool call that makes no sense was passed over: {e}"),
            },
            record::GIVEN_UP => match serde_json::from_slice::<GivenUp>(&record.payload) {
                Ok(GivenUp { call }) => self.pass(Work::GivenUp(call)),
                Err(e) => tracing::warn!("the end of a tool call that makes no sense was passed over: {e}"),
            },
            _ => return false,
        }
        true
    }

    fn call(&mut self, called: Called, events: &dyn EventSink) {
        // Not answered: the answer would go to the call that has this number with right.
        if !self.token.is(&called.token) {
            tracing::warn!(call = called.call, "a tool call without the cell's token was passed over");
            return;
        }
        if called.call <= self.begun {
            tracing::debug!(call = called.call, "a tool call that was begun already was passed over");
            return;
        }
        self.begun = called.call;
        // A supervisor has no more than 64 under way: nobody waits for this one.
        let Ok(place) = Arc::clone(&self.open).try_acquire_owned() else {
            tracing::debug!(call = called.call, "a tool call beyond all that can be open was passed over");
            return;
        };
        let name: Arc<str> = called.name.as_str().into();
        let arguments = read_arguments(&called.arguments);
        let told = arguments.as_ref().map(Arc::clone).unwrap_or_default();
        events.event(Event::ToolCall { call: called.call, name: Arc::clone(&name), arguments: told });
        let verdict = self.judge(&name).and_then(|tool| {
            let call = ToolCall {
                number: called.call,
                name: Arc::clone(&name),
                arguments: arguments?,
                authority: Arc::clone(&self.authority),
                text: called.arguments.into(),
            };
            Ok((tool, call))
        });
        self.pass(Work::Call(Job { call: called.call, name, cell: called.number, verdict, place }));
    }

    /// The token was right: is it this cell's to call, is it allowed, and has it not called too often?
    fn judge(&self, name: &str) -> Result<Arc<dyn super::Tool>, ToolFailure> {
        if self.authority.is_over() {
            let message = "the cell that this call belongs to has ended";
            return Err(ToolFailure::of(FailureKind::Refused, "Refused", message));
        }
        let Some(tool) = self.tools.get(name) else {
            let message = format!("there is no tool {name:?}; there are: {}", self.tools.names());
            return Err(ToolFailure::of(FailureKind::Unknown, "UnknownTool", message));
        };
        if !self.tools.is_allowed(name) {
            let message = format!("{name} is not allowed in this cell");
            return Err(ToolFailure::of(FailureKind::Refused, "NotAllowed", message));
        }
        let left = &self.authority.calls_left;
        let taken = left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1));
        if taken.is_err() {
            let message = format!("the cell has made all of its {} tool calls", self.tools.budget);
            return Err(ToolFailure::of(FailureKind::Budget, "BudgetSpent", message));
        }
        Ok(Arc::clone(tool))
    }

    fn pass(&self, work: Work) {
        // Without a clerk nobody waits for the cell any more.
        let _ = self.work.send(work);
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.over.send_replace(true);
    }
}

fn read_arguments(text: &RawValue) -> Result<Arc<ToolArguments>, ToolFailure> {
    let refused = |message: String| ToolFailure::of(FailureKind::Refused, "BadArguments", message);
    if !text.get().starts_with('{') {
        return Err(refused("the arguments are no object".to_owned()));
    }
    serde_json::from_str(text.get())
        .map(Arc::new)
        .map_err(|e| refused(format!("the arguments are no JSON object: {e}")))
}
