//! A tool that is a command: arguments as JSON on stdin, the result as JSON on stdout.

use std::path::{Path, PathBuf};
use std::time::Duration;

use async_trait::async_trait;
use farcell::bytes::Bytes;
use farcell::local::run_program;
use farcell::tools::{LONGEST_ANSWER, check_schema};
use farcell::{Ended, Error, ErrorKind, Instant, Output, Result, Tool, ToolCall, ToolFailure, ToolOutput};
use serde_json::{Value, json};

use super::usage;

/// How long `COMMAND --schema` may take, and how much it may print.
const SCHEMA: Duration = Duration::from_secs(10);
const LONGEST_SCHEMA: usize = 1 << 20;
/// How much of a command's stderr is told.
const LINES: usize = 10;
const CHARACTERS: usize = 2000;

/// Where the schema of a tool's arguments is, if the command does not print it.
#[derive(Debug)]
pub(super) enum SchemaFrom {
    File(PathBuf),
    /// There is none: it takes any arguments.
    Any,
}

/// A command that cells may call.
#[derive(Debug)]
pub(super) struct CommandTool {
    name: String,
    argv: Vec<String>,
    doc: String,
    schema: Value,
    asks: bool,
    timeout: Duration,
}

impl CommandTool {
    /// Looks for the command and gets its schema.
    pub(super) async fn prepare(
        name: String,
        command: &str,
        schema: Option<SchemaFrom>,
        asks: bool,
        timeout: Duration,
    ) -> Result<Self> {
        let argv = split(&name, command)?;
        find(&name, &argv[0])?;
        let schema = match schema {
            Some(SchemaFrom::Any) => json!({"type": "object"}),
            Some(SchemaFrom::File(path)) => read(&name, &path)?,
            None => ask(&name, command, &argv).await?,
        };
        check_schema(&name, &schema)?;
        let doc = schema.get("description").and_then(Value::as_str).unwrap_or_default().to_owned();
        Ok(CommandTool { name, argv, doc, schema, asks, timeout })
    }
}

#[async_trait]
impl Tool for CommandTool {
    fn name(&self) -> &str {
        &self.name
    }

    fn doc(&self) -> &str {
        &self.doc
    }

    fn schema(&self) -> &Value {
        &self.schema
    }

    fn needs_approval(&self) -> bool {
        self.asks
    }

    async fn call(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        let stdin = Bytes::copy_from_slice(call.json().as_bytes());
        let output = run_program(&self.argv, stdin, Instant::now() + self.timeout, LONGEST_ANSWER).await;
        let output = output.map_err(|e| match e.kind() {
            ErrorKind::Deadline => {
                ToolFailure::new("Timeout", format!("{} did not end within {:?}", self.name, self.timeout))
            }
            _ => ToolFailure::new("CommandFailed", e.message()),
        })?;
        if output.ended != Ended::Exit(0) {
            let how = told(output.ended);
            return Err(ToolFailure::new(
                &how,
                said(&output).unwrap_or_else(|| format!("{} ended with {how} and said nothing", self.name)),
            ));
        }
        let text = String::from_utf8(output.stdout.to_vec())
            .map_err(|e| ToolFailure::new("BadResult", format!("its stdout is not UTF-8: {e}")))?;
        // Nothing said is nothing returned.
        if text.trim().is_empty() {
            return Ok(Value::Null.into());
        }
        ToolOutput::from_json(text.trim()).map_err(|e| {
            ToolFailure::new(
                &e.name,
                format!("its stdout is no JSON: {} (it begins with {:?})", e.message, beginning(&text)),
            )
        })
    }
}

/// A command line as words. No shell: whoever wants one writes `sh -c '…'`.
fn split(name: &str, command: &str) -> Result<Vec<String>> {
    let bad = |why: &str| usage(format!("--tool {name}={command}: {why}"));
    let argv = shell_words::split(command).map_err(|_| bad("a quote is not closed"))?;
    if argv.is_empty() {
        return Err(bad("there is no command")
            .with_hint("write it as --tool 'NAME=COMMAND', such as --tool 'search=python3 search.py'"));
    }
    if argv.iter().any(|word| word.contains('\0')) {
        return Err(bad("there is a NUL in it"));
    }
    Ok(argv)
}

/// Checks that there is such a program, so that it is missed before the cell runs.
fn find(name: &str, program: &str) -> Result<()> {
    let is_there = if program.contains('/') {
        Path::new(program).is_file()
    } else {
        let path = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
    };
    if is_there {
        return Ok(());
    }
    Err(usage(format!("the tool {name:?} cannot be run: there is no program {program:?}")).with_hint(
        "check how it is spelled, or install it; the command is split into words, and no shell reads it",
    ))
}

fn read(name: &str, path: &Path) -> Result<Value> {
    let bad = |e: &dyn std::fmt::Display| {
        usage(format!("the schema of the tool {name:?} cannot be read from {}: {e}", path.display()))
    };
    let text = std::fs::read_to_string(path).map_err(|e| bad(&e))?;
    serde_json::from_str(&text).map_err(|e| bad(&e))
}

/// What `COMMAND --schema` prints.
async fn ask(name: &str, command: &str, argv: &[String]) -> Result<Value> {
    let argv = [argv, &["--schema".to_owned()]].concat();
    let bad = |why: String| -> Error {
        usage(format!("the tool {name:?} has no schema: `{command} --schema` {why}")).with_hint(format!(
            "let it print the JSON schema of its arguments, or give --tool-schema {name}=FILE; --tool-schema {name}=any is for a tool that takes any arguments"
        ))
    };
    let output = run_program(&argv, Bytes::new(), Instant::now() + SCHEMA, LONGEST_SCHEMA).await;
    let output = output.map_err(|e| match e.kind() {
        ErrorKind::Deadline => bad(format!("did not end within {} seconds", SCHEMA.as_secs())),
        _ => bad(format!("failed: {}", e.message())),
    })?;
    if output.ended != Ended::Exit(0) {
        let said = said(&output).map_or_else(String::new, |said| format!(": {said}"));
        return Err(bad(format!("ended with {}{said}", told(output.ended))));
    }
    serde_json::from_slice(&output.stdout).map_err(|e| {
        let text = String::from_utf8_lossy(&output.stdout);
        if text.trim().is_empty() {
            bad("printed nothing".to_owned())
        } else {
            bad(format!("printed no JSON: {e} (it begins with {:?})", beginning(&text)))
        }
    })
}

fn told(ended: Ended) -> String {
    match ended {
        Ended::Exit(code) => format!("exit status {code}"),
        Ended::Signal(signal) => format!("signal {signal}"),
        Ended::Unknown => "an unknown status".to_owned(),
    }
}

/// The last lines of a command's stderr.
fn said(output: &Output) -> Option<String> {
    let text = String::from_utf8_lossy(&output.stderr);
    let lines: Vec<&str> = text.trim().lines().collect();
    let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
    let skipped = last.chars().count().saturating_sub(CHARACTERS);
    let last: String = last.chars().skip(skipped).collect();
    (!last.is_empty()).then_some(last)
}

fn beginning(text: &str) -> String {
    text.trim().chars().take(40).collect()
}
