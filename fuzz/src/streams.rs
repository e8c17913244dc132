//! Far sides that say something over a stream, over pipes, or on their stderr.

use std::cell::RefCell;

use bytes::{Bytes, BytesMut};
use farcell_core::leash::Leash;
use farcell_core::{CellId, KernelId, fuzzing};
use farcell_local::fuzzing as pipes;
use tokio::runtime::{Builder, Runtime};

use crate::memory::at_most;
use crate::{BASE, NONCE, cut};

thread_local! {
    static RUNTIME: RefCell<Runtime> = RefCell::new(
        Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime"),
    );
}

pub(crate) fn run<T>(work: impl Future<Output = T>) -> T {
    RUNTIME.with_borrow(|runtime| runtime.block_on(work))
}

/// What a call is to have brought: every frame of it up to its answer.
#[derive(Debug, Default, PartialEq)]
struct Brought {
    records: Vec<u8>,
    answer: Vec<u8>,
    is_over: bool,
}

/// A courier that has greeted, or says something else than a greeting. Two calls get what is theirs and nothing else.
pub fn courier(data: &[u8]) {
    let (cut, said) = cut(data);
    let most = BASE + 100 * said.len();
    let raw =
        at_most(most, || run(fuzzing::courier(fuzzing::nonce(NONCE), Bytes::copy_from_slice(said), cut)));
    drop(raw);
    let answer =
        r#"{"ok":true,"courier":{"pid":1,"python":"/p","wake":"poll","window":18446744073709551615}}"#;
    let greeting = format!("{NONCE} json {}\n{answer}\n", answer.len());
    let greeted = [greeting.as_bytes(), said].concat().into();
    let got = at_most(most, || run(fuzzing::courier(fuzzing::nonce(NONCE), greeted, cut)));
    let mut expected = [Brought::default(), Brought::default()];
    for (kind, number, content) in frames(said) {
        let Some(call) = expected.get_mut((number as usize).wrapping_sub(1)).filter(|call| !call.is_over)
        else {
            continue;
        };
        match kind {
            b'O' => call.records.extend_from_slice(content),
            b'j' | b'J' => call.answer.extend_from_slice(content),
            _ => {}
        }
        call.is_over = kind == b'J';
    }
    for ((records, answer), expected) in got.into_iter().zip(expected) {
        assert_eq!(records, expected.records);
        assert_eq!(answer.is_some(), expected.is_over);
        if let Some(answer) = answer {
            assert_eq!(answer, expected.answer);
        }
    }
}

/// Frames as the protocol has them, up to the first that is none: read another way than by the engine.
fn frames(mut said: &[u8]) -> Vec<(u8, u32, &[u8])> {
    let mut frames = Vec::new();
    while let Some((head, rest)) = said.split_first_chunk::<5>() {
        let len = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
        if !(4..=1 << 20).contains(&len) || rest.len() < len {
            break;
        }
        let (payload, rest) = rest.split_at(len);
        if let Some((number, content)) = payload.split_first_chunk::<4>() {
            frames.push((head[4], u32::from_be_bytes(*number), content));
        }
        said = rest;
    }
    frames
}

/// The ids of the two cells that somebody listens to.
pub const CELLS: [&str; 2] = ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "bbbbbbbbbbbbbbbbbbbbbbbbbbbbbbbb"];
/// The id of their kernel.
pub const KERNEL: &str = "k-0123456789abcdef";

/// A stdio kernel, before its greeting and after it. Nothing is remembered but for cells that somebody listens to, none of which has two replies.
pub fn stdio(data: &[u8]) {
    let (cut, said) = cut(data);
    let bytes = Bytes::copy_from_slice(said);
    let most = BASE + 100 * said.len();
    let kernel = KernelId::parse(KERNEL).expect("an id");
    let nonce = fuzzing::nonce(NONCE);
    let greeted = at_most(most, || run(pipes::greet(&nonce, &kernel, bytes.clone(), cut)));
    if let Ok((_, rest)) = greeted {
        assert!(said.ends_with(&rest));
    }
    let ids = CELLS.map(|id| CellId::parse(id).expect("an id"));
    let (told, numbers) = at_most(most, || run(pipes::listen(&ids, bytes.clone(), cut)));
    assert!(numbers <= ids.len());
    assert_eq!((told, numbers), run(pipes::listen(&ids, bytes, said.len().max(1))));
    let (told, _) = run(pipes::listen(&ids, Bytes::copy_from_slice(said), cut));
    for told in told {
        assert!(told.replies <= 1 && told.output.len() <= said.len());
    }
}

/// The stderr of a leashed command: the process id is found however it is cut, and all else is handed on.
pub fn leash(data: &[u8]) {
    let (cut, said) = cut(data);
    let taken = |cut: usize| {
        let (mut leash, mut own) = (Leash::new(), BytesMut::new());
        for piece in said.chunks(cut) {
            own.extend_from_slice(&leash.take(Bytes::copy_from_slice(piece)));
        }
        own.extend_from_slice(&leash.finish());
        (leash.process(), own)
    };
    let (process, own) = at_most(BASE + 8 * said.len(), || taken(cut));
    assert!(process != Some(0) && process != Some(1));
    assert!(own.len() <= said.len() && (process.is_some() || own == said));
    if said.len() <= 64 * 1024 {
        assert_eq!((process, own), taken(said.len().max(1)));
    }
}
