//! Boxes that are killed, restarted, paused, cut off, removed, or out of memory while cells run in them.

use std::io::{BufRead, BufReader};
use std::process::Child;
use std::time::{Duration, Instant};

use farcell_testbed::{Boxes, Compose, Container, available};
use libtest_mimic::Trial;
use serde_json::Value;

use crate::harness::{Farcell, Ran, document, finish, wait_until};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_box_that_is_killed_under_a_cell_is_told_and_can_be_started_again", killed),
        trial("a_box_that_is_restarted_under_a_cell_is_a_death", restarted),
        trial("a_box_that_is_paused_under_a_cell_goes_on", || paused("python")),
        trial("a_box_that_is_removed_under_a_cell_is_told_at_once", removed),
        trial("a_cell_without_memory_dies_alone", out_of_memory),
        trial("an_ssh_box_that_is_restarted_under_a_cell_is_a_death", ssh_restarted),
        trial("an_ssh_box_that_is_paused_under_a_cell_goes_on", || paused("ssh")),
        trial("an_ssh_box_that_is_cut_off_under_a_cell_loses_nothing_of_it", cut_off),
        trial("an_ssh_box_that_is_removed_is_told_in_one_sentence", ssh_removed),
    ]
}

/// How soon something has to be told that is known at once.
const SOON: Duration = Duration::from_secs(20);
const LONG: &str = "import time\nn = globals().get('n', 0) + 1\nprint('begin', n, flush=True)\n";

/// A box, and a farcell on its way there.
struct Site {
    farcell: Farcell,
    container: Container,
    boxes: Boxes,
}

fn site(service: &str) -> Option<Site> {
    let boxes = available(Boxes::up(Compose::Two, &[service]))?;
    let container = boxes.container(service);
    let target = if service == "ssh" { boxes.ssh() } else { container.target("") };
    let farcell = Farcell::with_target(&target);
    let config = farcell.dir().join("config/farcell");
    std::fs::create_dir_all(&config).unwrap();
    let settings = "[ssh]\nkeepalive = \"1s\"\nkeepalive_count = 2\ncontrol_persist = \"5s\"\n";
    std::fs::write(config.join("config.toml"), settings).unwrap();
    Some(Site { farcell, container, boxes })
}

impl Site {
    /// A cell that runs by now: it has printed something.
    fn running(&self, rest: &str) -> (Child, BufReader<std::process::ChildStdout>) {
        let mut child = self.farcell.start(&["run", "--timeout", "120s", &format!("{LONG}{rest}")]);
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        if line.is_empty() {
            panic!("it did not begin: {:#?}", finish(child));
        }
        assert_eq!(line, "begin 1\n");
        (child, stdout)
    }

    /// A cell that sleeps while something is done to its box; how it ended, which has to be told soon.
    fn struck(&self, strike: &[&str]) -> Ran {
        let (child, _stdout) = self.running("time.sleep(600)");
        self.container.docker(strike);
        let struck = Instant::now();
        let ran = finish(child);
        assert!(struck.elapsed() < SOON, "{:?}: {ran:#?}", struck.elapsed());
        ran
    }

    /// The next cell, which has to begin anew and to say so.
    fn begins_anew(&self) {
        let ran = self.farcell.farcell(&["run", "'n' in globals()"]);
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "False\n"), "{ran:#?}");
    }
}

/// What the program says while it waits for its target.
fn told(stderr: &mut impl BufRead) -> String {
    let mut said = String::new();
    stderr.read_line(&mut said).unwrap();
    assert!(said.contains("connection lost, trying again"), "{said:?}");
    said
}

fn killed() {
    let Some(site) = site("python") else { return };
    let ran = site.struck(&["kill"]);
    assert_eq!(ran.code, Some(125), "{ran:#?}");
    assert!(ran.stderr.contains("lost:") && ran.stderr.contains("does not run"), "{ran:#?}");
    wait_until("it has ended", || site.container.inspect("{{.State.Running}}").as_deref() == Some("false"));
    let ran = site.farcell.farcell(&["run", "1"]);
    assert_eq!(ran.code, Some(125), "{ran:#?}");
    assert!(ran.stderr.contains("does not run") && ran.stderr.contains("docker start"), "{ran:#?}");
    site.container.docker(&["start"]);
    site.begins_anew();
}

fn restarted() {
    let Some(site) = site("python") else { return };
    let ran = site.struck(&["restart", "-t", "0"]);
    assert_eq!(ran.code, Some(137), "{ran:#?}");
    site.begins_anew();
}

fn paused(service: &str) {
    let Some(site) = site(service) else { return };
    let wait = "import os\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nn";
    let (mut child, mut stdout) = site.running(wait);
    site.container.docker(&["pause"]);
    // It is noticed.
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let said = told(&mut stderr);
    site.container.docker(&["unpause"]);
    site.container.sh("touch /tmp/go");
    let mut rest = String::new();
    stdout.read_line(&mut rest).unwrap();
    assert_eq!((finish(child).code, rest.as_str()), (Some(0), "1\n"), "{said}");
}

fn removed() {
    let Some(site) = site("python") else { return };
    let ran = site.struck(&["rm", "-f"]);
    assert!(ran.stderr.contains("there is no such thing as the container"), "{ran:#?}");
    assert_ne!(ran.code, Some(0));
    // Compose makes it anew.
    assert!(site.boxes.compose(&["up", "-d", "python"]).unwrap().status.success());
    site.begins_anew();
}

fn out_of_memory() {
    let Some(site) = site("python") else { return };
    let ran = site.farcell.farcell(&["--json", "run", "x = bytearray(800 * 1024 * 1024)"]);
    let reply: Value = document(&ran);
    assert_eq!(
        (reply["status"].as_str(), reply["signal"].as_str()),
        (Some("died"), Some("SIGKILL")),
        "{reply:#}"
    );
    assert_eq!(site.farcell.ok(&["run", "6 * 7"]), "42");
    assert_eq!(site.container.inspect("{{.State.Running}}").unwrap(), "true");
}

fn ssh_restarted() {
    let Some(site) = site("ssh") else { return };
    let ran = site.struck(&["restart", "-t", "0"]);
    assert_eq!(ran.code, Some(137), "{ran:#?}");
    site.begins_anew();
}

fn cut_off() {
    let Some(site) = site("ssh") else { return };
    let wait = "import os\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nprint('end', n)";
    let (mut child, mut stdout) = site.running(wait);
    let network = format!("{}_outside", site.boxes.project);
    site.container.docker(&["network", "disconnect", &network]);
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let said = told(&mut stderr);
    // It goes on, and ends, while nobody can reach it.
    site.container.sh("touch /tmp/go");
    site.container.docker(&["network", "connect", &network]);
    let mut rest = String::new();
    stdout.read_line(&mut rest).unwrap();
    assert_eq!((finish(child).code, rest.as_str()), (Some(0), "end 1\n"), "{said}");
    assert_eq!(site.farcell.ok(&["run", "n"]), "1");
}

fn ssh_removed() {
    let Some(site) = site("ssh") else { return };
    site.farcell.ok(&["run", "1"]);
    site.container.docker(&["rm", "-f"]);
    let ran = site.farcell.farcell(&["run", "1"]);
    assert_eq!(ran.code, Some(125), "{ran:#?}");
    assert!(ran.stderr.contains("refused") && ran.stderr.contains("hint: "), "{ran:#?}");
    // Another box in its place has another key, and is not taken for the same.
    assert!(site.boxes.compose(&["up", "-d", "ssh"]).unwrap().status.success());
    site.boxes.wait_healthy("ssh").unwrap();
    let ran = site.farcell.farcell(&["run", "1"]);
    assert!(ran.code == Some(125) && ran.stderr.contains("has changed"), "{ran:#?}");
    site.boxes.forget_host_key();
    assert_eq!(site.farcell.ok(&["run", "6 * 7"]), "42");
}
