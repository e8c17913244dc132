//! A transport from outside: all that a new kind of target has to bring, and the proof that it holds what the trait promises.
//!
//! This one runs commands in a directory of its own with a lowered priority, under the scheme `nice:`. The whole conformance suite runs over it.
//!
//! `cargo run --example custom_transport`
#![allow(clippy::print_stdout, reason = "an example")]

use std::process::Stdio;
use std::sync::Arc;

use farcell::bytes::Bytes;
use farcell::{
    Capabilities, Command, Connection, Connector, Drivers, Ended, Error, ErrorKind, FileCellDriver, Instant,
    Output, Result, Step, Target, Transport,
};
use farcell_conformance::{Subject, kernel_cases, transport_cases};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

/// The way to one target.
#[derive(Debug)]
struct NiceTransport {
    target: Target,
}

#[async_trait::async_trait]
impl Transport for NiceTransport {
    fn target(&self) -> &Target {
        &self.target
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new()
    }

    async fn exec(&self, command: &Command, stdin: Bytes, deadline: Instant) -> Result<Output> {
        let failed =
            |e: std::io::Error| Error::new(ErrorKind::Transport, format!("nice: {e}")).on(&self.target);
        // Only before the command has started is it certain that nothing has reached the target.
        let not_started = |e| failed(e).at(Step::Connect);
        let [shell, flag, script] = command.argv();
        let mut child = tokio::process::Command::new("nice")
            .args(["-n", "5", shell, flag, script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()
            .map_err(not_started)?;
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
        out.and(err).map_err(failed)?;
        let ended = status.map_err(failed)?.code().map_or(Ended::Unknown, Ended::Exit);
        Ok(Output::new(ended, stdout, stderr))
    }
}

/// Ends a command with all that it has started, when the deadline passes or the caller loses interest.
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
    let drivers = Drivers::new().with(FileCellDriver::new(NiceConnector));
    for case in kernel_cases() {
        let subject = Subject::new(drivers.clone(), target.clone());
        (case.check)(&subject).await;
        subject.clean_up().await;
        println!("kernel: {}", case.name);
    }
    Ok(())
}
