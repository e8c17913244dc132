//! Holds programs by `fixtures/keeper.py`: they, what they started and their directory go when this process does, however it ends.

use std::fs::{File, Permissions};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::Mutex;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::{Value, json};
use tempfile::TempDir;

use crate::Trouble;
use crate::processes::{PATIENCE, becomes_so};

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/keeper.py");

/// A directory, and the programs that go with it.
#[derive(Debug)]
pub(crate) struct Keeper {
    dir: TempDir,
    child: Child,
    talk: Mutex<Option<(ChildStdin, BufReader<ChildStdout>)>>,
}

impl Keeper {
    /// A keeper with a directory that anyone may walk through; what the programs print is in `log` there.
    pub(crate) fn start(prefix: &str) -> Result<Self, Trouble> {
        let failed = |e: std::io::Error| Trouble::failed("start fixtures/keeper.py", e);
        let dir = tempfile::Builder::new().prefix(prefix).tempdir().map_err(failed)?;
        std::fs::set_permissions(dir.path(), Permissions::from_mode(0o711)).map_err(failed)?;
        let log = File::options().create(true).append(true).open(dir.path().join("log")).map_err(failed)?;
        let mut command = Command::new("python3");
        command.arg(PROGRAM).arg(dir.path()).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log);
        let mut child = command.spawn().map_err(failed)?;
        let stdin = child.stdin.take().expect("it was piped");
        let stdout = BufReader::new(child.stdout.take().expect("it was piped"));
        Ok(Keeper { dir, child, talk: Mutex::new(Some((stdin, stdout))) })
    }

    /// The directory.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// The keeper's process, of which all that was started is a descendant.
    pub(crate) fn pid(&self) -> i64 {
        i64::from(self.child.id())
    }

    /// Starts a program and gives its pid.
    pub(crate) fn run(&self, argv: &[&str]) -> Result<i64, Trouble> {
        let failed = |reason: String| Trouble::failed(format!("start {}", argv[0]), reason);
        let mut talk = self.talk.lock().expect("nobody panics in between");
        let (stdin, stdout) = talk.as_mut().expect("it is taken when all ends");
        writeln!(stdin, "{}", json!(argv)).map_err(|e| failed(e.to_string()))?;
        let bound = Timespec { tv_sec: PATIENCE.as_secs().try_into().expect("it is small"), tv_nsec: 0 };
        let mut fds = [PollFd::new(stdout.get_ref(), PollFlags::IN)];
        if !poll(&mut fds, Some(&bound)).is_ok_and(|ready| ready > 0) {
            return Err(failed("no answer".to_owned()));
        }
        let mut line = String::new();
        stdout.read_line(&mut line).map_err(|e| failed(e.to_string()))?;
        let answer: Value = serde_json::from_str(&line).map_err(|e| failed(format!("{e}: {line:?}")))?;
        answer["pid"].as_i64().ok_or_else(|| failed(answer["error"].to_string()))
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        // The end of its stdin is what it waits for.
        self.talk.get_mut().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        let ended = becomes_so(PATIENCE, || !matches!(self.child.try_wait(), Ok(None)));
        assert!(
            ended || std::thread::panicking(),
            "what was started through {} does not end",
            self.dir.path().display()
        );
    }
}
