//! A courier that stands on the target whoever comes and goes: the line by which a host takes it, and what of its words is for this host.
//!
//! Its stream outlives its hosts, so each begins in the middle of what the last one has left. What begins with the mark is no word of any message:
//! [`MARK`] is in no UTF-8 text, all messages but the bytes of files are JSON, and of files the sum is compared.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use bytes::{Buf as _, Bytes, BytesMut};
use memchr::memmem;
use tokio::io::{AsyncRead, ReadBuf};

use crate::id::{self, Nonce};
use crate::runner::Runner;

/// The first byte of the mark.
const MARK: u8 = 0xFE;
/// Any Python does.
const ANY: &str = "-";

/// What a host says first: the line that whoever stands there takes for the end of its last host, and behind it the `greeting` for a courier that has
/// to be started first. One that runs already drops that, and refuses if it is of another runner or, for a call that is particular about it, of another Python.
pub(super) fn entry(
    mark: &str,
    nonce: &Nonce,
    runner: &Runner,
    python: Option<&str>,
    is_picky: bool,
    greeting: &[u8],
) -> Bytes {
    let python = python_word(python);
    let wanted = if is_picky { &python } else { ANY };
    let line = format!("{mark} {} {} {} {wanted}\n", nonce.as_str(), greeting.len(), runner.hash);
    let mut entry = BytesMut::with_capacity(1 + line.len() + greeting.len());
    entry.extend_from_slice(&[MARK]);
    entry.extend_from_slice(line.as_bytes());
    entry.extend_from_slice(greeting);
    entry.freeze()
}

/// Names the choice of a Python.
pub(super) fn python_word(python: Option<&str>) -> String {
    id::digest(&[python.unwrap_or_default()], 8)
}

/// From where a host's calls have numbers: far from those of its predecessors, so that a late answer to one of theirs is none to ours.
pub(super) fn first_number(nonce: &Nonce) -> u32 {
    nonce.as_str().get(..7).and_then(|digits| u32::from_str_radix(digits, 16).ok()).map_or(1, |at| at + 1)
}

/// What a courier says to this host: from the line that answers the host's nonce up to the next line of that kind, which is for another host, or for none.
pub(super) struct ForUs<R> {
    inner: R,
    /// Begins what is ours; empty once that has begun.
    begin: Vec<u8>,
    /// Begins what is not.
    mark: Vec<u8>,
    /// What the last bytes of the stream may have begun.
    tail: Vec<u8>,
    /// What came along with the beginning.
    ahead: BytesMut,
    over: bool,
}

impl<R> ForUs<R> {
    pub(super) fn new(inner: R, mark: &str, nonce: &Nonce) -> Self {
        let mark = [&[MARK], mark.as_bytes(), b" "].concat();
        let begin = [&mark, nonce.as_str().as_bytes(), b"\n"].concat();
        ForUs { inner, begin, mark, tail: Vec::new(), ahead: BytesMut::new(), over: false }
    }

    /// Looks for the beginning; what comes behind it is ours.
    fn seek(&mut self, new: &[u8]) {
        self.tail.extend_from_slice(new);
        match memmem::find(&self.tail, &self.begin) {
            Some(at) => {
                let rest = self.tail.split_off(at + self.begin.len());
                self.begin.clear();
                self.tail.clear();
                let ours = self.ours(&rest);
                self.ahead.extend_from_slice(&rest[..ours]);
            }
            None => {
                let kept = self.tail.len().saturating_sub(self.begin.len() - 1);
                self.tail.drain(..kept);
            }
        }
    }

    /// How much of what has come next is ours.
    fn ours(&mut self, new: &[u8]) -> usize {
        if !self.tail.is_empty() {
            let before = self.tail.len();
            self.tail.extend_from_slice(&new[..new.len().min(self.mark.len() - 1)]);
            if let Some(at) = memmem::find(&self.tail, &self.mark) {
                self.over = true;
                return at.saturating_sub(before);
            }
        }
        if let Some(at) = memmem::find(new, &self.mark) {
            self.over = true;
            return at;
        }
        // What the last bytes may have begun: nothing, mostly.
        let most = self.mark.len() - 1;
        if new.len() >= most {
            self.tail.clear();
            self.tail.extend_from_slice(&new[new.len() - most..]);
        } else if self.tail.is_empty() {
            self.tail.extend_from_slice(new);
        }
        let kept = self.tail.len().saturating_sub(most);
        let begins = memchr::memchr(MARK, &self.tail[kept..]).map_or(self.tail.len(), |at| kept + at);
        self.tail.drain(..begins);
        new.len()
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for ForUs<R> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if !this.ahead.is_empty() {
                let piece = this.ahead.len().min(buf.remaining());
                buf.put_slice(&this.ahead[..piece]);
                this.ahead.advance(piece);
                return Poll::Ready(Ok(()));
            }
            if this.over {
                return Poll::Ready(Ok(()));
            }
            let before = buf.filled().len();
            ready!(Pin::new(&mut this.inner).poll_read(cx, buf))?;
            let new = buf.filled().len() - before;
            if new == 0 {
                return Poll::Ready(Ok(()));
            }
            if this.begin.is_empty() {
                let ours = this.ours(&buf.filled()[before..]);
                buf.set_filled(before + ours);
                return Poll::Ready(Ok(()));
            }
            this.seek(&buf.filled()[before..]);
            buf.set_filled(before);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tokio::io::AsyncReadExt as _;

    use super::*;

    const NONCE: &str = "0123456789abcdef0123456789abcdef";

    /// A reader that gives what is there piece by piece.
    struct Pieces(Vec<Vec<u8>>);

    impl AsyncRead for Pieces {
        fn poll_read(
            mut self: Pin<&mut Self>,
            _: &mut Context<'_>,
            buf: &mut ReadBuf<'_>,
        ) -> Poll<io::Result<()>> {
            if let Some(mut piece) = (!self.0.is_empty()).then(|| self.0.remove(0)) {
                let rest = piece.split_off(piece.len().min(buf.remaining()));
                buf.put_slice(&piece);
                if !rest.is_empty() {
                    self.0.insert(0, rest);
                }
            }
            Poll::Ready(Ok(()))
        }
    }

    fn cut(text: &[u8], sizes: &[usize]) -> Pieces {
        let (mut pieces, mut rest) = (Vec::new(), text);
        for &size in sizes.iter().cycle() {
            if rest.is_empty() {
                break;
            }
            let (piece, more) = rest.split_at(size.min(rest.len()));
            pieces.push(piece.to_vec());
            rest = more;
        }
        Pieces(pieces)
    }

    async fn heard(text: &[u8], sizes: &[usize]) -> Vec<u8> {
        let mut ours = Vec::with_capacity(1024);
        let nonce = Nonce::fixed(NONCE);
        ForUs::new(cut(text, sizes), "abc", &nonce).read_to_end(&mut ours).await.unwrap();
        ours
    }

    #[tokio::test]
    async fn what_others_said_is_not_heard() {
        let text = [b"old \xFEabc 9\nold", b"\xFEabc ".as_slice(), NONCE.as_bytes(), b"\nours\xFEabc 1\nnot"]
            .concat();
        assert_eq!(heard(&text, &[text.len()]).await, b"ours");
        for size in 1..text.len() {
            let heard = heard(&text, &[size]).await;
            let surplus =
                heard.strip_prefix(b"ours").unwrap_or_else(|| panic!("pieces of {size}: {heard:?}"));
            assert!(
                b"\xFEabc ".starts_with(surplus),
                "pieces of {size}: {surplus:?} is more than a mark that has begun"
            );
        }
        assert_eq!(heard(b"nothing for us", &[3]).await, b"");
    }

    #[test]
    fn a_host_says_who_it_is_and_how_long_its_greeting_is() {
        let nonce = Nonce::fixed(NONCE);
        let runner = crate::runner::runner();
        let text = entry("abc", &nonce, runner, Some("/p"), false, b"hello");
        let wanted = format!("abc {NONCE} 5 {} -\nhello", runner.hash);
        assert_eq!(text, [b"\xFE", wanted.as_bytes()].concat());
        let text = entry("abc", &nonce, runner, None, true, b"");
        assert!(text.ends_with(format!(" {}\n", python_word(None)).as_bytes()));
    }

    proptest! {
        /// Everything that is ours comes, up to the mark, wherever the stream is cut; of what only looks like one, nothing is missing.
        #[test]
        fn all_of_it_comes(
            ours in prop::collection::vec(prop_oneof![Just(b'a'), Just(b'b'), Just(b'c'), Just(MARK), Just(b' ')], 0..60),
            sizes in prop::collection::vec(1usize..20, 1..8),
            ended in any::<bool>(),
        ) {
            let mark = b"\xFEabc ";
            let mut text = [mark.as_slice(), NONCE.as_bytes(), b"\n", &ours].concat();
            if ended {
                text.extend_from_slice(b"\xFEabc gone");
            }
            let wanted = match memmem::find(&[&ours, text.get(mark.len() + NONCE.len() + 1 + ours.len()..).unwrap_or_default()].concat(), mark) {
                Some(at) => ours[..at.min(ours.len())].to_vec(),
                None => ours.clone(),
            };
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let heard = runtime.block_on(heard(&text, &sizes));
            // Of a mark that came in pieces the first may have been passed on. No message is valid with it.
            let surplus = &heard[wanted.len().min(heard.len())..];
            prop_assert!(heard.starts_with(&wanted), "{heard:?} for {wanted:?}");
            prop_assert!(mark.starts_with(surplus), "{surplus:?} is more than a mark begun");
        }
    }
}
