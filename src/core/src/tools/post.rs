//! What goes down to a cell that calls tools, and how it is sent for certain.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use serde::Serialize;
use serde_json::value::RawValue;

use super::LONGEST_ANSWER;
use super::tool::{ToolFailure, ToolOutput};
use crate::error::{ErrorKind, Result};
use crate::id::CellNumber;
use crate::retry::Pauses;

/// The answer to a call, as JSON text that is made once.
#[derive(Debug, Clone, Serialize)]
#[serde(transparent)]
pub struct AnswerText(Arc<RawValue>);

impl AnswerText {
    /// Its length in bytes.
    #[allow(clippy::len_without_is_empty, reason = "no JSON text is empty")]
    pub fn len(&self) -> usize {
        self.0.get().len()
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        self.0.get()
    }
}

impl PartialEq for AnswerText {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

#[derive(Serialize)]
struct Answer<'a> {
    ok: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<&'a RawValue>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<&'a ToolFailure>,
}

/// The answer that tells `outcome`; one that is too long becomes the failure to say so.
pub(super) fn compose(outcome: &mut Result<ToolOutput, ToolFailure>) -> AnswerText {
    if let Ok(output) = &outcome
        && output.json().len() > LONGEST_ANSWER
    {
        let message =
            format!("the result has {} bytes of JSON, and {LONGEST_ANSWER} is the most", output.json().len());
        *outcome = Err(ToolFailure::new("TooLong", message));
    }
    let answer = match &outcome {
        Ok(output) => Answer { ok: true, value: Some(&output.0), error: None },
        Err(failure) => Answer { ok: false, value: None, error: Some(failure) },
    };
    // Texts and JSON can be written as JSON.
    let text = serde_json::value::to_raw_value(&answer).unwrap_or_else(|_| RawValue::NULL.to_owned());
    AnswerText(text.into())
}

/// Something that goes down to a cell.
#[derive(Debug, Clone, PartialEq)]
pub enum Down {
    /// The answer to a call.
    Answer {
        /// Which call.
        call: u64,
        /// The answer.
        answer: AnswerText,
    },
    /// The cell's deadline stands still, at most for so long.
    Hold(Duration),
    /// It goes on.
    Resume,
}

/// Sends what goes down, once: how is the driver's business.
#[async_trait]
pub trait Post: Send + Sync {
    /// Sends something to the cell with this number; false if that does not run any more.
    ///
    /// # Errors
    /// [`ErrorKind::Transport`] and [`ErrorKind::Deadline`] leave it open whether it arrived.
    async fn send(&self, number: CellNumber, down: &Down) -> Result<bool>;
}

/// Sends something until it is known to have arrived, or never will. Whoever waits for the cell bounds it: with the cell's end this is dropped.
/// Returns how often it may have arrived.
pub(super) async fn deliver(post: &dyn Post, number: CellNumber, down: &Down) -> u32 {
    let mut pauses = Pauses::new();
    let mut arrived = 0;
    loop {
        match post.send(number, down).await {
            Ok(true) => return arrived + 1,
            Ok(false) => return arrived,
            Err(e) if matches!(e.kind(), ErrorKind::Transport | ErrorKind::Deadline) => {
                tracing::debug!(error = %e, "what goes down to a cell is sent again");
                arrived += 1;
                tokio::time::sleep(pauses.next_pause()).await;
            }
            Err(e) => {
                tracing::warn!(error = %e, "an answer to a tool call cannot be sent");
                return arrived;
            }
        }
    }
}
