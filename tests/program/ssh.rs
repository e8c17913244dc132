//! Hosts over ssh, from process to process.

use std::path::PathBuf;

use farcell_testbed::processes::{kill, with_command};
use farcell_testbed::{Sshd, account, available};

use super::harness::{Farcell, finish, wait_until};

/// A host, and a farcell of its own on its way there.
struct Site {
    farcell: Farcell,
    sshd: Sshd,
    sockets: tempfile::TempDir,
}

fn site(settings: &str) -> Option<Site> {
    let sshd = available(Sshd::start())?;
    let base = sshd.dir().join("base");
    Some(site_of(
        &format!("ssh:box?config={}&dir={}", sshd.ssh_config().display(), base.display()),
        sshd,
        settings,
    ))
}

fn site_of(target: &str, sshd: Sshd, settings: &str) -> Site {
    let farcell = Farcell::with_target(target);
    let sockets = tempfile::Builder::new().prefix("farcell-t-").tempdir_in("/tmp").unwrap();
    let config = farcell.dir().join("config/farcell");
    std::fs::create_dir_all(&config).unwrap();
    let settings = format!("[ssh]\ncontrol_dir = {:?}\n{settings}", sockets.path().join("s"));
    std::fs::write(config.join("config.toml"), settings).unwrap();
    Site { farcell, sshd, sockets }
}

impl Site {
    /// The masters of this site, by what they have in their arguments.
    fn masters(&self) -> Vec<i64> {
        let socket = self.sockets.path().display().to_string();
        with_command(&socket).into_iter().map(|(pid, _)| pid).collect()
    }

    fn control_sockets(&self) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(self.sockets.path().join("s")).into_iter().flatten().flatten();
        entries.map(|e| e.path()).filter(|path| path.extension().is_some_and(|e| e == "sock")).collect()
    }
}

#[test]
fn a_kernel_outlives_all_that_is_here() {
    let Some(site) = site("") else { return };
    let farcell = &site.farcell;
    farcell.ok(&["run", "x = 41"]);
    assert_eq!(farcell.ok(&["run", "x"]), "41");
    assert_eq!(site.sshd.accepted(), 1, "the second process needs no login of its own");
    let before = farcell.supervisor("default");
    let running = farcell.start(&["run", "--timeout", "60s", "import time; time.sleep(600)"]);
    wait_until("the cell runs", || {
        farcell.json(&["ps"])["kernels"][0]["current"].is_object()
            || farcell.json(&["ps"]).to_string().contains("running")
    });
    kill(i64::from(running.id()));
    assert_ne!(finish(running).code, Some(0));
    let masters = site.masters();
    assert_eq!(masters.len(), 1);
    assert!(kill(masters[0]));
    assert_eq!(site.control_sockets().len(), 1, "it is stale by now");
    farcell.ok(&["interrupt"]);
    assert_eq!(farcell.ok(&["run", "x + 1"]), "42");
    assert_eq!(farcell.supervisor("default"), before, "it is the same kernel");
    assert_eq!(site.sshd.accepted(), 2);
}

#[test]
fn stop_all_closes_the_connection_too() {
    let Some(site) = site("") else { return };
    site.farcell.ok(&["run", "1"]);
    assert_eq!((site.masters().len(), site.control_sockets().len()), (1, 1));
    site.farcell.ok(&["stop", "--all"]);
    wait_until("the master has ended", || site.masters().is_empty());
    assert!(site.control_sockets().is_empty());
}

#[test]
fn a_connection_is_kept_no_longer_than_wanted() {
    let Some(site) = site("control_persist = \"0s\"\n") else { return };
    site.farcell.ok(&["run", "1"]);
    wait_until("the master has ended", || site.masters().is_empty());
    site.farcell.ok(&["run", "1"]);
    assert_eq!(site.sshd.accepted(), 2);
    wait_until("the master has ended", || site.masters().is_empty());
}

#[test]
fn ten_processes_log_in_once() {
    let Some(site) = site("") else { return };
    let children: Vec<_> =
        (0..10).map(|n| site.farcell.start(&["run", "-s", &format!("s{n}"), "6 * 7"])).collect();
    for child in children {
        let ran = finish(child);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "42\n"), "{ran:#?}");
    }
    assert_eq!(site.sshd.accepted(), 1);
}

#[test]
fn a_long_temporary_directory_is_not_in_the_way() {
    let Some(sshd) = available(Sshd::start()) else { return };
    let target =
        format!("ssh:box?config={}&dir={}", sshd.ssh_config().display(), sshd.dir().join("base").display());
    let farcell = Farcell::with_target(&target);
    let long = farcell.dir().join("t".repeat(150));
    std::fs::create_dir(&long).unwrap();
    let run = |code: &str| {
        let mut command = farcell.command(&["run", code]);
        command.env("TMPDIR", &long).env("XDG_RUNTIME_DIR", &long);
        let output = command.output().unwrap();
        assert!(output.status.success(), "{output:?}");
        String::from_utf8(output.stdout).unwrap()
    };
    run("x = 41");
    assert_eq!(run("x + 1"), "42\n");
    assert_eq!(sshd.accepted(), 1);
}

#[test]
fn a_password_never_shows() {
    const SECRET: &str = "open sesame 51c0";
    let Some(account) = available(account("prog", "/bin/sh", "")) else { return };
    account.set_password(SECRET).unwrap();
    let Some(sshd) = available(Sshd::options().password_auth(&account).start()) else { return };
    let target = format!("ssh:password?config={}", sshd.ssh_config().display());
    let site = site_of(&target, sshd, "password_env = \"BOX_PASSWORD\"\n");
    let mut command = site.farcell.command(&["-vvv", "run", "6 * 7"]);
    let output = command.env("BOX_PASSWORD", SECRET).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = format!("{}{}", String::from_utf8_lossy(&output.stderr), site.sshd.log());
    assert!(!said.contains("sesame"), "{said}");
    assert!(with_command("sesame").is_empty());
    // The master that stays has it neither in its arguments nor in a file.
    let files = std::fs::read_dir(site.sockets.path().join("s")).unwrap().flatten();
    for file in files.map(|e| e.path()).filter(|path| path.is_file()) {
        assert!(!std::fs::read_to_string(&file).unwrap().contains("sesame"), "{}", file.display());
    }
    let wrong =
        site.farcell.command(&["run", "1"]).env("BOX_PASSWORD", "wrong").env("FARCELL_SESSION", "w").output();
    assert!(wrong.unwrap().status.success(), "the connection is open already");
    site.farcell.ok(&["stop", "--all"]);
    let wrong = site.farcell.command(&["run", "1"]).env("BOX_PASSWORD", "wrong").output().unwrap();
    let said = String::from_utf8(wrong.stderr).unwrap();
    assert!(wrong.status.code() == Some(125) && said.contains("refused the login"), "{said}");
}

#[test]
fn doctor_says_what_is_wrong_in_one_sentence() {
    let Some(sshd) = available(Sshd::start()) else { return };
    let farcell = Farcell::new();
    let target = format!("ssh:box?config={}", sshd.ssh_config().display());
    sshd.swap_host_key().unwrap();
    for (target, named, remedy) in [
        (target.as_str(), "has changed", "remove that line"),
        ("ssh://127.0.0.1:1?config=/dev/null", "refused", "check address and port"),
        ("ssh://nowhere.invalid?config=/dev/null", "nowhere.invalid", "spelled"),
        ("ssh:box?identity=/no/key", "identity=/no/key", "check the path"),
        ("ssh://ann:sesame@box", "password", "leave it out"),
        ("ssh://box?host_key=maybe", "host_key=maybe", "strict"),
    ] {
        let ran = farcell.farcell(&["doctor", target]);
        assert_ne!(ran.code, Some(0));
        assert!(ran.stderr.contains(named) && ran.stderr.contains(remedy), "{target}: {}", ran.stderr);
        assert!(!ran.stderr.contains("sesame"), "{}", ran.stderr);
    }
}
