//! From nothing to the first reply, against the bare start of a Python.

use std::process::Command;
use std::time::Instant;

use farcell::Cell;

use crate::Result;
use crate::host::{self, Host};
use crate::options::Options;
use crate::report::{Report, Samples};

const MEASURE: &str = "spawn to first reply";
const TARGETS: [&str; 2] = ["stdio:", "local:"];

pub(crate) fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let host = Host::new(host::two_workers()?);
    let mut floor = Samples::default();
    let mut took = TARGETS.map(|_| Samples::default());
    for round in 0..options.rounds(20, 5) {
        let started = Instant::now();
        Command::new(&options.python).args(["-c", "pass"]).status()?;
        floor.push(started.elapsed());
        for (target, took) in TARGETS.iter().zip(&mut took) {
            let session = host.session(target, &format!("spawn-{round}"), &options.python)?;
            let started = Instant::now();
            host.runtime.block_on(host::run(&session, &Cell::new("x = 0")))?;
            took.push(started.elapsed());
            host.runtime.block_on(session.stop())?;
        }
    }
    report.times(MEASURE, "process", "python -c pass", &floor, String::new());
    for (target, took) in TARGETS.iter().zip(&took) {
        let note = format!("{:.2} times the start of a Python", took.times(&floor));
        report.times(MEASURE, target, "farcell", took, note);
    }
    Ok(())
}
