//! What happens while a cell runs, as it happens.

use std::collections::VecDeque;

use bytes::Bytes;

use crate::id::{CellId, CellNumber};
use crate::reply::MimeBundle;
use crate::wire::record::{self, Record};

/// Which of the two output streams.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Stream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// One thing that happened.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Event {
    /// The cell is about to be sent under this id.
    Sent {
        /// Its id.
        id: CellId,
    },
    /// The cell waits for others of its kernel.
    Queued {
        /// How many are before it.
        ahead: u64,
    },
    /// The kernel has accepted it under this number.
    Accepted {
        /// Its number.
        number: CellNumber,
    },
    /// It printed something. Text that is not valid UTF-8 shows as `\xNN`.
    Output {
        /// Where to.
        stream: Stream,
        /// What.
        text: String,
    },
    /// It displayed something.
    Display(MimeBundle),
    /// Something that the user should know: a lost connection, a respawned kernel.
    Note(String),
}

/// Who is told. Any `Fn(Event)` is one.
pub trait EventSink: Send + Sync {
    /// Takes one event. Called in order; it should return soon, as the cell's output waits for it.
    fn event(&self, event: Event);

    /// False if output as it comes is of no interest, which saves round trips over transports that have to ask for it.
    fn wants_output(&self) -> bool {
        true
    }
}

impl<F: Fn(Event) + Send + Sync> EventSink for F {
    fn event(&self, event: Event) {
        self(event);
    }
}

/// Takes no interest in anything.
#[derive(Debug, Clone, Copy)]
pub struct NoEvents;

impl EventSink for NoEvents {
    fn event(&self, _: Event) {}

    fn wants_output(&self) -> bool {
        false
    }
}

/// Turns output records into events: decodes text across the borders of records, one decoder a stream.
#[derive(Debug, Default)]
pub struct RecordEvents {
    stdout: TextDecoder,
    stderr: TextDecoder,
}

impl RecordEvents {
    /// Tells `events` what is in `records`.
    pub fn emit(&mut self, records: Vec<Record>, events: &dyn EventSink) {
        for record in records {
            match record.kind {
                record::STDOUT => output(Stream::Stdout, self.stdout.push(&record.payload), events),
                record::STDERR => output(Stream::Stderr, self.stderr.push(&record.payload), events),
                record::DISPLAY => match serde_json::from_slice(&record.payload) {
                    Ok(bundle) => events.event(Event::Display(bundle)),
                    Err(e) => tracing::warn!("a display that is no JSON was dropped: {e}"),
                },
                other => tracing::debug!(kind = other, "an output record of an unknown kind was passed over"),
            }
        }
    }

    /// Tells what is left at the end: the bytes of a character that never became whole.
    pub fn finish(&mut self, events: &dyn EventSink) {
        output(Stream::Stdout, self.stdout.finish(), events);
        output(Stream::Stderr, self.stderr.finish(), events);
    }
}

fn output(stream: Stream, text: String, events: &dyn EventSink) {
    if !text.is_empty() {
        events.event(Event::Output { stream, text });
    }
}

/// UTF-8 in pieces: keeps back a character that is cut by the end of a piece, and shows invalid bytes as `\xNN`.
#[derive(Debug, Default)]
pub struct TextDecoder {
    kept: VecDeque<u8>,
}

impl TextDecoder {
    /// Decodes all that can be decoded by now.
    pub fn push(&mut self, piece: &Bytes) -> String {
        let joined: Vec<u8>;
        let mut rest: &[u8] = if self.kept.is_empty() {
            piece
        } else {
            joined = self.kept.drain(..).chain(piece.iter().copied()).collect();
            &joined
        };
        let mut text = String::with_capacity(rest.len());
        loop {
            match std::str::from_utf8(rest) {
                Ok(valid) => {
                    text.push_str(valid);
                    return text;
                }
                Err(e) => {
                    let (valid, behind) = rest.split_at(e.valid_up_to());
                    // The first part is valid by what `valid_up_to` says; nothing is lost if it were not.
                    text.push_str(&String::from_utf8_lossy(valid));
                    let Some(bad) = e.error_len() else {
                        self.kept.extend(behind);
                        return text;
                    };
                    push_escaped(&mut text, &behind[..bad]);
                    rest = &behind[bad..];
                }
            }
        }
    }

    /// What was kept back, escaped.
    pub fn finish(&mut self) -> String {
        let mut text = String::new();
        push_escaped(&mut text, self.kept.make_contiguous());
        self.kept.clear();
        text
    }
}

fn push_escaped(text: &mut String, bytes: &[u8]) {
    use std::fmt::Write as _;
    for b in bytes {
        // Writing to a String cannot fail.
        let _ = write!(text, "\\x{b:02x}");
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn text_is_the_same_however_it_is_cut(text in "\\PC{0,60}", cut in 1usize..9) {
            let mut decoder = TextDecoder::default();
            let mut seen: String =
                text.as_bytes().chunks(cut).map(|c| decoder.push(&Bytes::copy_from_slice(c))).collect();
            seen.push_str(&decoder.finish());
            prop_assert_eq!(seen, text);
        }
    }

    #[test]
    fn invalid_bytes_are_shown() {
        let mut decoder = TextDecoder::default();
        assert_eq!(decoder.push(&Bytes::from_static(b"a\xffb\xe2\x82")), "a\\xffb");
        assert_eq!(decoder.finish(), "\\xe2\\x82");
    }
}
