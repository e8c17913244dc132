//! The child process and its two pipes: starts it, writes frames to it, and hands each frame that comes to whom it concerns.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use farcell_core::cell::millis;
use farcell_core::lane::Told;
use farcell_core::link::read_answer;
use farcell_core::runner::{no_python, runner};
use farcell_core::wire::answer::{self, Answer};
use farcell_core::wire::frame;
use farcell_core::wire::message::{FarError, KernelRecord, RawReply, SpawnSpec, Spawned};
use farcell_core::wire::record::{self, Record};
use farcell_core::{CellId, CellNumber, Error, ErrorKind, Instant, KernelId, Nonce, Result, Step, Target};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::sync::{Mutex as AsyncMutex, OwnedMutexGuard, mpsc, oneshot};

use crate::account::{Account, Setting};
use crate::process::{self, Group};

/// How long a kernel whose pipe was closed is given to end with all it started.
const FAREWELL: Duration = Duration::from_secs(2);

/// A write to a pipe of so many bytes comes whole or not at all (`PIPE_BUF`).
const ATOMIC: usize = 4096;
/// How long a supervisor may take to read what it is sent. It does nothing else for long.
const WRITE: Duration = Duration::from_secs(20);

/// How many frames may wait to be heard. A frame holds at most 256 KiB; one that holds more waits alone.
const UNHEARD: usize = 32;
const USUAL: usize = 256 * 1024;

/// How much may be said before the greeting: banners, warnings.
const NOISE: usize = 1 << 20;

/// What a cell's owner hears.
#[derive(Debug)]
pub(super) enum Heard {
    /// It waits behind that many.
    Accepted(CellNumber, u64),
    /// It runs.
    Started(CellNumber),
    /// It printed or displayed something.
    Output(Record),
    /// It has ended.
    Reply(Box<RawReply>),
}

/// The open channel to one supervisor. Dropping it ends the supervisor.
#[derive(Debug)]
pub(super) struct Channel {
    stdin: Arc<AsyncMutex<Option<ChildStdin>>>,
    routes: Arc<Mutex<Routes>>,
    next_ref: AtomicU32,
    /// Ends the reading task, and with it the child.
    alive: Mutex<Option<oneshot::Sender<()>>>,
}

/// Who waits for what. `None` once the supervisor has gone.
#[derive(Debug, Default)]
pub(super) struct Routes {
    over: bool,
    cells: HashMap<CellId, mpsc::Sender<Heard>>,
    numbers: HashMap<CellNumber, CellId>,
    answers: HashMap<u32, oneshot::Sender<Value>>,
    reads: HashMap<u32, oneshot::Sender<Bytes>>,
}

impl Channel {
    /// Starts a supervisor as a child process.
    pub(super) async fn open(
        key: &str,
        spec: &SpawnSpec,
        (python, dir, account): (Option<&str>, Option<&str>, Option<Account>),
        deadline: Instant,
    ) -> Result<(Self, KernelRecord, Option<Told>)> {
        let nonce = Nonce::random()?;
        let greeting = greeting(&nonce, key, spec, python, dir, deadline)?;
        let argv = runner().command.argv().map(str::to_owned);
        let (mut child, group) = process::start(&argv, Setting::of_kernels(account))?;
        let (Some(mut stdin), Some(mut stdout)) = (child.stdin.take(), child.stdout.take()) else {
            return Err(Error::new(ErrorKind::Local, "the child process has no pipes"));
        };
        let errors = tokio::spawn(process::read_tail(child.stderr.take()));
        let mut buffer = BytesMut::new();
        let hello = async {
            // A child that is gone says why on stderr; that counts for more than the broken pipe.
            let _ = stdin.write_all(&greeting).await;
            let _ = stdin.flush().await;
            first_answer(&nonce, &spec.id, &mut stdout, &mut buffer).await
        };
        let hello = tokio::time::timeout_at(deadline, hello)
            .await
            .map_err(|_| Error::new(ErrorKind::Deadline, "the kernel did not start in time"))?;
        let (record, lane) = match hello? {
            Some(told) => told,
            None => {
                let said = tokio::time::timeout(FAREWELL, errors)
                    .await
                    .ok()
                    .and_then(Result::ok)
                    .unwrap_or_default();
                let said = String::from_utf8_lossy(&said);
                let last = said.trim().lines().next_back().unwrap_or("it said nothing").to_owned();
                return Err(Error::new(
                    ErrorKind::Spawn,
                    format!("the kernel ended while it started: {last}"),
                ));
            }
        };
        let routes = Arc::new(Mutex::new(Routes::default()));
        let (alive, dropped) = oneshot::channel();
        let reading = Reading { group, child, kernel: record.id.clone(), stdout, buffer };
        tokio::spawn(reading.run(Arc::clone(&routes), dropped));
        let stdin = Arc::new(AsyncMutex::new(Some(stdin)));
        Ok((
            Channel { stdin, routes, next_ref: AtomicU32::new(1), alive: Mutex::new(Some(alive)) },
            record,
            lane,
        ))
    }

    /// Announces interest in a cell, before it is sent.
    ///
    /// Whoever follows has to listen: what is not heard holds up the kernel, so that a slow listener costs no memory.
    pub(super) fn follow(&self, id: &CellId) -> mpsc::Receiver<Heard> {
        follow(&self.routes, id)
    }

    /// Gives up interest in a cell.
    pub(super) fn forget(&self, id: &CellId) {
        lock(&self.routes).take(id);
    }

    /// Sends a frame.
    pub(super) async fn send(&self, kind: u8, payload: &[u8]) -> Result<()> {
        self.send_frame([&frame::header(kind, payload.len())?, payload].concat()).await
    }

    /// Sends what is a frame already.
    pub(super) async fn send_frame(&self, frame: Vec<u8>) -> Result<()> {
        let len = frame.len();
        let written = async {
            // Here and not in the task: what is sent after a caller has lost interest is behind this in the pipe.
            let stdin = Arc::clone(&self.stdin).lock_owned().await;
            let writing = write(stdin, Arc::clone(&self.routes), frame.into());
            if len <= ATOMIC {
                return writing.await;
            }
            // A caller that loses interest half-way must not leave half a frame in the pipe.
            tokio::spawn(writing).await.unwrap_or_else(|_| Err(gone(None)))
        };
        tokio::time::timeout(WRITE, written).await.unwrap_or_else(|_| Err(not_answering()))
    }

    /// Sends a control and waits for its answer.
    pub(super) async fn control(&self, mut fields: Value, bound: Duration) -> Result<Value> {
        let (tell, hear) = oneshot::channel();
        let reference = self.next_ref.fetch_add(1, Ordering::Relaxed);
        fields["ref"] = json!(reference);
        lock(&self.routes).answers.insert(reference, tell);
        self.send(b'C', fields.to_string().as_bytes()).await?;
        answered(hear, bound).await
    }

    /// Reads a piece of a file of the kernel's.
    pub(super) async fn read(&self, mut fields: Value, bound: Duration) -> Result<Bytes> {
        let (tell, hear) = oneshot::channel();
        let reference = self.next_ref.fetch_add(1, Ordering::Relaxed);
        fields["ref"] = json!(reference);
        lock(&self.routes).reads.insert(reference, tell);
        self.send(b'G', fields.to_string().as_bytes()).await?;
        answered(hear, bound).await
    }

    /// Ends a supervisor that does not answer: the child that was started, and what carries the kernel's id, whatever it says of itself.
    pub(super) fn end(&self) {
        *self.alive.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// True if the supervisor has gone.
    pub(super) fn is_over(&self) -> bool {
        lock(&self.routes).over
    }
}

/// Writes a frame.
async fn write(
    mut stdin: OwnedMutexGuard<Option<ChildStdin>>,
    routes: Arc<Mutex<Routes>>,
    frame: Bytes,
) -> Result<()> {
    let Some(pipe) = stdin.as_mut().filter(|_| !lock(&routes).over) else { return Err(gone(None)) };
    let written = pipe.write_all(&frame).await;
    written.map_err(|e| {
        *stdin = None;
        gone(Some(e))
    })
}

/// The error for a kernel whose end has been seen: what could not be written to it was not run.
fn gone(e: Option<std::io::Error>) -> Error {
    let error = Error::new(ErrorKind::KernelDead, "the kernel has ended").at(Step::Submit);
    match e {
        Some(e) => error.with_source(e),
        None => error,
    }
}

fn not_answering() -> Error {
    Error::new(ErrorKind::Deadline, "the kernel lives and does not answer")
        .with_hint("it may be stopped (SIGSTOP) or starved of CPU; stopping the session ends it")
}

async fn answered<T>(hear: oneshot::Receiver<T>, bound: Duration) -> Result<T> {
    match tokio::time::timeout(bound, hear).await {
        Ok(Ok(answer)) => Ok(answer),
        Ok(Err(_)) => Err(Error::new(ErrorKind::KernelDead, "the kernel has ended")),
        Err(_) => Err(not_answering()),
    }
}

pub(super) fn follow(routes: &Mutex<Routes>, id: &CellId) -> mpsc::Receiver<Heard> {
    let (tell, hear) = mpsc::channel(UNHEARD);
    let mut routes = lock(routes);
    if !routes.over {
        routes.cells.insert(id.clone(), tell);
    }
    hear
}

/// Nobody is told anything any more. Returns how many numbers of cells were remembered.
pub(super) fn close(routes: &Mutex<Routes>) -> usize {
    // Dropping the senders tells everybody who waits.
    let before = std::mem::replace(&mut *lock(routes), Routes { over: true, ..Routes::default() });
    before.numbers.len()
}

fn lock(routes: &Mutex<Routes>) -> MutexGuard<'_, Routes> {
    routes.lock().unwrap_or_else(PoisonError::into_inner)
}

fn greeting(
    nonce: &Nonce,
    key: &str,
    spec: &SpawnSpec,
    python: Option<&str>,
    dir: Option<&str>,
    deadline: Instant,
) -> Result<Bytes> {
    let remaining = deadline.saturating_duration_since(Instant::now());
    let mut header = Map::new();
    header.insert("op".into(), json!("stdio"));
    header.insert("base".into(), Value::Null);
    header.insert("place".into(), json!({ "dir": dir }));
    header.insert("deadline_ms".into(), json!(millis(remaining)));
    header.insert("key".into(), json!(key));
    header.insert("gather".into(), json!(true));
    header.insert("spec".into(), json!(spec));
    runner().input(nonce, python, Value::Object(header).to_string().as_bytes(), true)
}

/// Waits for the first answer, of the kernel that was asked for; what comes behind it stays in `buffer`. `None` if the child ended without one.
pub(super) async fn first_answer(
    nonce: &Nonce,
    id: &KernelId,
    stdout: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
) -> Result<Option<(KernelRecord, Option<Told>)>> {
    let here: Target = "stdio:".parse()?;
    loop {
        let read = stdout.read_buf(buffer).await;
        let seen = buffer.clone().freeze();
        match answer::parse(nonce, &seen) {
            // Frames begin behind the line break that closes the answer.
            Answer::Whole { value, end, .. } if seen.len() > end => {
                buffer.advance(end + 1);
                if value.get("ok").and_then(Value::as_bool) == Some(true) {
                    // A lane that makes no sense is none.
                    let lane = value.get("lane").and_then(|lane| Told::deserialize(lane).ok());
                    let kernel = read_answer::<Spawned>(&here, value)?.kernel;
                    // All that carries this id is ended with it.
                    if kernel.id != *id {
                        return Err(Error::new(
                            ErrorKind::Protocol,
                            "the kernel says that it is another one",
                        ));
                    }
                    return Ok(Some((kernel, lane)));
                }
                let far: FarError = read_answer(&here, value.get("error").cloned().unwrap_or_default())?;
                return Err(far.into());
            }
            Answer::NoPython(tried) => return Err(no_python(&tried)),
            Answer::Nonsense(why) => {
                let message = format!("the kernel's greeting makes no sense: {why}");
                return Err(Error::new(ErrorKind::Protocol, message));
            }
            Answer::Whole { .. } | Answer::Broken | Answer::Absent if seen.len() > NOISE => {
                return Err(Error::new(ErrorKind::Protocol, "the kernel says much, and no greeting"));
            }
            Answer::Whole { .. } | Answer::Broken | Answer::Absent => {}
        }
        if !matches!(read, Ok(n) if n > 0) {
            return Ok(None);
        }
    }
}

/// The task at the reading end.
struct Reading {
    // Dropped in this order: the group must not outlive the child that its number stands for.
    group: Group,
    child: Child,
    kernel: KernelId,
    stdout: ChildStdout,
    buffer: BytesMut,
}

impl Reading {
    /// Reads frames until the supervisor goes or nobody is interested any more; then sees to it that all of it ends.
    async fn run(mut self, routes: Arc<Mutex<Routes>>, mut dropped: oneshot::Receiver<()>) {
        listen(&mut self.stdout, &mut self.buffer, &routes, &mut dropped).await;
        close(&routes);
        // The channel has closed the pipe, or the supervisor has: it ends its own tree. What follows is for one that cannot any more.
        if tokio::time::timeout(FAREWELL, self.child.wait()).await.is_err() {
            self.group.kill();
            // Killed just now; the child is only waited for so that it is no zombie.
            let _ = self.child.wait().await;
        }
        self.group.is_over();
        process::kill_marked(&self.kernel);
    }
}

/// Reads frames, and hands each to whom it concerns, until there are no more or nobody is interested.
pub(super) async fn listen(
    stdout: &mut (impl AsyncRead + Unpin),
    buffer: &mut BytesMut,
    routes: &Mutex<Routes>,
    dropped: &mut oneshot::Receiver<()>,
) {
    loop {
        match frame::decode(buffer) {
            Ok(Some(frame)) => {
                let is_long = frame.payload.len() > USUAL;
                if let Some((listener, heard)) = route(frame.kind, &frame.payload, routes)
                    && !deliver(&listener, heard, is_long, dropped).await
                {
                    return;
                }
                // A flood of frames that nobody wants is no reason to hear nothing else.
                tokio::task::consume_budget().await;
            }
            Ok(None) => tokio::select! {
                read = stdout.read_buf(buffer) => match read {
                    Ok(n) if n > 0 => {}
                    _ => return,
                },
                _ = &mut *dropped => return,
            },
            Err(e) => {
                tracing::warn!(error = %e, "a stdio kernel is given up");
                return;
            }
        }
    }
}

/// Who is to hear of a frame, and what; answers to questions are handed over at once.
fn route(kind: u8, payload: &Bytes, routes: &Mutex<Routes>) -> Option<(mpsc::Sender<Heard>, Vec<Heard>)> {
    let mut routes = lock(routes);
    let understood = match kind {
        b'O' => output(payload, &routes).map(Some),
        b'S' => parse::<Placed>(payload).map(|placed| {
            routes.note(&placed);
            routes.to(&placed.id, vec![Heard::Started(placed.number)])
        }),
        b'A' => parse::<Placed>(payload)
            .map(|placed| routes.to(&placed.id, vec![Heard::Accepted(placed.number, placed.ahead)])),
        b'R' => parse::<RawReply>(payload).map(|reply| {
            let listener = reply.cell.id.as_ref().and_then(|id| routes.take(id));
            listener.map(|listener| (listener, vec![Heard::Reply(Box::new(reply))]))
        }),
        b'D' => parse::<Value>(payload).and_then(|answer| {
            let reference = u32::try_from(answer.get("ref")?.as_u64()?).ok()?;
            // Whoever asked may have given up.
            let _ = routes.answers.remove(&reference)?.send(answer);
            Some(None)
        }),
        b'B' => payload.split_first_chunk::<4>().and_then(|(reference, _)| {
            let _ = routes.reads.remove(&u32::from_be_bytes(*reference))?.send(payload.slice(4..));
            Some(None)
        }),
        _ => None,
    };
    if understood.is_none() {
        tracing::debug!(kind, "a frame that fits nothing was dropped");
    }
    understood.flatten()
}

/// Waits until it is heard or the listener has gone. False if the whole channel has.
async fn deliver(
    listener: &mpsc::Sender<Heard>,
    heard: Vec<Heard>,
    is_long: bool,
    dropped: &mut oneshot::Receiver<()>,
) -> bool {
    // The pieces of a long frame hold on to all of it.
    let places = if is_long { listener.max_capacity() } else { 1 };
    for heard in heard {
        let place = tokio::select! {
            place = listener.reserve_many(places) => place.ok().and_then(|mut places| places.next()),
            _ = &mut *dropped => return false,
        };
        // A listener that has gone does not want it any more.
        let Some(place) = place else { return true };
        place.send(heard);
    }
    true
}

impl Routes {
    /// Remembers the number of a cell that somebody listens to. Its first number counts, and no cell takes another's.
    fn note(&mut self, placed: &Placed) {
        let is_new =
            !self.numbers.contains_key(&placed.number) && !self.numbers.values().any(|id| *id == placed.id);
        if is_new && self.cells.contains_key(&placed.id) {
            self.numbers.insert(placed.number, placed.id.clone());
        }
    }

    /// Takes out who listens to a cell: nothing more is for him.
    fn take(&mut self, id: &CellId) -> Option<mpsc::Sender<Heard>> {
        self.numbers.retain(|_, cell| cell != id);
        self.cells.remove(id)
    }

    fn to(&self, id: &CellId, heard: Vec<Heard>) -> Option<(mpsc::Sender<Heard>, Vec<Heard>)> {
        self.cells.get(id).map(|listener| (listener.clone(), heard))
    }
}

#[derive(Deserialize)]
struct Placed {
    number: CellNumber,
    id: CellId,
    #[serde(default)]
    ahead: u64,
}

fn parse<T: for<'de> Deserialize<'de>>(payload: &[u8]) -> Option<T> {
    serde_json::from_slice(payload).map_err(|e| tracing::debug!(error = %e, "a frame makes no sense")).ok()
}

fn output(payload: &Bytes, routes: &Routes) -> Option<(mpsc::Sender<Heard>, Vec<Heard>)> {
    let (number, _) = payload.split_first_chunk::<4>()?;
    let number = CellNumber(u64::from(u32::from_be_bytes(*number)));
    let id = routes.numbers.get(&number)?;
    let (records, _) = record::read(&payload.slice(4..));
    routes.to(id, records.into_iter().map(Heard::Output).collect())
}
