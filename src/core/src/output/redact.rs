//! Secrets out of text that comes in pieces. What may be the beginning of a secret is held back until that is decided.
//!
//! [`Redactor`] is the part that holds back; a [`Finder`] knows what secrets look like. A text gives the same however it is cut into pieces:
//! a finder decides by what stands before and behind, and says so where that is not there yet.

use std::ops::Range;

/// Whether a character can belong to the rest of a secret.
pub(super) type Chars = fn(u8) -> bool;

/// How long the rest of a secret in several lines may be.
pub(super) const LONGEST_BLOCK: usize = 16 * 1024;
/// What a block ends with, and how long its last line may be.
const BLOCK_END: &str = "-----END";
const LAST_LINE: usize = 64;
/// Of how many characters a beginning is taken for a secret where the rest was cut off.
const FRAGMENT: usize = 4;

/// What a place in a text turns out to be.
#[derive(Debug)]
pub(super) enum Verdict<'a> {
    /// Nothing.
    No,
    /// That depends on what comes behind the text. Up to `safe` it may be shown even if it is a secret.
    Open { safe: usize, label: &'a str },
    /// A secret, and how it goes on behind `secret`.
    Secret { secret: Range<usize>, label: &'a str, rest: Rest },
}

/// How a secret goes on.
#[derive(Debug, Clone, Copy)]
pub(super) enum Rest {
    /// Not at all.
    Nothing,
    /// With all that are such characters.
    Run(Chars),
    /// Up to the line that ends a PEM block.
    Block,
}

/// Knows what secrets look like. Positions are bytes of `text`; what stood before it is in `before`.
pub(super) trait Finder {
    /// The first place from `from` on that may be a secret, and the next place to look at if it is none.
    fn next(&self, text: &str, from: usize) -> Option<(usize, usize)>;

    /// What that place is. Where `is_all`, nothing comes behind the text, and no place is open.
    fn judge(&self, text: &str, at: usize, before: [u8; 2], is_all: bool) -> Verdict<'_>;

    /// Where the end of the text may be the beginning of what `next` finds; its length if it is not. How much of that may be shown, and its label.
    fn open_end(&self, text: &str) -> Option<(usize, usize, &str)>;
}

/// Whether more is to come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    More,
    Over,
    /// Over, and what came next was left out.
    Cut,
}

/// One pass over a text that comes in pieces.
#[derive(Debug, Clone)]
pub(super) struct Redactor<F> {
    finder: F,
    /// What is held back.
    held: String,
    /// How much of it has been shown all the same.
    shown: usize,
    /// How much of it may be shown when nothing else comes for a moment.
    safe: usize,
    /// The two bytes before it.
    before: [u8; 2],
    inside: Option<Inside>,
}

/// The rest of a secret whose label is out.
#[derive(Debug, Clone, Copy)]
enum Inside {
    Run(Chars),
    /// With the bytes that it may still have.
    Block(usize),
}

impl<F: Finder> Redactor<F> {
    pub(super) fn new(finder: F) -> Self {
        Redactor { finder, held: String::new(), shown: 0, safe: 0, before: [b'\n'; 2], inside: None }
    }

    /// True if the text has nothing that would have to be looked at.
    pub(super) fn is_plain(&self, text: &str) -> bool {
        self.finder.next(text, 0).is_none()
    }

    /// Appends what is decided by now.
    pub(super) fn push(&mut self, piece: &str, out: &mut String) {
        if self.held.is_empty() {
            self.take(piece, End::More, out);
        } else {
            let mut held = std::mem::take(&mut self.held);
            held.push_str(piece);
            self.take(&held, End::More, out);
        }
    }

    /// Appends what is left; `cut` where the text goes on, but was left out.
    pub(super) fn finish(&mut self, cut: bool, out: &mut String) {
        let held = std::mem::take(&mut self.held);
        self.take(&held, if cut { End::Cut } else { End::Over }, out);
        self.inside = None;
        self.before = [b'\n'; 2];
    }

    /// Appends what is held back and is no secret yet, whatever comes behind it: a prompt is seen, and the password behind it is not.
    pub(super) fn let_go(&mut self, out: &mut String) {
        if self.safe > self.shown {
            out.push_str(&self.held[self.shown..self.safe]);
            self.shown = self.safe;
        }
    }

    /// True if something is held back that [`Redactor::let_go`] would show.
    pub(super) fn can_let_go(&self) -> bool {
        self.safe > self.shown
    }

    /// Reads `text`, which begins with what was held back, and keeps what is not decided.
    fn take(&mut self, text: &str, end: End, out: &mut String) {
        let mut done = self.leave(text, 0, end);
        if self.inside.is_some() {
            return self.keep(text, done, done);
        }
        // What may begin here outweighs what is found behind it.
        let open = if end == End::Over { None } else { self.finder.open_end(&text[done..]) };
        let open = open.map(|(at, safe, label)| (done + at, done + safe, label.to_owned()));
        let bound = open.as_ref().map_or(text.len(), |(at, ..)| *at);
        let mut from = done;
        while let Some((at, next)) = self.finder.next(text, from).filter(|(at, _)| *at < bound) {
            match self.finder.judge(text, at, before(text, at, self.before), end == End::Over) {
                Verdict::No => from = next,
                Verdict::Open { safe, label } if end == End::Cut => {
                    if text.len() - safe >= FRAGMENT {
                        let label = label.to_owned();
                        self.show(text, done..safe, out);
                        redacted(&label, out);
                        return self.keep(text, text.len(), text.len());
                    }
                    from = next;
                }
                Verdict::Open { safe, .. } => {
                    self.show(text, done..at, out);
                    return self.keep(text, at, safe);
                }
                Verdict::Secret { secret, label, rest } => {
                    let label = label.to_owned();
                    self.show(text, done..secret.start, out);
                    redacted(&label, out);
                    self.inside = match rest {
                        Rest::Nothing => None,
                        Rest::Run(chars) => Some(Inside::Run(chars)),
                        Rest::Block => Some(Inside::Block(LONGEST_BLOCK)),
                    };
                    done = self.leave(text, secret.end, end);
                    if self.inside.is_some() {
                        return self.keep(text, done, done);
                    }
                    if done > bound {
                        // It reaches into what looked like a beginning: that is looked for anew.
                        let held = text[done..].to_owned();
                        self.skip(text, done);
                        return self.take(&held, end, out);
                    }
                    from = done;
                }
            }
        }
        match open {
            Some((at, _, label)) if end == End::Cut && text.len() - at >= FRAGMENT && !label.is_empty() => {
                self.show(text, done..at, out);
                redacted(&label, out);
                self.keep(text, text.len(), text.len());
            }
            Some((at, safe, _)) if end == End::More => {
                self.show(text, done..at, out);
                self.keep(text, at, safe);
            }
            _ => {
                self.show(text, done..text.len(), out);
                self.keep(text, text.len(), text.len());
            }
        }
    }

    /// Where the secret ends that the text at `from` is in.
    fn leave(&mut self, text: &str, from: usize, end: End) -> usize {
        let rest = &text.as_bytes()[from..];
        match self.inside {
            None => from,
            Some(Inside::Run(chars)) => match rest.iter().position(|b| !chars(*b)) {
                Some(length) => {
                    self.inside = None;
                    whole(text, from + length)
                }
                None => text.len(),
            },
            Some(Inside::Block(room)) => {
                let (length, is_over) = block(&text[from..], room, end != End::More);
                self.inside = if is_over { None } else { Some(Inside::Block(room - length)) };
                from + length
            }
        }
    }

    /// Appends a part of `text`, but for what was shown before.
    fn show(&self, text: &str, part: Range<usize>, out: &mut String) {
        let start = part.start.max(self.shown);
        if start < part.end {
            out.push_str(&text[start..part.end]);
        }
    }

    /// Keeps `text` from `at` on, of which what is before `safe` may be shown.
    fn keep(&mut self, text: &str, at: usize, safe: usize) {
        self.skip(text, at);
        text[at..].clone_into(&mut self.held);
        self.safe = safe.max(at) - at;
    }

    /// Forgets what is before `at`.
    fn skip(&mut self, text: &str, at: usize) {
        self.before = before(text, at, self.before);
        self.shown = self.shown.saturating_sub(at);
    }
}

/// What stands in the place of a secret.
pub(super) fn redacted(label: &str, out: &mut String) {
    out.push_str("[redacted: ");
    out.push_str(label);
    out.push(']');
}

/// The two bytes before a place.
fn before(text: &str, at: usize, earlier: [u8; 2]) -> [u8; 2] {
    match text.as_bytes()[..at] {
        [.., a, b] => [a, b],
        [b] => [earlier[1], b],
        [] => earlier,
    }
}

/// The next place that is no part of a character's inside.
pub(super) fn whole(text: &str, at: usize) -> usize {
    (at..text.len()).find(|at| text.is_char_boundary(*at)).unwrap_or(text.len())
}

/// How much of `text` is inside of a PEM block of at most `room` bytes, and whether it ends there.
pub(super) fn block(text: &str, room: usize, is_all: bool) -> (usize, bool) {
    let bytes = text.as_bytes();
    let reach = bytes.len().min(room);
    let odd = bytes[..reach].iter().position(|b| !is_of_block(*b)).unwrap_or(reach);
    if let Some(at) = text[..whole(text, odd)].find(BLOCK_END) {
        // The last line ends with five dashes, as it began.
        let last = at + BLOCK_END.len();
        let behind = &bytes[last..bytes.len().min(last + LAST_LINE)];
        let line = behind.split(|b| *b == b'\n').next().unwrap_or_default();
        if let Some(dashes) = line.windows(5).position(|w| w == b"-----") {
            return (last + dashes + 5, true);
        }
        let is_whole = is_all || line.len() == LAST_LINE || line.len() < behind.len();
        return if is_whole { (last, true) } else { (at, false) };
    }
    if odd < reach || reach == room {
        return (whole(text, odd), true);
    }
    // The end may be cut between two pieces.
    let dashes = (1..BLOCK_END.len()).rev().find(|n| text.ends_with(&BLOCK_END[..*n])).unwrap_or(0);
    if is_all { (text.len(), true) } else { (text.len() - dashes, false) }
}

/// What a block consists of, also where it is quoted, escaped, or in a list of lines.
fn is_of_block(b: u8) -> bool {
    b.is_ascii_alphanumeric() || b"+/= \t\r\n\\:,.'\"-_()".contains(&b)
}
