//! Containers that are paused, stopped, restarted, removed, or out of memory while kernels are in them.

use std::sync::Mutex;
use std::time::Duration;

use farcell::{Cell, Driver as _, Event, EventSink, State, Status};
use farcell_testbed::Engine;
use libtest_mimic::Trial;

use crate::boxes::{driver, ok, registry, session, start, target, until, value};
use crate::{trial, trial_on};

pub(crate) fn trials(engine: Engine) -> Vec<Trial> {
    vec![
        trial_on(engine, "a_paused_container_is_waited_for_and_goes_on", paused_during_a_cell),
        trial_on(engine, "a_paused_container_is_told", paused),
        trial_on(engine, "a_restarted_container_has_lost_its_kernels", restarted),
        trial_on(engine, "a_container_that_is_restarted_under_a_cell_is_a_death", restarted_during_a_cell),
        trial_on(engine, "a_container_that_is_removed_under_a_cell_is_told_at_once", removed_during_a_cell),
        trial_on(engine, "a_stopped_container_is_told_with_its_status", stopped),
        trial_on(engine, "a_container_that_is_not_there", missing),
        trial_on(engine, "an_interpreter_without_memory_dies_alone", out_of_memory),
    ]
}

/// What needs no engine.
pub(crate) fn alone() -> Trial {
    trial("an_engine_that_is_not_there", no_engine)
}

/// Remembers what was printed and noted.
#[derive(Default)]
pub(crate) struct Seen {
    printed: Mutex<bool>,
    notes: Mutex<Vec<String>>,
}

impl EventSink for Seen {
    fn event(&self, event: Event) {
        match event {
            Event::Output { .. } => *self.printed.lock().unwrap() = true,
            Event::Note(note) => self.notes.lock().unwrap().push(note),
            _ => {}
        }
    }
}

impl Seen {
    pub(crate) async fn running(&self) {
        until("the cell runs", || *self.printed.lock().unwrap()).await;
    }

    pub(crate) fn notes(&self) -> String {
        self.notes.lock().unwrap().join("; ")
    }
}

pub(crate) fn long() -> Cell {
    Cell::new("import time\nprint('begin', flush=True)\ntime.sleep(600)").timeout(Duration::from_secs(60))
}

async fn paused_during_a_cell(engine: Engine) {
    let Some(container) = start(engine, "slim", &[]) else { return };
    let registry = registry();
    let session = session(&registry, &target(&container), "paused");
    let seen = Seen::default();
    let code = "import os, time\nprint('begin', flush=True)\nwhile not os.path.exists('/tmp/go'): time.sleep(0.01)\n'went on'";
    let pause = async {
        seen.running().await;
        container.docker(&["pause"]);
        // The stream's own sign of life fails, and the next step is refused.
        until("it is told", || seen.notes().contains("is paused")).await;
        container.docker(&["unpause"]);
        container.sh("touch /tmp/go");
    };
    let cell = Cell::new(code);
    let (reply, ()) = tokio::join!(session.run(&cell, &seen), pause);
    let reply = reply.unwrap();
    assert_eq!((reply.status, reply.stdout.as_str()), (Status::Ok, "begin\n"), "{reply:#?}");
    registry.dispose_all().await.unwrap();
}

async fn paused(engine: Engine) {
    let Some(container) = start(engine, "slim", &[]) else { return };
    container.docker(&["pause"]);
    let e = driver().list(&target(&container), None).await.unwrap_err();
    assert!(e.message().contains("is paused") && e.hint().unwrap().contains("unpause"), "{e:?}");
    assert!(e.is_temporary());
    container.docker(&["unpause"]);
    driver().list(&target(&container), None).await.unwrap();
}

async fn restarted(engine: Engine) {
    let Some(container) = start(engine, "slim", &[]) else { return };
    let registry = registry();
    let session = session(&registry, &target(&container), "restarted");
    ok(&session, "x = 1").await;
    container.docker(&["restart", "-t", "0"]);
    let reply = ok(&session, "'x' in globals()").await;
    assert_eq!(reply.result.unwrap()["text/plain"], "False");
    assert_eq!(reply.kernel.state, State::Lost);
    registry.dispose_all().await.unwrap();
}

async fn restarted_during_a_cell(engine: Engine) {
    let Some(container) = start(engine, "slim", &[]) else { return };
    let registry = registry();
    let session = session(&registry, &target(&container), "restarted");
    let seen = Seen::default();
    let restart = async {
        seen.running().await;
        container.docker(&["restart", "-t", "0"]);
    };
    let cell = long();
    let (reply, ()) = tokio::join!(session.run(&cell, &seen), restart);
    let reply = reply.unwrap();
    assert_eq!((reply.status, reply.kernel.state), (Status::Died, State::Lost), "{reply:#?}");
    assert_eq!(value(&session, "6 * 7").await, "42");
    registry.dispose_all().await.unwrap();
}

async fn removed_during_a_cell(engine: Engine) {
    let Some(container) = start(engine, "slim", &[]) else { return };
    let registry = registry();
    let session = session(&registry, &target(&container), "removed");
    let seen = Seen::default();
    let removed = std::cell::Cell::new(None);
    let remove = async {
        seen.running().await;
        container.docker(&["rm", "-f"]);
        removed.set(Some(std::time::Instant::now()));
    };
    let cell = long();
    let (reply, ()) = tokio::join!(session.run(&cell, &seen), remove);
    let reply = reply.unwrap();
    assert!(
        removed.get().unwrap().elapsed() < Duration::from_secs(20),
        "it was not waited for until the deadline"
    );
    assert_eq!(reply.status, Status::Lost, "{reply:#?}");
    assert!(reply.error.unwrap().message.contains("there is no such thing as the container"));
}

async fn stopped(engine: Engine) {
    let Some(container) = start(engine, "slim", &[]) else { return };
    container.docker(&["kill"]);
    until("it has ended", || container.sh("echo up").is_empty()).await;
    let e = driver().list(&target(&container), None).await.unwrap_err();
    assert!(e.message().contains("does not run") && e.message().contains("137"), "{e}");
    assert!(e.hint().unwrap().contains(" start` starts it"), "{e:?}");
}

async fn missing(engine: Engine) {
    let Some(_container) = start(engine, "slim", &[]) else { return };
    let nowhere = "farcell-t-nowhere";
    let targets =
        [engine.target(nowhere, ""), engine.service(nowhere), engine.service(&format!("none/{nowhere}"))];
    for target in targets {
        let e = driver().list(&target.parse().unwrap(), None).await.unwrap_err();
        assert!(e.message().contains("farcell-t-nowhere") && e.hint().is_some(), "{e:?}");
        assert!(!e.is_temporary());
    }
}

async fn out_of_memory(engine: Engine) {
    let Some(container) = start(engine, "slim", &["--memory", "150m", "--memory-swap", "150m"]) else {
        return;
    };
    let registry = registry();
    let session = session(&registry, &target(&container), "memory");
    ok(&session, "1").await;
    let cell = Cell::new("x = bytearray(400 * 1024 * 1024)");
    let reply = session.run(&cell, &Seen::default()).await.unwrap();
    assert_eq!((reply.status, reply.signal.as_deref()), (Status::Died, Some("SIGKILL")), "{reply:#?}");
    assert_eq!(value(&session, "6 * 7").await, "42");
    registry.dispose_all().await.unwrap();
}

async fn no_engine() {
    for (host, named) in [
        ("unix:///nowhere/docker.sock", "there is no engine at unix:///nowhere/docker.sock"),
        ("tcp://127.0.0.1:1", "no engine listens at tcp://127.0.0.1:1"),
        ("carrier-pigeon://coop", "carrier-pigeon://coop"),
    ] {
        let e = driver().list(&format!("docker://web?host={host}").parse().unwrap(), None).await.unwrap_err();
        assert!(e.message().contains(named) && e.hint().is_some(), "{e:?}");
    }
}
