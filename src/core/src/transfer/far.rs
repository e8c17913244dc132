//! The far side of a transfer: steps that are asked for again, with growing pauses, where the connection failed.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::{FileSite, TransferOptions};
use crate::error::{Error, ErrorKind, Result, Step};
use crate::link::{Call, Carrier, Link, ask_for_bytes};
use crate::retry::Pauses;
use crate::target::Target;
use crate::wire::message::Operation;

/// How long one step may take: a piece on a slow line, behind others.
const STEP: Duration = Duration::from_secs(300);
/// How often a target is asked that has not answered yet.
const FIRST: u32 = 3;
/// What a slow machine reads in a second, to find a checksum.
const READ: u64 = 10 << 20;

/// A target, and what one transfer knows of it.
#[derive(Debug)]
pub(super) struct Far {
    link: Arc<dyn Link>,
    dir: Option<String>,
    python: Option<String>,
    pub(super) cwd: Option<String>,
    base: OnceLock<String>,
    until: Option<Instant>,
    patience: Duration,
    /// When it last answered.
    heard: Mutex<Option<Instant>>,
}

impl Far {
    pub(super) fn new(site: &FileSite<'_>, options: &TransferOptions) -> Arc<Self> {
        let own = |option: &Option<String>, site: Option<&str>| option.clone().or(site.map(str::to_owned));
        Arc::new(Far {
            link: Arc::clone(site.link),
            dir: own(&options.dir, site.dir),
            python: own(&options.python, site.python),
            cwd: own(&options.cwd, site.cwd),
            base: OnceLock::new(),
            until: options.timeout.map(|timeout| Instant::now() + crate::cell::clamped(timeout)),
            patience: options.patience,
            heard: Mutex::new(None),
        })
    }

    pub(super) fn target(&self) -> &Target {
        self.link.target()
    }

    /// The target has this base directory, with the runner.
    pub(super) fn learn_base(&self, base: Option<String>) {
        if let Some(base) = base {
            // The first one does.
            let _ = self.base.set(base);
        }
    }

    /// Whether each step is a command, which costs much more than a message does.
    pub(super) fn is_by_command(&self) -> bool {
        matches!(self.link.carrier(), Carrier::Commands { .. })
    }

    /// One step whose answer brings no bytes.
    pub(super) async fn ask<T: DeserializeOwned>(&self, operation: &Operation) -> Result<T> {
        self.step(operation, 0).await.map(|(answer, _)| answer)
    }

    /// One step, and the bytes that its answer brings. The far side may have to read `reads` bytes for it.
    ///
    /// A connection that fails is waited for as long as the target has been heard of lately.
    pub(super) async fn step<T: DeserializeOwned>(
        &self,
        operation: &Operation,
        reads: u64,
    ) -> Result<(T, Vec<u8>)> {
        let mut pauses = Pauses::new();
        let mut tries = 0;
        loop {
            tries += 1;
            let now = Instant::now();
            let step = now + STEP + Duration::from_secs(reads / READ);
            let deadline = self.until.map_or(step, |until| until.min(step));
            if self.until.is_some_and(|until| until <= now) {
                return Err(self.too_late());
            }
            let call = Call {
                operation,
                base: self.base.get().map(String::as_str),
                dir: self.dir.as_deref(),
                python: self.python.as_deref(),
                deadline,
            };
            let e = match ask_for_bytes(self.link.as_ref(), call, operation.brings()).await {
                Ok((reported, bytes)) => {
                    *self.heard.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
                    return Ok((reported.read(self.target())?, bytes));
                }
                Err(e) => e,
            };
            let heard = *self.heard.lock().unwrap_or_else(PoisonError::into_inner);
            let pause = pauses.next_pause();
            let again = Instant::now() + pause;
            match heard {
                _ if e.kind() == ErrorKind::Deadline && self.until.is_some_and(|until| until <= again) => {
                    return Err(self.too_late());
                }
                // A target that was never reached is one that cannot be; but a command that it has begun may have been lost.
                None if e.kind() == ErrorKind::Transport
                    && e.step() != Some(Step::Connect)
                    && tries < FIRST =>
                {
                    tracing::debug!(error = %e, ?pause, "the first step of a transfer is tried again");
                    tokio::time::sleep(pause).await;
                }
                Some(heard) if e.kind() == ErrorKind::Transport && again < heard + self.patience => {
                    tracing::debug!(error = %e, ?pause, "a step of a transfer is tried again");
                    tokio::time::sleep(pause).await;
                }
                Some(_) if e.kind() == ErrorKind::Transport => {
                    return Err(
                        e.with_hint("the same transfer, begun again, goes on where this one was cut off")
                    );
                }
                _ => return Err(e),
            }
        }
    }

    fn too_late(&self) -> Error {
        Error::new(ErrorKind::Deadline, "the file was not moved in time")
            .on(self.target())
            .at(Step::Transfer)
            .with_hint("the same transfer, begun again, goes on where this one has come to")
    }
}
