//! A farcell of its own for each test: state, kernels' directory and owner are private, and nothing may be left when it ends.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};

pub(crate) use farcell_testbed::processes::{PATIENCE, is_alive, wait_until, with_command};
use serde_json::Value;

/// A private farcell.
pub(crate) struct Farcell {
    dir: tempfile::TempDir,
    /// Where its connections stay for its next process: `stop --all` of another farcell leaves them alone.
    runtime: tempfile::TempDir,
    target: String,
}

/// What a run left.
#[derive(Debug)]
pub(crate) struct Ran {
    pub(crate) code: Option<i32>,
    pub(crate) stdout: String,
    pub(crate) stderr: String,
}

impl Farcell {
    pub(crate) fn new() -> Self {
        let dir = tempfile::Builder::new().prefix("farcell-test-").tempdir().unwrap();
        let base = dir.path().join("base");
        let target = format!("local:?dir={}", base.display());
        let runtime = tempfile::Builder::new().prefix("farcell-run-").tempdir().unwrap();
        Farcell { dir, runtime, target }
    }

    /// The same, with kernels under a directory of the caller's.
    pub(crate) fn with_target(target: &str) -> Self {
        let mut farcell = Farcell::new();
        target.clone_into(&mut farcell.target);
        farcell
    }

    /// A private directory.
    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// Where kernels are.
    pub(crate) fn base(&self) -> PathBuf {
        self.dir.path().join("base")
    }

    /// The program with some arguments, ready to start.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_farcell"));
        command.args(args).stdin(Stdio::null());
        for name in ["FARCELL_TARGET", "FARCELL_SESSION", "FARCELL_OWNER", "FARCELL_CONFIG", "FARCELL_LOG"] {
            command.env_remove(name);
        }
        command.env("FARCELL_STATE_DIR", self.dir.path().join("state"));
        command.env("XDG_CONFIG_HOME", self.dir.path().join("config"));
        command.env("XDG_RUNTIME_DIR", self.runtime.path());
        command.env("FARCELL_TARGET", &self.target);
        command
    }

    /// Runs the program to its end.
    pub(crate) fn farcell(&self, args: &[&str]) -> Ran {
        finish(self.start(args))
    }

    /// Starts the program.
    pub(crate) fn start(&self, args: &[&str]) -> Child {
        self.command(args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }

    /// Runs the program, which has to succeed; gives its stdout without the line break.
    pub(crate) fn ok(&self, args: &[&str]) -> String {
        let ran = self.farcell(args);
        assert_eq!(ran.code, Some(0), "{args:?}: {ran:#?}");
        ran.stdout.trim_end_matches('\n').to_owned()
    }

    /// Runs the program with `--json` and gives the document.
    pub(crate) fn json(&self, args: &[&str]) -> Value {
        let ran = self.farcell(&[&["--json"], args].concat());
        document(&ran)
    }

    /// The pid of the supervisor of a session.
    pub(crate) fn supervisor(&self, session: &str) -> i64 {
        let kernels = self.json(&["ps"]);
        let list = kernels["kernels"].as_array().unwrap();
        let kernel =
            list.iter().find(|k| k["session"] == session).unwrap_or_else(|| panic!("{session}: {kernels}"));
        kernel["kernel"]["pid"].as_i64().unwrap()
    }
}

impl Drop for Farcell {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let _ = self.command(&["stop", "--all"]).output();
            return;
        }
        let stopped = self.farcell(&["stop", "--all"]);
        assert_eq!(stopped.code, Some(0), "{stopped:#?}");
        let dir = self.dir.path().display().to_string();
        let (zygotes, left): (Vec<_>, Vec<_>) =
            with_command(&dir).into_iter().partition(|(_, line)| line.contains(" --zygote "));
        assert!(left.is_empty(), "processes are left: {left:?}");
        // A zygote of a kernel that was stopped alone stays for minutes, for the next one.
        for (pid, _) in zygotes {
            signal(pid, "TERM");
        }
        wait_until("no zygote is left", || with_command(&dir).is_empty());
        let kernels = std::fs::read_dir(self.base()).into_iter().flatten().flatten();
        let left: Vec<_> =
            kernels.map(|e| e.file_name()).filter(|n| n.to_string_lossy().starts_with("k-")).collect();
        assert!(left.is_empty(), "directories are left: {left:?}");
    }
}

/// Waits for a program that was started.
pub(crate) fn finish(child: Child) -> Ran {
    let Output { status, stdout, stderr } = child.wait_with_output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("farcell prints UTF-8");
    Ran { code: status.code(), stdout: text(stdout), stderr: text(stderr) }
}

/// The one JSON document on stdout.
pub(crate) fn document(ran: &Ran) -> Value {
    serde_json::from_str(&ran.stdout)
        .unwrap_or_else(|e| panic!("stdout is not one JSON document ({e}): {ran:#?}"))
}

/// Sends a signal to a process.
pub(crate) fn signal(pid: i64, name: &str) {
    let status = Command::new("kill").arg(format!("-{name}")).arg(pid.to_string()).status().unwrap();
    assert!(status.success(), "kill -{name} {pid}");
}
