//! Calls on one stream: order, turns, credit, and those that nobody waits for any more.

use std::time::Duration;

use bytes::Bytes;
use proptest::prelude::*;
use tokio::time::Instant;

use super::fake::{Courier, channel};
use crate::link::stream::channel::{Channel, Failed};
use crate::link::stream::outbox::{HEAD, PIECE};

fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// A call of so many bytes.
fn message(len: usize) -> Vec<u8> {
    let text = serde_json::json!({ "text": "x".repeat(len) }).to_string();
    [&[0; HEAD], text.as_bytes()].concat()
}

async fn call(channel: &Channel, len: usize) -> Result<(Bytes, Vec<u8>), Failed> {
    let mut records = Vec::new();
    let answer =
        channel.call(message(len), false, soon(), &mut |piece| records.extend_from_slice(&piece)).await?;
    Ok((answer, records))
}

#[tokio::test(start_paused = true)]
async fn records_come_before_the_answer_and_pieces_are_put_together() {
    let (channel, mut courier) = channel(1 << 16).await;
    let play = async {
        let (number, header) = courier.call().await;
        assert_eq!((number, header["text"].as_str().unwrap().len()), (1, 3));
        // A frame of a call that is over, or never was.
        courier.send(b'O', 99, b"nobody's").await;
        courier.send(b'O', number, b"one ").await;
        courier.send(b'O', number, b"two").await;
        courier.send(b'j', number, b"ans").await;
        courier.send(b'J', number, b"wer").await;
        // Nothing of this belongs to anybody either.
        courier.send(b'J', number, b"again").await;
    };
    let (called, ()) = tokio::join!(call(&channel, 3), play);
    let (answer, records) = called.unwrap();
    assert_eq!((&answer[..], &records[..]), (&b"answer"[..], &b"one two"[..]));
}

#[tokio::test(start_paused = true)]
async fn calls_are_answered_in_any_order() {
    let (channel, mut courier) = channel(1 << 16).await;
    let play = async {
        let (first, _) = courier.call().await;
        let (second, _) = courier.call().await;
        courier.send(b'j', first, b"fi").await;
        courier.send(b'J', second, b"second").await;
        courier.send(b'J', first, b"rst").await;
    };
    let (one, two, ()) = tokio::join!(call(&channel, 1), call(&channel, 2), play);
    assert_eq!((&one.unwrap().0[..], &two.unwrap().0[..]), (&b"first"[..], &b"second"[..]));
}

#[tokio::test(start_paused = true)]
async fn a_small_call_waits_for_no_more_than_a_piece_of_each_large_one() {
    let (channel, mut courier) = channel(1000).await;
    let play = async {
        let mut seen = Vec::new();
        while seen.len() < 100 {
            let (kind, number, piece) = courier.frame().await.unwrap();
            assert!(piece.len() <= PIECE);
            seen.push((kind, number));
            if kind == b'C' {
                courier.answer(number).await;
            }
            if seen.iter().filter(|(kind, _)| *kind == b'C').count() == 3 {
                break;
            }
        }
        seen
    };
    let large = 20 * PIECE;
    let (one, two, three, seen) =
        tokio::join!(call(&channel, large), call(&channel, large), call(&channel, 5), play);
    assert!(one.is_ok() && two.is_ok() && three.is_ok());
    let at = |wanted| seen.iter().position(|frame| *frame == wanted).unwrap();
    assert!(at((b'C', 3)) <= 3, "{seen:?}");
    assert!(at((b'c', 2)) <= 2, "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn credit_is_given_for_what_was_taken_and_for_nothing_else() {
    let (channel, mut courier) = channel(8 << 20).await;
    let mut taken = 0;
    let mut sink = |piece: Bytes| taken += piece.len();
    let mut calling = Box::pin(channel.call(message(1), false, soon(), &mut sink));
    assert!(futures_poll(&mut calling).await.is_none());
    let (number, _) = courier.call().await;
    for _ in 0..8 {
        courier.send(b'O', number, &[b'x'; PIECE]).await;
    }
    // It lies there, and nobody has picked it up.
    assert_eq!(courier.frame_now().await, None);
    assert!(futures_poll(&mut calling).await.is_none());
    let (kind, of, credit) = courier.frame_now().await.expect("credit");
    assert_eq!((kind, of), (b'W', number));
    assert_eq!(u32::from_be_bytes(credit.try_into().unwrap()) as usize, 8 * PIECE);
    courier.answer(number).await;
    calling.await.unwrap();
    assert_eq!(taken, 8 * PIECE);
}

/// Polls once, after everybody else has had a turn.
async fn futures_poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    tokio::time::timeout(Duration::from_millis(1), future).await.ok()
}

#[tokio::test(start_paused = true)]
async fn a_courier_that_sends_without_end_is_left() {
    let (channel, mut courier) = channel(8 << 20).await;
    let mut calling = Box::pin(call(&channel, 1));
    assert!(futures_poll(&mut calling).await.is_none());
    let (number, _) = courier.call().await;
    for _ in 0..40 {
        courier.send(b'O', number, &[b'x'; PIECE]).await;
    }
    assert_eq!(courier.frame().await, None);
    assert!(matches!(calling.await, Err(Failed::Unknown(_))));
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_is_called_off() {
    let (channel, mut courier) = channel(1 << 16).await;
    assert!(futures_poll(&mut Box::pin(call(&channel, 1))).await.is_none());
    assert_eq!(courier.call().await.0, 1);
    assert_eq!(courier.frame().await, Some((b'X', 1, Vec::new())));
    // One whose time is up, likewise.
    let mut nothing = |_| ();
    let late = channel.call(message(1), false, Instant::now() + Duration::from_millis(50), &mut nothing);
    assert!(matches!(late.await, Err(Failed::Deadline)));
    assert_eq!(courier.call().await.0, 2);
    assert_eq!(courier.frame().await, Some((b'X', 2, Vec::new())));
    // What was answered is not.
    let (called, ()) = tokio::join!(call(&channel, 1), async {
        let (number, _) = courier.call().await;
        courier.answer(number).await;
    });
    assert!(called.is_ok());
    assert_eq!(courier.frame_now().await, None);
}

#[tokio::test(start_paused = true)]
async fn files_go_one_after_the_other_and_have_one_turn_together() {
    let (channel, mut courier) = channel(1000).await;
    let mut nothing = [|_| (), |_| (), |_| ()];
    let [one, two, three] = &mut nothing;
    let files = [one, two, three]
        .map(|nothing| channel.call(message(2 * PIECE), true, soon(), nothing))
        .map(Box::pin);
    let [mut first, mut second, mut third] = files;
    for file in [&mut first, &mut second, &mut third] {
        assert!(futures_poll(file).await.is_none());
    }
    // Nobody waits for the last one any more, of which nothing is out.
    drop(third);
    let play = async {
        let mut seen = Vec::new();
        while seen.iter().filter(|(kind, _)| *kind == b'D' || *kind == b'C').count() < 3 {
            let (kind, number, _) = courier.frame().await.unwrap();
            seen.push((kind, number));
            if kind == b'C' || kind == b'D' {
                courier.answer(number).await;
            }
        }
        seen
    };
    let (one, two, call, seen) = tokio::join!(first, second, call(&channel, PIECE), play);
    assert!(one.is_ok() && two.is_ok() && call.is_ok());
    let order = [(b'd', 1), (b'c', 4), (b'd', 1), (b'C', 4), (b'D', 1), (b'd', 2), (b'd', 2), (b'D', 2)];
    assert_eq!(seen, order);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_is_given_up_half_way_leaves_whole_frames() {
    let (channel, mut courier) = channel(1000).await;
    let mut begun = Box::pin(call(&channel, 3 * PIECE));
    assert!(futures_poll(&mut begun).await.is_none());
    let mut never_begun = Box::pin(call(&channel, 1));
    assert!(futures_poll(&mut never_begun).await.is_none());
    drop((begun, never_begun));
    let (last, play) = (call(&channel, 2), async {
        let mut seen = Vec::new();
        loop {
            let (kind, number, _) = courier.frame().await.unwrap();
            seen.push((kind, number));
            if kind == b'C' {
                courier.answer(number).await;
                return seen;
            }
        }
    });
    let (answered, seen) = tokio::join!(last, play);
    assert!(answered.is_ok());
    assert_eq!(seen, [(b'c', 1), (b'X', 1), (b'C', 3)]);
}

/// Answers every call with its own text as records, in small pieces, and forgets about those that are called off.
async fn echo(mut courier: Courier) {
    let mut calls: std::collections::BTreeMap<u32, Vec<u8>> = std::collections::BTreeMap::new();
    while let Some((kind, number, piece)) = courier.frame().await {
        match kind {
            b'c' => calls.entry(number).or_default().extend(piece),
            b'C' => {
                let mut text = calls.remove(&number).unwrap_or_default();
                text.extend(piece);
                let length = text.len().to_string();
                let frames = text.chunks(777).map(|piece| (b'O', piece)).chain([(b'J', length.as_bytes())]);
                for (kind, payload) in frames {
                    if courier.try_send(kind, number, payload).await.is_err() {
                        return; // the host has gone: nobody waited any more
                    }
                }
            }
            b'X' => {
                calls.remove(&number);
            }
            b'W' | b'P' => {}
            other => panic!("{other}"),
        }
    }
    assert!(calls.is_empty(), "the pieces of a call that nobody finished or called off");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn every_call_gets_its_own_answer_whoever_is_given_up_meanwhile(
        calls in prop::collection::vec((0usize..3 * PIECE, prop::option::of(0u64..40)), 1..12),
        room in prop::sample::select(vec![100usize, 4096, 1 << 20]),
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
        runtime.block_on(async {
            let (channel, courier) = channel(room).await;
            let courier = tokio::spawn(echo(courier));
            let channel = std::sync::Arc::new(channel);
            let mut running = tokio::task::JoinSet::new();
            for (len, patience) in calls {
                let channel = std::sync::Arc::clone(&channel);
                running.spawn(async move {
                    let calling = call(&channel, len);
                    let answered = match patience {
                        Some(ms) => tokio::time::timeout(Duration::from_millis(ms), calling).await.ok(),
                        None => Some(calling.await),
                    };
                    if let Some(answered) = answered {
                        let (answer, records) = answered.unwrap();
                        assert_eq!(records, &message(len)[HEAD..]);
                        assert_eq!(answer, records.len().to_string().as_bytes());
                    }
                });
            }
            while let Some(done) = running.join_next().await {
                done.unwrap();
            }
            drop(channel);
            courier.await.unwrap();
        });
    }
}
