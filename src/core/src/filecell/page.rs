//! The page of a lane as a file: words of eight bytes, each with one writer, and the last reply. The far side has it mapped (`lane_page.py`).

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// The interpreter's words.
pub(crate) const NUMBER: usize = 3;
pub(crate) const SEQ: usize = 4;
pub(crate) const REPLY: usize = 12;
const LENGTH: usize = 13;
/// The supervisor's.
pub(crate) const BARRED: usize = 20;
pub(crate) const SETTLED: usize = 21;
pub(crate) const PASSED: usize = 22;
/// Those of whoever puts a cell in.
pub(crate) const PUT: usize = 24;
pub(crate) const ACKED: usize = 25;
pub(crate) const KEPT: usize = 26;
pub(crate) const PUT_ID: usize = 28;
pub(crate) const VERSION: usize = 32;
/// What is written there.
pub(crate) const KIND: u64 = 2;

/// The bytes of the words, and of all.
pub(crate) const HEAD: usize = 33 * 8;
pub(crate) const SIZE: usize = 8192;
const REPLY_AT: usize = 4096;

/// One reading of it.
pub(crate) struct Page {
    bytes: [u8; SIZE],
}

impl Page {
    /// Reads the first bytes of it.
    pub(crate) fn read(file: &File, length: usize) -> io::Result<Self> {
        let mut page = Page { bytes: [0; SIZE] };
        file.read_exact_at(&mut page.bytes[..length], 0)?;
        Ok(page)
    }

    pub(crate) fn word(&self, word: usize) -> u64 {
        let bytes = self.bytes[word * 8..].first_chunk();
        bytes.map_or(0, |bytes| u64::from_ne_bytes(*bytes))
    }

    /// Writes one word.
    pub(crate) fn write(file: &File, word: usize, value: u64) -> io::Result<()> {
        file.write_all_at(&value.to_ne_bytes(), word as u64 * 8)
    }

    /// Whether it is laid out as we know it.
    pub(crate) fn is_known(&self) -> bool {
        self.word(VERSION) == KIND
    }

    /// The reply, where all of it was read.
    pub(crate) fn reply(&self) -> &[u8] {
        let length = usize::try_from(self.word(LENGTH)).unwrap_or(SIZE).min(SIZE - REPLY_AT);
        &self.bytes[REPLY_AT..REPLY_AT + length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAR_SIDE: &str = include_str!("../../runner/_farcell/lane_page.py");

    #[test]
    fn the_far_side_has_its_words_in_the_same_places() {
        let places = [
            (NUMBER, 3, "NEXT, STATE, ENDED, NUMBER, SEQ, STARTED, TIMEOUT, LIMIT = range(8)"),
            (SEQ, 4, "NEXT, STATE, ENDED, NUMBER, SEQ, STARTED, TIMEOUT, LIMIT = range(8)"),
            (REPLY, 12, "REPLY, LENGTH, COUNT, GIVEN = range(12, 16)"),
            (LENGTH, 13, "REPLY, LENGTH, COUNT, GIVEN = range(12, 16)"),
            (BARRED, 20, "ADOPTED, READS, LATE, PLAIN, BARRED, SETTLED, PASSED = range(16, 23)"),
            (SETTLED, 21, "ADOPTED, READS, LATE, PLAIN, BARRED, SETTLED, PASSED = range(16, 23)"),
            (PASSED, 22, "ADOPTED, READS, LATE, PLAIN, BARRED, SETTLED, PASSED = range(16, 23)"),
            (PUT, 24, "PUT, ACKED, KEPT = range(24, 27)"),
            (ACKED, 25, "PUT, ACKED, KEPT = range(24, 27)"),
            (KEPT, 26, "PUT, ACKED, KEPT = range(24, 27)"),
            (PUT_ID, 28, "PUT_ID = 28 "),
            (VERSION, 32, "VERSION = 32 "),
            (HEAD, 33 * 8, "WORDS = 33"),
            (KIND as usize, 2, "KIND = 2 "),
            (REPLY_AT, 4096, "REPLY_AT = 4096"),
            (SIZE, 8192, "REPLY_MAX = 4096"),
        ];
        for (ours, theirs, line) in places {
            assert_eq!(ours, theirs, "{line}");
            assert!(FAR_SIDE.lines().any(|said| said.starts_with(line)), "{line}");
        }
    }
}
