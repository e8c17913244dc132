//! `farcell repl`: cells at a prompt, with history, several lines, and Ctrl-C that keeps the variables.

use std::borrow::Cow;
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt as _;

use farcell::{Cell, Echo, Result, State, Status};
use reedline::{
    FileBackedHistory, Prompt, PromptEditMode, PromptHistorySearch, Reedline, Signal, ValidationResult,
    Validator,
};

use super::args::{self, KernelArgs, SessionArgs};
use super::context::{Context, environment, local_error};
use super::exit::{self, Exit};
use super::output;
use super::run::run_interruptibly;
use super::show::Live;
use super::tools::ToolArgs;

/// How many lines of history are kept.
const HISTORY: usize = 10_000;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A line that ends with a colon, an open bracket or a backslash goes on; an empty line ends a block.
Ctrl-C interrupts the running cell and keeps the variables. Ctrl-D leaves; the kernel stays for `farcell run`.
%reset throws the variables away, %stop ends the kernel and leaves, %quit leaves.")]
pub(crate) struct Args {
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    kernel: KernelArgs,
    /// How long a cell may run, such as 90s or 10m, or none
    #[arg(long, value_name = "TIME", value_parser = args::timeout, default_value = "none")]
    timeout: args::Timeout,
    #[command(flatten)]
    tools: ToolArgs,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Exit> {
    let session = context.session(&args.session, Some(&args.kernel))?;
    let history = history(context).map_err(|e| local_error("cannot open the history", e))?;
    let mut editor = Reedline::create().with_history(Box::new(history)).with_validator(Box::new(Blocks));
    let mut cell = Cell::new("");
    cell.timeout = args.timeout.0;
    cell.echo = Echo::All;
    cell.cwd.clone_from(&args.kernel.cwd);
    cell.env.extend(environment(&args.kernel.env)?);
    cell.tools = args.tools.tools(context).await?;
    if output::is_terminal() {
        let key = session.key();
        output::aside(&format!(
            "session {:?} on {}; Ctrl-D leaves, the kernel stays",
            key.session, key.target
        ));
    }
    let mut last = Exit::OK;
    loop {
        // The editor owns the terminal while it reads, so it gets a thread of its own.
        let read = tokio::task::block_in_place(|| editor.read_line(&Python));
        let code = match read.map_err(|e| local_error("cannot read from the terminal", e))? {
            Signal::Success(code) => code,
            Signal::CtrlC => continue,
            Signal::CtrlD => return Ok(last),
        };
        match code.trim() {
            "" => continue,
            "%quit" | "exit" | "quit" | "exit()" | "quit()" => return Ok(last),
            "%reset" => {
                match session.reset().await {
                    Ok(_) => output::aside("the variables are gone"),
                    Err(e) => output::error(&e, false),
                }
                continue;
            }
            "%stop" => {
                session.stop().await?;
                return Ok(last);
            }
            _ => {}
        }
        cell.code = code;
        let live = Live::new(context, &session.key().session, false).trace_tools(args.tools.traces(context));
        last = match run_interruptibly(&session, &cell, &live).await {
            Ok(reply) => {
                live.finish(&reply);
                // What was set at the start stays; setting it again would undo what cells changed.
                if reply.kernel.state != State::None {
                    cell.cwd = None;
                    cell.env.clear();
                }
                if reply.status == Status::Exit {
                    return Ok(exit::of_reply(&reply));
                }
                Exit::OK
            }
            Err(e) => {
                output::error(&e, false);
                exit::of_error(&e)
            }
        };
    }
}

/// The history, in a file that is its owner's alone: what is typed may hold what others must not read.
fn history(context: &Context) -> std::io::Result<FileBackedHistory> {
    let path = context.state_dir.join("history");
    OpenOptions::new().append(true).create(true).mode(0o600).open(&path)?;
    FileBackedHistory::with_file(HISTORY, path).map_err(std::io::Error::other)
}

/// Python's own prompts.
struct Python;

impl Prompt for Python {
    fn render_prompt_left(&self) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_right(&self) -> Cow<'_, str> {
        Cow::Borrowed("")
    }

    fn render_prompt_indicator(&self, _: PromptEditMode) -> Cow<'_, str> {
        Cow::Borrowed(">>> ")
    }

    fn render_prompt_multiline_indicator(&self) -> Cow<'_, str> {
        Cow::Borrowed("... ")
    }

    fn render_prompt_history_search_indicator(&self, search: PromptHistorySearch) -> Cow<'_, str> {
        Cow::Owned(format!("(search: {}) ", search.term))
    }
}

/// Tells whether a text is a whole cell, by what can be seen without parsing Python.
struct Blocks;

impl Validator for Blocks {
    fn validate(&self, text: &str) -> ValidationResult {
        if is_whole(text) { ValidationResult::Complete } else { ValidationResult::Incomplete }
    }
}

fn is_whole(text: &str) -> bool {
    let scan = Scan::of(text);
    if scan.in_long_string || scan.open_brackets > 0 || text.trim_end().ends_with('\\') {
        return false;
    }
    let mut lines = text.lines().filter(|l| !l.trim().is_empty());
    let Some(first) = lines.next() else { return true };
    let starts_block = scan.ends_with_colon || first.trim_start().starts_with('@') || lines.next().is_some();
    // As at Python's prompt: a block ends with an empty line.
    !starts_block || text.ends_with('\n')
}

/// What a quick look at Python source tells: brackets and strings, and whether code ends with a colon.
struct Scan {
    open_brackets: i32,
    in_long_string: bool,
    ends_with_colon: bool,
}

impl Scan {
    fn of(text: &str) -> Scan {
        let mut scan = Scan { open_brackets: 0, in_long_string: false, ends_with_colon: false };
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            let triple = rest.get(..3).filter(|t| *t == "'''" || *t == "\"\"\"");
            if let Some(quote) = triple {
                match rest[3..].find(quote) {
                    Some(end) => rest = &rest[3 + end + 3..],
                    None => {
                        scan.in_long_string = true;
                        return scan;
                    }
                }
                scan.ends_with_colon = false;
                continue;
            }
            let len = match c {
                '\'' | '"' => short_string(rest, c),
                '#' => rest.find('\n').unwrap_or(rest.len()),
                _ => c.len_utf8(),
            };
            match c {
                '(' | '[' | '{' => scan.open_brackets += 1,
                ')' | ']' | '}' => scan.open_brackets -= 1,
                _ => {}
            }
            if !c.is_whitespace() && c != '#' {
                scan.ends_with_colon = c == ':';
            }
            rest = &rest[len..];
        }
        scan
    }
}

/// The length of a string literal that begins here; it ends with its line at the latest.
fn short_string(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            '\n' => return at,
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::is_whole;

    #[test]
    fn a_block_goes_on_until_an_empty_line() {
        for whole in [
            "1 + 1",
            "x = {1: 2}",
            "print('a:')",
            "for i in x:\n  pass\n",
            "'it # is'",
            "f(\n1)\n",
            "# only:",
        ] {
            assert!(is_whole(whole), "{whole:?}");
        }
        for open in
            ["for i in x:", "if a:  # why", "f(", "'''a", "x = [1,\n", "a \\", "def f():\n  return 1", "@dec"]
        {
            assert!(!is_whole(open), "{open:?}");
        }
    }
}
