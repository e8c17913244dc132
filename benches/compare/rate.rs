//! farcell alone: how many kernels a second it starts when many are asked for at once, and what they take.

use std::time::Instant;

use farcell::{Cell, Session};
use futures_util::future::try_join_all;

use crate::farcell_side::{self, Host};
use crate::fixtures::Base;
use crate::many;
use crate::options::Options;
use crate::report::{Report, Row};
use crate::side::{Done, Processes, Trouble};
use crate::work;

pub(crate) const SPAWNS: &str = "spawns per second";
pub(crate) const MEMORY: &str = "memory per kernel, many at once";
pub(crate) const SYSTEM: &str = "farcell local:";

pub(crate) fn measure(options: &Options, report: &mut Report) {
    let count = options.amount(200, 50);
    let row = |measure| Row {
        measure,
        target: "local".to_owned(),
        system: SYSTEM.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        n: count,
        ..Row::default()
    };
    match spawn_all(options, count) {
        Ok((rates, megabytes)) => {
            let rounds = rates.len();
            let best = rates.iter().copied().fold(f64::MIN, f64::max);
            let mean = rates.iter().sum::<f64>() / rounds as f64;
            let note = format!(
                "{mean:.0} a second, {best:.0} in the best round: {count} asked for at once, each up to its first reply"
            );
            report.add(Row { figure: Some(mean), rounds, ..row(SPAWNS) }.noting(&note));
            let note = format!("{megabytes:.2} MB each of {count} (PSS, both processes)");
            report.add(Row { figure: Some(megabytes), rounds: 1, ..row(MEMORY) }.noting(&note));
        }
        Err(trouble) => report.add(row(SPAWNS).noting(&trouble.to_string())),
    }
}

/// Spawns per second in each round, and megabytes per kernel.
fn spawn_all(options: &Options, count: usize) -> Done<(Vec<f64>, f64)> {
    let failed = |e: Box<dyn std::error::Error>| Trouble::Failed(e.to_string());
    let base = Base::make().map_err(failed)?;
    let host = Host::new("local:", &options.python, Some(&base.path)).map_err(failed)?;
    // The host is warm: one kernel has been there before.
    host.runtime.block_on(start(host.session("first")?))?;
    let (mut rates, mut megabytes) = (Vec::new(), 0.0);
    for round in 0..options.amount(5, 2) {
        let sessions = (0..count).map(|n| host.session(&format!("{round}-{n}"))).collect::<Done<Vec<_>>>()?;
        let started = Instant::now();
        host.runtime.block_on(try_join_all(sessions.iter().cloned().map(|session| {
            let task = host.runtime.spawn(start(session));
            async { task.await? }
        })))?;
        rates.push(count as f64 / started.elapsed().as_secs_f64());
        let found = host.runtime.block_on(try_join_all(sessions.iter().map(farcell_side::processes)))?;
        let pids = found.into_iter().flatten().collect();
        let bytes = many::total(&Processes { pids, container: None }).map_err(failed)?;
        megabytes = bytes as f64 / 1e6 / count as f64;
        host.runtime.block_on(try_join_all(sessions.iter().map(Session::stop)))?;
    }
    Ok((rates, megabytes))
}

async fn start(session: Session) -> Done<()> {
    farcell_side::run(&session, &Cell::new(work::FIRST)).await.map(drop)
}
