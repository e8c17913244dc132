//! Output records: what a cell printed and displayed, in order, as it stands in the record file and travels to the host.

use bytes::{Buf as _, Bytes, BytesMut};

/// The kind byte of stdout.
pub const STDOUT: u8 = b'o';
/// The kind byte of stderr.
pub const STDERR: u8 = b'e';
/// The kind byte of a display.
pub const DISPLAY: u8 = b'd';

const HEADER: usize = 5;

/// One output record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// [`STDOUT`], [`STDERR`] or [`DISPLAY`]; others are passed over.
    pub kind: u8,
    /// Raw bytes, or the JSON of a display.
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
    rest: BytesMut,
}

impl Pieces {
    /// The records that are whole with this piece, and how many bytes they take.
    pub fn push(&mut self, piece: &Bytes) -> (Vec<Record>, usize) {
        if self.rest.is_empty() {
            let (records, used) = read(piece);
            self.rest.extend_from_slice(&piece[used..]);
            return (records, used);
        }
        self.rest.extend_from_slice(piece);
        if !self.has_record() {
            return (Vec::new(), 0);
        }
        let joined = self.rest.split().freeze();
        let (records, used) = read(&joined);
        self.rest.extend_from_slice(&joined[used..]);
        (records, used)
    }

    fn has_record(&self) -> bool {
        let mut head = &self.rest[..];
        if head.len() < HEADER {
            return false;
        }
        head.advance(1);
        let len = head.get_u32() as usize;
        head.len() >= len
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
}
