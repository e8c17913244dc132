//! The only place of the program that prints.

use std::io::{self, IsTerminal as _, Write as _};

use anstyle::{AnsiColor, Style};
use farcell::{Error, ErrorInfo};
use serde::Serialize;
use serde_json::json;
use tracing_subscriber::EnvFilter;

const BAD: Style = AnsiColor::Red.on_default().bold();
const NOTE: Style = AnsiColor::Yellow.on_default();
const FAINT: Style = Style::new().dimmed();

/// Logs go to stderr: warnings by default, more with `-v`, or as `FARCELL_LOG` says.
pub(crate) fn start_logging(verbose: u8) {
    let level = match verbose {
        0 => "error",
        1 => "farcell=info,farcell_core=debug,farcell_local=debug",
        _ => "trace",
    };
    let filter = EnvFilter::try_from_env("FARCELL_LOG").unwrap_or_else(|_| EnvFilter::new(level));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(io::stderr)
        .with_ansi(io::stderr().is_terminal())
        .init();
}

/// True if a person reads stdout.
pub(crate) fn is_terminal() -> bool {
    io::stdout().is_terminal()
}

/// A line on stdout.
pub(crate) fn line(text: &str) {
    write(&mut io::stdout().lock(), format_args!("{text}\n"));
}

/// Text on stdout as it is, and at once.
pub(crate) fn raw_stdout(text: &str) {
    let mut out = io::stdout().lock();
    write(&mut out, format_args!("{text}"));
    flush(&mut out);
}

/// Text on stderr as it is.
pub(crate) fn raw_stderr(text: &str) {
    write(&mut io::stderr().lock(), format_args!("{text}"));
}

/// Bytes on stdout.
pub(crate) fn bytes(bytes: &[u8]) {
    let mut out = io::stdout().lock();
    quit_on_failure(out.write_all(bytes));
    flush(&mut out);
}

/// The one JSON document of `--json`.
pub(crate) fn document(value: &impl Serialize) {
    let mut out = io::stdout().lock();
    quit_on_failure(serde_json::to_writer(&mut out, value).map_err(io::Error::from));
    write(&mut out, format_args!("\n"));
    flush(&mut out);
}

/// Something that the user should know, on stderr.
pub(crate) fn note(text: &str) {
    write(&mut anstream::stderr().lock(), format_args!("{NOTE}farcell: {text}{NOTE:#}\n"));
}

/// An aside, on stderr.
pub(crate) fn aside(text: &str) {
    write(&mut anstream::stderr().lock(), format_args!("{FAINT}{text}{FAINT:#}\n"));
}

/// An error of farcell's own: on stderr, or as the document.
pub(crate) fn error(e: &Error, json: bool) {
    if json {
        document(&json!({ "error": ErrorInfo::from(e) }));
    } else {
        trouble("error", &e.to_string(), e.hint());
    }
}

/// What went wrong and what to do about it, on stderr.
pub(crate) fn trouble(word: &str, message: &str, hint: Option<&str>) {
    let mut err = anstream::stderr().lock();
    write(&mut err, format_args!("{BAD}{word}{BAD:#}: {message}\n"));
    if let Some(hint) = hint {
        write(&mut err, format_args!("{FAINT}hint: {hint}{FAINT:#}\n"));
    }
}

/// Rows under a heading, in columns.
pub(crate) fn table(heading: &[&str], rows: &[Vec<String>]) {
    let mut widths: Vec<usize> = heading.iter().map(|h| h.chars().count()).collect();
    for row in rows {
        for (width, cell) in widths.iter_mut().zip(row) {
            *width = (*width).max(cell.chars().count());
        }
    }
    let heading: Vec<String> = heading.iter().map(|h| (*h).to_owned()).collect();
    for row in std::iter::once(&heading).chain(rows) {
        let cells = row.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$}"));
        line(cells.collect::<Vec<_>>().join("  ").trim_end());
    }
}

fn write(to: &mut impl io::Write, what: std::fmt::Arguments<'_>) {
    quit_on_failure(to.write_fmt(what));
}

fn flush(to: &mut impl io::Write) {
    quit_on_failure(to.flush());
}

/// A reader that has gone (`farcell … | head`) is no error: there is nobody left to tell, so end as a program killed by SIGPIPE would.
#[allow(clippy::needless_pass_by_value, reason = "it ends the result")]
fn quit_on_failure(result: io::Result<()>) {
    if result.is_err() {
        std::process::exit(141);
    }
}
