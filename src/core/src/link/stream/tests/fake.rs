//! The other end: a courier whose words are the test's, and a transport that leads to it.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use async_trait::async_trait;
use bytes::{Bytes, BytesMut};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::error::{Error, ErrorKind, Result, Step};
use crate::id::Nonce;
use crate::link::places::Places;
use crate::link::stream::channel::Channel;
use crate::target::Target;
use crate::transport::{Attached, Capabilities, Command, Duplex, Ended, Output, Running, Transport};
use crate::wire::frame;

pub(super) const NONCE: &str = "0123456789abcdef0123456789abcdef";

/// What stands there knows its hosts' lines by this.
pub(super) const WORD: &str = "fedcba9876543210";

/// A courier as the test plays it.
pub(super) struct Courier {
    pub(super) read: ReadHalf<DuplexStream>,
    pub(super) write: WriteHalf<DuplexStream>,
    buffer: BytesMut,
    /// Its host has dropped the command.
    pub(super) dropped: Arc<AtomicUsize>,
}

/// What a courier has read as its greeting.
pub(super) struct Asked {
    pub(super) python: String,
    pub(super) header: Value,
    pub(super) bundle: usize,
}

#[derive(Debug)]
struct Guard(Arc<AtomicUsize>);

impl Running for Guard {
    fn stderr(&self) -> Bytes {
        Bytes::from_static(b"first words\nlast words\n")
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// A courier, and the duplex that leads to it. The pipes between them take `room` bytes.
pub(super) fn courier(room: usize) -> (Courier, Duplex) {
    let (ours, theirs) = tokio::io::duplex(room);
    let (read, write) = tokio::io::split(theirs);
    let (stdout, stdin) = tokio::io::split(ours);
    let dropped = Arc::new(AtomicUsize::new(0));
    let duplex = Duplex::new(stdin, stdout, Guard(Arc::clone(&dropped)));
    (Courier { read, write, buffer: BytesMut::new(), dropped }, duplex)
}

/// A channel to a courier that has greeted already.
pub(super) async fn channel(room: usize) -> (Channel, Courier) {
    let (mut courier, duplex) = courier(room);
    let until = Instant::now() + Duration::from_secs(10);
    let place = Places::new(Capabilities::new()).for_stream().unwrap();
    let channel = Channel::new(duplex, Nonce::fixed(NONCE), Bytes::new(), 1, until, place);
    courier.say_hello(NONCE).await;
    (channel, courier)
}

impl Courier {
    /// Reads the line of a host that comes to what stands there, and says that it is spoken to: its words behind the mark.
    pub(super) async fn visited(&mut self) -> Vec<String> {
        let line = self.line().await;
        assert_eq!(line[0], 0xFE);
        let words: Vec<_> = str::from_utf8(&line[1..]).unwrap().split(' ').map(str::to_owned).collect();
        assert_eq!(words[0], WORD);
        let begin = [b"left of another\xFE", WORD.as_bytes(), b" ", words[1].as_bytes(), b"\n"].concat();
        self.write.write_all(&begin).await.unwrap();
        words
    }

    async fn line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        loop {
            match self.byte().await {
                b'\n' => return line,
                byte => line.push(byte),
            }
        }
    }

    /// Reads what a host says first.
    pub(super) async fn asked(&mut self) -> (String, Asked) {
        let mut lines = Vec::new();
        while lines.len() < 4 {
            lines.push(String::from_utf8(self.line().await).unwrap());
        }
        let header: Value = serde_json::from_str(&lines[3]).unwrap();
        let bundle = usize::try_from(header["bundle"].as_u64().unwrap()).unwrap();
        while self.buffer.len() < bundle {
            assert!(self.read.read_buf(&mut self.buffer).await.unwrap() > 0);
        }
        let _ = self.buffer.split_to(bundle);
        (lines[0].clone(), Asked { python: lines[1].clone(), header, bundle })
    }

    async fn byte(&mut self) -> u8 {
        while self.buffer.is_empty() {
            assert!(self.read.read_buf(&mut self.buffer).await.unwrap() > 0, "the host has gone");
        }
        self.buffer.split_to(1)[0]
    }

    pub(super) async fn say(&mut self, nonce: &str, answer: &Value) {
        let answer = answer.to_string();
        let frame = format!("{nonce} json {}\n{answer}\n", answer.len());
        self.write.write_all(frame.as_bytes()).await.unwrap();
    }

    pub(super) async fn say_hello(&mut self, nonce: &str) {
        let courier = json!({"pid": 1, "python": "/p", "wake": "poll", "window": 1 << 20});
        self.say(nonce, &json!({"ok": true, "courier": courier})).await;
    }

    /// The next frame: kind, number of the call, and the rest. `None` at the end.
    pub(super) async fn frame(&mut self) -> Option<(u8, u32, Vec<u8>)> {
        loop {
            if let Some(frame) = frame::decode(&mut self.buffer).unwrap() {
                let (number, rest) = frame.payload.split_first_chunk::<4>().unwrap();
                return Some((frame.kind, u32::from_be_bytes(*number), rest.to_vec()));
            }
            if self.read.read_buf(&mut self.buffer).await.ok()? == 0 {
                return None;
            }
        }
    }

    /// The next frame if it is there by now.
    pub(super) async fn frame_now(&mut self) -> Option<(u8, u32, Vec<u8>)> {
        tokio::time::timeout(Duration::from_millis(1), self.frame()).await.ok().flatten()
    }

    /// The next call: its number and its header.
    pub(super) async fn call(&mut self) -> (u32, Value) {
        let mut text = Vec::new();
        loop {
            match self.frame().await.expect("a call") {
                (b'C', number, last) => {
                    text.extend(last);
                    return (number, serde_json::from_slice(&text).unwrap());
                }
                (b'c', _, piece) => text.extend(piece),
                (b'P', _, _) => self.send(b'p', 0, b"").await,
                (kind, ..) => panic!("{kind} is no call"),
            }
        }
    }

    pub(super) async fn send(&mut self, kind: u8, number: u32, payload: &[u8]) {
        self.try_send(kind, number, payload).await.unwrap();
    }

    /// The same where the host may have gone by now.
    pub(super) async fn try_send(&mut self, kind: u8, number: u32, payload: &[u8]) -> std::io::Result<()> {
        let mut frame = frame::header(kind, payload.len() + 4).unwrap().to_vec();
        frame.extend(number.to_be_bytes());
        frame.extend(payload);
        self.write.write_all(&frame).await
    }

    /// Lets a host in and answers its first call.
    pub(super) async fn answer_one(&mut self, nonce: &str) {
        self.say_hello(nonce).await;
        let (number, _) = self.call().await;
        self.answer(number).await;
    }

    pub(super) async fn answer(&mut self, number: u32) {
        self.send(b'J', number, json!({"ok": true, "call": number}).to_string().as_bytes()).await;
    }

    pub(super) fn is_dropped(&self) -> bool {
        self.dropped.load(Ordering::SeqCst) > 0
    }
}

/// A transport to couriers that the test plays. It opens as often as the test has put something there; its commands are answered with `{"ok": true, "exec": n}`.
#[derive(Debug)]
pub(super) struct FakeTransport {
    target: Target,
    opened: mpsc::UnboundedSender<CourierBox>,
    /// What becomes of the next attempts to open; all others work.
    pub(super) attempts: Mutex<VecDeque<Result<()>>>,
    pub(super) opens: AtomicUsize,
    /// Something stands there, and is gone to so often.
    pub(super) stands: AtomicBool,
    pub(super) visits: AtomicUsize,
    pub(super) execs: AtomicUsize,
}

/// A courier on its way to the test.
pub(super) struct CourierBox(pub(super) Courier);

impl std::fmt::Debug for CourierBox {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("CourierBox")
    }
}

impl FakeTransport {
    pub(super) fn new() -> (Arc<Self>, mpsc::UnboundedReceiver<CourierBox>) {
        let (opened, couriers) = mpsc::unbounded_channel();
        let transport = FakeTransport {
            target: "fake:".parse().unwrap(),
            opened,
            attempts: Mutex::default(),
            opens: AtomicUsize::new(0),
            stands: AtomicBool::new(false),
            visits: AtomicUsize::new(0),
            execs: AtomicUsize::new(0),
        };
        (Arc::new(transport), couriers)
    }

    pub(super) fn refuse(&self) {
        let e = Error::new(ErrorKind::Transport, "refused").at(Step::Connect);
        self.attempts.lock().unwrap().push_back(Err(e));
    }

    pub(super) fn counts(&self) -> (usize, usize) {
        (self.opens.load(Ordering::SeqCst), self.execs.load(Ordering::SeqCst))
    }
}

#[async_trait]
impl Transport for FakeTransport {
    fn target(&self) -> &Target {
        &self.target
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities::new().opens(true).attaches(self.stands.load(Ordering::SeqCst))
    }

    async fn exec(&self, _: &Command, stdin: Bytes, _: Instant) -> Result<Output> {
        let n = self.execs.fetch_add(1, Ordering::SeqCst) + 1;
        let nonce = String::from_utf8_lossy(&stdin[..32]).into_owned();
        let answer = json!({"ok": true, "exec": n}).to_string();
        Ok(Output::new(Ended::Exit(0), format!("{nonce} json {}\n{answer}\n", answer.len()), ""))
    }

    async fn open(&self, _: &Command, _: Instant) -> Result<Duplex> {
        self.opens.fetch_add(1, Ordering::SeqCst);
        let attempt = self.attempts.lock().unwrap().pop_front();
        attempt.unwrap_or(Ok(()))?;
        let (courier, duplex) = courier(1 << 16);
        // Where the test does not listen any more, it ends at once.
        let _ = self.opened.send(CourierBox(courier));
        Ok(duplex)
    }

    async fn attach(&self, _: Instant) -> Result<Attached> {
        self.visits.fetch_add(1, Ordering::SeqCst);
        let attempt = self.attempts.lock().unwrap().pop_front();
        attempt.unwrap_or(Ok(()))?;
        let (courier, duplex) = courier(1 << 16);
        let _ = self.opened.send(CourierBox(courier));
        Ok(Attached::new(duplex, WORD))
    }
}

/// Waits until the other end is closed.
pub(super) async fn read_to_end(mut read: impl AsyncRead + Unpin) -> Vec<u8> {
    let mut rest = Vec::new();
    read.read_to_end(&mut rest).await.unwrap();
    rest
}
