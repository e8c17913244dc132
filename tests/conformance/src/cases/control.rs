//! Interrupting, resetting, stopping and asking.

use std::time::{Duration, Instant};

use farcell_core::{Cell, CellNumber, NoEvents, ReadFile, State, Status};

use crate::Case;
use crate::subject::{Recorder, Subject, expect, ok, run, text};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case { name: "an_interrupt_keeps_state_and_output", check: |s| Box::pin(interrupt(s)) },
        Case { name: "an_interrupt_of_nothing_does_nothing", check: |s| Box::pin(interrupt_nothing(s)) },
        Case { name: "an_interrupt_reaches_await_and_children", check: |s| Box::pin(interrupt_await(s)) },
        Case {
            name: "sigint_works_after_a_start_in_the_background",
            check: |s| Box::pin(sigint_restored(s)),
        },
        Case { name: "a_probe_tells_what_runs", check: |s| Box::pin(probe(s)) },
        Case { name: "a_stop_answers_the_running_cell", check: |s| Box::pin(stop_running(s)) },
        Case { name: "files_of_a_kernel_can_be_read", check: |s| Box::pin(read(s)) },
    ]
}

async fn interrupt(s: &Subject) {
    let session = s.session("a");
    ok(&session, "import time; x = 1").await;
    let recorder = Recorder::default();
    let cell = Cell::new("x = 2; print('so far', flush=True)\nwhile True: time.sleep(0.01)");
    let stop = async {
        recorder.wait_for(|r| r.output() == "so far\n").await;
        session.interrupt(None).await.unwrap()
    };
    let (reply, done) = tokio::join!(session.run(&cell, &recorder), stop);
    let reply = reply.unwrap();
    assert!(done.done, "{done:?}");
    expect(&reply, Status::Interrupted, State::Kept);
    assert_eq!(reply.stdout, "so far\n");
    assert_eq!(reply.error.unwrap().name, "KeyboardInterrupt");
    let next = ok(&session, "x").await;
    assert_eq!((text(&next), next.kernel.state), ("2", State::Kept), "the next cell runs as always");
}

async fn interrupt_nothing(s: &Subject) {
    let session = s.session("a");
    let reply = ok(&session, "x = 1").await;
    assert!(!session.interrupt(None).await.unwrap().done);
    assert!(!session.interrupt(Some(CellNumber(77))).await.unwrap().done);
    let next = ok(&session, "x").await;
    assert_eq!((text(&next), &next.kernel.id), ("1", &reply.kernel.id));
}

async fn interrupt_await(s: &Subject) {
    let session = s.session("a");
    ok(&session, "import asyncio, subprocess, time").await;
    for code in [
        "print('up', flush=True)\nawait asyncio.sleep(600)",
        "print('up', flush=True)\nsubprocess.run(['sleep', '607'])",
    ] {
        let recorder = Recorder::default();
        let cell = Cell::new(code);
        let stop = async {
            recorder.wait_for(|r| r.output() == "up\n").await;
            session.interrupt(None).await.unwrap()
        };
        let (reply, _) = tokio::join!(session.run(&cell, &recorder), stop);
        expect(&reply.unwrap(), Status::Interrupted, State::Kept);
    }
    assert_eq!(text(&ok(&session, "await asyncio.sleep(0, 5)").await), "5");
}

async fn sigint_restored(s: &Subject) {
    let session = s.session("a");
    let reply = ok(
        &session,
        "import signal; signal.getsignal(signal.SIGINT) not in (signal.SIG_IGN, signal.SIG_DFL, None)",
    )
    .await;
    assert_eq!(text(&reply), "True");
    // Children do not inherit an ignored SIGINT either.
    let code = "import subprocess, sys\nsubprocess.run([sys.executable, '-c', 'import signal; print(signal.getsignal(signal.SIGINT) is signal.SIG_IGN)'], stdout=subprocess.PIPE).stdout";
    assert_eq!(text(&ok(&session, code).await), "b'False\\n'");
}

async fn probe(s: &Subject) {
    let session = s.session("a");
    assert!(session.probe().await.unwrap().is_none(), "asking starts nothing");
    ok(&session, "import time").await;
    let idle = session.probe().await.unwrap().unwrap();
    assert!(idle.alive && idle.running.is_none() && idle.waiting == 0, "{idle:?}");
    let recorder = Recorder::default();
    let cell = Cell::new("print('up', flush=True); time.sleep(60)");
    let look = async {
        recorder.wait_for(|r| r.output() == "up\n").await;
        let busy = session.probe().await.unwrap().unwrap();
        session.interrupt(None).await.unwrap();
        busy
    };
    let (_, busy) = tokio::join!(session.run(&cell, &recorder), look);
    assert_eq!(busy.running.expect("a running cell").number, CellNumber(2));
}

async fn stop_running(s: &Subject) {
    let session = s.session("a");
    ok(&session, "import time").await;
    let recorder = Recorder::default();
    let cell = Cell::new("print('so far', flush=True); time.sleep(600)");
    let started = Instant::now();
    let stop = async {
        recorder.wait_for(|r| r.output() == "so far\n").await;
        session.stop().await.unwrap()
    };
    let (reply, stopped) = tokio::join!(session.run(&cell, &recorder), stop);
    assert!(stopped && started.elapsed() < Duration::from_secs(20));
    let reply = reply.unwrap();
    assert_eq!((reply.status, reply.stdout.as_str()), (Status::Died, "so far\n"), "{reply:#?}");
}

async fn read(s: &Subject) {
    let session = s.session("a");
    let mut cell = Cell::new("print('z' * 100_000)");
    cell.max_output = 1000;
    let reply = session.run(&cell, &NoEvents).await.unwrap();
    let (mut offset, mut all) = (0, Vec::new());
    loop {
        let piece = session.read(ReadFile::Out, reply.cell.number, offset, 30_000).await.unwrap();
        if piece.bytes.is_empty() {
            break;
        }
        all.extend_from_slice(&piece.bytes);
        offset = piece.next;
    }
    assert_eq!(all.iter().filter(|b| **b == b'z').count(), 100_000, "all of the output is there");
    assert_eq!(run(&session, "1").await.status, Status::Ok);
}
