//! Promises of the trait `Transport`.

mod open;

use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use bytes::Bytes;
use farcell_core::{Command, Ended, ErrorKind, Instant, Transport};

use crate::CaseFuture;

/// One promise about a transport, and how it is checked.
#[derive(Clone, Copy)]
pub struct TransportCase {
    /// The promise, as a name.
    pub name: &'static str,
    /// Checks it; panics if it is broken.
    pub check: fn(Arc<dyn Transport>) -> CaseFuture<'static>,
}

/// All promises about transports. Those about [`Transport::open`] ask one that cannot do it only to say so.
pub fn transport_cases() -> Vec<TransportCase> {
    vec![
        TransportCase { name: "stdin_of_any_size_comes_back", check: |t| Box::pin(stdin_of_any_size(t)) },
        TransportCase { name: "stdout_and_stderr_are_kept_apart", check: |t| Box::pin(apart(t)) },
        TransportCase { name: "the_status_is_honest", check: |t| Box::pin(status(t)) },
        TransportCase { name: "a_deadline_ends_the_command", check: |t| Box::pin(deadline(t)) },
        TransportCase { name: "a_dropped_call_ends_the_command", check: |t| Box::pin(dropped(t)) },
        TransportCase { name: "commands_run_at_the_same_time", check: |t| Box::pin(parallel(t)) },
        TransportCase { name: "input_that_nobody_reads_is_no_error", check: |t| Box::pin(unread(t)) },
        TransportCase { name: "open_bytes_pass_as_they_come", check: |t| Box::pin(open::echo(t)) },
        TransportCase { name: "open_bytes_pass_both_ways_at_once", check: |t| Box::pin(open::both_ways(t)) },
        TransportCase { name: "open_end_of_file_arrives", check: |t| Box::pin(open::end_of_file(t)) },
        TransportCase { name: "open_a_dropped_command_ends", check: |t| Box::pin(open::dropped(t)) },
        TransportCase {
            name: "open_stderr_is_apart_and_never_in_the_way",
            check: |t| Box::pin(open::stderr_apart(t)),
        },
        TransportCase {
            name: "open_many_at_once_and_one_that_nobody_reads",
            check: |t| Box::pin(open::many(t)),
        },
        TransportCase { name: "open_the_end_of_a_command_is_seen", check: |t| Box::pin(open::ended(t)) },
    ]
}

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(30)
}

async fn stdin_of_any_size(t: Arc<dyn Transport>) {
    for size in [0usize, 1, 65_536, 10_000_000] {
        let stdin: Bytes = (0..size).map(|i| (i % 251) as u8).collect::<Vec<_>>().into();
        let out = t.exec(&Command::sh("exec cat"), stdin.clone(), soon()).await.unwrap();
        assert_eq!(out.ended, Ended::Exit(0));
        assert!(out.stdout == stdin, "{size} bytes went in and {} came out", out.stdout.len());
    }
}

async fn apart(t: Arc<dyn Transport>) {
    let out = t.exec(&Command::sh("echo out; echo err >&2; echo more"), Bytes::new(), soon()).await.unwrap();
    assert_eq!((&out.stdout[..], &out.stderr[..]), (&b"out\nmore\n"[..], &b"err\n"[..]));
}

async fn status(t: Arc<dyn Transport>) {
    for (command, code) in [
        (Command::sh("exit 0"), 0),
        (Command::sh("exit 7"), 7),
        (Command::sh("exit 97"), 97),
        (Command::sh("exit 255"), 255),
    ] {
        assert_eq!(t.exec(&command, Bytes::new(), soon()).await.unwrap().ended, Ended::Exit(code));
    }
    let killed = t.exec(&Command::sh("kill -9 $$"), Bytes::new(), soon()).await.unwrap().ended;
    if t.capabilities().tells_signals {
        assert_eq!(killed, Ended::Signal(9));
    } else {
        assert_ne!(killed, Ended::Exit(0), "a killed command is no success");
    }
}

async fn deadline(t: Arc<dyn Transport>) {
    const LONG: Command = Command::sh("sleep 613");
    const LOOK: Command = Command::sh(
        "for f in /proc/[0-9]*/cmdline; do grep -q ^sleep $f 2>/dev/null && grep -q 613 $f && echo $f; done; exit 0",
    );
    let started = StdInstant::now();
    let e = t.exec(&LONG, Bytes::new(), Instant::now() + Duration::from_millis(500)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Deadline);
    assert!(started.elapsed() < Duration::from_secs(5));
    nothing_left(&t, &LOOK).await;
}

async fn dropped(t: Arc<dyn Transport>) {
    const LONG: Command = Command::sh("sleep 614");
    const LOOK: Command = Command::sh(
        "for f in /proc/[0-9]*/cmdline; do grep -q ^sleep $f 2>/dev/null && grep -q 614 $f && echo $f; done; exit 0",
    );
    let call = t.exec(&LONG, Bytes::new(), soon());
    assert!(tokio::time::timeout(Duration::from_millis(500), call).await.is_err());
    nothing_left(&t, &LOOK).await;
}

/// The same case may run over another transport at the same time, so what is found has to go, not to be gone.
async fn nothing_left(t: &Arc<dyn Transport>, look: &Command) {
    let started = StdInstant::now();
    loop {
        let out = t.exec(look, Bytes::new(), soon()).await.unwrap();
        if out.stdout.is_empty() {
            return;
        }
        assert!(started.elapsed() < Duration::from_secs(10), "a command outlived its caller");
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

async fn parallel(t: Arc<dyn Transport>) {
    let many = t.capabilities().channels.unwrap_or(8).min(8);
    let calls = (0..many).map(|i| {
        let t = Arc::clone(&t);
        async move {
            let stdin = Bytes::from(format!("call {i}"));
            let out = t.exec(&Command::sh("exec cat"), stdin.clone(), soon()).await.unwrap();
            assert_eq!(out.stdout, stdin);
        }
    });
    futures_util::future::join_all(calls).await;
}

async fn unread(t: Arc<dyn Transport>) {
    let out = t.exec(&Command::sh("echo done"), Bytes::from(vec![b'x'; 1_000_000]), soon()).await.unwrap();
    assert_eq!((out.ended, &out.stdout[..]), (Ended::Exit(0), &b"done\n"[..]));
}
