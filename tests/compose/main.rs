//! The boxes of docker-compose.yml and the program, end to end: what a user does with them, and what happens to them meanwhile.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod boxes;
mod faults;
#[path = "../program/harness.rs"]
#[allow(dead_code, unused_imports, reason = "it serves other tests too")]
mod harness;
mod sharing;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::mpsc;
use std::time::Duration;

use libtest_mimic::{Arguments, Trial};

/// How long a test may take before it counts as hung.
const BOUND: Duration = Duration::from_secs(240);

fn main() {
    let arguments = Arguments::from_args();
    let trials = boxes::trials().into_iter().chain(faults::trials()).chain(sharing::trials()).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial(name: &str, work: fn()) -> Trial {
    Trial::test(name, move || {
        let (tell, ended) = mpsc::channel();
        std::thread::spawn(move || tell.send(catch_unwind(AssertUnwindSafe(work))));
        ended.recv_timeout(BOUND).expect("the test hangs").unwrap_or_else(|panic| resume_unwind(panic));
        Ok(())
    })
}
