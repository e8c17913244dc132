//! The inside of links, as fuzz targets reach it.

use bytes::Bytes;
use tokio::time::Instant;

use super::places::Places;
use super::stream::fuzzing as stream;
use super::verdict::{self, Verdict};
use crate::error::Result;
use crate::fuzzing::Brought;
use crate::id::Nonce;
use crate::target::Target;
use crate::transport::{Capabilities, Duplex};

pub(crate) fn judge(target: &Target, text: Bytes) -> Result<Option<Bytes>> {
    Ok(match verdict::judge(target, text)? {
        Verdict::Done(reported) => Some(reported.text),
        Verdict::NeedRunner => None,
    })
}

pub(crate) async fn two_calls(duplex: Duplex, nonce: Nonce, until: Instant) -> [Brought; 2] {
    // There is no limit, so there is a place.
    let Some(place) = Places::new(Capabilities::new()).for_stream() else { return Default::default() };
    stream::two_calls(duplex, nonce, until, place).await
}
