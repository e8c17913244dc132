//! Promises of `Transport::open`, for transports whose capabilities say that they can.

use std::sync::Arc;
use std::time::Duration;

use farcell_core::{Command, Duplex, ErrorKind, Step, Transport};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use super::{nothing_left, soon};
use crate::subject::PATIENCE;

const CAT: Command = Command::sh("exec cat");

async fn open(t: &Arc<dyn Transport>, command: &Command) -> Option<Duplex> {
    let opened = t.open(command, soon()).await;
    if t.capabilities().opens {
        return Some(opened.unwrap());
    }
    let e = opened.expect_err("it says that it cannot");
    assert_eq!((e.kind(), e.step()), (ErrorKind::Transport, Some(Step::Connect)));
    None
}

/// What comes may be slow, but has to come.
async fn patiently<T>(work: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, work).await.expect("it never came")
}

async fn read(duplex: &mut Duplex, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    patiently(duplex.stdout.read_exact(&mut bytes)).await.unwrap();
    bytes
}

async fn read_to_end(duplex: &mut Duplex) -> Vec<u8> {
    let mut bytes = Vec::new();
    patiently(duplex.stdout.read_to_end(&mut bytes)).await.unwrap();
    bytes
}

pub(super) async fn echo(t: Arc<dyn Transport>) {
    let Some(mut duplex) = open(&t, &CAT).await else { return };
    for size in [1usize, 2, 9, 4096, 65_537] {
        let sent: Vec<u8> = (0..size).map(|i| (i % 251) as u8).collect();
        duplex.stdin.write_all(&sent).await.unwrap();
        duplex.stdin.flush().await.unwrap();
        assert!(read(&mut duplex, size).await == sent, "{size} bytes were changed");
    }
}

pub(super) async fn both_ways(t: Arc<dyn Transport>) {
    const SIZE: usize = 10_000_000;
    let Some(mut duplex) = open(&t, &CAT).await else { return };
    let sent: Vec<u8> = (0..SIZE).map(|i| (i % 241) as u8).collect();
    let feed = async {
        duplex.stdin.write_all(&sent).await.unwrap();
        duplex.stdin.shutdown().await.unwrap();
    };
    let mut got = Vec::new();
    let (read, ()) = patiently(async { tokio::join!(duplex.stdout.read_to_end(&mut got), feed) }).await;
    read.unwrap();
    assert!(got == sent, "{SIZE} bytes went in and {} came out", got.len());
}

pub(super) async fn end_of_file(t: Arc<dyn Transport>) {
    let Some(mut duplex) = open(&t, &Command::sh("cat >/dev/null; echo over")).await else { return };
    duplex.stdin.write_all(b"something").await.unwrap();
    duplex.stdin.shutdown().await.unwrap();
    assert_eq!(read_to_end(&mut duplex).await, b"over\n");
}

pub(super) async fn dropped(t: Arc<dyn Transport>) {
    const DEAF: Command = Command::sh("echo ready; sleep 615");
    const LOOK: Command = Command::sh(
        "for f in /proc/[0-9]*/cmdline; do grep -q ^sleep $f 2>/dev/null && grep -q 615 $f && echo $f; done; exit 0",
    );
    let Some(mut duplex) = open(&t, &DEAF).await else { return };
    assert_eq!(read(&mut duplex, 6).await, b"ready\n");
    let Duplex { stdin, stdout, running, .. } = duplex;
    drop(running);
    nothing_left(&t, &LOOK).await;
    drop((stdin, stdout));
}

pub(super) async fn stderr_apart(t: Arc<dyn Transport>) {
    // More of it than any pipe holds, and nobody asks for it.
    const TALKS: Command = Command::sh(
        "echo out; i=0; while [ $i -lt 20000 ]; do echo noise $i; i=$((i+1)); done >&2; echo why >&2; echo more; exec cat",
    );
    let Some(mut duplex) = open(&t, &TALKS).await else { return };
    assert_eq!(read(&mut duplex, 9).await, b"out\nmore\n");
    // It comes by another way, so perhaps a little later.
    let told = async {
        while !duplex.running.stderr().ends_with(b"noise 19999\nwhy\n") {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    patiently(told).await;
}

pub(super) async fn many(t: Arc<dyn Transport>) {
    // Much more than is held anywhere, and not without end: where its end is not read it stays behind this test for a moment.
    const FLOOD: Command = Command::sh("i=0; while [ $i -lt 2000000 ]; do echo flood; i=$((i+1)); done");
    // One place is left for commands.
    let many = t.capabilities().channels.map_or(8, |n| n.saturating_sub(1).min(8)).max(1);
    // An end that nobody reads holds up nobody else.
    let unread = if many > 1 { open(&t, &FLOOD).await } else { None };
    let several = (usize::from(unread.is_some())..many).map(|i| {
        let t = Arc::clone(&t);
        async move {
            let Some(mut duplex) = open(&t, &CAT).await else { return };
            for round in 0..20 {
                let sent = format!("command {i}, round {round}\n").into_bytes();
                duplex.stdin.write_all(&sent).await.unwrap();
                duplex.stdin.flush().await.unwrap();
                assert_eq!(read(&mut duplex, sent.len()).await, sent);
            }
        }
    });
    futures_util::future::join_all(several).await;
}

pub(super) async fn ended(t: Arc<dyn Transport>) {
    let Some(mut duplex) = open(&t, &Command::sh("echo last; exit 3")).await else { return };
    assert_eq!(read_to_end(&mut duplex).await, b"last\n");
    // Sooner or later, and never a panic.
    let refused = async { while duplex.stdin.write_all(&[0; 65_536]).await.is_ok() {} };
    patiently(refused).await;
}
