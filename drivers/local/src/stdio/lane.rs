//! The lane: a short way to the interpreter, past a supervisor that sleeps. One cell at a time takes it, and only while nothing else is under way.

use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use bytes::BytesMut;
use farcell_core::lane::{Eager, FRAME_MAX, Told};
use farcell_core::wire::frame;
use farcell_core::wire::message::RawReply;
use farcell_core::{Cell, CellId, Result};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::net::unix::pipe::{Receiver, Sender};
use tokio::sync::{Mutex as AsyncMutex, OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock};

use super::channel::Channel;
use super::request;

/// Who may go: everything that the supervisor hears of shares it, a cell in the lane has it alone.
#[derive(Debug)]
pub(super) struct Lane(Arc<RwLock<Ends>>);

/// A part in the way to the supervisor. While there is one, no cell takes the lane.
pub(super) type Share = OwnedRwLockReadGuard<Ends>;

#[derive(Debug)]
pub(super) struct Ends {
    pipes: Option<Pipes>,
    /// A cell in the lane that the supervisor has not been told of, and whose reply has not been heard.
    outstanding: Mutex<Option<Outstanding>>,
}

#[derive(Debug)]
struct Pipes {
    send: Sender,
    seq: u64,
    hear: AsyncMutex<Hear>,
}

#[derive(Debug)]
struct Hear {
    pipe: Receiver,
    eager: Eager,
    buffer: BytesMut,
}

/// How much can be in the pipe of replies to cells that were given up. Beyond that somebody else writes there.
const MUCH: usize = 1 << 20;
const READS: u32 = 1024;
/// How long a supervisor may take to say what became of a cell that was given up.
const OBEY: Duration = Duration::from_secs(10);

/// The content of a frame `L`.
#[derive(Debug, Clone, Serialize)]
struct Outstanding {
    id: CellId,
    seq: u64,
}

/// A cell on its way through the lane. Dropping it hands the cell over, as nobody watches its bounds any more.
#[derive(Debug)]
pub(super) struct Passage {
    hold: Hold,
    id: CellId,
    channel: Arc<Channel>,
}

/// A cell that goes the usual way. Dropped before it is over, it keeps the lane closed until it is, as the next one would overtake it there.
#[derive(Debug)]
pub(super) struct Sent {
    /// `None` once it is over.
    share: Option<Share>,
    id: CellId,
    channel: Arc<Channel>,
}

#[derive(Debug)]
enum Hold {
    /// The lane is the cell's alone.
    Alone(OwnedRwLockWriteGuard<Ends>),
    /// The supervisor knows of the cell; the reply may come either way.
    Shared(Share),
    /// The reply is there.
    Settled,
}

impl Lane {
    /// The lane that was told of, if it can be had; else one that no cell ever takes.
    pub(super) fn open(told: Option<Told>) -> Self {
        let pipes = told.filter(|_| cfg!(target_os = "linux")).and_then(|told| {
            Pipes::open(&told).map_err(|e| tracing::debug!(error = %e, "there is no lane to the kernel")).ok()
        });
        Lane(Arc::new(RwLock::new(Ends { pipes, outstanding: Mutex::default() })))
    }

    /// A part in the way to the supervisor, as soon as no cell has the lane.
    pub(super) async fn share(&self, channel: &Channel) -> Result<Share> {
        let share = Arc::clone(&self.0).read_owned().await;
        share.hand_over(channel).await?;
        Ok(share)
    }

    /// Puts a cell into the lane. `None` where it has to go the usual way.
    pub(super) fn enter(&self, id: &CellId, cell: &Cell, channel: &Arc<Channel>) -> Option<Passage> {
        if cell.reset
            || cell.tools.is_some()
            || cell.cwd.is_some()
            || !cell.env.is_empty()
            || cell.code.len() > FRAME_MAX
        {
            return None;
        }
        let mut ends = Arc::clone(&self.0).try_write_owned().ok()?;
        if ends.outstanding().is_some() {
            return None;
        }
        let pipes = ends.pipes.as_mut()?;
        if !pipes.hear.get_mut().clear() {
            tracing::debug!("something else than replies was in the lane: it is used no more");
            ends.pipes = None;
            return None;
        }
        let seq = pipes.put(id, cell)?;
        ends.set_outstanding(Some(Outstanding { id: id.clone(), seq }));
        Some(Passage { hold: Hold::Alone(ends), id: id.clone(), channel: Arc::clone(channel) })
    }
}

impl Pipes {
    fn open(told: &Told) -> std::io::Result<Self> {
        let (send, hear) = told.open()?;
        let hear =
            Hear { pipe: hear, eager: Eager::default(), buffer: BytesMut::with_capacity(2 * FRAME_MAX) };
        Ok(Pipes { send, seq: 0, hear: AsyncMutex::new(hear) })
    }

    /// Sends a cell, wholly or not at all.
    fn put(&mut self, id: &CellId, cell: &Cell) -> Option<u64> {
        let seq = self.seq + 1;
        let frame = request::frame(id, cell, Some(seq), None).ok()?;
        if frame.len() > FRAME_MAX || self.send.try_write(&frame).ok()? != frame.len() {
            return None;
        }
        self.seq = seq;
        Some(seq)
    }
}

impl Hear {
    /// Drops the replies to cells that were given up. False if there was anything else: a cell's code has been writing here.
    fn clear(&mut self) -> bool {
        for _ in 0..READS {
            if !matches!(self.pipe.try_read_buf(&mut self.buffer), Ok(n) if n > 0) {
                break;
            }
            if self.buffer.len() > MUCH {
                return false;
            }
        }
        while let Ok(Some(_)) = frame::decode_at_most(&mut self.buffer, FRAME_MAX) {}
        self.buffer.is_empty()
    }

    /// The reply to a cell; what came for cells that were given up is skipped. `None` if nothing can come any more. Safe to drop half-way.
    async fn reply(&mut self, id: &CellId) -> Option<Box<RawReply>> {
        loop {
            while let Some(frame) = frame::decode_at_most(&mut self.buffer, FRAME_MAX).ok()? {
                // What is no reply was written by a cell.
                let reply = serde_json::from_slice::<RawReply>(&frame.payload).ok();
                if let Some(reply) = reply.filter(|reply| reply.cell.id.as_ref() == Some(id)) {
                    return Some(Box::new(reply));
                }
                tokio::task::consume_budget().await;
            }
            self.buffer.reserve(2 * FRAME_MAX);
            if !matches!(self.eager.read(&mut self.pipe, &mut self.buffer).await, Ok(n) if n > 0) {
                return None;
            }
        }
    }
}

impl Ends {
    fn outstanding(&self) -> std::sync::MutexGuard<'_, Option<Outstanding>> {
        self.outstanding.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn set_outstanding(&self, outstanding: Option<Outstanding>) {
        *self.outstanding() = outstanding;
    }

    /// Tells the supervisor of a cell in the lane, if there is one that it may not know.
    async fn hand_over(&self, channel: &Channel) -> Result<()> {
        let outstanding = self.outstanding().clone();
        let Some(outstanding) = outstanding else { return Ok(()) };
        channel.send(b'L', json!(outstanding).to_string().as_bytes()).await?;
        // Only now: had we been given up on the way, somebody else would have to tell. To tell twice does no harm.
        self.set_outstanding(None);
        Ok(())
    }
}

impl Passage {
    /// Waits for the reply that comes through the lane, for ever where none comes; `None` if the lane is broken. Safe to drop half-way.
    pub(super) async fn reply(&self) -> Option<Box<RawReply>> {
        let ends = match &self.hold {
            Hold::Alone(ends) => Some(&**ends),
            Hold::Shared(ends) => Some(&**ends),
            Hold::Settled => None,
        };
        match ends.and_then(|ends| ends.pipes.as_ref()) {
            Some(pipes) => pipes.hear.lock().await.reply(&self.id).await,
            None => std::future::pending().await,
        }
    }

    /// Whether the supervisor has not been told.
    pub(super) fn is_alone(&self) -> bool {
        matches!(self.hold, Hold::Alone(_))
    }

    /// Has the supervisor look after the cell.
    pub(super) async fn hand_over(&mut self) -> Result<()> {
        match std::mem::replace(&mut self.hold, Hold::Settled) {
            Hold::Alone(ends) => {
                let share = ends.downgrade();
                let told = share.hand_over(&self.channel).await;
                self.hold = Hold::Shared(share);
                told
            }
            other => {
                self.hold = other;
                Ok(())
            }
        }
    }

    /// The reply is there, whichever way it came.
    pub(super) fn settle(&mut self) {
        if let Hold::Alone(ends) = std::mem::replace(&mut self.hold, Hold::Settled) {
            ends.set_outstanding(None);
        }
        self.channel.forget(&self.id);
    }
}

impl Drop for Passage {
    fn drop(&mut self) {
        let share = match std::mem::replace(&mut self.hold, Hold::Settled) {
            Hold::Alone(ends) => ends.downgrade(),
            Hold::Shared(share) => share,
            Hold::Settled => return,
        };
        leave(share, &self.id, &self.channel);
    }
}

impl Sent {
    /// A cell that is about to be sent.
    pub(super) fn new(share: Share, id: CellId, channel: Arc<Channel>) -> Self {
        Sent { share: Some(share), id, channel }
    }

    /// It is over.
    pub(super) fn settle(mut self) {
        self.share = None;
    }
}

impl Drop for Sent {
    fn drop(&mut self) {
        if let Some(share) = self.share.take() {
            leave(share, &self.id, &self.channel);
        }
    }
}

/// Nobody waits for this cell any more.
fn leave(share: Share, id: &CellId, channel: &Arc<Channel>) {
    channel.forget(id);
    if let Ok(runtime) = tokio::runtime::Handle::try_current() {
        runtime.spawn(see_out(share, id.clone(), Arc::downgrade(channel)));
    }
}

/// Tells the supervisor of a cell in the lane that was given up, as nobody else may come to do so and the cell has a deadline. Keeps the lane until the cell is
/// over: no other may overtake it, lie behind it in the pipe, or have its output taken for the other's.
async fn see_out(share: Share, id: CellId, channel: Weak<Channel>) -> Result<()> {
    let mut pause = Duration::from_millis(10);
    while let Some(channel) = channel.upgrade() {
        share.hand_over(&channel).await?;
        let told = channel.control(json!({"do": "probe"}), OBEY).await?;
        let runs = told.pointer("/running/id").and_then(Value::as_str) == Some(id.as_str());
        if !runs && told.get("waiting").and_then(Value::as_u64) == Some(0) {
            break;
        }
        drop(channel);
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(Duration::from_secs(1));
    }
    Ok(())
}
