//! The streams of one channel, and who moves bytes between them and russh.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use farcell_core::Ended;
use russh::client::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Sig};
use tokio::io::AsyncWrite;
use tokio::sync::watch;

use super::spool::{BOUNDS, Inlet, Outlet, spool};

/// What is known about a channel.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct State {
    /// The server's answer to the request for a command.
    pub(super) agreed: Option<bool>,
    pub(super) ended: Option<Ended>,
    /// Nothing comes any more.
    pub(super) over: bool,
}

/// The streams of a channel. When all of them and the state have been dropped, it is closed.
pub(super) struct Pipes {
    pub(super) stdin: Inward,
    pub(super) stdout: Outlet,
    pub(super) stderr: Outlet,
    pub(super) state: watch::Receiver<State>,
}

/// Takes over a channel, before anything is requested on it.
pub(super) fn pipes(reader: ChannelReadHalf, writer: ChannelWriteHalf<Msg>) -> Pipes {
    let (tell, state) = watch::channel(State::default());
    let (stdout, stdout_end) = spool(BOUNDS, state.clone());
    let (stderr, stderr_end) = spool(BOUNDS, state.clone());
    let stdin = Inward { writer: Box::pin(writer.make_writer()), over: Box::pin(over(state.clone())) };
    tokio::spawn(Pump { reader, writer, stdout, stderr, tell }.run());
    Pipes { stdin, stdout: stdout_end, stderr: stderr_end, state }
}

/// A channel as one stream in both directions.
pub(super) fn stream(channel: Channel<Msg>) -> tokio::io::Join<Outlet, Inward> {
    let (reader, writer) = channel.split();
    let Pipes { stdin, stdout, .. } = pipes(reader, writer);
    tokio::io::join(stdout, stdin)
}

/// How the command of a channel ends.
pub(super) async fn ending(mut state: watch::Receiver<State>) -> Ended {
    let seen = state.wait_for(|state| state.ended.is_some() || state.over).await;
    seen.ok().and_then(|state| state.ended).unwrap_or(Ended::Unknown)
}

async fn over(mut state: watch::Receiver<State>) {
    let _ = state.wait_for(|state| state.over).await;
}

/// The way in. It refuses what would never arrive, where russh waits for ever.
pub(super) struct Inward {
    writer: Pin<Box<dyn AsyncWrite + Send>>,
    over: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl Inward {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        match self.over.as_mut().poll(cx) {
            Poll::Ready(()) => {
                self.over = Box::pin(std::future::ready(()));
                Err(io::ErrorKind::BrokenPipe.into())
            }
            Poll::Pending => Ok(()),
        }
    }
}

impl AsyncWrite for Inward {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        if buf.is_empty() {
            return Poll::Ready(Ok(0));
        }
        self.check(cx)?;
        self.writer.as_mut().poll_write(cx, buf)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.writer.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.check(cx).is_err() {
            return Poll::Ready(Ok(()));
        }
        self.writer.as_mut().poll_shutdown(cx)
    }
}

struct Pump {
    reader: ChannelReadHalf,
    writer: ChannelWriteHalf<Msg>,
    stdout: Inlet,
    stderr: Inlet,
    tell: watch::Sender<State>,
}

impl Pump {
    async fn run(mut self) {
        let mut comes_more = true;
        while comes_more || !self.stdout.is_done() || !self.stderr.is_done() {
            let step = tokio::select! {
                () = self.tell.closed() => {
                    // Nobody wants it. The server keeps its place until the command has ended, which is not our affair here.
                    let _ = self.writer.close().await;
                    return;
                }
                moved = self.stdout.refill() => moved,
                moved = self.stderr.refill() => moved,
                message = self.reader.wait(), if comes_more => match message {
                    Some(ChannelMsg::Close) => {
                        comes_more = false;
                        self.finish(Ok(()));
                        Ok(())
                    }
                    Some(message) => self.hear(message).await,
                    None => {
                        // The connection is lost, and what was still under way with it.
                        comes_more = false;
                        self.finish(Err(io::ErrorKind::ConnectionAborted));
                        Ok(())
                    }
                },
            };
            if let Err(e) = step {
                tracing::warn!(error = %e, "the output of a command is cut off: nobody reads it");
                self.stdout.give_up(e.kind());
                self.stderr.give_up(e.kind());
                let _ = self.writer.close().await;
                break;
            }
            if !comes_more {
                self.tell.send_modify(|state| state.over = true);
            }
        }
        self.tell.send_modify(|state| state.over = true);
    }

    fn finish(&mut self, end: Result<(), io::ErrorKind>) {
        self.stdout.finish(end);
        self.stderr.finish(end);
    }

    async fn hear(&mut self, message: ChannelMsg) -> io::Result<()> {
        match message {
            ChannelMsg::Data { data } => return self.stdout.push(data).await,
            // The only other kind that there is.
            ChannelMsg::ExtendedData { data, ext: 1 } => return self.stderr.push(data).await,
            ChannelMsg::Eof => self.finish(Ok(())),
            ChannelMsg::Success => self.tell.send_modify(|state| state.agreed = Some(true)),
            ChannelMsg::Failure => self.tell.send_modify(|state| state.agreed = Some(false)),
            ChannelMsg::ExitStatus { exit_status } => {
                let ended = i32::try_from(exit_status).map_or(Ended::Unknown, Ended::Exit);
                self.tell.send_modify(|state| state.ended = Some(ended));
            }
            ChannelMsg::ExitSignal { signal_name, .. } => {
                let ended = number(&signal_name).map_or(Ended::Unknown, Ended::Signal);
                self.tell.send_modify(|state| state.ended = Some(ended));
            }
            _ => {}
        }
        Ok(())
    }
}

/// The usual number of a signal. A server gives the names of few of them, and of others something that it made up.
fn number(signal: &Sig) -> Option<i32> {
    Some(match signal {
        Sig::HUP => 1,
        Sig::INT => 2,
        Sig::QUIT => 3,
        Sig::ILL => 4,
        Sig::ABRT => 6,
        Sig::FPE => 8,
        Sig::KILL => 9,
        Sig::USR1 => 10,
        Sig::SEGV => 11,
        Sig::PIPE => 13,
        Sig::ALRM => 14,
        Sig::TERM => 15,
        Sig::Custom(name) => match name.as_str() {
            "TRAP" => 5,
            "BUS" => 7,
            "USR2" => 12,
            "XCPU" => 24,
            "XFSZ" => 25,
            "SYS" => 31,
            _ => return None,
        },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_numbers() {
        for (signal, expected) in [
            (Sig::KILL, Some(9)),
            (Sig::SEGV, Some(11)),
            (Sig::Custom("USR2".to_owned()), Some(12)),
            (Sig::Custom("SIG@openssh.com".to_owned()), None),
        ] {
            assert_eq!(number(&signal), expected);
        }
    }
}
