//! What can happen between here and a host, over both ssh drivers and a real OpenSSH server: each trap is a test of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

#[path = "../common/cells.rs"]
mod cells;
mod cuts;
mod flood;
mod keys;
mod login;
mod sharing;
mod shells;
mod site;

use std::time::Duration;

use farcell_testbed::bounded;
use libtest_mimic::{Arguments, Trial};

/// How long a test may take before it counts as hung.
const BOUND: Duration = Duration::from_secs(180);

/// The drivers that are compiled in, by the name that a target has for them.
const DRIVERS: &[&str] = if cfg!(feature = "russh") { &["openssh", "russh"] } else { &["openssh"] };

fn main() {
    let arguments = Arguments::from_args();
    let groups = [cuts::trials, flood::trials, keys::trials, login::trials, sharing::trials, shells::trials];
    let trials = DRIVERS.iter().flat_map(|driver| groups.iter().flat_map(|trials| trials(driver))).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

/// A test for one driver.
fn trial<F>(driver: &'static str, name: &str, work: impl FnOnce(&'static str) -> F + Send + 'static) -> Trial
where
    F: Future<Output = ()>,
{
    Trial::test(format!("{driver}::{name}"), move || {
        bounded(BOUND, work(driver));
        Ok(())
    })
}
