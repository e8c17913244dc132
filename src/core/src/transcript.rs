//! All that a cell has printed, as far as its kernel keeps it: read from its record file, while it runs or afterwards.

use bytes::{Bytes, BytesMut};

use crate::error::Result;
use crate::event::{EventSink, RecordEvents};
use crate::id::CellNumber;
use crate::output::CleanEvents;
use crate::session::Session;
use crate::wire::message::ReadFile;
use crate::wire::record;

/// How much is read at once.
const PIECE: u64 = 1024 * 1024;

/// Reads what a cell has printed, and tells it cleaned as the events of a running cell are.
pub struct Transcript<'a> {
    session: &'a Session,
    number: CellNumber,
    /// How much the kernel keeps of one cell.
    bound: u64,
    offset: u64,
    /// The beginning of a record that is not whole yet.
    pending: BytesMut,
    records: RecordEvents,
    events: CleanEvents<'a>,
}

impl<'a> Transcript<'a> {
    pub(crate) fn new(
        session: &'a Session,
        number: CellNumber,
        bound: u64,
        events: &'a dyn EventSink,
    ) -> Self {
        let events = CleanEvents::new(events, session.cleaner());
        let (pending, records) = (BytesMut::new(), RecordEvents::default());
        Transcript { session, number, bound, offset: 0, pending, records, events }
    }

    /// Tells all that has been printed since the last time.
    pub async fn catch_up(&mut self) -> Result<()> {
        loop {
            let piece = self.session.read(ReadFile::Out, Some(self.number), self.offset, PIECE).await?;
            if piece.bytes.is_empty() {
                return Ok(());
            }
            self.offset = piece.next;
            self.pending.extend_from_slice(&piece.bytes);
            let bytes: Bytes = self.pending.split().freeze();
            let (records, used) = record::read(&bytes);
            self.pending.extend_from_slice(&bytes[used..]);
            self.records.emit(records, &self.events);
        }
    }

    /// Tells what was held back and is no secret, whatever comes behind it. For a moment without output.
    pub fn let_go(&self) {
        self.events.let_go();
    }

    /// Tells the rest. `has_ended` is false where the cell goes on.
    pub fn finish(mut self, has_ended: bool) {
        self.records.finish(&self.events);
        // A file that is full ends in the middle of something.
        self.events.finish(!has_ended || self.offset >= self.bound);
    }
}
