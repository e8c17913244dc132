//! The command line.

use std::fmt;
use std::path::PathBuf;
use std::process::Command;

use crate::Result;

/// What is measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Measure {
    /// A cell in a kernel that stands.
    Warm,
    /// From nothing to the first reply, where a kernel stood before.
    Spawn,
    /// A cell that prints 1 MB.
    Output,
    /// Cells of 200 KB and 10 MB.
    Code,
    /// Fifty kernels in turns, and their memory.
    Many,
    /// farcell alone: 200 kernels at once.
    Rate,
    /// farcell alone: many cells on one slow connection at once.
    Flight,
    /// farcell alone: what a thousand kernels take of the host's memory.
    Crowd,
}

const MEASURES: [(&str, Measure); 8] = [
    ("warm", Measure::Warm),
    ("spawn", Measure::Spawn),
    ("output", Measure::Output),
    ("code", Measure::Code),
    ("many", Measure::Many),
    ("rate", Measure::Rate),
    ("flight", Measure::Flight),
    ("crowd", Measure::Crowd),
];

impl fmt::Display for Measure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = MEASURES.iter().find(|(_, measure)| measure == self).map_or("?", |(name, _)| name);
        f.write_str(name)
    }
}

/// What to do, and how long.
#[derive(Debug, Default)]
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) check: bool,
    pub(crate) json: Option<PathBuf>,
    pub(crate) svg: Option<PathBuf>,
    only: Vec<Measure>,
    places: Vec<String>,
    peers: Vec<String>,
    /// The Python of all sides on this machine: a program itself and not a shim, whose start would cost more than Python's.
    pub(crate) python: String,
    /// One more side: farcell that keeps so many kernels ready on a target.
    pub(crate) pool: Option<u32>,
    /// The benchmark started itself to have a fresh process: see `crowd.rs`.
    pub(crate) crowd_of: Option<(usize, usize)>,
}

impl Options {
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Options::default();
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                // What `cargo bench` adds by itself.
                "--bench" => {}
                "--quick" => options.quick = true,
                "--check" => options.check = true,
                "--json" => options.json = Some(value()?.into()),
                "--svg" => options.svg = Some(value()?.into()),
                "--python" => options.python = value()?,
                "--only" => options.only = words(&value()?).map(|w| measure(&w)).collect::<Result<_>>()?,
                "--target" => options.places = words(&value()?).collect(),
                "--pool" => options.pool = Some(value()?.parse()?),
                "--peers" => options.peers = words(&value()?).collect(),
                "--crowd-of" => options.crowd_of = Some((value()?.parse()?, value()?.parse()?)),
                _ => {
                    return Err(format!(
                        "{arg:?} is no option; the top of benches/compare/main.rs lists them"
                    )
                    .into());
                }
            }
        }
        if options.python.is_empty() {
            options.python = default_python()?;
        }
        Ok(options)
    }

    pub(crate) fn wants(&self, measure: Measure) -> bool {
        self.only.is_empty() || self.only.contains(&measure)
    }

    pub(crate) fn wants_place(&self, kind: &str) -> bool {
        self.places.is_empty() || self.places.iter().any(|wanted| wanted == kind)
    }

    pub(crate) fn wants_peer(&self, peer: &str) -> bool {
        self.peers.is_empty() || self.peers.iter().any(|wanted| wanted == peer)
    }

    /// How much of something: all of it, or little for a quick look.
    pub(crate) fn amount(&self, all: usize, quick: usize) -> usize {
        if self.quick { quick } else { all }
    }
}

fn words(list: &str) -> impl Iterator<Item = String> {
    list.split(',').map(str::to_owned)
}

fn measure(name: &str) -> Result<Measure> {
    let found = MEASURES.iter().find(|(known, _)| *known == name);
    Ok(found.ok_or_else(|| format!("there is no measure {name:?}"))?.1)
}

fn default_python() -> Result<String> {
    let output =
        Command::new("python3").args(["-c", "import sys; print(sys.executable, end='')"]).output()?;
    Ok(String::from_utf8(output.stdout)?)
}
