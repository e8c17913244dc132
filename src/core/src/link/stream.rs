//! The link that keeps a command open: all steps to a target are messages on one channel to its courier, and commands where there is none.

mod channel;
mod connect;
#[cfg(feature = "fuzzing")]
pub(super) mod fuzzing;
mod inbox;
mod outbox;
mod serve;
mod standing;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use bytes::Bytes;

use self::channel::Failed;
use self::connect::Streams;
use self::outbox::HEAD;
use super::exec::ExecLink;
use super::header;
use super::places::Places;
use super::verdict::{Verdict, judge};
use super::{Call, Carrier, ChunkSink, Link, Reported};
use crate::error::{Error, ErrorKind, Result};
use crate::target::Target;
use crate::transport::Transport;
use crate::wire::file::PutStep;
use crate::wire::message::{Action, Operation};

/// How often a call is put on another stream before it goes by a command: a first stream may find that the target has no runner.
const STREAMS: usize = 3;

/// A link over a stream, as `docs/protocol.md` describes it, with commands to fall back on.
#[derive(Debug)]
pub struct StreamLink {
    streams: Streams,
    commands: Arc<ExecLink>,
    /// Nothing has been asked of it yet.
    is_new: AtomicBool,
}

/// Why a stream is over.
#[derive(Debug)]
enum End {
    /// The target has no runner of ours. Nothing was done.
    NeedRunner,
    /// The courier has refused to begin. Nothing was done.
    Refused(String),
    /// It broke, was closed, or gave no sign of life.
    Broken(String),
}

impl End {
    /// Calls that were sent along have certainly not been looked at.
    fn is_refusal(&self) -> bool {
        matches!(self, End::NeedRunner | End::Refused(_))
    }
}

impl fmt::Display for End {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            End::NeedRunner => f.write_str("the target needs the runner"),
            End::Refused(why) => write!(f, "the stream was refused: {why}"),
            End::Broken(why) => write!(f, "the stream is over: {why}"),
        }
    }
}

impl StreamLink {
    /// A link over `transport`, which opens its stream with the first spawn, or else with the second call.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        let places = Arc::new(Places::new(transport.capabilities()));
        StreamLink {
            streams: Streams::new(Arc::clone(&transport), Arc::clone(&places)),
            commands: Arc::new(ExecLink::with_places(transport, places)),
            is_new: AtomicBool::new(true),
        }
    }

    /// The link by commands alone, which shares the transport's channels with this one.
    pub(crate) fn commands(&self) -> Arc<ExecLink> {
        Arc::clone(&self.commands)
    }

    /// One try over a stream.
    async fn try_stream(&self, call: &Call<'_>, chunks: ChunkSink<'_>) -> Result<Outcome> {
        let Some(channel) = self.streams.channel(call).await else { return Ok(Outcome::ByCommand) };
        let message = header::text(call, HEAD)?;
        let is_data = call.operation.data().is_some();
        match channel.call(message, is_data, call.deadline, chunks).await {
            Ok(answer) => self.read(answer),
            Err(Failed::NotLookedAt(end)) => {
                tracing::debug!(%end, "a call goes another way");
                Ok(if matches!(*end, End::NeedRunner) { Outcome::Again } else { Outcome::ByCommand })
            }
            Err(Failed::Unknown(end)) => Ok(Outcome::Unknown(end)),
            Err(Failed::Deadline) => {
                Err(Error::new(ErrorKind::Deadline, "the target did not answer in time"))
            }
        }
    }

    fn read(&self, answer: Bytes) -> Result<Outcome> {
        Ok(match judge(self.target(), answer)? {
            Verdict::Done(reported) => Outcome::Answer(reported),
            // Its files were removed under a courier that lives.
            Verdict::NeedRunner => Outcome::ByCommand,
        })
    }
}

/// What one try over a stream brought.
enum Outcome {
    Answer(Reported),
    /// Nothing was done; another stream may do it.
    Again,
    /// Nothing was done, and there is no stream for it.
    ByCommand,
    /// It may have been carried out.
    Unknown(Arc<End>),
}

#[async_trait]
impl Link for StreamLink {
    fn target(&self) -> &Target {
        self.commands.target()
    }

    fn carrier(&self) -> Carrier {
        self.streams.carrier()
    }

    async fn call(&self, call: Call<'_>, chunks: ChunkSink<'_>) -> Result<Reported> {
        // A call that stays alone, as that of a program that runs one cell, is quicker by a command than a stream is opened, unless that takes no command.
        let is_first = self.is_new.swap(false, Ordering::Relaxed);
        if is_first && !call.operation.is_followed() && !self.streams.stands() {
            return self.commands.call(call, chunks).await;
        }
        let named = |e: Error| e.on(self.target()).at(header::step(call.operation));
        for _ in 0..STREAMS {
            let mut is_fresh = true;
            let mut take = |piece| {
                is_fresh = false;
                chunks(piece);
            };
            match self.try_stream(&call, &mut take).await.map_err(named)? {
                Outcome::Answer(reported) => return Ok(reported),
                Outcome::Again => {}
                Outcome::ByCommand => break,
                Outcome::Unknown(_) if is_fresh && call.operation.may_be_repeated() => break,
                Outcome::Unknown(end) => {
                    return Err(named(Error::new(ErrorKind::Transport, end.to_string())));
                }
            }
        }
        self.commands.call(call, chunks).await
    }
}

impl Operation {
    /// True if others are sure to come after it.
    fn is_followed(&self) -> bool {
        match self {
            Operation::Spawn { .. } | Operation::Doctor {} => true,
            // One that brings its file with it is alone.
            Operation::Put(PutStep::Open { data, .. }) => data.is_none(),
            _ => false,
        }
    }

    /// True if a second time changes nothing that the first has not: such a call can be asked again where it is not known whether it arrived.
    fn may_be_repeated(&self) -> bool {
        match self {
            Operation::Wait { .. }
            | Operation::Probe { .. }
            | Operation::Ack { .. }
            | Operation::Read { .. }
            | Operation::List {}
            | Operation::Sweep { .. }
            | Operation::Cool {}
            | Operation::Answer { .. }
            | Operation::Doctor {}
            | Operation::Put(_)
            | Operation::Get(_) => true,
            // A hold that was sent twice stands twice.
            Operation::Clock { .. } => false,
            // Which cell is meant has to be said: by now another may run.
            Operation::Control { action: Action::Interrupt, number, id, .. } => {
                number.is_some() || id.is_some()
            }
            Operation::Control { action, .. } => *action == Action::Stop,
            // The driver repeats these in its own way: a cell with `again`, a spawn with another id. What was withdrawn or removed is not there
            // the second time.
            Operation::Run { .. }
            | Operation::Spawn { .. }
            | Operation::Once { .. }
            | Operation::Withdraw { .. }
            | Operation::Remove { .. } => false,
        }
    }
}
