//! A command that is kept open, as its user holds it.

use std::fmt;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use tokio::io::{AsyncRead, AsyncWrite};

/// A command that is kept open, with both ends of it that we hold.
///
/// The halves are used by different tasks at the same time, so neither may wait for the other.
#[non_exhaustive]
pub struct Duplex {
    /// The command's stdin. What is written and flushed reaches the command; to shut it down is end of file there.
    pub stdin: Box<dyn AsyncWrite + Send + Unpin>,
    /// The command's stdout, as it comes. It ends when the command has ended or the connection is lost.
    pub stdout: Box<dyn AsyncRead + Send + Unpin>,
    /// The command itself.
    pub running: Box<dyn Running>,
}

impl Duplex {
    /// A command that is kept open.
    pub fn new(
        stdin: impl AsyncWrite + Send + Unpin + 'static,
        stdout: impl AsyncRead + Send + Unpin + 'static,
        running: impl Running + 'static,
    ) -> Self {
        Duplex { stdin: Box::new(stdin), stdout: Box::new(stdout), running: Box::new(running) }
    }
}

impl fmt::Debug for Duplex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Duplex").field("running", &self.running).finish_non_exhaustive()
    }
}

/// A command that runs for as long as this value lives: to drop it ends the command on the far side, within a second or so, whatever has become
/// of its stdin and stdout. It may be dropped anywhere, also outside of a runtime.
pub trait Running: Send + Sync + fmt::Debug {
    /// The end of what the command has said on stderr so far.
    fn stderr(&self) -> Bytes;
}

/// A writer that is dropped when it is shut down. Shutting down a pipe to a child process changes nothing there; closing it does.
#[derive(Debug)]
pub struct ClosesOnShutdown<W> {
    open: Option<W>,
}

impl<W> ClosesOnShutdown<W> {
    /// A writer that is open until it is shut down.
    pub fn new(writer: W) -> Self {
        ClosesOnShutdown { open: Some(writer) }
    }
}

impl<W: AsyncWrite + Unpin> ClosesOnShutdown<W> {
    fn poll<T>(&mut self, poll: impl FnOnce(Pin<&mut W>) -> Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        match &mut self.open {
            Some(writer) => poll(Pin::new(writer)),
            None => Poll::Ready(Err(io::ErrorKind::BrokenPipe.into())),
        }
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for ClosesOnShutdown<W> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.poll(|writer| writer.poll_write(cx, buf))
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.poll(|writer| writer.poll_flush(cx))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Some(writer) = &mut self.open else { return Poll::Ready(Ok(())) };
        let shut = Pin::new(writer).poll_shutdown(cx);
        if shut.is_ready() {
            self.open = None;
        }
        shut
    }
}
