//! Cells of one kernel over both kinds of link from several handles, while streams are cut anywhere: every reply is right, every cell runs once.

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use farcell::{
    Cell, Event, EventSink, LinkChoice, NoEvents, Registry, RegistryOptions, Session, SessionOptions, Status,
    Target,
};
use farcell_testbed::bounded;
use futures_util::FutureExt as _;
use libtest_mimic::Trial;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

use crate::BOUND;
use crate::wrapped::World;

/// For how long cases are tried.
const TIME: Duration = Duration::from_secs(20);

pub(crate) fn trials() -> Vec<Trial> {
    vec![Trial::test("stream::both_links_at_random_and_streams_that_are_cut", || {
        property();
        Ok(())
    })]
}

/// One cell of one handle.
#[derive(Debug, Clone)]
struct Step {
    lines: usize,
    width: usize,
    sleep_ms: u64,
    watched: bool,
    /// Ends all streams of its handle so long after it was sent.
    cut_after_ms: Option<u64>,
}

/// One handle: a registry with drivers of its own, as another process would have them.
#[derive(Debug, Clone)]
struct Handle {
    over_stream: bool,
    fuses: Vec<i64>,
    steps: Vec<Step>,
}

fn step() -> impl Strategy<Value = Step> {
    let lines = prop_oneof![3 => 0usize..4, 1 => 50usize..400];
    let cut = prop::option::weighted(0.3, 0u64..60);
    (lines, 1usize..2000, 0u64..30, any::<bool>(), cut).prop_map(
        |(lines, width, sleep_ms, watched, cut_after_ms)| Step {
            lines,
            width,
            sleep_ms,
            watched,
            cut_after_ms,
        },
    )
}

fn handle() -> impl Strategy<Value = Handle> {
    // From within the greeting up to the middle of long output.
    let fuse = prop_oneof![1000i64..400_000, 360_000i64..380_000, Just(i64::MAX)];
    (prop::bool::weighted(0.75), prop::collection::vec(fuse, 0..6), prop::collection::vec(step(), 1..8))
        .prop_map(|(over_stream, fuses, steps)| Handle { over_stream, fuses, steps })
}

fn property() {
    let began = Instant::now();
    let mut runner = TestRunner::new(Config {
        cases: 1000,
        max_shrink_time: 60_000,
        failure_persistence: None,
        ..Config::default()
    });
    let tried = AtomicU64::new(0);
    let opened = AtomicU64::new(0);
    let outcome = runner.run(&prop::collection::vec(handle(), 1..4), |handles| {
        if began.elapsed() < TIME {
            tried.fetch_add(1, SeqCst);
            bounded(BOUND, async {
                let worlds = run(&handles).await;
                opened.fetch_add(worlds.iter().map(|w| w.counts().opened as u64).sum(), SeqCst);
            });
        }
        Ok(())
    });
    if let Err(e) = outcome {
        panic!("{e}");
    }
    assert!(tried.load(SeqCst) > 3 && opened.load(SeqCst) > 3, "hardly anything was tried");
}

async fn run(handles: &[Handle]) -> Vec<Arc<World>> {
    // A directory of its own: replies that one handle has not acknowledged stay when another ends the kernel.
    let dir = tempfile::tempdir().unwrap();
    let target: Target = format!("local:?dir={}", dir.path().join("base").display()).parse().unwrap();
    let mut worlds = Vec::new();
    let mut registries = Vec::new();
    let mut sessions: Vec<Session> = Vec::new();
    for handle in handles {
        let world = Arc::new(World::default());
        *world.fuses.lock().unwrap() = handle.fuses.clone();
        let links = if handle.over_stream { LinkChoice::Best } else { LinkChoice::ExecOnly };
        let registry = Registry::new(world.drivers(links), RegistryOptions::default());
        sessions.push(registry.session("mixed", "shared", &target, SessionOptions::default()).unwrap());
        registries.push(registry);
        worlds.push(world);
    }
    let outcome = AssertUnwindSafe(check(handles, &sessions, &worlds)).catch_unwind().await;
    for registry in &registries {
        registry.dispose_all().await.unwrap();
    }
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
    worlds
}

async fn check(handles: &[Handle], sessions: &[Session], worlds: &[Arc<World>]) {
    let work = handles.iter().zip(sessions).zip(worlds).enumerate().map(
        |(h, ((handle, session), world))| async move {
            for (k, step) in handle.steps.iter().enumerate() {
                let cut = async {
                    if let Some(ms) = step.cut_after_ms {
                        tokio::time::sleep(Duration::from_millis(ms)).await;
                        world.cut();
                    }
                };
                tokio::join!(cell(session, h * 1000 + k, step), cut);
            }
        },
    );
    futures_util::future::join_all(work).await;
    let reply = sessions[0].run(&"import json; json.dumps(sorted(runs.items()))".into(), &NoEvents).await;
    let text = reply.unwrap().result.unwrap()["text/plain"].as_str().unwrap().trim_matches('\'').to_owned();
    let runs: Vec<(usize, usize)> = serde_json::from_str(&text).unwrap();
    let expected: BTreeMap<usize, usize> = handles
        .iter()
        .enumerate()
        .flat_map(|(h, handle)| (0..handle.steps.len()).map(move |k| (h * 1000 + k, 1)))
        .collect();
    assert_eq!(runs.into_iter().collect::<BTreeMap<_, _>>(), expected);
}

/// Runs one cell, and judges its reply and what was heard of it meanwhile.
async fn cell(session: &Session, n: usize, step: &Step) {
    let Step { lines, width, sleep_ms, .. } = step;
    let code = format!(
        "import time\nruns = globals().setdefault('runs', {{}})\nruns[{n}] = runs.get({n}, 0) + 1\nfor i in range({lines}):\n    \
         print({n}, i, 'x' * {width}, flush=True)\ntime.sleep({sleep_ms} / 1000)\n-{n}"
    );
    let heard = Arc::new(Mutex::new(String::new()));
    let listener = Arc::clone(&heard);
    let listen = move |event: Event| {
        if let Event::Output { text, .. } = event {
            listener.lock().unwrap().push_str(&text);
        }
    };
    let events: &dyn EventSink = if step.watched { &listen } else { &NoEvents };
    let reply = tokio::time::timeout(BOUND, session.run(&Cell::new(code), events)).await.unwrap().unwrap();
    assert_eq!(reply.status, Status::Ok, "{reply:#?}");
    let printed: String = (0..*lines).map(|i| format!("{n} {i} {}\n", "x".repeat(*width))).collect();
    assert!(reply.stdout == printed, "{} bytes instead of {}", reply.stdout.len(), printed.len());
    assert_eq!(reply.result.unwrap()["text/plain"], format!("-{n}").replace("-0", "0"));
    if step.watched {
        let heard = heard.lock().unwrap();
        assert!(*heard == printed, "heard {} bytes of {}", heard.len(), printed.len());
    }
}
