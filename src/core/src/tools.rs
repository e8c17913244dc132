//! Tools: functions of the host that a cell may call (`docs/protocol.md`, "Tools").
//!
//! A [`Tool`] has a name, a doc, a schema of its arguments and an async call. [`Tools`] is a set of them with what may be done with it; it rides with a
//! [`Cell`](crate::Cell). While that runs, a [`Desk`] takes its calls in and decides about each, and a [`Clerk`] carries them out and sends the answers.

mod approval;
mod authority;
mod clerk;
mod desk;
mod post;
mod schema;
mod set;
#[cfg(test)]
mod tests;
mod tool;

pub use approval::{Approver, Decision, HeldClock};
pub use authority::{Authority, Token};
pub use clerk::Clerk;
pub use desk::{Desk, open};
pub use post::{AnswerText, Down, Post};
pub use schema::check_schema;
pub use set::Tools;
pub use tool::{FailureKind, Tool, ToolArguments, ToolCall, ToolFailure, ToolOutput, function};

/// The longest answer that is sent, in bytes of JSON; the far side takes no longer arguments either.
pub const LONGEST_ANSWER: usize = 64 * 1024 * 1024;
