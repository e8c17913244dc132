//! One cell on its way: sent at most once, followed through lost connections, bounded in every wait.

use std::sync::Arc;
use std::time::Duration;

use tokio::time::Instant;

use super::bounds::{Bounds, HOLD, not_answering};
use super::breath::Breath;
use super::kernel::FileCellKernel;
use super::lane::{Came, Handed, Lane};
use crate::cell::{Cell, clamped, millis};
use crate::error::{Error, ErrorKind, Result, Step};
use crate::event::{Event, EventSink, RecordEvents};
use crate::id::{CellId, CellNumber};
use crate::kernel::{Fetched, Kernel as _, Which};
use crate::reply::{CellInfo, ErrorInfo, Reply, State, Status, TroubleKind};
use crate::retry::Pauses;
use crate::tail::Tail;
use crate::tools::{self, Clerk, Desk};
use crate::wire::message::{Fate, Operation, Progress, RawReply, Request, Watch};
use crate::wire::record::Pieces;

/// What a step may take beyond its hold: sending, starting Python, coming back.
const MARGIN: Duration = Duration::from_secs(20);
/// How long output is collected before it is sent, when it is wanted as it comes.
const LULL: Duration = Duration::from_millis(30);

/// Follows one cell.
pub(super) struct Drive<'a> {
    kernel: &'a FileCellKernel,
    events: &'a dyn EventSink,
    records: RecordEvents,
    /// What has been printed so far; not of a cell that is fetched, whose bound is not known.
    seen: Option<Tail>,
    offset: u64,
    number: Option<CellNumber>,
    pauses: Pauses,
    breath: Breath,
    /// A step has been sent that may have arrived.
    sent: bool,
    told: Told,
    /// Takes the cell's tool calls in.
    desk: Option<Desk>,
    /// The cell was in the lane, and comes out of it in these moments.
    handed: Option<Handed>,
}

/// What the user has been told already.
#[derive(Default)]
struct Told {
    ahead: Option<u64>,
    accepted: bool,
    cut: Option<String>,
}

/// How far one step got.
enum Stepped {
    Progress(Box<Progress>),
    /// The transport failed. It is open whether the step arrived.
    Cut(Error),
}

impl<'a> Drive<'a> {
    pub(super) fn new(kernel: &'a FileCellKernel, events: &'a dyn EventSink) -> Self {
        Drive {
            kernel,
            events,
            records: RecordEvents::default(),
            seen: None,
            offset: 0,
            number: None,
            pauses: Pauses::new(),
            breath: Breath::new(),
            sent: false,
            told: Told::default(),
            desk: None,
            handed: None,
        }
    }

    /// Sends a cell and follows it to its reply.
    pub(super) async fn run(mut self, cell: &Cell) -> Result<Reply> {
        let id = CellId::random()?;
        let mut request = cell.to_request(id.clone());
        let mut bounds = Bounds::new(cell, self.kernel.grace);
        let clerk = self.open_desk(cell, &mut request, &mut bounds)?;
        self.seen = Some(Tail::new(cell.max_output));
        let ack = self.kernel.take_delivered();
        self.events.event(Event::Sent { id: id.clone() });
        if let Some(passage) = self.kernel.lane.as_ref().and_then(|lane| lane.enter(&request, &ack)) {
            self.sent = true;
            self.accept(passage.number());
            match passage.came().await {
                Came::Reply(reply) if self.is_of(Some(&id), &reply) => return Ok(self.complete(*reply)),
                // The page is the cell's to write to, as all of its kernel is. What the supervisor says of it counts.
                Came::Reply(_) => {}
                Came::Files(handed) => self.handed = handed,
            }
        }
        let turn = self.kernel.lane.as_ref().map(Lane::by_link);
        let outcome = self.follow_serving(&id, &request, &mut bounds, &ack, clerk).await;
        if let (Some(turn), Ok(reply)) = (turn, &outcome) {
            turn.end(reply);
        }
        if self.number.is_none() {
            // It may not have arrived, and so neither may what it was to acknowledge.
            self.kernel.add_delivered(ack);
        }
        match outcome {
            Err(e) => self.judge(&id, e),
            reply => reply,
        }
    }

    /// For a cell with tools.
    fn open_desk(
        &mut self,
        cell: &Cell,
        request: &mut Request,
        bounds: &mut Bounds,
    ) -> Result<Option<Clerk>> {
        let opened = tools::open(cell, &self.kernel.identity, self.kernel.id(), &request.id)?;
        let Some((desk, clerk)) = opened else { return Ok(None) };
        request.tools = Some(desk.offer());
        bounds.held_by(Arc::clone(desk.clock()));
        self.desk = Some(desk);
        Ok(Some(clerk))
    }

    /// Follows a cell while its tool calls are carried out.
    async fn follow_serving(
        &mut self,
        id: &CellId,
        request: &Request,
        bounds: &mut Bounds,
        ack: &[CellNumber],
        clerk: Option<Clerk>,
    ) -> Result<Reply> {
        let events = self.events;
        let Some(clerk) = clerk else { return self.follow(id, request, bounds, ack).await };
        let post = self.kernel.post(id);
        tokio::select! {
            // First, as what came of a call is told before the reply that followed it.
            biased;
            never = clerk.serve(post, events) => match never {},
            outcome = self.follow(id, request, bounds, ack) => outcome,
        }
    }

    /// An error is one only where the cell was not run. Whatever else goes wrong is a reply.
    fn judge(&self, id: &CellId, e: Error) -> Result<Reply> {
        match e.kind() {
            // The far side has looked for the cell, and answered that it is not there and never will be.
            ErrorKind::KernelDead => Err(e),
            ErrorKind::KernelGone | ErrorKind::NoKernel if self.sent => {
                let hint = e.hint().filter(|_| e.step() == Some(Step::Connect)).unwrap_or(
                    "it was stopped, or its directory was cleaned away; the next cell starts a new one",
                );
                let error = ErrorInfo {
                    kind: TroubleKind::Signal,
                    name: "KernelGone".to_owned(),
                    message: format!("{} while the cell ran", removal(&e)),
                    traceback: None,
                    hint: Some(hint.to_owned()),
                };
                Ok(self.unanswered(Status::Died, error, id, State::Lost))
            }
            ErrorKind::NoKernel => Err(removed(&e)),
            _ if self.sent => Ok(self.lost(id, &e)),
            _ => Err(e),
        }
    }

    async fn follow(
        &mut self,
        id: &CellId,
        request: &Request,
        bounds: &mut Bounds,
        ack: &[CellNumber],
    ) -> Result<Reply> {
        loop {
            let asked = Instant::now();
            let hold = bounds.hold();
            let operation = self.next_operation(id, request, self.watch(hold), ack);
            let progress = match self.step(&operation, hold + MARGIN).await? {
                Stepped::Progress(progress) => progress,
                Stepped::Cut(e) => match self.pause(e, bounds.is_lost()).await? {
                    Some(e) => return Ok(self.lost(id, &e)),
                    None => continue,
                },
            };
            self.breath.take(asked, hold, &progress, self.offset).await;
            match progress.fate {
                Fate::Settled | Fate::Dead => return self.settled(*progress),
                Fate::Waiting => {
                    bounds.is_waiting(asked, progress.ahead);
                    self.tell_queued(progress.ahead);
                    if (bounds.is_not_taken() || bounds.waited_too_long())
                        && let Some(reply) = self.withdraw(id, bounds, progress.ahead).await?
                    {
                        return Ok(reply);
                    }
                }
                Fate::Running => {
                    bounds.is_running(asked);
                    if bounds.is_overdue() {
                        return Ok(self.lost(id, &not_answering()));
                    }
                }
                Fate::Unknown => return Err(self.unknown(&Which::Id(id.clone()))),
            }
        }
    }

    /// Takes back a cell that has waited for too long; `None` if it has begun in the meantime, or cannot be reached.
    async fn withdraw(&mut self, id: &CellId, bounds: &mut Bounds, ahead: u64) -> Result<Option<Reply>> {
        let untaken = bounds.is_not_taken();
        match self.kernel.withdraw(id).await {
            Ok(true) if untaken => Ok(Some(self.unanswered(
                Status::Refused,
                ErrorInfo::from(&not_answering()),
                id,
                State::Unknown,
            ))),
            Ok(true) => {
                let identity = &self.kernel.identity;
                Ok(Some(identity.withdrawn(self.kernel.id(), self.cell(id), bounds.queue(), ahead)))
            }
            // One that has begun does not wait.
            Ok(false) if bounds.is_kept_waiting() => Ok(Some(self.lost(id, &not_answering()))),
            Ok(false) => {
                bounds.wait_a_little_longer();
                Ok(None)
            }
            Err(e) if is_cut(&e) => {
                // Perhaps it was withdrawn: then the next question shows that it is unknown.
                bounds.wait_a_little_longer();
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// Sends a cell and returns as soon as it is there.
    pub(super) async fn submit(mut self, cell: &Cell) -> Result<(CellId, CellNumber)> {
        let id = CellId::random()?;
        let request = cell.to_request(id.clone());
        let give_up = Instant::now() + MARGIN;
        // Nobody waits for its reply, so it counts as given up.
        let _turn = self.kernel.lane.as_ref().map(Lane::by_link);
        let ack = self.kernel.take_delivered();
        loop {
            let operation = self.next_operation(&id, &request, self.watch(Duration::ZERO), &ack);
            let failed = match self.step(&operation, MARGIN).await {
                Ok(Stepped::Progress(progress)) => match progress.number {
                    Some(number) => return Ok((id, number)),
                    None => Error::new(ErrorKind::Protocol, "an accepted cell came without its number"),
                },
                Ok(Stepped::Cut(e)) => match self.pause(e, give_up).await? {
                    None => continue,
                    Some(e) => e.with_hint(format!("it may have arrived; `farcell result {id}` tells")),
                },
                Err(e) if e.kind() == ErrorKind::NoKernel && !self.sent => removed(&e),
                Err(e) => e,
            };
            self.kernel.add_delivered(ack);
            return Err(failed);
        }
    }

    /// Fetches what there is of a cell that was sent earlier, perhaps by another process.
    pub(super) async fn fetch(mut self, which: &Which, wait: Duration) -> Result<Fetched> {
        let until = Instant::now() + clamped(wait);
        self.sent = true;
        loop {
            let asked = Instant::now();
            let hold = until.saturating_duration_since(asked).min(HOLD);
            let (id, number) = match which {
                Which::Last => (None, self.number),
                Which::Number(n) => (None, Some(*n)),
                Which::Id(id) => (Some(id.clone()), None),
            };
            let wait = self.watch(hold);
            let operation = Operation::Wait { dir: self.kernel.dir(), id, number, wait, ack: Vec::new() };
            let progress = match self.step(&operation, hold + MARGIN).await? {
                Stepped::Progress(progress) => progress,
                Stepped::Cut(e) => match self.pause(e, until).await? {
                    Some(e) => return Err(e),
                    None => continue,
                },
            };
            self.breath.take(asked, hold, &progress, self.offset).await;
            let number = progress.number.unwrap_or(CellNumber(0));
            let over = Instant::now() >= until;
            match progress.fate {
                Fate::Settled | Fate::Dead => {
                    return Ok(Fetched::Settled(Box::new(self.settled(*progress)?)));
                }
                Fate::Running if over => {
                    return Ok(Fetched::Running { number, for_ms: progress.running_ms.unwrap_or(0.0) });
                }
                Fate::Waiting if over => return Ok(Fetched::Waiting { number, ahead: progress.ahead }),
                Fate::Running => {}
                Fate::Waiting => self.tell_queued(progress.ahead),
                Fate::Unknown => return Err(self.unknown(which)),
            }
        }
    }

    fn watch(&self, hold: Duration) -> Watch {
        Watch {
            hold_ms: millis(hold),
            offset: self.offset,
            stream: self.events.wants_output() || self.desk.is_some(),
            lull_ms: millis(LULL),
            tell: self.told.ahead.is_none(),
            gather: self.seen.is_some(),
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

    /// One step. Output goes to the events as it comes.
    async fn step(&mut self, operation: &Operation, bound: Duration) -> Result<Stepped> {
        let call = self.kernel.call(operation, Instant::now() + bound);
        let (records, seen, offset, events) =
            (&mut self.records, &mut self.seen, &mut self.offset, self.events);
        let desk = &mut self.desk;
        let mut pieces = Pieces::default();
        let mut emit = |piece| {
            // What has been told is not asked for again, also where the answer never comes.
            let (whole, used) = pieces.push(&piece);
            *offset = offset.saturating_add(used as u64);
            for record in whole {
                // Told in its turn: what was printed before a call comes before it.
                if desk.as_mut().is_some_and(|desk| desk.take(&record, events)) {
                    continue;
                }
                if let Some(seen) = seen {
                    seen.push(&record);
                }
                if events.wants_output() {
                    records.emit([record], events);
                }
            }
        };
        let answer = match self.kernel.link.call(call, &mut emit).await {
            Ok(answer) => answer,
            Err(e) if is_cut(&e) => {
                if e.step() == Some(Step::Connect) && !self.sent {
                    return Err(e);
                }
                self.sent = true;
                return Ok(Stepped::Cut(e));
            }
            Err(e) => {
                // Other answers say that nothing was done. An accident on the far side, though, may come at any moment.
                self.sent |= matches!(e.kind(), ErrorKind::Protocol | ErrorKind::KernelGone);
                return Err(e);
            }
        };
        self.sent = true;
        self.pauses.reset();
        if self.told.cut.take().is_some() {
            self.events.event(Event::Note("connection is back".to_owned()));
        }
        let progress: Progress = answer.read(&self.kernel.identity.target)?;
        self.offset = self.offset.max(progress.offset);
        self.check(operation, &progress)?;
        if let Some(number) = progress.number {
            self.accept(number);
        }
        Ok(Stepped::Progress(Box::new(progress)))
    }

    /// An answer that is about another cell is none: numbers and ids match, or it is dropped.
    fn check(&self, operation: &Operation, progress: &Progress) -> Result<()> {
        let (id, number) = match operation {
            Operation::Run { cell, .. } => (Some(&cell.id), self.number),
            Operation::Wait { id, number, .. } => (id.as_ref(), *number),
            _ => (None, None),
        };
        let reply = progress.reply.as_ref();
        let told = [progress.number, reply.map(|reply| reply.cell.number)];
        let is_ours = told.iter().flatten().all(|told| number.is_none_or(|number| number == *told))
            && (told[1].is_none() || told[0].is_none() || told[0] == told[1])
            && reply.is_none_or(|reply| self.is_of(id, reply));
        if is_ours {
            return Ok(());
        }
        Err(Error::new(ErrorKind::Protocol, "the far side answered with another cell than the one asked for"))
    }

    /// A request that could not be read has no id in its reply.
    fn is_of(&self, id: Option<&CellId>, reply: &RawReply) -> bool {
        let is_same = |told: &CellId| id.is_none_or(|id| id == told);
        reply.cell.id.as_ref().is_none_or(is_same) && reply.kernel.id == self.kernel.id()
    }

    /// Tells of a cut and waits a moment. Gives the error back if there is no time left to try again.
    async fn pause(&mut self, e: Error, until: Instant) -> Result<Option<Error>> {
        let pause = self.pauses.next_pause();
        let is_final = e.kind() == ErrorKind::Transport && !e.is_temporary();
        if is_final || Instant::now() + pause >= until {
            return Ok(Some(e));
        }
        tracing::debug!(error = %e, ?pause, "the transport failed; trying again");
        if self.told.cut.as_deref() != Some(e.message()) {
            self.told.cut = Some(e.message().to_owned());
            self.events.event(Event::Note(format!("connection lost, trying again ({})", e.message())));
        }
        tokio::time::sleep(pause).await;
        Ok(None)
    }

    fn tell_queued(&mut self, ahead: u64) {
        if ahead > 0 && self.told.ahead != Some(ahead) {
            self.told.ahead = Some(ahead);
            self.events.event(Event::Queued { ahead });
        }
    }

    fn accept(&mut self, number: CellNumber) {
        self.number = Some(number);
        if !std::mem::replace(&mut self.told.accepted, true) {
            self.events.event(Event::Accepted { number });
        }
    }

    fn settled(&mut self, progress: Progress) -> Result<Reply> {
        let reply = progress
            .reply
            .ok_or_else(|| Error::new(ErrorKind::Protocol, "a settled cell came without its reply"))?;
        Ok(self.complete(reply))
    }

    fn complete(&mut self, mut reply: RawReply) -> Reply {
        self.records.finish(self.events);
        if reply.gathered
            && let Some(seen) = &mut self.seen
        {
            (reply.stdout, reply.stderr, _) = seen.take();
        }
        self.kernel.identity.complete(reply)
    }

    fn unknown(&self, which: &Which) -> Error {
        let what = match which {
            Which::Last => "there is no cell whose reply could be fetched".to_owned(),
            Which::Number(n) => format!("there is no reply of cell {n}"),
            Which::Id(id) => format!("there is no reply of the cell {id}"),
        };
        Error::new(ErrorKind::UnknownCell, what)
            .with_hint("a reply is kept until a later cell is run after it was delivered")
    }

    fn lost(&self, id: &CellId, e: &Error) -> Reply {
        let hint =
            e.hint().unwrap_or("the cell may still be running; `farcell result --wait` fetches its reply");
        let error = ErrorInfo::lost(e, format!("no reply in time: {e}"), hint);
        self.unanswered(Status::Lost, error, id, State::Unknown)
    }

    fn unanswered(&self, status: Status, error: ErrorInfo, id: &CellId, state: State) -> Reply {
        let kernel = self.kernel.identity.kernel(Some(self.kernel.id()), true, state, None);
        Reply::without_run(status, error, self.cell(id), kernel)
    }

    fn cell(&self, id: &CellId) -> CellInfo {
        CellInfo { id: Some(id.clone()), number: self.number }
    }
}

/// The error for a kernel that was not there any more when the cell came.
fn removed(e: &Error) -> Error {
    let removed = Error::new(ErrorKind::KernelDead, removal(e));
    if e.step() == Some(Step::Connect) { removed.at(Step::Connect) } else { removed }
}

/// What has become of a kernel that is not there. A transport that has lost all that the kernel lived in knows more than that.
fn removal(e: &Error) -> &str {
    if e.step() == Some(Step::Connect) { e.message() } else { "the kernel was removed" }
}

/// It is open whether what was sent has arrived.
fn is_cut(e: &Error) -> bool {
    matches!(e.kind(), ErrorKind::Transport | ErrorKind::Deadline)
}
