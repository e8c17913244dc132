//! A warm cell: what `x += 1` costs in a kernel that stands, against a bare pipe to a Python that executes the same.

use std::time::Instant;

use farcell::{Cell, Session};
use tokio::runtime::Runtime;

use crate::Result;
use crate::host::{self, Host};
use crate::options::Options;
use crate::pipe::{AsyncPipe, BlockingPipe};
use crate::report::{Report, Samples};

const MEASURE: &str = "warm cell";
const FIRST: &str = "x = 0";
const CODE: &str = "x += 1";
/// How many cells of one side before it is another's turn.
const BATCH: usize = 50;
/// How many times as long as the bare pipe a cell on `stdio:` may take.
const BOUND: f64 = 3.0;

/// One side of the comparison.
trait Side {
    /// Runs so many cells, one after the other.
    fn run(&mut self, cells: usize, took: &mut Samples) -> Result<()>;
}

/// A side, and what was measured of it.
struct Lane {
    target: &'static str,
    system: &'static str,
    /// The place of the bare pipe that has the same kind of runtime.
    floor: usize,
    side: Box<dyn Side>,
    took: Samples,
}

pub(crate) fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let python = options.python.as_str();
    let mut lanes = vec![
        bare("bare, blocking", 0, BlockingSide::start(python)?),
        bare("bare, tokio, 2 workers", 1, TokioSide::start(host::two_workers()?, python)?),
        farcell(
            "stdio:",
            "farcell, 2 workers",
            1,
            FarcellSide::start(host::two_workers()?, "stdio:", python)?,
        ),
        bare("bare, tokio, 1 thread", 3, TokioSide::start(host::one_thread()?, python)?),
        farcell("stdio:", "farcell, 1 thread", 3, FarcellSide::start(host::one_thread()?, "stdio:", python)?),
        farcell(
            "local:",
            "farcell, 2 workers",
            1,
            FarcellSide::start(host::two_workers()?, "local:", python)?,
        ),
        farcell("local:", "farcell, 1 thread", 3, FarcellSide::start(host::one_thread()?, "local:", python)?),
    ];
    for lane in &mut lanes {
        lane.side.run(BATCH, &mut Samples::default())?;
    }
    for _ in 0..options.rounds(60, 10) {
        for lane in &mut lanes {
            lane.side.run(BATCH, &mut lane.took)?;
        }
    }
    for lane in &lanes {
        let [times, of_blocking] = [lane.floor, 0].map(|floor| lane.took.times(&lanes[floor].took));
        let note =
            format!("{times:.2} times the pipe in the same runtime, {of_blocking:.2} times the blocking one");
        report.times(MEASURE, lane.target, lane.system, &lane.took, note);
        if lane.target == "stdio:" {
            let sentence = format!(
                "a warm cell on stdio: takes {times:.2} times the pipe, at most {BOUND} ({})",
                lane.system
            );
            report.verdict(times <= BOUND, sentence);
        }
    }
    Ok(())
}

fn bare(system: &'static str, floor: usize, side: impl Side + 'static) -> Lane {
    Lane { target: "pipe", system, floor, side: Box::new(side), took: Samples::default() }
}

fn farcell(target: &'static str, system: &'static str, floor: usize, side: FarcellSide) -> Lane {
    Lane { target, system, floor, side: Box::new(side), took: Samples::default() }
}

/// The bare pipe without a runtime.
struct BlockingSide {
    pipe: BlockingPipe,
}

impl BlockingSide {
    fn start(python: &str) -> Result<Self> {
        let mut pipe = BlockingPipe::start(python)?;
        pipe.round_trip(FIRST)?;
        Ok(BlockingSide { pipe })
    }
}

impl Side for BlockingSide {
    fn run(&mut self, cells: usize, took: &mut Samples) -> Result<()> {
        for _ in 0..cells {
            let started = Instant::now();
            self.pipe.round_trip(CODE)?;
            took.push(started.elapsed());
        }
        Ok(())
    }
}

/// The bare pipe in a runtime like farcell's.
struct TokioSide {
    pipe: AsyncPipe,
    runtime: Runtime,
}

impl TokioSide {
    fn start(runtime: Runtime, python: &str) -> Result<Self> {
        let pipe = runtime.block_on(async {
            let mut pipe = AsyncPipe::start(python)?;
            pipe.round_trip(FIRST).await?;
            Result::Ok(pipe)
        })?;
        Ok(TokioSide { pipe, runtime })
    }
}

impl Side for TokioSide {
    fn run(&mut self, cells: usize, took: &mut Samples) -> Result<()> {
        self.runtime.block_on(async {
            for _ in 0..cells {
                let started = Instant::now();
                self.pipe.round_trip(CODE).await?;
                took.push(started.elapsed());
            }
            Ok(())
        })
    }
}

/// A session of farcell's.
struct FarcellSide {
    session: Session,
    cell: Cell,
    host: Host,
}

impl FarcellSide {
    fn start(runtime: Runtime, target: &str, python: &str) -> Result<Self> {
        let host = Host::new(runtime);
        let session = host.session(target, "warm", python)?;
        host.runtime.block_on(host::run(&session, &Cell::new(FIRST)))?;
        Ok(FarcellSide { session, cell: Cell::new(CODE), host })
    }
}

impl Side for FarcellSide {
    fn run(&mut self, cells: usize, took: &mut Samples) -> Result<()> {
        self.host.runtime.block_on(async {
            for _ in 0..cells {
                let started = Instant::now();
                host::run(&self.session, &self.cell).await?;
                took.push(started.elapsed());
            }
            Ok(())
        })
    }
}
