//! farcell side by side with what else runs Python elsewhere: all sides in turns, in one run, on one machine.
//!
//! ```text
//! cargo bench --bench compare                       all of it, more than an hour
//! cargo bench --bench compare -- --quick            a look, within five minutes
//! cargo bench --bench compare -- --json FILE --svg FILE
//! cargo bench --bench compare -- --check            exit status 1 where a bound is missed
//! cargo bench --bench compare -- --only warm,spawn  some measures: warm, spawn, output, code, many, rate, flight, crowd
//! cargo bench --bench compare -- --target ssh       some places: local, ssh, docker, far
//! cargo bench --bench compare -- --peers execnet,ipykernel
//! cargo bench --bench compare -- --only spawn --pool 2   and farcell that keeps so many kernels ready on a target
//! ```
//!
//! README.md beside this file tells how it is measured and what each peer cannot do. It installs what it needs (`fixtures/setup`, `prepare.sh`) and says so.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a program for a terminal")]

mod adapter;
mod bounds;
mod bulk;
mod chart;
mod crowd;
mod farcell_side;
mod fixtures;
mod flight;
mod floor;
mod lanes;
mod line;
mod many;
mod options;
mod places;
mod procfs;
mod rate;
mod report;
#[path = "../common/samples.rs"]
mod samples;
mod side;
mod spawn;
mod warm;
mod work;

use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use self::fixtures::Fixtures;
use self::lanes::Lanes;
use self::options::{Measure, Options};
use self::places::Place;
use self::report::Report;

/// When a quick look begins nothing more.
const QUICK: Duration = Duration::from_secs(240);

/// What goes wrong in a benchmark only has to be told.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

fn main() -> ExitCode {
    match run() {
        Ok(code) => code,
        Err(e) => {
            eprintln!("compare: {e}");
            ExitCode::from(2)
        }
    }
}

fn run() -> Result<ExitCode> {
    if std::env::args().len() == 1 {
        eprintln!("compare: `cargo test` has nothing to do here; `cargo bench --bench compare` measures");
        return Ok(ExitCode::SUCCESS);
    }
    let options = Options::parse(std::env::args().skip(1))?;
    if let Some((kernels, targets)) = options.crowd_of {
        crowd::be_the_host(kernels, targets, &options.python)?;
        return Ok(ExitCode::SUCCESS);
    }
    say("fixtures …");
    let fixtures = Fixtures::start(&options)?;
    let mut report = Report::default();
    for place in fixtures.places() {
        compare_at(place, &options, &mut report)?;
    }
    for measure in [Measure::Rate, Measure::Crowd] {
        if options.wants(measure) && options.wants_place("local") && begin(&options, &measure.to_string()) {
            match measure {
                Measure::Rate => rate::measure(&options, &mut report),
                _ => crowd::measure(&options, &mut report),
            }
        }
    }
    drop(fixtures);
    bounds::judge(&mut report);
    println!("{}\n\n{report}", fixtures::machine(&options.python));
    if let Some(file) = &options.json {
        std::fs::write(file, report.json())?;
    }
    if let Some(file) = &options.svg {
        std::fs::write(file, chart::draw(&report))?;
    }
    Ok(if options.check && !report.passed() { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

/// All sides meet at one place, one measure after the other.
fn compare_at(place: &Place, options: &Options, report: &mut Report) -> Result<()> {
    let mut shared = vec![Measure::Warm, Measure::Spawn, Measure::Output, Measure::Code, Measure::Many];
    if place.is_far() && options.quick {
        shared = vec![Measure::Warm, Measure::Output];
    }
    shared.retain(|measure| options.wants(*measure));
    if !shared.is_empty() && begin(options, &format!("{}: connecting", place.name)) {
        let mut lanes = Lanes::connect(place, options, report)?;
        for measure in shared {
            if !begin(options, &format!("{}: {measure}", place.name)) {
                continue;
            }
            match measure {
                Measure::Warm => warm::measure(&mut lanes, options, report),
                Measure::Spawn => spawn::measure(&mut lanes, options, report),
                Measure::Output => bulk::output(&mut lanes, options, report),
                Measure::Code => bulk::code(&mut lanes, options, report),
                _ => many::measure(&mut lanes, options, report),
            }
        }
    }
    if place.is_far() && options.wants(Measure::Flight) && begin(options, &format!("{}: flight", place.name))
    {
        flight::measure(place, options, report);
    }
    Ok(())
}

/// Whether there is time for it: a quick look ends within five minutes on a busy machine, too.
fn begin(options: &Options, what: &str) -> bool {
    let in_time = !options.quick || passed() < QUICK;
    let outcome = if in_time { "…" } else { "is left out: it is getting late for a quick look" };
    say(&format!("{what} {outcome}"));
    in_time
}

/// Says what is going on, and since when: a full run takes long.
fn say(what: &str) {
    eprintln!("compare: {:>5} s  {what}", passed().as_secs());
}

/// How long it has been going on.
fn passed() -> Duration {
    static STARTED: OnceLock<Instant> = OnceLock::new();
    STARTED.get_or_init(Instant::now).elapsed()
}
