//! A TCP proxy that delays, cuts, resets, swallows and refuses, and counts what passes.

mod alarm;
mod connection;
mod shared;

use std::net::TcpListener as StdListener;
use std::sync::Arc;
use std::sync::mpsc as answers;
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::processes::PATIENCE;
use crate::trouble::Trouble;
use shared::{End, Shared};

/// Connections of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Connections {
    /// How many there were in all.
    pub opened: u64,
    /// How many are open now.
    pub open: usize,
}

/// Bytes that came out of a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Transferred {
    /// From clients to the server.
    pub up: u64,
    /// From the server to clients.
    pub down: u64,
}

/// A proxy on a port of 127.0.0.1. It works in a thread of its own, so tests may block; it ends, with its connections, when it is dropped.
#[derive(Debug)]
pub struct Proxy {
    port: u16,
    shared: Arc<Shared>,
    orders: mpsc::UnboundedSender<Order>,
    thread: Option<JoinHandle<()>>,
}

/// What the thread is told. Each is answered when it is done.
#[derive(Debug)]
enum Order {
    Refuse(bool, answers::Sender<Result<(), String>>),
    CutEvery(Option<Duration>, answers::Sender<Result<(), String>>),
}

impl Proxy {
    /// The delay each way of what is called far in tests and benchmarks: a round trip of 50 ms.
    pub const FAR: Duration = Duration::from_millis(25);

    /// A proxy that leads to a port of 127.0.0.1, and does nothing else until it is told.
    pub fn start(upstream: u16) -> Result<Proxy, Trouble> {
        let failed = |e: std::io::Error| Trouble::failed("start a proxy", e);
        let listener = crate::port::listen()?;
        let port = crate::port::of(&listener);
        listener.set_nonblocking(true).map_err(failed)?;
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let shared = Arc::new(Shared::new(upstream));
        let (orders, received) = mpsc::unbounded_channel();
        let work = serve(listener, port, Arc::clone(&shared), received);
        let thread = std::thread::Builder::new().name("proxy".to_owned()).spawn(move || {
            runtime.block_on(work);
        });
        Ok(Proxy { port, shared, orders, thread: Some(thread.map_err(failed)?) })
    }

    /// The port where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Delays every byte that arrives from now on by this much, each way. Bandwidth and order stay as they are.
    pub fn delay(&self, one_way: Duration) {
        self.shared.set_delay(one_way);
    }

    /// Closes all connections on both sides; what is on its way is lost. Returns when they are closed.
    pub fn cut_all(&self) {
        self.shared.end_all_and_wait(End::Close);
    }

    /// Ends all connections on both sides by a reset. Returns when that is done.
    pub fn reset_all(&self) {
        self.shared.end_all_and_wait(End::Reset);
    }

    /// Lets nothing pass any more, as with a cut cable: connections are accepted and bytes are taken, but nothing comes out, ends of
    /// connections included. When that is over, what was taken comes out, as TCP would send it again.
    pub fn black_hole(&self, on: bool) {
        self.shared.set_hole(on);
    }

    /// Refuses new connections, as if nobody listened; those that are open stay.
    pub fn refuse(&self, on: bool) {
        self.order(|answer| Order::Refuse(on, answer));
    }

    /// Closes all connections again and again, with so much time in between, until it is told `None`.
    pub fn cut_every(&self, period: impl Into<Option<Duration>>) {
        let period = period.into();
        self.order(|answer| Order::CutEvery(period, answer));
    }

    /// Lets exactly so many more bytes pass, both ways of all connections together, and closes all connections then, once.
    pub fn cut_after(&self, bytes: u64) {
        self.shared.set_budget(bytes);
    }

    /// How many connections there were and are.
    pub fn connections(&self) -> Connections {
        self.shared.connections()
    }

    /// How many bytes came out on each side.
    pub fn bytes(&self) -> Transferred {
        self.shared.bytes()
    }

    /// How often a client said something after the server had, or before it said anything: an upper bound of the waits for the network that
    /// one connection after the other has had, as long as neither side talks unasked. Compare two readings.
    pub fn round_trips(&self) -> u64 {
        self.shared.round_trips()
    }

    fn order(&self, order: impl FnOnce(answers::Sender<Result<(), String>>) -> Order) {
        let (answer, answered) = answers::channel();
        self.orders.send(order(answer)).expect("the thread lives as long as the proxy");
        answered.recv_timeout(PATIENCE).expect("the proxy obeys").expect("the port is still free");
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The thread ends when nobody can tell it anything.
        self.orders = mpsc::unbounded_channel().0;
        let ended = self.thread.take().expect("it is taken once").join();
        assert!(ended.is_ok() || std::thread::panicking(), "the thread of a proxy panicked");
    }
}

/// Accepts connections and obeys until there is nobody who could say anything.
async fn serve(
    listener: StdListener,
    port: u16,
    shared: Arc<Shared>,
    mut orders: mpsc::UnboundedReceiver<Order>,
) {
    let mut listener = TcpListener::from_std(listener).ok();
    let mut cuts: Option<(Duration, Instant)> = None;
    loop {
        let accepted = async {
            match &listener {
                Some(listener) => listener.accept().await,
                None => std::future::pending().await,
            }
        };
        let due = async {
            match cuts {
                Some((_, due)) => tokio::time::sleep_until(due).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            order = orders.recv() => match order {
                None => return,
                Some(Order::Refuse(true, answer)) => {
                    listener = None;
                    _ = answer.send(Ok(()));
                }
                Some(Order::Refuse(false, answer)) => {
                    if listener.is_none() {
                        listener = TcpListener::bind(("127.0.0.1", port)).await.ok();
                    }
                    _ = answer.send(listener.as_ref().map(|_| ()).ok_or_else(|| format!("port {port} is taken")));
                }
                Some(Order::CutEvery(period, answer)) => {
                    cuts = period.map(|period| (period, Instant::now() + period));
                    _ = answer.send(Ok(()));
                }
            },
            Ok((client, _)) = accepted => {
                let (id, told) = shared.open();
                tokio::spawn(connection::carry(client, Arc::clone(&shared), id, told));
            }
            () = due => {
                shared.end_all(End::Close);
                cuts = cuts.map(|(period, due)| (period, due + period));
            }
        }
    }
}
