//! Kernels that stand ready on a target: a new session takes one over, and nobody who does can tell.

use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

use farcell::{Cell, NoEvents, Registry, RegistryOptions, Session, SessionOptions, State, Status, Target};
use libtest_mimic::Trial;

use crate::trial;

/// How long anything may take that has to happen at all.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("pool::a_new_session_takes_a_ready_kernel_over", taken_over)]
}

async fn taken_over() {
    if !cfg!(target_os = "linux") {
        return; // kernels are not forked elsewhere
    }
    let base = tempfile::tempdir().unwrap();
    let dir = base.path().join("base");
    let target: Target = format!("local:?dir={}", dir.display()).parse().unwrap();
    let registry =
        Registry::new(farcell::drivers(), RegistryOptions { cap: 3, ..RegistryOptions::default() });
    let options = SessionOptions { pool: Some(2), ..SessionOptions::default() };
    let session = |name: &str| registry.session("pool", name, &target, options.clone()).unwrap();
    let driver = registry.driver(&target).unwrap();

    let first = session("first");
    assert_eq!(begin(&first, 1).await, 1);
    wait_for(&registry, &target, 2).await;
    // The cap counts three sessions, whatever stands ready.
    let mut sessions = vec![first];
    for number in 2..=3 {
        let ready = ready(&dir);
        let next = session(&format!("session {number}"));
        assert_eq!(begin(&next, number).await, number);
        let pid = next.probe().await.unwrap().unwrap().kernel.unwrap().pid;
        assert!(ready.contains(&pid), "{pid} is none of {ready:?}");
        wait_for(&registry, &target, 2).await;
        sessions.push(next);
    }
    for (session, number) in sessions.iter().zip(1..) {
        let reply = session.run(&Cell::new("x"), &NoEvents).await.unwrap();
        assert_eq!(reply.kernel.state, State::Kept);
        assert_eq!(reply.result.unwrap()["text/plain"], number.to_string());
    }
    assert_eq!(driver.list(&target, None).await.unwrap().len(), 3);

    let pids = ready(&dir);
    assert_eq!(driver.cool(&target, dir.to_str().unwrap()).await.unwrap(), 1);
    wait_for(&registry, &target, 0).await;
    for pid in pids {
        let started = Instant::now();
        while Path::new(&format!("/proc/{pid}")).exists() {
            assert!(started.elapsed() < PATIENCE, "{pid} is still there");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
    registry.dispose_all().await.unwrap();
}

/// Runs the first cell of a session, and gives what it says of itself.
async fn begin(session: &Session, number: usize) -> usize {
    let reply = session.run(&Cell::new(format!("x = {number}\nx")), &NoEvents).await.unwrap();
    assert_eq!((reply.status, reply.kernel.state), (Status::Ok, State::Fresh), "{reply:#?}");
    reply.result.unwrap()["text/plain"].as_str().unwrap().parse().unwrap()
}

/// Waits until so many kernels stand ready there, as `doctor` counts them.
async fn wait_for(registry: &Registry, target: &Target, count: u64) {
    let driver = registry.driver(target).unwrap();
    let started = Instant::now();
    loop {
        let facts = driver.doctor(target, None, None).await.unwrap().facts;
        if facts["ready"] == count {
            return;
        }
        assert!(started.elapsed() < PATIENCE, "{} kernels stand ready, not {count}", facts["ready"]);
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// The numbers of the processes that stand ready, from the names of their directories.
fn ready(base: &Path) -> BTreeSet<i64> {
    let zygotes = std::fs::read_dir(base).unwrap().map(|entry| entry.unwrap());
    let zygotes = zygotes.filter(|entry| entry.file_name().to_string_lossy().starts_with("z-"));
    let inside = zygotes.flat_map(|zygote| std::fs::read_dir(zygote.path()).unwrap());
    inside
        .filter_map(|entry| entry.unwrap().file_name().to_str().unwrap().strip_prefix("r-")?.parse().ok())
        .collect()
}
