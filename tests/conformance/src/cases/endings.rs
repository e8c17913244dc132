//! Ways in which a cell ends that are not its last line: exits, deaths, deadlines.

use std::time::{Duration, Instant};

use farcell_core::{State, Status, TroubleKind};

use crate::Case;
use crate::subject::{Recorder, Subject, expect, ok, run, run_for, text};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case { name: "sys_exit_tells_its_code_and_keeps_the_state", check: |s| Box::pin(sys_exit(s)) },
        Case { name: "os_exit_is_a_reply_with_its_code", check: |s| Box::pin(os_exit(s)) },
        Case { name: "a_segfault_is_a_reply_with_its_signal", check: |s| Box::pin(segfault(s)) },
        Case { name: "a_kill_from_within_is_a_reply", check: |s| Box::pin(kill_within(s)) },
        Case { name: "a_fork_that_falls_out_of_the_cell_answers_nothing", check: |s| Box::pin(fork(s)) },
        Case { name: "a_timeout_keeps_state_and_output", check: |s| Box::pin(timeout(s)) },
        Case { name: "no_timeout_is_too_long", check: |s| Box::pin(long_timeout(s)) },
        Case {
            name: "a_cell_that_ignores_signals_is_ended_with_its_children",
            check: |s| Box::pin(ignores(s)),
        },
        Case { name: "a_child_left_behind_does_not_delay_the_reply", check: |s| Box::pin(left_behind(s)) },
        Case { name: "a_stopped_interpreter_is_ended_at_the_deadline", check: |s| Box::pin(sigstop(s)) },
        Case { name: "an_interpreter_killed_between_cells_is_told", check: |s| Box::pin(killed_between(s)) },
        Case { name: "a_dead_supervisor_is_told_within_a_second", check: |s| Box::pin(dead_supervisor(s)) },
        Case {
            name: "a_supervisor_killed_between_cells_is_told",
            check: |s| Box::pin(supervisor_between(s)),
        },
        Case { name: "memory_that_runs_out_is_an_exception", check: |s| Box::pin(memory(s)) },
    ]
}

async fn sys_exit(s: &Subject) {
    let session = s.session("a");
    ok(&session, "import sys; x = 1").await;
    for (code, exit, stderr) in [
        ("sys.exit()", 0, ""),
        ("sys.exit(3)", 3, ""),
        ("sys.exit('why')", 1, "why\n"),
        ("class E(SystemExit): pass\nraise E(5)", 5, ""),
        ("exit(4)", 4, ""),
    ] {
        let reply = run(&session, code).await;
        expect(&reply, Status::Exit, State::Kept);
        assert_eq!((reply.exit_code, reply.stderr.as_str()), (Some(exit), stderr), "{code}");
        assert_eq!(reply.error.expect("an error").kind, TroubleKind::Exit);
    }
    assert_eq!(text(&ok(&session, "x").await), "1");
}

async fn os_exit(s: &Subject) {
    let session = s.session("a");
    ok(&session, "import os; x = 1").await;
    let reply = run(&session, "print('so far'); os._exit(3)").await;
    expect(&reply, Status::Died, State::Reset);
    assert_eq!((reply.stdout.as_str(), reply.exit_code, &reply.signal), ("so far\n", Some(3), &None));
    assert_eq!(reply.error.expect("an error").kind, TroubleKind::Exit);
    assert_eq!(run(&session, "x").await.error.expect("an error").name, "NameError");
}

async fn segfault(s: &Subject) {
    let session = s.session("a");
    ok(&session, "import ctypes").await;
    let started = Instant::now();
    let reply = run(&session, "print('so far'); ctypes.string_at(0)").await;
    expect(&reply, Status::Died, State::Reset);
    assert_eq!(
        (reply.stdout.as_str(), reply.signal.as_deref(), reply.exit_code),
        ("so far\n", Some("SIGSEGV"), None)
    );
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    assert_eq!(text(&ok(&session, "1").await), "1");
}

async fn kill_within(s: &Subject) {
    let session = s.session("a");
    let reply =
        run(&session, "import os, signal; print('so far'); os.kill(os.getpid(), signal.SIGKILL)").await;
    expect(&reply, Status::Died, State::Reset);
    assert_eq!((reply.stdout.as_str(), reply.signal.as_deref()), ("so far\n", Some("SIGKILL")));
    assert!(
        reply.error.expect("an error").hint.is_some_and(|h| h.contains("memory")),
        "SIGKILL may be the OOM killer"
    );
}

async fn fork(s: &Subject) {
    let session = s.session("a");
    let reply = ok(&session, "import os\npid = os.fork()\nif pid == 0: print('child')\n'both'").await;
    assert_eq!(text(&reply), "'both'");
    let code = "_ = os.waitpid(pid, 0)\npid > 0";
    assert_eq!(text(&ok(&session, code).await), "True");
    assert_eq!(reply.kernel.id, ok(&session, "1").await.kernel.id);
}

async fn timeout(s: &Subject) {
    let session = s.session("a");
    ok(&session, "import time; x = 1").await;
    let code = "print('so far'); x = 2\nwhile True: time.sleep(0.01)";
    let reply = run_for(&session, code, Duration::from_millis(300)).await;
    expect(&reply, Status::Timeout, State::Kept);
    assert_eq!(reply.stdout, "so far\n");
    let error = reply.error.expect("an error");
    assert_eq!(error.kind, TroubleKind::Deadline);
    assert!(reply.duration_ms >= 300.0 && reply.duration_ms < 10_000.0);
    assert_eq!(text(&ok(&session, "x").await), "2");
    // A cell that swallows the interrupt has missed its deadline all the same.
    let code = "try:\n    time.sleep(60)\nexcept KeyboardInterrupt:\n    pass\nx = 3";
    expect(&run_for(&session, code, Duration::from_millis(300)).await, Status::Timeout, State::Kept);
    assert_eq!(text(&ok(&session, "x").await), "3");
}

async fn long_timeout(s: &Subject) {
    let session = s.session("a");
    ok(&session, "x = 0").await;
    for n in 1..=3 {
        let reply = run_for(&session, "x += 1; x", Duration::MAX).await;
        assert_eq!((reply.status, text(&reply)), (Status::Ok, n.to_string().as_str()), "{reply:#?}");
    }
}

async fn ignores(s: &Subject) {
    let session = s.session("a");
    let code = "import signal, subprocess, time\nfor n in (signal.SIGINT, signal.SIGTERM): signal.signal(n, signal.SIG_IGN)\n\
                p = subprocess.Popen(['sleep', '605'], start_new_session=True); print(p.pid, flush=True)\nwhile True: time.sleep(1)";
    let started = Instant::now();
    let reply = run_for(&session, code, Duration::from_millis(300)).await;
    expect(&reply, Status::Timeout, State::Reset);
    assert!(started.elapsed() < Duration::from_secs(12), "{:?}", started.elapsed());
    s.wait_gone(reply.stdout.trim().parse().expect("a pid")).await;
    assert_eq!(text(&ok(&session, "1").await), "1");
}

async fn left_behind(s: &Subject) {
    let session = s.session("a");
    let started = Instant::now();
    let reply = ok(&session, "import subprocess\np = subprocess.Popen(['sleep', '606'])\np.pid").await;
    assert!(started.elapsed() < Duration::from_secs(10));
    let pid: i64 = text(&reply).parse().expect("a pid");
    assert_eq!(text(&ok(&session, "p.poll()is None").await), "True", "it lives on");
    assert!(session.stop().await.unwrap());
    s.wait_gone(pid).await;
}

async fn sigstop(s: &Subject) {
    let session = s.session("a");
    let started = Instant::now();
    let code = "import os, signal; print('so far'); os.kill(os.getpid(), signal.SIGSTOP)";
    let reply = run_for(&session, code, Duration::from_millis(300)).await;
    expect(&reply, Status::Timeout, State::Reset);
    assert_eq!(reply.stdout, "so far\n");
    assert!(started.elapsed() < Duration::from_secs(12), "{:?}", started.elapsed());
}

async fn killed_between(s: &Subject) {
    let session = s.session("a");
    let pid = text(&ok(&session, "import os; x = 1; os.getpid()").await).parse().expect("a pid");
    s.signal(pid, 9).await;
    s.wait_gone(pid).await;
    let reply = ok(&session, "'x' in dir()").await;
    assert_eq!((text(&reply), reply.kernel.state), ("False", State::Lost), "{reply:#?}");
    assert!(reply.kernel.note.as_ref().is_some_and(|n| n.contains("SIGKILL")), "{:?}", reply.kernel.note);
    assert_eq!(ok(&session, "1").await.kernel.state, State::Kept);
}

async fn dead_supervisor(s: &Subject) {
    let session = s.session("a");
    ok(&session, "import time, os, subprocess").await;
    let supervisor = s.supervisor_pid(&session).await;
    let recorder = Recorder::default();
    let cell = farcell_core::Cell::new(
        "print('so far')\nprint(os.getpid())\np = subprocess.Popen(['sleep', '607'], start_new_session=True)\nprint(p.pid)\ntime.sleep(600)",
    );
    let running = session.run(&cell, &recorder);
    let kill = async {
        recorder.wait_for(|r| r.output().lines().count() >= 3).await;
        s.signal(supervisor, 9).await;
        Instant::now()
    };
    let (reply, killed) = tokio::join!(running, kill);
    let reply = reply.expect("a reply");
    assert!(killed.elapsed() < Duration::from_secs(3), "told after {:?}", killed.elapsed());
    expect(&reply, Status::Died, State::Lost);
    assert!(reply.stdout.starts_with("so far\n"), "{reply:#?}");
    // Nothing that it started outlives it.
    for line in reply.stdout.lines().skip(1) {
        s.wait_gone(line.parse().expect("a pid")).await;
    }
    let next = ok(&session, "'time' in dir()").await;
    assert_eq!(
        (text(&next), next.kernel.state),
        ("False", State::Fresh),
        "it has been told already: {next:#?}"
    );
}

async fn supervisor_between(s: &Subject) {
    let session = s.session("a");
    let first = ok(&session, "import os; x = 1; os.getpid()").await;
    let interpreter = text(&first).parse().expect("a pid");
    let supervisor = s.supervisor_pid(&session).await;
    s.signal(supervisor, 9).await;
    // A cell sent in the very moment of a death has an unknown fate, and is not what is tested here.
    s.wait_gone(supervisor).await;
    s.wait_gone(interpreter).await;
    while session.probe().await.is_ok_and(|p| p.is_some_and(|p| p.alive)) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let reply = ok(&session, "'x' in dir()").await;
    assert_eq!((text(&reply), reply.kernel.state), ("False", State::Lost), "{reply:#?}");
    assert_ne!(reply.kernel.id, first.kernel.id);
    assert!(!reply.kernel.reused && reply.kernel.note.is_some());
    assert_eq!(ok(&session, "1").await.kernel.state, State::Kept);
}

async fn memory(s: &Subject) {
    let options = farcell_core::SessionOptions {
        limits: farcell_core::Limits { memory_bytes: Some(512 << 20), ..farcell_core::Limits::default() },
        ..farcell_core::SessionOptions::default()
    };
    let session = s.registry.session("limited", "memory", &s.target, options).unwrap();
    let reply = run(&session, "x = bytearray(1 << 30)").await;
    assert_eq!(reply.error.expect("an error").name, "MemoryError");
    assert_eq!(text(&ok(&session, "1").await), "1");
}
