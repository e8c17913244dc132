//! Calls of tools, as a cell's host takes them in and answers them.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use farcell_core::kernel::Identity;
use farcell_core::tools::{Down, Post, Tool, ToolCall, ToolFailure, Tools, function, open};
use farcell_core::wire::record::{self, Pieces, Record};
use farcell_core::{Cell, CellId, CellNumber, Error, ErrorKind, Event, KernelId, Result};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::memory::at_most;
use crate::streams::{CELLS, KERNEL, run};
use crate::{BASE, NONCE, cut};

/// What the record of a call costs at the most, in bytes for each of its own: the shortest one is a task of its own for as long as it is not answered.
const CALL: usize = 200;

/// How many calls the cell may make.
const BUDGET: u32 = 3;

/// All that has happened.
#[derive(Debug, Default)]
struct Seen {
    /// The tools that were run, and with what.
    ran: Vec<(u64, String)>,
    /// What came down, by call.
    answers: BTreeMap<u64, Vec<String>>,
    /// The events, by call.
    begun: Vec<u64>,
    ended: Vec<(u64, bool)>,
}

/// The far side. The first that is sent to it may not have arrived.
struct Far {
    seen: Arc<Mutex<Seen>>,
    is_cut: Mutex<bool>,
}

#[async_trait]
impl Post for Far {
    async fn send(&self, _: CellNumber, down: &Down) -> Result<bool> {
        if let Down::Answer { call, answer } = down {
            let mut seen = self.seen.lock().expect("nobody panics");
            seen.answers.entry(*call).or_default().push(answer.as_str().to_owned());
        }
        let is_cut = std::mem::take(&mut *self.is_cut.lock().expect("nobody panics"));
        if is_cut { Err(Error::new(ErrorKind::Transport, "cut")) } else { Ok(true) }
    }
}

thread_local! {
    static SEEN: RefCell<Arc<Mutex<Seen>>> = RefCell::default();
    static TOOLS: Tools = tools();
}

fn tools() -> Tools {
    let tool = |name: &str| -> Arc<dyn Tool> {
        function(name, "", json!({}), |call: ToolCall| async move {
            let seen = SEEN.with_borrow(Arc::clone);
            seen.lock().expect("nobody panics").ran.push((call.number, call.name.to_string()));
            assert_eq!(
                serde_json::from_str::<Value>(call.json()).expect("it is JSON"),
                json!(*call.arguments)
            );
            if &*call.name == "fails" {
                return Err(ToolFailure::new("Why", "it was asked to"));
            }
            Ok(Value::Object((*call.arguments).clone()))
        })
    };
    let tools = Tools::new(["echo", "fails", "denied"].map(tool)).expect("a set");
    tools.budget(BUDGET).parallel(2).allow(["echo", "fails"]).expect("they are there")
}

/// Records of a cell with tools, in which [`NONCE`] stands for its token. A call is begun once, with the token alone, as often as it is allowed and no
/// tool that is not; all that is begun and not given up is answered, and always the same.
pub fn calls(data: &[u8]) {
    let (cut, bytes) = cut(data);
    let seen = Arc::<Mutex<Seen>>::default();
    SEEN.set(Arc::clone(&seen));
    let tools = TOOLS.with(Tools::clone);
    at_most(BASE + CALL * bytes.len(), || {
        let (records, token) = run(serve(tools, bytes, cut, &seen));
        judge(&records, &token, &seen.lock().expect("nobody panics"));
    });
}

/// Has a desk take in what the far side says, while it is served; returns the records, and the token.
async fn serve(tools: Tools, bytes: &[u8], cut: usize, seen: &Arc<Mutex<Seen>>) -> (Vec<Record>, String) {
    let identity = Identity {
        target: "local:".parse().expect("a target"),
        owner: "ann".to_owned(),
        session: "default".to_owned(),
    };
    let kernel = KernelId::parse(KERNEL).expect("an id");
    let id = CellId::parse(CELLS[0]).expect("an id");
    let opened = open(&Cell::new("").tools(tools), &identity, kernel, &id).expect("randomness");
    let (mut desk, clerk) = opened.expect("the cell has tools");
    let offer = serde_json::to_value(desk.offer()).expect("an offer is JSON");
    let token = offer["token"].as_str().expect("it has a token").to_owned();
    let bytes = with_token(bytes, token.as_bytes());
    let events = |event| {
        let mut seen = seen.lock().expect("nobody panics");
        match event {
            Event::ToolCall { call, .. } => seen.begun.push(call),
            Event::ToolAnswer { call, outcome, .. } => seen.ended.push((call, outcome.is_ok())),
            _ => {}
        }
    };
    let post = Arc::new(Far { seen: Arc::clone(seen), is_cut: Mutex::new(cut.is_multiple_of(2)) });
    let mut records = Vec::new();
    let mut pieces = Pieces::default();
    let hear = async {
        for at in (0..bytes.len()).step_by(cut) {
            for record in pieces.push(&bytes.slice(at..bytes.len().min(at + cut))).0 {
                let is_call = matches!(record.kind, record::CALL | record::GIVEN_UP);
                assert_eq!(desk.take(&record, &events), is_call);
                records.push(record);
            }
            tokio::task::yield_now().await;
        }
        // The clock goes on only when there is nothing left to do.
        tokio::time::sleep(Duration::from_secs(3600)).await;
    };
    let served = timeout(Duration::from_secs(7200), async {
        tokio::select! {
            biased;
            never = clerk.serve(post, &events) => match never {},
            () = hear => {}
        }
    });
    served.await.expect("it comes to an end");
    (records, token)
}

/// The bytes with the cell's token in the place of the nonce, which is as long.
fn with_token(bytes: &[u8], token: &[u8]) -> Bytes {
    assert_eq!(token.len(), NONCE.len());
    let mut bytes = bytes.to_vec();
    let mut at = 0;
    while let Some(found) = bytes[at..].windows(NONCE.len()).position(|part| part == NONCE.as_bytes()) {
        bytes[at + found..][..token.len()].copy_from_slice(token);
        at += found + token.len();
    }
    bytes.into()
}

fn judge(records: &[Record], token: &str, seen: &Seen) {
    let begun: BTreeSet<u64> = seen.begun.iter().copied().collect();
    assert_eq!(begun.len(), seen.begun.len(), "a call is begun at most once");
    let shows_it =
        |record: &&Record| record.payload.windows(token.len()).any(|part| part == token.as_bytes());
    let calls = records.iter().filter(|record| record.kind == record::CALL).filter(shows_it).count();
    assert!(begun.len() <= calls, "without the token nothing is begun");
    let ended: BTreeSet<u64> = seen.ended.iter().map(|(call, _)| *call).collect();
    assert_eq!(begun, ended, "what has begun has an end");
    assert_eq!(ended.len(), seen.ended.len(), "and only one");
    assert!(seen.ran.len() <= BUDGET as usize);
    assert!(seen.ran.iter().all(|(call, name)| begun.contains(call) && name != "denied"));
    let given_up: BTreeSet<u64> = records
        .iter()
        .filter(|record| record.kind == record::GIVEN_UP)
        .filter_map(|record| serde_json::from_slice::<Value>(&record.payload).ok()?.get("call")?.as_u64())
        .collect();
    assert!(begun.iter().all(|call| given_up.contains(call) || seen.answers.contains_key(call)));
    for (call, answers) in &seen.answers {
        assert!(begun.contains(call));
        assert!(answers.iter().all(|answer| *answer == answers[0]));
        let answer: Value = serde_json::from_str(&answers[0]).expect("an answer is JSON");
        let is_ok = answer["ok"].as_bool().expect("it says whether it is one");
        assert_eq!((answer.get("value").is_some(), answer.get("error").is_some()), (is_ok, !is_ok));
        assert!(given_up.contains(call) || seen.ended.contains(&(*call, is_ok)));
    }
}
