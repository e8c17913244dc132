//! How near farcell comes to the floor: what a bare pipe to a Python child costs, how much memory a flood takes, and what 500 cells leave behind.
//!
//! ```text
//! cargo bench --bench floor                       all of it, a minute or two
//! cargo bench --bench floor -- --quick            under half a minute
//! cargo bench --bench floor -- --check            exit status 1 where a threshold is missed
//! cargo bench --bench floor -- --json FILE        the rows of the table as JSON, too
//! cargo bench --bench floor -- --only warm        one part: warm, spawn, memory, leaks, clean
//! ```
//!
//! All sides of a comparison run in turns, batch by batch, so that whatever else the machine does hits them alike: the figure to look at is the ratio.
//! Even so the floor itself has two levels: on a busy machine the scheduler keeps both ends of a bare pipe on one core, which takes a third of what
//! two idle cores take to wake each other. `taskset -c 0 cargo bench --bench floor` shows the one level, an idle machine the other.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal")]

mod clean;
mod host;
mod leaks;
mod memory;
mod options;
mod pipe;
mod procfs;
mod report;
#[path = "../common/samples.rs"]
mod samples;
mod spawn;
mod warm;

use std::process::{Command, ExitCode};

use self::options::{Options, Part};
use self::report::Report;

/// What goes wrong in a benchmark only has to be told.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(e) => {
            eprintln!("floor: {e}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<ExitCode> {
    if std::env::args().len() == 1 {
        eprintln!("floor: `cargo test` has nothing to do here; `cargo bench --bench floor` measures");
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options::parse(std::env::args().skip(1))?;
    if let Some((target, watch)) = &options.flood {
        memory::flood(target, watch, &options.python)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut report = Report::default();
    for part in options.parts() {
        eprintln!("floor: {part:?} …");
        match part {
            Part::Warm => warm::measure(&options, &mut report)?,
            Part::Spawn => spawn::measure(&options, &mut report)?,
            Part::Memory => memory::measure(&options, &mut report)?,
            Part::Leaks => leaks::measure(&options, &mut report)?,
            Part::Clean => clean::measure(&options, &mut report)?,
        }
    }
    println!("{}\n\n{report}", machine(&options.python));
    if let Some(file) = &options.json {
        std::fs::write(file, report.json())?;
    }
    Ok(if options.check && !report.passed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// What the figures were taken on.
fn machine(python: &str) -> String {
    let said = |program: &str, args: &[&str]| {
        let output = Command::new(program).args(args).output();
        output.map_or_else(
            |_| format!("no {program}"),
            |o| String::from_utf8_lossy(&o.stdout).trim().to_owned(),
        )
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    format!("{cores} cores, {}, {}", said("uname", &["-sr"]), said(python, &["--version"]))
}
