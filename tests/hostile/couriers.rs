//! Far sides over a transport: over a stream, and by commands.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::time::Duration;

use farcell::{
    Cell, ErrorKind, Event, LinkChoice, Registry, RegistryOptions, SessionOptions, Status, Target,
};
use libtest_mimic::Trial;

use crate::{is_nonsense, liar, run, session, trial, within};

fn target(mode: &str) -> String {
    format!("exec:python3 {} {mode}", liar().display())
}

/// What makes no sense, however it is said.
const NONSENSE: &[&str] = &[
    "other_cell",
    "other_number",
    "other_kernel",
    "no_kernel_id",
    "negative_number",
    "fraction",
    "larger_than_any",
    "no_reply",
    "unknown_status",
    "deep",
    "surrogate",
    "infinite",
    "early_answer",
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![
        trial("courier::one_that_tells_the_truth_is_believed", async || ends_well("truth").await),
        trial("courier::ten_thousand_forged_messages_leave_the_host_as_it_was", forged),
        trial("courier::numbers_at_their_end_do_no_harm", async || ends_well("largest_offset").await),
        trial("courier::a_window_without_end_has_one", async || ends_well("largest_window").await),
        trial("courier::a_display_that_is_too_deep_is_dropped", async || ends_well("deep_display").await),
        trial("courier::a_record_of_4_gib_is_passed_over", long_record),
        trial("courier::a_flood_costs_no_memory", async || in_bounds("flood").await),
        trial("courier::pieces_hold_on_to_nothing", async || in_bounds("small_pieces").await),
        trial("courier::a_frame_of_4_gib_is_not_waited_for", async || in_bounds("claims_4_gib").await),
        trial("courier::a_frame_without_a_number_ends_the_stream", async || in_bounds("short_frame").await),
        trial("courier::an_answer_without_end_has_one", endless_answer),
        trial("courier::what_nobody_asked_for_has_an_end", async || in_bounds("unwanted_for_ever").await),
        trial("courier::a_greeting_without_end_is_none", async || ends_well("endless_greeting").await),
        trial("courier::a_cell_that_always_runs_is_lost", always_running),
        trial("courier::a_cell_that_always_waits_is_lost", always_waiting),
        trial("courier::an_error_is_no_longer_than_one_can_read", huge_error),
        trial("courier::an_id_that_leads_elsewhere_is_none", id_elsewhere),
    ];
    for mode in NONSENSE {
        trials.push(trial(&format!("courier::{mode}_makes_no_sense"), async move || {
            let (_registry, session) = session(&target(mode));
            is_nonsense(&within(40, run(&session, 5)).await);
        }));
        if *mode == "early_answer" {
            continue;
        }
        trials.push(trial(&format!("commands::{mode}_makes_no_sense"), async move || {
            let drivers = farcell::Drivers::new().with(
                farcell::FileCellDriver::new(farcell::local::LocalConnector::default())
                    .links(LinkChoice::ExecOnly),
            );
            let registry = Registry::new(drivers, RegistryOptions::default());
            let target: Target = target(mode).parse().unwrap();
            let session = registry.session("hostile", "s", &target, SessionOptions::default()).unwrap();
            is_nonsense(&within(40, run(&session, 5)).await);
        }));
    }
    trials
}

/// The lie is seen through, or does no harm.
async fn ends_well(mode: &str) {
    let (_registry, session) = session(&target(mode));
    let reply = within(40, run(&session, 20)).await.unwrap();
    // The NUL behind it is cleaned away.
    assert_eq!((reply.status, reply.stdout.as_str()), (Status::Ok, "said"), "{reply:#?}");
}

async fn forged() {
    let (_registry, session) = session(&target("forged"));
    assert_eq!(run(&session, 20).await.unwrap().status, Status::Ok);
    let reply = within(4, run(&session, 20)).await.unwrap();
    assert_eq!(reply.status, Status::Ok, "{reply:#?}");
}

/// Whatever comes of it comes in time, and there is an answer.
async fn in_bounds(mode: &str) {
    let (_registry, session) = session(&target(mode));
    let reply = within(80, run(&session, 3)).await.expect("what was sent has a reply");
    assert!(matches!(reply.status, Status::Ok | Status::Lost), "{reply:#?}");
}

async fn long_record() {
    let (_registry, session) = session(&target("long_record"));
    let told = AtomicUsize::new(0);
    let events = |event| {
        if let Event::Output { text, .. } = event {
            told.fetch_add(text.len(), SeqCst);
        }
    };
    let cell = Cell::new("1").timeout(Duration::from_secs(20));
    let reply = within(40, session.run(&cell, &events)).await.unwrap();
    assert_eq!((reply.status, told.load(SeqCst)), (Status::Ok, 0), "{reply:#?}");
}

async fn endless_answer() {
    let (_registry, session) = session(&target("endless_answer"));
    // The longest answer that there may be, in a buffer that has grown as it came.
    let reply = within(800, run(&session, 3)).await.expect("what was sent has a reply");
    assert!(matches!(reply.status, Status::Ok | Status::Lost), "{reply:#?}");
}

async fn always_running() {
    let (_registry, session) = session(&target("always_running"));
    let started = std::time::Instant::now();
    let reply = run(&session, 1).await.unwrap();
    assert_eq!(reply.status, Status::Lost, "{reply:#?}");
    assert!(started.elapsed() < Duration::from_secs(30));
}

async fn always_waiting() {
    let (_registry, session) = session(&target("always_waiting"));
    let mut cell = Cell::new("1");
    cell.queue_timeout = Duration::from_secs(1);
    let reply = session.run(&cell, &farcell::NoEvents).await.unwrap();
    assert_eq!(reply.status, Status::Lost, "{reply:#?}");
}

async fn huge_error() {
    let (_registry, session) = session(&target("huge_error"));
    let e = run(&session, 5).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Spawn);
    assert!(format!("{e} {e:?} {:?}", e.hint()).len() < 20_000);
}

async fn id_elsewhere() {
    let (_registry, session) = session(&target("id_elsewhere"));
    let e = run(&session, 5).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Protocol, "{e}");
    assert!(e.to_string().contains("is not the id of a kernel"), "{e}");
}
