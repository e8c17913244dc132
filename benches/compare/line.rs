//! The least that a line into a container and back can cost: `docker exec -i NAME cat`, in a runtime like farcell's.

use std::process::Stdio;
use std::time::Instant;

use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::runtime::Runtime;

use crate::farcell_side::two_workers;
use crate::samples::Samples;
use crate::side::{Done, KernelNumber, Processes, Side, Trouble};
use crate::work;

/// A line that is sent back as it is.
#[derive(Debug)]
struct Cat {
    /// Killed when it is dropped.
    _child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Cat {
    /// Only within a runtime.
    fn start(container: &str) -> Done<Self> {
        let mut command = Command::new("docker");
        command.args(["exec", "-i", container, "cat"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.kill_on_drop(true).spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (stdin, stdout) = stdin.zip(stdout).ok_or_else(|| Trouble::Failed("no pipes".to_owned()))?;
        Ok(Cat { _child: child, stdin, stdout: BufReader::new(stdout) })
    }

    async fn echo(&mut self, line: &str) -> Done<()> {
        self.stdin.write_all(format!("{line}\n").as_bytes()).await?;
        let mut came = String::new();
        self.stdout.read_line(&mut came).await?;
        if came.trim_end() == line {
            Ok(())
        } else {
            Err(Trouble::Failed("another line came back".to_owned()))
        }
    }
}

/// Lines into a container.
#[derive(Debug)]
pub(crate) struct BareLine {
    cats: Vec<Option<Cat>>,
    container: String,
    runtime: Runtime,
}

impl BareLine {
    pub(crate) fn start(container: &str) -> Done<Self> {
        let runtime = two_workers().map_err(|e| Trouble::Failed(e.to_string()))?;
        Ok(BareLine { cats: Vec::new(), container: container.to_owned(), runtime })
    }

    fn cannot<T>() -> Done<T> {
        Err(Trouble::Cannot("it runs no code".to_owned()))
    }
}

impl Side for BareLine {
    fn version(&self) -> &'static str {
        ""
    }

    fn note(&self) -> &'static str {
        "no code is run: the line comes back"
    }

    fn spawn(&mut self, count: usize) -> Done<(Samples, Vec<KernelNumber>)> {
        let (mut samples, first) = (Samples::default(), self.cats.len());
        for _ in 0..count {
            let started = Instant::now();
            let cat = self.runtime.block_on(async {
                let mut cat = Cat::start(&self.container)?;
                cat.echo(work::FIRST).await?;
                Done::Ok(cat)
            })?;
            samples.push(started.elapsed());
            self.cats.push(Some(cat));
        }
        Ok((samples, (first..self.cats.len()).collect()))
    }

    fn count(&mut self, kernels: &[KernelNumber], rounds: usize) -> Done<Samples> {
        let mut samples = Samples::default();
        for _ in 0..rounds {
            for number in kernels {
                let cat =
                    self.cats[*number].as_mut().ok_or_else(|| Trouble::Failed("it was ended".to_owned()))?;
                let started = Instant::now();
                self.runtime.block_on(cat.echo(work::COUNT))?;
                samples.push(started.elapsed());
            }
        }
        Ok(samples)
    }

    fn print(&mut self, _: KernelNumber, _: usize, _: usize) -> Done<Samples> {
        Self::cannot()
    }

    fn load(&mut self, _: KernelNumber, _: usize, _: usize) -> Done<Samples> {
        Self::cannot()
    }

    fn processes(&mut self, _: &[KernelNumber]) -> Done<Processes> {
        Self::cannot()
    }

    fn stop(&mut self, kernels: &[KernelNumber]) -> Done<()> {
        for number in kernels {
            self.cats[*number] = None;
        }
        Ok(())
    }
}
