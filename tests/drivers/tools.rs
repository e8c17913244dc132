//! Tool calls while the way to the kernel is cut, slow, or dead: each runs once, and its answer arrives.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

use farcell::tools::function;
use farcell::{Cell, Event, LinkChoice, NoEvents, Reply, Status, Tool, ToolCall, Tools};
use farcell_conformance::Subject;
use libtest_mimic::Trial;
use rustix::process::Signal;
use serde_json::json;
use tokio::sync::{Semaphore, mpsc};

use crate::falling_back::{answering, marked, signal};
use crate::wrapped::World;
use crate::{checked, trial};

/// How long anything may take that has to happen at all.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("tools::a_cut_during_a_call_does_not_run_it_twice", cut_during_call),
        trial("tools::a_cut_under_an_answer_loses_none", cut_under_answer),
        trial("tools::a_killed_courier_costs_no_call", killed_courier),
        trial("tools::a_call_outlasts_every_wait_over_a_stream", || outlasts(LinkChoice::Best)),
        trial("tools::a_call_outlasts_every_wait_by_commands", || outlasts(LinkChoice::ExecOnly)),
        trial("tools::a_call_over_a_stream_costs_a_round_trip", costs_a_round_trip),
    ]
}

/// A tool that says when it begins and waits until it may end.
struct Gated {
    tools: Tools,
    begun: mpsc::UnboundedReceiver<()>,
    gate: Arc<Semaphore>,
    calls: Arc<AtomicUsize>,
}

fn gated() -> Gated {
    let (begin, begun) = mpsc::unbounded_channel();
    let (gate, calls) = (Arc::new(Semaphore::new(0)), Arc::new(AtomicUsize::new(0)));
    let tool = {
        let (gate, calls) = (Arc::clone(&gate), Arc::clone(&calls));
        function("wait", "", json!({}), move |call: ToolCall| {
            let (gate, begin) = (Arc::clone(&gate), begin.clone());
            calls.fetch_add(1, SeqCst);
            async move {
                let _ = begin.send(());
                gate.acquire().await.expect("it stays open").forget();
                Ok(json!({"call": call.number, "fill": "x".repeat(300_000)}))
            }
        })
    };
    Gated { tools: Tools::new([tool]).unwrap(), begun, gate, calls }
}

impl Gated {
    async fn has_begun(&mut self) {
        tokio::time::timeout(PATIENCE, self.begun.recv()).await.expect("the call comes").unwrap();
    }
}

/// Two calls, one after the other.
const TWO: &str = "from farcell_tools import wait\na = wait()\nb = wait()\n\
    (a['call'], b['call'], len(a['fill']), len(b['fill']))";

fn is_right(reply: &Reply, gated: &Gated) {
    assert_eq!(reply.status, Status::Ok, "{reply:#?}");
    assert_eq!(reply.result.as_ref().unwrap()["text/plain"], "(1, 2, 300000, 300000)");
    assert_eq!((reply.tools.calls, gated.calls.load(SeqCst)), (2, 2));
}

async fn cut_during_call() {
    let world = Arc::new(World::default());
    let subject = Subject::new(world.drivers(LinkChoice::Best), "local:".parse().unwrap());
    let mut gated = gated();
    checked(&subject, async {
        let session = subject.session("a");
        let cell = Cell::new(TWO).tools(gated.tools.clone());
        let work = async {
            gated.has_begun().await;
            assert!(world.cut() >= 1, "the call came by a stream");
            gated.gate.add_permits(1);
            gated.has_begun().await;
            // That one came by another stream, or by a command.
            world.cut();
            gated.gate.add_permits(1);
        };
        let (reply, ()) = tokio::join!(session.run(&cell, &NoEvents), work);
        is_right(&reply.unwrap(), &gated);
    })
    .await;
}

/// The stream breaks at one place after the other, in the calls and in the answers.
async fn cut_under_answer() {
    let world = Arc::new(World::default());
    let subject = Subject::new(world.drivers(LinkChoice::Best), "local:".parse().unwrap());
    checked(&subject, async {
        let session = subject.session("a");
        session.run(&Cell::new("1"), &NoEvents).await.unwrap();
        for fuse in [700_000, 500_000, 350_000, 200_000, 50_000, 5_000] {
            let mut gated = gated();
            world.fuses.lock().unwrap().extend([i64::MAX, fuse / 2, fuse]);
            world.cut();
            gated.gate.add_permits(2);
            let cell = Cell::new(TWO).tools(gated.tools.clone());
            let notes = AtomicUsize::new(0);
            let count = |event: Event| {
                notes.fetch_add(usize::from(matches!(event, Event::Note(_))), SeqCst);
            };
            let reply = session.run(&cell, &count).await.unwrap();
            gated.has_begun().await;
            is_right(&reply, &gated);
            world.fuses.lock().unwrap().clear();
        }
    })
    .await;
}

async fn killed_courier() {
    let (mark, target) = marked("tools");
    let world = Arc::new(World::default());
    let subject = Subject::new(world.drivers(LinkChoice::Best), target);
    let mut gated = gated();
    checked(&subject, async {
        let session = subject.session("a");
        let cell = Cell::new(TWO).tools(gated.tools.clone());
        let work = async {
            for _ in 0..2 {
                gated.has_begun().await;
                answering(&mark).into_iter().for_each(|pid| signal(pid, Signal::KILL));
                gated.gate.add_permits(1);
            }
        };
        let (reply, ()) = tokio::join!(session.run(&cell, &NoEvents), work);
        is_right(&reply.unwrap(), &gated);
    })
    .await;
}

/// Longer than the far side holds any question.
async fn outlasts(links: LinkChoice) {
    let world = Arc::new(World::default());
    let subject = Subject::new(world.drivers(links), "local:".parse().unwrap());
    let mut gated = gated();
    checked(&subject, async {
        let session = subject.session("a");
        let cell = Cell::new(TWO).tools(gated.tools.clone()).timeout(Duration::from_secs(90));
        let work = async {
            gated.has_begun().await;
            tokio::time::sleep(Duration::from_secs(27)).await;
            gated.gate.add_permits(2);
        };
        let (reply, ()) = tokio::join!(session.run(&cell, &NoEvents), work);
        is_right(&reply.unwrap(), &gated);
    })
    .await;
}

/// The best of many, as the machine is busy with other tests: the order of magnitude is what is looked at here, `farcell bench` tells the figure.
async fn costs_a_round_trip() {
    let world = Arc::new(World::default());
    let subject = Subject::new(world.drivers(LinkChoice::Best), "local:".parse().unwrap());
    let echo: Arc<dyn Tool> = function("echo", "", json!({}), |_| async { Ok(json!(1)) });
    let tools = Tools::new([echo]).unwrap().budget(1000);
    checked(&subject, async {
        let session = subject.session("a");
        let code = "from farcell_tools import echo\nimport time\nbest = 9e9\nfor _ in range(300):\n    \
            t = time.perf_counter()\n    echo()\n    best = min(best, time.perf_counter() - t)\nbest * 1000";
        let reply = session.run(&Cell::new(code).tools(tools), &NoEvents).await.unwrap();
        assert_eq!(reply.status, Status::Ok, "{reply:#?}");
        let call: f64 = reply.result.unwrap()["text/plain"].as_str().unwrap().parse().unwrap();
        let mut trip = f64::MAX;
        for _ in 0..300 {
            let began = Instant::now();
            session.probe().await.unwrap();
            trip = trip.min(began.elapsed().as_secs_f64() * 1000.0);
        }
        assert!(call <= trip + 1.0, "a call costs {call} ms where a round trip costs {trip} ms");
    })
    .await;
}
