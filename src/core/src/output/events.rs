//! What happens while a cell runs, cleaned on its way to whoever listens.

use std::convert::Infallible;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::Notify;

use super::{CleanStream, Cleaner};
use crate::event::{Event, EventSink, Stream};
use crate::reply::{Reply, Status};

/// How long nothing may come before what is held back is let go: longer than the pauses within one line of output, and shorter than a person's patience.
const LULL: Duration = Duration::from_millis(150);

/// Cleans events.
pub(crate) struct CleanEvents<'a> {
    events: &'a dyn EventSink,
    cleaner: Cleaner,
    streams: Mutex<[Cleaned; 2]>,
    /// Something is held back that could be let go.
    held: Notify,
}

/// One stream on its way.
struct Cleaned {
    text: CleanStream,
    /// Bytes that were taken and not told yet, and all that were told.
    untold: u64,
    told: u64,
    /// How many pieces have come.
    pieces: u64,
}

impl<'a> CleanEvents<'a> {
    pub(crate) fn new(events: &'a dyn EventSink, cleaner: Cleaner) -> Self {
        let stream = || Cleaned { text: cleaner.stream(), untold: 0, told: 0, pieces: 0 };
        let streams = Mutex::new([stream(), stream()]);
        CleanEvents { events, cleaner, streams, held: Notify::new() }
    }

    /// Lets go of what is held back whenever nothing has come for a moment. Never ends.
    pub(crate) async fn let_go_when_quiet(&self) -> Infallible {
        loop {
            self.held.notified().await;
            let mut seen = self.pieces();
            loop {
                tokio::time::sleep(LULL).await;
                let now = self.pieces();
                if now == seen {
                    break;
                }
                seen = now;
            }
            self.let_go();
        }
    }

    /// Tells what is left, at a cell's end.
    pub(crate) fn end(&self, reply: Option<&Reply>) {
        let is_cut = reply.is_none_or(|reply| {
            let is_whole = matches!(reply.status, Status::Ok | Status::Error | Status::Exit);
            // The target keeps the beginning of very much output, and that is what has come.
            let [stdout, stderr] = self.streams().each_ref().map(|cleaned| cleaned.told + cleaned.untold);
            !is_whole || stdout < reply.output.stdout_bytes || stderr < reply.output.stderr_bytes
        });
        self.finish(is_cut);
    }

    /// Tells what is left. With `is_cut` the output ended in the middle of something.
    pub(crate) fn finish(&self, is_cut: bool) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let told = {
                let cleaned = &mut self.streams()[stream as usize];
                let text = cleaned.text.finish(is_cut);
                (!text.is_empty() || cleaned.untold > 0).then(|| cleaned.tell(stream, text))
            };
            if let Some(event) = told {
                self.events.event(event);
            }
        }
    }

    /// Lets go of what is held back and is no secret, whatever comes behind it.
    pub(crate) fn let_go(&self) {
        for stream in [Stream::Stdout, Stream::Stderr] {
            let told = {
                let cleaned = &mut self.streams()[stream as usize];
                let text = cleaned.text.let_go();
                (!text.is_empty()).then(|| cleaned.tell(stream, text))
            };
            if let Some(event) = told {
                self.events.event(event);
            }
        }
    }

    fn streams(&self) -> MutexGuard<'_, [Cleaned; 2]> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn pieces(&self) -> u64 {
        self.streams().iter().map(|cleaned| cleaned.pieces).sum()
    }
}

impl Cleaned {
    fn tell(&mut self, stream: Stream, text: String) -> Event {
        let bytes = std::mem::take(&mut self.untold);
        self.told += bytes;
        Event::Output { stream, text, bytes }
    }
}

impl EventSink for CleanEvents<'_> {
    fn event(&self, event: Event) {
        let event = match event {
            Event::Output { stream, text, bytes } => {
                let mut streams = self.streams();
                let cleaned = &mut streams[stream as usize];
                let text = cleaned.text.push(&text);
                cleaned.untold += bytes;
                cleaned.pieces += 1;
                if cleaned.text.can_let_go() {
                    self.held.notify_one();
                }
                if text.is_empty() {
                    return;
                }
                cleaned.tell(stream, text)
            }
            Event::Display(mut bundle) => {
                // What was printed before it comes before it.
                self.let_go();
                self.cleaner.bundle(&mut bundle);
                Event::Display(bundle)
            }
            Event::Note(mut text) => {
                self.cleaner.clean(&mut text);
                Event::Note(text)
            }
            Event::ToolCall { call, name, mut arguments } => {
                self.let_go();
                self.cleaner.arguments(&mut arguments);
                Event::ToolCall { call, name, arguments }
            }
            Event::ToolAnswer { call, name, mut outcome, duration } => {
                self.cleaner.outcome(&mut outcome);
                Event::ToolAnswer { call, name, outcome, duration }
            }
            other => other,
        };
        self.events.event(event);
    }

    fn wants_output(&self) -> bool {
        self.events.wants_output()
    }
}
