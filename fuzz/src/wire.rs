//! Frames, answers, records and messages.

use bytes::{Bytes, BytesMut};
use farcell_core::fuzzing;
use farcell_core::kernel::Identity;
use farcell_core::wire::answer::{self, Answer};
use farcell_core::wire::file::{Checked, Digest, Finished, GetOpened, PutOpened};
use farcell_core::wire::frame::{self, Frame};
use farcell_core::wire::message::{Controlled, FarError, KernelRecord, Probe, Progress, RawReply, Spawned};
use farcell_core::wire::record::{self, Pieces, Record};
use farcell_core::{Event, NoEvents, RecordEvents, Reply, Stream, Tail, Target};
use serde::de::DeserializeOwned;

use crate::memory::at_most;
use crate::{BASE, NONCE, cut};

/// JSON in memory takes many times what it takes as text.
const JSON: usize = 100;

/// Frames are the same however they are cut, are again what was encoded, and take no room before they come.
pub fn frames(data: &[u8]) {
    let (cut, bytes) = cut(data);
    let most = |bytes: usize| BASE + 4 * bytes;
    let whole = at_most(most(bytes.len()), || decoded(bytes, bytes.len().max(1)));
    let pieces = at_most(most(bytes.len()), || decoded(bytes, cut));
    assert_eq!(whole, pieces);
    let (frames, left) = whole;
    let mut again = Vec::new();
    for frame in &frames {
        again
            .extend(frame::header(frame.kind, frame.payload.len()).expect("it is no longer than one may be"));
        again.extend_from_slice(&frame.payload);
    }
    assert!(bytes.starts_with(&again));
    if let Some(left) = left {
        assert_eq!(again.len() + left, bytes.len());
    }
}

/// The frames, and how many bytes are left; `None` if the rest is no frame.
fn decoded(bytes: &[u8], cut: usize) -> (Vec<Frame>, Option<usize>) {
    let (mut buffer, mut frames) = (BytesMut::new(), Vec::new());
    for piece in bytes.chunks(cut) {
        buffer.extend_from_slice(piece);
        loop {
            match frame::decode(&mut buffer) {
                Ok(Some(frame)) => frames.push(frame),
                Ok(None) => break,
                Err(_) => return (frames, None),
            }
        }
    }
    (frames, Some(buffer.len()))
}

/// An answer is not there before it is whole, is then the same whatever follows, and a link makes of it what it says.
pub fn answers(data: &[u8]) {
    let (cut, bytes) = cut(data);
    let bytes = Bytes::copy_from_slice(bytes);
    let nonce = fuzzing::nonce(NONCE);
    let parse = |bytes: &Bytes| at_most(BASE + JSON * bytes.len(), || answer::parse(&nonce, bytes));
    let whole = parse(&bytes);
    if let Answer::Whole { end, text, value, .. } = &whole {
        assert_eq!(parse(&bytes.slice(..*end)), whole);
        let longer = [&bytes[..], &bytes[..cut.min(bytes.len())]].concat().into();
        assert_eq!(parse(&longer), whole);
        for short in (0..*end).step_by(cut) {
            assert!(matches!(
                parse(&bytes.slice(..short)),
                Answer::Broken | Answer::Absent | Answer::NoPython(_)
            ));
        }
        let target: Target = "local:".parse().expect("a target");
        let said_no = value.get("ok").and_then(serde_json::Value::as_bool) != Some(true);
        match at_most(BASE + JSON * bytes.len(), || fuzzing::judge(&target, text.clone())) {
            Ok(Some(done)) => assert_eq!(done, *text),
            // Of a name that is there twice, the first counts here and the last one there.
            Ok(None) | Err(_) => assert!(said_no || value.is_object()),
        }
    }
}

/// Records are the same however they are cut, and what is kept of their text is bounded and adds up.
pub fn records(data: &[u8]) {
    let (cut, bytes) = cut(data);
    let bytes = Bytes::copy_from_slice(bytes);
    let most = BASE + 4 * bytes.len();
    let (whole, used) = at_most(most, || record::read(&bytes));
    let (mut pieces, mut seen, mut taken) = (Pieces::default(), Vec::new(), 0);
    at_most(most, || {
        for at in (0..bytes.len()).step_by(cut) {
            let (more, used) = pieces.push(&bytes.slice(at..bytes.len().min(at + cut)));
            seen.extend(more);
            taken += used;
        }
    });
    assert_eq!((&whole, used), (&seen, taken));
    let mut tail = Tail::new(cut);
    whole.iter().for_each(|record| tail.push(record));
    let (stdout, _, info) = tail.take();
    let printed = printed(&whole, record::STDOUT);
    assert_eq!(info.stdout_bytes, printed.len() as u64);
    assert!(info.stdout_omitted == info.stdout_bytes.saturating_sub(cut as u64));
    assert!(stdout.len() <= 4 * cut + 64);
    if let (Ok(text), 0) = (std::str::from_utf8(&printed), info.stdout_omitted) {
        assert_eq!(stdout, text);
    }
    at_most(BASE + JSON * bytes.len(), || RecordEvents::default().emit(whole.clone(), &NoEvents));
    let told = std::sync::Mutex::new(String::new());
    let sink = |event| {
        if let Event::Output { stream: Stream::Stdout, text, .. } = event {
            told.lock().expect("nobody panics").push_str(&text);
        }
    };
    let mut events = RecordEvents::default();
    events.emit(whole, &sink);
    events.finish(&sink);
    if let Ok(text) = std::str::from_utf8(&printed) {
        assert_eq!(told.into_inner().expect("nobody panics"), text);
    }
}

fn printed(records: &[Record], kind: u8) -> Vec<u8> {
    records.iter().filter(|record| record.kind == kind).flat_map(|record| record.payload.to_vec()).collect()
}

fn read<T: DeserializeOwned>(data: &[u8]) -> Option<T> {
    at_most(BASE + JSON * data.len(), || serde_json::from_slice(data).ok())
}

/// What a supervisor and a courier say of cells and kernels. A record is again what was written, and a reply what its caller reads.
pub fn replies(data: &[u8]) {
    let _ = (read::<Progress>(data), read::<Spawned>(data), read::<Probe>(data), read::<Controlled>(data));
    if let Some(far) = read::<FarError>(data) {
        assert!(farcell_core::Error::from(far).to_string().len() < 10_000);
    }
    if let Some(record) = read::<KernelRecord>(data) {
        let text = serde_json::to_vec(&record).expect("a record is JSON");
        assert_eq!(serde_json::from_slice::<KernelRecord>(&text).expect("it was one"), record);
    }
    if let Some(raw) = read::<RawReply>(data) {
        let names = Identity {
            target: "local:".parse().expect("a target"),
            owner: "ann".to_owned(),
            session: "default".to_owned(),
        };
        let reply = names.complete(raw);
        let text = serde_json::to_vec(&reply).expect("a reply is JSON");
        assert_eq!(serde_json::from_slice::<Reply>(&text).expect("it was one"), reply);
    }
}

/// What is answered to the steps of a file that is moved.
pub fn files(data: &[u8]) {
    let _ = (read::<PutOpened>(data), read::<GetOpened>(data));
    let _ = (read::<Checked>(data), read::<Finished>(data), read::<Digest>(data));
}
