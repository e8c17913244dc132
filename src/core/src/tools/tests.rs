//! Calls of a cell as its host sees them, with a far side that is a list.

mod approval;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use serde_json::{Value, json};
use tokio::sync::{Notify, Semaphore, mpsc};
use tokio::time::Instant;

use super::*;
use crate::error::{Error, ErrorKind, Result};
use crate::event::{Event, NoEvents};
use crate::id::{CellId, CellNumber, KernelId};
use crate::kernel::Identity;
use crate::wire::record::{self, Record};
use crate::{Cell, EventSink};

/// The far side: keeps what comes down, and fails as the test has it.
#[derive(Default)]
struct Far {
    came: Mutex<Vec<Down>>,
    fails: AtomicUsize,
    news: Notify,
}

#[async_trait]
impl Post for Far {
    async fn send(&self, number: CellNumber, down: &Down) -> Result<bool> {
        assert_eq!(number, CellNumber(7));
        self.came.lock().unwrap().push(down.clone());
        self.news.notify_waiters();
        let fails = self.fails.fetch_update(SeqCst, SeqCst, |fails| fails.checked_sub(1)).is_ok();
        if fails { Err(Error::new(ErrorKind::Transport, "cut")) } else { Ok(true) }
    }
}

impl Far {
    /// The answers by call; each of them once, or in as many copies as it was sent.
    fn answers(&self) -> BTreeMap<u64, Vec<Value>> {
        let mut answers = BTreeMap::<u64, Vec<Value>>::new();
        for down in self.came.lock().unwrap().iter() {
            if let Down::Answer { call, answer } = down {
                answers.entry(*call).or_default().push(serde_json::from_str(answer.as_str()).unwrap());
            }
        }
        answers
    }

    async fn until(&self, is_so: impl Fn(&Self) -> bool) {
        let wait = async {
            loop {
                let news = self.news.notified();
                if is_so(self) {
                    return;
                }
                news.await;
            }
        };
        tokio::time::timeout(Duration::from_secs(7200), wait).await.expect("it comes to that");
    }

    /// Waits for the answer to one call.
    async fn answer(&self, call: u64) -> Value {
        self.until(|far| far.answers().contains_key(&call)).await;
        self.answers()[&call][0].clone()
    }
}

fn kind(answer: &Value) -> &str {
    answer["error"]["kind"].as_str().unwrap_or_else(|| panic!("no error: {answer}"))
}

/// One cell with its desk.
struct At {
    desk: Desk,
    token: String,
    /// How many calls were told of.
    told: usize,
}

impl At {
    fn record(kind: u8, payload: &Value) -> Record {
        Record { kind, payload: payload.to_string().into() }
    }

    fn call_as(&mut self, token: &str, call: u64, name: &str, arguments: &Value) {
        let payload =
            json!({"call": call, "token": token, "number": 7, "name": name, "arguments": arguments});
        let told = AtomicUsize::new(0);
        let count =
            |event: Event| _ = told.fetch_add(usize::from(matches!(event, Event::ToolCall { .. })), SeqCst);
        assert!(self.desk.take(&At::record(record::CALL, &payload), &count));
        self.told += told.into_inner();
    }

    fn call(&mut self, call: u64, name: &str, arguments: &Value) {
        let token = self.token.clone();
        self.call_as(&token, call, name, arguments);
    }

    fn give_up(&mut self, call: u64) {
        assert!(self.desk.take(&At::record(record::GIVEN_UP, &json!({ "call": call })), &NoEvents));
    }
}

fn open_desk(tools: &Tools) -> (At, Clerk) {
    let identity = Identity { target: "local:".parse().unwrap(), owner: "ann".into(), session: "s".into() };
    let cell = Cell::new("").tools(tools.clone());
    let (id, kernel) = (CellId::random().unwrap(), KernelId::random().unwrap());
    let (desk, clerk) = open(&cell, &identity, kernel, &id).unwrap().unwrap();
    let token = serde_json::to_value(desk.offer()).unwrap()["token"].as_str().unwrap().to_owned();
    (At { desk, token, told: 0 }, clerk)
}

/// Serves a cell while `work` is done.
async fn at_desk(tools: &Tools, events: &dyn EventSink, work: impl AsyncFnOnce(&mut At, &Arc<Far>)) {
    let far = Arc::new(Far::default());
    let (mut at, clerk) = open_desk(tools);
    let post = Arc::clone(&far);
    tokio::select! {
        // First, as drivers have it: what came of a call is told before what its answer leads to.
        biased;
        never = clerk.serve(post, events) => match never {},
        () = work(&mut at, &far) => {}
    }
}

fn echo() -> Arc<dyn Tool> {
    function(
        "echo",
        "",
        json!({}),
        |call: ToolCall| async move { Ok(Value::Object((*call.arguments).clone())) },
    )
}

#[tokio::test]
async fn a_call_gets_its_value_and_the_authority_of_its_cell() {
    let who = function("who", "", json!({}), |call: ToolCall| async move {
        let context = call.authority.context::<String>().unwrap();
        assert!(call.authority.context::<u8>().is_none());
        let authority = &call.authority;
        Ok(json!([authority.owner(), authority.session(), context.as_str(), authority.calls_left()]))
    });
    let tools = Tools::new([who]).unwrap().context(Arc::new("mine".to_owned()));
    at_desk(&tools, &NoEvents, async |at, far| {
        at.call(1, "who", &json!({}));
        assert_eq!(far.answer(1).await, json!({"ok": true, "value": ["ann", "s", "mine", 49]}));
    })
    .await;
}

#[tokio::test]
async fn what_is_not_right_is_refused_in_this_order_and_the_next_call_works() {
    let others = ["other", "both"].map(|name| function(name, "", json!({}), |_| async { Ok(Value::Null) }));
    let tools = Tools::new(others.into_iter().chain([echo()])).unwrap().budget(2).allow(["echo"]).unwrap();
    at_desk(&tools, &NoEvents, async |at, far| {
        // Without the token nothing is answered: the number may be another's.
        at.call_as(&"0".repeat(32), 1, "echo", &json!({}));
        at.call(1, "echo", &json!({"a": 1}));
        assert_eq!(far.answer(1).await["value"], json!({"a": 1}));
        at.call(2, "nobody", &json!({}));
        at.call(3, "other", &json!({}));
        at.call(4, "echo", &json!({}));
        at.call(5, "echo", &json!({}));
        // What is not allowed is not so either where the budget is spent, and costs nothing of it.
        at.call(6, "other", &json!({}));
        assert_eq!(kind(&far.answer(2).await), "unknown");
        assert_eq!(kind(&far.answer(3).await), "refused");
        assert_eq!(far.answer(4).await["ok"], true);
        assert_eq!(kind(&far.answer(5).await), "budget");
        assert_eq!(kind(&far.answer(6).await), "refused");
    })
    .await;
}

#[tokio::test]
async fn arguments_that_are_none_are_refused() {
    at_desk(&Tools::new([echo()]).unwrap(), &NoEvents, async |at, far| {
        for (call, arguments) in [(1, r#"[1]"#), (2, r#""text""#), (3, r#"{"a": "\ud800"}"#)] {
            let token = &at.token;
            let payload = format!(
                r#"{{"call": {call}, "token": "{token}", "number": 7, "name": "echo", "arguments": {arguments}}}"#
            );
            let record = Record { kind: record::CALL, payload: payload.into() };
            assert!(at.desk.take(&record, &NoEvents));
            let answer = far.answer(call).await;
            assert_eq!((kind(&answer), &answer["error"]["name"]), ("refused", &json!("BadArguments")), "{answer}");
        }
        // What makes no sense at all has nobody who could be answered.
        for payload in ["", "[]", "{\"call\": 4}"] {
            let record = Record { kind: record::CALL, payload: payload.into() };
            assert!(at.desk.take(&record, &NoEvents));
        }
        at.call(5, "echo", &json!({"a": 2}));
        assert_eq!(far.answer(5).await["value"], json!({"a": 2}));
        let output = Record { kind: record::STDOUT, payload: "x".into() };
        assert!(!at.desk.take(&output, &NoEvents));
    })
    .await;
}

#[tokio::test]
async fn a_number_that_no_value_holds_goes_through_whole() {
    const LARGE: &str = "123456789012345678901234567890";
    let same = function("same", "", json!({}), |call: ToolCall| async move {
        ToolOutput::from_json(call.json().to_owned())
    });
    let far = Arc::new(Far::default());
    let (mut at, clerk) = open_desk(&Tools::new([same]).unwrap());
    let work = async {
        let payload = format!(
            r#"{{"call": 1, "token": "{}", "number": 7, "name": "same", "arguments": {{"n":{LARGE}}}}}"#,
            at.token
        );
        at.desk.take(&Record { kind: record::CALL, payload: payload.into() }, &NoEvents);
        far.answer(1).await;
    };
    let post = Arc::clone(&far);
    tokio::select! {
        never = clerk.serve(post, &NoEvents) => match never {},
        () = work => {}
    }
    let came = far.came.lock().unwrap();
    let Down::Answer { answer, .. } = &came[0] else { panic!("{came:?}") };
    assert_eq!(answer.as_str(), format!(r#"{{"ok":true,"value":{{"n":{LARGE}}}}}"#));
}

#[test]
fn what_is_no_json_is_no_result() {
    for text in ["", "NaN", "{", "1 2", r#""\ud800""#] {
        let failure = ToolOutput::from_json(text).unwrap_err();
        assert_eq!((failure.kind, failure.name.as_str()), (FailureKind::Tool, "BadResult"), "{text:?}");
    }
    assert!(ToolOutput::new(&BTreeMap::from([((1, 2), 3)])).is_err());
    assert_eq!(ToolOutput::new(&[1, 2]).unwrap(), ToolOutput::from(json!([1, 2])));
}

#[tokio::test]
async fn calls_run_at_once_up_to_a_bound_and_each_gets_its_own_answer() {
    let gate = Arc::new(Semaphore::new(0));
    let (running, most) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (begun, mut hear_begun) = mpsc::unbounded_channel();
    let tool = {
        let (gate, running, most) = (Arc::clone(&gate), Arc::clone(&running), Arc::clone(&most));
        function("wait", "", json!({}), move |call: ToolCall| {
            let (gate, running, most, begun) =
                (Arc::clone(&gate), Arc::clone(&running), Arc::clone(&most), begun.clone());
            async move {
                most.fetch_max(running.fetch_add(1, SeqCst) + 1, SeqCst);
                begun.send(()).unwrap();
                gate.acquire().await.unwrap().forget();
                running.fetch_sub(1, SeqCst);
                Ok(call.arguments["n"].clone())
            }
        })
    };
    at_desk(&Tools::new([tool]).unwrap().parallel(3), &NoEvents, async |at, far| {
        for n in 1..=10 {
            at.call(n, "wait", &json!({"n": n}));
        }
        for _ in 0..3 {
            hear_begun.recv().await.unwrap();
        }
        gate.add_permits(10);
        for n in 1..=10 {
            assert_eq!(far.answer(n).await, json!({"ok": true, "value": n}));
        }
    })
    .await;
    assert_eq!(most.load(SeqCst), 3);
}

#[tokio::test(start_paused = true)]
async fn a_call_is_begun_once_and_its_answer_is_sent_until_it_arrives() {
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&calls);
    let tool = function("count", "", json!({}), move |_| {
        counted.fetch_add(1, SeqCst);
        async { Ok(json!(1)) }
    });
    at_desk(&Tools::new([tool]).unwrap(), &NoEvents, async |at, far| {
        far.fails.store(3, SeqCst);
        for _ in 0..3 {
            at.call(1, "count", &json!({}));
        }
        far.until(|far| far.answers().get(&1).is_some_and(|copies| copies.len() == 4)).await;
        at.call(2, "count", &json!({}));
        far.answer(2).await;
        assert_eq!(far.answers()[&1].len(), 4);
    })
    .await;
    assert_eq!(calls.load(SeqCst), 2);
}

/// Says when it is dropped.
struct Dropped(mpsc::UnboundedSender<()>);

impl Drop for Dropped {
    fn drop(&mut self) {
        let _ = self.0.send(());
    }
}

/// A tool that never ends, and says when it has begun and when it was dropped.
fn endless() -> (Arc<dyn Tool>, mpsc::UnboundedReceiver<Arc<Authority>>, mpsc::UnboundedReceiver<()>) {
    let (begun, hear_begun) = mpsc::unbounded_channel();
    let (dropped, hear_dropped) = mpsc::unbounded_channel();
    let tool = function("endless", "", json!({}), move |call: ToolCall| {
        let (begun, dropped) = (begun.clone(), Dropped(dropped.clone()));
        async move {
            let _dropped = dropped;
            begun.send(call.authority).unwrap();
            std::future::pending::<Result<Value, ToolFailure>>().await
        }
    });
    (tool, hear_begun, hear_dropped)
}

#[tokio::test]
async fn a_far_side_that_calls_without_end_has_no_more_open_than_a_bound() {
    let (tool, mut begun, mut dropped) = endless();
    let tools = Tools::new([tool, echo()]).unwrap().budget(u32::MAX);
    let bound = desk::OPEN_MAX as u64;
    at_desk(&tools, &NoEvents, async |at, far| {
        (1..=bound).for_each(|number| at.call(number, "endless", &json!({})));
        at.call(bound + 1, "echo", &json!({}));
        assert_eq!(at.told, desk::OPEN_MAX, "it is not even told of");
        begun.recv().await.unwrap();
        at.give_up(1);
        dropped.recv().await.unwrap();
        at.call(bound + 2, "nobody", &json!({}));
        far.answer(bound + 2).await;
        assert!(!far.answers().contains_key(&(bound + 1)));
        // Its number is behind us.
        at.call(bound + 1, "echo", &json!({}));
        assert_eq!(at.told, desk::OPEN_MAX + 1);
    })
    .await;
}

#[tokio::test]
async fn a_call_ends_with_its_caller_or_its_cell() {
    let (tool, mut begun, mut dropped) = endless();
    let events = Mutex::new(Vec::new());
    let keep = |event: Event| events.lock().unwrap().push(event);
    let mut authority = None;
    at_desk(&Tools::new([tool, echo()]).unwrap(), &keep, async |at, far| {
        at.call(1, "endless", &json!({}));
        authority = begun.recv().await;
        at.give_up(1);
        dropped.recv().await.unwrap();
        at.give_up(99);
        at.call(2, "endless", &json!({}));
        begun.recv().await.unwrap();
        at.call(3, "echo", &json!({}));
        far.answer(3).await;
        assert_eq!(far.answers().len(), 1, "nobody waits for an answer to what was given up");
        assert!(!authority.as_ref().unwrap().is_over());
    })
    .await;
    dropped.recv().await.unwrap();
    let authority = authority.unwrap();
    assert!(authority.is_over());
    authority.over().await;
    let events = events.lock().unwrap();
    let kinds: Vec<_> = events
        .iter()
        .filter_map(|event| match event {
            Event::ToolAnswer { call, outcome, .. } => Some((*call, outcome.as_ref().err().map(|e| e.kind))),
            _ => None,
        })
        .collect();
    assert_eq!(kinds, [(1, Some(FailureKind::Cancelled)), (3, None)]);
}

#[tokio::test]
async fn a_tool_that_fails_or_panics_is_told_and_the_next_call_works() {
    let fails = function("fails", "", json!({}), |_| async {
        Err::<Value, _>(ToolFailure::new("NotFound", "there is no such page"))
    });
    let panics = function("panics", "", json!({}), |call: ToolCall| async move {
        assert!(call.arguments.contains_key("x"), "a panic that the test wants");
        Ok(Value::Null)
    });
    at_desk(&Tools::new([fails, panics]).unwrap(), &NoEvents, async |at, far| {
        at.call(1, "fails", &json!({}));
        let error = json!({"kind": "tool", "name": "NotFound", "message": "there is no such page"});
        assert_eq!(far.answer(1).await, json!({"ok": false, "error": error}));
        at.call(2, "panics", &json!({}));
        assert_eq!(far.answer(2).await["error"]["name"], "Panic");
        at.call(3, "panics", &json!({"x": 1}));
        assert_eq!(far.answer(3).await, json!({"ok": true, "value": null}));
    })
    .await;
}

#[tokio::test]
async fn a_result_that_is_too_long_is_an_error_of_the_tool() {
    let long = function("long", "", json!({}), |_| async {
        ToolOutput::from_json(format!("\"{}\"", "x".repeat(LONGEST_ANSWER)))
    });
    at_desk(&Tools::new([long]).unwrap(), &NoEvents, async |at, far| {
        at.call(1, "long", &json!({}));
        let answer = far.answer(1).await;
        assert_eq!((kind(&answer), &answer["error"]["name"]), ("tool", &json!("TooLong")));
    })
    .await;
}
