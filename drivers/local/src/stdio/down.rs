//! What goes down to a cell that calls tools, as frames.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use farcell_core::cell::millis;
use farcell_core::tools::{AnswerText, Down, Post};
use farcell_core::{CellId, CellNumber, Error, ErrorKind, Result};
use serde::Serialize;
use serde_json::{Value, json};

use super::channel::Channel;

/// How long a supervisor may take to stop a clock.
const OBEY: Duration = Duration::from_secs(10);

/// Reaches one cell of a kernel over pipes.
#[derive(Debug)]
pub(super) struct PipePost {
    channel: Arc<Channel>,
    cell: CellId,
}

/// The payload of a frame `T`.
#[derive(Serialize)]
struct Answer<'a> {
    number: CellNumber,
    id: &'a CellId,
    call: u64,
    answer: &'a AnswerText,
}

impl PipePost {
    pub(super) fn new(channel: Arc<Channel>, cell: CellId) -> Self {
        PipePost { channel, cell }
    }

    async fn clock(&self, mut fields: Value, number: CellNumber) -> Result<bool> {
        fields["number"] = json!(number);
        fields["id"] = json!(self.cell);
        let answer = self.channel.control(fields, OBEY).await?;
        Ok(answer.get("done").and_then(Value::as_bool).unwrap_or(false))
    }
}

#[async_trait]
impl Post for PipePost {
    async fn send(&self, number: CellNumber, down: &Down) -> Result<bool> {
        let sent = match down {
            Down::Answer { call, answer } => {
                let frame = Answer { number, id: &self.cell, call: *call, answer };
                let payload = serde_json::to_vec(&frame).map_err(|e| {
                    Error::new(ErrorKind::BadInput, "the answer cannot be sent").with_source(e)
                })?;
                // A pipe loses nothing: what is written arrives, or the kernel has ended.
                self.channel.send(b'T', &payload).await.map(|()| true)
            }
            Down::Hold(bound) => self.clock(json!({"do": "hold", "for_ms": millis(*bound)}), number).await,
            Down::Resume => self.clock(json!({"do": "resume"}), number).await,
        };
        match sent {
            Err(e) if e.kind() == ErrorKind::KernelDead => Ok(false),
            sent => sent,
        }
    }
}
