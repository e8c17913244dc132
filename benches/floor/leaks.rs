//! What stays: 500 cells through `farcell run`, a process each, on `local:`, and what there is more of afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::options::Options;
use crate::report::{Report, Samples};
use crate::{Result, procfs};

const MEASURE: &str = "leaks";
const TARGET: &str = "local:";
/// Its family of names is passed on to kernels, so that all processes of ours can be told from others.
const MARK: &str = "FARCELL_TEST_FLOOR";
/// A process, descriptor or file more than before may just be on its way out.
const BOUND: usize = 1;
/// How long something may take that has to come.
const PATIENCE: Duration = Duration::from_secs(60);

/// Runs `farcell` with everything that it keeps in a directory of its own.
struct Farcell<'a> {
    program: &'a Path,
    home: PathBuf,
    mark: String,
}

/// How many there are of each kind of thing.
type Census = Vec<(&'static str, usize)>;

pub(crate) fn measure(options: &Options, report: &mut Report) -> Result<()> {
    let home = tempfile::Builder::new().prefix("farcell-floor-").tempdir()?;
    let farcell = Farcell {
        program: &options.farcell,
        home: home.path().to_owned(),
        mark: std::process::id().to_string(),
    };
    let outcome = run_cells(&farcell, options.rounds(500, 50), report);
    let stopped = farcell.command(&["stop", "--all"]);
    outcome.and(stopped.map(drop))
}

fn run_cells(farcell: &Farcell<'_>, cells: usize, report: &mut Report) -> Result<()> {
    let first = farcell.run("x = 0")?;
    let kernel = first["kernel"]["id"].as_str().ok_or("the reply names no kernel")?;
    farcell.await_zygote()?;
    // The first command brought its modules; the second one is the first to leave their byte code there.
    farcell.run("x = 0")?;
    let before = farcell.census(kernel)?;
    let mut took = Samples::default();
    for _ in 0..cells {
        let started = Instant::now();
        farcell.run("x += 1")?;
        took.push(started.elapsed());
    }
    let after = farcell.census(kernel)?;
    let x = farcell.run("x")?;
    if x["kernel"]["id"] != kernel || x["result"]["text/plain"] != *cells.to_string() {
        return Err(format!("after {cells} cells of `x += 1`: {x}").into());
    }
    report.times(
        "farcell run",
        TARGET,
        "farcell, a process a cell",
        &took,
        "its directory is on a disk".to_owned(),
    );
    for ((what, before), (_, after)) in before.into_iter().zip(after) {
        report.fact(MEASURE, TARGET, "farcell run", cells, format!("{what}: {before}, then {after}"));
        let sentence =
            format!("{cells} cells leave {after} {what} where {before} were, at most {BOUND} more");
        report.verdict(after <= before + BOUND, sentence);
    }
    Ok(())
}

impl Farcell<'_> {
    /// Runs a cell; its reply.
    fn run(&self, code: &str) -> Result<Value> {
        let target = format!("{TARGET}?dir={}", self.base().display());
        let reply: Value = serde_json::from_slice(&self.command(&["run", "--json", "--on", &target, code])?)?;
        if reply["status"] == "ok" { Ok(reply) } else { Err(format!("{code:?} ended with {reply}").into()) }
    }

    /// The first kernel has left a process behind that imports what later ones need, and whose byte code is new here: once, and not for each cell.
    fn await_zygote(&self) -> Result<()> {
        let given_up = Instant::now() + PATIENCE;
        for entry in fs::read_dir(self.base())? {
            let entry = entry?;
            while entry.file_name().as_encoded_bytes().starts_with(b"z-")
                && !entry.path().join("zygote.json").exists()
            {
                if Instant::now() > given_up {
                    return Err("the zygote never got ready".into());
                }
                std::thread::sleep(Duration::from_millis(10));
            }
        }
        Ok(())
    }

    /// What a subcommand printed.
    fn command(&self, args: &[&str]) -> Result<Vec<u8>> {
        let mut command = Command::new(self.program);
        command
            .args(args)
            .env("FARCELL_STATE_DIR", self.state())
            .env("FARCELL_CONFIG", "/dev/null")
            .env(MARK, &self.mark);
        let output = command.output().map_err(|e| {
            format!("{}: {e} (--farcell or FARCELL_BIN names the program)", self.program.display())
        })?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr);
            return Err(format!("farcell {} failed: {said}", args[0]).into());
        }
        Ok(output.stdout)
    }

    /// Counts what there is now.
    fn census(&self, kernel: &str) -> Result<Census> {
        let directory = self.base().join(kernel);
        let record: Value = serde_json::from_slice(&fs::read(directory.join("kernel.json"))?)?;
        let pid = |name: &str| record[name].as_i64().ok_or_else(|| format!("the record has no {name}"));
        let marks = [format!("{MARK}={}", self.mark), format!("FARCELL_KERNEL={kernel}")];
        Ok(vec![
            ("processes", procfs::marked_processes(&marks)?),
            ("descriptors of the supervisor", procfs::open_fds(pid("pid")?)?),
            ("descriptors of the interpreter", procfs::open_fds(pid("interpreter_pid")?)?),
            ("entries in the kernel's directory", procfs::entries_under(&directory)?),
            ("entries in the base directory", procfs::entries_under(&self.base())?),
            ("entries in the state directory", procfs::entries_under(&self.state())?),
        ])
    }

    fn base(&self) -> PathBuf {
        self.home.join("base")
    }

    fn state(&self) -> PathBuf {
        self.home.join("state")
    }
}
