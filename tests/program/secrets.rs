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

/// A token that belongs to nobody, as code that makes it.
const TOKEN: &str = "'gh' + 'p_' + 'q7Rk2ZtX9mB4vL8s' + 'W3nY6cD1fG5hJ0pAq7Rk'";

#[test]
fn what_cells_print_is_cleaned_unless_a_person_wants_it_raw() {
    let farcell = Farcell::new();
    let code = format!("t = {TOKEN}\nprint('\\x1b[31mred', t)\nt");
    let (clean, label) = ("red [redacted: github token]\n", "'[redacted: github token]'\n");
    let ran = farcell.farcell(&["run", &code]);
    assert_eq!(ran.stdout, format!("{clean}{label}"), "{ran:#?}");
    assert_eq!(farcell.json(&["run", &code])["stdout"], clean);
    assert_eq!(farcell.json(&["result"])["stdout"], clean);
    let raw = farcell.ok(&["--raw", "run", &code]);
    assert!(raw.starts_with("\x1b[31mred ghp_q7"), "{raw:?}");
    let failed = farcell.farcell(&["run", "raise ValueError(t)"]);
    assert!(
        !failed.stderr.contains("ghp_") && failed.stderr.contains("[redacted: github token]"),
        "{failed:#?}"
    );
}

#[test]
fn the_log_of_a_cell_is_cleaned_where_the_reply_leaves_it_out() {
    let farcell = Farcell::new();
    let code = format!("print('x' * 3000, {TOKEN}, '\\x1b[0m', 'y' * 3000)");
    let reply = farcell.json(&["run", "--max-output", "100", &code]);
    assert!(reply["output"]["stdout_omitted"].as_u64().unwrap() > 5000, "{reply}");
    let log = farcell.ok(&["logs"]);
    assert!(log.contains("x [redacted: github token]  y") && log.len() > 6000, "{}", &log[2900..]);
    assert!(farcell.ok(&["logs", "--raw"]).contains("x ghp_q7"));
}

#[test]
fn values_that_the_host_knows_are_redacted_in_later_commands_too() {
    let farcell = Farcell::new();
    let run = |args: &[&str]| {
        let mut command = farcell.command(args);
        command.env("MY_API_TOKEN", SECRET).stdout(std::process::Stdio::piped());
        finish(command.stderr(std::process::Stdio::piped()).spawn().unwrap()).stdout
    };
    let code = "import os; print(os.environ['MY_API_TOKEN'][:-1] + os.environ['MY_API_TOKEN'][-1])";
    assert_eq!(run(&["run", "--env", "MY_API_TOKEN", code]), "[redacted: MY_API_TOKEN]\n");
    assert_eq!(run(&["run", code]), "[redacted: MY_API_TOKEN]\n");
    std::fs::write(
        farcell.dir().join("c.toml"),
        "[defaults]\nsecrets = [\"PLANTED\"]\nenv_pass = [\"PLANTED\"]\n",
    )
    .unwrap();
    let mut command = farcell.command(&["run", "-s", "b", "import os; print(os.environ['PLANTED'])"]);
    command.env("FARCELL_CONFIG", farcell.dir().join("c.toml")).env("PLANTED", SECRET);
    let ran = finish(command.stdout(std::process::Stdio::piped()).spawn().unwrap());
    assert_eq!(ran.stdout, "[redacted: PLANTED]\n");
}

#[test]
fn what_a_target_says_of_its_kernels_is_cleaned() {
    let farcell = Farcell::new();
    farcell.ok(&["run", "1"]);
    let kernels = std::fs::read_dir(farcell.base()).unwrap().map(|entry| entry.unwrap().path());
    let record = kernels.map(|kernel| kernel.join("kernel.json")).find(|path| path.exists()).unwrap();
    let mut said: serde_json::Value = serde_json::from_slice(&std::fs::read(&record).unwrap()).unwrap();
    said["version"] = "\x1b]0;owned\x07\x1b[2J9.9\n9".into();
    std::fs::write(&record, said.to_string()).unwrap();
    for arguments in [&["ps"][..], &["ps", "--on", &format!("local:?dir={}", farcell.base().display())]] {
        let listed = farcell.ok(arguments);
        assert!(listed.contains("9.9 9") && !listed.contains('\x1b'), "{listed:?}");
        assert_eq!(listed.lines().count(), 2, "{listed}");
    }
}
