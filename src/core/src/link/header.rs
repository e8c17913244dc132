//! An operation as the far side reads it: what is known of the target, and the operation's own fields.

use serde::Serialize;
use tokio::time::Instant;

use super::Call;
use crate::cell::millis;
use crate::error::{Error, ErrorKind, Result, Step};
use crate::id::{CellId, CellNumber};
use crate::wire::message::{Operation, Request, Watch};

/// Code from this length on makes a call long for the courier, too. It is more than any header has.
const LONG: usize = 256 * 1024;
/// Room for the length of a request that is not known yet.
const DIGITS: usize = 12;

/// The step that an operation is, for messages.
pub(super) fn step(operation: &Operation) -> Step {
    match operation {
        Operation::Spawn { .. } => Step::Spawn,
        Operation::Run { .. } | Operation::Once { .. } => Step::Submit,
        Operation::Wait { .. } => Step::Wait,
        Operation::Put(_) | Operation::Get(_) => Step::Transfer,
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

/// The fields of a command's header, as the text of an object.
pub(super) fn line(call: &Call<'_>) -> Result<Vec<u8>> {
    let mut text = joined(call, 0, call.operation, 0)?;
    if let Some(data) = call.operation.data() {
        text.pop();
        text.extend_from_slice(format!(",\"bytes\":{}}}", data.len()).as_bytes());
    }
    Ok(text)
}

/// The same as text for the courier, behind `room` bytes that the caller fills in. A long request and the bytes of a file stand behind it.
pub(super) fn text(call: &Call<'_>, room: usize) -> Result<Vec<u8>> {
    match call.operation {
        Operation::Run { dir, cell, wait, ack, again } if cell.code.len() > LONG => {
            let run = LongRun { op: "run", dir, id: &cell.id, wait, ack, again: *again };
            let mut text = joined(call, room, &run, cell.code.len() + cell.code.len() / 8)?;
            add_request(&mut text, cell)?;
            Ok(text)
        }
        Operation::Answer { dir, number, id, call: tool_call, answer } if answer.len() > LONG => {
            let answer_bytes = answer.len();
            let long = LongAnswer { op: "answer", dir, number: *number, id, call: *tool_call, answer_bytes };
            let mut text = joined(call, room, &long, answer_bytes)?;
            text.push(b'\n');
            text.extend_from_slice(answer.as_str().as_bytes());
            Ok(text)
        }
        operation => {
            let Some(data) = operation.data() else { return joined(call, room, operation, 0) };
            let mut text = joined(call, room, operation, data.len())?;
            text.pop();
            text.extend_from_slice(format!(",\"bytes\":{}}}\n", data.len()).as_bytes());
            text.extend_from_slice(data);
            Ok(text)
        }
    }
}

/// A `run` without its request.
#[derive(Serialize)]
struct LongRun<'a> {
    op: &'static str,
    dir: &'a str,
    id: &'a CellId,
    wait: &'a Watch,
    ack: &'a [CellNumber],
    again: bool,
}

/// An `answer` without what it answers.
#[derive(Serialize)]
struct LongAnswer<'a> {
    op: &'static str,
    dir: &'a str,
    number: CellNumber,
    id: &'a CellId,
    call: u64,
    answer_bytes: usize,
}

fn joined(call: &Call<'_>, room: usize, operation: &impl Serialize, more: usize) -> Result<Vec<u8>> {
    let mut text = Vec::with_capacity(1024 + more);
    text.resize(room, 0);
    serde_json::to_writer(&mut text, &known(call)).map_err(cannot)?;
    // Neither object is empty: between the end of the one and the beginning of the other there is but a comma to be.
    text.pop();
    let joint = text.len();
    serde_json::to_writer(&mut text, operation).map_err(cannot)?;
    text[joint] = b',';
    Ok(text)
}

/// Writes a request behind its header, which says how long it is. As that is known last, there is white space before the number.
fn add_request(text: &mut Vec<u8>, request: &Request) -> Result<()> {
    text.pop();
    text.extend_from_slice(b",\"cell_bytes\":");
    let digits = text.len();
    text.resize(digits + DIGITS, b' ');
    text.extend_from_slice(b"}\n");
    let begin = text.len();
    serde_json::to_writer(&mut *text, request).map_err(cannot)?;
    let length = format!("{:>DIGITS$}", text.len() - begin);
    text[digits..digits + DIGITS].copy_from_slice(length.as_bytes());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use serde_json::{Value, json};

    use super::*;
    use crate::cell::Cell;

    fn fields(call: &Call<'_>) -> Value {
        serde_json::from_slice(&line(call).unwrap()).unwrap()
    }

    #[tokio::test(start_paused = true)]
    async fn both_forms_say_the_same() {
        for operation in [Operation::List {}, Operation::Probe { dir: "/a\nb".into() }] {
            let deadline = Instant::now() + Duration::from_secs(5);
            let call = Call { operation: &operation, base: Some("/b"), dir: None, python: None, deadline };
            let text = text(&call, 3).unwrap();
            let value: Value = serde_json::from_slice(&text[3..]).unwrap();
            assert_eq!(value, fields(&call));
            assert_eq!((&value["base"], &value["deadline_ms"]), (&json!("/b"), &json!(5000)));
            assert!(value["op"].is_string());
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_long_request_stands_behind_its_header() {
        let wait = Watch { hold_ms: 1, offset: 2, stream: true, lull_ms: 3, tell: true, gather: false };
        let cell = Cell::new("\"\u{20ac}\n".repeat(LONG / 5 + 1)).to_request(CellId::random().unwrap());
        let operation = Operation::Run {
            dir: "/k\n".into(),
            cell: cell.clone(),
            wait,
            ack: vec![CellNumber(7)],
            again: true,
        };
        let deadline = Instant::now() + Duration::from_secs(5);
        let call = Call { operation: &operation, base: Some("/b"), dir: None, python: None, deadline };
        let text = text(&call, 3).unwrap();
        let end = text.iter().position(|byte| *byte == b'\n').unwrap();
        let mut header: Value = serde_json::from_slice(&text[3..end]).unwrap();
        let request: Value = serde_json::from_slice(&text[end + 1..]).unwrap();
        assert_eq!(request, json!(cell));
        let long = header.as_object_mut().unwrap();
        assert_eq!(long.remove("cell_bytes"), Some(json!(text.len() - end - 1)));
        assert_eq!(long.remove("id"), Some(json!(cell.id)));
        long.insert("cell".into(), request);
        assert_eq!(header, fields(&call));
    }
}
