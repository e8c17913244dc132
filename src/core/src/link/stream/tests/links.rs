//! The link: which stream a call takes, and when it goes by a command instead.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::Instant;

use super::fake::{Courier, CourierBox, FakeTransport};
use crate::error::{ErrorKind, Result, Step};
use crate::id::{CellId, KernelId};
use crate::link::{Call, Link as _, StreamLink};
use crate::wire::message::{Action, Limits, Operation, Request, SpawnSpec, Watch};

pub(super) fn link() -> (Arc<StreamLink>, Arc<FakeTransport>, tokio::sync::mpsc::UnboundedReceiver<CourierBox>)
{
    let (transport, couriers) = FakeTransport::new();
    let link = StreamLink::new(Arc::clone(&transport) as _);
    link.is_new.store(false, Ordering::Relaxed);
    (Arc::new(link), transport, couriers)
}

pub(super) async fn call(link: &StreamLink, operation: &Operation, python: Option<&str>) -> Result<Value> {
    let deadline = Instant::now() + Duration::from_secs(60);
    let call = Call { operation, base: Some("/b"), dir: None, python, deadline };
    link.call(call, &mut |_| ()).await?.read(link.target())
}

pub(super) async fn list(link: &StreamLink) -> Result<Value> {
    call(link, &Operation::List {}, None).await
}

pub(super) fn run() -> Operation {
    let cell = Request {
        v: 1,
        id: CellId::random().unwrap(),
        code: "1".into(),
        timeout_ms: None,
        max_output: 1,
        echo: Default::default(),
        cwd: None,
        env: Default::default(),
        reset: false,
        tools: None,
    };
    let wait = Watch { hold_ms: 25_000, offset: 0, stream: true, lull_ms: 30, tell: true, gather: false };
    Operation::Run { dir: "/k".into(), cell, wait, ack: Vec::new(), again: false }
}

pub(super) fn spawn() -> Operation {
    let spec = SpawnSpec {
        id: KernelId::random().unwrap(),
        session: "s".into(),
        owner_hash: "o".into(),
        cwd: None,
        env: Default::default(),
        idle_ms: None,
        grace_ms: 1,
        limits: Limits::default(),
        preload: Vec::new(),
        pool: None,
    };
    Operation::Spawn { key: "key".into(), spec }
}

#[tokio::test(start_paused = true)]
async fn many_first_callers_open_one_stream() {
    let (link, transport, mut couriers) = link();
    let play = async {
        let CourierBox(mut courier) = couriers.recv().await.unwrap();
        let (nonce, asked) = courier.asked().await;
        assert_eq!((asked.header["op"].as_str(), asked.bundle), (Some("courier"), 0));
        courier.say_hello(&nonce).await;
        for _ in 0..3 {
            let (number, header) = courier.call().await;
            assert_eq!((&header["op"], &header["base"]), (&json!("list"), &json!("/b")));
            courier.answer(number).await;
        }
        courier
    };
    let (one, two, three, courier) = tokio::join!(list(&link), list(&link), list(&link), play);
    assert!(one.is_ok() && two.is_ok() && three.is_ok());
    assert_eq!(transport.counts(), (1, 0));
    drop(link);
    tokio::task::yield_now().await;
    assert!(courier.is_dropped());
}

/// Plays the courier of one stream, which answers one call.
async fn answer_one(couriers: &mut tokio::sync::mpsc::UnboundedReceiver<CourierBox>) -> Courier {
    let CourierBox(mut courier) = couriers.recv().await.unwrap();
    let (nonce, _) = courier.asked().await;
    courier.answer_one(&nonce).await;
    courier
}

#[tokio::test(start_paused = true)]
async fn a_call_that_stays_alone_is_a_command_and_a_spawn_never_does() {
    let (transport, mut couriers) = FakeTransport::new();
    let (run, spawn) = (run(), spawn());
    let link = StreamLink::new(Arc::clone(&transport) as _);
    assert_eq!(call(&link, &run, None).await.unwrap()["exec"], 1);
    assert_eq!(transport.counts(), (0, 1));
    let (called, _courier) = tokio::join!(call(&link, &run, None), answer_one(&mut couriers));
    assert_eq!(called.unwrap()["call"], 1);
    let link = StreamLink::new(Arc::clone(&transport) as _);
    let (called, _courier) = tokio::join!(call(&link, &spawn, None), answer_one(&mut couriers));
    assert_eq!(called.unwrap()["call"], 1);
    assert_eq!(transport.counts(), (2, 1));
}

#[tokio::test(start_paused = true)]
async fn a_target_without_the_runner_gets_it_with_the_next_stream() {
    let (link, transport, mut couriers) = link();
    let play = async {
        let CourierBox(mut courier) = couriers.recv().await.unwrap();
        let (nonce, _) = courier.asked().await;
        let error = json!({"code": "need-runner", "message": "m"});
        courier.say(&nonce, &json!({"ok": false, "error": error})).await;
        let CourierBox(mut courier) = couriers.recv().await.unwrap();
        let (nonce, asked) = courier.asked().await;
        assert!(asked.bundle > 10_000);
        courier.answer_one(&nonce).await;
        courier
    };
    let (called, _courier) = tokio::join!(list(&link), play);
    assert_eq!(called.unwrap()["call"], 1);
    assert_eq!(transport.counts(), (2, 0));
}

#[tokio::test(start_paused = true)]
async fn a_refused_stream_is_tried_again_after_pauses_that_grow() {
    let (link, transport, mut couriers) = link();
    for _ in 0..6 {
        transport.refuse();
    }
    let began = Instant::now();
    let mut pauses = Vec::new();
    let mut last = (1, began);
    assert_eq!(list(&link).await.unwrap()["exec"], 1);
    while transport.counts().0 < 6 {
        tokio::time::sleep(Duration::from_millis(10)).await;
        list(&link).await.unwrap();
        if transport.counts().0 > last.0 {
            pauses.push(last.1.elapsed().as_secs_f64());
            last = (transport.counts().0, Instant::now());
        }
    }
    // With half of it as jitter.
    for (pause, about) in pauses.iter().zip([0.5, 1.0, 2.0, 4.0, 8.0]) {
        assert!((about * 0.45..about * 1.6).contains(pause), "{pauses:?}");
    }
    tokio::time::sleep(Duration::from_secs(60)).await;
    let (called, _courier) = tokio::join!(list(&link), answer_one(&mut couriers));
    assert_eq!(called.unwrap()["call"], 1);
}

#[tokio::test(start_paused = true)]
async fn what_may_have_been_carried_out_fails_unless_it_can_be_repeated() {
    for (operation, is_repeated) in [
        (run(), false),
        (spawn(), false),
        (Operation::Probe { dir: "/k".into() }, true),
        (Operation::Remove { dir: "/k".into() }, false),
        (control(Action::Stop), true),
        (control(Action::Interrupt), false),
    ] {
        let (link, transport, mut couriers) = link();
        let play = async {
            let CourierBox(mut courier) = couriers.recv().await.unwrap();
            let (nonce, _) = courier.asked().await;
            courier.say_hello(&nonce).await;
            courier.call().await;
        };
        let (called, ()) = tokio::join!(call(&link, &operation, None), play);
        if is_repeated {
            assert_eq!(called.unwrap()["exec"], 1);
        } else {
            let e = called.unwrap_err();
            assert_eq!((e.kind(), transport.counts().1), (ErrorKind::Transport, 0), "{e}");
            assert_ne!(e.step(), Some(Step::Connect));
        }
    }
}

fn control(action: Action) -> Operation {
    Operation::Control { dir: "/k".into(), action, number: None, id: None, if_idle: false, hold_ms: 1 }
}

#[tokio::test(start_paused = true)]
async fn a_wait_that_has_brought_records_is_not_repeated() {
    let (link, transport, mut couriers) = link();
    let play = async {
        let CourierBox(mut courier) = couriers.recv().await.unwrap();
        let (nonce, _) = courier.asked().await;
        courier.say_hello(&nonce).await;
        let (number, _) = courier.call().await;
        courier.send(b'O', number, b"o\0\0\0\x01x").await;
        // The host has taken it before the end comes.
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    let wait = Watch { hold_ms: 25_000, offset: 0, stream: true, lull_ms: 30, tell: true, gather: false };
    let wait = Operation::Wait { dir: "/k".into(), id: None, number: None, wait, ack: Vec::new() };
    let (called, ()) = tokio::join!(call(&link, &wait, None), play);
    assert_eq!(called.unwrap_err().kind(), ErrorKind::Transport);
    assert_eq!(transport.counts(), (1, 0));
}

#[tokio::test(start_paused = true)]
async fn a_spawn_has_the_python_it_asks_for_and_all_else_takes_any_stream() {
    let (link, transport, mut couriers) = link();
    let serve = tokio::spawn(async move {
        let mut pythons = Vec::new();
        for _ in 0..2 {
            let CourierBox(mut courier) = couriers.recv().await.unwrap();
            let (nonce, asked) = courier.asked().await;
            courier.say_hello(&nonce).await;
            pythons.push(asked.python);
            tokio::spawn(async move {
                while let Some((kind, number, _)) = courier.frame().await {
                    if kind == b'C' {
                        courier.answer(number).await;
                    }
                }
            });
        }
        pythons
    });
    call(&link, &spawn(), None).await.unwrap();
    // A kernel's own calls name the Python that it runs in.
    call(&link, &run(), Some("/usr/bin/python3")).await.unwrap();
    assert_eq!(transport.counts(), (1, 0));
    call(&link, &spawn(), Some("/opt/python")).await.unwrap();
    call(&link, &Operation::Doctor {}, Some("/opt/python")).await.unwrap();
    call(&link, &spawn(), None).await.unwrap();
    assert_eq!(transport.counts(), (2, 0));
    assert_eq!(serve.await.unwrap(), ["", "/opt/python"]);
    // There is an end to it: whoever names many has the others by commands.
    for n in 0..6 {
        let (link, python) = (Arc::clone(&link), format!("/other/{n}"));
        let _ = tokio::time::timeout(Duration::from_secs(1), call(&link, &spawn(), Some(&python))).await;
    }
    assert!(transport.counts().0 <= 4, "{:?}", transport.counts());
}
