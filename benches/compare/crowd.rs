//! farcell alone: what a thousand kernels on twenty targets take of the memory of the program that has them.

use std::process::Command;

use farcell::{Cell, Session};
use futures_util::future::try_join_all;
use serde_json::{Value, json};

use crate::farcell_side::{self, Host};
use crate::fixtures::Base;
use crate::options::Options;
use crate::report::{Report, Row};
use crate::side::Done;
use crate::{Result, procfs, work};

pub(crate) const MEASURE: &str = "memory of the host per kernel";
pub(crate) const SYSTEM: &str = "farcell local:";
/// How many kernels are started at once; the far side's memory is not what is measured.
const AT_ONCE: usize = 25;

/// It needs a process of its own: the benchmark starts itself as `--crowd-of KERNELS TARGETS`.
pub(crate) fn measure(options: &Options, report: &mut Report) {
    let (kernels, targets) = (options.amount(1000, 100), 20);
    let row = Row {
        measure: MEASURE,
        target: "local".to_owned(),
        system: SYSTEM.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        n: kernels,
        rounds: 1,
        ..Row::default()
    };
    report.add(match in_fresh_process(kernels, targets, &options.python) {
        Ok(told) => {
            let (before, after) =
                (told["before"].as_f64().unwrap_or(f64::NAN), told["after"].as_f64().unwrap_or(f64::NAN));
            let kilobytes = (after - before) / 1024.0 / kernels as f64;
            let note = format!(
                "{kilobytes:.1} KB each: from {:.1} to {:.1} MB with {kernels} kernels on {targets} targets (RSS)",
                before / 1e6,
                after / 1e6
            );
            Row { figure: Some(kilobytes), ..row }.noting(&note)
        }
        Err(e) => row.noting(&format!("failed: {e}")),
    });
}

fn in_fresh_process(kernels: usize, targets: usize, python: &str) -> Result<Value> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--python", python, "--crowd-of", &kernels.to_string(), &targets.to_string()])
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What that process does: has that many kernels, has run a cell in each, and prints its memory before and after.
pub(crate) fn be_the_host(kernels: usize, targets: usize, python: &str) -> Result<()> {
    let base = Base::make()?;
    let host = Host::new("local:", python, None)?;
    let before = procfs::own_memory()?;
    let outcome = host.runtime.block_on(async {
        let sessions = (0..kernels)
            .map(|n| {
                let target = format!("local:?dir={}/{}", base.path, n % targets);
                host.session_on(&target, &format!("crowd-{n}"))
            })
            .collect::<Done<Vec<Session>>>()?;
        for some in sessions.chunks(AT_ONCE) {
            let first = Cell::new(work::FIRST);
            try_join_all(some.iter().map(|session| farcell_side::run(session, &first))).await?;
        }
        Done::Ok(sessions)
    });
    let sessions = outcome.map_err(|trouble| trouble.to_string())?;
    println!("{}", json!({ "before": before, "after": procfs::own_memory()? }));
    drop(sessions);
    Ok(())
}
