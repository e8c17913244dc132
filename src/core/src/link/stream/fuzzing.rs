//! A stream with two calls, as fuzz targets have it.

use bytes::Bytes;
use tokio::time::Instant;

use super::channel::Channel;
use super::outbox::HEAD;
use crate::fuzzing::Brought;
use crate::id::Nonce;
use crate::link::places::Place;
use crate::transport::Duplex;

/// Both begin before the courier is heard.
pub(in crate::link) async fn two_calls(
    duplex: Duplex,
    nonce: Nonce,
    until: Instant,
    place: Place,
) -> [Brought; 2] {
    let channel = Channel::new(duplex, nonce, Bytes::new(), 1, until, place);
    let (one, two) = tokio::join!(call(&channel, until), call(&channel, until));
    [one, two]
}

async fn call(channel: &Channel, until: Instant) -> Brought {
    let mut records = Vec::new();
    let message = [&[0; HEAD], &b"{}"[..]].concat();
    let called = channel.call(message, false, until, &mut |piece| records.extend_from_slice(&piece)).await;
    (records, called.ok())
}
