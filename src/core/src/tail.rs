//! What a cell has printed so far, bounded: kept for a reply that leaves it out, and for the one that has to be made when a supervisor dies.

use std::collections::VecDeque;

use crate::event::TextDecoder;
use crate::reply::OutputInfo;
use crate::wire::record::{self, Record};
use bytes::Bytes;

/// Head and tail of both streams.
#[derive(Debug)]
pub struct Tail {
    stdout: Clip,
    stderr: Clip,
}

impl Tail {
    /// Keeps at most `max` bytes of each stream.
    pub fn new(max: usize) -> Self {
        Tail { stdout: Clip::new(max), stderr: Clip::new(max) }
    }

    /// Takes a record in.
    pub fn push(&mut self, record: &Record) {
        match record.kind {
            record::STDOUT => self.stdout.push(&record.payload),
            record::STDERR => self.stderr.push(&record.payload),
            _ => {}
        }
    }

    /// Both texts and their counts; nothing is kept.
    pub fn take(&mut self) -> (String, String, OutputInfo) {
        let (stdout, stdout_bytes, stdout_omitted) = self.stdout.take();
        let (stderr, stderr_bytes, stderr_omitted) = self.stderr.take();
        let info = OutputInfo { stdout_bytes, stdout_omitted, stderr_bytes, stderr_omitted, spill: None };
        (stdout, stderr, info)
    }
}

/// Head and tail of one stream; of an odd number of bytes the head has one more, as on the far side.
#[derive(Debug)]
struct Clip {
    max: usize,
    total: u64,
    head: Vec<u8>,
    tail: VecDeque<u8>,
}

impl Clip {
    fn new(max: usize) -> Self {
        Clip { max, total: 0, head: Vec::new(), tail: VecDeque::new() }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.total += bytes.len() as u64;
        let limit = self.max / 2;
        let room = (self.max - limit).saturating_sub(self.head.len()).min(bytes.len());
        self.head.extend_from_slice(&bytes[..room]);
        let rest = &bytes[room..];
        let rest = &rest[rest.len().saturating_sub(limit)..];
        let over = (self.tail.len() + rest.len()).saturating_sub(limit);
        self.tail.drain(..over);
        self.tail.extend(rest);
    }

    fn take(&mut self) -> (String, u64, u64) {
        let (mut head, tail) = (std::mem::take(&mut self.head), std::mem::take(&mut self.tail));
        let omitted = self.total - (head.len() + tail.len()) as u64;
        let (first, second) = tail.as_slices();
        if omitted == 0 {
            // A character may stand across the cut that is none.
            head.extend_from_slice(first);
            head.extend_from_slice(second);
            let text = String::from_utf8(head).unwrap_or_else(|e| decode(&e.into_bytes().into()));
            return (text, self.total, 0);
        }
        let mut text = decode(&head.into());
        text.push_str(&format!("\n[\u{2026} {omitted} bytes omitted \u{2026}]\n"));
        text.push_str(&decode(&[first, second].concat().into()));
        (text, self.total, omitted)
    }
}

fn decode(bytes: &Bytes) -> String {
    let mut decoder = TextDecoder::default();
    let mut text = decoder.push(bytes);
    text.push_str(&decoder.finish());
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_kept_is_head_and_tail_however_it_came(text in "[a-z]{0,200}", cut in 1usize..50, max in 0usize..100) {
            let mut tail = Tail::new(max);
            for piece in text.as_bytes().chunks(cut) {
                tail.push(&Record { kind: record::STDERR, payload: Bytes::copy_from_slice(piece) });
            }
            let (_, stderr, info) = tail.take();
            let half = max / 2;
            prop_assert_eq!(info.stderr_bytes, text.len() as u64);
            if text.len() <= max {
                prop_assert_eq!((stderr, info.stderr_omitted), (text, 0));
            } else {
                prop_assert_eq!(info.stderr_omitted, (text.len() - max) as u64);
                prop_assert!(stderr.starts_with(&text[..max - half]) && stderr.ends_with(&text[text.len() - half..]));
            }
        }

        #[test]
        fn what_is_whole_is_the_text_itself_wherever_its_middle_is(text in "\\PC{0,60}", cut in 1usize..9) {
            let mut tail = Tail::new(text.len());
            for piece in text.as_bytes().chunks(cut) {
                tail.push(&Record { kind: record::STDOUT, payload: Bytes::copy_from_slice(piece) });
            }
            prop_assert_eq!(tail.take().0, text);
        }
    }

    #[test]
    fn head_and_tail_are_kept_and_the_count_is_exact() {
        let mut tail = Tail::new(8);
        for piece in [&b"abc"[..], b"defghijklm", b"nop"] {
            tail.push(&Record { kind: record::STDOUT, payload: Bytes::from_static(piece) });
        }
        let (stdout, _, info) = tail.take();
        assert_eq!(stdout, "abcd\n[\u{2026} 8 bytes omitted \u{2026}]\nmnop");
        assert_eq!((info.stdout_bytes, info.stdout_omitted), (16, 8));
    }
}
