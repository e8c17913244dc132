//! One connection per host: opened when it is first needed, shared by all that goes there, opened again after it was lost, by one caller at a time.

use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use farcell_core::remote::Remote;
use farcell_core::{Instant, Pauses};
use tokio::sync::Mutex as AsyncMutex;

use crate::channels::{Channel, Channels};
use crate::failure::{self, Failure};
use crate::live::{Dial, Live, NotStarted};
use crate::options::SshOptions;

/// How long a server may take to agree to a command. One that takes longer gives no sign of life.
const AGREE: Duration = Duration::from_secs(10);
/// How often in a row a connection may turn out to be lost when it is used.
const LOSSES: u32 = 3;

/// A host, and the connection to it if there is one.
pub(crate) struct Host {
    name: String,
    dial: Box<dyn Dial>,
    connect_timeout: Duration,
    current: Mutex<Option<Arc<dyn Live>>>,
    /// One at a time logs in.
    gate: AsyncMutex<Attempts>,
    channels: Arc<Channels>,
}

#[derive(Debug)]
struct Attempts {
    /// How many there have been.
    count: u64,
    /// What the last one came to.
    failure: Option<Failure>,
    pauses: Pauses,
    not_before: Option<Instant>,
}

impl Host {
    pub(crate) fn new(name: String, dial: Box<dyn Dial>, options: &SshOptions) -> Self {
        Host {
            name,
            dial,
            connect_timeout: options.connect_timeout,
            current: Mutex::default(),
            gate: AsyncMutex::new(Attempts {
                count: 0,
                failure: None,
                pauses: Pauses::between(options.first_pause, options.last_pause),
                not_before: None,
            }),
            channels: Channels::new(options.max_sessions),
        }
    }

    /// Starts a command, over a connection that is opened if there is none. What is returned besides is the connection that it runs over, and its
    /// channel, which is free again when that is dropped.
    pub(crate) async fn start(
        &self,
        line: &str,
        deadline: Instant,
    ) -> Result<(Remote, Arc<dyn Live>, Channel), Failure> {
        let mut losses = 0;
        let mut pauses = Pauses::new();
        loop {
            let channel =
                tokio::time::timeout_at(deadline, self.channels.take()).await.map_err(|_| busy())?;
            let live = self.live(deadline).await?;
            let agreed = tokio::time::timeout_at(deadline.min(Instant::now() + AGREE), live.start(line));
            let why = match agreed.await {
                Ok(Ok(remote)) => return Ok((remote, live, channel)),
                Ok(Err(NotStarted::Busy)) => {
                    tracing::debug!(host = %self.name, "the server has no room for another command");
                    channel.was_refused();
                    // The one in the way may be another process's.
                    let pause = tokio::time::timeout(pauses.next_pause(), self.channels.changed());
                    tokio::time::timeout_at(deadline, pause).await.map_err(|_| busy())?.ok();
                    continue;
                }
                Ok(Err(NotStarted::Lost(why))) => why,
                Err(_) => "the server does not answer any more".to_owned(),
            };
            tracing::info!(host = %self.name, why, "the connection is lost");
            live.give_up();
            self.forget(&live);
            losses += 1;
            if losses == LOSSES || Instant::now() >= deadline {
                return Err(Failure::passing(format!("the connection to {} was lost: {why}", self.name)));
            }
        }
    }

    /// The connection, opened if there is none.
    async fn live(&self, deadline: Instant) -> Result<Arc<dyn Live>, Failure> {
        if let Some(live) = self.open() {
            return Ok(live);
        }
        let late = || Failure::passing(format!("there was no time left to connect to {}", self.name));
        let before = self.gate.try_lock().map_or(None, |attempts| Some(attempts.count));
        let mut attempts = tokio::time::timeout_at(deadline, self.gate.lock()).await.map_err(|_| late())?;
        if let Some(live) = self.open() {
            return Ok(live);
        }
        if before != Some(attempts.count)
            && let Some(failure) = &attempts.failure
        {
            // Somebody has just tried, while this one waited.
            return Err(failure.clone());
        }
        if let Some(moment) = attempts.not_before {
            let failure = attempts.failure.clone().unwrap_or_else(late);
            tokio::time::timeout_at(deadline, tokio::time::sleep_until(moment)).await.map_err(|_| failure)?;
        }
        attempts.count += 1;
        match self.try_dial(deadline).await {
            Ok(live) => {
                tracing::info!(host = %self.name, "connected");
                attempts.failure = None;
                attempts.not_before = None;
                attempts.pauses.reset();
                self.channels.forget_limit();
                *self.current() = Some(Arc::clone(&live));
                Ok(live)
            }
            Err(failure) => {
                let pause = attempts.pauses.next_pause();
                tracing::info!(host = %self.name, why = failure.message, ?pause, "no connection");
                attempts.not_before = Some(Instant::now() + pause);
                attempts.failure = Some(failure.clone());
                Err(failure)
            }
        }
    }

    async fn try_dial(&self, deadline: Instant) -> Result<Arc<dyn Live>, Failure> {
        let bound = Instant::now() + self.connect_timeout;
        // A person takes their time.
        let until = if self.dial.may_ask() { deadline } else { deadline.min(bound) };
        let dialled = tokio::time::timeout_at(until, self.dial.dial()).await;
        dialled.map_err(|_| failure::no_answer(&self.name, self.connect_timeout))?
    }

    fn open(&self) -> Option<Arc<dyn Live>> {
        self.current().clone().filter(|live| !live.is_over())
    }

    /// This one is not used any more.
    fn forget(&self, live: &Arc<dyn Live>) {
        let mut current = self.current();
        if current.as_ref().is_some_and(|current| Arc::ptr_eq(current, live)) {
            *current = None;
        }
    }

    fn current(&self) -> MutexGuard<'_, Option<Arc<dyn Live>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Host").field("name", &self.name).field("dial", &self.dial).finish_non_exhaustive()
    }
}

fn busy() -> Failure {
    Failure::passing("all channels to the host were in use for too long")
        .hint("wait until running cells have ended, or raise MaxSessions in its sshd_config")
}
