//! A peer behind its adapter: a Python program that speaks a line of JSON at a time. It takes the times itself; see peers/adapter.py.

use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use serde_json::{Value, json};

use crate::fixtures;
use crate::places::Place;
use crate::samples::Samples;
use crate::side::{Done, KernelNumber, Processes, Side, Trouble, samples_of};

/// How long a peer may take for one request of many cells.
const PATIENCE: Duration = Duration::from_secs(240);
/// How long it may take to clean up.
const FAREWELL: Duration = Duration::from_secs(60);

/// Dropping it has the adapter end all that it has started.
#[derive(Debug)]
pub(crate) struct Adapter {
    child: Child,
    stdin: Option<ChildStdin>,
    answers: Receiver<String>,
    version: String,
    note: String,
}

impl Adapter {
    pub(crate) fn start(place: &Place, module: &[&str]) -> Done<Self> {
        let log = fixtures::log(&format!("{}-{}", place.name.replace(' ', "-"), module.join("")))?;
        let mut command = Command::new(&place.venv_python);
        command.arg("-m").args(module).current_dir(fixtures::here("peers"));
        // A group of its own: what Ctrl-C does is end us, and the end of its stdin ends it.
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).process_group(0);
        let mut child = command.spawn()?;
        let stdout = child.stdout.take().ok_or_else(|| Trouble::Failed("no stdout".to_owned()))?;
        let stdin = child.stdin.take();
        let (sender, answers) = channel();
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                if sender.send(line).is_err() {
                    break;
                }
            }
        });
        let mut adapter = Adapter { child, stdin, answers, version: String::new(), note: String::new() };
        let answer = adapter.ask(&json!({ "do": "connect", "target": place.told_to_adapters() }))?;
        answer["version"].as_str().unwrap_or_default().clone_into(&mut adapter.version);
        answer["note"].as_str().unwrap_or_default().clone_into(&mut adapter.note);
        Ok(adapter)
    }

    fn ask(&mut self, request: &Value) -> Done<Value> {
        let gone = |why: &str| Trouble::Failed(format!("its adapter {why}"));
        let stdin = self.stdin.as_mut().ok_or_else(|| gone("has been ended"))?;
        writeln!(stdin, "{request}").and_then(|()| stdin.flush()).map_err(|_| gone("has ended"))?;
        let Ok(line) = self.answers.recv_timeout(PATIENCE) else {
            self.kill();
            return Err(gone(&format!("did not answer in {PATIENCE:?}, or ended")));
        };
        let answer: Value = serde_json::from_str(&line)?;
        match (answer["cannot"].as_str(), answer["error"].as_str()) {
            (Some(why), _) => Err(Trouble::Cannot(why.to_owned())),
            (_, Some(why)) => Err(Trouble::Failed(why.to_owned())),
            _ => Ok(answer),
        }
    }

    fn kill(&mut self) {
        self.stdin = None;
        if let Ok(pid) = i32::try_from(self.child.id())
            && let Some(pid) = rustix::process::Pid::from_raw(pid)
        {
            // It may have ended by itself, which is as good.
            let _ = rustix::process::kill_process_group(pid, rustix::process::Signal::KILL);
        }
    }
}

impl Side for Adapter {
    fn version(&self) -> &str {
        &self.version
    }

    fn note(&self) -> &str {
        &self.note
    }

    fn spawn(&mut self, count: usize) -> Done<(Samples, Vec<KernelNumber>)> {
        let answer = self.ask(&json!({ "do": "spawn", "count": count }))?;
        let kernels = serde_json::from_value(answer["kernels"].clone())?;
        Ok((samples_of(&answer), kernels))
    }

    fn count(&mut self, kernels: &[KernelNumber], rounds: usize) -> Done<Samples> {
        Ok(samples_of(&self.ask(&json!({ "do": "count", "kernels": kernels, "rounds": rounds }))?))
    }

    fn print(&mut self, kernel: KernelNumber, rounds: usize, bytes: usize) -> Done<Samples> {
        let request = json!({ "do": "print", "kernel": kernel, "rounds": rounds, "bytes": bytes });
        Ok(samples_of(&self.ask(&request)?))
    }

    fn load(&mut self, kernel: KernelNumber, rounds: usize, bytes: usize) -> Done<Samples> {
        let request = json!({ "do": "load", "kernel": kernel, "rounds": rounds, "bytes": bytes });
        Ok(samples_of(&self.ask(&request)?))
    }

    fn processes(&mut self, kernels: &[KernelNumber]) -> Done<Processes> {
        let answer = self.ask(&json!({ "do": "pids", "kernels": kernels }))?;
        let pids = serde_json::from_value(answer["pids"].clone())?;
        Ok(Processes { pids, container: answer["container"].as_str().map(str::to_owned) })
    }

    fn stop(&mut self, kernels: &[KernelNumber]) -> Done<()> {
        self.ask(&json!({ "do": "stop", "kernels": kernels })).map(drop)
    }
}

impl Drop for Adapter {
    fn drop(&mut self) {
        self.stdin = None;
        // Its stdout ends with it.
        while self.answers.recv_timeout(FAREWELL).is_ok() {}
        self.kill();
        let _ = self.child.wait();
    }
}
