//! An operation as the far side reads it: what is known of the target, and the operation's own fields.

use serde::Serialize;
use serde_json::{Map, Value, json};
use tokio::time::Instant;

use super::Call;
use crate::cell::millis;
use crate::error::{Error, ErrorKind, Result, Step};
use crate::wire::message::Operation;

/// The step that an operation is, for messages.
pub(super) fn step(operation: &Operation) -> Step {
    match operation {
        Operation::Spawn { .. } => Step::Spawn,
        Operation::Run { .. } => Step::Submit,
        Operation::Wait { .. } => Step::Wait,
        _ => Step::Control,
    }
}

#[derive(Serialize)]
struct Place<'a> {
    dir: Option<&'a str>,
}

#[derive(Serialize)]
struct Known<'a> {
    base: Option<&'a str>,
    place: Place<'a>,
    deadline_ms: u64,
}

fn known<'a>(call: &Call<'a>) -> Known<'a> {
    let remaining = call.deadline.saturating_duration_since(Instant::now());
    Known { base: call.base, place: Place { dir: call.dir }, deadline_ms: millis(remaining) }
}

fn cannot(e: serde_json::Error) -> Error {
    Error::new(ErrorKind::BadInput, "the request cannot be sent").with_source(e)
}

/// The fields of a command's header.
pub(super) fn fields(call: &Call<'_>) -> Result<Map<String, Value>> {
    let mut header = Map::new();
    for part in [json!(known(call)), serde_json::to_value(call.operation).map_err(cannot)?] {
        if let Value::Object(fields) = part {
            header.extend(fields);
        }
    }
    Ok(header)
}

/// The same as text, behind `room` bytes that the caller fills in.
pub(super) fn text(call: &Call<'_>, room: usize) -> Result<Vec<u8>> {
    let mut text = Vec::with_capacity(1024);
    text.resize(room, 0);
    serde_json::to_writer(&mut text, &known(call)).map_err(cannot)?;
    // Neither object is empty: between the end of the one and the beginning of the other there is but a comma to be.
    text.pop();
    let joint = text.len();
    serde_json::to_writer(&mut text, call.operation).map_err(cannot)?;
    text[joint] = b',';
    Ok(text)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn both_forms_say_the_same() {
        for operation in [Operation::List {}, Operation::Probe { dir: "/a\nb".into() }] {
            let deadline = Instant::now() + Duration::from_secs(5);
            let call = Call { operation: &operation, base: Some("/b"), dir: None, python: None, deadline };
            let text = text(&call, 3).unwrap();
            let value: Value = serde_json::from_slice(&text[3..]).unwrap();
            assert_eq!(value, Value::Object(fields(&call).unwrap()));
            assert_eq!((&value["base"], &value["deadline_ms"]), (&json!("/b"), &json!(5000)));
            assert!(value["op"].is_string());
        }
    }
}
