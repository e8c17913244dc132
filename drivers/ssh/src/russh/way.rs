//! The way to a server: by TCP, by a command, or by a channel of another connection; and how it is cut.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::process::Stdio;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::Sleep;

use super::check::plain;
use super::settings::{Family, Settings};
use crate::failure::{self, Failure};

/// Any stream.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connects by TCP to the first address of a host that answers.
pub(super) async fn tcp(settings: &Settings, limit: Duration) -> Result<TcpStream, Failure> {
    let (host, port) = (settings.hostname.as_str(), settings.port);
    let looked = tokio::time::timeout(limit, tokio::net::lookup_host((host, port))).await;
    let found = looked.map_err(|_| failure::no_answer("the name server", limit))?.map_err(|e| {
        let text = plain(&e);
        let why = text.rsplit_once(": ").map_or(text.as_str(), |(_, why)| why);
        failure::name_is_not_known(format!("Could not resolve hostname {host}: {why}"))
    })?;
    let addresses: Vec<_> = found.filter(|address| is_of(settings.family, address)).collect();
    let share = limit / u32::try_from(addresses.len().max(1)).unwrap_or(1);
    let mut why = "it has no address of this family".to_owned();
    for address in addresses {
        match tokio::time::timeout(share, TcpStream::connect(address)).await {
            Ok(Ok(stream)) => {
                // A command is a small packet there and one back.
                let _ = stream.set_nodelay(true);
                return Ok(stream);
            }
            Ok(Err(e)) => why = plain(&e),
            Err(_) => why = "Connection timed out".to_owned(),
        }
    }
    let failure = Failure::passing(format!("connect to host {host} port {port}: {why}"));
    Err(match failure::network_hint(&failure.message) {
        Some(hint) => failure.hint(hint),
        None => failure,
    })
}

fn is_of(family: Family, address: &SocketAddr) -> bool {
    match family {
        Family::Any => true,
        Family::V4 => address.is_ipv4(),
        Family::V6 => address.is_ipv6(),
    }
}

/// Starts a `ProxyCommand`. It ends with the child.
pub(super) fn command(line: &str) -> Result<(impl Stream + use<>, Child), Failure> {
    let failed = |why: &str| Failure::local(format!("cannot start the ProxyCommand: {why}"));
    let mut child = Command::new("sh")
        .arg("-c")
        .arg(format!("exec {line}"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .spawn()
        .map_err(|e| failed(&e.to_string()))?;
    match (child.stdout.take(), child.stdin.take()) {
        (Some(stdout), Some(stdin)) => Ok((tokio::io::join(stdout, stdin), child)),
        _ => Err(failed("it has no pipes")),
    }
}

/// Cuts a stream, whatever it waits for.
#[derive(Debug)]
pub(super) struct Switch(watch::Sender<bool>);

impl Switch {
    pub(super) fn cut(&self) {
        let _ = self.0.send(true);
    }
}

/// Cuts it unless all went well.
pub(super) struct Unless(Option<Switch>);

impl Unless {
    pub(super) fn well(mut self) -> Option<Switch> {
        self.0.take()
    }
}

impl Drop for Unless {
    fn drop(&mut self) {
        if let Some(switch) = &self.0 {
            switch.cut();
        }
    }
}

/// A stream that can be cut, and that fails where nothing can be written for too long: russh waits for that without a bound, and asks for signs of life only in
/// between.
pub(super) struct Guarded {
    stream: Box<dyn Stream>,
    cut: Pin<Box<dyn Future<Output = ()> + Send>>,
    is_cut: bool,
    patience: Duration,
    waiting: Option<Pin<Box<Sleep>>>,
}

pub(super) fn guarded(stream: Box<dyn Stream>, patience: Duration) -> (Guarded, Unless) {
    let (switch, mut cut) = watch::channel(false);
    let cut = Box::pin(async move {
        if cut.wait_for(|cut| *cut).await.is_err() {
            // Nobody can cut it any more.
            std::future::pending::<()>().await;
        }
    });
    let guarded = Guarded { stream, cut, is_cut: false, patience, waiting: None };
    (guarded, Unless(Some(Switch(switch))))
}

impl Guarded {
    fn check(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        self.is_cut = self.is_cut || self.cut.as_mut().poll(cx).is_ready();
        if self.is_cut { Err(io::ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }

    /// Starts or goes on with the wait for a write that cannot be done.
    fn wait<T>(&mut self, cx: &mut Context<'_>, polled: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if polled.is_ready() {
            self.waiting = None;
            return polled;
        }
        let patience = self.patience;
        let waiting = self.waiting.get_or_insert_with(|| Box::pin(tokio::time::sleep(patience)));
        waiting.as_mut().poll(cx).map(|()| Err(io::ErrorKind::TimedOut.into()))
    }
}

impl AsyncRead for Guarded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        self.check(cx)?;
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Guarded {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.check(cx)?;
        let polled = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.wait(cx, polled)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let polled = Pin::new(&mut self.stream).poll_flush(cx);
        self.wait(cx, polled)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.check(cx)?;
        let polled = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.wait(cx, polled)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_stream_that_takes_nothing_fails_in_time() {
        let (ours, _theirs) = tokio::io::duplex(8);
        let (mut guarded, _unless) = guarded(Box::new(ours), Duration::from_secs(30));
        let refused = guarded.write_all(&[0; 100]).await.unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn a_stream_is_cut_while_it_waits() {
        let (ours, _theirs) = tokio::io::duplex(8);
        let (mut guarded, unless) = guarded(Box::new(ours), Duration::from_secs(30));
        let reading = tokio::spawn(async move { guarded.read_u8().await });
        drop(unless);
        assert_eq!(reading.await.unwrap().unwrap_err().kind(), io::ErrorKind::ConnectionAborted);
    }

    #[tokio::test]
    async fn what_went_well_is_not_cut() {
        let (ours, mut theirs) = tokio::io::duplex(8);
        let (mut guarded, unless) = guarded(Box::new(ours), Duration::from_secs(30));
        drop(unless.well());
        theirs.write_all(b"x").await.unwrap();
        assert_eq!(guarded.read_u8().await.unwrap(), b'x');
    }
}
