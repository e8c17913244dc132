//! What is tested: a target, the drivers that lead to it, and short ways to use them.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farcell_core::{
    Cell, Drivers, Event, EventSink, NoEvents, Registry, RegistryOptions, Reply, Session, SessionOptions,
    State, Status, Target,
};

/// How long anything may take that has to happen at all; generous, as machines under test are busy.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// A target under test.
#[derive(Debug)]
pub struct Subject {
    /// The drivers.
    pub drivers: Drivers,
    /// The target.
    pub target: Target,
    /// The registry of this subject's sessions.
    pub registry: Registry,
    elsewhere: bool,
}

impl Subject {
    /// A subject with a registry of its own.
    pub fn new(drivers: Drivers, target: Target) -> Self {
        let registry =
            Registry::new(drivers.clone(), RegistryOptions { cap: 16, ..RegistryOptions::default() });
        Subject { drivers, target, registry, elsewhere: false }
    }

    /// Says that the target's processes are not this machine's.
    #[must_use]
    pub fn is_elsewhere(mut self) -> Self {
        self.elsewhere = true;
        self
    }

    /// A session of this subject.
    pub fn session(&self, name: &str) -> Session {
        self.session_of(&self.registry, "conformance", name)
    }

    /// A session of some registry. The owner is unique to this subject's run, so that suites do not meet on a target.
    pub fn session_of(&self, registry: &Registry, owner: &str, name: &str) -> Session {
        let owner = format!("{owner}-{}-{:p}", std::process::id(), &raw const self.elsewhere);
        registry.session(&owner, name, &self.target, SessionOptions::default()).expect("a session")
    }

    /// Ends all kernels of the subject. Called after every case, also after one that failed.
    pub async fn clean_up(&self) {
        self.registry.dispose_all().await.expect("kernels can be stopped");
    }

    /// The pid of the supervisor of a session's kernel.
    pub async fn supervisor_pid(&self, session: &Session) -> i64 {
        let probe = session.probe().await.expect("a probe").expect("a kernel");
        assert!(probe.alive);
        probe.kernel.expect("a record").pid
    }

    /// Sends a signal to a process of the target, by a session of its own.
    pub async fn signal(&self, pid: i64, signal: i32) {
        ok(&self.session("signals"), &format!("import os; os.kill({pid}, {signal})")).await;
    }

    /// Waits until a process of the target is gone or a zombie.
    pub async fn wait_gone(&self, pid: i64) {
        let code = format!(
            "def gone(pid):\n    try:\n        return open('/proc/%d/stat' % pid).read().rsplit(')', 1)[1].split()[0] in 'ZX'\n    \
             except (OSError, IOError):\n        return True\ngone({pid})"
        );
        let session = self.session("processes");
        let started = Instant::now();
        while text(&ok(&session, &code).await) != "True" {
            assert!(started.elapsed() < PATIENCE, "process {pid} is still there");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
}

/// Something that cells of a subject wait for, until the test opens it.
#[derive(Debug)]
pub(crate) struct Gate<'a> {
    subject: &'a Subject,
    path: String,
}

impl<'a> Gate<'a> {
    pub(crate) fn new(subject: &'a Subject) -> Self {
        static COUNT: AtomicUsize = AtomicUsize::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        Gate { subject, path: format!("/tmp/farcell-gate-{}-{count}", std::process::id()) }
    }

    /// The code of a cell that waits for it.
    pub(crate) fn wait(&self) -> String {
        let path = &self.path;
        format!(
            "import os as _os, time as _time\nwhile not _os.path.exists({path:?}): _time.sleep(0.01)\n_os.remove({path:?})\n"
        )
    }

    /// Lets one cell go on.
    pub(crate) async fn open(&self) {
        ok(&self.subject.session("gates"), &format!("open({:?}, 'w').close()", self.path)).await;
    }
}

/// Runs a cell without looking at what happens meanwhile.
pub(crate) async fn run(session: &Session, code: &str) -> Reply {
    session.run(&Cell::new(code), &NoEvents).await.unwrap_or_else(|e| panic!("the cell was not run: {e}"))
}

/// Runs a cell that has to end well.
pub(crate) async fn ok(session: &Session, code: &str) -> Reply {
    let reply = run(session, code).await;
    assert_eq!(reply.status, Status::Ok, "{reply:#?}");
    reply
}

/// Runs a cell within a bound of its own.
pub(crate) async fn run_for(session: &Session, code: &str, timeout: Duration) -> Reply {
    let cell = Cell::new(code).timeout(timeout);
    session.run(&cell, &NoEvents).await.unwrap_or_else(|e| panic!("the cell was not run: {e}"))
}

/// The text of a reply's result.
pub(crate) fn text(reply: &Reply) -> &str {
    let result = reply.result.as_ref().unwrap_or_else(|| panic!("no result in {reply:#?}"));
    result["text/plain"].as_str().expect("text")
}

/// Asserts how a cell ended and what became of the variables.
pub(crate) fn expect(reply: &Reply, status: Status, state: State) {
    assert_eq!((reply.status, reply.kernel.state), (status, state), "{reply:#?}");
}

/// Keeps all events.
#[derive(Debug, Default, Clone)]
pub(crate) struct Recorder {
    events: Arc<Mutex<Vec<Event>>>,
}

impl Recorder {
    /// All events by now.
    pub(crate) fn events(&self) -> Vec<Event> {
        self.events.lock().expect("no test panics in between").clone()
    }

    /// All text of both streams by now.
    pub(crate) fn output(&self) -> String {
        let events = self.events();
        let text = |e: &Event| if let Event::Output { text, .. } = e { Some(text.clone()) } else { None };
        events.iter().filter_map(text).collect()
    }

    /// Waits until an event is there that `wanted` likes.
    pub(crate) async fn wait_for(&self, wanted: impl Fn(&Recorder) -> bool) {
        let started = Instant::now();
        while !wanted(self) {
            assert!(started.elapsed() < PATIENCE, "it never happened; what did: {:#?}", self.events());
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

impl EventSink for Recorder {
    fn event(&self, event: Event) {
        self.events.lock().expect("no test panics in between").push(event);
    }
}
