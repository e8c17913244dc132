//! A side of the comparison: farcell, a peer or the floor, each with the same five abilities.

use std::fmt;

use serde_json::Value;

use crate::adapter::Adapter;
use crate::farcell_side::FarcellSide;
use crate::floor::Floor;
use crate::options::Options;
use crate::places::Place;
use crate::report::{Report, Row};
use crate::samples::Samples;

/// Why a side has no figure.
#[derive(Debug, Clone)]
pub(crate) enum Trouble {
    /// It does not offer this.
    Cannot(String),
    /// It went wrong.
    Failed(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Cannot(why) => write!(f, "not possible: {why}"),
            Trouble::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

impl<E: std::error::Error> From<E> for Trouble {
    fn from(e: E) -> Self {
        Trouble::Failed(e.to_string())
    }
}

/// What a side could do.
pub(crate) type Done<T> = std::result::Result<T, Trouble>;

/// The number of a kernel of a side.
pub(crate) type KernelNumber = usize;

/// The processes of kernels, in the numbers of the container if it is in one.
#[derive(Debug)]
pub(crate) struct Processes {
    pub(crate) pids: Vec<i64>,
    pub(crate) container: Option<String>,
}

/// A side. It checks what it measures: a count that is wrong, or output that is short, is a failure.
pub(crate) trait Side {
    /// What it was.
    fn version(&self) -> &str;
    /// What has to be known to read its figures.
    fn note(&self) -> &str;
    /// Starts kernels, one after the other, each up to its first reply.
    fn spawn(&mut self, count: usize) -> Done<(Samples, Vec<KernelNumber>)>;
    /// Runs `x += 1` in each of these kernels, so many times in turns.
    fn count(&mut self, kernels: &[KernelNumber], rounds: usize) -> Done<Samples>;
    /// Runs a cell that prints so many bytes, which have to arrive.
    fn print(&mut self, kernel: KernelNumber, rounds: usize, bytes: usize) -> Done<Samples>;
    /// Runs a cell that is itself so long.
    fn load(&mut self, kernel: KernelNumber, rounds: usize, bytes: usize) -> Done<Samples>;
    /// Which processes on the far side these kernels are.
    fn processes(&mut self, kernels: &[KernelNumber]) -> Done<Processes>;
    /// Ends kernels.
    fn stop(&mut self, kernels: &[KernelNumber]) -> Done<()>;
}

/// The name of the floor that ratios refer to.
pub(crate) const FLOOR: &str = "bare pipe (tokio)";

/// The peers: what they are called here, what they are called by `--peers`, their adapter and its arguments.
const PEERS: [(&str, &str, &[&str]); 9] = [
    ("bare pipe (Python)", "bare", &["bare"]),
    ("execnet", "execnet", &["execnet_peer"]),
    ("execnet via", "execnet-via", &["execnet_peer", "--via"]),
    ("mitogen", "mitogen", &["mitogen_peer"]),
    ("ipykernel", "ipykernel", &["jupyter_peer"]),
    ("SWE-ReX (bash)", "swe-rex", &["swerex_peer"]),
    ("SWE-ReX (python3)", "swe-rex-python", &["swerex_peer", "--python"]),
    ("llm-sandbox", "llm-sandbox", &["llm_sandbox_peer"]),
    ("polled protocol", "polled", &["polled_peer"]),
];

/// A side with its first kernel, which stays.
pub(crate) struct Lane {
    pub(crate) system: &'static str,
    pub(crate) side: Box<dyn Side>,
    pub(crate) first: KernelNumber,
}

/// All sides that got as far as a kernel at a place.
pub(crate) struct Lanes<'a> {
    pub(crate) place: &'a Place,
    pub(crate) lanes: Vec<Lane>,
}

/// The first kernel of a side, with all that it takes to get there.
const FIRST: &str = "first kernel";

impl<'a> Lanes<'a> {
    /// Connects all sides, and has each start a kernel.
    pub(crate) fn connect(place: &'a Place, options: &Options, report: &mut Report) -> crate::Result<Self> {
        let mut lanes = Lanes { place, lanes: Vec::new() };
        lanes.join(FLOOR, Floor::start(place).map(|side| Box::new(side) as _), report);
        for (system, target) in place.targets() {
            lanes.join(system, FarcellSide::start(place, &target).map(|side| Box::new(side) as _), report);
        }
        for (system, name, module) in PEERS {
            if options.wants_peer(name) {
                let side = Adapter::start(place, module, options).map(|side| Box::new(side) as _);
                lanes.join(system, side, report);
            }
        }
        if lanes.lanes.is_empty() { Err("no side got as far as a kernel".into()) } else { Ok(lanes) }
    }

    fn join(&mut self, system: &'static str, side: Done<Box<dyn Side>>, report: &mut Report) {
        let spawned = side.and_then(|mut side| side.spawn(1).map(|(took, kernels)| (side, took, kernels)));
        let mut row = Row {
            measure: FIRST,
            target: self.place.name.to_owned(),
            system: system.to_owned(),
            ..Row::default()
        };
        match spawned {
            Ok((side, took, kernels)) => {
                row.version = side.version().to_owned();
                report.add(row.times(&took, 1).noting(side.note()));
                self.lanes.push(Lane { system, side, first: kernels[0] });
            }
            Err(trouble) => {
                eprintln!("compare: {}: {system}: {trouble}", self.place.name);
                report.add(row.noting(&trouble.to_string()));
            }
        }
    }

    /// A row for a lane, to be filled.
    pub(crate) fn row(&self, measure: &'static str, lane: &Lane) -> Row {
        Row {
            measure,
            target: self.place.name.to_owned(),
            system: lane.system.to_owned(),
            version: lane.side.version().to_owned(),
            ..Row::default()
        }
    }

    /// Has all sides do the same in turns, so that whatever else the machine does hits them alike. Who begins changes with each round; a side that cannot
    /// do it, or fails, is left out from then on.
    pub(crate) fn in_turns(
        &mut self,
        rounds: usize,
        mut act: impl FnMut(usize, &mut Lane) -> Done<Samples>,
    ) -> Vec<Done<Samples>> {
        let sides = self.lanes.len();
        let mut outcomes: Vec<Done<Samples>> = (0..sides).map(|_| Ok(Samples::default())).collect();
        for round in 0..rounds {
            for turn in 0..sides {
                let side = (round + turn) % sides;
                let Ok(samples) = &mut outcomes[side] else { continue };
                match act(side, &mut self.lanes[side]) {
                    Ok(more) => samples.extend(more),
                    Err(trouble) => outcomes[side] = Err(trouble),
                }
            }
        }
        outcomes
    }

    /// Adds what came of it to the report, with how it compares to the floor.
    pub(crate) fn tell(
        &self,
        measure: &'static str,
        outcomes: &[Done<Samples>],
        rounds: usize,
        report: &mut Report,
    ) {
        let floor = self.lanes.iter().zip(outcomes).find(|(lane, _)| lane.system == FLOOR);
        let floor = floor.and_then(|(_, outcome)| outcome.as_ref().ok());
        for (lane, outcome) in self.lanes.iter().zip(outcomes) {
            let row = self.row(measure, lane);
            report.add(match outcome {
                Ok(samples) => {
                    let row = row.times(samples, rounds);
                    match floor {
                        Some(floor) if lane.system != FLOOR => {
                            row.noting(&format!("{:.2} times the {FLOOR}", samples.times(floor)))
                        }
                        _ => row,
                    }
                }
                Err(trouble) => row.noting(&trouble.to_string()),
            });
        }
    }
}

/// The times in an answer, in milliseconds.
pub(crate) fn samples_of(answer: &Value) -> Samples {
    let mut samples = Samples::default();
    for ms in answer["ms"].as_array().into_iter().flatten().filter_map(Value::as_f64) {
        samples.push(std::time::Duration::from_secs_f64(ms / 1000.0));
    }
    samples
}
