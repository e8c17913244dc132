//! A kernel that is a child process.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use farcell_core::cell::clamped;
use farcell_core::kernel::{Chunk, Identity};
use farcell_core::lane::{PATIENCE, Told};
use farcell_core::link::read_answer;
use farcell_core::tools::{self, Desk};
use farcell_core::wire::message::{Controlled, KernelRecord};
use farcell_core::{
    Action, Cell, CellId, CellNumber, Control, Error, ErrorKind, Event, EventSink, Fetched, Instant, Kernel,
    NoEvents, Probe, ReadFile, Reply, Result, Status, Step, TroubleKind, Which,
};
use serde_json::{Value, json};
use tokio::sync::watch;

use super::channel::Channel;
use super::down::PipePost;
use super::follow::{Follow, Names, Standing, Waited};
use super::lane::{Lane, Passage, Sent};
use super::request;

/// How long a question may take.
const QUESTION: Duration = Duration::from_secs(20);
/// How often a cell is asked back that has not begun, and never is given back.
const ASKED_BACK: u32 = 3;
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

    /// Sends a cell the usual way.
    async fn send(&self, cell: &Cell, id: &CellId, desk: Option<&Desk>) -> Result<Sent> {
        let frame = request::frame(id, cell, None, desk.map(Desk::offer))?;
        let share = self.lane.share(&self.channel).await?;
        let sent = Sent::new(share, id.clone(), Arc::clone(&self.channel));
        self.channel.send_frame(frame).await?;
        Ok(sent)
    }

    /// Listens to a cell that is about to be sent.
    fn listen(&self, cell: &Cell) -> Result<(CellId, Follow)> {
        let id = CellId::random()?;
        let follow = Follow::new(self.channel.follow(&id), cell.max_output);
        Ok((id, follow))
    }

    /// Sends a cell and follows it to its reply.
    async fn run_to_end(&self, cell: &Cell, events: &dyn EventSink) -> Result<Reply> {
        let (id, mut follow) = self.listen(cell)?;
        if let Some(mut passage) = self.lane.enter(&id, cell, &self.channel) {
            events.event(Event::Sent { id: id.clone() });
            return self.follow(cell, &id, &mut follow, Some(&mut passage), events).await;
        }
        let (desk, clerk) = tools::open(cell, &self.identity, self.record.id.clone(), &id)?.unzip();
        follow.desk = desk;
        events.event(Event::Sent { id: id.clone() });
        let sent = match self.send(cell, &id, follow.desk.as_ref()).await {
            // Perhaps it lies in the pipe, and is run when the kernel goes on.
            Err(e) if e.kind() == ErrorKind::Deadline => return Ok(follow.lost(&id, &self.names())),
            sent => sent?,
        };
        let outcome = if let Some(clerk) = clerk {
            let post = Arc::new(PipePost::new(Arc::clone(&self.channel), id.clone()));
            tokio::select! {
                // First, as what came of a call is told before the reply that followed it.
                biased;
                never = clerk.serve(post, events) => match never {},
                outcome = self.follow(cell, &id, &mut follow, None, events) => outcome,
            }
        } else {
            self.follow(cell, &id, &mut follow, None, events).await
        };
        if outcome.as_ref().is_ok_and(|reply| reply.status != Status::Lost) {
            sent.settle();
        }
        outcome
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
        let mut asked_back = 0;
        let mut until = begun + clamped(cell.queue_timeout);
        loop {
            if let (Some(started), Some(timeout)) = (follow.started, cell.timeout) {
                until = self.overdue(follow, started, timeout);
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
                        Waited::Garbled => {
                            let _ = passage.hand_over().await;
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
                Waited::Garbled => {
                    // From here on the supervisor is listened to alone.
                    passage = None;
                    if let Some(reply) = self.after_garble(id, follow, events).await {
                        return Ok(reply);
                    }
                }
                Waited::Moment if follow.started.is_none() => {
                    asked_back += 1;
                    match self.withdraw(id).await {
                        _ if asked_back > ASKED_BACK => return Ok(follow.lost(id, &self.names())),
                        Ok(true) => {
                            let (kernel, names) = (self.record.id.clone(), follow.cell(id));
                            let ahead = follow.ahead.unwrap_or(0);
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
                // Its deadline stands still, or has meanwhile.
                Waited::Moment
                    if follow.started.zip(cell.timeout).is_some_and(|(started, timeout)| {
                        Instant::now() < self.overdue(follow, started, timeout)
                    }) => {}
                // It has begun, so that this is a reply and no error.
                Waited::Moment if cell.timeout.is_some() => return Ok(follow.lost(id, &self.names())),
                Waited::Moment | Waited::Changed => {}
            }
        }
    }

    /// When a cell that has begun must have ended, at the latest.
    fn overdue(&self, follow: &Follow, started: Instant, timeout: Duration) -> Instant {
        let ladder = self.grace * 2 + Duration::from_secs(5);
        let Some(desk) = &follow.desk else { return started + clamped(timeout) + ladder };
        let overdue = started + clamped(timeout) + desk.clock().held() + ladder;
        // While it stands still, that moment moves along with us.
        if desk.clock().is_held() { overdue.max(Instant::now() + Duration::from_secs(1)) } else { overdue }
    }

    /// A reply may have drowned in what a cell wrote into the lane. `None` where the supervisor has the cell, or has gone, which is heard next.
    async fn after_garble(&self, id: &CellId, follow: &mut Follow, events: &dyn EventSink) -> Option<Reply> {
        let told = self.channel.control(json!({"do": "probe"}), QUESTION).await.ok()?;
        let runs = told.pointer("/running/id").and_then(Value::as_str) == Some(id.as_str());
        if runs || told.get("waiting").and_then(Value::as_u64) != Some(0) {
            return None;
        }
        // What the supervisor had to say of the cell it has said before that.
        loop {
            match follow.wait_once(Instant::now(), events).await {
                Waited::Reply(raw) => return Some(self.identity.complete(*raw)),
                Waited::Changed => {}
                Waited::Gone => return None,
                Waited::Moment | Waited::Garbled => break,
            }
        }
        let mut reply = follow.lost(id, &self.names());
        if let Some(error) = &mut reply.error {
            error.kind = TroubleKind::Protocol;
            error.message = "the cell is over, and has made its own reply unreadable".to_owned();
            error.hint = Some(
                "something in the kernel writes into its descriptors; the next cell goes another way"
                    .to_owned(),
            );
        }
        Some(reply)
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
        let sent = self.send(cell, &id, None).await?;
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
                // Of a cell in the lane alone.
                Waited::Garbled => {}
            }
        };
        let (tell, standing) = watch::channel(match first {
            Some(raw) => Standing::Settled(Box::new(self.identity.complete(*raw))),
            None => follow.standing(),
        });
        tokio::spawn(follow.listen(id.clone(), self.names(), tell, sent));
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
            Err(e) if e.kind() == ErrorKind::Deadline && stop => {
                self.channel.end();
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
