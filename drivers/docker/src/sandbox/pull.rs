//! Fetching an image that the engine does not have.

use std::collections::HashMap;
use std::time::Duration;

use bollard::Docker;
use bollard::errors::Error as Bollard;
use bollard::models::CreateImageInfo;
use bollard::query_parameters::CreateImageOptionsBuilder;
use farcell_core::{Error, ErrorKind, Event, EventSink, Instant, Result, Step};
use futures_util::StreamExt as _;

use super::order::Image;
use crate::failure::of_engine;

/// How often it is told how far it has come.
const TELL: Duration = Duration::from_secs(5);

/// Fetches an image. `program` is what a person would do it with.
pub(super) async fn pull(
    (docker, host): &(Docker, String),
    program: &str,
    image: &Image,
    until: Instant,
    events: &dyn EventSink,
) -> Result<()> {
    events.event(Event::Note(format!("the engine does not have the image {image}; fetching it")));
    tracing::info!(%image, "an image is fetched");
    // The registry may let the engine wait for its first word, and the engine us.
    let docker = docker.clone().with_timeout(until.saturating_duration_since(Instant::now()));
    let options = CreateImageOptionsBuilder::new().from_image(&image.with_tag()).build();
    let mut pieces = std::pin::pin!(docker.create_image(Some(options), None, None));
    let mut layers = Layers::default();
    let mut told = Instant::now();
    loop {
        let piece = match tokio::time::timeout_at(until, pieces.next()).await {
            Ok(None) => return Ok(()),
            Ok(Some(Ok(piece))) => piece,
            Err(_) | Ok(Some(Err(Bollard::RequestTimeoutError))) => {
                let message = format!("the image {image} did not arrive in time{}", layers.so_far());
                let hint = format!(
                    "it may take as long as the cell: give a longer timeout, or fetch it beforehand with `{program} pull {image}`"
                );
                return Err(Error::new(ErrorKind::Deadline, message).at(Step::Spawn).with_hint(hint));
            }
            Ok(Some(Err(e))) => return Err(failed(e, host, program, image)),
        };
        layers.learn(piece);
        if told.elapsed() >= TELL {
            told = Instant::now();
            events.event(Event::Note(format!("fetching the image {image}{}", layers.so_far())));
        }
    }
}

/// What has come of each layer, and how large it is.
#[derive(Default)]
struct Layers(HashMap<String, (i64, i64)>);

impl Layers {
    fn learn(&mut self, piece: CreateImageInfo) {
        let Some(detail) = piece.progress_detail else { return };
        // Layers are unpacked after they have come, which is told in the same words.
        if piece.status.as_deref() == Some("Downloading")
            && let (Some(id), Some(current), Some(total)) = (piece.id, detail.current, detail.total)
        {
            self.0.insert(id, (current, total));
        }
    }

    fn so_far(&self) -> String {
        let (current, total) =
            self.0.values().fold((0, 0), |(c, t), (current, total)| (c + current, t + total));
        if total == 0 { String::new() } else { format!(": {} of {} MB so far", current >> 20, total >> 20) }
    }
}

fn failed(e: Bollard, host: &str, program: &str, image: &Image) -> Error {
    let text = match &e {
        Bollard::DockerResponseServerError { message, .. } => message.trim().to_owned(),
        Bollard::DockerStreamError { error } => error.trim().to_owned(),
        _ => return of_engine(e, host),
    };
    let has = |words: &[&str]| words.iter().any(|word| text.contains(word));
    let missing =
        ["not found", "manifest unknown", "access denied", "does not exist", "unauthorized", "denied:"];
    let (what, hint) = if has(&[
        "no such host",
        "dial tcp",
        "i/o timeout",
        "Timeout exceeded",
        "connection refused",
        "network is unreachable",
    ]) {
        ("its registry cannot be reached", "look at the network of the engine's machine")
    } else if has(&missing) {
        ("the registry does not have it, or not for everybody", "look at its name and tag")
    } else {
        ("the engine could not fetch it", "look at its name and tag")
    };
    let message = format!("there is no image {image}, and {what}: {text}");
    let hint = format!(
        "{hint}; `{program} pull {image}` fetches it with your own credentials, `{program} images` shows what is there"
    );
    Error::new(ErrorKind::Spawn, message).at(Step::Spawn).with_hint(hint).with_source(e)
}
