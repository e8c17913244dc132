//! A transport from outside: all that a new kind of target has to bring, and the proof that it holds what the trait promises.
//!
//! This one runs commands in a directory of its own with a lowered priority, under the scheme `nice:`. The whole conformance suite runs over it.
//!
//! `cargo run --example custom_transport`
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example")]

use std::process::Stdio;
use std::sync::{Arc, Mutex};

use farcell::bytes::Bytes;
use farcell::{
    Capabilities, ClosesOnShutdown, Command, Connection, Connector, Drivers, Duplex, Ended, Error, ErrorKind,
    FileCellDriver, Instant, LinkChoice, Output, Result, Running, Step, Target, Transport,
};
use farcell_conformance::{Subject, kernel_cases, transport_cases};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::process::{Child, ChildStderr};

/// The way to one target.
#[derive(Debug)]
struct NiceTransport {
    target: Target,
}

impl NiceTransport {
    /// Starts a command. Only before it has started is it certain that nothing has reached the target.
    fn start(&self, command: &Command) -> Result<Child> {
        tokio::process::Command::new("nice")
            .args(["-n", "5"])
            .args(command.argv())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(|e| self.failed(&e).at(Step::Connect))
    }

    fn failed(&self, e: &std::io::Error) -> Error {
        Error::new(ErrorKind::Transport, format!("nice: {e}")).on(&self.target)
    }
}

#[async_trait::async_trait]
impl Transport for NiceTransport {
    fn target(&self) -> &Target {
        &self.target
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new().opens(true)
    }

    async fn exec(&self, command: &Command, stdin: Bytes, deadline: Instant) -> Result<Output> {
        let mut child = self.start(command)?;
        let mut group = Group(child.id());
        let (input, output, errors) = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let feed = async {
            if let Some(mut input) = input {
                // A command that does not read its input is judged by its status.
                let _ = input.write_all(&stdin).await;
            }
        };
        let (mut stdout, mut stderr) = (Vec::new(), Vec::new());
        let read_out = async {
            if let Some(mut output) = output {
                output.read_to_end(&mut stdout).await?;
            }
            std::io::Result::Ok(())
        };
        let read_err = async {
            if let Some(mut errors) = errors {
                errors.read_to_end(&mut stderr).await?;
            }
            std::io::Result::Ok(())
        };
        let work = async { tokio::join!(feed, read_out, read_err, child.wait()) };
        let Ok(((), out, err, status)) = tokio::time::timeout_at(deadline, work).await else {
            return Err(Error::new(ErrorKind::Deadline, "the command did not end in time").on(&self.target));
        };
        group.0 = None;
        out.and(err).map_err(|e| self.failed(&e))?;
        let ended = status.map_err(|e| self.failed(&e))?.code().map_or(Ended::Unknown, Ended::Exit);
        Ok(Output::new(ended, stdout, stderr))
    }

    // All that speaks for streams: without this, and without `opens` above, the rest works as well, each step as a command.
    async fn open(&self, command: &Command, _: Instant) -> Result<Duplex> {
        let mut child = self.start(command)?;
        let group = Group(child.id());
        let (Some(stdin), Some(stdout), Some(stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(Error::new(ErrorKind::Local, "the child has no pipes").on(&self.target));
        };
        let said = Arc::new(Mutex::new(Vec::new()));
        tokio::spawn(listen(stderr, Arc::clone(&said)));
        Ok(Duplex::new(
            ClosesOnShutdown::new(stdin),
            stdout,
            NiceCommand { _group: group, _child: child, said },
        ))
    }
}

/// A command that is kept open. Dropped, it is killed, and tokio waits for it.
#[derive(Debug)]
struct NiceCommand {
    _group: Group,
    _child: Child,
    said: Arc<Mutex<Vec<u8>>>,
}

impl Running for NiceCommand {
    fn stderr(&self) -> Bytes {
        Bytes::copy_from_slice(&self.said.lock().unwrap())
    }
}

/// Reads a command's stderr, which it must never have to wait for, and keeps the end of it.
async fn listen(mut stderr: ChildStderr, said: Arc<Mutex<Vec<u8>>>) {
    let mut piece = [0; 4096];
    while let Ok(n @ 1..) = stderr.read(&mut piece).await {
        let mut said = said.lock().unwrap();
        said.extend_from_slice(&piece[..n]);
        let surplus = said.len().saturating_sub(65_536);
        said.drain(..surplus);
    }
}

/// Ends a command with all that it has started, when the deadline passes or the caller loses interest.
#[derive(Debug)]
struct Group(Option<u32>);

impl Drop for Group {
    fn drop(&mut self) {
        let pid = self.0.and_then(|id| Pid::from_raw(i32::try_from(id).ok()?));
        if let Some(pid) = pid {
            // It may have ended by itself in the meantime.
            let _ = kill_process_group(pid, Signal::KILL);
        }
    }
}

/// Opens it for targets `nice:`.
#[derive(Debug)]
struct NiceConnector;

#[async_trait::async_trait]
impl Connector for NiceConnector {
    fn schemes(&self) -> &'static [&'static str] {
        &["nice"]
    }

    fn check(&self, target: &Target) -> Result<()> {
        if target.rest().is_empty() {
            return Ok(());
        }
        Err(Error::new(ErrorKind::BadInput, "nice: takes nothing behind the colon")
            .on(target)
            .at(Step::Parse))
    }

    async fn connect(&self, target: &Target) -> Result<Connection> {
        Ok(Connection::new(NiceTransport { target: target.clone() }))
    }
}

#[tokio::main]
async fn main() -> std::result::Result<(), Box<dyn std::error::Error>> {
    let target: Target = "nice:".parse()?;
    let transport: Arc<dyn Transport> = Arc::new(NiceTransport { target: target.clone() });
    for case in transport_cases() {
        (case.check)(Arc::clone(&transport)).await;
        println!("transport: {}", case.name);
    }
    for links in [LinkChoice::Best, LinkChoice::ExecOnly] {
        let drivers = Drivers::new().with(FileCellDriver::new(NiceConnector).links(links));
        for case in kernel_cases() {
            let subject = Subject::new(drivers.clone(), target.clone());
            (case.check)(&subject).await;
            subject.clean_up().await;
            println!("kernel, {links:?}: {}", case.name);
        }
    }
    Ok(())
}
