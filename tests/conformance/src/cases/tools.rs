//! A cell calls functions of its host: each call once, with the authority of its cell and no other.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use farcell_core::tools::{FailureKind, function};
use farcell_core::{
    Approver, Cell, Decision, Event, NoEvents, Reply, Session, State, Status, Tool, ToolCall, ToolFailure,
    ToolOutput, Tools,
};
use serde_json::{Value, json};
use tokio::sync::{Semaphore, mpsc};

use crate::Case;
use crate::subject::{PATIENCE, Recorder, Subject, expect, ok, run, text};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case { name: "a_tool_call_gets_its_value_and_is_told", check: |s| Box::pin(value(s)) },
        Case { name: "a_tool_that_fails_is_an_exception", check: |s| Box::pin(failure(s)) },
        Case { name: "ten_threads_get_each_their_own_answer", check: |s| Box::pin(threads(s)) },
        Case { name: "a_thread_of_an_earlier_cell_is_refused", check: |s| Box::pin(leftover(s)) },
        Case { name: "a_cell_calls_what_it_may_and_as_often_as_it_may", check: |s| Box::pin(bounds(s)) },
        Case { name: "arguments_and_results_of_10_mb_arrive", check: |s| Box::pin(large(s)) },
        Case { name: "arguments_that_are_none_are_refused", check: |s| Box::pin(bad_arguments(s)) },
        Case { name: "another_set_of_tools_costs_no_state", check: |s| Box::pin(another_set(s)) },
        Case { name: "a_tool_call_ends_with_its_cell", check: |s| Box::pin(ends_with_cell(s)) },
        Case { name: "a_tool_call_ends_with_its_caller", check: |s| Box::pin(ends_with_caller(s)) },
        Case { name: "a_person_who_is_asked_costs_no_time", check: |s| Box::pin(approval(s)) },
    ]
}

/// Runs a cell with tools.
async fn run_with(session: &Session, code: &str, tools: &Tools) -> Reply {
    let cell = Cell::new(code).tools(tools.clone());
    session.run(&cell, &NoEvents).await.unwrap_or_else(|e| panic!("the cell was not run: {e}"))
}

/// The same, and it has to end well.
async fn ok_with(session: &Session, code: &str, tools: &Tools) -> Reply {
    let reply = run_with(session, code, tools).await;
    assert_eq!(reply.status, Status::Ok, "{reply:#?}");
    reply
}

/// Adds `a` and `b`, and counts how often it does.
fn adder(calls: &Arc<AtomicUsize>) -> Arc<dyn Tool> {
    let schema = json!({
        "type": "object", "properties": {"a": {"type": "integer"}, "b": {"type": "integer"}}, "required": ["a", "b"],
    });
    let calls = Arc::clone(calls);
    function("add", "Adds two numbers.", schema, move |call: ToolCall| {
        calls.fetch_add(1, SeqCst);
        async move {
            let number = |name: &str| {
                call.arguments[name]
                    .as_i64()
                    .ok_or_else(|| ToolFailure::new("BadArguments", format!("{name} is no number")))
            };
            Ok(json!(number("a")? + number("b")?))
        }
    })
}

/// Gives its arguments back.
fn echo() -> Arc<dyn Tool> {
    function("echo", "", json!({}), |call: ToolCall| async move { ToolOutput::from_json(call.json()) })
}

/// Says that it has begun and waits at a gate; says whether it got through or was dropped.
pub(super) struct Waiting {
    pub(super) tool: Arc<dyn Tool>,
    pub(super) begun: mpsc::UnboundedReceiver<()>,
    over: mpsc::UnboundedReceiver<bool>,
    pub(super) gate: Arc<Semaphore>,
}

struct Over(mpsc::UnboundedSender<bool>, bool);

impl Drop for Over {
    fn drop(&mut self) {
        let _ = self.0.send(self.1);
    }
}

fn waiting() -> Waiting {
    waiting_as("wait")
}

/// A tool that waits for its gate.
pub(super) fn waiting_as(name: &str) -> Waiting {
    let (begin, begun) = mpsc::unbounded_channel();
    let (end, over) = mpsc::unbounded_channel();
    let gate = Arc::new(Semaphore::new(0));
    let tool = {
        let gate = Arc::clone(&gate);
        function(name, "", json!({"properties": {}}), move |_| {
            let (gate, begin, over) = (Arc::clone(&gate), begin.clone(), Over(end.clone(), false));
            async move {
                let mut over = over;
                let _ = begin.send(());
                gate.acquire().await.expect("it stays open").forget();
                over.1 = true;
                Ok(json!("through"))
            }
        })
    };
    Waiting { tool, begun, over, gate }
}

impl Waiting {
    async fn has_begun(&mut self) {
        tokio::time::timeout(PATIENCE, self.begun.recv()).await.expect("the call comes").expect("a call");
    }

    /// Whether the call that is over got through.
    async fn got_through(&mut self) -> bool {
        tokio::time::timeout(PATIENCE, self.over.recv()).await.expect("the call ends").expect("a call")
    }
}

async fn value(s: &Subject) {
    let session = s.session("a");
    let calls = Arc::default();
    let tools = Tools::new([adder(&calls), echo()]).unwrap();
    let recorder = Recorder::default();
    let code = "from farcell_tools import add, echo\n\
        print('before', flush=True)\n\
        x = add(20, b=22)\n\
        big = 10 ** 30\n\
        e = echo(n=big, f=0.1, t='\\u20ac\\U0001f600\\n', l=[1, None, True, {'a': {}}])\n\
        (x, e == {'n': big, 'f': 0.1, 't': '\\u20ac\\U0001f600\\n', 'l': [1, None, True, {'a': {}}]}, add.__doc__)";
    let cell = Cell::new(code).tools(tools);
    let reply = session.run(&cell, &recorder).await.unwrap();
    assert_eq!(reply.status, Status::Ok, "{reply:#?}");
    assert_eq!(text(&reply), "(42, True, 'Adds two numbers.')");
    assert_eq!((reply.tools.calls, reply.tools.errors.len(), calls.load(SeqCst)), (2, 0, 1));
    assert_eq!((reply.stdout.as_str(), recorder.output().as_str()), ("before\n", "before\n"));
    let events = recorder.events();
    let first = |is_it: fn(&Event) -> bool| events.iter().position(is_it).expect("it was told");
    let printed = first(|event| matches!(event, Event::Output { .. }));
    let called = first(|event| matches!(event, Event::ToolCall { .. }));
    assert!(printed < called, "what was printed before a call is told before it: {events:#?}");
    let told: Vec<(u64, &str, bool)> = events
        .iter()
        .filter_map(|event| match event {
            Event::ToolCall { call, name, .. } => Some((*call, &**name, false)),
            Event::ToolAnswer { call, name, outcome, .. } => Some((*call, &**name, outcome.is_ok())),
            _ => None,
        })
        .collect();
    assert_eq!(told, [(1, "add", false), (1, "add", true), (2, "echo", false), (2, "echo", true)]);
    let Some(Event::ToolCall { arguments, .. }) = events.iter().find(|e| matches!(e, Event::ToolCall { .. }))
    else {
        panic!("{events:#?}")
    };
    assert_eq!(Value::Object((**arguments).clone()), json!({"a": 20, "b": 22}));
}

async fn failure(s: &Subject) {
    let session = s.session("a");
    let calls = Arc::default();
    let fails = function("fails", "", json!({}), |_| async {
        Err::<Value, _>(ToolFailure::new("NotFound", "there is no such page"))
    });
    let panics = function("panics", "", json!({}), |call: ToolCall| async move {
        assert!(call.number == 0, "a panic that the test wants");
        Ok(Value::Null)
    });
    let tools = Tools::new([fails, panics, adder(&calls)]).unwrap();
    let code = "from farcell_tools import add, fails, panics, ToolError\n\
        told = []\n\
        for tool in (fails, panics):\n    \
            try:\n        tool()\n    \
            except ToolError as e:\n        told.append((e.tool, e.kind, 'no such page' in str(e)))\n\
        (told, add(1, 2))";
    let reply = ok_with(&session, code, &tools).await;
    assert_eq!(text(&reply), "([('fails', 'tool', True), ('panics', 'tool', False)], 3)");
    assert_eq!(reply.tools.calls, 3);
    let errors: Vec<_> = reply.tools.errors.iter().map(|e| (e.call, e.name.as_str(), e.kind)).collect();
    assert_eq!(errors, [(1, "fails", FailureKind::Tool), (2, "panics", FailureKind::Tool)]);
    assert_eq!(reply.tools.errors[0].message, "there is no such page");
    let reply = run_with(&session, "fails()", &tools).await;
    expect(&reply, Status::Error, State::Kept);
    let error = reply.error.unwrap();
    assert!(
        error.name.ends_with("ToolError") && error.message.contains("there is no such page"),
        "{error:?}"
    );
}

async fn threads(s: &Subject) {
    let session = s.session("a");
    let (begun, mut hear) = mpsc::unbounded_channel();
    let gate = Arc::new(Semaphore::new(0));
    let tool = {
        let gate = Arc::clone(&gate);
        function("double", "", json!({"properties": {"x": {}}}), move |call: ToolCall| {
            let (gate, begun) = (Arc::clone(&gate), begun.clone());
            async move {
                let _ = begun.send(());
                gate.acquire().await.expect("it stays open").forget();
                Ok(json!(call.arguments["x"].as_i64().unwrap_or(0) * 2))
            }
        })
    };
    let tools = Tools::new([tool]).unwrap().parallel(4);
    let code = "import threading\nfrom farcell_tools import double\nresults = {}\n\
        def work(n):\n    results[n] = double(n)\n\
        threads = [threading.Thread(target=work, args=(n,)) for n in range(10)]\n\
        [t.start() for t in threads]; [t.join() for t in threads]\n\
        results == {n: 2 * n for n in range(10)}";
    let open = async {
        for _ in 0..4 {
            tokio::time::timeout(PATIENCE, hear.recv()).await.expect("four at once").unwrap();
        }
        gate.add_permits(10);
    };
    let (reply, ()) = tokio::join!(ok_with(&session, code, &tools), open);
    assert_eq!((text(&reply), reply.tools.calls), ("True", 10), "{reply:#?}");
}

async fn leftover(s: &Subject) {
    let session = s.session("a");
    let calls: Arc<AtomicUsize> = Arc::default();
    let tools = Tools::new([adder(&calls)]).unwrap();
    let code = "import threading\nfrom farcell_tools import add\n\
        go, told = threading.Event(), []\n\
        def late():\n    go.wait()\n    \
            try:\n        told.append(add(1, 1))\n    \
            except Exception as e:\n        told.append(getattr(e, 'kind', repr(e)))\n\
        thread = threading.Thread(target=late, daemon=True)\nthread.start()\nadd(1, 2)";
    let reply = ok_with(&session, code, &tools).await;
    assert_eq!((text(&reply), reply.tools.calls), ("3", 1));
    let reply =
        ok_with(&session, "a = add(2, 2)\ngo.set(); thread.join()\n(a, told, add(3, 3))", &tools).await;
    assert_eq!(text(&reply), "(4, ['refused'], 6)");
    assert_eq!(
        (reply.tools.calls, calls.load(SeqCst)),
        (2, 3),
        "a thread has the authority of the cell that started it: {reply:#?}"
    );
}

async fn bounds(s: &Subject) {
    let session = s.session("a");
    let calls: Arc<AtomicUsize> = Arc::default();
    let tools = Tools::new([adder(&calls), echo()]).unwrap().budget(2).allow(["add"]).unwrap();
    let code = "from farcell_tools import add, echo, ToolError\n\
        def kind(f, *a):\n    \
            try:\n        return f(*a)\n    \
            except ToolError as e:\n        return e.kind\n\
        [kind(echo), kind(add, 1, 1), kind(add, 1, 2), kind(add, 1, 3), kind(echo)]";
    let reply = ok_with(&session, code, &tools).await;
    assert_eq!(text(&reply), "['refused', 2, 3, 'budget', 'refused']");
    assert_eq!((reply.tools.calls, calls.load(SeqCst)), (5, 2));
    let kinds: Vec<_> = reply.tools.errors.iter().map(|e| e.kind).collect();
    assert_eq!(kinds, [FailureKind::Refused, FailureKind::Budget, FailureKind::Refused]);
    // Each cell has its own.
    assert_eq!(text(&ok_with(&session, "add(5, 5)", &tools).await), "10");
}

async fn large(s: &Subject) {
    let session = s.session("a");
    let tools = Tools::new([echo()]).unwrap();
    let code = "from farcell_tools import echo\n\
        text = ('0123456789abcde\\n' * 625000) + '\\u20ac'\n\
        back = echo(text=text)\n\
        (len(text), back == {'text': text})";
    let reply = ok_with(&session, code, &tools).await;
    assert_eq!((text(&reply), reply.tools.calls), ("(10000001, True)", 1));
}

async fn bad_arguments(s: &Subject) {
    let session = s.session("a");
    let calls: Arc<AtomicUsize> = Arc::default();
    let tools = Tools::new([adder(&calls), echo()]).unwrap();
    let code = "from farcell_tools import add, echo\n\
        def told(f, *a, **k):\n    \
            try:\n        f(*a, **k)\n        return 'called'\n    \
            except (TypeError, ValueError) as e:\n        return type(e).__name__\n\
        [told(add), told(add, 1, 2, 3), told(add, 'x', 1), told(add, a=1, b=2, c=3), told(echo, x=object()),\n \
         told(echo, x=float('nan')) in ('TypeError', 'ValueError'), told(echo, x='\\ud800') in ('TypeError', 'ValueError'), add(1, 2)]";
    let reply = ok_with(&session, code, &tools).await;
    assert_eq!(
        text(&reply),
        "['TypeError', 'TypeError', 'TypeError', 'TypeError', 'TypeError', True, True, 3]"
    );
    assert_eq!((reply.tools.calls, calls.load(SeqCst)), (1, 1));
}

async fn another_set(s: &Subject) {
    let session = s.session("a");
    let calls: Arc<AtomicUsize> = Arc::default();
    let first = Tools::new([adder(&calls), echo()]).unwrap();
    let second = Tools::new([adder(&calls)]).unwrap();
    ok(&session, "x = 1").await;
    ok_with(&session, "from farcell_tools import add, echo\nx += add(1, 1)", &first).await;
    let reply = run_with(&session, "from farcell_tools import echo", &second).await;
    expect(&reply, Status::Error, State::Kept);
    let reply = run_with(&session, "echo()", &second).await;
    expect(&reply, Status::Error, State::Kept);
    assert_eq!(text(&ok_with(&session, "add(x, 0)", &second).await), "3");
    let reply = run(&session, "from farcell_tools import add").await;
    expect(&reply, Status::Error, State::Kept);
    let reply = run(&session, "add(1, 2)").await;
    expect(&reply, Status::Error, State::Kept);
    assert_eq!((text(&ok(&session, "x").await), calls.load(SeqCst)), ("3", 2));
    let refused = session.submit(&Cell::new("1").tools(first), &NoEvents).await.unwrap_err();
    assert!(refused.message().contains("nobody to answer"), "{refused}");
}

async fn ends_with_cell(s: &Subject) {
    let session = s.session("a");
    let mut waiting = waiting();
    let calls = Arc::default();
    let tools = Tools::new([Arc::clone(&waiting.tool), adder(&calls)]).unwrap();
    ok_with(&session, "from farcell_tools import add, wait", &tools).await;
    let (reply, ()) = tokio::join!(run_with(&session, "wait()", &tools), async {
        waiting.has_begun().await;
        assert!(session.interrupt(None).await.unwrap().done);
    });
    expect(&reply, Status::Interrupted, State::Kept);
    assert!(!waiting.got_through().await);
    // On a busy machine the deadline may come before the call; then there was none that could end.
    for patience in [Duration::from_millis(500), Duration::from_secs(5), Duration::from_secs(20)] {
        let cell = Cell::new("wait()").tools(tools.clone()).timeout(patience);
        let reply = session.run(&cell, &NoEvents).await.unwrap();
        expect(&reply, Status::Timeout, State::Kept);
        if waiting.begun.try_recv().is_ok() {
            break;
        }
    }
    assert!(!waiting.got_through().await);
    assert_eq!(text(&ok_with(&session, "add(1, 2)", &tools).await), "3");
    // A cell that ends without waiting for a call of its own.
    let go = waiting_as("go");
    let both = Tools::new([Arc::clone(&waiting.tool), Arc::clone(&go.tool)]).unwrap();
    let code = "from farcell_tools import go, wait\nimport threading\nthreading.Thread(target=wait, daemon=True).start()\ngo()";
    let (reply, ()) = tokio::join!(ok_with(&session, code, &both), async {
        waiting.has_begun().await;
        go.gate.add_permits(1);
    });
    assert_eq!(text(&reply), "'through'");
    assert!(!waiting.got_through().await);
}

async fn ends_with_caller(s: &Subject) {
    let session = s.session("a");
    let (mut waiting, ready) = (waiting(), waiting_as("ready"));
    let tools = Tools::new([Arc::clone(&waiting.tool), Arc::clone(&ready.tool)]).unwrap();
    let code = "import asyncio\nfrom farcell_tools import wait, ready\n\
        task = asyncio.ensure_future(wait.aio())\nawait ready.aio()\ntask.cancel()\n\
        try:\n    await task\nexcept asyncio.CancelledError:\n    pass\nawait wait.aio()";
    let recorder = Recorder::default();
    let cell = Cell::new(code).tools(tools);
    let work = async {
        waiting.has_begun().await;
        ready.gate.add_permits(1);
        assert!(!waiting.got_through().await, "its caller has given it up, and its cell runs");
        waiting.has_begun().await;
        waiting.gate.add_permits(1);
        assert!(waiting.got_through().await);
    };
    let (reply, ()) = tokio::join!(session.run(&cell, &recorder), work);
    let reply = reply.unwrap();
    assert_eq!((reply.status, text(&reply)), (Status::Ok, "'through'"), "{reply:#?}");
    let cancelled = |event: &Event| matches!(event, Event::ToolAnswer { outcome: Err(e), .. } if e.kind == FailureKind::Cancelled);
    assert!(recorder.events().iter().any(cancelled), "{:#?}", recorder.events());
}

/// A tool that a person has to agree to.
struct Grave(Value);

#[async_trait::async_trait]
impl Tool for Grave {
    fn name(&self) -> &str {
        "grave"
    }

    fn doc(&self) -> &str {
        "What is not done lightly."
    }

    fn schema(&self) -> &Value {
        &self.0
    }

    fn needs_approval(&self) -> bool {
        true
    }

    async fn call(&self, _: ToolCall) -> Result<ToolOutput, ToolFailure> {
        Ok(json!("done").into())
    }
}

/// Takes his time, then says yes; and no the second time.
struct Person(AtomicUsize);

/// Longer than the cell may run.
const THOUGHT: Duration = Duration::from_secs(4);

#[async_trait::async_trait]
impl Approver for Person {
    async fn ask(&self, _: &ToolCall) -> Decision {
        if self.0.fetch_add(1, SeqCst) == 0 {
            tokio::time::sleep(THOUGHT).await;
            return Decision::Approve;
        }
        Decision::Deny("not twice".to_owned())
    }
}

async fn approval(s: &Subject) {
    let session = s.session("a");
    let grave: Arc<dyn Tool> = Arc::new(Grave(json!({})));
    let tools = Tools::new([grave]).unwrap().approver(Arc::new(Person(AtomicUsize::new(0))));
    let code = "from farcell_tools import grave, ToolError\nfirst = grave()\n\
        try:\n    grave()\nexcept ToolError as e:\n    second = e.kind, 'not twice' in str(e)\n(first, second)";
    let cell = Cell::new(code).tools(tools.clone()).timeout(THOUGHT - Duration::from_secs(1));
    let reply = session.run(&cell, &NoEvents).await.unwrap();
    assert_eq!((reply.status, text(&reply)), (Status::Ok, "('done', ('denied', True))"), "{reply:#?}");
    assert!(reply.duration_ms >= THOUGHT.as_secs_f64() * 1000.0);
    // Afterwards the clock goes on.
    let cell = Cell::new("try: grave()\nexcept ToolError: pass\nwhile True: pass")
        .tools(tools)
        .timeout(Duration::from_millis(500));
    let reply = session.run(&cell, &NoEvents).await.unwrap();
    expect(&reply, Status::Timeout, State::Kept);
}
