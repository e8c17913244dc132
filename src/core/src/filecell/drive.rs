//! One cell on its way: sent at most once, followed through lost connections, bounded in every wait.

use std::time::Duration;

use tokio::time::Instant;

use super::kernel::FileCellKernel;
use crate::cell::{Cell, millis};
use crate::error::{Error, ErrorKind, Result, Step};
use crate::event::{Event, EventSink, RecordEvents};
use crate::id::{CellId, CellNumber};
use crate::kernel::{Fetched, Which};
use crate::link;
use crate::reply::{CellInfo, ErrorInfo, Reply, State, Status, TroubleKind};
use crate::retry::Pauses;
use crate::wire::message::{Fate, Operation, Progress, Request, Watch};
use crate::wire::record;

/// How long the far side holds one question before it answers that nothing has happened.
const HOLD: Duration = Duration::from_secs(25);
/// What a step may take beyond its hold: sending, starting Python, coming back.
const MARGIN: Duration = Duration::from_secs(20);
/// How long output is collected before it is sent, when it is wanted as it comes.
const LULL: Duration = Duration::from_millis(30);
/// How long a cell without a timeout of its own is looked for when its target has gone.
const RECONNECT: Duration = Duration::from_secs(600);

/// How long a supervisor may take to begin a cell that is first in line.
const TAKE: Duration = Duration::from_secs(10);

fn not_answering() -> Error {
    Error::new(ErrorKind::Deadline, "the kernel lives and does not answer")
        .with_hint("it may be stopped (SIGSTOP) or starved of CPU; `farcell stop` ends it")
}

/// Follows one cell.
pub(super) struct Drive<'a> {
    kernel: &'a FileCellKernel,
    events: &'a dyn EventSink,
    records: RecordEvents,
    offset: u64,
    number: Option<CellNumber>,
    pauses: Pauses,
    /// A step has been sent that may have arrived.
    sent: bool,
    told: Told,
}

/// What the user has been told already.
#[derive(Default)]
struct Told {
    ahead: Option<u64>,
    accepted: bool,
    cut: bool,
}

/// The bounds of one cell.
struct Bounds {
    timeout: Option<Duration>,
    queue: Duration,
    started: Instant,
}

/// How far one step got.
enum Stepped {
    Progress(Box<Progress>),
    /// The transport failed, a pause was made, and there is time to try again.
    Again,
    /// The transport failed and the time is up.
    GaveUp(Error),
}

impl<'a> Drive<'a> {
    pub(super) fn new(kernel: &'a FileCellKernel, events: &'a dyn EventSink) -> Self {
        Drive {
            kernel,
            events,
            records: RecordEvents::default(),
            offset: 0,
            number: None,
            pauses: Pauses::new(),
            sent: false,
            told: Told::default(),
        }
    }

    /// Sends a cell and follows it to its reply.
    pub(super) async fn run(mut self, cell: &Cell) -> Result<Reply> {
        let id = CellId::random()?;
        let request = cell.to_request(id.clone());
        let bounds = Bounds { timeout: cell.timeout, queue: cell.queue_timeout, started: Instant::now() };
        let ack = self.kernel.take_delivered();
        let outcome = self.follow(&id, &request, &bounds, &ack).await;
        if self.number.is_none() {
            // It may not have arrived, and so neither may what it was to acknowledge.
            self.kernel.add_delivered(ack);
        }
        outcome
    }

    async fn follow(
        &mut self,
        id: &CellId,
        request: &Request,
        bounds: &Bounds,
        ack: &[CellNumber],
    ) -> Result<Reply> {
        let mut wait_until = bounds.started + bounds.queue;
        let mut queued = false;
        let (mut running_since, mut untaken_since) = (None, None);
        loop {
            let asked = Instant::now();
            let hold = self.hold(bounds, queued, wait_until);
            let operation = self.next_operation(id, request, self.watch(hold), ack);
            let give_up = self.give_up(bounds, queued);
            let progress = match self.step(&operation, hold + MARGIN, give_up).await? {
                Stepped::Progress(progress) => progress,
                Stepped::Again => continue,
                Stepped::GaveUp(e) => return Ok(self.lost(id, &e)),
            };
            match progress.fate {
                Fate::Settled | Fate::Dead => {
                    if let Some(reply) = progress.reply {
                        return Ok(self.deliver(self.kernel.identity.complete(reply)));
                    }
                    return Err(Error::new(ErrorKind::Protocol, "a settled cell came without its reply"));
                }
                Fate::Waiting => {
                    queued = true;
                    if progress.ahead == 0 {
                        let since = *untaken_since.get_or_insert(asked);
                        if since.elapsed() >= TAKE && self.kernel.withdraw(id).await? {
                            return Err(not_answering());
                        }
                    } else {
                        self.tell_queued(progress.ahead);
                    }
                    if Instant::now() >= wait_until {
                        if self.kernel.withdraw(id).await? {
                            let cell = CellInfo { id: Some(id.clone()), number: self.number };
                            let identity = &self.kernel.identity;
                            return Ok(identity.withdrawn(
                                self.kernel.id(),
                                cell,
                                bounds.queue,
                                progress.ahead,
                            ));
                        }
                        // It has just started: from now on its own clock counts.
                        wait_until = Instant::now() + bounds.queue;
                    }
                }
                Fate::Running => {
                    queued = false;
                    // Our own clock: that of the target may be set while the cell runs.
                    let since = *running_since.get_or_insert(asked);
                    if let Some(over) = self.overdue(bounds, since) {
                        return Ok(self.lost(id, &over));
                    }
                }
                Fate::Unknown => {
                    return Err(Error::new(
                        ErrorKind::UnknownCell,
                        format!("the kernel does not know the cell {id}"),
                    )
                    .with_hint("its reply was fetched and acknowledged by another process"));
                }
            }
        }
    }

    /// Sends a cell and returns as soon as it is there.
    pub(super) async fn submit(mut self, cell: &Cell) -> Result<CellNumber> {
        let id = CellId::random()?;
        let request = cell.to_request(id.clone());
        let give_up = Instant::now() + MARGIN;
        let ack = self.kernel.take_delivered();
        loop {
            let operation = self.next_operation(&id, &request, self.watch(Duration::ZERO), &ack);
            match self.step(&operation, MARGIN, give_up).await {
                Ok(Stepped::Progress(progress)) => {
                    return progress.number.ok_or_else(|| {
                        Error::new(ErrorKind::Protocol, "an accepted cell came without its number")
                    });
                }
                Ok(Stepped::Again) => {}
                Ok(Stepped::GaveUp(e)) | Err(e) => {
                    self.kernel.add_delivered(ack);
                    return Err(e);
                }
            }
        }
    }

    /// Fetches what there is of a cell that was sent earlier, perhaps by another process.
    pub(super) async fn fetch(mut self, which: &Which, wait: Duration) -> Result<Fetched> {
        let until = Instant::now() + wait;
        self.sent = true;
        loop {
            let hold = until.saturating_duration_since(Instant::now()).min(HOLD);
            let (id, number) = match which {
                Which::Last => (None, self.number),
                Which::Number(n) => (None, Some(*n)),
                Which::Id(id) => (Some(id.clone()), None),
            };
            let operation = Operation::Wait {
                dir: self.kernel.dir(),
                id,
                number,
                wait: self.watch(hold),
                ack: Vec::new(),
            };
            let progress =
                match self.step(&operation, hold + MARGIN, until.max(Instant::now() + LULL)).await? {
                    Stepped::Progress(progress) => progress,
                    Stepped::Again => continue,
                    Stepped::GaveUp(e) => return Err(e),
                };
            let number = progress.number.unwrap_or(CellNumber(0));
            let over = Instant::now() >= until;
            match progress.fate {
                Fate::Settled | Fate::Dead => {
                    if let Some(reply) = progress.reply {
                        let reply = self.deliver(self.kernel.identity.complete(reply));
                        return Ok(Fetched::Settled(Box::new(reply)));
                    }
                    return Err(Error::new(ErrorKind::Protocol, "a settled cell came without its reply"));
                }
                Fate::Running if over => {
                    return Ok(Fetched::Running { number, for_ms: progress.running_ms.unwrap_or(0.0) });
                }
                Fate::Waiting if over => return Ok(Fetched::Waiting { number, ahead: progress.ahead }),
                Fate::Running | Fate::Waiting => {}
                Fate::Unknown => {
                    let what = match which {
                        Which::Last => "there is no cell whose reply could be fetched".to_owned(),
                        Which::Number(n) => format!("there is no reply of cell {n}"),
                        Which::Id(id) => format!("there is no reply of the cell {id}"),
                    };
                    return Err(Error::new(ErrorKind::UnknownCell, what)
                        .with_hint("a reply is kept until a later cell is run after it was delivered"));
                }
            }
        }
    }

    fn watch(&self, hold: Duration) -> Watch {
        Watch {
            hold_ms: millis(hold),
            offset: self.offset,
            stream: self.events.wants_output(),
            lull_ms: millis(LULL),
            tell: self.told.ahead.is_none(),
        }
    }

    /// Ships the cell until its number is known; from then on only asks for it.
    fn next_operation(&self, id: &CellId, request: &Request, wait: Watch, ack: &[CellNumber]) -> Operation {
        let dir = self.kernel.dir();
        match self.number {
            None => Operation::Run { dir, cell: request.clone(), wait, ack: ack.to_vec(), again: self.sent },
            Some(number) => {
                Operation::Wait { dir, id: Some(id.clone()), number: Some(number), wait, ack: Vec::new() }
            }
        }
    }

    /// One step. Output goes to the events; a failure of the transport is told, and answered with a pause.
    async fn step(&mut self, operation: &Operation, bound: Duration, give_up: Instant) -> Result<Stepped> {
        let mut chunks = Vec::new();
        let deadline = Instant::now() + bound;
        let call = self.kernel.call(operation, deadline);
        let answer = self.kernel.link.call(call, &mut |chunk| chunks.push(chunk)).await;
        let answer = match answer {
            Ok(answer) => answer,
            Err(e) if matches!(e.kind(), ErrorKind::Transport | ErrorKind::Deadline) => {
                return self.interrupted(e, give_up).await;
            }
            Err(e) => return Err(e),
        };
        self.sent = true;
        self.pauses.reset();
        if std::mem::take(&mut self.told.cut) {
            self.events.event(Event::Note("connection is back".to_owned()));
        }
        let progress: Progress = link::read_answer(&self.kernel.identity.target, answer)?;
        for chunk in chunks {
            let (records, _) = record::read(&chunk);
            self.records.emit(records, self.events);
        }
        self.offset = self.offset.max(progress.offset);
        if let Some(number) = progress.number {
            self.number = Some(number);
            if !std::mem::replace(&mut self.told.accepted, true) {
                self.events.event(Event::Accepted { number });
            }
        }
        Ok(Stepped::Progress(Box::new(progress)))
    }

    async fn interrupted(&mut self, e: Error, give_up: Instant) -> Result<Stepped> {
        let never_arrived = e.step() == Some(Step::Connect);
        if never_arrived && !self.sent {
            return Err(e);
        }
        self.sent = true;
        let pause = self.pauses.next_pause();
        if Instant::now() + pause >= give_up {
            return Ok(Stepped::GaveUp(e));
        }
        tracing::debug!(error = %e, ?pause, "the transport failed; trying again");
        if !std::mem::replace(&mut self.told.cut, true) {
            self.events.event(Event::Note(format!("connection lost, trying again ({})", e.message())));
        }
        tokio::time::sleep(pause).await;
        Ok(Stepped::Again)
    }

    fn hold(&self, bounds: &Bounds, queued: bool, wait_until: Instant) -> Duration {
        if queued {
            return HOLD.min(wait_until.saturating_duration_since(Instant::now()));
        }
        bounds.timeout.map_or(HOLD, |timeout| HOLD.min(timeout.saturating_add(self.ladder())))
    }

    /// From the deadline of a cell to the moment where its supervisor must have replied.
    fn ladder(&self) -> Duration {
        self.kernel.grace * 2 + Duration::from_secs(5)
    }

    /// When to stop looking for a target that cannot be reached.
    fn give_up(&self, bounds: &Bounds, queued: bool) -> Instant {
        let queue = if queued { bounds.queue } else { Duration::ZERO };
        bounds.started + queue + bounds.timeout.unwrap_or(RECONNECT)
    }

    /// A supervisor that lives and still has not ended a cell long after its deadline is not going to.
    fn overdue(&self, bounds: &Bounds, since: Instant) -> Option<Error> {
        let timeout = bounds.timeout?;
        (since.elapsed() >= timeout + self.ladder()).then(not_answering)
    }

    fn tell_queued(&mut self, ahead: u64) {
        if self.told.ahead != Some(ahead) {
            self.told.ahead = Some(ahead);
            self.events.event(Event::Queued { ahead });
        }
    }

    fn deliver(&mut self, reply: Reply) -> Reply {
        self.records.finish(self.events);
        self.kernel.add_delivered(reply.cell.number);
        reply
    }

    fn lost(&self, id: &CellId, e: &Error) -> Reply {
        let error = ErrorInfo {
            kind: if e.kind() == ErrorKind::Deadline {
                TroubleKind::Deadline
            } else {
                TroubleKind::Transport
            },
            name: "Lost".to_owned(),
            message: format!("no reply in time: {e}"),
            traceback: None,
            hint: Some("the cell may still be running; `farcell result --wait` fetches its reply".to_owned()),
        };
        let cell = CellInfo { id: Some(id.clone()), number: self.number };
        let kernel = self.kernel.identity.kernel(Some(self.kernel.id()), true, State::Unknown, None);
        Reply::without_run(Status::Lost, error, cell, kernel)
    }
}
