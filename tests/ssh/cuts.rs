//! Connections that are cut, reset, or go dark while cells run: each cell runs once, and its reply arrives.

use std::sync::Mutex;
use std::time::Duration;

use farcell::{Cell, Event, EventSink, LinkChoice, NoEvents, Session, Status, Which};
use farcell_testbed::processes::with_command;
use libtest_mimic::Trial;

use crate::site::{Site, ok, session, site, until, value};
use crate::trial;

pub(crate) fn trials(driver: &'static str) -> Vec<Trial> {
    vec![
        trial(driver, "a_thousand_cells_while_the_connection_is_cut_every_second", thousand_cells),
        trial(driver, "a_reset_costs_nothing", |d| {
            during_a_cell(d, LinkChoice::Best, |s| s.proxy.reset_all())
        }),
        trial(driver, "a_reset_costs_nothing_by_commands", |d| {
            during_a_cell(d, LinkChoice::ExecOnly, |s| s.proxy.reset_all())
        }),
        trial(driver, "a_server_that_is_started_again_costs_nothing", |d| {
            during_a_cell(d, LinkChoice::Best, |s| {
                s.sshd.kill();
                s.sshd.end_sessions();
                s.sshd.restart().unwrap();
            })
        }),
        trial(driver, "a_server_that_is_started_again_and_keeps_its_sessions_costs_nothing", |d| {
            during_a_cell(d, LinkChoice::Best, |s| s.sshd.restart().unwrap())
        }),
        trial(driver, "a_black_hole_that_ends_costs_nothing", black_hole),
        trial(driver, "a_deadline_inside_a_black_hole_is_lost_and_found", lost_and_found),
        trial(driver, "few_round_trips", round_trips),
    ]
}

/// Tells when the cell has printed something.
#[derive(Default)]
struct Printed(Mutex<bool>);

impl EventSink for Printed {
    fn event(&self, event: Event) {
        if matches!(event, Event::Output { .. }) {
            *self.0.lock().unwrap() = true;
        }
    }
}

impl Printed {
    fn is_so(&self) -> bool {
        *self.0.lock().unwrap()
    }
}

/// A cell that counts how often it is run, and runs until its file is there.
fn waiting(site: &Site) -> (std::path::PathBuf, Cell) {
    let go = site.sshd.dir().join("go");
    let code = format!(
        "import os, time\nruns = globals().get('runs', 0) + 1\nprint('begin', flush=True)\n\
         while not os.path.exists({go:?}): time.sleep(0.01)\nprint('end')\nruns"
    );
    (go, Cell::new(code))
}

async fn during_a_cell(driver: &'static str, links: LinkChoice, harm: impl FnOnce(&Site)) {
    let Some(mut site) = site(driver) else { return };
    site.links = links;
    let registry = site.registry();
    let session = session(&registry, &site.target(), "cut");
    let (go, cell) = waiting(&site);
    let printed = Printed::default();
    let harmed = async {
        until("the cell runs", || printed.is_so()).await;
        harm(&site);
        std::fs::write(&go, "").unwrap();
    };
    let (reply, ()) = tokio::join!(session.run(&cell, &printed), harmed);
    let reply = reply.unwrap();
    assert_eq!((reply.status, reply.stdout.as_str()), (Status::Ok, "begin\nend\n"), "{reply:#?}");
    assert_eq!(reply.result.unwrap()["text/plain"], "1", "it ran once");
    assert_eq!(value(&session, "runs").await, "1");
    registry.dispose_all().await.unwrap();
}

async fn thousand_cells(driver: &'static str) {
    const CELLS: usize = 1000;
    let Some(site) = site(driver) else { return };
    let registry = site.registry();
    let session = session(&registry, &site.target(), "thousand");
    ok(&session, "runs = []").await;
    site.proxy.cut_every(Duration::from_secs(1));
    for n in 0..CELLS {
        // Some take long enough to be cut in the middle.
        let pause = if n % 100 == 50 { "import time; time.sleep(1.2); " } else { "" };
        let reply = ok(&session, &format!("{pause}runs.append({n}); print({n}); {n} * 2")).await;
        assert_eq!(reply.stdout, format!("{n}\n"));
        assert_eq!(reply.result.unwrap()["text/plain"], (n * 2).to_string());
    }
    site.proxy.cut_every(None);
    assert_eq!(value(&session, &format!("runs == list(range({CELLS}))")).await, "True", "each ran once");
    assert!(site.proxy.connections().opened > 5, "the connection was not cut");
    registry.dispose_all().await.unwrap();
    let sockets = site.sockets.path().display().to_string();
    drop(session);
    drop(registry);
    until("nothing of it is left here", || with_command(&sockets).is_empty()).await;
    let there = || {
        let left = site.sshd.processes();
        // A zygote stays for minutes, for the next kernel.
        with_command("")
            .into_iter()
            .filter(|(pid, line)| left.contains(pid) && !line.contains(" --zygote "))
            .count()
    };
    until("nothing of it is left there", || there() == 0).await;
}

async fn black_hole(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let registry = site.registry();
    let session = session(&registry, &site.target(), "hole");
    let (go, cell) = waiting(&site);
    let printed = Printed::default();
    let opened = std::cell::Cell::new(0);
    let hole = async {
        until("the cell runs", || printed.is_so()).await;
        opened.set(site.proxy.connections().opened);
        site.proxy.black_hole(true);
        std::fs::write(&go, "").unwrap();
        // Somebody has noticed: the host is tried again.
        until("the dark connection is given up", || site.proxy.connections().opened > opened.get()).await;
        site.proxy.black_hole(false);
    };
    let (reply, ()) = tokio::join!(session.run(&cell, &printed), hole);
    let reply = reply.unwrap();
    assert_eq!((reply.status, reply.stdout.as_str()), (Status::Ok, "begin\nend\n"), "{reply:#?}");
    assert_eq!(value(&session, "runs").await, "1");
    registry.dispose_all().await.unwrap();
}

async fn lost_and_found(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let registry = site.registry();
    let session = session(&registry, &site.target(), "lost");
    ok(&session, "1").await;
    let (go, cell) = waiting(&site);
    let printed = Printed::default();
    let hole = async {
        until("the cell runs", || printed.is_so()).await;
        site.proxy.black_hole(true);
        site.proxy.refuse(true);
    };
    let cell = cell.timeout(Duration::from_secs(3));
    let (reply, ()) = tokio::join!(session.run(&cell, &printed), hole);
    let reply = reply.unwrap();
    assert_eq!(reply.status, Status::Lost, "{reply:#?}");
    let id = reply.cell.id.clone().unwrap();
    site.proxy.black_hole(false);
    site.proxy.refuse(false);
    site.proxy.cut_all();
    std::fs::write(&go, "").unwrap();
    let reply = found(&session, &Which::Id(id)).await;
    // The deadline is the far side's own, so that it ran out there as well.
    assert!(matches!(reply.status, Status::Ok | Status::Timeout), "{reply:#?}");
    assert!(reply.stdout.starts_with("begin\n"));
    assert_eq!(value(&session, "runs").await, "1", "the variables are there, and it ran once");
    registry.dispose_all().await.unwrap();
}

async fn found(session: &Session, which: &Which) -> farcell::Reply {
    match session.fetch(which, Duration::from_secs(30), &NoEvents).await.unwrap() {
        farcell::Fetched::Settled(reply) => *reply,
        other => panic!("{other:?}"),
    }
}

async fn round_trips(driver: &'static str) {
    const CELLS: u64 = 20;
    let Some(site) = site(driver) else { return };
    let registry = site.registry();
    let target = site.target();
    let warm = session(&registry, &target, "warm");
    ok(&warm, "x = 1").await;
    ok(&warm, "x = 1").await;
    site.proxy.delay(farcell_testbed::Proxy::FAR);
    let before = site.proxy.round_trips();
    for _ in 0..CELLS {
        ok(&warm, "x += 1").await;
    }
    let cells = site.proxy.round_trips() - before;
    assert!(cells * 100 <= CELLS * 115, "{CELLS} cells took {cells} round trips");
    let before = site.proxy.round_trips();
    ok(&session(&registry, &target, "new"), "1").await;
    let spawn = site.proxy.round_trips() - before;
    assert!(spawn <= 3, "a spawn and its first cell took {spawn} round trips");
    registry.dispose_all().await.unwrap();
}
