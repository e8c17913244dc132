//! The link that needs nothing but `Transport::exec`: one command for each step.

use std::sync::Arc;

use async_trait::async_trait;
use bytes::{BufMut as _, Bytes, BytesMut};
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::{Call, ChunkSink, Link, read_answer};
use crate::cell::millis;
use crate::error::{Error, ErrorKind, Result, Step};
use crate::id::Nonce;
use crate::runner::runner;
use crate::target::Target;
use crate::transport::{Ended, Output, Transport};
use crate::wire::answer::{self, Answer};
use crate::wire::message::{FarError, Operation, VERSION};

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
            Answer::Whole(chunks, value) => return self.judge(chunks, value),
            Answer::NoPython(tried) => Error::new(
                ErrorKind::Spawn,
                format!("there is no Python 3.6 or newer ({tried})"),
            )
            .with_hint(
                "install python3 on the target, or name one: --python PATH, or ?python=PATH in the target",
            ),
            Answer::Broken => Error::new(ErrorKind::Transport, "the answer was cut short"),
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
        loop {
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
                // Nothing was done: the loader answers this before it reads the operation.
                Outcome::NeedRunner => bundle = true,
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

/// What goes to the command's stdin, line by line as `docs/protocol.md` has it.
fn stdin(nonce: &Nonce, call: &Call<'_>, bundle: bool) -> Result<Bytes> {
    let runner = runner();
    let python = call.python.unwrap_or("");
    if python.contains(['\n', '\0']) {
        return Err(Error::new(ErrorKind::BadInput, format!("{python:?} is not the path of a Python")));
    }
    let header = header(nonce, call, if bundle { runner.bundle.len() } else { 0 })?;
    let mut bytes =
        BytesMut::with_capacity(header.len() + runner.stage_one.len() + runner.bundle.len() + 256);
    for line in [nonce.as_str(), python, &runner.stage_one, &header] {
        bytes.put_slice(line.as_bytes());
        bytes.put_u8(b'\n');
    }
    if bundle {
        bytes.put_slice(&runner.bundle);
    }
    Ok(bytes.freeze())
}

fn header(nonce: &Nonce, call: &Call<'_>, bundle: usize) -> Result<String> {
    let encode =
        |e: serde_json::Error| Error::new(ErrorKind::BadInput, "the request cannot be sent").with_source(e);
    let remaining = call.deadline.saturating_duration_since(Instant::now());
    let mut header = Map::new();
    header.insert("v".into(), json!(VERSION));
    header.insert("nonce".into(), json!(nonce.as_str()));
    header.insert("runner".into(), json!(runner().hash));
    header.insert("bundle".into(), json!(bundle));
    header.insert("base".into(), json!(call.base));
    header.insert("place".into(), json!({ "dir": call.dir }));
    header.insert("deadline_ms".into(), json!(millis(remaining)));
    if let Value::Object(fields) = serde_json::to_value(call.operation).map_err(encode)? {
        header.extend(fields);
    }
    serde_json::to_string(&header).map_err(encode)
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
            "kernel-dead" | "no-kernel" => ErrorKind::KernelDead,
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
        let nonce = Nonce::random().unwrap();
        let operation = Operation::Probe { dir: "/a\nb".into() };
        let text = header(&nonce, &call(&operation), 7).unwrap();
        assert!(!text.contains('\n'));
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(
            (&value["op"], &value["dir"], &value["bundle"]),
            (&json!("probe"), &json!("/a\nb"), &json!(7))
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
