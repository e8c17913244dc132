//! Which stream a call takes: one for each Python that is asked for, opened when it is first needed, and again after it broke, with growing pauses.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::sync::Mutex as AsyncMutex;
use tokio::time::Instant;

use super::End;
use super::channel::Channel;
use super::standing::{self, ForUs};
use crate::cell::millis;
use crate::error::{Error, ErrorKind, Result};
use crate::id::Nonce;
use crate::link::places::Places;
use crate::link::{Call, Carrier};
use crate::retry::Pauses;
use crate::runner::runner;
use crate::transport::{Attached, Transport};
use crate::wire::message::Operation;

/// How long opening a stream may take, with its greeting.
const OPEN: Duration = Duration::from_secs(10);
/// How long a courier that stands there may take to greet where nothing has to be shipped to it.
const STANDING: Duration = Duration::from_secs(3);
/// How many streams there may be. Each is a process on the target; more Pythons than that are not in use at once.
const MOST: usize = 4;
/// Before a stream is tried again.
const FIRST_PAUSE: Duration = Duration::from_millis(500);
const LAST_PAUSE: Duration = Duration::from_secs(60);

/// The streams to one target.
pub(super) struct Streams {
    transport: Arc<dyn Transport>,
    places: Arc<Places>,
    ways: Mutex<Vec<Arc<Way>>>,
    /// Something stands there that has not been tried. It is for one stream; when another host has taken that over, it is left to the other.
    stands: AtomicBool,
    /// Why the last attempt to have one came to nothing.
    trouble: Mutex<Option<String>>,
}

/// The stream for one Python, as far as there is one.
#[derive(Debug)]
struct Way {
    python: Option<String>,
    current: Mutex<Option<Arc<Channel>>>,
    /// One at a time opens it.
    gate: AsyncMutex<Attempts>,
}

#[derive(Debug)]
struct Attempts {
    /// The target has no runner of ours.
    bundle: bool,
    /// The last stream went to what stands there.
    attached: bool,
    pauses: Pauses,
    not_before: Option<Instant>,
}

impl Streams {
    pub(super) fn new(transport: Arc<dyn Transport>, places: Arc<Places>) -> Self {
        let stands = AtomicBool::new(transport.capabilities().attaches);
        Streams { transport, places, ways: Mutex::default(), stands, trouble: Mutex::default() }
    }

    /// Whether a stream needs no command of its own.
    pub(super) fn stands(&self) -> bool {
        self.stands.load(Ordering::Relaxed)
    }

    /// An open stream for the call; `None` if there is none just now.
    pub(super) async fn channel(&self, call: &Call<'_>) -> Option<Arc<Channel>> {
        let way = match self.choose(call) {
            Chosen::Open(channel) => return Some(channel),
            Chosen::Way(way) => way,
            Chosen::None => return None,
        };
        let mut attempts = tokio::time::timeout_at(call.deadline, way.gate.lock()).await.ok()?;
        let last = way.current().take();
        match last.as_ref().map(|channel| channel.end()) {
            Some(None) => {
                // Somebody else has just opened it.
                way.current().clone_from(&last);
                return last;
            }
            Some(Some((end, was_of_use))) => attempts.learn(&end, was_of_use, self),
            None => {}
        }
        if attempts.not_before.is_some_and(|moment| Instant::now() < moment) {
            return None;
        }
        let bundle =
            attempts.bundle || call.base.is_none() || matches!(call.operation, Operation::Spawn { .. });
        attempts.attached = self.stands.swap(false, Ordering::Relaxed);
        let opening = self.open(call, bundle, attempts.attached);
        let opened = tokio::time::timeout_at(call.deadline, opening).await.ok()?;
        match opened {
            Ok(channel) => {
                let channel = Arc::new(channel);
                *way.current() = Some(Arc::clone(&channel));
                Some(channel)
            }
            Err(e) if attempts.attached => {
                tracing::info!(target = %self.transport.target(), error = %e, "what stands there cannot be reached");
                None
            }
            Err(e) => {
                attempts.wait_after(&e, self);
                None
            }
        }
    }

    /// How steps get there just now.
    pub(super) fn carrier(&self) -> Carrier {
        let ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        if ways.iter().any(|way| way.open_channel().is_some()) {
            return Carrier::Stream;
        }
        let why = self.trouble().clone().unwrap_or_else(|| "none was needed by now".to_owned());
        Carrier::Commands { why }
    }

    fn trouble(&self) -> MutexGuard<'_, Option<String>> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A new kernel and the facts need the Python that was asked for. All else is about files, and any courier does.
    fn choose(&self, call: &Call<'_>) -> Chosen {
        let is_picky = is_picky(call);
        let mut ways = self.ways.lock().unwrap_or_else(PoisonError::into_inner);
        let same = ways.iter().find(|way| way.python.as_deref() == call.python).cloned();
        if let Some(channel) = same.as_ref().and_then(|way| way.open_channel()) {
            return Chosen::Open(channel);
        }
        if !is_picky && let Some(channel) = ways.iter().find_map(|way| way.open_channel()) {
            return Chosen::Open(channel);
        }
        let any = if is_picky { None } else { ways.first().cloned() };
        if let Some(way) = same.or(any) {
            return Chosen::Way(way);
        }
        if ways.len() == MOST {
            return Chosen::None;
        }
        let way = Arc::new(Way {
            python: call.python.map(str::to_owned),
            current: Mutex::default(),
            gate: AsyncMutex::new(Attempts {
                bundle: false,
                attached: false,
                pauses: Pauses::between(FIRST_PAUSE, LAST_PAUSE),
                not_before: None,
            }),
        });
        ways.push(Arc::clone(&way));
        Chosen::Way(way)
    }

    async fn open(&self, call: &Call<'_>, bundle: bool, attach: bool) -> Result<Channel> {
        let until = Instant::now() + if attach && !bundle { STANDING } else { OPEN };
        let place = self.places.for_stream().ok_or_else(|| {
            Error::new(ErrorKind::Transport, "all of its channels are in use").on(self.transport.target())
        })?;
        let nonce = Nonce::random()?;
        let late = |_| Error::new(ErrorKind::Deadline, "it could not be opened in time");
        let (duplex, greeting, first) = if attach {
            let attached =
                tokio::time::timeout_at(until, self.transport.attach(until)).await.map_err(late)??;
            let Attached { mut duplex, mark } = attached;
            let stand = json!({ "mark": mark, "python": standing::python_word(call.python) });
            let greeting = greeting(call, &nonce, bundle, Some(stand))?;
            duplex.stdout = Box::new(ForUs::new(duplex.stdout, &mark, &nonce));
            let entry = standing::entry(&mark, &nonce, runner(), call.python, is_picky(call), &greeting);
            (duplex, entry, standing::first_number(&nonce))
        } else {
            let greeting = greeting(call, &nonce, bundle, None)?;
            let opening = tokio::time::timeout_at(until, self.transport.open(&runner().command, until));
            (opening.await.map_err(late)??, greeting, 1)
        };
        tracing::info!(target = %self.transport.target(), bundle, attach, "cells go over a stream");
        Ok(Channel::new(duplex, nonce, greeting, first, until, place))
    }
}

/// What a courier is told first. `stand`: it stays when its host goes.
fn greeting(call: &Call<'_>, nonce: &Nonce, bundle: bool, stand: Option<Value>) -> Result<Bytes> {
    let mut header = Map::new();
    header.insert("op".into(), json!("courier"));
    header.insert("base".into(), json!(call.base));
    header.insert("place".into(), json!({ "dir": call.dir }));
    header.insert("deadline_ms".into(), json!(millis(OPEN)));
    if let Some(stand) = stand {
        header.insert("stand".into(), stand);
    }
    runner().input(nonce, call.python, Value::Object(header).to_string().as_bytes(), bundle)
}

/// Whether it matters which Python does it.
fn is_picky(call: &Call<'_>) -> bool {
    matches!(call.operation, Operation::Spawn { .. } | Operation::Doctor {})
}

impl fmt::Debug for Streams {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Streams").field("transport", &self.transport).finish_non_exhaustive()
    }
}

/// What a call can have.
enum Chosen {
    Open(Arc<Channel>),
    /// A stream that has to be opened first.
    Way(Arc<Way>),
    /// There are enough.
    None,
}

impl Way {
    fn current(&self) -> MutexGuard<'_, Option<Arc<Channel>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn open_channel(&self) -> Option<Arc<Channel>> {
        self.current().clone().filter(|channel| channel.end().is_none())
    }
}

impl Attempts {
    /// Draws conclusions from the end of a stream.
    fn learn(&mut self, end: &End, was_of_use: bool, streams: &Streams) {
        if was_of_use {
            self.pauses.reset();
            self.bundle = false;
        }
        if matches!(end, End::NeedRunner) && !std::mem::replace(&mut self.bundle, true) {
            // The same again at once, and with what it needs.
            streams.stands.store(self.attached, Ordering::Relaxed);
            return;
        }
        if self.attached {
            // One of its own, at once.
            return;
        }
        self.wait_after(end, streams);
    }

    fn wait_after(&mut self, why: &dyn fmt::Display, streams: &Streams) {
        let pause = self.pauses.next_pause();
        self.not_before = Some(Instant::now() + pause);
        *streams.trouble() = Some(why.to_string());
        tracing::info!(target = %streams.transport.target(), %why, ?pause, "no stream; each step is a command until it is tried again");
    }
}
