//! The floor: a pipe to a Python that executes what comes and says so, in a runtime like farcell's.

use std::process::Stdio;
use std::time::Instant;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::runtime::Runtime;

use crate::farcell_side::two_workers;
use crate::places::Place;
use crate::samples::Samples;
use crate::side::{Done, KernelNumber, Processes, Side, Trouble};
use crate::work;

/// One read and one write for each piece of code: both streams are buffered.
const CHILD: &str = include_str!("peers/child.py");
const REPLY: &[u8] = b"\0\0\0\x02ok";

/// One end of a pipe.
#[derive(Debug)]
struct Pipe {
    /// Killed when it is dropped.
    _child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
    count: usize,
}

impl Pipe {
    /// Only within a runtime.
    fn start(command: &[String]) -> Done<Self> {
        let mut child = Command::new(&command[0])
            .args(&command[1..])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (stdin, stdout) = stdin.zip(stdout).ok_or_else(|| Trouble::Failed("no pipes".to_owned()))?;
        Ok(Pipe { _child: child, stdin, stdout: BufReader::new(stdout), count: 0 })
    }

    /// Has the far end execute some code.
    async fn run(&mut self, code: &str) -> Done<()> {
        let mut frame = u32::try_from(code.len())?.to_be_bytes().to_vec();
        frame.extend_from_slice(code.as_bytes());
        self.stdin.write_all(&frame).await?;
        self.stdin.flush().await?;
        let mut reply = [0; REPLY.len()];
        self.stdout.read_exact(&mut reply).await?;
        if reply == REPLY {
            Ok(())
        } else {
            Err(Trouble::Failed("the far end answered something else".to_owned()))
        }
    }
}

/// Bare pipes to a place.
#[derive(Debug)]
pub(crate) struct Floor {
    pipes: Vec<Option<Pipe>>,
    command: Vec<String>,
    version: String,
    runtime: Runtime,
}

impl Floor {
    pub(crate) fn start(place: &Place) -> Done<Self> {
        let runtime = two_workers().map_err(|e| Trouble::Failed(e.to_string()))?;
        let argv = place.bare_command("import platform; print(platform.python_version())");
        let said = std::process::Command::new(&argv[0]).args(&argv[1..]).stdin(Stdio::null()).output()?;
        let version = String::from_utf8_lossy(&said.stdout).trim().to_owned();
        Ok(Floor { pipes: Vec::new(), command: place.bare_command(CHILD), version, runtime })
    }

    fn time(&mut self, kernel: KernelNumber, code: &str, rounds: usize) -> Done<Samples> {
        let pipe = self.pipes[kernel].as_mut().ok_or_else(|| Trouble::Failed("it was ended".to_owned()))?;
        self.runtime.block_on(async {
            let mut samples = Samples::default();
            for _ in 0..rounds {
                let started = Instant::now();
                pipe.run(code).await?;
                samples.push(started.elapsed());
            }
            Ok(samples)
        })
    }
}

impl Side for Floor {
    fn version(&self) -> &str {
        &self.version
    }

    fn note(&self) -> &str {
        "what ratios refer to: in this program, in a runtime like farcell's"
    }

    fn spawn(&mut self, count: usize) -> Done<(Samples, Vec<KernelNumber>)> {
        let (mut samples, mut numbers) = (Samples::default(), Vec::new());
        for _ in 0..count {
            let started = Instant::now();
            let pipe = self.runtime.block_on(async {
                let mut pipe = Pipe::start(&self.command)?;
                pipe.run(work::FIRST).await?;
                Done::Ok(pipe)
            })?;
            samples.push(started.elapsed());
            numbers.push(self.pipes.len());
            self.pipes.push(Some(pipe));
        }
        Ok((samples, numbers))
    }

    fn count(&mut self, kernels: &[KernelNumber], rounds: usize) -> Done<Samples> {
        let mut samples = Samples::default();
        for _ in 0..rounds {
            for number in kernels {
                samples.extend(self.time(*number, work::COUNT, 1)?);
                self.pipes[*number].iter_mut().for_each(|pipe| pipe.count += 1);
            }
        }
        for number in kernels {
            let count = self.pipes[*number].as_ref().map_or(0, |pipe| pipe.count);
            // It cannot be asked; it ends where this does not hold.
            self.time(*number, &format!("assert x == {count}"), 1)?;
        }
        Ok(samples)
    }

    fn print(&mut self, _: KernelNumber, _: usize, _: usize) -> Done<Samples> {
        Err(Trouble::Cannot("it has no output".to_owned()))
    }

    fn load(&mut self, kernel: KernelNumber, rounds: usize, bytes: usize) -> Done<Samples> {
        let samples = self.time(kernel, &work::loading(bytes), rounds)?;
        self.time(kernel, &format!("assert len(data) == {bytes}"), 1)?;
        Ok(samples)
    }

    fn processes(&mut self, _: &[KernelNumber]) -> Done<Processes> {
        Err(Trouble::Cannot("it is no kernel".to_owned()))
    }

    fn stop(&mut self, kernels: &[KernelNumber]) -> Done<()> {
        for number in kernels {
            self.pipes[*number] = None;
        }
        Ok(())
    }
}
