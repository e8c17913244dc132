//! The link that needs nothing but `Transport::exec`: one command for each step.

use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use tokio::time::Instant;

use super::header;
use super::places::{Place, Places};
use super::verdict::{Verdict, judge};
use super::{Call, Carrier, ChunkSink, Link, Reported};
use crate::cell::millis;
use crate::error::{Error, ErrorKind, Result, Step};
use crate::id::Nonce;
use crate::runner::{no_python, runner};
use crate::target::Target;
use crate::transport::{Ended, Output, Transport};
use crate::wire::answer::{self, Answer};
use crate::wire::message::Operation;

/// How much of a call's time is left for starting the command and for the way back of its answer.
const ANSWER: Duration = Duration::from_secs(10);

/// How much is looked at of what a command says instead of an answer.
const SPOKEN: usize = 64 * 1024;

/// A link over the one required ability of a transport.
#[derive(Debug)]
pub struct ExecLink {
    transport: Arc<dyn Transport>,
    places: Arc<Places>,
}

/// What one command brought.
enum Outcome {
    Answer(Vec<Bytes>, Reported),
    NeedRunner,
}

impl ExecLink {
    /// A link over `transport`.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        let places = Arc::new(Places::new(transport.capabilities()));
        ExecLink::with_places(transport, places)
    }

    /// A link that shares the channels of `transport` with another.
    pub(super) fn with_places(transport: Arc<dyn Transport>, places: Arc<Places>) -> Self {
        ExecLink { transport, places }
    }

    async fn command(&self, call: &Call<'_>, bundle: bool) -> Result<Outcome> {
        let nonce = Nonce::random()?;
        let stdin = stdin(&nonce, call, bundle)?;
        let output = self.transport.exec(&runner().command, stdin, call.deadline).await?;
        let value = match answer::parse(&nonce, &output.stdout) {
            Answer::Whole { chunks, text, .. } => {
                return Ok(match judge(self.target(), text)? {
                    Verdict::Done(reported) => Outcome::Answer(chunks, reported),
                    Verdict::NeedRunner => Outcome::NeedRunner,
                });
            }
            Answer::NoPython(tried) => no_python(&tried),
            Answer::Broken => Error::new(ErrorKind::Transport, "the answer was cut short"),
            Answer::Nonsense(why) => {
                Error::new(ErrorKind::Protocol, format!("the answer is whole and makes no sense: {why}"))
            }
            Answer::Absent => absent(&output),
        };
        Err(value)
    }

    /// Waits for a channel of the transport. Nothing has reached the target by then.
    async fn place(&self, call: &Call<'_>) -> Result<Place> {
        let is_control = matches!(
            call.operation,
            Operation::Control { .. }
                | Operation::Clock { .. }
                | Operation::Answer { .. }
                | Operation::Probe { .. }
                | Operation::Withdraw { .. }
        );
        tokio::time::timeout_at(call.deadline, self.places.for_command(is_control)).await.map_err(|_| {
            Error::new(ErrorKind::Deadline, "all channels to the target were in use for too long")
                .on(self.target())
                .at(Step::Connect)
                .with_hint("wait until running cells have ended, or interrupt one")
        })
    }
}

#[async_trait]
impl Link for ExecLink {
    fn target(&self) -> &Target {
        self.transport.target()
    }

    fn carrier(&self) -> Carrier {
        let opens = self.transport.capabilities().opens;
        let why = if opens { "no stream is wanted" } else { "the transport cannot keep a command open" };
        Carrier::Commands { why: why.to_owned() }
    }

    async fn call(&self, call: Call<'_>, chunks: ChunkSink<'_>) -> Result<Reported> {
        // A spawn meets new machines; to send the runner along at once costs less than to be told that it is missing.
        let mut bundle = call.base.is_none() || matches!(call.operation, Operation::Spawn { .. });
        let mut operation = Cow::Borrowed(call.operation);
        let _place = self.place(&call).await?;
        shorten_hold(&mut operation, call.deadline);
        loop {
            let call = Call { operation: &operation, ..call };
            match self
                .command(&call, bundle)
                .await
                .map_err(|e| e.on(self.target()).at(header::step(call.operation)))?
            {
                Outcome::Answer(records, reported) => {
                    records.into_iter().for_each(chunks);
                    return Ok(reported);
                }
                Outcome::NeedRunner if bundle => {
                    let e =
                        Error::new(ErrorKind::Protocol, "the far side asks for a runner that it was given");
                    return Err(e.on(self.target()));
                }
                Outcome::NeedRunner => {
                    bundle = true;
                    // The loader answers this before it reads the operation; a module that is missed later may not.
                    if let Operation::Run { again, .. } = operation.to_mut() {
                        *again = true;
                    }
                }
            }
        }
    }
}

/// What has waited for a channel has less time left, and the answer needs its share.
fn shorten_hold(operation: &mut Cow<'_, Operation>, deadline: Instant) {
    let (Operation::Run { wait, .. } | Operation::Wait { wait, .. }) = &**operation else { return };
    let most = millis(deadline.saturating_duration_since(Instant::now()).saturating_sub(ANSWER));
    if wait.hold_ms > most
        && let Operation::Run { wait, .. } | Operation::Wait { wait, .. } = operation.to_mut()
    {
        wait.hold_ms = most;
    }
}

/// What goes to the command's stdin.
fn stdin(nonce: &Nonce, call: &Call<'_>, bundle: bool) -> Result<Bytes> {
    let input = runner().input(nonce, call.python, &header::line(call)?, bundle)?;
    Ok(match call.operation.data() {
        Some(data) => [&input[..], &data[..]].concat().into(),
        None => input,
    })
}

/// The command ended without a word of ours: tell what it said instead.
fn absent(output: &Output) -> Error {
    let how = match output.ended {
        Ended::Exit(code) => format!("exit status {code}"),
        Ended::Signal(signal) => format!("signal {signal}"),
        Ended::Unknown => "unknown status".to_owned(),
    };
    // What starts containers says on stdout why it could not.
    let spoken = if output.stderr.trim_ascii().is_empty() { &output.stdout } else { &output.stderr };
    let spoken = String::from_utf8_lossy(&spoken[spoken.len().saturating_sub(SPOKEN)..]);
    let said = spoken.trim().lines().rev().take(3).collect::<Vec<_>>();
    let said = said.into_iter().rev().collect::<Vec<_>>().join("; ");
    let message = if said.is_empty() {
        format!("the command ended without an answer ({how})")
    } else {
        format!("the command ended without an answer ({how}): {said}")
    };
    Error::new(ErrorKind::Transport, message)
        .with_hint("the target must be able to run /bin/sh and hand it our stdin; try that command by hand")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn call(operation: &Operation) -> Call<'_> {
        let deadline = Instant::now() + Duration::from_secs(5);
        Call { operation, base: None, dir: Some("/x"), python: None, deadline }
    }

    #[tokio::test]
    async fn the_header_is_one_line_with_the_operation_beside_the_frame() {
        let operation = Operation::Probe { dir: "/a\nb".into() };
        let input = stdin(&Nonce::random().unwrap(), &call(&operation), false).unwrap();
        let lines: Vec<_> = std::str::from_utf8(&input).unwrap().lines().collect();
        assert_eq!((lines.len(), lines[1]), (4, ""));
        let value: Value = serde_json::from_str(lines[3]).unwrap();
        assert_eq!(
            (&value["op"], &value["dir"], &value["bundle"]),
            (&json!("probe"), &json!("/a\nb"), &json!(0))
        );
        assert_eq!(value["place"]["dir"], "/x");
    }

    #[tokio::test]
    async fn a_python_with_a_line_break_is_refused() {
        let operation = Operation::List {};
        let call = Call { python: Some("a\nb"), ..call(&operation) };
        assert_eq!(stdin(&Nonce::random().unwrap(), &call, false).unwrap_err().kind(), ErrorKind::BadInput);
    }
}
