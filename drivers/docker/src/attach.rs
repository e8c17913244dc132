//! The streams of an exec: the engine sends both outputs over one connection, and here they are two again.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::task::{Context, Poll};

use bollard::container::LogOutput;
use bollard::errors::Error as Bollard;
use futures_util::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::oneshot;

/// How much of each output may wait for its reader; beyond that the command waits.
const HELD: usize = 256 * 1024;

/// What the engine sends.
pub(crate) type Outputs = Pin<Box<dyn Stream<Item = Result<LogOutput, Bollard>> + Send>>;

/// What an exec reads from.
pub(crate) type Input = Pin<Box<dyn AsyncWrite + Send>>;

/// The three streams of a command, and what is told when there is no more output: true if it ended as it should.
pub(crate) struct Apart<R> {
    pub(crate) stdin: Stdin,
    pub(crate) stdout: R,
    pub(crate) stderr: R,
    pub(crate) over: oneshot::Receiver<bool>,
}

/// Takes the outputs apart. `is_local` says that the engine is reached by a socket of this machine.
pub(crate) fn apart(
    outputs: Outputs,
    input: Input,
    is_local: bool,
) -> Apart<impl AsyncRead + Send + Unpin + 'static> {
    let (stdout, to_stdout) = duplex(HELD);
    let (stderr, to_stderr) = duplex(HELD);
    let (tell, over) = oneshot::channel();
    let (open, ended) = oneshot::channel();
    tokio::spawn(async move {
        pass(outputs, is_local, to_stdout, to_stderr, tell).await;
        drop(open);
    });
    let stdin = Stdin { input: Some(input), ended };
    Apart { stdin, stdout, stderr, over }
}

/// The stdin of an exec. It refuses what comes after the end of the outputs: Docker 20.10 says that end and then keeps the connection until
/// it happens to collect its garbage, minutes later on a quiet machine, and does not read from it any more.
pub(crate) struct Stdin {
    /// `None` once there is nobody who reads.
    input: Option<Input>,
    ended: oneshot::Receiver<()>,
}

impl Stdin {
    /// What may still be written to.
    fn input(
        &mut self,
        context: &mut Context<'_>,
    ) -> io::Result<Pin<&mut (dyn AsyncWrite + Send + 'static)>> {
        if self.input.is_some() && Pin::new(&mut self.ended).poll(context).is_ready() {
            self.input = None;
        }
        self.input.as_mut().map(Pin::as_mut).ok_or_else(|| ErrorKind::BrokenPipe.into())
    }
}

impl AsyncWrite for Stdin {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        match self.input(context) {
            Ok(input) => input.poll_write(context, bytes),
            Err(e) => Poll::Ready(Err(e)),
        }
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.input(context) {
            Ok(input) => input.poll_flush(context),
            Err(e) => Poll::Ready(Err(e)),
        }
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.input(context) {
            Ok(input) => input.poll_shutdown(context),
            // That is what was wanted.
            Err(_) => Poll::Ready(Ok(())),
        }
    }
}

async fn pass(
    mut outputs: Outputs,
    is_local: bool,
    stdout: DuplexStream,
    stderr: DuplexStream,
    mut tell: oneshot::Sender<bool>,
) {
    let (mut stdout, mut stderr) = (Some(stdout), Some(stderr));
    let well = loop {
        let output = tokio::select! {
            output = outputs.next() => output,
            // Nobody wants to know any more.
            () = tell.closed() => return,
        };
        let (to, message) = match output {
            None => break true,
            // A socket of this machine is reset by an engine that closes it while input is left that nobody has read, as Podman does at the end of
            // a command; all output has come before that. On a network some of it may be lost.
            Some(Err(Bollard::IOError { err })) if err.kind() == ErrorKind::ConnectionReset => {
                break is_local;
            }
            Some(Err(_)) => break false,
            Some(Ok(LogOutput::StdErr { message })) => (&mut stderr, message),
            Some(Ok(LogOutput::StdOut { message } | LogOutput::Console { message })) => {
                (&mut stdout, message)
            }
            Some(Ok(LogOutput::StdIn { .. })) => continue,
        };
        let Some(writer) = to else { continue };
        let written = tokio::select! {
            written = writer.write_all(&message) => written,
            () = tell.closed() => return,
        };
        if written.is_err() {
            // Its reader has gone; the other one may still be there.
            *to = None;
        }
    };
    drop((stdout, stderr));
    let _ = tell.send(well);
}
