//! Streams that cannot be had, that break, or that fall silent: cells go on by commands, and each runs once.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

use farcell::{Capabilities, Cell, Event, LinkChoice, NoEvents, Session, Status, Target};
use farcell_conformance::Subject;
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use crate::wrapped::World;
use crate::{checked, trial};

/// How long anything may take that has to happen at all.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("stream::all_cells_go_over_one", one_stream),
        trial("stream::a_transport_that_cannot_open_is_not_asked_to", cannot_open),
        trial("stream::one_that_says_so_and_cannot_is_no_harm", says_so_and_cannot),
        trial("stream::refused_at_first_and_taken_later", refused_at_first),
        trial("stream::a_far_end_without_a_python_is_no_harm", no_python_there),
        trial("stream::a_far_end_that_ends_at_once_is_no_harm", ends_at_once),
        trial("stream::a_killed_courier_costs_no_cell", killed_courier),
        trial("stream::a_stopped_courier_costs_no_cell", stopped_courier),
        trial("stream::nothing_is_left_when_the_last_handle_goes", nothing_left),
        trial("stream::few_channels_are_enough", few_channels),
        trial("stream::a_control_has_a_channel_when_all_others_are_taken", control_has_a_channel),
    ]
}

/// A subject in a world of its own.
fn subject(world: &Arc<World>, links: LinkChoice) -> Subject {
    Subject::new(world.drivers(links), "local:".parse().unwrap())
}

/// Runs a cell that counts itself, and judges its reply.
async fn count(session: &Session, n: usize, pause_ms: u64) {
    let code = format!(
        "import time\nruns = globals().setdefault('runs', {{}})\nruns[{n}] = runs.get({n}, 0) + 1\n\
         print('begin {n}', flush=True)\ntime.sleep({pause_ms} / 1000)\nprint('end {n}')\n{n} * 2"
    );
    let reply = session.run(&Cell::new(code), &NoEvents).await.unwrap();
    assert_eq!(reply.status, Status::Ok, "{reply:#?}");
    assert_eq!(reply.stdout, format!("begin {n}\nend {n}\n"));
    assert_eq!(reply.result.unwrap()["text/plain"], (n * 2).to_string());
}

/// Asserts that each of these cells ran once.
async fn each_ran_once(session: &Session, numbers: impl Iterator<Item = usize>) {
    let code = "import json; json.dumps(sorted(runs.items()))";
    let reply = session.run(&Cell::new(code), &NoEvents).await.unwrap();
    let text = reply.result.unwrap()["text/plain"].as_str().unwrap().trim_matches('\'').to_owned();
    let runs: Vec<(usize, usize)> = serde_json::from_str(&text).unwrap();
    let expected: BTreeMap<usize, usize> = numbers.map(|n| (n, 1)).collect();
    assert_eq!(runs.into_iter().collect::<BTreeMap<_, _>>(), expected);
}

async fn one_stream() {
    let world = Arc::new(World::default());
    let subject = subject(&world, LinkChoice::Best);
    checked(&subject, async {
        let sessions: Vec<_> = (0..3).map(|n| subject.session(&format!("s{n}"))).collect();
        for (n, session) in sessions.iter().enumerate() {
            for k in 0..5 {
                count(session, n * 100 + k, 0).await;
            }
            session.probe().await.unwrap();
            each_ran_once(session, n * 100..n * 100 + 5).await;
        }
        let counts = world.counts();
        assert_eq!((counts.opened, counts.execs), (1, 0));
    })
    .await;
}

async fn by_commands(world: &Arc<World>) {
    let subject = subject(world, LinkChoice::Best);
    checked(&subject, async {
        let session = subject.session("a");
        for n in 0..4 {
            count(&session, n, 0).await;
        }
        each_ran_once(&session, 0..4).await;
    })
    .await;
    assert!(world.counts().execs >= 5);
}

async fn cannot_open() {
    let world = Arc::new(World::default());
    *world.capabilities.lock().unwrap() = Some(Capabilities::new());
    by_commands(&world).await;
    assert_eq!(world.counts().asked, 0);
}

async fn says_so_and_cannot() {
    let world = Arc::new(World::default());
    world.refuses.store(true, SeqCst);
    by_commands(&world).await;
    assert!(world.counts().asked >= 1);
}

async fn no_python_there() {
    let world = Arc::new(World::default());
    // What the shipped script says there.
    *world.opens_to.lock().unwrap() =
        Some(r#"exec:sh -c 'read n; echo "$n no-python none"'"#.parse().unwrap());
    by_commands(&world).await;
    assert!(world.counts().opened >= 1);
}

async fn ends_at_once() {
    let world = Arc::new(World::default());
    *world.opens_to.lock().unwrap() = Some("exec:false".parse().unwrap());
    by_commands(&world).await;
    assert!(world.counts().opened >= 1);
}

async fn refused_at_first() {
    let world = Arc::new(World::default());
    world.refuses.store(true, SeqCst);
    let subject = subject(&world, LinkChoice::Best);
    checked(&subject, async {
        let session = subject.session("a");
        count(&session, 0, 0).await;
        let refused = world.counts();
        assert!(refused.execs >= 2 && refused.opened == 0);
        world.refuses.store(false, SeqCst);
        let (began, mut n) = (Instant::now(), 1);
        while world.counts().opened == 0 {
            assert!(began.elapsed() < PATIENCE, "no stream was tried again");
            count(&session, n, 10).await;
            n += 1;
        }
        let execs = world.counts().execs;
        count(&session, n, 0).await;
        each_ran_once(&session, 0..n + 1).await;
        assert_eq!(world.counts().execs, execs);
    })
    .await;
}

/// A target whose couriers can be told from those of other tests.
pub(crate) fn marked(name: &str) -> (String, Target) {
    let mark = format!("FARCELL_TEST_COURIER={name}-{}", std::process::id());
    let target = format!("exec:env {mark}").parse().unwrap();
    (mark, target)
}

/// A process with the mark.
struct Marked {
    pid: i32,
    /// The program that answers: a courier, or the far side of a command. The shell that has found it is its parent, and a child of ours.
    answers: bool,
}

fn marked_processes(mark: &str) -> Vec<Marked> {
    let parent = |pid: i32| -> Option<i32> {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
        if fields.next()? == "Z" { None } else { fields.next()?.parse().ok() }
    };
    let marked = |pid: i32| -> Option<Marked> {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).ok()?;
        let is_marked = environment.split(|b| *b == 0).any(|v| v == mark.as_bytes());
        let grandparent = parent(parent(pid)?);
        let answers = grandparent == i32::try_from(std::process::id()).ok();
        is_marked.then_some(Marked { pid, answers })
    };
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| marked(entry.file_name().to_str()?.parse().ok()?)).collect()
}

/// The couriers, and what answers commands.
pub(crate) fn answering(mark: &str) -> Vec<i32> {
    marked_processes(mark).into_iter().filter(|process| process.answers).map(|process| process.pid).collect()
}

pub(crate) fn signal(pid: i32, signal: Signal) {
    // It may have ended by itself.
    let _ = kill_process(Pid::from_raw(pid).unwrap(), signal);
}

async fn killed_courier() {
    const KILLS: usize = 5;
    let (mark, target) = marked("killed");
    let world = Arc::new(World::default());
    let subject = Subject::new(world.drivers(LinkChoice::Best), target);
    checked(&subject, async {
        let sessions: Vec<_> = (0..3).map(|n| subject.session(&format!("s{n}"))).collect();
        for (s, session) in sessions.iter().enumerate() {
            count(session, s * 1000, 0).await;
        }
        let is_over = AtomicBool::new(false);
        let is_over = &is_over;
        let work = sessions.iter().enumerate().map(|(s, session)| async move {
            let mut n = 1;
            while !is_over.load(SeqCst) {
                count(session, s * 1000 + n, (n as u64 * 13) % 80).await;
                n += 1;
            }
            each_ran_once(session, s * 1000..s * 1000 + n).await;
        });
        let kill = async {
            for round in 0..KILLS {
                wait_until("another stream was opened", || world.counts().opened > round).await;
                // Sooner or later in its life, and in that of the cells on it.
                tokio::time::sleep(Duration::from_millis(20 + 70 * round as u64)).await;
                // Perhaps also a command that stands in for it.
                answering(&mark).into_iter().for_each(|pid| signal(pid, Signal::KILL));
            }
            is_over.store(true, SeqCst);
        };
        tokio::join!(futures_util::future::join_all(work), kill);
    })
    .await;
}

async fn stopped_courier() {
    let (mark, target) = marked("stopped");
    let world = Arc::new(World::default());
    let subject = Subject::new(world.drivers(LinkChoice::Best), target);
    let dir = tempfile::tempdir().unwrap();
    checked(&subject, async {
        let session = subject.session("a");
        count(&session, 0, 0).await;
        let couriers = answering(&mark);
        assert_eq!((couriers.len(), world.counts().opened), (1, 1));
        let go_on = dir.path().join("go-on");
        let code = format!(
            "import time, os\nruns[1] = runs.get(1, 0) + 1\nprint('begun', flush=True)\nwhile not os.path.exists({go_on:?}):\n    time.sleep(0.01)\n'over'"
        );
        let stop = |event: Event| {
            // The line's end may come by itself.
            if matches!(&event, Event::Output { text, .. } if text.starts_with("begun")) {
                signal(couriers[0], Signal::STOP);
                std::fs::write(&go_on, "").unwrap();
            }
        };
        let began = Instant::now();
        let reply = session.run(&Cell::new(code), &stop).await.unwrap();
        assert_eq!((reply.status, reply.stdout.as_str()), (Status::Ok, "begun\n"), "{reply:#?}");
        let took = began.elapsed();
        assert!(took > Duration::from_secs(5) && took < PATIENCE, "{took:?}");
        each_ran_once(&session, 0..2).await;
        assert!(!answering(&mark).contains(&couriers[0]), "it was not left behind");
    })
    .await;
}

async fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

async fn nothing_left() {
    let (mark, target) = marked("left");
    let world = Arc::new(World::default());
    let subject = Subject::new(world.drivers(LinkChoice::Best), target);
    // That of the registry's own clock.
    let tasks = || tokio::runtime::Handle::current().metrics().num_alive_tasks();
    let before = tasks();
    checked(&subject, count(&subject.session("a"), 0, 0)).await;
    assert_eq!((answering(&mark).len(), world.running.load(SeqCst)), (1, 1));
    assert!(tasks() > before);
    drop(subject);
    wait_until("the courier, its pipes and its task are gone", || {
        marked_processes(&mark).is_empty() && world.running.load(SeqCst) == 0 && tasks() <= before
    })
    .await;
}

async fn few_channels() {
    for links in [LinkChoice::Best, LinkChoice::ExecOnly] {
        let world = Arc::new(World::default());
        *world.capabilities.lock().unwrap() = Some(Capabilities::new().channels(3).opens(true));
        let subject = subject(&world, links);
        checked(&subject, async {
            let sessions: Vec<_> = (0..6).map(|n| subject.session(&format!("s{n}"))).collect();
            let work = sessions.iter().map(|session| async {
                for n in 0..3 {
                    count(session, n, 50).await;
                    if n == 1 && links == LinkChoice::Best {
                        world.cut();
                    }
                }
                each_ran_once(session, 0..3).await;
            });
            futures_util::future::join_all(work).await;
        })
        .await;
        assert!(world.most.load(SeqCst) <= 3, "{links:?}: {} at once", world.most.load(SeqCst));
    }
}

async fn control_has_a_channel() {
    let world = Arc::new(World::default());
    *world.capabilities.lock().unwrap() = Some(Capabilities::new().channels(2).opens(true));
    let subject = subject(&world, LinkChoice::ExecOnly);
    checked(&subject, async {
        let (one, two) = (subject.session("one"), subject.session("two"));
        count(&one, 0, 0).await;
        count(&two, 0, 0).await;
        let began = Instant::now();
        let cell = Cell::new("import time; time.sleep(600)");
        let interrupt = async {
            wait_until("the first cell has its place", || world.running.load(SeqCst) > 0).await;
            // It waits for the one place that cells have, behind the first.
            let second = count(&two, 1, 0);
            let interrupt = async {
                while !one.interrupt(None).await.unwrap().done {
                    tokio::time::sleep(Duration::from_millis(20)).await;
                }
            };
            tokio::join!(second, interrupt);
        };
        let (reply, ()) = tokio::join!(one.run(&cell, &NoEvents), interrupt);
        assert_eq!(reply.unwrap().status, Status::Interrupted);
        assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
        assert!(world.most.load(SeqCst) <= 2);
    })
    .await;
}
