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
    traces_tools: bool,
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
    /// It has no kernel.
    alone: bool,
}

impl Live {
    /// For the cells of a session; `quiet` prints nothing at all (`--json`).
    pub(crate) fn new(context: &Context, name: &str, quiet: bool) -> Self {
        let stamp = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let prefix = format!("{}-{}", slug(name), stamp.as_millis());
        let displays = Displays::new(&context.state_dir.join("displays"), &prefix);
        Live {
            quiet,
            traces_tools: false,
            shown: Mutex::new(Shown {
                displays,
                displayed: 0,
                open_line: false,
                printed: [0; 2],
                cell: None,
                alone: false,
            }),
        }
    }

    /// Prints tool calls on stderr, also where it is quiet otherwise.
    pub(crate) fn trace_tools(self, traces_tools: bool) -> Self {
        Live { traces_tools, ..self }
    }

    /// The cell, once it has been sent.
    pub(crate) fn cell(&self) -> Option<CellId> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).cell.clone()
    }

    /// Whether the cell runs without a kernel.
    pub(crate) fn is_alone(&self) -> bool {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).alone
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
        let is_of_tools = matches!(event, Event::ToolCall { .. } | Event::ToolAnswer { .. });
        let is_wanted = if is_of_tools { self.traces_tools } else { !self.quiet };
        if !is_wanted && !matches!(event, Event::Sent { .. } | Event::Alone) {
            return;
        }
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        match event {
            Event::Output { stream, text, bytes } => shown.print(stream, &text, bytes),
            Event::Display(bundle) => {
                shown.display(&bundle);
                shown.displayed += 1;
            }
            Event::Sent { id } => shown.cell = Some(id),
            Event::Alone => shown.alone = true,
            Event::Queued { ahead } => {
                output::note(&format!("waiting for {ahead} other cell(s) of this session"));
            }
            Event::Note(text) => output::note(&text),
            Event::ToolCall { .. } | Event::ToolAnswer { .. } => {
                shown.end_line();
                output::aside(&trace(&event));
            }
            _ => {}
        }
    }

    fn wants_output(&self) -> bool {
        !self.quiet
    }
}

impl Shown {
    /// Prints text that stands for so many bytes of what the cell has printed: cleaning makes it longer or shorter.
    fn print(&mut self, stream: Stream, text: &str, bytes: u64) {
        self.printed[stream as usize] += bytes;
        if text.is_empty() {
            return;
        }
        match stream {
            Stream::Stdout => output::raw_stdout(text),
            Stream::Stderr => output::raw_stderr(text),
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
        let missing = bytes.saturating_sub(printed);
        if missing == 0 {
            return;
        }
        if printed == 0 {
            self.print(stream, text, bytes);
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
            self.print(stream, &format!("\n[{left_out} bytes were not kept]\n"), left_out);
            output::note(&format!("{left_out} bytes of output were more than the target keeps of one cell"));
        }
        self.print(stream, tail, missing - left_out);
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

/// How much of arguments and results a trace shows.
const TRACED: usize = 300;

/// A tool call, or what came of it, in a line.
fn trace(event: &Event) -> String {
    match event {
        Event::ToolCall { call, name, arguments } => {
            let arguments = serde_json::to_string(&**arguments).unwrap_or_default();
            format!("tool call {call}: {}({})", printable(name, TRACED), printable(&arguments, TRACED))
        }
        Event::ToolAnswer { call, outcome, duration, .. } => {
            let ms = duration.as_secs_f64() * 1000.0;
            match outcome {
                Ok(output) => format!("tool call {call}: {} in {ms:.1} ms", printable(output.json(), TRACED)),
                Err(failure) => {
                    let message = printable(&failure.to_string(), TRACED);
                    format!("tool call {call}: failed ({}) in {ms:.1} ms: {message}", failure.kind)
                }
            }
        }
        _ => String::new(),
    }
}

/// At most `most` characters of a text that comes from a cell or a tool, on one line, with nothing in it that moves the cursor or turns the text around.
pub(crate) fn printable(text: &str, most: usize) -> String {
    let mut shown = String::new();
    for c in text.chars().take(most) {
        let turns = matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}');
        if c.is_control() || turns {
            shown.extend(c.escape_default());
        } else {
            shown.push(c);
        }
    }
    let more = text.chars().count().saturating_sub(most);
    if more > 0 {
        shown.push_str(&format!(" \u{2026} and {more} more characters"));
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn nothing_that_a_terminal_obeys_is_shown_as_it_is() {
        assert_eq!(printable("a\u{1b}[2J\n\u{9b}\u{202e}b", 100), "a\\u{1b}[2J\\n\\u{9b}\\u{202e}b");
        assert_eq!(printable("abcdef", 4), "abcd \u{2026} and 2 more characters");
        assert_eq!(printable("\u{e4}\u{1f600}", 4), "\u{e4}\u{1f600}");
    }
}
