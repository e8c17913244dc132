//! Streams that tell when they have been read to their end.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, ReadBuf};
use tokio::sync::oneshot;

/// A stream whose end is told, or that nobody reads it any more.
pub(super) struct Watched<R> {
    stream: R,
    /// Dropped at the end.
    open: Option<oneshot::Sender<()>>,
}

/// Becomes ready at the end of a [`Watched`] stream.
pub(super) struct Over(oneshot::Receiver<()>);

pub(super) fn watch<R>(stream: R) -> (Watched<R>, Over) {
    let (open, over) = oneshot::channel();
    (Watched { stream, open: Some(open) }, Over(over))
}

impl Over {
    pub(super) async fn wait(self) {
        // Nothing is ever sent: the other end goes.
        let _ = self.0.await;
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for Watched<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = ready!(Pin::new(&mut self.stream).poll_read(cx, buf));
        if read.is_err() || buf.filled().len() == before && buf.remaining() > 0 {
            self.open = None;
        }
        Poll::Ready(read)
    }
}
