//! What goes down to a cell that calls tools, as operations of a link.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Deserialize;
use tokio::time::Instant;

use super::kernel::call;
use crate::cell::millis;
use crate::error::{ErrorKind, Result};
use crate::id::{CellId, CellNumber};
use crate::link::{self, Link};
use crate::tools::{Down, Post};
use crate::wire::message::{ClockAction, Controlled, KernelRecord, Operation};

/// How long one try may take. A supervisor that is busy answers a control late.
const TRY: Duration = Duration::from_secs(30);
/// How long the far side waits for a supervisor to stop a clock.
const HOLD: Duration = Duration::from_secs(10);

/// Reaches one cell of a kernel behind a link.
#[derive(Debug)]
pub(super) struct FileCellPost {
    link: Arc<dyn Link>,
    kernel: KernelRecord,
    cell: CellId,
}

impl FileCellPost {
    pub(super) fn new(link: Arc<dyn Link>, kernel: KernelRecord, cell: CellId) -> Self {
        FileCellPost { link, kernel, cell }
    }

    fn clock(&self, number: CellNumber, action: ClockAction, bound: Duration) -> Operation {
        Operation::Clock {
            dir: self.kernel.dir.clone(),
            action,
            number,
            id: self.cell.clone(),
            for_ms: millis(bound),
            hold_ms: millis(HOLD),
        }
    }

    async fn ask<T: for<'de> Deserialize<'de>>(&self, operation: Operation) -> Result<T> {
        link::ask(self.link.as_ref(), call(&self.kernel, &operation, Instant::now() + TRY)).await
    }
}

#[async_trait]
impl Post for FileCellPost {
    async fn send(&self, number: CellNumber, down: &Down) -> Result<bool> {
        #[derive(Deserialize)]
        struct Taken {
            taken: bool,
        }
        let sent = match down {
            Down::Answer { call: of, answer } => {
                let operation = Operation::Answer {
                    dir: self.kernel.dir.clone(),
                    number,
                    id: self.cell.clone(),
                    call: *of,
                    answer: answer.clone(),
                };
                self.ask::<Taken>(operation).await.map(|answer| answer.taken)
            }
            Down::Hold(bound) => {
                let operation = self.clock(number, ClockAction::Hold, *bound);
                self.ask::<Controlled>(operation).await.map(|answer| answer.done)
            }
            Down::Resume => {
                let operation = self.clock(number, ClockAction::Resume, Duration::ZERO);
                self.ask::<Controlled>(operation).await.map(|answer| answer.done)
            }
        };
        match sent {
            // What is dead calls nothing; its end is told elsewhere.
            Err(e)
                if matches!(
                    e.kind(),
                    ErrorKind::KernelDead | ErrorKind::NoKernel | ErrorKind::KernelGone
                ) =>
            {
                Ok(false)
            }
            sent => sent,
        }
    }
}
