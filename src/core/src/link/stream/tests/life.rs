//! How a stream lives and ends: the greeting, signs of life, a break, the last handle.

use std::time::Duration;

use bytes::Bytes;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;
use tokio::time::Instant;

use super::fake::{self, NONCE, channel, read_to_end};
use crate::id::Nonce;
use crate::link::places::Places;
use crate::link::stream::End;
use crate::link::stream::channel::{Channel, Failed};
use crate::link::stream::outbox::HEAD;
use crate::transport::Capabilities;

async fn call(channel: &Channel) -> Result<Bytes, Failed> {
    call_of(channel, 10).await
}

async fn call_of(channel: &Channel, len: usize) -> Result<Bytes, Failed> {
    let message = [&[0; HEAD][..], &b"1".repeat(len)].concat();
    channel.call(message, false, Instant::now() + Duration::from_secs(600), &mut |_| ()).await
}

/// Opens a channel whose courier has not said anything yet.
fn ungreeted() -> (Channel, fake::Courier) {
    let (courier, duplex) = fake::courier(1 << 16);
    let until = Instant::now() + Duration::from_secs(10);
    let place = Places::new(Capabilities::new()).for_stream().unwrap();
    (Channel::new(duplex, Nonce::fixed(NONCE), Bytes::from_static(b"greeting"), 1, until, place), courier)
}

#[tokio::test(start_paused = true)]
async fn calls_go_right_behind_the_greeting_and_noise_before_its_answer_is_passed_over() {
    let (channel, mut courier) = ungreeted();
    let play = async {
        let mut greeting = [0; 8];
        tokio::io::AsyncReadExt::read_exact(&mut courier.read, &mut greeting).await.unwrap();
        assert_eq!(&greeting, b"greeting");
        let (kind, number, _) = courier.frame().await.unwrap();
        assert_eq!((kind, number), (b'C', 1));
        courier.write.write_all(b"Welcome!\nLast login: yesterday").await.unwrap();
        courier.say_hello(NONCE).await;
        courier.answer(1).await;
    };
    let (called, ()) = tokio::join!(call(&channel), play);
    called.unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_refusal_has_looked_at_no_call() {
    for (answer, needs_runner) in [
        (json!({"ok": false, "error": {"code": "need-runner", "message": "m"}}), true),
        (json!({"ok": false, "error": {"code": "no-directory", "message": "m"}}), false),
        (json!({"ok": true}), false),
    ] {
        let (channel, mut courier) = ungreeted();
        let (called, ()) = tokio::join!(call(&channel), courier.say(NONCE, &answer));
        let Err(Failed::NotLookedAt(end)) = called else { panic!("{called:?}") };
        assert_eq!(matches!(*end, End::NeedRunner), needs_runner, "{end:?}");
        assert!(courier.is_dropped());
    }
}

#[tokio::test(start_paused = true)]
async fn a_courier_that_never_greets_is_left_after_ten_seconds() {
    let (channel, courier) = ungreeted();
    let began = Instant::now();
    let called = call(&channel).await;
    assert!(matches!(called, Err(Failed::Unknown(_))), "{called:?}");
    assert_eq!(began.elapsed().as_secs(), 10);
    assert!(courier.is_dropped());
}

#[tokio::test(start_paused = true)]
async fn signs_of_life_are_asked_for_when_it_is_quiet_and_while_they_come_it_lives() {
    let (channel, mut courier) = channel(1 << 16).await;
    let play = async {
        let (number, _) = (courier.frame().await.unwrap().1, ());
        for _ in 0..10 {
            let began = Instant::now();
            assert_eq!(courier.frame().await.unwrap().0, b'P');
            assert_eq!(began.elapsed().as_secs(), 5);
            courier.send(b'p', 0, b"").await;
        }
        courier.answer(number).await;
        // With nobody waiting it is asked for less often.
        let began = Instant::now();
        assert_eq!(courier.frame().await.unwrap().0, b'P');
        assert_eq!(began.elapsed().as_secs(), 30);
        courier.send(b'p', 0, b"").await;
        courier
    };
    let (called, mut courier) = tokio::join!(call(&channel), play);
    called.unwrap();
    // Somebody comes in the middle of the long pause.
    tokio::time::sleep(Duration::from_secs(7)).await;
    let play = async {
        assert_eq!(courier.frame().await.unwrap().0, b'C');
        let began = Instant::now();
        assert_eq!(courier.frame().await.unwrap().0, b'P');
        assert_eq!(began.elapsed().as_secs(), 5);
        courier.answer(2).await;
    };
    let (called, ()) = tokio::join!(call(&channel), play);
    called.unwrap();
}

#[tokio::test(start_paused = true)]
async fn silence_is_death_after_ten_seconds_more() {
    let (channel, courier) = channel(1 << 16).await;
    let began = Instant::now();
    let called = call(&channel).await;
    let Err(Failed::Unknown(end)) = called else { panic!("{called:?}") };
    assert_eq!(began.elapsed().as_secs(), 15);
    assert_eq!(end.to_string(), "the stream is over: there is no sign of life: last words");
    assert!(courier.is_dropped());
    assert!(matches!(call(&channel).await, Err(Failed::NotLookedAt(_))));
}

#[tokio::test(start_paused = true)]
async fn a_courier_that_does_not_read_is_dead_as_well() {
    let (channel, courier) = channel(100).await;
    let began = Instant::now();
    let (one, two) = tokio::join!(call_of(&channel, 1_000_000), call(&channel));
    // Of neither has it got all.
    assert!(matches!(one, Err(Failed::NotLookedAt(_))), "{one:?}");
    assert!(matches!(two, Err(Failed::NotLookedAt(_))), "{two:?}");
    assert_eq!(began.elapsed().as_secs(), 15);
    drop(courier);
}

#[tokio::test(start_paused = true)]
async fn a_long_call_on_a_slow_line_is_no_silence() {
    let (channel, mut courier) = channel(1000).await;
    let play = async {
        let mut seen = Vec::new();
        while seen.len() < 100_000 {
            let mut piece = [0; 1000];
            let read = tokio::io::AsyncReadExt::read(&mut courier.read, &mut piece).await.unwrap();
            seen.extend_from_slice(&piece[..read]);
            tokio::time::sleep(Duration::from_secs(3)).await;
        }
        courier.answer(1).await;
    };
    let began = Instant::now();
    let (called, ()) = tokio::join!(call_of(&channel, 100_000), play);
    called.unwrap();
    assert!(began.elapsed().as_secs() > 100);
}

#[tokio::test(start_paused = true)]
async fn a_break_in_the_middle_fails_what_may_have_arrived_and_gives_back_the_rest() {
    let (channel, mut courier) = channel(1000).await;
    let play = async {
        let (kind, number, _) = courier.frame().await.unwrap();
        assert_eq!((kind, number), (b'C', 1));
        courier.write.write_all(&[0, 0, 0, 9, b'J', 0]).await.unwrap();
        drop(courier);
    };
    let (one, two, ()) = tokio::join!(call(&channel), call_of(&channel, 100_000), play);
    assert!(matches!(one, Err(Failed::Unknown(_))), "{one:?}");
    assert!(matches!(two, Err(Failed::NotLookedAt(_))), "{two:?}");
}

#[tokio::test(start_paused = true)]
async fn a_frame_that_is_too_long_ends_it() {
    let (channel, mut courier) = channel(1 << 16).await;
    let play = async {
        courier.frame().await.unwrap();
        courier.write.write_all(&[0, 0x10, 0, 1, b'J']).await.unwrap();
        assert_eq!(courier.frame().await, None);
    };
    let (called, ()) = tokio::join!(call(&channel), play);
    assert!(matches!(called, Err(Failed::Unknown(_))));
}

#[tokio::test(start_paused = true)]
async fn the_last_handle_closes_everything() {
    let (channel, courier) = channel(1 << 16).await;
    drop(channel);
    assert_eq!(read_to_end(courier.read).await, b"");
    tokio::task::yield_now().await;
    assert_eq!(courier.dropped.load(std::sync::atomic::Ordering::SeqCst), 1);
}

#[test]
fn a_runtime_that_ends_takes_its_streams_along() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let first = runtime();
    let (channel, courier) = first.block_on(channel(1 << 16));
    drop(first);
    assert!(courier.is_dropped());
    let called = runtime().block_on(call(&channel));
    assert!(matches!(called, Err(Failed::NotLookedAt(_))), "{called:?}");
}
