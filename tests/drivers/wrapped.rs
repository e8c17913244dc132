//! The local transport with things that happen to it: refused streams, streams that are cut, few channels; and what went over it, counted.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use farcell::bytes::Bytes;
use farcell::local::LocalConnector;
use farcell::{
    Capabilities, Command, Connection, Connector, Drivers, Duplex, Error, ErrorKind, FileCellDriver, Instant,
    LinkChoice, Output, Result, Step, Target, Transport,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

/// What happens, as the test has it.
#[derive(Debug, Default)]
pub(crate) struct World {
    /// What the transport says that it can do, if not what the real one says.
    pub(crate) capabilities: Mutex<Option<Capabilities>>,
    /// Cells may go past the transport where they can.
    pub(crate) is_here: AtomicBool,
    /// Streams are refused.
    pub(crate) refuses: AtomicBool,
    /// Nothing gets through: streams are refused, and commands fail before they begin.
    pub(crate) down: AtomicBool,
    /// Commands alone fail before they begin.
    pub(crate) execs_fail: AtomicBool,
    /// Commands alone run to their end, and their answers never come.
    pub(crate) loses_answers: AtomicBool,
    /// A command that runs is cut off as soon as there is something in this file.
    pub(crate) cut_once_written: Mutex<Option<PathBuf>>,
    /// How many bytes have passed, both ways and both kinds of links together.
    pub(crate) passed: AtomicU64,
    /// Streams are opened to this target instead.
    pub(crate) opens_to: Mutex<Option<Target>>,
    /// How many bytes the next streams pass before they are cut, one number each, both ways together; none for no limit.
    pub(crate) fuses: Mutex<Vec<i64>>,
    /// How often a stream was asked for, how many were opened, and how many commands were run.
    pub(crate) asked: AtomicUsize,
    pub(crate) opened: AtomicUsize,
    pub(crate) execs: AtomicUsize,
    /// How many commands run now, open ones included, and how many did at the most.
    pub(crate) running: AtomicUsize,
    pub(crate) most: AtomicUsize,
    cuts: Mutex<Vec<Arc<Cut>>>,
}

impl World {
    /// Drivers for `local:` and `exec:` in this world.
    pub(crate) fn drivers(self: &Arc<Self>, links: LinkChoice) -> Drivers {
        let connector = WorldConnector { world: Arc::clone(self), inner: LocalConnector::default() };
        Drivers::new().with(FileCellDriver::new(connector).links(links))
    }

    /// Cuts all streams that are open; says how many were opened since the last time.
    pub(crate) fn cut(&self) -> usize {
        let cuts: Vec<_> = self.cuts.lock().unwrap().drain(..).collect();
        cuts.iter().for_each(|cut| cut.cut());
        cuts.len()
    }

    pub(crate) fn counts(&self) -> Counts {
        Counts {
            asked: self.asked.load(SeqCst),
            opened: self.opened.load(SeqCst),
            execs: self.execs.load(SeqCst),
        }
    }
}

/// What went over a transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    pub(crate) asked: usize,
    pub(crate) opened: usize,
    pub(crate) execs: usize,
}

#[derive(Debug)]
struct WorldConnector {
    world: Arc<World>,
    inner: LocalConnector,
}

#[async_trait::async_trait]
impl Connector for WorldConnector {
    fn schemes(&self) -> &'static [&'static str] {
        self.inner.schemes()
    }

    fn check(&self, target: &Target) -> Result<()> {
        self.inner.check(target)
    }

    async fn connect(&self, target: &Target) -> Result<Connection> {
        let mut connection = self.inner.connect(target).await?;
        let transport = WorldTransport { world: Arc::clone(&self.world), inner: connection.transport };
        connection.transport = Arc::new(transport);
        Ok(connection)
    }
}

#[derive(Debug)]
struct WorldTransport {
    world: Arc<World>,
    inner: Arc<dyn Transport>,
}

/// A command that runs.
#[derive(Debug)]
struct Counted(Arc<World>);

impl Counted {
    fn new(world: &Arc<World>) -> Self {
        let now = world.running.fetch_add(1, SeqCst) + 1;
        world.most.fetch_max(now, SeqCst);
        Counted(Arc::clone(world))
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.running.fetch_sub(1, SeqCst);
    }
}

#[async_trait::async_trait]
impl Transport for WorldTransport {
    fn target(&self) -> &Target {
        self.inner.target()
    }

    fn capabilities(&self) -> Capabilities {
        let stated = *self.world.capabilities.lock().unwrap();
        stated.unwrap_or_else(|| self.inner.capabilities()).is_here(self.world.is_here.load(SeqCst))
    }

    async fn exec(&self, command: &Command, stdin: Bytes, deadline: Instant) -> Result<Output> {
        self.world.execs.fetch_add(1, SeqCst);
        if self.world.down.load(SeqCst) || self.world.execs_fail.load(SeqCst) {
            let e = Error::new(ErrorKind::Transport, "nothing gets through");
            return Err(e.on(self.target()).at(Step::Connect));
        }
        let _counted = Counted::new(&self.world);
        let sent = stdin.len();
        let cut = || Error::new(ErrorKind::Transport, "it was cut").on(self.target());
        let watched = self.world.cut_once_written.lock().unwrap().clone();
        let output = tokio::select! {
            output = self.inner.exec(command, stdin, deadline) => output?,
            () = is_written(watched) => return Err(cut()),
        };
        if self.world.loses_answers.load(SeqCst) {
            return Err(cut());
        }
        self.world.passed.fetch_add((sent + output.stdout.len()) as u64, SeqCst);
        Ok(output)
    }

    async fn open(&self, command: &Command, deadline: Instant) -> Result<Duplex> {
        self.world.asked.fetch_add(1, SeqCst);
        if self.world.refuses.load(SeqCst) || self.world.down.load(SeqCst) {
            let e = Error::new(ErrorKind::Transport, "no streams today");
            return Err(e.on(self.target()).at(Step::Connect));
        }
        let counted = Counted::new(&self.world);
        let elsewhere = self.world.opens_to.lock().unwrap().clone();
        let duplex = match elsewhere {
            Some(target) => {
                let transport = LocalConnector::default().connect(&target).await?.transport;
                transport.open(command, deadline).await?
            }
            None => self.inner.open(command, deadline).await?,
        };
        self.world.opened.fetch_add(1, SeqCst);
        let fuse = self.world.fuses.lock().unwrap().pop();
        let cut = Arc::new(Cut {
            fuse: AtomicI64::new(fuse.unwrap_or(i64::MAX)),
            wakers: Mutex::default(),
            world: Arc::clone(&self.world),
        });
        self.world.cuts.lock().unwrap().push(Arc::clone(&cut));
        let Duplex { stdin, stdout, running, .. } = duplex;
        let (stdin, stdout) =
            (Cuttable { inner: stdin, cut: Arc::clone(&cut) }, Cuttable { inner: stdout, cut });
        Ok(Duplex::new(stdin, stdout, Kept { running, _counted: counted }))
    }
}

/// Waits until there is something in a file; for ever where there is no file to watch.
async fn is_written(path: Option<PathBuf>) {
    let Some(path) = path else { return std::future::pending().await };
    while !std::fs::metadata(&path).is_ok_and(|file| file.len() > 0) {
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[derive(Debug)]
struct Kept {
    running: Box<dyn farcell::Running>,
    _counted: Counted,
}

impl farcell::Running for Kept {
    fn stderr(&self) -> Bytes {
        self.running.stderr()
    }
}

/// How much a stream may still pass.
#[derive(Debug)]
struct Cut {
    fuse: AtomicI64,
    wakers: Mutex<Vec<Waker>>,
    world: Arc<World>,
}

impl Cut {
    fn cut(&self) {
        self.fuse.store(0, SeqCst);
        self.wakers.lock().unwrap().drain(..).for_each(Waker::wake);
    }

    /// How many of so many bytes may pass; 0 from the cut on.
    fn pass(&self, cx: &Context<'_>, wanted: usize) -> usize {
        let left = usize::try_from(self.fuse.load(SeqCst)).unwrap_or(0);
        if left > 0 {
            let mut wakers = self.wakers.lock().unwrap();
            if !wakers.iter().any(|waker| waker.will_wake(cx.waker())) {
                wakers.push(cx.waker().clone());
            }
        }
        wanted.min(left)
    }

    fn passed(&self, bytes: usize) {
        self.world.passed.fetch_add(bytes as u64, SeqCst);
        let left = self.fuse.fetch_sub(i64::try_from(bytes).unwrap(), SeqCst);
        if left <= i64::try_from(bytes).unwrap() {
            self.cut();
        }
    }
}

struct Cuttable<T> {
    inner: T,
    cut: Arc<Cut>,
}

impl<T: AsyncRead + Unpin> AsyncRead for Cuttable<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let most = self.cut.pass(cx, buf.remaining());
        if most == 0 {
            return Poll::Ready(Ok(()));
        }
        let mut piece = vec![0; most];
        let mut piece = ReadBuf::new(&mut piece);
        let read = Pin::new(&mut self.inner).poll_read(cx, &mut piece);
        buf.put_slice(piece.filled());
        self.cut.passed(piece.filled().len());
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for Cuttable<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let most = self.cut.pass(cx, buf.len());
        if most == 0 {
            return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
        }
        let written = Pin::new(&mut self.inner).poll_write(cx, &buf[..most]);
        if let Poll::Ready(Ok(written)) = written {
            self.cut.passed(written);
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}
