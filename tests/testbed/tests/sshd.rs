//! The sshd, with OpenSSH's own client.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

use farcell_testbed::processes::{is_alive, wait_until};
use farcell_testbed::{HostKey, Proxy, Sshd, SshdOptions, Trouble, account, available};

fn run(sshd: &Sshd, alias: &str, command: &str) -> Output {
    sshd.ssh(alias).arg(command).output().unwrap()
}

fn answer(sshd: &Sshd, alias: &str, command: &str) -> String {
    let output = run(sshd, alias, command);
    assert!(output.status.success(), "{output:?}\n{}", sshd.log());
    String::from_utf8(output.stdout).unwrap()
}

/// A session that sends back each line.
struct Echo {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Echo {
    fn start(sshd: &Sshd, alias: &str) -> Echo {
        let mut command = sshd.ssh(alias);
        command.arg("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let mut echo = Echo { child, stdin, stdout };
        echo.echoes("hello");
        echo
    }

    fn echoes(&mut self, word: &str) {
        writeln!(self.stdin, "{word}").unwrap();
        let mut line = String::new();
        self.stdout.read_line(&mut line).unwrap();
        assert_eq!(line.trim_end(), word);
    }

    /// What the client says when its connection has ended.
    fn lost(self) -> String {
        let output = self.child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(255), "{output:?}");
        String::from_utf8(output.stderr).unwrap()
    }

    fn end(self) {
        let Echo { mut child, stdin, .. } = self;
        drop(stdin);
        assert!(child.wait().unwrap().success());
    }
}

/// Starts something that outlives its session, and gives its pid.
fn detached(sshd: &Sshd) -> i64 {
    let script = "exec /bin/sh -c 'sleep 1000 </dev/null >/dev/null 2>&1 & echo $!'";
    answer(sshd, "box", script).trim().parse().unwrap()
}

#[test]
fn a_login_runs_a_command_and_is_counted() {
    let Some(sshd) = available(Sshd::start()) else { return };
    assert_eq!(sshd.accepted(), 0);
    assert_eq!(answer(&sshd, "box", "echo hi; id -un"), format!("hi\n{}\n", sshd.user()));
    answer(&sshd, "box", "true");
    assert_eq!(sshd.accepted(), 2, "{}", sshd.log());
}

#[test]
fn what_was_detached_ends_with_the_sshd_and_the_directory_goes() {
    let Some(sshd) = available(Sshd::start()) else { return };
    let pid = detached(&sshd);
    assert!(is_alive(pid));
    wait_until("only what was detached is left", || sshd.processes() == [pid]);
    let dir = sshd.dir().to_owned();
    drop(sshd);
    assert!(!is_alive(pid));
    assert!(!dir.exists());
}

#[test]
fn a_killed_listener_leaves_sessions_and_comes_back_at_its_port() {
    let Some(sshd) = available(Sshd::start()) else { return };
    let mut before = Echo::start(&sshd, "box");
    sshd.kill();
    before.echoes("nobody listens");
    assert_eq!(run(&sshd, "box", "true").status.code(), Some(255));
    sshd.restart().unwrap();
    assert_eq!(answer(&sshd, "box", "echo again"), "again\n");
    before.echoes("still here");
    before.end();
}

#[test]
fn ended_sessions_are_lost_but_not_what_they_started() {
    let Some(sshd) = available(Sshd::start()) else { return };
    let pid = detached(&sshd);
    let (one, other) = (Echo::start(&sshd, "box"), Echo::start(&sshd, "box"));
    sshd.end_sessions();
    one.lost();
    other.lost();
    assert!(is_alive(pid));
    assert_eq!(answer(&sshd, "box", "echo again"), "again\n");
}

#[test]
fn another_host_key_is_refused() {
    let Some(sshd) = available(Sshd::start()) else { return };
    answer(&sshd, "box", "true");
    sshd.swap_host_key().unwrap();
    let output = run(&sshd, "box", "true");
    assert_eq!(output.status.code(), Some(255));
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("Host key verification failed"), "{said}");
    assert_eq!(sshd.accepted(), 1);
}

#[test]
fn every_kind_of_host_key_is_known() {
    let kinds = [
        (HostKey::Ed25519, "ssh-ed25519"),
        (HostKey::Ecdsa, "ecdsa-sha2-nistp256"),
        (HostKey::Rsa, "rsa-sha2-512"),
    ];
    let Some(sshd) = available(Sshd::options().host_keys(&kinds.map(|(kind, _)| kind)).start()) else {
        return;
    };
    for (_, algorithm) in kinds {
        let status = sshd.ssh("box").args(["-o", &format!("HostKeyAlgorithms={algorithm}"), "true"]).status();
        assert!(status.unwrap().success(), "{algorithm}");
    }
}

#[test]
fn options_reach_the_session() {
    let options = Sshd::options().set_env("LC_ALL", "xx_XX").set_env("WORDS", "two words");
    let Some(sshd) = available(options.start()) else { return };
    assert_eq!(answer(&sshd, "box", "echo \"$LC_ALL, $WORDS\""), "xx_XX, two words\n");
    let forced = Sshd::options().force_command("echo forced").start().unwrap();
    assert_eq!(answer(&forced, "box", "echo mine"), "forced\n");
    let extra = Sshd::options().extra("ListenAddress 127.0.0.1").extra("Banner none").start().unwrap();
    assert_eq!(answer(&extra, "box", "echo hi"), "hi\n");
}

#[test]
fn a_connection_has_no_more_sessions_than_it_may() {
    let Some(sshd) = available(Sshd::options().max_sessions(1).start()) else { return };
    let socket = sshd.dir().join("master");
    let control = format!("ControlPath={}", socket.display());
    let mut master = sshd.ssh("box");
    master
        .args(["-o", &control, "-o", "ControlMaster=yes", "cat"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped());
    let mut master = master.spawn().unwrap();
    writeln!(master.stdin.as_mut().unwrap(), "hello").unwrap();
    BufReader::new(master.stdout.as_mut().unwrap()).read_line(&mut String::new()).unwrap();
    // The client takes a refusal for a master that does not work, and would log in again.
    let second =
        sshd.ssh("box").args(["-v", "-o", &control, "-o", "ProxyCommand=false", "true"]).output().unwrap();
    assert!(!second.status.success());
    let said = String::from_utf8_lossy(&second.stderr);
    assert!(said.contains("refused") || said.contains("open failed"), "{said}");
    drop(master.stdin.take());
    assert!(master.wait().unwrap().success());
}

#[test]
fn a_bad_option_is_told_with_the_words_of_sshd() {
    match Sshd::options().extra("NoSuchOption yes").start() {
        Err(Trouble::Failed { reason, .. }) => assert!(reason.contains("NoSuchOption"), "{reason}"),
        Err(missing) => _ = available::<Sshd>(Err(missing)),
        Ok(_) => panic!("it has started"),
    }
}

#[test]
fn a_session_through_a_far_proxy_waits_for_its_round_trips() {
    let Some(sshd) = available(Sshd::start()) else { return };
    let proxy = Proxy::start(sshd.port()).unwrap();
    sshd.alias("far", proxy.port()).unwrap();
    let mut echo = Echo::start(&sshd, "far");
    proxy.delay(Proxy::FAR);
    let started = Instant::now();
    echo.echoes("from afar");
    assert!(started.elapsed() >= 2 * Proxy::FAR, "{:?}", started.elapsed());
    assert!(started.elapsed() < Duration::from_secs(5), "{:?}", started.elapsed());
    echo.end();
}

#[test]
fn cuts_and_resets_are_seen_as_such() {
    let Some(sshd) = available(Sshd::start()) else { return };
    let proxy = Proxy::start(sshd.port()).unwrap();
    sshd.alias("far", proxy.port()).unwrap();
    let echo = Echo::start(&sshd, "far");
    proxy.cut_all();
    let said = echo.lost();
    assert!(said.contains("closed by remote host"), "{said}");
    let echo = Echo::start(&sshd, "far");
    proxy.reset_all();
    let said = echo.lost();
    // It fails to take its leave of a connection that is no more, and says nothing else.
    assert!(said.contains("Broken pipe") || said.contains("reset"), "{said}");
    wait_until("sshd has noticed", || sshd.processes().is_empty());
}

#[test]
fn a_login_into_a_black_hole_gets_nothing() {
    let Some(sshd) = available(Sshd::start()) else { return };
    let proxy = Proxy::start(sshd.port()).unwrap();
    sshd.alias("far", proxy.port()).unwrap();
    proxy.black_hole(true);
    let output = sshd.ssh("far").args(["-o", "ConnectTimeout=1", "true"]).output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("timed out"), "{said}");
    proxy.black_hole(false);
    assert_eq!(answer(&sshd, "far", "echo hi"), "hi\n");
}

#[test]
fn a_session_that_ends_leaves_no_process() {
    let Some(sshd) = available(Sshd::start()) else { return };
    answer(&sshd, "box", "true");
    wait_until("the session's processes are gone", || sshd.processes().is_empty());
}

#[test]
fn a_password_is_enough_to_log_in() {
    let Some(account) = available(account("pass", "/bin/sh", "")) else { return };
    account.set_password("open sesame").unwrap();
    let Some(sshd) = available(SshdOptions::default().password_auth(&account).start()) else { return };
    let ask = |password: &str| {
        let script = sshd.dir().join("askpass");
        std::fs::write(&script, format!("#!/bin/sh\necho '{password}'\n")).unwrap();
        assert!(Command::new("chmod").arg("+x").arg(&script).status().unwrap().success());
        let mut ssh = sshd.ssh("password");
        ssh.env("SSH_ASKPASS", script).env("SSH_ASKPASS_REQUIRE", "force").arg("id -un").output().unwrap()
    };
    assert_eq!(
        String::from_utf8(ask("open sesame").stdout).unwrap().trim(),
        account.name(),
        "{}",
        sshd.log()
    );
    assert_eq!(ask("open barley").status.code(), Some(255));
    assert_eq!(sshd.accepted(), 1);
}
