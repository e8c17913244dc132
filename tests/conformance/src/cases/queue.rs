//! Cells of one kernel run one after the other, each once, each with its own clock.

use std::time::Duration;

use farcell_core::{Cell, Event, Fetched, NoEvents, Status, TroubleKind, Which};

use crate::Case;
use crate::subject::{Gate, PATIENCE, Recorder, Subject, ok, text};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case { name: "ten_first_cells_start_one_kernel", check: |s| Box::pin(ten_first(s)) },
        Case { name: "a_second_cell_waits_its_turn_and_is_told", check: |s| Box::pin(waits(s)) },
        Case { name: "a_cell_that_waits_too_long_is_withdrawn", check: |s| Box::pin(withdrawn(s)) },
        Case { name: "a_submitted_cell_is_fetched_later", check: |s| Box::pin(submitted(s)) },
        Case { name: "many_cells_run_once_each", check: |s| Box::pin(many(s)) },
    ]
}

async fn ten_first(s: &Subject) {
    let cells = (0..10).map(|i| {
        let session = s.session("a");
        async move { ok(&session, &format!("import os; (os.getpid(), {i})")).await }
    });
    let replies = futures_util::future::join_all(cells).await;
    let ids: std::collections::BTreeSet<_> = replies.iter().map(|r| r.kernel.id.clone()).collect();
    assert_eq!(ids.len(), 1, "one kernel for all");
    for (i, reply) in replies.iter().enumerate() {
        assert!(text(reply).ends_with(&format!(", {i})")), "each got its own reply");
    }
}

async fn waits(s: &Subject) {
    let session = s.session("a");
    let gate = Gate::new(s);
    ok(&session, "import os").await;
    let (first, second) = (Recorder::default(), Recorder::default());
    let long = Cell::new(format!("print('up', flush=True)\n{}", gate.wait()));
    let limit = Duration::from_millis(700);
    let short = Cell::new("1").timeout(limit);
    let behind = async {
        first.wait_for(|r| r.output() == "up\n").await;
        session.run(&short, &second).await
    };
    let opener = async {
        second.wait_for(|r| r.events().iter().any(|e| matches!(e, Event::Queued { .. }))).await;
        // Longer than the second one may run: its clock must not have begun.
        tokio::time::sleep(limit).await;
        gate.open().await;
    };
    let (a, b, ()) = tokio::join!(session.run(&long, &first), behind, opener);
    assert_eq!(a.unwrap().status, Status::Ok);
    let b = b.unwrap();
    assert_eq!(b.status, Status::Ok, "its clock starts when it starts: {b:#?}");
    assert!(b.queued_ms > 200.0, "{}", b.queued_ms);
    assert!(second.events().iter().any(|e| matches!(e, Event::Queued { ahead: 1 })), "{:?}", second.events());
}

async fn withdrawn(s: &Subject) {
    let session = s.session("a");
    let gate = Gate::new(s);
    ok(&session, "ran = False").await;
    let (first, second) = (Recorder::default(), Recorder::default());
    let long = Cell::new(format!("print('up', flush=True)\n{}", gate.wait()));
    let mut impatient = Cell::new("ran = True");
    impatient.queue_timeout = Duration::from_millis(300);
    let behind = async {
        first.wait_for(|r| r.output() == "up\n").await;
        let refused = session.run(&impatient, &second).await;
        gate.open().await;
        refused
    };
    let (a, b) = tokio::join!(session.run(&long, &first), behind);
    assert_eq!(a.unwrap().status, Status::Ok);
    let b = b.unwrap();
    assert_eq!(b.status, Status::Refused, "{b:#?}");
    assert_eq!(b.error.unwrap().kind, TroubleKind::Deadline);
    assert!(second.events().iter().any(|e| matches!(e, Event::Queued { ahead: 1 })), "{:?}", second.events());
    assert_eq!(text(&ok(&session, "ran").await), "False", "it never ran");
}

async fn submitted(s: &Subject) {
    let session = s.session("a");
    let gate = Gate::new(s);
    ok(&session, "1").await;
    let cell = Cell::new(format!("print('a')\n{}7", gate.wait()));
    let sent = session.submit(&cell, &NoEvents).await.unwrap();
    let now = session.fetch(&Which::Last, Duration::ZERO, &NoEvents).await.unwrap();
    assert!(!matches!(now, Fetched::Settled(_)), "{now:?}");
    gate.open().await;
    for which in [Which::Number(sent.number), Which::Id(sent.id.clone()), Which::Last] {
        let Fetched::Settled(reply) = session.fetch(&which, PATIENCE, &NoEvents).await.unwrap() else {
            panic!("it has not settled");
        };
        assert_eq!((text(&reply), reply.stdout.as_str(), reply.cell.number), ("7", "a\n", Some(sent.number)));
    }
}

async fn many(s: &Subject) {
    let session = s.session("a");
    ok(&session, "x = 0").await;
    for _ in 0..50 {
        ok(&session, "x += 1").await;
    }
    let cells = (0..20).map(|_| ok(&session, "x += 1"));
    futures_util::future::join_all(cells).await;
    assert_eq!(text(&ok(&session, "x").await), "70");
}
