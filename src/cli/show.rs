//! A reply for a person: what was not streamed already, then how it ended.

use std::sync::Mutex;
use std::sync::PoisonError;

use farcell::{CellId, Event, EventSink, Reply, State, Status, Stream};

use super::context::Context;
use super::display::Displays;
use super::output;

/// Prints what happens while a cell runs.
#[derive(Debug)]
pub(crate) struct Live {
    quiet: bool,
    shown: Mutex<Shown>,
}

#[derive(Debug)]
struct Shown {
    displays: Displays,
    displayed: usize,
    /// Something was printed and its last line is not ended yet.
    open_line: bool,
    /// How many bytes of stdout and stderr were printed.
    printed: [u64; 2],
    cell: Option<CellId>,
}

impl Live {
    /// For the cells of a session; `quiet` prints nothing at all (`--json`).
    pub(crate) fn new(context: &Context, name: &str, quiet: bool) -> Self {
        let stamp = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let prefix = format!("{}-{}", slug(name), stamp.as_millis());
        let displays = Displays::new(&context.state_dir.join("displays"), &prefix);
        Live {
            quiet,
            shown: Mutex::new(Shown {
                displays,
                displayed: 0,
                open_line: false,
                printed: [0; 2],
                cell: None,
            }),
        }
    }

    /// The cell, once it has been sent.
    pub(crate) fn cell(&self) -> Option<CellId> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).cell.clone()
    }

    /// Prints what the reply says beyond what was printed as it happened.
    pub(crate) fn finish(&self, reply: &Reply) {
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        let out = &reply.output;
        shown.catch_up(Stream::Stdout, &reply.stdout, out.stdout_bytes);
        shown.catch_up(Stream::Stderr, &reply.stderr, out.stderr_bytes);
        for bundle in reply.displays.iter().skip(shown.displayed) {
            shown.display(bundle);
        }
        shown.end_line();
        if let Some(result) = &reply.result {
            output::line(&shown.displays.describe(result));
        }
        drop(shown);
        ending(reply);
    }
}

impl EventSink for Live {
    fn event(&self, event: Event) {
        if self.quiet && !matches!(event, Event::Sent { .. }) {
            return;
        }
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Output { stream, text } => shown.print(stream, &text),
            Event::Display(bundle) => {
                shown.display(&bundle);
                shown.displayed += 1;
            }
            Event::Sent { id } => shown.cell = Some(id),
            Event::Queued { ahead } => {
                output::note(&format!("waiting for {ahead} other cell(s) of this session"));
            }
            Event::Note(text) => output::note(&text),
            _ => {}
        }
    }

    fn wants_output(&self) -> bool {
        !self.quiet
    }
}

impl Shown {
    fn print(&mut self, stream: Stream, text: &str) {
        if text.is_empty() {
            return;
        }
        match stream {
            Stream::Stdout => {
                output::raw_stdout(text);
                self.printed[0] += text.len() as u64;
            }
            Stream::Stderr => {
                output::raw_stderr(text);
                self.printed[1] += text.len() as u64;
            }
        }
        self.open_line = !text.ends_with('\n');
    }

    fn display(&mut self, bundle: &farcell::MimeBundle) {
        self.end_line();
        output::line(&self.displays.describe(bundle));
    }

    /// Prints what did not come as it was printed: all of a stream, or the end of one whose middle was not kept.
    fn catch_up(&mut self, stream: Stream, text: &str, bytes: u64) {
        let printed = self.printed[stream as usize];
        // Escapes make a text longer than the bytes that it stands for, never shorter.
        let missing = bytes.saturating_sub(printed);
        if missing == 0 {
            return;
        }
        if printed == 0 {
            self.print(stream, text);
            return;
        }
        let mut from = text.len().saturating_sub(usize::try_from(missing).unwrap_or(usize::MAX));
        while !text.is_char_boundary(from) {
            from += 1;
        }
        // The reply's own mark of what it leaves out would count the wrong bytes here.
        let tail = text[from..]
            .rsplit_once(" bytes omitted ")
            .map_or(&text[from..], |(_, behind)| behind.split_once('\n').map_or("", |(_, tail)| tail));
        let left_out = missing.saturating_sub(tail.len() as u64);
        if left_out > 0 {
            self.print(stream, &format!("\n[{left_out} bytes were not kept]\n"));
            output::note(&format!("{left_out} bytes of output were more than the target keeps of one cell"));
        }
        self.print(stream, tail);
    }

    /// So that what comes next begins on a line of its own; only for a person, as a pipe gets just what was printed.
    fn end_line(&mut self) {
        if std::mem::take(&mut self.open_line) && output::is_terminal() {
            output::raw_stdout("\n");
        }
    }
}

/// How it ended, on stderr.
fn ending(reply: &Reply) {
    if let Some(error) = &reply.error {
        match &error.traceback {
            Some(traceback) if reply.status == Status::Error => {
                output::raw_stderr(&with_line_end(traceback));
                if let Some(hint) = &error.hint {
                    output::aside(&format!("hint: {hint}"));
                }
            }
            _ if reply.status == Status::Exit => {}
            traceback => {
                if let Some(traceback) = traceback {
                    output::raw_stderr(&with_line_end(traceback));
                }
                // Python's own KeyboardInterrupt says nothing more than that.
                if !error.message.is_empty() {
                    output::trouble(word(reply.status), &error.message, error.hint.as_deref());
                }
            }
        }
    }
    let out = &reply.output;
    if let Some(spill) = &out.spill {
        let omitted = out.stdout_omitted + out.stderr_omitted;
        tracing::info!(omitted, spill, "the reply holds head and tail only");
    }
    match (reply.kernel.state, &reply.kernel.note) {
        (_, Some(note)) => output::note(note),
        (State::Reset, None) if reply.status == Status::Died || reply.status == Status::Timeout => {
            output::note("the variables of this session are gone; a new interpreter stands ready");
        }
        _ => {}
    }
}

fn word(status: Status) -> &'static str {
    match status {
        Status::Timeout => "timeout",
        Status::Interrupted => "interrupted",
        Status::Died => "died",
        Status::Lost => "lost",
        Status::Refused => "refused",
        Status::Ok | Status::Error | Status::Exit => "error",
    }
}

fn with_line_end(text: &str) -> String {
    if text.ends_with('\n') { text.to_owned() } else { format!("{text}\n") }
}

/// A name that is safe as part of a file's name.
fn slug(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).take(40).collect()
}
