//! A far side that lies, and cells that attack their own kernel: the host stays as it was, and says what is the matter.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod attacks;
#[allow(dead_code, reason = "not all of it is of use here")]
#[path = "../common/cells.rs"]
mod cells;
mod couriers;
mod supervisors;

use std::path::PathBuf;
use std::time::Duration;

use farcell::{
    Cell, NoEvents, Registry, RegistryOptions, Reply, Result, Session, SessionOptions, Status, Target,
    TroubleKind,
};
use farcell_testbed::bounded;
use libtest_mimic::{Arguments, Trial};

/// How long a test may take before it counts as hung. Everything that is waited for here is bounded by less.
const BOUND: Duration = Duration::from_secs(90);

fn main() {
    // What is measured is this process, so that one test runs at a time.
    let arguments = Arguments { test_threads: Some(1), ..Arguments::from_args() };
    let trials =
        couriers::trials().into_iter().chain(supervisors::trials()).chain(attacks::trials()).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial(name: &str, work: impl AsyncFnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        bounded(BOUND, work());
        Ok(())
    })
}

/// The script that lies.
fn liar() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("fixtures/hostile/liar.py")
}

/// A session on a target, with a registry of its own.
fn session(target: &str) -> (Registry, Session) {
    let target: Target = target.parse().unwrap();
    let registry = Registry::new(farcell::drivers(), RegistryOptions::default());
    let owner = format!("hostile-{}", std::process::id());
    let session = registry.session(&owner, "s", &target, SessionOptions::default()).unwrap();
    (registry, session)
}

async fn run(session: &Session, seconds: u64) -> Result<Reply> {
    session.run(&Cell::new("1").timeout(Duration::from_secs(seconds)), &NoEvents).await
}

/// It is an answer that says that the far side makes no sense.
fn is_nonsense(ran: &Result<Reply>) {
    let reply = ran.as_ref().expect("what was sent has a reply");
    let error = reply.error.as_ref().unwrap_or_else(|| panic!("{reply:#?}"));
    assert_eq!((reply.status, error.kind), (Status::Lost, TroubleKind::Protocol), "{reply:#?}");
    assert!(error.message.len() < 10_000 && error.hint.is_some());
}

/// How many MiB of memory this process has, or had at the most.
fn memory(what: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("there is a /proc");
    let line = status.lines().find(|line| line.starts_with(what)).expect("memory is told");
    line.split_whitespace().nth(1).unwrap().parse::<u64>().unwrap() / 1024
}

/// Does `work`, in which this process grows by no more than `most` MiB at any moment.
async fn within<T>(most: u64, work: impl Future<Output = T>) -> T {
    // Since then is what VmHWM tells.
    std::fs::write("/proc/self/clear_refs", "5").expect("the peak can be set back");
    let before = memory("VmRSS:");
    let done = work.await;
    let grown = memory("VmHWM:").saturating_sub(before);
    assert!(grown <= most, "the host grew by {grown} MiB, which is more than {most}");
    done
}
