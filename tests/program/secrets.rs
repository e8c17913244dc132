//! Nothing secret in argv, in a file that others can read, or in a log.

use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;

use super::harness::{Farcell, finish, wait_until, with_command};

const SECRET: &str = "hunter2-correct-horse-battery";

#[test]
fn code_and_environment_stay_out_of_argv_logs_and_foreign_eyes() {
    let farcell = Farcell::new();
    let mark = farcell.dir().join("mark");
    let file = farcell.dir().join("cell.py");
    let code = format!(
        "import os, time, pathlib\nassert os.environ['PLANTED'] and '{SECRET}'\npathlib.Path({:?}).touch(); time.sleep(600)",
        mark.display()
    );
    std::fs::write(&file, code).unwrap();
    let mut command = farcell.command(&["-vv", "run", "--env", "PLANTED", "-f", file.to_str().unwrap()]);
    command.env("PLANTED", SECRET).env("MY_API_TOKEN", "dropped").stdout(std::process::Stdio::piped());
    let child = command.stderr(std::process::Stdio::piped()).spawn().unwrap();
    wait_until("the cell runs", || mark.exists());
    let seen = with_command(SECRET);
    assert!(seen.is_empty(), "in argv: {seen:?}");
    farcell.ok(&["interrupt"]);
    let ran = finish(child);
    assert_eq!(ran.code, Some(130), "{ran:#?}");
    // The traceback shows lines of the cell, and that is the cell's own doing; the log does not.
    let log: String = ran.stderr.lines().filter(|l| l.contains("DEBUG") || l.contains("TRACE")).collect();
    assert!(!log.is_empty() && !log.contains(SECRET), "{log}");
    assert!(!farcell.ok(&["logs", "--supervisor"]).contains(SECRET));
    private(&farcell.base());
    private(&farcell.dir().join("state"));
    assert_eq!(farcell.ok(&["run", "import os; 'MY_API_TOKEN' in os.environ"]), "False");
}

/// Everything below is for its owner alone.
fn private(path: &Path) {
    let meta = std::fs::symlink_metadata(path).unwrap();
    let mode = meta.permissions().mode() & 0o777;
    if meta.is_dir() {
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", path.display());
        for entry in std::fs::read_dir(path).unwrap() {
            private(&entry.unwrap().path());
        }
    } else {
        assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", path.display());
    }
}
