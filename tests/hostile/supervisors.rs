//! Supervisors over pipes that lie.

use std::os::unix::fs::symlink;
use std::time::{Duration, Instant};

use farcell::{ErrorKind, Registry, Session, Status};
use libtest_mimic::Trial;
use tempfile::TempDir;

use crate::{liar, run, session, trial, within};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("stdio::one_that_tells_the_truth_is_believed", async || ends_well("truth", 40).await),
        trial("stdio::ten_thousand_forged_messages_leave_the_host_as_it_was", forged),
        trial("stdio::a_reply_of_another_cell_is_dropped", async || ends_well("other_cell", 40).await),
        trial("stdio::a_second_reply_is_dropped", async || ends_well("twice", 40).await),
        trial("stdio::a_reply_that_is_too_deep_is_dropped", async || ends_well("deep", 40).await),
        trial("stdio::a_flood_costs_no_memory", async || ends_well("flood", 60).await),
        trial("stdio::long_frames_wait_alone", async || ends_well("long_frames", 160).await),
        trial("stdio::a_frame_of_4_gib_ends_the_kernel", async || {
            assert_eq!(ended("claims_4_gib").await, Status::Died);
        }),
        trial("stdio::a_frame_that_never_comes_takes_no_room", async || {
            assert_eq!(ended("claims_much").await, Status::Lost);
        }),
        trial("stdio::a_cell_that_starts_for_ever_is_lost", async || {
            assert_eq!(ended("starts_for_ever").await, Status::Lost);
        }),
        trial("stdio::a_greeting_without_end_is_none", async || refused("endless_greeting").await),
        trial("stdio::a_kernel_that_says_it_is_another_is_refused", async || refused("other_kernel").await),
        trial("stdio::whatever_it_says_of_itself_only_its_own_process_is_ended", everybody),
    ]
}

/// A session whose Python is the liar, under the name of the mode.
fn lying(mode: &str) -> (TempDir, Registry, Session) {
    let dir = tempfile::tempdir().unwrap();
    symlink(liar(), dir.path().join(mode)).unwrap();
    let (registry, session) = session(&format!("stdio:?python={}", dir.path().join(mode).display()));
    (dir, registry, session)
}

async fn ends_well(mode: &str, most: u64) {
    let (_dir, _registry, session) = lying(mode);
    let reply = within(most, run(&session, 30)).await.unwrap();
    assert_eq!(reply.status, Status::Ok, "{reply:#?}");
}

async fn forged() {
    let (_dir, _registry, session) = lying("forged");
    assert_eq!(run(&session, 20).await.unwrap().status, Status::Ok);
    let reply = within(4, run(&session, 20)).await.unwrap();
    assert_eq!(reply.status, Status::Ok, "{reply:#?}");
}

async fn ended(mode: &str) -> Status {
    let (_dir, _registry, session) = lying(mode);
    let mut cell = farcell::Cell::new("1").timeout(Duration::from_secs(1));
    cell.queue_timeout = Duration::from_secs(1);
    let started = Instant::now();
    let reply = within(60, session.run(&cell, &farcell::NoEvents)).await.unwrap();
    assert!(started.elapsed() < Duration::from_secs(80));
    reply.status
}

async fn refused(mode: &str) {
    let (_dir, _registry, session) = lying(mode);
    let e = within(40, run(&session, 5)).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Protocol, "{e}");
}

/// A pid of -1 means all processes to those who send signals.
async fn everybody() {
    let (_dir, _registry, session) = lying("everybody");
    assert_eq!(run(&session, 5).await.unwrap().status, Status::Ok);
    let mut bystander = std::process::Command::new("sleep").arg("600").spawn().unwrap();
    session.stop().await.unwrap();
    assert!(bystander.try_wait().unwrap().is_none());
    bystander.kill().unwrap();
    bystander.wait().unwrap();
}
