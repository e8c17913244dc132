//! The task of a stream: reads what the courier says, goes on writing where callers could not, asks for signs of life, and ends it all.

use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use serde::Deserialize;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::time::Instant;

use super::End;
use super::channel::{QUIET, Shared};
use crate::id::Nonce;
use crate::link::places::Place;
use crate::transport::Running;
use crate::wire::answer::{self, Answer};
use crate::wire::frame::{self, Frame};
use crate::wire::message::FarError;

/// The same as [`QUIET`] while nobody waits.
const QUIET_IDLE: Duration = Duration::from_secs(30);
/// How long a sign of life may take.
const PATIENCE: Duration = Duration::from_secs(10);
/// The longest frame that is accepted.
const LONGEST_FRAME: usize = 1 << 20;
/// The longest answer that is accepted: both outputs at their longest, and all displays.
const LONGEST_ANSWER: usize = 256 << 20;
/// How much may be said before the greeting: banners, warnings.
const NOISE: usize = 1 << 20;
/// What a courier may send ahead that does not say.
const WINDOW: usize = 1 << 20;
/// What one may send ahead at the most, whatever it says.
const LARGEST_WINDOW: usize = 16 << 20;
/// How much may come that nobody waits for, between two frames that somebody does: more than a call that was given up has left on its way.
const UNWANTED: usize = 256 << 20;
/// What a frame costs besides its bytes.
const FRAME_COST: usize = 64;
/// How much is read at once, at first and when much comes.
const READ: usize = 4 * 1024;
const READ_MUCH: usize = 64 * 1024;

/// What a courier says of itself.
#[derive(Debug, Deserialize)]
struct Greeting {
    pid: i64,
    python: String,
    wake: String,
    window: Option<usize>,
}

pub(super) struct Serving {
    shared: Arc<Shared>,
    stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// The courier, and the channel that it takes for as long as it lives.
    running: (Box<dyn Running>, Place),
    nonce: Nonce,
    /// When the greeting has to be there; `None` once it is.
    greeted_until: Option<Instant>,
    window: usize,
    /// How much has come that nobody waits for.
    unwanted: usize,
    heard: Instant,
    asked: Option<Instant>,
    buffer: BytesMut,
}

impl Serving {
    pub(super) fn new(
        shared: Arc<Shared>,
        stdout: Box<dyn AsyncRead + Send + Unpin>,
        running: (Box<dyn Running>, Place),
        nonce: Nonce,
        until: Instant,
    ) -> Self {
        Serving {
            shared,
            stdout,
            running,
            nonce,
            greeted_until: Some(until),
            window: WINDOW,
            unwanted: 0,
            heard: Instant::now(),
            asked: None,
            buffer: BytesMut::new(),
        }
    }

    /// Serves until the stream is over.
    pub(super) async fn run(mut self) {
        let Err(end) = self.serve().await;
        tracing::debug!(%end, "a stream is over");
        self.shared.finish(end);
    }

    async fn serve(&mut self) -> Result<std::convert::Infallible, End> {
        let timer = tokio::time::sleep_until(self.look_at_clock()?);
        tokio::pin!(timer);
        loop {
            let room = if self.buffer.len() < READ { READ } else { READ_MUCH };
            self.buffer.reserve(room);
            tokio::select! {
                biased;
                () = self.shared.closed.notified() => return Err(End::Broken("it was closed".to_owned())),
                e = std::future::poll_fn(|cx| self.shared.outbox().poll(cx)) => {
                    return Err(self.gone(&format!("it cannot be written to: {e}")));
                }
                read = self.stdout.read_buf(&mut self.buffer) => match read {
                    Ok(0) => return Err(self.gone("it ended")),
                    Ok(_) => {
                        self.heard = Instant::now();
                        if self.asked.take().is_some() {
                            self.shared.hurry.notify_one();
                        }
                        self.take()?;
                    }
                    Err(e) => return Err(self.gone(&format!("it cannot be read: {e}"))),
                },
                () = &mut timer => timer.as_mut().reset(self.look_at_clock()?),
                () = self.shared.hurry.notified() => timer.as_mut().reset(self.look_at_clock()?),
            }
        }
    }

    /// Asks for a sign of life when it is time to. Returns when to look again.
    fn look_at_clock(&mut self) -> Result<Instant, End> {
        let now = Instant::now();
        // A long call on a slow line is no silence: the courier has nothing to say before it has all of it.
        let progress = self.shared.outbox().progress();
        let last = progress.map_or(self.heard, |progress| progress.max(self.heard));
        let mut calls = self.shared.calls();
        let mut next = match (self.greeted_until, self.asked) {
            (Some(until), _) => progress.map_or(until, |progress| until.max(progress + PATIENCE)),
            (None, Some(asked)) => last.max(asked) + PATIENCE,
            (None, None) if calls.open.is_empty() => last + QUIET_IDLE,
            (None, None) => last.max(calls.busy_since) + QUIET,
        };
        if next <= now {
            if self.greeted_until.is_some() {
                drop(calls);
                return Err(self.gone("it did not begin in time"));
            }
            if self.asked.is_some() {
                drop(calls);
                return Err(self.gone("there is no sign of life"));
            }
            self.shared.outbox().push_urgent(b'P', 0, &[]);
            self.asked = Some(now);
            next = now + PATIENCE;
        }
        calls.timer = next;
        Ok(next)
    }

    /// Takes what is whole in the buffer.
    fn take(&mut self) -> Result<(), End> {
        if self.greeted_until.is_some() && !self.take_greeting()? {
            return Ok(());
        }
        while let Some(frame) = frame::decode_at_most(&mut self.buffer, LONGEST_FRAME)
            .map_err(|e| End::Broken(e.message().to_owned()))?
        {
            self.dispatch(frame)?;
        }
        Ok(())
    }

    /// True if the greeting is there.
    fn take_greeting(&mut self) -> Result<bool, End> {
        let said = self.buffer.clone().freeze();
        match answer::parse(&self.nonce, &said) {
            // Frames begin behind the line break that closes it.
            Answer::Whole { value, end, .. } if said.len() > end => {
                self.buffer.advance(end + 1);
                self.greet(&value)?;
                self.greeted_until = None;
                self.shared.hurry.notify_one();
                Ok(true)
            }
            Answer::NoPython(tried) => {
                Err(End::Refused(format!("there is no Python 3.6 or newer ({tried})")))
            }
            Answer::Nonsense(why) => Err(End::Refused(format!("its greeting makes no sense: {why}"))),
            _ if said.len() > NOISE => Err(End::Broken("it says much, and no greeting".to_owned())),
            _ => Ok(false),
        }
    }

    fn greet(&mut self, value: &Value) -> Result<(), End> {
        if value.get("ok").and_then(Value::as_bool) != Some(true) {
            let error = value.get("error").map(FarError::deserialize);
            return Err(match error {
                Some(Ok(far)) if far.code == "need-runner" => End::NeedRunner,
                Some(Ok(far)) => End::Refused(far.message),
                _ => End::Refused("it says no, and not why".to_owned()),
            });
        }
        let courier = value.get("courier").map(Greeting::deserialize);
        let Some(Ok(courier)) = courier else {
            return Err(End::Refused("its greeting names no courier".to_owned()));
        };
        let Greeting { pid, python, wake, window } = courier;
        tracing::debug!(pid, python, wake, "a courier is there");
        self.window = window.unwrap_or(WINDOW).min(LARGEST_WINDOW);
        Ok(())
    }

    fn dispatch(&mut self, frame: Frame) -> Result<(), End> {
        let Frame { kind, payload } = frame;
        let Some((number, _)) = payload.split_first_chunk::<4>() else {
            return Err(End::Broken("it sent a frame without a number".to_owned()));
        };
        let number = u32::from_be_bytes(*number);
        let content = payload.slice(4..);
        let mut calls = self.shared.calls();
        let inbox = match kind {
            b'J' => {
                let inbox = calls.open.remove(&number);
                calls.has_answered |= inbox.is_some();
                inbox
            }
            b'O' | b'j' => calls.open.get(&number).cloned(),
            _ => None,
        };
        drop(calls);
        let Some(inbox) = inbox else { return self.drop_unwanted(kind, content.len()) };
        self.unwanted = 0;
        let too_much = match kind {
            // It never sends more than the window ahead; of what it may have meant by that, we are no judges.
            b'O' => (inbox.put_records(content) > 2 * self.window).then_some("it sends more than it may"),
            b'j' => (inbox.put_piece(&content) > LONGEST_ANSWER).then_some("it answers without end"),
            _ => {
                inbox.put_last_piece(content);
                None
            }
        };
        too_much.map_or(Ok(()), |what| Err(End::Broken(what.to_owned())))
    }

    /// It belongs to a call that was given up, or is a sign of life, or makes no sense. Of that there is only so much.
    fn drop_unwanted(&mut self, kind: u8, bytes: usize) -> Result<(), End> {
        if !matches!(kind, b'J' | b'O' | b'j' | b'p') {
            tracing::debug!(kind, "a frame of an unknown kind was dropped");
        }
        self.unwanted += bytes + FRAME_COST;
        if self.unwanted > UNWANTED {
            return Err(End::Broken("it says much that nobody has asked for".to_owned()));
        }
        Ok(())
    }

    /// How it ended, with the last that was said about it.
    fn gone(&self, how: &str) -> End {
        let said = self.running.0.stderr();
        let said = String::from_utf8_lossy(&said);
        let last = said.trim().lines().next_back().unwrap_or_default();
        End::Broken(if last.is_empty() { how.to_owned() } else { format!("{how}: {last}") })
    }
}

impl Drop for Serving {
    /// Also where the runtime ends under it.
    fn drop(&mut self) {
        self.shared.finish(End::Broken("the runtime that carried it has ended".to_owned()));
    }
}
