//! Accounts with odd login shells, over OpenSSH's own client.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::os::unix::fs::PermissionsExt;
use std::time::{Duration, Instant};

use farcell_testbed::processes::{of_user, wait_until};
use farcell_testbed::{Account, NOISY_BASHRC, SLOW_BASHRC, Sshd, Trouble, account, available};

/// What every driver sends, as every login shell understands it.
const HI: &str = "exec /bin/sh -c 'echo hi'";

/// An account, and an sshd that it logs in to.
fn bed(name: &str, shell: &str, bashrc: &str) -> Option<(Sshd, Account)> {
    let account = available(account(name, shell, bashrc))?;
    let sshd = available(Sshd::options().login_as(account.name()).start())?;
    Some((sshd, account))
}

fn streams(sshd: &Sshd, command: &str) -> (String, String) {
    let output = sshd.ssh("box").arg(command).output().unwrap();
    assert!(output.status.success(), "{output:?}\n{}", sshd.log());
    (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap())
}

#[test]
fn fish_answers() {
    let Some((sshd, _account)) = bed("fish", "/usr/bin/fish", "") else { return };
    assert_eq!(streams(&sshd, HI).0, "hi\n");
    assert_eq!(streams(&sshd, "set -l word fish; echo $word").0, "fish\n");
}

#[test]
fn tcsh_answers_and_reads_its_own_file() {
    let Some((sshd, account)) = bed("tcsh", "/bin/tcsh", "") else { return };
    assert_eq!(streams(&sshd, HI).0, "hi\n");
    account.write(".cshrc", "echo moo\n").unwrap();
    assert_eq!(streams(&sshd, HI).0, "moo\nhi\n");
}

#[test]
fn a_noisy_bashrc_is_heard_on_both_streams() {
    let Some((sshd, _account)) = bed("noisy", "/bin/bash", NOISY_BASHRC) else { return };
    let (stdout, stderr) = streams(&sshd, HI);
    assert_eq!(stdout, "welcome to this box\nhi\n");
    assert_eq!(stderr, "bashrc: something is deprecated\n");
}

#[test]
fn a_slow_bashrc_is_waited_for() {
    let Some((sshd, _account)) = bed("slow", "/bin/bash", SLOW_BASHRC) else { return };
    let started = Instant::now();
    assert!(streams(&sshd, HI).0.ends_with("hi\n"));
    assert!(started.elapsed() >= Duration::from_millis(300));
}

#[test]
fn a_broken_locale_makes_bash_complain() {
    let Some(account) = available(account("locale", "/bin/bash", "")) else { return };
    let options = Sshd::options().login_as(account.name()).set_env("LC_ALL", "xx_XX");
    let Some(sshd) = available(options.start()) else { return };
    let (stdout, stderr) = streams(&sshd, "echo hi");
    assert_eq!(stdout, "hi\n");
    assert!(stderr.contains("setlocale"), "{stderr}");
}

#[test]
fn a_dropped_account_leaves_no_trace() {
    let Some((sshd, account)) = bed("gone", "/bin/sh", "") else { return };
    let files =
        streams(&sshd, "mkdir /tmp/$LOGNAME; touch /tmp/$LOGNAME/file; echo /tmp/$LOGNAME; stat -c %a ~").0;
    let mut lines = files.lines();
    let left = std::path::PathBuf::from(lines.next().unwrap());
    assert_eq!(lines.next(), Some("700"));
    assert!(left.join("file").exists());
    streams(&sshd, "sleep 1000 </dev/null >/dev/null 2>&1 &");
    let (name, uid, home) = (account.name().to_owned(), account.uid(), account.home().to_owned());
    wait_until("only what was detached is left", || of_user(uid).len() == 1);
    drop(account);
    assert_eq!(of_user(uid), [] as [i64; 0]);
    assert!(!home.exists() && !left.exists());
    assert!(!std::fs::read_to_string("/etc/passwd").unwrap().contains(&name));
}

#[test]
fn many_at_once_do_not_collide_and_each_has_its_own() {
    let made: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> =
            (0..4).map(|_| scope.spawn(|| available(account("many", "/bin/sh", "")))).collect();
        threads.into_iter().filter_map(|thread| thread.join().unwrap()).collect()
    });
    let mut uids: Vec<u32> = made.iter().map(Account::uid).collect();
    uids.sort_unstable();
    uids.dedup();
    assert_eq!(uids.len(), made.len());
    for account in &made {
        assert_eq!(std::fs::metadata(account.home()).unwrap().permissions().mode() & 0o777, 0o700);
    }
}

#[test]
fn a_shell_that_is_not_there_is_missing() {
    let error = account("odd", "/usr/bin/no-such-shell", "").unwrap_err();
    assert!(matches!(error, Trouble::Missing { .. }), "{error}");
}
