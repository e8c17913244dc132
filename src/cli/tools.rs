//! `--tool`: commands of this machine that a cell may call as functions.

mod ask;
mod command;

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use farcell::{Error, ErrorKind, Result, Step, Tool, Tools};
use tokio::task::JoinSet;

use self::ask::Terminal;
use self::command::{CommandTool, SchemaFrom};
use super::args;
use super::config::ConfiguredTool;
use super::context::Context;

/// How long one call of a tool may take, if nothing else is said.
const TIMEOUT: Duration = Duration::from_secs(600);
/// In the place of a file: any arguments.
const ANY: &str = "any";

/// Which tools a cell may call.
#[derive(Debug, Clone, clap::Args)]
#[command(next_help_heading = "Tools")]
pub(crate) struct ToolArgs {
    /// Let the cell call a command of this machine: `from farcell_tools import NAME`. The arguments
    /// come as JSON on stdin, the result goes as JSON to stdout; a command that fails raises ToolError
    /// with its stderr. NAME alone is one from the config. Can be given several times
    #[arg(long = "tool", value_name = "NAME[=COMMAND]")]
    tools: Vec<String>,
    /// The JSON schema of a tool's arguments, where `COMMAND --schema` does not print it; NAME=any for
    /// a tool that takes any arguments
    #[arg(long = "tool-schema", value_name = "NAME=FILE")]
    schemas: Vec<String>,
    /// Ask at the terminal before each call of this tool; the cell's deadline stands still meanwhile
    #[arg(long = "ask-tool", value_name = "NAME")]
    ask: Vec<String>,
    /// How long one call may take [default: 10m]
    #[arg(long, value_name = "TIME", value_parser = args::duration)]
    tool_timeout: Option<Duration>,
    /// How many calls a cell may make [default: 50]
    #[arg(long, value_name = "N")]
    tool_budget: Option<u32>,
    /// Tell each call and what came of it, on stderr
    #[arg(long)]
    trace_tools: bool,
}

/// What is known of a tool before it is asked for its schema.
#[derive(Debug)]
struct Given {
    name: String,
    command: String,
    schema: Option<SchemaFrom>,
    asks: bool,
    timeout: Option<Duration>,
}

impl ToolArgs {
    /// Whether calls are told as they are made.
    pub(crate) fn traces(&self, context: &Context) -> bool {
        self.trace_tools || context.config.defaults.trace_tools
    }

    /// The tools, ready to be called; `None` if there are none.
    pub(crate) async fn tools(&self, context: &Context) -> Result<Option<Tools>> {
        let mut given = self.given(context)?;
        self.complete(&mut given)?;
        if given.is_empty() {
            return Ok(None);
        }
        let defaults = &context.config.defaults;
        let timeout = self.tool_timeout.or(defaults.tool_timeout).unwrap_or(TIMEOUT);
        let mut tasks = JoinSet::new();
        for (at, tool) in given.into_iter().enumerate() {
            let timeout = tool.timeout.filter(|_| self.tool_timeout.is_none()).unwrap_or(timeout);
            let Given { name, command, schema, asks, .. } = tool;
            tasks.spawn(async move {
                CommandTool::prepare(name, &command, schema, asks, timeout).await.map(|tool| (at, tool))
            });
        }
        let mut tools = Vec::new();
        while let Some(prepared) = tasks.join_next().await {
            let prepared = prepared.map_err(|e| Error::new(ErrorKind::Local, e.to_string()))?;
            tools.push(prepared?);
        }
        tools.sort_by_key(|(at, _)| *at);
        let tools = tools.into_iter().map(|(_, tool)| Arc::new(tool) as Arc<dyn Tool>);
        let mut tools = Tools::new(tools)?.approver(Arc::new(Terminal));
        if let Some(budget) = self.tool_budget.or(defaults.tool_budget) {
            tools = tools.budget(budget);
        }
        Ok(Some(tools))
    }

    /// The tools that are named here, or else in the defaults.
    fn given(&self, context: &Context) -> Result<Vec<Given>> {
        let named = if self.tools.is_empty() { &context.config.defaults.tools } else { &self.tools };
        named.iter().map(|text| given(context, text)).collect()
    }

    /// Adds what other arguments say of them.
    fn complete(&self, given: &mut [Given]) -> Result<()> {
        let names = given.iter().map(|tool| tool.name.clone()).collect::<Vec<_>>().join(", ");
        let unknown = |option: &str, name: &str| {
            let tools =
                if names.is_empty() { "there is none".to_owned() } else { format!("there are: {names}") };
            usage(format!("{option} {name}: there is no tool of that name")).with_hint(tools)
        };
        for text in &self.schemas {
            let Some((name, file)) = text.split_once('=').filter(|(_, file)| !file.is_empty()) else {
                let hint = "write it as --tool-schema NAME=FILE, or NAME=any";
                return Err(usage(format!("--tool-schema {text}: there is no file")).with_hint(hint));
            };
            let tool = given.iter_mut().find(|tool| tool.name == name);
            tool.ok_or_else(|| unknown("--tool-schema", name))?.schema = Some(schema_from(file, None));
        }
        let asks: BTreeSet<&String> = self.ask.iter().collect();
        for name in asks {
            let tool = given.iter_mut().find(|tool| tool.name == *name);
            tool.ok_or_else(|| unknown("--ask-tool", name))?.asks = true;
        }
        Ok(())
    }
}

fn given(context: &Context, text: &str) -> Result<Given> {
    if let Some((name, command)) = text.split_once('=') {
        let (name, command) = (name.trim().to_owned(), command.to_owned());
        return Ok(Given { name, command, schema: None, asks: false, timeout: None });
    }
    let Some(ConfiguredTool { command, schema, ask, timeout }) = context.config.tools.get(text) else {
        let known: Vec<_> = context.config.tools.keys().map(String::as_str).collect();
        let hint = if known.is_empty() {
            format!("say which command it is: --tool '{text}=COMMAND'")
        } else {
            format!(
                "the config has these: {}; others need a command: --tool '{text}=COMMAND'",
                known.join(", ")
            )
        };
        return Err(
            usage(format!("--tool {text}: there is no tool of that name in the config")).with_hint(hint)
        );
    };
    let schema = schema.as_deref().map(|file| schema_from(file, context.config.dir.as_ref()));
    Ok(Given { name: text.to_owned(), command: command.clone(), schema, asks: *ask, timeout: *timeout })
}

fn schema_from(text: &str, relative_to: Option<&PathBuf>) -> SchemaFrom {
    match relative_to {
        _ if text == ANY => SchemaFrom::Any,
        Some(dir) => SchemaFrom::File(dir.join(text)),
        None => SchemaFrom::File(text.into()),
    }
}

/// The command line, or what it names, is to blame.
fn usage(message: String) -> Error {
    Error::new(ErrorKind::BadInput, message).at(Step::Parse)
}
