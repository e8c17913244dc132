//! The link that needs nothing but `Transport::exec`: one command for each step.

use std::borrow::Cow;
use std::sync::Arc;

use async_trait::async_trait;
use bytes::Bytes;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{Call, ChunkSink, Link, read_answer};
use crate::cell::millis;
use crate::error::{Error, ErrorKind, Result, Step};
use crate::id::Nonce;
use crate::runner::{no_python, runner};
use crate::target::Target;
use crate::transport::{Ended, Output, Transport};
use crate::wire::answer::{self, Answer};
use crate::wire::message::{FarError, Operation};

/// A link over the one required ability of a transport.
#[derive(Debug)]
pub struct ExecLink {
    transport: Arc<dyn Transport>,
}

/// What one command brought.
enum Outcome {
    Answer(Vec<Bytes>, Value),
    NeedRunner,
}

impl ExecLink {
    /// A link over `transport`.
    pub fn new(transport: Arc<dyn Transport>) -> Self {
        ExecLink { transport }
    }

    async fn command(&self, call: &Call<'_>, bundle: bool) -> Result<Outcome> {
        let nonce = Nonce::random()?;
        let stdin = stdin(&nonce, call, bundle)?;
        let output = self.transport.exec(&runner().command, stdin, call.deadline).await?;
        let value = match answer::parse(&nonce, &output.stdout) {
            Answer::Whole { chunks, value, .. } => return self.judge(chunks, value),
            Answer::NoPython(tried) => no_python(&tried),
            Answer::Broken => Error::new(ErrorKind::Transport, "the answer was cut short"),
            Answer::Nonsense(why) => {
                Error::new(ErrorKind::Protocol, format!("the answer is whole and makes no sense: {why}"))
            }
            Answer::Absent => absent(&output),
        };
        Err(value)
    }

    fn judge(&self, chunks: Vec<Bytes>, value: Value) -> Result<Outcome> {
        if value.get("ok").and_then(Value::as_bool) == Some(true) {
            return Ok(Outcome::Answer(chunks, value));
        }
        let error = value.get("error").cloned().unwrap_or_default();
        let far: FarError = read_answer(self.transport.target(), error)?;
        if far.code == "need-runner" {
            return Ok(Outcome::NeedRunner);
        }
        Err(far.into())
    }
}

#[async_trait]
impl Link for ExecLink {
    fn target(&self) -> &Target {
        self.transport.target()
    }

    async fn call(&self, call: Call<'_>, chunks: ChunkSink<'_>) -> Result<Value> {
        // A spawn meets new machines; to send the runner along at once costs less than to be told that it is missing.
        let mut bundle = call.base.is_none() || matches!(call.operation, Operation::Spawn { .. });
        let mut operation = Cow::Borrowed(call.operation);
        loop {
            let call = Call { operation: &operation, ..call };
            match self
                .command(&call, bundle)
                .await
                .map_err(|e| e.on(self.target()).at(step(call.operation)))?
            {
                Outcome::Answer(records, value) => {
                    records.into_iter().for_each(chunks);
                    return Ok(value);
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

fn step(operation: &Operation) -> Step {
    match operation {
        Operation::Spawn { .. } => Step::Spawn,
        Operation::Run { .. } => Step::Submit,
        Operation::Wait { .. } => Step::Wait,
        _ => Step::Control,
    }
}

/// What goes to the command's stdin.
fn stdin(nonce: &Nonce, call: &Call<'_>, bundle: bool) -> Result<Bytes> {
    let remaining = call.deadline.saturating_duration_since(Instant::now());
    let mut header = Map::new();
    header.insert("base".into(), json!(call.base));
    header.insert("place".into(), json!({ "dir": call.dir }));
    header.insert("deadline_ms".into(), json!(millis(remaining)));
    let operation = serde_json::to_value(call.operation)
        .map_err(|e| Error::new(ErrorKind::BadInput, "the request cannot be sent").with_source(e))?;
    if let Value::Object(fields) = operation {
        header.extend(fields);
    }
    runner().input(nonce, call.python, header, bundle)
}

/// The command ended without a word of ours: tell what it said instead.
fn absent(output: &Output) -> Error {
    let how = match output.ended {
        Ended::Exit(code) => format!("exit status {code}"),
        Ended::Signal(signal) => format!("signal {signal}"),
        Ended::Unknown => "unknown status".to_owned(),
    };
    let stderr = String::from_utf8_lossy(&output.stderr);
    let said = stderr.trim().lines().rev().take(3).collect::<Vec<_>>();
    let said = said.into_iter().rev().collect::<Vec<_>>().join("; ");
    let message = if said.is_empty() {
        format!("the command ended without an answer ({how})")
    } else {
        format!("the command ended without an answer ({how}): {said}")
    };
    Error::new(ErrorKind::Transport, message)
        .with_hint("the target must be able to run /bin/sh and hand it our stdin; try that command by hand")
}

impl From<FarError> for Error {
    fn from(far: FarError) -> Self {
        let kind = match far.code.as_str() {
            "no-directory" | "unsafe-directory" | "spawn-failed" => ErrorKind::Spawn,
            "kernel-dead" => ErrorKind::KernelDead,
            "no-kernel" => ErrorKind::NoKernel,
            "kernel-gone" => ErrorKind::KernelGone,
            "unknown-cell" => ErrorKind::UnknownCell,
            "busy" | "disk-full" => ErrorKind::Refused,
            "bad-request" => ErrorKind::BadInput,
            _ => ErrorKind::Protocol,
        };
        let error = Error::new(kind, far.message);
        match far.hint {
            Some(hint) => error.with_hint(hint),
            None => error,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(operation: &Operation) -> Call<'_> {
        let deadline = Instant::now() + std::time::Duration::from_secs(5);
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
