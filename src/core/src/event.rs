//! What happens while a cell runs, as it happens.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;

use crate::id::{CellId, CellNumber};
use crate::reply::MimeBundle;
use crate::tools::{ToolArguments, ToolFailure, ToolOutput};
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
    /// It runs by itself, without a kernel: what ends this call ends it.
    Alone,
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
        /// What; at the end it may be empty, where nothing was left of the bytes by cleaning.
        text: String,
        /// How many bytes of the stream have come with it.
        bytes: u64,
    },
    /// It displayed something.
    Display(MimeBundle),
    /// It has called a tool.
    ToolCall {
        /// The call's number among those of the cell.
        call: u64,
        /// The tool's name.
        name: Arc<str>,
        /// The arguments; none if they make no sense.
        arguments: Arc<ToolArguments>,
    },
    /// The call has come to its end.
    ToolAnswer {
        /// The call's number.
        call: u64,
        /// The tool's name.
        name: Arc<str>,
        /// What the cell is told.
        outcome: Result<ToolOutput, ToolFailure>,
        /// How long it took, with the time that a person was asked.
        duration: Duration,
    },
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
    stdout: Decoded,
    stderr: Decoded,
}

/// One stream on its way.
#[derive(Debug, Default)]
struct Decoded {
    decoder: TextDecoder,
    /// Bytes that were taken and not told yet.
    untold: u64,
}

impl RecordEvents {
    /// Tells `events` what is in `records`.
    pub fn emit(&mut self, records: impl IntoIterator<Item = Record>, events: &dyn EventSink) {
        for record in records {
            match record.kind {
                record::STDOUT => self.stdout.push(Stream::Stdout, &record.payload, events),
                record::STDERR => self.stderr.push(Stream::Stderr, &record.payload, events),
                record::DISPLAY => match serde_json::from_slice(&record.payload) {
                    Ok(bundle) => events.event(Event::Display(bundle)),
                    Err(e) => tracing::warn!("a display that is no JSON was dropped: {e}"),
                },
                // Whoever has made the cell sees to them; another has not its token.
                record::CALL | record::GIVEN_UP => {}
                other => tracing::debug!(kind = other, "an output record of an unknown kind was passed over"),
            }
        }
    }

    /// Tells what is left at the end: the bytes of a character that never became whole.
    pub fn finish(&mut self, events: &dyn EventSink) {
        let (stdout, stderr) = (self.stdout.decoder.finish(), self.stderr.decoder.finish());
        self.stdout.tell(Stream::Stdout, stdout, events);
        self.stderr.tell(Stream::Stderr, stderr, events);
    }
}

impl Decoded {
    fn push(&mut self, stream: Stream, piece: &Bytes, events: &dyn EventSink) {
        self.untold += piece.len() as u64;
        let text = self.decoder.push(piece);
        self.tell(stream, text, events);
    }

    fn tell(&mut self, stream: Stream, text: String, events: &dyn EventSink) {
        if !text.is_empty() {
            let bytes = std::mem::take(&mut self.untold);
            events.event(Event::Output { stream, text, bytes });
        }
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
