//! One cell of a kernel over pipes, from its sending to its reply: what is heard of it.

use std::time::Duration;

use farcell_core::kernel::Identity;
use farcell_core::tools::Desk;
use farcell_core::wire::message::RawReply;
use farcell_core::{
    CellId, CellInfo, CellNumber, ErrorInfo, Event, EventSink, Instant, KernelId, KernelInfo, NoEvents,
    RecordEvents, Reply, State, Status, Tail, TroubleKind,
};
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;

use super::channel::Heard;
use super::lane::{Passage, Sent};

/// Where a submitted cell stands.
#[derive(Debug, Clone)]
pub(super) enum Standing {
    Waiting(u64),
    Running(Instant),
    Settled(Box<Reply>),
}

/// A cell on its way.
#[derive(Debug)]
pub(super) struct Follow {
    hear: Receiver<Heard>,
    records: RecordEvents,
    seen: Tail,
    /// Takes the cell's tool calls in.
    pub(super) desk: Option<Desk>,
    pub(super) number: Option<CellNumber>,
    pub(super) started: Option<Instant>,
    /// How many were said to be before it.
    pub(super) ahead: Option<u64>,
}

/// What ended a wait.
pub(super) enum Waited {
    Reply(Box<RawReply>),
    /// The cell was accepted or has started: from now on another bound holds.
    Changed,
    /// The moment has come.
    Moment,
    /// Something else than replies is in the lane: a cell has been writing there.
    Garbled,
    /// The supervisor has gone.
    Gone,
}

/// What the replies of a kernel carry.
pub(super) struct Names {
    pub(super) identity: Identity,
    pub(super) id: KernelId,
}

impl Names {
    fn info(&self, state: State) -> KernelInfo {
        self.identity.kernel(Some(self.id.clone()), true, state, None)
    }
}

impl Follow {
    /// Of a cell that is about to be sent; `limit` bytes of its output are kept.
    pub(super) fn new(hear: Receiver<Heard>, limit: usize) -> Self {
        Follow {
            hear,
            records: RecordEvents::default(),
            seen: Tail::new(limit),
            desk: None,
            number: None,
            started: None,
            ahead: None,
        }
    }

    /// Listens to the end, telling where the cell stands.
    pub(super) async fn listen(
        mut self,
        id: CellId,
        names: Names,
        tell: watch::Sender<Standing>,
        sent: Sent,
    ) {
        while !matches!(*tell.borrow(), Standing::Settled(_)) {
            let until = Instant::now() + Duration::from_secs(3600);
            let standing = match self.wait_once(until, &NoEvents).await {
                Waited::Reply(raw) => Standing::Settled(Box::new(names.identity.complete(*raw))),
                Waited::Gone => Standing::Settled(Box::new(self.died(&id, &names))),
                Waited::Changed | Waited::Moment | Waited::Garbled => self.standing(),
            };
            tell.send_replace(standing);
        }
        sent.settle();
    }

    pub(super) fn standing(&self) -> Standing {
        self.started.map_or(Standing::Waiting(self.ahead.unwrap_or(0)), Standing::Running)
    }

    pub(super) fn cell(&self, id: &CellId) -> CellInfo {
        CellInfo { id: Some(id.clone()), number: self.number }
    }

    /// The supervisor lives and has not ended the cell long after its deadline.
    pub(super) fn lost(&mut self, id: &CellId, names: &Names) -> Reply {
        let error = ErrorInfo {
            kind: TroubleKind::Deadline,
            name: "Lost".to_owned(),
            message: "the kernel lives and does not answer".to_owned(),
            traceback: None,
            hint: Some(
                "it may be stopped (SIGSTOP) or starved of CPU; stopping the session ends it".to_owned(),
            ),
        };
        let mut reply = Reply::without_run(Status::Lost, error, self.cell(id), names.info(State::Unknown));
        (reply.stdout, reply.stderr, reply.output) = self.seen.take();
        reply
    }

    /// The supervisor has gone in the middle of the cell: the reply is made of what was heard.
    pub(super) fn died(&mut self, id: &CellId, names: &Names) -> Reply {
        let error = ErrorInfo {
            kind: TroubleKind::Signal,
            name: "KernelDied".to_owned(),
            message: match self.started {
                Some(_) => "the kernel died".to_owned(),
                None => "the kernel died before it told whether the cell had begun".to_owned(),
            },
            traceback: None,
            hint: Some("its variables are gone; the next cell starts a new kernel".to_owned()),
        };
        let mut reply = Reply::without_run(Status::Died, error, self.cell(id), names.info(State::Lost));
        (reply.stdout, reply.stderr, reply.output) = self.seen.take();
        reply.duration_ms = self.started.map_or(0.0, |s| s.elapsed().as_secs_f64() * 1000.0);
        reply
    }

    /// Listens until something has changed that its bounds depend on.
    pub(super) async fn wait_once(&mut self, until: Instant, events: &dyn EventSink) -> Waited {
        loop {
            // What is there already costs no timer.
            let heard = match self.hear.try_recv() {
                Ok(heard) => Some(heard),
                Err(_) => match tokio::time::timeout_at(until, self.hear.recv()).await {
                    Ok(heard) => heard,
                    Err(_) => return Waited::Moment,
                },
            };
            match heard {
                None => return Waited::Gone,
                Some(Heard::Accepted(number, ahead)) => {
                    self.accept(number, events);
                    if self.ahead.replace(ahead) != Some(ahead) {
                        events.event(Event::Queued { ahead });
                        return Waited::Changed;
                    }
                }
                Some(Heard::Started(number)) => {
                    self.accept(number, events);
                    // Its clock runs from the first time.
                    if self.started.is_none() {
                        self.started = Some(Instant::now());
                        return Waited::Changed;
                    }
                }
                Some(Heard::Output(record)) => {
                    if !self.desk.as_mut().is_some_and(|desk| desk.take(&record, events)) {
                        self.seen.push(&record);
                        if events.wants_output() {
                            self.records.emit(vec![record], events);
                        }
                    }
                }
                Some(Heard::Reply(mut raw)) => {
                    if raw.gathered {
                        (raw.stdout, raw.stderr, _) = self.seen.take();
                    }
                    // A cell that is over within a moment is told by its reply alone.
                    self.accept(raw.cell.number, events);
                    self.records.finish(events);
                    return Waited::Reply(raw);
                }
            }
            // Where there is always something to hear, the moment comes all the same.
            if Instant::now() >= until {
                return Waited::Moment;
            }
        }
    }

    /// The same for a cell in the lane, whose reply may come both ways; the lane's comes first, as it may be the one of a cell that seems to have died.
    pub(super) async fn wait_both(
        &mut self,
        passage: &Passage,
        until: Instant,
        events: &dyn EventSink,
    ) -> Waited {
        tokio::select! {
            biased;
            reply = passage.reply() => match reply {
                Some(raw) => {
                    self.accept(raw.cell.number, events);
                    self.records.finish(events);
                    Waited::Reply(raw)
                }
                // Or the kernel is dead, which its supervisor's end tells.
                None => Waited::Garbled,
            },
            waited = self.wait_once(until, events) => waited,
        }
    }

    fn accept(&mut self, number: CellNumber, events: &dyn EventSink) {
        if self.number.replace(number).is_none() {
            events.event(Event::Accepted { number });
        }
    }
}
