//! Several processes on one kernel, and many sessions in one box.

use std::io::{BufRead as _, BufReader};

use farcell_testbed::{Boxes, Compose, available};
use libtest_mimic::Trial;

use crate::harness::{Farcell, finish, signal};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("two_processes_take_turns_on_one_kernel", || turns("python")),
        trial("two_processes_take_turns_on_one_kernel_over_ssh", || turns("ssh")),
        trial("a_hundred_sessions_keep_to_a_cap_of_four", || hundred("python")),
        trial("a_hundred_sessions_keep_to_a_cap_of_four_over_ssh", || hundred("ssh")),
    ]
}

/// A box, and a farcell on its way there, which is dropped first.
struct Site {
    farcell: Farcell,
    boxes: Boxes,
}

fn site(service: &str) -> Option<Site> {
    let boxes = available(Boxes::up(Compose::Two, &[service]))?;
    let target = if service == "ssh" { boxes.ssh() } else { boxes.container(service).target("") };
    Some(Site { farcell: Farcell::with_target(&target), boxes })
}

fn turns(service: &str) {
    let Some(site) = site(service) else { return };
    let Site { farcell, boxes } = &site;
    farcell.ok(&["run", "n = 0"]);
    let wait = "import os, time\nn += 1\nprint('first', flush=True)\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\nn";
    let mut first = farcell.start(&["run", wait]);
    let mut line = String::new();
    BufReader::new(first.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert_eq!(line, "first\n");
    let mut second = farcell.start(&["run", "n += 1; n"]);
    let mut stderr = BufReader::new(second.stderr.take().unwrap());
    stderr.read_line(&mut line).unwrap();
    assert!(line.contains("waiting for 1 other"), "{line}");
    // What one of them leaves is the other one's to use, and to fetch.
    signal(first.id().into(), "KILL");
    finish(first);
    boxes.container(service).sh("touch /tmp/go");
    let ran = finish(second);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "2\n"));
    let many: Vec<_> = (0..10).map(|_| farcell.start(&["run", "n += 1"])).collect();
    for child in many {
        let ran = finish(child);
        assert_eq!(ran.code, Some(0), "{ran:#?}");
    }
    assert_eq!(farcell.ok(&["run", "n"]), "12");
    assert_eq!(farcell.json(&["ps"])["kernels"].as_array().unwrap().len(), 1);
}

/// How many of them begin at once.
const AT_ONCE: usize = 4;

fn hundred(service: &str) {
    let Some(site) = site(service) else { return };
    let Site { farcell, boxes } = &site;
    let one = |n: usize| {
        let session = format!("s{n}");
        let ran = finish(farcell.start(&["run", "-s", &session, &format!("x = {n}; x * 2")]));
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), format!("{}\n", n * 2).as_str()), "{ran:#?}");
    };
    std::thread::scope(|scope| {
        for first in 0..AT_ONCE {
            scope.spawn(move || (first..100).step_by(AT_ONCE).for_each(one));
        }
    });
    // A process makes room by what it knew when it began, so that those of one moment exceed the cap together, by some; the next one sees them
    // all, and makes room.
    let kernels = || farcell.json(&["ps"])["kernels"].as_array().unwrap().len();
    assert!(kernels() <= 4 + 2 * AT_ONCE, "{} kernels", kernels());
    assert_eq!(farcell.ok(&["run", "-s", "last", "6 * 7"]), "42");
    assert_eq!(kernels(), 4, "{}", farcell.ok(&["ps"]));
    let left = boxes.container(service).sh("ls -d /dev/shm/farcell-1000/k-* | wc -l");
    assert_eq!(left.trim(), "4", "what was stopped has left nothing");
    // Whoever had to go is told so.
    let ran = farcell.farcell(&["run", "-s", "s0", "'x' in globals()"]);
    assert_eq!(ran.stdout, "False\n");
    assert!(ran.stderr.contains("it made room for the session"), "{ran:#?}");
}
