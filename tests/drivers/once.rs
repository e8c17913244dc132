//! Targets that can hold no kernel: a cell runs there once by itself, and never a second time.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use farcell::{Cell, ErrorKind, LinkChoice, NoEvents, Reply, Session, SessionOptions, State, Status};
use farcell_conformance::Subject;
use farcell_testbed::{Bare, available};
use libtest_mimic::Trial;

use crate::wrapped::World;
use crate::{checked, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("once::where_nothing_can_be_written_cells_run_by_themselves", nothing_writable),
        trial("once::what_needs_a_kernel_is_refused_there", needs_a_kernel),
        trial("once::a_session_that_had_a_kernel_gets_the_error", had_a_kernel),
        trial("once::a_directory_that_was_named_is_not_passed_over", named),
        trial("once::without_a_free_process_the_cell_runs_in_the_one_of_its_command", no_process),
        trial("once::the_processes_of_the_stream_make_room_for_the_cell", stream_makes_room),
        trial("once::a_cut_in_the_middle_loses_the_reply_and_never_runs_it_twice", cut_in_the_middle),
        trial("once::a_cut_behind_the_cell_loses_the_reply_and_never_runs_it_twice", cut_at_the_end),
        trial("once::a_connection_that_fails_before_the_cell_has_not_run_it", cut_before),
    ]
}

fn subject(bare: &Bare, world: &Arc<World>, links: LinkChoice) -> Subject {
    Subject::new(world.drivers(links), bare.target().parse().unwrap())
}

fn without_places(user: u32) -> Option<Bare> {
    available(Bare::without_places(user))
}

fn with_processes(user: u32, processes: u32) -> Option<Bare> {
    available(Bare::with_processes(user, processes))
}

const COUNT: &str = "print('ran', file=open('/mnt/count', 'a'), flush=True)\n";

async fn run(session: &Session, cell: impl Into<Cell>) -> Reply {
    session.run(&cell.into(), &NoEvents).await.unwrap()
}

/// What all replies without a kernel say.
fn is_alone(reply: &Reply, why: &str) {
    let kernel = &reply.kernel;
    assert_eq!((kernel.state, &kernel.id, kernel.reused), (State::None, &None, false), "{reply:#?}");
    let note = kernel.note.as_ref().unwrap();
    assert!(note.contains("not kept") && note.contains(why), "{note}");
}

async fn nothing_writable() {
    let Some(bare) = without_places(61_241) else { return };
    for links in [LinkChoice::Best, LinkChoice::ExecOnly] {
        let world = Arc::new(World::default());
        let subject = subject(&bare, &world, links);
        checked(&subject, async {
            let session = subject.session("a");
            let reply =
                run(&session, "import sys\nx = 41\nprint('out'); print('err', file=sys.stderr)\nx + 1").await;
            is_alone(&reply, "dir=");
            assert!(reply.kernel.note.as_ref().unwrap().contains("/var/tmp"), "{reply:#?}");
            assert_eq!((reply.status, &*reply.stdout, &*reply.stderr), (Status::Ok, "out\n", "err\n"));
            assert_eq!(reply.result.as_ref().unwrap()["text/plain"], "42");
            let reply = run(&session, "x").await;
            is_alone(&reply, "dir=");
            assert_eq!((reply.status, reply.error.unwrap().name.as_str()), (Status::Error, "NameError"));
            let reply = run(&session, "import sys; sys.exit(3)").await;
            assert_eq!((reply.status, reply.exit_code), (Status::Exit, Some(3)));
            let reply = run(&session, "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)").await;
            is_alone(&reply, "dir=");
            assert_eq!((reply.status, reply.signal.as_deref()), (Status::Died, Some("SIGSEGV")));
            let cell = Cell::new("import time\nprint('so far', flush=True)\ntime.sleep(600)");
            let reply = run(&session, cell.timeout(Duration::from_millis(300))).await;
            assert_eq!((reply.status, &*reply.stdout), (Status::Timeout, "so far\n"));
            assert!(session.probe().await.unwrap().is_none());
        })
        .await;
    }
}

async fn needs_a_kernel() {
    let Some(bare) = without_places(61_242) else { return };
    let world = Arc::new(World::default());
    let subject = subject(&bare, &world, LinkChoice::Best);
    checked(&subject, async {
        let session = subject.session("a");
        let mut reset = Cell::new(COUNT);
        reset.reset = true;
        let e = session.run(&reset, &NoEvents).await.unwrap_err();
        assert!(e.kind() == ErrorKind::NoPlace && e.message().starts_with("a reset needs a kernel"), "{e:?}");
        let e = session.submit(&Cell::new(COUNT), &NoEvents).await.unwrap_err();
        assert!(e.kind() == ErrorKind::NoPlace && e.hint().unwrap().contains("dir="), "{e:?}");
        assert_eq!(bare.lines(), 0);
    })
    .await;
}

async fn had_a_kernel() {
    let Some(bare) = without_places(61_243) else { return };
    let world = Arc::new(World::default());
    let subject = subject(&bare, &world, LinkChoice::Best);
    bare.open_places();
    checked(&subject, async {
        let session = subject.session("a");
        let reply = run(&session, "import os; os.getppid()").await;
        assert_eq!((reply.status, reply.kernel.state), (Status::Ok, State::Fresh));
        let pid = reply.result.unwrap()["text/plain"].as_str().unwrap().parse().unwrap();
        world.cut();
        bare.close_places();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
        let outcome = session.run(&Cell::new(COUNT), &NoEvents).await;
        assert!(
            outcome.is_err() || outcome.as_ref().is_ok_and(|reply| reply.status == Status::Died),
            "{outcome:#?}"
        );
        let e = session.run(&Cell::new(COUNT), &NoEvents).await.unwrap_err();
        assert_eq!((e.kind(), bare.lines()), (ErrorKind::NoPlace, 0), "{e:?}");
    })
    .await;
}

async fn named() {
    let Some(bare) = without_places(61_244) else { return };
    let world = Arc::new(World::default());
    let subject = subject(&bare, &world, LinkChoice::Best);
    checked(&subject, async {
        let options =
            SessionOptions { dir: Some("/tmp/farcell-of-mine".to_owned()), ..SessionOptions::default() };
        let session = subject.registry.session("once", "a", &subject.target, options).unwrap();
        let e = session.run(&Cell::new(COUNT), &NoEvents).await.unwrap_err();
        assert_eq!((e.kind(), bare.lines()), (ErrorKind::Spawn, 0), "{e:?}");
        assert!(e.message().contains("/tmp/farcell-of-mine"), "{e:?}");
    })
    .await;
}

async fn no_process() {
    let Some(bare) = with_processes(61_245, 2) else { return };
    let world = Arc::new(World::default());
    let subject = subject(&bare, &world, LinkChoice::ExecOnly);
    checked(&subject, async {
        let session = subject.session("a");
        let reply = run(&session, format!("{COUNT}print('out')\n6 * 7").as_str()).await;
        is_alone(&reply, "no free process");
        assert_eq!((reply.status, &*reply.stdout, bare.lines()), (Status::Ok, "out\n", 1));
        // Nobody is left to tell how it ended.
        let reply = run(&session, format!("{COUNT}import os; os._exit(7)").as_str()).await;
        is_alone(&reply, "no free process");
        assert_eq!((reply.status, bare.lines()), (Status::Lost, 2));
    })
    .await;
}

async fn stream_makes_room() {
    for processes in [3, 4] {
        let Some(bare) = with_processes(61_246 + processes, processes) else { return };
        let world = Arc::new(World::default());
        let subject = subject(&bare, &world, LinkChoice::Best);
        checked(&subject, async {
            let session = subject.session("a");
            for n in 1..3 {
                let reply = run(&session, format!("{COUNT}6 * 7").as_str()).await;
                is_alone(&reply, "no free process");
                assert_eq!((reply.status, bare.lines()), (Status::Ok, n), "{reply:#?}");
            }
        })
        .await;
    }
}

fn is_lost(reply: &Reply) {
    is_alone(reply, "dir=");
    assert_eq!(reply.status, Status::Lost, "{reply:#?}");
    let error = reply.error.as_ref().unwrap();
    assert!(error.hint.as_ref().unwrap().contains("may have run"), "{error:?}");
}

async fn cut_in_the_middle() {
    for links in [LinkChoice::Best, LinkChoice::ExecOnly] {
        let prepare = |world: &World, count: PathBuf| *world.cut_once_written.lock().unwrap() = Some(count);
        lose(links, prepare, "time.sleep(600)").await;
    }
}

async fn cut_at_the_end() {
    lose(LinkChoice::Best, |world, _| world.loses_answers.store(true, SeqCst), "1").await;
}

async fn lose(links: LinkChoice, prepare: impl Fn(&World, PathBuf), ending: &str) {
    let Some(bare) = without_places(61_251) else { return };
    let world = Arc::new(World::default());
    let subject = subject(&bare, &world, links);
    checked(&subject, async {
        let session = subject.session("a");
        run(&session, "1").await;
        let execs = world.counts().execs;
        prepare(&world, bare.count());
        is_lost(&run(&session, format!("import time\n{COUNT}{ending}").as_str()).await);
        // With the spawn that found no place.
        let more = if links == LinkChoice::Best { 1 } else { 2 };
        assert_eq!((bare.lines(), world.counts().execs), (1, execs + more));
    })
    .await;
}

async fn cut_before() {
    let Some(bare) = without_places(61_252) else { return };
    let world = Arc::new(World::default());
    let subject = subject(&bare, &world, LinkChoice::Best);
    checked(&subject, async {
        let session = subject.session("a");
        run(&session, "1").await;
        world.execs_fail.store(true, SeqCst);
        let e = session.run(&Cell::new(COUNT), &NoEvents).await.unwrap_err();
        assert_eq!((e.kind(), bare.lines()), (ErrorKind::Transport, 0), "{e:?}");
    })
    .await;
}
