//! A session: the handle that callers run cells with.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::cell::Cell;
use crate::error::{Error, ErrorKind, Result, Step};
use crate::event::{Event, EventSink, NoEvents};
use crate::id::{CellId, CellNumber, KernelId};
use crate::kernel::{Chunk, Control, Fetched, Kernel, KernelSpec, Which};
use crate::output::{CleanEvents, Cleaner, Secrets};
use crate::registry::{Cause, Key, Lease, Loss, Registry, SessionOptions};
use crate::reply::{KernelInfo, Reply, State, Status};
use crate::transcript::Transcript;
use crate::transfer::{ProgressSink, TransferOptions, Transferred};
use crate::wire::message::{Action, Controlled, Probe, ReadFile};

/// How long an interrupted cell is given before SIGTERM and SIGKILL.
const GRACE: Duration = Duration::from_secs(2);
/// After how long without a cell a kernel ends by itself, even when nobody is left to ask.
const IDLE: Duration = Duration::from_secs(24 * 3600);
/// How often a cell is sent to a new kernel because it met a dead one. Twice in a row is a target in trouble.
const RESPAWNS: u32 = 2;

/// A cell that was sent without waiting for it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Submitted {
    /// Its id, by which its reply can be fetched.
    pub id: CellId,
    /// Its number.
    pub number: CellNumber,
    /// Its kernel.
    pub kernel: KernelId,
    /// What the user should know: that the variables of earlier cells are gone.
    pub note: Option<String>,
}

/// A name under an owner on a target. Its first cell starts a kernel; later ones find it.
#[derive(Debug, Clone)]
pub struct Session {
    registry: Registry,
    key: Key,
    spec: Arc<KernelSpec>,
    /// Clones of a session share what it has learned.
    cleaning: Arc<Mutex<Cleaning>>,
}

/// What a session's output is cleaned with.
#[derive(Debug)]
struct Cleaning {
    secrets: Secrets,
    cleaner: Cleaner,
}

impl Cleaning {
    fn new(secrets: Secrets, raw: bool) -> Self {
        let cleaner = if raw { Cleaner::off() } else { Cleaner::new(&secrets) };
        Cleaning { secrets, cleaner }
    }

    /// Learns the values of variables that a cell sets: they stay for the cells behind it.
    fn learn(&mut self, env: &BTreeMap<String, String>) {
        let mut secrets = self.secrets.clone();
        secrets.add_from(env);
        if secrets != self.secrets {
            *self = Cleaning::new(secrets, !self.cleaner.is_on());
        }
    }
}

impl Session {
    pub(crate) fn new(registry: Registry, key: Key, options: SessionOptions) -> Self {
        let mut secrets = options.secrets;
        secrets.extend(registry.secrets());
        secrets.add_from(&options.env);
        // As a rule a session knows nothing of its own, and what finds it all has been built already.
        let cleaning = if options.raw || secrets != *registry.secrets() {
            Cleaning::new(secrets, options.raw)
        } else {
            Cleaning { secrets, cleaner: registry.cleaner() }
        };
        let spec = KernelSpec {
            target: key.target.clone(),
            owner: key.owner.clone(),
            session: key.session.clone(),
            key: key.digest(),
            python: options.python,
            dir: options.dir,
            cwd: options.cwd,
            env: options.env,
            idle: Some(options.idle.unwrap_or(IDLE)),
            grace: GRACE,
            limits: options.limits,
            preload: options.preload,
            pool: options.pool,
        };
        Session { registry, key, spec: Arc::new(spec), cleaning: Arc::new(Mutex::new(cleaning)) }
    }

    /// What leads to its kernel.
    pub fn key(&self) -> &Key {
        &self.key
    }

    /// What cleans the texts of this session, for those that do not come by a reply or an event.
    pub fn cleaner(&self) -> Cleaner {
        self.cleaning().cleaner.clone()
    }

    fn cleaning(&self) -> MutexGuard<'_, Cleaning> {
        self.cleaning.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The cleaner for what a cell says.
    fn cleaner_for(&self, cell: &Cell) -> Cleaner {
        let mut cleaning = self.cleaning();
        if !cell.env.is_empty() {
            cleaning.learn(&cell.env);
        }
        cleaning.cleaner.clone()
    }

    /// Runs a cell and waits for its reply; what happens meanwhile goes to `events`. Both are cleaned: see [`Cleaner`] and [`SessionOptions::raw`].
    ///
    /// A kernel that turns out to be dead is replaced, and the reply says that the variables are gone. A dropped future leaves the cell running.
    /// Where the target can hold no kernel, and never held one of this session, the cell runs once by itself: [`State::None`], with a note.
    ///
    /// # Errors
    /// Only where the cell was not run.
    pub async fn run(&self, cell: &Cell, events: &dyn EventSink) -> Result<Reply> {
        let cleaner = self.cleaner_for(cell);
        let cleaned = CleanEvents::new(events, cleaner.clone());
        let outcome = tokio::select! {
            biased;
            outcome = self.run_raw(cell, &cleaned) => outcome,
            never = cleaned.let_go_when_quiet() => match never {},
        };
        cleaned.end(outcome.as_ref().ok());
        match outcome {
            Ok(mut reply) => {
                cleaner.reply(&mut reply);
                Ok(reply)
            }
            Err(e) => Err(cleaner.error(e)),
        }
    }

    async fn run_raw(&self, cell: &Cell, events: &dyn EventSink) -> Result<Reply> {
        let cause = Cause::new(cell, events);
        let mut lease = match self.registry.lease(&self.key, &self.spec, cause).await {
            Ok(lease) => lease,
            Err(e) => return self.registry.run_once(&self.key, &self.spec, cell, e, events).await,
        };
        let mut respawns = 0;
        let mut reply = loop {
            match lease.kernel.run(cell, events).await {
                Ok(reply) => break reply,
                Err(e) => self.respawn(&mut lease, e, &mut respawns, cause).await?,
            }
        };
        reply.kernel.reused = lease.reused;
        if let Some(loss) = lease.loss.take() {
            tell_loss(&mut reply, &loss);
        }
        self.has_got(&lease.kernel, &reply).await;
        Ok(reply)
    }

    /// Sends a cell and returns without waiting for it.
    ///
    /// # Errors
    /// Where the cell was not sent, or where it is not known whether it arrived.
    pub async fn submit(&self, cell: &Cell, events: &dyn EventSink) -> Result<Submitted> {
        if cell.tools.is_some() {
            let message = "a cell that nobody waits for cannot call tools: there would be nobody to answer";
            let e = Error::new(ErrorKind::BadInput, message).on(&self.key.target).at(Step::Submit);
            return Err(e.with_hint("run it, or send it without tools"));
        }
        let cleaner = self.cleaner_for(cell);
        let cleaned = CleanEvents::new(events, cleaner.clone());
        self.submit_raw(cell, &cleaned).await.map_err(|e| cleaner.error(e))
    }

    async fn submit_raw(&self, cell: &Cell, events: &dyn EventSink) -> Result<Submitted> {
        let cause = Cause::new(cell, events);
        let mut lease = self.registry.lease(&self.key, &self.spec, cause).await?;
        let mut respawns = 0;
        let (id, number) = loop {
            match lease.kernel.submit(cell).await {
                Ok(sent) => break sent,
                Err(e) => self.respawn(&mut lease, e, &mut respawns, cause).await?,
            }
        };
        let note = lease.loss.take().map(|loss| loss_told(&loss));
        if let Some(note) = &note {
            events.event(Event::Note(note.clone()));
        }
        self.registry.remember(&self.key, &lease.kernel);
        Ok(Submitted { id, number, kernel: lease.kernel.record().id, note })
    }

    /// Fetches the reply of a cell that was sent earlier, waiting at most `wait` for it. A reply that was fetched may be removed when
    /// a later cell is run; [`Session::look`] leaves it alone.
    pub async fn fetch(&self, which: &Which, wait: Duration, events: &dyn EventSink) -> Result<Fetched> {
        let kernel = self.need().await?;
        let cleaner = self.cleaner();
        let cleaned = CleanEvents::new(events, cleaner.clone());
        let outcome = tokio::select! {
            biased;
            outcome = kernel.fetch(which, wait, &cleaned) => outcome,
            never = cleaned.let_go_when_quiet() => match never {},
        };
        let mut fetched = outcome.map_err(|e| cleaner.error(e))?;
        cleaned.end(if let Fetched::Settled(reply) = &fetched { Some(reply) } else { None });
        if let Fetched::Settled(reply) = &mut fetched {
            self.has_got(&kernel, reply).await;
            cleaner.reply(reply);
        }
        Ok(fetched)
    }

    /// Looks where a cell stands, without counting its reply as delivered.
    pub async fn look(&self, which: &Which) -> Result<Fetched> {
        let kernel = self.need().await?;
        let mut fetched = self.cleaned(kernel.fetch(which, Duration::ZERO, &NoEvents).await)?;
        if let Fetched::Settled(reply) = &mut fetched {
            self.cleaner().reply(reply);
        }
        Ok(fetched)
    }

    /// Takes back a cell that has not started. False if it has, or is not known.
    pub async fn withdraw(&self, id: &CellId) -> Result<bool> {
        self.cleaned(self.need().await?.withdraw(id).await)
    }

    /// The caller has this reply: it is acknowledged with a later cell, and a death that it tells is not told again.
    async fn has_got(&self, kernel: &Arc<dyn Kernel>, reply: &Reply) {
        if let Some(number) = reply.cell.number {
            kernel.mark_delivered(number);
        }
        if reply.status == Status::Died && reply.kernel.state == State::Lost {
            self.registry.bury(&self.key, kernel).await;
        } else {
            self.registry.remember(&self.key, kernel);
        }
    }

    /// Interrupts the running cell, or the one with this number. The cell's own reply tells the rest.
    pub async fn interrupt(&self, number: Option<CellNumber>) -> Result<Controlled> {
        self.control(Control { number, ..Control::new(Action::Interrupt) }).await
    }

    /// Interrupts the cell with this id, and no other that may run in its place.
    pub async fn interrupt_cell(&self, id: &CellId) -> Result<Controlled> {
        self.control(Control { id: Some(id.clone()), ..Control::new(Action::Interrupt) }).await
    }

    /// Replaces the interpreter: the kernel stays, its variables go.
    pub async fn reset(&self) -> Result<Controlled> {
        self.control(Control::new(Action::Reset)).await
    }

    async fn control(&self, control: Control) -> Result<Controlled> {
        self.cleaned(self.need().await?.control(control).await)
    }

    /// An error's texts may hold what the target has said.
    fn cleaned<T>(&self, outcome: Result<T>) -> Result<T> {
        outcome.map_err(|e| self.cleaner().error(e))
    }

    /// Stops the kernel, whatever it does. False if there was none.
    pub async fn stop(&self) -> Result<bool> {
        self.cleaned(self.registry.stop(&self.key, Control::new(Action::Stop)).await)
    }

    /// Asks whether the kernel lives and what it does; `None` if there is no kernel.
    pub async fn probe(&self) -> Result<Option<Probe>> {
        match self.cleaned(self.registry.existing(&self.key).await)? {
            Some(kernel) => self.cleaned(kernel.probe().await.map(Some)),
            None => Ok(None),
        }
    }

    /// Reads a piece of one of the kernel's files, as it is there: nothing is cleaned. [`Session::transcript`] cleans what it reads.
    pub async fn read(
        &self,
        file: ReadFile,
        number: Option<CellNumber>,
        offset: u64,
        max: u64,
    ) -> Result<Chunk> {
        self.cleaned(self.need().await?.read(file, number, offset, max).await)
    }

    /// A reader of all that a cell has printed, which tells it to `events`, cleaned.
    pub fn transcript<'a>(&'a self, number: CellNumber, events: &'a dyn EventSink) -> Transcript<'a> {
        Transcript::new(self, number, self.spec.limits.spill_bytes, events)
    }

    /// Puts the file `from` of this machine at `to` on the session's target, as [`Registry::put`] does. What the options leave open, the session's
    /// own say; a relative path begins in the working directory that its kernels are started in, whatever cells have changed it to.
    pub async fn put(
        &self,
        from: &Path,
        to: &str,
        options: TransferOptions,
        progress: ProgressSink<'_>,
    ) -> Result<Transferred> {
        self.cleaned(self.registry.put(&self.key.target, from, to, &self.completed(options), progress).await)
    }

    /// Gets the file `from` of the session's target, and puts it at `to` on this machine; otherwise as [`Session::put`].
    pub async fn get(
        &self,
        from: &str,
        to: &Path,
        options: TransferOptions,
        progress: ProgressSink<'_>,
    ) -> Result<Transferred> {
        self.cleaned(self.registry.get(&self.key.target, from, to, &self.completed(options), progress).await)
    }

    fn completed(&self, options: TransferOptions) -> TransferOptions {
        let KernelSpec { python, dir, cwd, .. } = &*self.spec;
        TransferOptions {
            python: options.python.or_else(|| python.clone()),
            dir: options.dir.or_else(|| dir.clone()),
            cwd: options.cwd.or_else(|| cwd.clone()),
            key: Some(self.key.digest()),
            ..options
        }
    }

    /// The reply for a cell that could not be run, so that callers who want a reply always get one.
    pub fn refusal(&self, error: &Error) -> Reply {
        let state = match error.kind() {
            ErrorKind::Transport | ErrorKind::Deadline => State::Unknown,
            ErrorKind::KernelDead | ErrorKind::KernelGone | ErrorKind::NoKernel => State::Lost,
            ErrorKind::Refused => State::Kept,
            _ => State::None,
        };
        let kernel = KernelInfo {
            id: None,
            target: self.key.target.clone(),
            session: self.key.session.clone(),
            owner: self.key.owner.clone(),
            language: "python".to_owned(),
            reused: false,
            state,
            note: None,
        };
        Reply::from_error(error, kernel)
    }

    /// Takes a new kernel where the old one was found dead; the cell can be sent to it, as the dead one has certainly not run it.
    /// Any other error is given back.
    async fn respawn(&self, lease: &mut Lease, e: Error, respawns: &mut u32, cause: Cause<'_>) -> Result<()> {
        if e.kind() != ErrorKind::KernelDead || *respawns == RESPAWNS {
            return Err(e);
        }
        *respawns += 1;
        tracing::debug!(error = %e, "starting a new kernel");
        self.registry.replace(lease, &self.spec, e.message(), cause).await
    }

    async fn need(&self) -> Result<Arc<dyn Kernel>> {
        self.cleaned(self.registry.existing(&self.key).await)?.ok_or_else(|| {
            Error::new(ErrorKind::UnknownCell, format!("the session {:?} has no kernel", self.key.session))
                .on(&self.key.target)
                .with_hint("`farcell run` starts one; `farcell ps` lists those that are there")
        })
    }
}

fn tell_loss(reply: &mut Reply, loss: &Loss) {
    if reply.kernel.state == State::Fresh {
        reply.kernel.state = State::Lost;
    }
    let told = loss_told(loss);
    reply.kernel.note = Some(match reply.kernel.note.take() {
        Some(note) => format!("{told}; {note}"),
        None => told,
    });
}

fn loss_told(loss: &Loss) -> String {
    let kernel = loss.kernel.as_ref().map_or_else(String::new, |id| format!(" {id}"));
    let why =
        loss.why.strip_prefix("the kernel ").map_or_else(|| loss.why.clone(), |why| format!("it {why}"));
    format!("the variables of earlier cells are gone with the kernel{kernel}: {why}")
}
