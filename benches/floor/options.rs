//! The command line.

use std::path::PathBuf;
use std::process::Command;

use crate::Result;

/// A part of the benchmark.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    Warm,
    Spawn,
    Memory,
    Leaks,
    Clean,
}

const PARTS: [(&str, Part); 5] = [
    ("warm", Part::Warm),
    ("spawn", Part::Spawn),
    ("memory", Part::Memory),
    ("leaks", Part::Leaks),
    ("clean", Part::Clean),
];

/// What to do, and how long.
#[derive(Debug, Default)]
pub(crate) struct Options {
    pub(crate) quick: bool,
    pub(crate) check: bool,
    pub(crate) json: Option<PathBuf>,
    pub(crate) only: Option<Part>,
    /// The program `farcell`.
    pub(crate) farcell: PathBuf,
    /// The Python of all sides: a program itself and not a shim, whose start would cost more than Python's.
    pub(crate) python: String,
    /// The benchmark started itself to have a fresh process: see `memory.rs`.
    pub(crate) flood: Option<(String, String)>,
}

impl Options {
    pub(crate) fn parse(mut args: impl Iterator<Item = String>) -> Result<Self> {
        let mut options = Options { farcell: default_farcell(), ..Options::default() };
        while let Some(arg) = args.next() {
            let mut value = || args.next().ok_or_else(|| format!("{arg} needs a value"));
            match arg.as_str() {
                // What `cargo bench` adds by itself.
                "--bench" => {}
                "--quick" => options.quick = true,
                "--check" => options.check = true,
                "--json" => options.json = Some(value()?.into()),
                "--farcell" => options.farcell = value()?.into(),
                "--python" => options.python = value()?,
                "--flood" => options.flood = Some((value()?, value()?)),
                "--only" => {
                    let name = value()?;
                    let part = PARTS.iter().find(|(known, _)| *known == name);
                    options.only = Some(part.ok_or_else(|| format!("there is no part {name:?}"))?.1);
                }
                _ => {
                    return Err(
                        format!("{arg:?} is no option; the top of benches/floor/main.rs lists them").into()
                    );
                }
            }
        }
        if options.python.is_empty() {
            options.python = default_python()?;
        }
        Ok(options)
    }

    pub(crate) fn parts(&self) -> impl Iterator<Item = Part> {
        let only = self.only;
        PARTS.into_iter().map(|(_, part)| part).filter(move |part| only.is_none_or(|only| only == *part))
    }

    /// How many rounds: all of them, or few for a quick look.
    pub(crate) fn rounds(&self, all: usize, quick: usize) -> usize {
        if self.quick { quick } else { all }
    }
}

fn default_python() -> Result<String> {
    let output =
        Command::new("python3").args(["-c", "import sys; print(sys.executable, end='')"]).output()?;
    Ok(String::from_utf8(output.stdout)?)
}

fn default_farcell() -> PathBuf {
    // Cargo tells the path when it builds the benchmark of this very package.
    let built = option_env!("CARGO_BIN_EXE_farcell").unwrap_or("target/release/farcell");
    std::env::var_os("FARCELL_BIN").map_or_else(|| built.into(), PathBuf::from)
}
