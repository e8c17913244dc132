//! Output records: what a cell printed and displayed, in order, as it stands in the record file and travels to the host.

use bytes::{Buf as _, Bytes, BytesMut};

/// The kind byte of stdout.
pub const STDOUT: u8 = b'o';
/// The kind byte of stderr.
pub const STDERR: u8 = b'e';
/// The kind byte of a display.
pub const DISPLAY: u8 = b'd';
/// The kind byte of a tool call.
pub const CALL: u8 = b't';
/// The kind byte of a tool call that nobody waits for any more.
pub const GIVEN_UP: u8 = b'w';

const HEADER: usize = 5;

/// The longest payload that is taken: a call of a tool has up to 64 MiB of arguments, all else is shorter. What is longer is passed over as it comes.
pub const MAX_PAYLOAD: usize = 80 << 20;

/// One output record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// [`STDOUT`], [`STDERR`], [`DISPLAY`], [`CALL`] or [`GIVEN_UP`]; others are passed over.
    pub kind: u8,
    /// Raw bytes, or JSON.
    pub payload: Bytes,
}

/// Reads the whole records at the front of `bytes`; returns them and how many bytes they took.
/// A record that is cut off at the end is left for the next time.
pub fn read(bytes: &Bytes) -> (Vec<Record>, usize) {
    let mut records = Vec::new();
    let mut at = 0;
    while let Some(head) = bytes[at..].first_chunk::<HEADER>() {
        let len = u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize;
        let end = at + HEADER + len;
        if end > bytes.len() {
            break;
        }
        records.push(Record { kind: head[0], payload: bytes.slice(at + HEADER..end) });
        at = end;
    }
    (records, at)
}

/// Records that come in pieces, cut anywhere.
#[derive(Debug, Default)]
pub struct Pieces {
    /// The beginning of a record.
    rest: BytesMut,
    /// What is still to come of a record that is too long, and how long it is.
    skipped: Option<(usize, usize)>,
}

impl Pieces {
    /// The records that are whole with this piece, and how many bytes they take.
    pub fn push(&mut self, piece: &Bytes) -> (Vec<Record>, usize) {
        let mut piece = piece.clone();
        let mut used = 0;
        if let Some((left, whole)) = &mut self.skipped {
            let passed = piece.len().min(*left);
            piece.advance(passed);
            *left -= passed;
            if *left > 0 {
                return (Vec::new(), 0);
            }
            used = *whole;
            self.skipped = None;
        }
        if !self.rest.is_empty() {
            self.rest.extend_from_slice(&piece);
            match self.announced() {
                Some(len) if len <= MAX_PAYLOAD && self.rest.len() < HEADER + len => {
                    return (Vec::new(), used);
                }
                None => return (Vec::new(), used),
                Some(_) => piece = self.rest.split().freeze(),
            }
        }
        let (records, taken) = read(&piece);
        self.rest.extend_from_slice(&piece[taken..]);
        used += taken;
        if let Some(len) = self.announced().filter(|len| *len > MAX_PAYLOAD) {
            tracing::debug!(len, "an output record that is too long is passed over");
            // `read` has left it because it is not all there.
            self.skipped = Some((HEADER + len - self.rest.len(), HEADER + len));
            self.rest = BytesMut::new();
        }
        (records, used)
    }

    /// The length of the record that is not all there.
    fn announced(&self) -> Option<usize> {
        let head = self.rest.first_chunk::<HEADER>()?;
        Some(u32::from_be_bytes([head[1], head[2], head[3], head[4]]) as usize)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn whole_records_are_read_and_a_cut_one_is_left(
            records in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..100)), 0..20),
            cut in 0usize..200,
        ) {
            let mut file = Vec::new();
            for (kind, payload) in &records {
                file.push(*kind);
                file.extend((payload.len() as u32).to_be_bytes());
                file.extend(payload);
            }
            let cut = file.len().saturating_sub(cut);
            let (seen, used) = read(&Bytes::copy_from_slice(&file[..cut]));
            prop_assert!(used <= cut && seen.len() <= records.len());
            for (record, (kind, payload)) in seen.iter().zip(&records) {
                prop_assert_eq!(record.kind, *kind);
                prop_assert_eq!(&record.payload[..], &payload[..]);
            }
            // What was left is less than one record.
            prop_assert!(seen.len() == records.len() || used + HEADER + records[seen.len()].1.len() > cut);
        }

        #[test]
        fn records_are_the_same_however_they_are_cut(
            records in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..100)), 0..20),
            cut in 1usize..64,
        ) {
            let mut file = Vec::new();
            for (kind, payload) in &records {
                file.push(*kind);
                file.extend((payload.len() as u32).to_be_bytes());
                file.extend(payload);
            }
            let (mut pieces, mut seen, mut taken) = (Pieces::default(), Vec::new(), 0);
            for piece in file.chunks(cut) {
                let (more, used) = pieces.push(&Bytes::copy_from_slice(piece));
                seen.extend(more.into_iter().map(|record| (record.kind, record.payload.to_vec())));
                taken += used;
            }
            prop_assert_eq!((seen, taken), (records, file.len()));
        }
    }

    #[test]
    fn a_record_that_is_too_long_is_passed_over_and_kept_nowhere() {
        let len = MAX_PAYLOAD + 1;
        let mut file = [&b"o\0\0\0\x01ad"[..], &(len as u32).to_be_bytes()].concat();
        file.resize(file.len() + len, 0);
        file.extend(b"o\0\0\0\x01b");
        let file = Bytes::from(file);
        for cut in [1 << 16, 1_000_003] {
            let (mut pieces, mut seen, mut taken) = (Pieces::default(), Vec::new(), 0);
            for at in (0..file.len()).step_by(cut) {
                let (more, used) = pieces.push(&file.slice(at..file.len().min(at + cut)));
                seen.extend(more.into_iter().map(|record| record.payload));
                taken += used;
                assert!(pieces.rest.capacity() < 8 << 20);
            }
            assert_eq!((seen, taken), (vec![Bytes::from("a"), Bytes::from("b")], file.len()));
        }
    }
}
