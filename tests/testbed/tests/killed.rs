//! A test that is killed leaves nothing for long: what it had started goes with it, its accounts go when the next one is made.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};

use farcell_testbed::processes::{is_alive, wait_until, with_command};
use farcell_testbed::{Sshd, account, available};

/// Says to this test program that it is the one to be killed.
const VICTIM: &str = "TESTBED_VICTIM";

#[test]
fn a_killed_test_leaves_nothing() {
    if std::env::var_os(VICTIM).is_some() {
        return be_killed();
    }
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["a_killed_test_leaves_nothing", "--exact", "--nocapture"]).env(VICTIM, "1");
    let mut victim = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let lines = BufReader::new(victim.stdout.take().unwrap()).lines().map(Result::unwrap);
    // The harness has its own words before it.
    let Some(line) = lines.filter_map(|line| Some(line.split_once("started ")?.1.to_owned())).next() else {
        // It has said on stderr what is missing.
        assert!(victim.wait().unwrap().success());
        return;
    };
    let words: Vec<&str> = line.split(' ').collect();
    let [dir, pid, name] = words[..] else { panic!("{line}") };
    let pid = pid.parse().unwrap();
    assert!(is_alive(pid));
    assert!(!with_command(dir).is_empty());
    victim.kill().unwrap();
    victim.wait().unwrap();
    wait_until("what it started ends", || !is_alive(pid) && with_command(dir).is_empty());
    wait_until("its directory goes", || !Path::new(dir).exists());
    let accounts = || std::fs::read_to_string("/etc/passwd").unwrap();
    assert!(accounts().contains(name));
    account("next", "/bin/sh", "").unwrap();
    assert!(!accounts().contains(name));
}

/// Starts everything, tells it, and waits for the end.
fn be_killed() {
    let Some(account) = available(account("killed", "/bin/sh", "")) else { return };
    let Some(sshd) = available(Sshd::options().login_as(account.name()).start()) else { return };
    let output = sshd.ssh("box").arg("sleep 1000 </dev/null >/dev/null 2>&1 & echo $!").output().unwrap();
    let pid = String::from_utf8(output.stdout).unwrap();
    let told = format!("started {} {} {}\n", sshd.dir().display(), pid.trim(), account.name());
    std::io::stdout().write_all(told.as_bytes()).unwrap();
    std::io::stdin().read_line(&mut String::new()).unwrap();
}
