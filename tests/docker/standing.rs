//! The courier that stands in a sandbox: reached without a command of its own, by one host after the other.

use std::time::{SystemTime, UNIX_EPOCH};

use farcell::{NoEvents, SessionOptions};
use farcell_testbed::Engine;
use libtest_mimic::Trial;

use crate::boxes::{ok, value};
use crate::made::{Made, ask, make_in, registry, target, unique};
use crate::trial_on;

/// Kills the courier that stands there: it belongs to the session of the first process, as nothing else does that is written in Python.
const KILL: &str = "import os\n\
                    def words(pid): return open('/proc/%s/stat' % pid).read().rpartition(')')[2].split()\n\
                    first, killed = words(1)[3], 0\n\
                    for pid in filter(str.isdigit, os.listdir('/proc')):\n\
                    \x20   try:\n\
                    \x20       if words(pid)[3] == first and 'python' in os.readlink('/proc/%s/exe' % pid):\n\
                    \x20           os.kill(int(pid), 9)\n\
                    \x20           killed += 1\n\
                    \x20   except OSError: pass\n\
                    killed > 0";

pub(crate) fn trials(engine: Engine) -> Vec<Trial> {
    vec![
        trial_on(engine, "nothing_is_started_in_a_sandbox_to_reach_it", |engine| nothing_started(engine, "")),
        trial_on(engine, "nor_where_it_is_of_another_user", |engine| {
            nothing_started(engine, "user=1000:1000")
        }),
        trial_on(engine, "nor_where_it_is_read_only", |engine| nothing_started(engine, "read_only=true")),
        trial_on(engine, "nor_where_it_has_no_init", |engine| nothing_started(engine, "init=false")),
        trial_on(engine, "hosts_take_turns_at_a_sandbox", turns),
        trial_on(engine, "a_host_that_lost_its_turn_has_its_reply", lost_turn),
        trial_on(engine, "what_stands_in_a_sandbox_may_be_killed", killed),
    ]
}

/// How many commands the engine was asked to start in a container since `began`.
fn started(engine: Engine, made: &Made, began: f64) -> usize {
    let (since, until) = (format!("{began:.6}"), format!("{:.6}", now()));
    let container = format!("container={}", made.name);
    let arguments =
        ["events", "--since", &since, "--until", &until, "--filter", &container, "--format", "{{.Action}}"];
    let seen = ask(engine, &arguments).expect("the events of the engine");
    assert!(seen.lines().all(|line| line != "die"), "{seen}");
    seen.lines().filter(|line| line.starts_with("exec_create")).count()
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

async fn nothing_started(engine: Engine, options: &str) {
    let Some(target) = target(engine, "slim", options) else { return };
    let (name, began) = (unique(), now());
    let first = make_in(engine, registry(None), &target, &name, SessionOptions::default());
    ok(&first.session, "x = 40").await;
    assert_eq!(value(&first.session, "x + 1").await, "41");
    let second = make_in(engine, registry(None), &target, &name, SessionOptions::default());
    assert_eq!(value(&second.session, "x + 2").await, "42");
    assert_eq!(started(engine, &first, began), 0);
    // Who counts them would see one.
    assert!(first.docker(&["exec", &first.name, "true"]).is_some());
    assert_eq!(started(engine, &first, began), 1);
}

async fn turns(engine: Engine) {
    let Some(target) = target(engine, "slim", "") else { return };
    let name = unique();
    let made = || make_in(engine, registry(None), &target, &name, SessionOptions::default());
    let hosts = [made(), made(), made()];
    ok(&hosts[0].session, "n = 0").await;
    for turn in 0..4 {
        for (at, host) in hosts.iter().enumerate() {
            let count = value(&host.session, "n += 1; n").await;
            assert_eq!(count, (turn * hosts.len() + at + 1).to_string());
        }
    }
    let mut cells = tokio::task::JoinSet::new();
    for host in hosts {
        cells.spawn(async move {
            let mut counts = Vec::new();
            for _ in 0..10 {
                counts.push(value(&host.session, "n += 1; n").await.parse::<u32>().unwrap());
            }
            (counts, host)
        });
    }
    let (counts, _hosts): (Vec<_>, Vec<_>) = cells.join_all().await.into_iter().unzip();
    let mut counts = counts.concat();
    counts.sort_unstable();
    assert_eq!(counts, (13..43).collect::<Vec<_>>());
}

async fn lost_turn(engine: Engine) {
    let Some(target) = target(engine, "slim", "") else { return };
    let name = unique();
    // The second one finds the kernel by its record.
    let store = tempfile::tempdir().unwrap();
    let made = || make_in(engine, registry(Some(&store)), &target, &name, SessionOptions::default());
    let (first, second) = (made(), made());
    ok(&first.session, "import os, time").await;
    let waits =
        "open('/tmp/begun', 'w').close()\nwhile not os.path.exists('/tmp/gate'): time.sleep(0.01)\n'late'"
            .into();
    let next = async {
        while first.docker(&["exec", &first.name, "test", "-e", "/tmp/begun"]).is_none() {
            tokio::task::yield_now().await;
        }
        // It comes behind the other one's cell, and opens its gate once it has taken the other one's place.
        let probe = second.session.probe().await.unwrap();
        assert!(probe.is_some_and(|probe| probe.running.is_some()));
        assert!(first.docker(&["exec", &first.name, "touch", "/tmp/gate"]).is_some());
        value(&second.session, "'next'").await
    };
    let (reply, next) = tokio::join!(first.session.run(&waits, &NoEvents), next);
    assert_eq!((&reply.unwrap().result.unwrap()["text/plain"], next.as_str()), (&"'late'".into(), "'next'"));
}

async fn killed(engine: Engine) {
    let Some(target) = target(engine, "slim", "") else { return };
    let name = unique();
    let made = make_in(engine, registry(None), &target, &name, SessionOptions::default());
    ok(&made.session, "x = 41").await;
    assert_eq!(value(&made.session, KILL).await, "True");
    assert_eq!(value(&made.session, "x + 1").await, "42");
    let began = now();
    let next = make_in(engine, registry(None), &target, &name, SessionOptions::default());
    assert_eq!(value(&next.session, "x + 2").await, "43");
    assert_eq!(started(engine, &made, began), 0);
}
