//! Containers that are made on demand, from process to process, and what a killed farcell leaves of them.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use farcell_testbed::processes::kill;
use farcell_testbed::{Engine, Sshd, available};

use super::harness::{Farcell, finish, wait_until};
use super::images::built;

/// A farcell whose kernels are in sandboxes, and the name of a session that nobody else has.
struct Site {
    farcell: Farcell,
    target: String,
    session: String,
}

fn site(settings: &str) -> Option<Site> {
    let target = format!("docker+run://{}", built(Engine::DOCKER, "slim")?);
    let farcell = Farcell::with_target(&target);
    let session = farcell.dir().file_name()?.to_str()?.to_owned();
    let config = farcell.dir().join("config/farcell");
    std::fs::create_dir_all(&config).unwrap();
    let settings = format!("[defaults]\nsession = {session:?}\n{settings}");
    std::fs::write(config.join("config.toml"), settings).unwrap();
    Some(Site { farcell, target, session })
}

impl Site {
    /// The names of its sandboxes, whatever their state.
    fn sandboxes(&self) -> Vec<String> {
        let format = "{{.Label \"farcell.session\"}} {{.Names}}";
        let out = Command::new("docker")
            .args(["ps", "-a", "--filter", "label=farcell.sandbox=1", "--format", format])
            .output()
            .unwrap();
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        let text = String::from_utf8(out.stdout).unwrap();
        text.lines().filter(|line| line.starts_with(&self.session)).map(str::to_owned).collect()
    }
}

#[test]
fn a_sandbox_serves_one_call_after_the_other_and_goes_with_stop() {
    let Some(site) = site("") else { return };
    let farcell = &site.farcell;
    farcell.ok(&["run", "x = 41"]);
    assert_eq!(farcell.ok(&["run", "x + 1"]), "42");
    let file = farcell.dir().join("file");
    std::fs::write(&file, "some bytes").unwrap();
    farcell.ok(&["put", "-q", file.to_str().unwrap(), "/tmp/there"]);
    assert_eq!(farcell.ok(&["run", "open('/tmp/there').read()"]), "'some bytes'");
    farcell.ok(&["run", "-s", &format!("{}-other", site.session), "x = 1"]);
    assert_eq!(site.sandboxes().len(), 2);
    let kernels = farcell.json(&["ps"]);
    assert_eq!(kernels["kernels"][0]["target"], site.target.as_str(), "{kernels}");
    assert_eq!(kernels["kernels"][0]["state"], "idle", "{kernels}");
    farcell.ok(&["stop"]);
    assert_eq!(site.sandboxes().len(), 1);
    farcell.ok(&["stop", "--all"]);
    assert_eq!(site.sandboxes(), Vec::<String>::new());
}

#[test]
fn what_a_killed_farcell_has_begun_is_listed_and_stopped() {
    let Some(site) = site("") else { return };
    let farcell = &site.farcell;
    let running = farcell.start(&["run", "x = 1"]);
    wait_until("there is a sandbox", || !site.sandboxes().is_empty());
    assert!(kill(i64::from(running.id())));
    assert_ne!(finish(running).code, Some(0));
    let kernels = farcell.json(&["ps"]);
    let seen = &kernels["kernels"][0];
    assert_eq!(
        (seen["session"].as_str(), seen["target"].as_str()),
        (Some(&*site.session), Some(&*site.target)),
        "{kernels}"
    );
    farcell.ok(&["stop", "--all"]);
    assert_eq!(site.sandboxes(), Vec::<String>::new());
    assert_eq!(farcell.json(&["ps"])["kernels"], serde_json::json!([]));
}

#[test]
fn nothing_stays_of_a_killed_farcell() {
    let Some(site) = site("idle = \"6s\"\n") else { return };
    let code = "import time\nprint('begin', flush=True)\ntime.sleep(3)";
    let mut running = site.farcell.start(&["run", code]);
    let mut line = String::new();
    BufReader::new(running.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "begin\n");
    assert!(kill(i64::from(running.id())));
    assert_ne!(finish(running).code, Some(0));
    assert_eq!(site.sandboxes().len(), 1);
    // The cell ends, the kernel has been idle, and the sandbox has nobody any more: twice what that takes.
    let started = std::time::Instant::now();
    while !site.sandboxes().is_empty() {
        assert!(started.elapsed().as_secs() < 60, "{:?} stays", site.sandboxes());
        std::thread::sleep(std::time::Duration::from_millis(200));
    }
}

#[test]
fn an_engine_behind_ssh_is_an_engine() {
    let (Some(image), Some(sshd)) = (built(Engine::DOCKER, "slim"), available(Sshd::start())) else { return };
    let farcell = Farcell::with_target(&format!("docker+run://{image}?host=ssh://box&pids=100"));
    // An ssh whose own configuration is that of the test's host.
    let bin = farcell.dir().join("bin");
    std::fs::create_dir(&bin).unwrap();
    let script = format!("#!/bin/sh\nexec /usr/bin/ssh -F '{}' \"$@\"\n", sshd.ssh_config().display());
    std::fs::write(bin.join("ssh"), script).unwrap();
    std::fs::set_permissions(bin.join("ssh"), std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", bin.display(), std::env::var("PATH").unwrap());
    let run = |args: &[&str]| {
        let out = farcell.command(args).env("PATH", &path).output().unwrap();
        (
            out.status.code(),
            [out.stdout, out.stderr].map(|text| String::from_utf8(text).unwrap().trim().to_owned()),
        )
    };
    assert_eq!(run(&["run", "x = 41"]), (Some(0), [String::new(), String::new()]));
    assert_eq!(run(&["run", "x + 1"]), (Some(0), ["42".to_owned(), String::new()]));
    assert!(sshd.accepted() >= 2, "it went over ssh");
    assert_eq!(run(&["stop", "--all"]).0, Some(0));
    let (code, [_, said]) =
        run(&["run", "--on", &format!("docker+run://{image}?host=ssh://nowhere.invalid"), "1"]);
    assert_eq!(code, Some(125));
    assert!(
        said.contains("the engine at ssh://nowhere.invalid is not reached") && said.contains("resolve"),
        "{said}"
    );
}
