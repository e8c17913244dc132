//! All sides that meet at a place, and how they take turns.

use std::time::{Duration, Instant};

use crate::adapter::Adapter;
use crate::farcell_side::FarcellSide;
use crate::floor::Floor;
use crate::line::BareLine;
use crate::options::Options;
use crate::places::{Place, Way};
use crate::report::{Report, Row};
use crate::samples::Samples;
use crate::side::{Done, KernelNumber, Side};

/// The name of the floor that ratios refer to.
pub(crate) const FLOOR: &str = "bare pipe (tokio)";

/// The name of a line that is sent back.
pub(crate) const LINE: &str = "docker exec -i cat";

/// The name of farcell with kernels that stand ready.
const POOLED: &str = "farcell, pool";

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
    /// How long a measure may go on before its last round, if it is for a quick look.
    hurry: Option<Duration>,
}

const QUICK: Duration = Duration::from_secs(3);

/// The first kernel of a side, with all that it takes to get there.
const FIRST: &str = "first kernel";

impl<'a> Lanes<'a> {
    /// Connects all sides, and has each start a kernel.
    pub(crate) fn connect(place: &'a Place, options: &Options, report: &mut Report) -> crate::Result<Self> {
        let mut lanes = Lanes { place, lanes: Vec::new(), hurry: options.quick.then_some(QUICK) };
        lanes.join(FLOOR, Floor::start(place).map(|side| Box::new(side) as _), report);
        if let Way::Docker { container, .. } = &place.way {
            lanes.join(LINE, BareLine::start(container).map(|side| Box::new(side) as _), report);
        }
        for (system, target) in place.targets() {
            lanes.join(system, FarcellSide::start(place, &target).map(|side| Box::new(side) as _), report);
            if let Some(pool) = options.pool.filter(|_| !target.starts_with("stdio:")) {
                let side = FarcellSide::start_with_pool(place, &target, pool);
                lanes.join(POOLED, side.map(|side| Box::new(side) as _), report);
            }
        }
        for (system, name, module) in PEERS {
            if options.wants_peer(name) {
                let side = Adapter::start(place, module).map(|side| Box::new(side) as _);
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

    /// Has all sides do the same in turns, so that whatever else the machine does hits them alike, and tells what came of it. Who begins changes with each
    /// round; a side that cannot do it, or fails, is left out from then on. In a quick look no round begins after some seconds.
    pub(crate) fn compare(
        &mut self,
        measure: &'static str,
        rounds: usize,
        report: &mut Report,
        mut act: impl FnMut(usize, &mut Lane) -> Done<Samples>,
    ) {
        let started = Instant::now();
        let sides = self.lanes.len();
        let mut outcomes: Vec<Done<Samples>> = (0..sides).map(|_| Ok(Samples::default())).collect();
        let mut done = 0;
        while done < rounds && (done == 0 || self.hurry.is_none_or(|most| started.elapsed() < most)) {
            for turn in 0..sides {
                let side = (done + turn) % sides;
                let Ok(samples) = &mut outcomes[side] else { continue };
                match act(side, &mut self.lanes[side]) {
                    Ok(more) => samples.extend(more),
                    Err(trouble) => outcomes[side] = Err(trouble),
                }
            }
            done += 1;
        }
        self.tell(measure, &outcomes, done, report);
    }

    /// Adds rows, with how each compares to the floor.
    fn tell(&self, measure: &'static str, outcomes: &[Done<Samples>], rounds: usize, report: &mut Report) {
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
