//! A kernel that is a child process.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use farcell_core::cell::clamped;
use farcell_core::kernel::{Chunk, Identity};
use farcell_core::lane::{PATIENCE, Told};
use farcell_core::link::read_answer;
use farcell_core::wire::message::{Controlled, KernelRecord, RawReply};
use farcell_core::{
    Action, Cell, CellId, CellInfo, CellNumber, Control, Error, ErrorInfo, ErrorKind, Event, EventSink,
    Fetched, Instant, Kernel, KernelId, KernelInfo, NoEvents, Probe, ReadFile, RecordEvents, Reply, Result,
    State, Status, Step, Tail, TroubleKind, Which,
};
use serde_json::{Value, json};
use tokio::sync::mpsc::Receiver;
use tokio::sync::watch;

use super::channel::{Channel, Heard};
use super::lane::{Lane, Passage, Share};
use super::request;
use crate::process::kill_exact;

/// How long a question may take.
const QUESTION: Duration = Duration::from_secs(20);
/// How many replies nobody waited for are kept.
const KEPT: usize = 64;

/// A kernel over pipes.
#[derive(Debug)]
pub(super) struct StdioKernel {
    channel: Arc<Channel>,
    lane: Lane,
    record: KernelRecord,
    identity: Identity,
    grace: Duration,
    /// Cells that were sent without waiting for their replies, the oldest first.
    submitted: Mutex<VecDeque<Submitted>>,
}

/// A cell whose reply is to be fetched. A task of its own listens to it, as its output would hold up the kernel otherwise.
#[derive(Debug, Clone)]
struct Submitted {
    id: CellId,
    number: CellNumber,
    standing: watch::Receiver<Standing>,
}

/// Where a submitted cell stands.
#[derive(Debug, Clone)]
enum Standing {
    Waiting(u64),
    Running(Instant),
    Settled(Box<Reply>),
}

/// A cell on its way.
#[derive(Debug)]
struct Follow {
    hear: Receiver<Heard>,
    records: RecordEvents,
    seen: Tail,
    number: Option<CellNumber>,
    started: Option<Instant>,
    ahead: u64,
}

/// What ended a wait.
enum Waited {
    Reply(Box<RawReply>),
    /// The cell was accepted or has started: from now on another bound holds.
    Changed,
    /// The moment has come.
    Moment,
    /// The supervisor has gone.
    Gone,
}

impl StdioKernel {
    pub(super) fn new(
        channel: Channel,
        record: KernelRecord,
        lane: Option<Told>,
        identity: Identity,
        grace: Duration,
    ) -> Self {
        let (channel, lane) = (Arc::new(channel), Lane::open(lane));
        StdioKernel { channel, lane, record, identity, grace, submitted: Mutex::default() }
    }

    /// Sends a cell the usual way. Its share has to be kept until the reply is there.
    async fn send(&self, cell: &Cell, id: &CellId) -> Result<Share> {
        let frame = request::frame(id, cell, None)?;
        let share = self.lane.share(&self.channel).await?;
        self.channel.send_frame(frame).await?;
        Ok(share)
    }

    /// Listens to a cell that is about to be sent.
    fn listen(&self, cell: &Cell) -> Result<(CellId, Follow)> {
        let id = CellId::random()?;
        let follow = Follow {
            hear: self.channel.follow(&id),
            records: RecordEvents::default(),
            seen: Tail::new(cell.max_output),
            number: None,
            started: None,
            ahead: 0,
        };
        Ok((id, follow))
    }

    /// Sends a cell and follows it to its reply.
    async fn run_to_end(&self, cell: &Cell, events: &dyn EventSink) -> Result<Reply> {
        let (id, mut follow) = self.listen(cell)?;
        if let Some(mut passage) = self.lane.enter(&id, cell, &self.channel) {
            events.event(Event::Sent { id: id.clone() });
            return self.follow(cell, &id, &mut follow, Some(&mut passage), events).await;
        }
        events.event(Event::Sent { id: id.clone() });
        let _share = match self.send(cell, &id).await {
            // Perhaps it lies in the pipe, and is run when the kernel goes on.
            Err(e) if e.kind() == ErrorKind::Deadline => return Ok(follow.lost(&id, &self.names())),
            sent => sent?,
        };
        self.follow(cell, &id, &mut follow, None, events).await
    }

    /// Follows a cell to its reply within its bounds.
    async fn follow(
        &self,
        cell: &Cell,
        id: &CellId,
        follow: &mut Follow,
        mut passage: Option<&mut Passage>,
        events: &dyn EventSink,
    ) -> Result<Reply> {
        let begun = Instant::now();
        let mut until = begun + clamped(cell.queue_timeout);
        loop {
            if let (Some(started), Some(timeout)) = (follow.started, cell.timeout) {
                until = started + clamped(timeout) + self.grace * 2 + Duration::from_secs(5);
            } else if follow.started.is_some() {
                until = Instant::now() + Duration::from_secs(3600);
            }
            let waited = match passage.as_deref_mut() {
                Some(passage) => {
                    // In the lane it is not for long that nobody but the interpreter knows of it.
                    let until = if passage.is_alone() { until.min(begun + PATIENCE) } else { until };
                    let waited = follow.wait_both(passage, until, events).await;
                    match waited {
                        Waited::Reply(_) | Waited::Gone => passage.settle(),
                        Waited::Moment if passage.is_alone() => {
                            // If it cannot be told any more, it has gone, and that is heard next.
                            let _ = passage.hand_over().await;
                            continue;
                        }
                        Waited::Moment | Waited::Changed => {}
                    }
                    waited
                }
                None => follow.wait_once(until, events).await,
            };
            match waited {
                Waited::Reply(raw) => return Ok(self.identity.complete(*raw)),
                // Also where no start was told: it is told a moment late, and a cell whose fate is unknown is never sent again.
                Waited::Gone => return Ok(follow.died(id, &self.names())),
                Waited::Moment if follow.started.is_none() => {
                    match self.withdraw(id).await {
                        Ok(true) => {
                            let (kernel, names) = (self.record.id.clone(), follow.cell(id));
                            let ahead = follow.ahead;
                            return Ok(self.identity.withdrawn(kernel, names, cell.queue_timeout, ahead));
                        }
                        Ok(false) => until = Instant::now() + QUESTION,
                        // It was sent, and nobody can say what becomes of it.
                        Err(e) if e.kind() == ErrorKind::Deadline => {
                            return Ok(follow.lost(id, &self.names()));
                        }
                        // The pipe is broken: its end is heard next.
                        Err(_) => until = Instant::now() + QUESTION,
                    }
                }
                // It has begun, so that this is a reply and no error.
                Waited::Moment if cell.timeout.is_some() => return Ok(follow.lost(id, &self.names())),
                Waited::Moment | Waited::Changed => {}
            }
        }
    }

    async fn ask(&self, fields: Value, bound: Duration) -> Result<Value> {
        let _share = self.lane.share(&self.channel).await?;
        self.channel.control(fields, bound).await
    }

    fn names(&self) -> Names {
        Names { identity: self.identity.clone(), id: self.record.id.clone() }
    }

    fn submitted(&self) -> MutexGuard<'_, VecDeque<Submitted>> {
        self.submitted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn find(&self, which: &Which) -> Result<Submitted> {
        let submitted = self.submitted();
        let found = match which {
            Which::Last => submitted.back(),
            Which::Number(number) => submitted.iter().find(|s| s.number == *number),
            Which::Id(id) => submitted.iter().find(|s| s.id == *id),
        };
        found
            .cloned()
            .ok_or_else(|| Error::new(ErrorKind::UnknownCell, "there is no such cell to fetch a reply of"))
    }
}

#[async_trait]
impl Kernel for StdioKernel {
    fn record(&self) -> KernelRecord {
        self.record.clone()
    }

    async fn run(&self, cell: &Cell, events: &dyn EventSink) -> Result<Reply> {
        self.run_to_end(cell, events).await.map_err(|e| e.on(&self.identity.target))
    }

    async fn submit(&self, cell: &Cell) -> Result<(CellId, CellNumber)> {
        let (id, mut follow) = self.listen(cell)?;
        let share = self.send(cell, &id).await?;
        let until = Instant::now() + QUESTION;
        let (number, first) = loop {
            match follow.wait_once(until, &NoEvents).await {
                Waited::Reply(raw) => break (raw.cell.number, Some(raw)),
                Waited::Changed => {
                    if let Some(number) = follow.number {
                        break (number, None);
                    }
                }
                Waited::Gone => {
                    let message = "the kernel died before it told whether the cell had begun";
                    return Err(Error::new(ErrorKind::Transport, message).at(Step::Submit));
                }
                Waited::Moment => {
                    return Err(Error::new(ErrorKind::Deadline, "the kernel lives and does not answer"));
                }
            }
        };
        let (tell, standing) = watch::channel(match first {
            Some(raw) => Standing::Settled(Box::new(self.identity.complete(*raw))),
            None => follow.standing(),
        });
        tokio::spawn(follow.listen(id.clone(), self.names(), tell, share));
        let mut submitted = self.submitted();
        if submitted.len() == KEPT {
            submitted.pop_front();
        }
        submitted.push_back(Submitted { id: id.clone(), number, standing });
        Ok((id, number))
    }

    async fn withdraw(&self, id: &CellId) -> Result<bool> {
        let answer = self.ask(json!({"do": "withdraw", "id": id}), QUESTION).await?;
        Ok(answer.get("withdrawn").or_else(|| answer.get("done")).and_then(Value::as_bool).unwrap_or(false))
    }

    async fn fetch(&self, which: &Which, wait: Duration, _: &dyn EventSink) -> Result<Fetched> {
        let Submitted { number, mut standing, .. } = self.find(which)?;
        let settled = standing.wait_for(|standing| matches!(standing, Standing::Settled(_)));
        // Whether it settled or time is up, what counts is where it stands now.
        let _ = tokio::time::timeout(wait, settled).await;
        let standing = standing.borrow().clone();
        Ok(match standing {
            Standing::Settled(reply) => Fetched::Settled(reply),
            Standing::Running(since) => {
                Fetched::Running { number, for_ms: since.elapsed().as_secs_f64() * 1000.0 }
            }
            Standing::Waiting(ahead) => Fetched::Waiting { number, ahead },
        })
    }

    async fn control(&self, control: Control) -> Result<Controlled> {
        let fields = json!({
            "do": control.action, "number": control.number, "id": control.id, "if_idle": control.if_idle,
        });
        let stop = control.action == Action::Stop;
        match self.ask(fields, self.grace * 2 + QUESTION).await {
            Ok(answer) => read_answer(&self.identity.target, answer),
            Err(e) if e.kind() == ErrorKind::KernelDead && stop => {
                Ok(Controlled { done: true, detail: None })
            }
            // Its death is seen at the pipe, and all that is left of it is ended then.
            Err(e)
                if e.kind() == ErrorKind::Deadline
                    && stop
                    && kill_exact(self.record.pid, self.record.start_time) =>
            {
                Ok(Controlled { done: true, detail: Some("it did not answer, and was killed".to_owned()) })
            }
            Err(e) => Err(e.on(&self.identity.target)),
        }
    }

    async fn probe(&self) -> Result<Probe> {
        if self.channel.is_over() {
            return Ok(Probe {
                alive: false,
                kernel: Some(self.record()),
                running: None,
                waiting: 0,
                replies: Vec::new(),
            });
        }
        let answer = self.ask(json!({"do": "probe"}), QUESTION).await?;
        read_answer(&self.identity.target, answer)
    }

    async fn read(&self, file: ReadFile, number: Option<CellNumber>, offset: u64, max: u64) -> Result<Chunk> {
        let fields = json!({"file": file, "number": number, "offset": offset, "max": max});
        let _share = self.lane.share(&self.channel).await?;
        let bytes = self.channel.read(fields, QUESTION).await?;
        let next = offset + bytes.len() as u64;
        Ok(Chunk { bytes, next, size: next })
    }

    fn mark_delivered(&self, _: CellNumber) {}

    fn delivered(&self) -> Vec<CellNumber> {
        Vec::new()
    }

    async fn discard(&self) -> Result<()> {
        // The supervisor takes its directory with it.
        Ok(())
    }
}

/// What the replies of a kernel carry.
struct Names {
    identity: Identity,
    id: KernelId,
}

impl Names {
    fn info(&self, state: State) -> KernelInfo {
        self.identity.kernel(Some(self.id.clone()), true, state, None)
    }
}

impl Follow {
    /// Listens to the end, telling where the cell stands.
    async fn listen(mut self, id: CellId, names: Names, tell: watch::Sender<Standing>, _share: Share) {
        if matches!(*tell.borrow(), Standing::Settled(_)) {
            return;
        }
        loop {
            let until = Instant::now() + Duration::from_secs(3600);
            let standing = match self.wait_once(until, &NoEvents).await {
                Waited::Reply(raw) => Standing::Settled(Box::new(names.identity.complete(*raw))),
                Waited::Gone => Standing::Settled(Box::new(self.died(&id, &names))),
                Waited::Changed | Waited::Moment => self.standing(),
            };
            let over = matches!(standing, Standing::Settled(_));
            tell.send_replace(standing);
            if over {
                return;
            }
        }
    }

    fn standing(&self) -> Standing {
        self.started.map_or(Standing::Waiting(self.ahead), Standing::Running)
    }

    fn cell(&self, id: &CellId) -> CellInfo {
        CellInfo { id: Some(id.clone()), number: self.number }
    }

    /// The supervisor lives and has not ended the cell long after its deadline.
    fn lost(&mut self, id: &CellId, names: &Names) -> Reply {
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
    fn died(&mut self, id: &CellId, names: &Names) -> Reply {
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
    async fn wait_once(&mut self, until: Instant, events: &dyn EventSink) -> Waited {
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
                    self.ahead = ahead;
                    events.event(Event::Queued { ahead });
                    return Waited::Changed;
                }
                Some(Heard::Started(number)) => {
                    self.accept(number, events);
                    self.started = Some(Instant::now());
                    return Waited::Changed;
                }
                Some(Heard::Output(record)) => {
                    self.seen.push(&record);
                    if events.wants_output() {
                        self.records.emit(vec![record], events);
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
        }
    }

    /// The same for a cell in the lane, whose reply may come both ways; the lane's comes first, as it may be the one of a cell that seems to have died.
    async fn wait_both(&mut self, passage: &Passage, until: Instant, events: &dyn EventSink) -> Waited {
        tokio::select! {
            biased;
            reply = passage.reply() => match reply {
                Some(raw) => {
                    self.accept(raw.cell.number, events);
                    self.records.finish(events);
                    Waited::Reply(raw)
                }
                None => Waited::Gone,
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
