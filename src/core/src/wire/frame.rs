//! Frames on a pipe: `length (4 bytes, big-endian) · kind (1 byte) · payload`; the length counts the payload.

use bytes::{Buf, Bytes, BytesMut};

use crate::error::{Error, ErrorKind, Result};

/// The longest payload that is accepted. A longer one is a sign of confusion or malice.
pub const MAX_PAYLOAD: usize = 512 * 1024 * 1024;

const HEADER: usize = 5;

/// How much room is made for bytes that have only been announced. More of it is made as they come.
const AHEAD: usize = 1 << 20;

/// One frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What it is; the meaning depends on the pipe.
    pub kind: u8,
    /// The content.
    pub payload: Bytes,
}

/// The bytes that go before a payload.
///
/// # Errors
/// A payload over [`MAX_PAYLOAD`] is refused.
pub fn header(kind: u8, payload_len: usize) -> Result<[u8; HEADER]> {
    let len = u32::try_from(payload_len).ok().filter(|_| payload_len <= MAX_PAYLOAD).ok_or_else(|| {
        Error::new(ErrorKind::BadInput, format!("a message of {payload_len} bytes is too large"))
            .with_hint(format!("the limit is {MAX_PAYLOAD} bytes"))
    })?;
    let [a, b, c, d] = len.to_be_bytes();
    Ok([a, b, c, d, kind])
}

/// Takes the next whole frame off the front of `buffer`, or `None` if more bytes are needed.
///
/// # Errors
/// A length over [`MAX_PAYLOAD`] is a protocol error; the stream cannot be used any further.
pub fn decode(buffer: &mut BytesMut) -> Result<Option<Frame>> {
    decode_at_most(buffer, MAX_PAYLOAD)
}

/// As [`decode`], where payloads are never longer than `max`.
///
/// # Errors
/// A length over `max`, likewise.
pub fn decode_at_most(buffer: &mut BytesMut, max: usize) -> Result<Option<Frame>> {
    let Some(head) = buffer.first_chunk::<HEADER>() else { return Ok(None) };
    let len = u32::from_be_bytes([head[0], head[1], head[2], head[3]]) as usize;
    let kind = head[4];
    if len > max {
        return Err(Error::new(
            ErrorKind::Protocol,
            format!("the far side announced a frame of {len} bytes"),
        ));
    }
    if buffer.len() < HEADER + len {
        let missing = HEADER + len - buffer.len();
        buffer.reserve(missing.min(buffer.len().max(AHEAD)));
        return Ok(None);
    }
    buffer.advance(HEADER);
    Ok(Some(Frame { kind, payload: buffer.split_to(len).freeze() }))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn frames_survive_any_cut(
            frames in prop::collection::vec((any::<u8>(), prop::collection::vec(any::<u8>(), 0..200)), 0..20),
            cut in 1usize..64,
        ) {
            let mut stream = Vec::new();
            for (kind, payload) in &frames {
                stream.extend(header(*kind, payload.len()).unwrap());
                stream.extend(payload);
            }
            let mut buffer = BytesMut::new();
            let mut seen = Vec::new();
            for chunk in stream.chunks(cut) {
                buffer.extend_from_slice(chunk);
                while let Some(frame) = decode(&mut buffer).unwrap() {
                    seen.push((frame.kind, frame.payload.to_vec()));
                }
            }
            prop_assert_eq!(seen, frames);
            prop_assert!(buffer.is_empty());
        }
    }

    #[test]
    fn an_absurd_length_is_an_error_and_reserves_nothing() {
        let mut buffer = BytesMut::from(&[0xff, 0xff, 0xff, 0xff, b'R'][..]);
        assert_eq!(decode(&mut buffer).unwrap_err().kind(), ErrorKind::Protocol);
        assert!(buffer.capacity() < 4096);
    }

    #[test]
    fn room_is_made_for_what_comes_and_not_for_what_is_announced() {
        let mut buffer = BytesMut::from(&header(b'R', MAX_PAYLOAD).unwrap()[..]);
        assert_eq!(decode(&mut buffer).unwrap(), None);
        assert!(buffer.capacity() <= 2 * AHEAD);
    }
}
