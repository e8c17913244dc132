//! A courier that stands: when it is gone to, and what a host does that is not let in or has to leave.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use serde_json::json;
use tokio::io::AsyncWriteExt as _;

use super::fake::{Courier, CourierBox, FakeTransport, WORD};
use super::links::{call, run, spawn};
use crate::link::StreamLink;
use crate::runner::runner;

type Couriers = tokio::sync::mpsc::UnboundedReceiver<CourierBox>;

fn link() -> (Arc<StreamLink>, Arc<FakeTransport>, Couriers) {
    let (transport, couriers) = FakeTransport::new();
    transport.stands.store(true, Ordering::SeqCst);
    (Arc::new(StreamLink::new(Arc::clone(&transport) as _)), transport, couriers)
}

/// How often it was gone to, and how often something was started.
fn counts(transport: &FakeTransport) -> (usize, usize, usize) {
    let (opens, execs) = transport.counts();
    (transport.visits.load(Ordering::SeqCst), opens, execs)
}

async fn visited(couriers: &mut Couriers) -> (Courier, Vec<String>) {
    let CourierBox(mut courier) = couriers.recv().await.unwrap();
    let words = courier.visited().await;
    (courier, words)
}

async fn answer_visitor(couriers: &mut Couriers) -> Courier {
    let (mut courier, words) = visited(couriers).await;
    let (nonce, asked) = courier.asked().await;
    assert_eq!((&nonce, &asked.header["stand"]["mark"]), (&words[1], &json!(WORD)));
    courier.answer_one(&nonce).await;
    courier
}

async fn answer_opened(couriers: &mut Couriers) -> Courier {
    let CourierBox(mut courier) = couriers.recv().await.unwrap();
    let (nonce, asked) = courier.asked().await;
    assert!(asked.header.get("stand").is_none());
    courier.answer_one(&nonce).await;
    courier
}

#[tokio::test(start_paused = true)]
async fn a_call_that_stays_alone_needs_no_command() {
    let (link, transport, mut couriers) = link();
    let (run, play) = (run(), answer_visitor(&mut couriers));
    let (called, _courier) = tokio::join!(call(&link, &run, Some("/p")), play);
    assert!(called.is_ok());
    assert_eq!(counts(&transport), (1, 0, 0));
}

#[tokio::test(start_paused = true)]
async fn the_line_says_how_long_the_greeting_is_and_who_may_answer() {
    for (operation, python) in
        [(run(), "-"), (spawn(), super::super::standing::python_word(Some("/p")).as_str())]
    {
        let (link, _transport, mut couriers) = link();
        let play = async {
            let (mut courier, words) = visited(&mut couriers).await;
            let (nonce, asked) = courier.asked().await;
            let stand = json!({"mark": WORD, "python": super::super::standing::python_word(Some("/p"))});
            assert_eq!(asked.header["stand"], stand);
            assert_eq!(words[3..], [runner().hash.as_str(), python]);
            courier.answer_one(&nonce).await;
            courier
        };
        let (called, _courier) = tokio::join!(call(&link, &operation, Some("/p")), play);
        assert!(called.is_ok());
    }
}

#[tokio::test(start_paused = true)]
async fn a_host_that_another_one_follows_opens_a_stream_of_its_own() {
    let (link, transport, mut couriers) = link();
    let run = run();
    let (called, mut courier) = tokio::join!(call(&link, &run, None), answer_visitor(&mut couriers));
    assert!(called.is_ok());
    let mark = [b"\xFE", WORD.as_bytes(), b" another\n"].concat();
    courier.write.write_all(&mark).await.unwrap();
    while matches!(link.streams.carrier(), crate::link::Carrier::Stream) {
        tokio::task::yield_now().await;
    }
    let (called, _courier) = tokio::join!(call(&link, &run, None), answer_opened(&mut couriers));
    assert!(called.is_ok());
    assert_eq!(counts(&transport), (1, 1, 0));
}

#[tokio::test(start_paused = true)]
async fn one_that_is_refused_goes_by_a_command_and_then_by_a_stream_of_its_own() {
    let (link, transport, mut couriers) = link();
    let run = run();
    let play = async {
        let (mut courier, words) = visited(&mut couriers).await;
        let error = json!({"code": "refused", "message": "another version"});
        courier.say(&words[1], &json!({"ok": false, "error": error})).await;
        courier
    };
    let (called, _courier) = tokio::join!(call(&link, &run, None), play);
    assert_eq!(called.unwrap()["exec"], 1);
    let (called, _courier) = tokio::join!(call(&link, &run, None), answer_opened(&mut couriers));
    assert!(called.is_ok());
    assert_eq!(counts(&transport), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn one_that_cannot_be_reached_is_left_alone() {
    let (link, transport, mut couriers) = link();
    transport.refuse();
    let run = run();
    assert_eq!(call(&link, &run, None).await.unwrap()["exec"], 1);
    let (called, _courier) = tokio::join!(call(&link, &run, None), answer_opened(&mut couriers));
    assert!(called.is_ok());
    assert_eq!(counts(&transport), (1, 1, 1));
}

#[tokio::test(start_paused = true)]
async fn what_it_needs_is_brought_to_it_at_once() {
    let (link, transport, mut couriers) = link();
    let run = run();
    let play = async {
        let (mut courier, _) = visited(&mut couriers).await;
        let (nonce, asked) = courier.asked().await;
        assert_eq!(asked.bundle, 0);
        let error = json!({"code": "need-runner", "message": "m"});
        courier.say(&nonce, &json!({"ok": false, "error": error})).await;
        let (mut courier, _) = visited(&mut couriers).await;
        let (nonce, asked) = courier.asked().await;
        assert!(asked.bundle > 10_000);
        courier.answer_one(&nonce).await;
        courier
    };
    let (called, _courier) = tokio::join!(call(&link, &run, None), play);
    assert!(called.is_ok());
    assert_eq!(counts(&transport), (2, 0, 0));
}
