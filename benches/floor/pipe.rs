//! The floor: a Python child that does nothing but read code from a pipe, execute it, and say so.

use std::io::{BufReader, Read as _, Write as _};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::Result;

/// One read and one write for each piece of code: both streams are buffered.
const CHILD: &str = "
import sys
read, write, flush = sys.stdin.buffer.read, sys.stdout.buffer.write, sys.stdout.buffer.flush
names = {}
head = read(4)
while head:
    exec(read(int.from_bytes(head, 'big')), names)
    write(b'\\0\\0\\0\\2ok')
    flush()
    head = read(4)
";
const REPLY: &[u8] = b"\0\0\0\x02ok";

/// With plain blocking calls.
#[derive(Debug)]
pub(crate) struct BlockingPipe {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl BlockingPipe {
    pub(crate) fn start(python: &str) -> Result<Self> {
        let mut child =
            Command::new(python).args(["-c", CHILD]).stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (stdin, stdout) = stdin.zip(stdout).ok_or("the child has no pipes")?;
        Ok(BlockingPipe { child, stdin, stdout: BufReader::new(stdout) })
    }

    /// Has the child execute some code.
    pub(crate) fn round_trip(&mut self, code: &str) -> Result<()> {
        self.stdin.write_all(&frame(code)?)?;
        let mut reply = [0; REPLY.len()];
        self.stdout.read_exact(&mut reply)?;
        check(&reply)
    }
}

impl Drop for BlockingPipe {
    fn drop(&mut self) {
        // It may have ended by itself, which is as good.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// With tokio, as farcell does it.
#[derive(Debug)]
pub(crate) struct AsyncPipe {
    /// Killed when it is dropped.
    _child: tokio::process::Child,
    stdin: tokio::process::ChildStdin,
    stdout: tokio::io::BufReader<tokio::process::ChildStdout>,
}

impl AsyncPipe {
    /// Only within a runtime.
    pub(crate) fn start(python: &str) -> Result<Self> {
        let mut command = tokio::process::Command::new(python);
        command.args(["-c", CHILD]).stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true);
        let mut child = command.spawn()?;
        let (stdin, stdout) = (child.stdin.take(), child.stdout.take());
        let (stdin, stdout) = stdin.zip(stdout).ok_or("the child has no pipes")?;
        Ok(AsyncPipe { _child: child, stdin, stdout: tokio::io::BufReader::new(stdout) })
    }

    /// Has the child execute some code.
    pub(crate) async fn round_trip(&mut self, code: &str) -> Result<()> {
        self.stdin.write_all(&frame(code)?).await?;
        let mut reply = [0; REPLY.len()];
        self.stdout.read_exact(&mut reply).await?;
        check(&reply)
    }
}

fn frame(code: &str) -> Result<Vec<u8>> {
    let mut frame = u32::try_from(code.len())?.to_be_bytes().to_vec();
    frame.extend_from_slice(code.as_bytes());
    Ok(frame)
}

fn check(reply: &[u8]) -> Result<()> {
    if reply == REPLY { Ok(()) } else { Err("the child of the bare pipe answered something else".into()) }
}
