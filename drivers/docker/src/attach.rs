//! The streams of an exec: the engine sends both outputs over one connection, and here they are two again.

use std::pin::Pin;

use bollard::container::LogOutput;
use bollard::errors::Error as Bollard;
use futures_util::{Stream, StreamExt as _};
use tokio::io::{AsyncRead, AsyncWriteExt as _, DuplexStream, duplex};
use tokio::sync::oneshot;

/// How much of each output may wait for its reader; beyond that the command waits.
const HELD: usize = 256 * 1024;

/// What the engine sends.
pub(crate) type Outputs = Pin<Box<dyn Stream<Item = Result<LogOutput, Bollard>> + Send>>;

/// Both outputs, and what is told when there is no more: true if it ended as it should.
pub(crate) struct Apart<R> {
    pub(crate) stdout: R,
    pub(crate) stderr: R,
    pub(crate) over: oneshot::Receiver<bool>,
}

/// Takes the outputs apart.
pub(crate) fn apart(outputs: Outputs) -> Apart<impl AsyncRead + Send + Unpin + 'static> {
    let (stdout, to_stdout) = duplex(HELD);
    let (stderr, to_stderr) = duplex(HELD);
    let (tell, over) = oneshot::channel();
    tokio::spawn(pass(outputs, to_stdout, to_stderr, tell));
    Apart { stdout, stderr, over }
}

async fn pass(
    mut outputs: Outputs,
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
