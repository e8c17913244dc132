//! The frame `Q`: a cell as the supervisor, or the interpreter in the lane, is to run it. Built once, from what the cell's owner holds.

use std::collections::BTreeMap;

use farcell_core::wire::frame;
use farcell_core::wire::message::{self, Echo, Offer};
use farcell_core::{Cell, CellId, Error, ErrorKind, Result};
use serde::Serialize;

/// The same as the engine's request, with nothing of the cell copied.
#[derive(Serialize)]
struct Request<'a> {
    v: u32,
    id: &'a CellId,
    /// Only in the lane.
    #[serde(skip_serializing_if = "Option::is_none")]
    seq: Option<u64>,
    code: &'a str,
    timeout_ms: Option<u64>,
    max_output: u64,
    echo: Echo,
    #[serde(skip_serializing_if = "Option::is_none")]
    cwd: Option<&'a str>,
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    env: &'a BTreeMap<String, String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    reset: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    tools: Option<Offer>,
}

/// The whole frame.
pub(super) fn frame(id: &CellId, cell: &Cell, seq: Option<u64>, tools: Option<Offer>) -> Result<Vec<u8>> {
    let request = Request {
        v: message::VERSION,
        id,
        seq,
        code: &cell.code,
        timeout_ms: cell.timeout_ms(),
        max_output: cell.max_output as u64,
        echo: cell.echo,
        cwd: cell.cwd.as_deref(),
        env: &cell.env,
        reset: cell.reset,
        tools,
    };
    // Escapes make it longer; where they are few, it does not move.
    let mut frame = Vec::with_capacity(cell.code.len() + cell.code.len() / 8 + 256);
    let room = frame::header(b'Q', 0)?;
    frame.extend_from_slice(&room);
    serde_json::to_writer(&mut frame, &request)
        .map_err(|e| Error::new(ErrorKind::BadInput, "the cell cannot be sent").with_source(e))?;
    let header = frame::header(b'Q', frame.len() - room.len())?;
    frame[..room.len()].copy_from_slice(&header);
    Ok(frame)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn it_is_the_engines_request_without_what_is_the_usual() {
        let id = CellId::random().unwrap();
        let mut cell = Cell::new("\"\u{20ac}\n".repeat(1000));
        for is_plain in [true, false] {
            let bytes = frame(&id, &cell, None, None).unwrap();
            assert_eq!(bytes[..5], frame::header(b'Q', bytes.len() - 5).unwrap());
            let mut engines = json!(cell.to_request(id.clone()));
            engines.as_object_mut().unwrap().remove("tools");
            if is_plain {
                for usual in ["cwd", "env", "reset"] {
                    engines.as_object_mut().unwrap().remove(usual);
                }
            }
            assert_eq!(serde_json::from_slice::<Value>(&bytes[5..]).unwrap(), engines);
            cell.cwd = Some("/d".into());
            cell.env = BTreeMap::from([("A".into(), "b".into())]);
            cell.reset = true;
        }
    }

    #[test]
    fn in_the_lane_it_is_numbered() {
        let bytes = frame(&CellId::random().unwrap(), &Cell::new("1"), Some(17), None).unwrap();
        assert_eq!(serde_json::from_slice::<Value>(&bytes[5..]).unwrap()["seq"], json!(17));
    }
}
