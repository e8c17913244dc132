//! A flood: 50 MB printed in one cell, and the most memory that host and supervisor have had at once.

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

use farcell::{Cell, Event, EventSink, NoEvents, Status};
use serde_json::{Value, json};

use crate::Result;
use crate::host::{self, Host};
use crate::options::Options;
use crate::procfs;
use crate::report::Report;

const MEASURE: &str = "memory, 50 MB printed";
const CODE: &str = "print('x' * 50_000_000)";
const PRINTED: u64 = 50_000_001;
const BOUND: u64 = 64_000_000;
const TARGETS: [&str; 2] = ["stdio:", "local:"];
const UNWATCHED: &str = "unwatched";
const WATCHED: &str = "watched";

/// Each case has a process of its own, as a peak is never forgotten: the benchmark starts itself as `--flood TARGET WATCH`.
pub(crate) fn measure(options: &Options, report: &mut Report) -> Result<()> {
    for target in TARGETS {
        for watch in [UNWATCHED, WATCHED] {
            let told = in_fresh_process(target, watch, &options.python)?;
            let number =
                |name: &str| told[name].as_u64().ok_or_else(|| format!("{target} {watch} told {told}"));
            let (host, supervisor, seen) = (number("host")?, number("supervisor")?, number("seen")?);
            let note = format!(
                "host {}, supervisor {}; {seen} bytes came as events",
                megabytes(host),
                megabytes(supervisor)
            );
            report.fact(MEASURE, target, &format!("farcell, {watch}"), 1, note);
            for (who, peak) in [("host", host), ("supervisor", supervisor)] {
                let sentence = format!(
                    "the {who} takes {} on {target} ({watch}), at most {}",
                    megabytes(peak),
                    megabytes(BOUND)
                );
                report.verdict(peak <= BOUND, sentence);
            }
        }
    }
    Ok(())
}

fn in_fresh_process(target: &str, watch: &str, python: &str) -> Result<Value> {
    let output = Command::new(std::env::current_exe()?)
        .args(["--python", python, "--flood", target, watch])
        .output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    Ok(serde_json::from_slice(&output.stdout)?)
}

/// What that process does: runs the cell, and prints the peaks.
pub(crate) fn flood(target: &str, watch: &str, python: &str) -> Result<()> {
    let host = Host::new(host::two_workers()?);
    let session = host.session(target, "flood", python)?;
    let counter = Counter::default();
    let events: &dyn EventSink = if watch == WATCHED { &counter } else { &NoEvents };
    let (reply, probe) = host.runtime.block_on(async {
        host::run(&session, &Cell::new("x = 0")).await?;
        let reply = session.run(&Cell::new(CODE), events).await?;
        Result::Ok((reply, session.probe().await?))
    })?;
    if (reply.status, reply.output.stdout_bytes) != (Status::Ok, PRINTED) {
        return Err(format!("{CODE} ended with {:?} and {:?}", reply.status, reply.output).into());
    }
    let kernel = probe.and_then(|p| p.kernel).ok_or("the kernel has gone")?;
    let told = json!({
        "host": procfs::peak_memory(i64::from(std::process::id()))?,
        "supervisor": procfs::peak_memory(kernel.pid)?,
        "seen": counter.bytes.load(Ordering::Relaxed),
    });
    println!("{told}");
    Ok(())
}

/// Watches a cell as a terminal would, and keeps nothing.
#[derive(Debug, Default)]
struct Counter {
    bytes: AtomicUsize,
}

impl EventSink for Counter {
    fn event(&self, event: Event) {
        if let Event::Output { text, .. } = event {
            self.bytes.fetch_add(text.len(), Ordering::Relaxed);
        }
    }
}

fn megabytes(bytes: u64) -> String {
    format!("{}.{} MB", bytes / 1_000_000, bytes / 100_000 % 10)
}
