//! Asking the person at the terminal whether a tool may be called.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;

use async_trait::async_trait;
use farcell::{Approver, Decision, ToolCall};
use rustix::fs::OFlags;
use rustix::termios::{QueueSelector, tcflush};
use tokio::io::unix::AsyncFd;

use super::super::show::printable;

/// How much of the arguments is shown.
const SHOWN: usize = 2000;
/// The longest answer that is looked at.
const LONGEST: usize = 64;

/// The terminal of this process, wherever stdin and stdout lead.
#[derive(Debug)]
pub(super) struct Terminal;

#[async_trait]
impl Approver for Terminal {
    async fn ask(&self, call: &ToolCall) -> Decision {
        match ask(call).await {
            Ok(decision) => decision,
            Err(e) => Decision::Deny(format!(
                "{} needs a person's approval, and there is no terminal to ask at ({e})",
                call.name
            )),
        }
    }
}

async fn ask(call: &ToolCall) -> io::Result<Decision> {
    // Opened anew, so that not to block concerns nobody else; and read only while something is there, so that whoever gives us up takes no key with him.
    let terminal = OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags((OFlags::NONBLOCK | OFlags::NOCTTY).bits() as i32)
        .open("/dev/tty")?;
    // What was typed before the question is no answer to it.
    tcflush(&terminal, QueueSelector::IFlush)?;
    #[allow(deprecated, reason = "a file owns its descriptor, which is all that is asked for")]
    let terminal = AsyncFd::new(terminal)?;
    let question = format!(
        "\nThe cell wants to call {}({}).\n[y]es, [n]o, [a]lways: ",
        call.name,
        printable(call.json(), SHOWN)
    );
    loop {
        say(&terminal, &question).await?;
        let answer = hear(&terminal).await?;
        match answer.trim().to_ascii_lowercase().as_str() {
            "y" | "yes" => return Ok(Decision::Approve),
            "a" | "always" => return Ok(Decision::Always),
            "n" | "no" => return Ok(Decision::Deny("the person at the terminal said no".to_owned())),
            _ => {}
        }
    }
}

async fn say(terminal: &AsyncFd<File>, text: &str) -> io::Result<()> {
    let mut rest = text.as_bytes();
    while !rest.is_empty() {
        let written = terminal.writable().await?.try_io(|file| file.get_ref().write(rest));
        if let Ok(written) = written {
            rest = &rest[written?..];
        }
    }
    Ok(())
}

/// One line.
async fn hear(terminal: &AsyncFd<File>) -> io::Result<String> {
    let mut line = Vec::new();
    let mut piece = [0; 256];
    loop {
        let read = terminal.readable().await?.try_io(|file| file.get_ref().read(&mut piece));
        let Ok(read) = read else { continue };
        let read = read?;
        if read == 0 {
            return Err(io::Error::other("it was closed"));
        }
        line.extend_from_slice(&piece[..read]);
        if let Some(end) = line.iter().position(|b| *b == b'\n') {
            line.truncate(end);
            return Ok(String::from_utf8_lossy(&line).into_owned());
        }
        line.truncate(LONGEST);
    }
}
