//! What can happen to a container, and what images can lack: each trap is a test of its own, against a real engine.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod boxes;
#[path = "../common/cells.rs"]
mod cells;
mod events;
mod images;

use std::time::Duration;

use libtest_mimic::{Arguments, Trial};

/// How long a test may take before it counts as hung.
const BOUND: Duration = Duration::from_secs(180);

fn main() {
    let arguments = Arguments::from_args();
    let trials = events::trials().into_iter().chain(images::trials()).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial<F>(name: &str, work: impl FnOnce() -> F + Send + 'static) -> Trial
where
    F: Future<Output = ()>,
{
    Trial::test(name, move || {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(async { tokio::time::timeout(BOUND, work()).await.expect("the test hangs") });
        runtime.shutdown_timeout(Duration::from_secs(5));
        Ok(())
    })
}
