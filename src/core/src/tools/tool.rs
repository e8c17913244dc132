//! A tool, one call of it, and what comes of that.

use std::fmt;
use std::future::Future;
use std::sync::Arc;

use async_trait::async_trait;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use serde_json::{Map, Value};

use super::authority::Authority;
use crate::error::{Error, ErrorKind, Result, Step};

/// The arguments of a call, by name.
pub type ToolArguments = Map<String, Value>;

/// A function of the host that cells may call.
#[async_trait]
pub trait Tool: Send + Sync {
    /// Its name: that of a Python function.
    fn name(&self) -> &str;

    /// What it does, for whoever calls it: the function's docstring.
    fn doc(&self) -> &str;

    /// The JSON schema of its arguments, an object. The order of its properties is that of the function's parameters.
    fn schema(&self) -> &Value;

    /// True if a person has to agree to each call; see [`Tools::approver`](super::Tools::approver).
    fn needs_approval(&self) -> bool {
        false
    }

    /// Carries out one call. It is dropped when its cell ends or its caller gives it up, so what it has started must end with it.
    async fn call(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure>;
}

/// One call of a tool.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ToolCall {
    /// Its number among those of its cell, from 1.
    pub number: u64,
    /// The tool's name.
    pub name: Arc<str>,
    /// The arguments. They come from a cell's code; nothing has compared them with the schema on this side.
    pub arguments: Arc<ToolArguments>,
    /// On whose behalf it is made.
    pub authority: Arc<Authority>,
    pub(super) text: Arc<RawValue>,
}

impl ToolCall {
    /// The arguments as JSON, just as they came: a number that is too large for [`Value`] is whole in it.
    pub fn json(&self) -> &str {
        self.text.get()
    }

    /// Reads the arguments as `T`.
    ///
    /// # Errors
    /// The failure that the caller is to be told, naming the argument that does not fit.
    pub fn read<'a, T: Deserialize<'a>>(&'a self) -> Result<T, ToolFailure> {
        serde_json::from_str(self.json())
            .map_err(|e| ToolFailure::new("BadArguments", format!("the arguments do not fit: {e}")))
    }
}

/// What a tool returns: a JSON value.
#[derive(Clone)]
pub struct ToolOutput(pub(super) Arc<RawValue>);

impl ToolOutput {
    /// What `value` is as JSON.
    ///
    /// # Errors
    /// The failure that the caller is to be told: maps whose keys are no texts are nothing that JSON knows.
    pub fn new(value: &impl Serialize) -> Result<Self, ToolFailure> {
        let text = serde_json::value::to_raw_value(value)
            .map_err(|e| ToolFailure::new("BadResult", format!("the result cannot be JSON: {e}")))?;
        Ok(ToolOutput(text.into()))
    }

    /// A value that is JSON already; it stays as it is.
    ///
    /// # Errors
    /// The failure that the caller is to be told, with the place where it stops being JSON.
    pub fn from_json(text: impl Into<String>) -> Result<Self, ToolFailure> {
        let text = text.into();
        let bad = |e: serde_json::Error| ToolFailure::new("BadResult", format!("the result is no JSON: {e}"));
        // A raw value may hold half a surrogate pair, which is no text: only reading it all tells.
        serde_json::from_str::<Value>(&text).map_err(bad)?;
        RawValue::from_string(text).map(|raw| ToolOutput(raw.into())).map_err(bad)
    }

    /// The value as JSON.
    pub fn json(&self) -> &str {
        self.0.get()
    }
}

impl From<Value> for ToolOutput {
    fn from(value: Value) -> Self {
        // Every value can be written; were one not, `null` would be told.
        let text = serde_json::value::to_raw_value(&value).unwrap_or_else(|_| RawValue::NULL.to_owned());
        ToolOutput(text.into())
    }
}

impl PartialEq for ToolOutput {
    fn eq(&self, other: &Self) -> bool {
        self.json() == other.json()
    }
}

impl fmt::Debug for ToolOutput {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ToolOutput({} bytes)", self.json().len())
    }
}

/// Why a call has no result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[non_exhaustive]
pub enum FailureKind {
    /// The tool said so, or what it gave could not be sent.
    Tool,
    /// The call was not allowed, or was none.
    Refused,
    /// The cell has made all the calls that it may.
    Budget,
    /// A person said no, or none could be asked.
    Denied,
    /// The call was given up, or its cell ended.
    Cancelled,
    /// Nobody waits for the cell who could answer.
    NoHost,
    /// There is no tool of this name.
    Unknown,
    /// One that this side does not know.
    #[serde(other)]
    Other,
}

impl fmt::Display for FailureKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            FailureKind::Tool => "tool",
            FailureKind::Refused => "refused",
            FailureKind::Budget => "budget",
            FailureKind::Denied => "denied",
            FailureKind::Cancelled => "cancelled",
            FailureKind::NoHost => "no-host",
            FailureKind::Unknown => "unknown",
            FailureKind::Other => "other",
        })
    }
}

/// Why a call has no result, as its caller is told. It is an exception in the cell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ToolFailure {
    /// The kind.
    pub kind: FailureKind,
    /// A name, such as that of an exception.
    pub name: String,
    /// One sentence.
    pub message: String,
}

impl ToolFailure {
    /// A failure of the tool itself.
    pub fn new(name: impl Into<String>, message: impl Into<String>) -> Self {
        ToolFailure { kind: FailureKind::Tool, name: name.into(), message: message.into() }
    }

    pub(super) fn of(kind: FailureKind, name: &str, message: impl Into<String>) -> Self {
        ToolFailure { kind, name: name.to_owned(), message: message.into() }
    }
}

impl fmt::Display for ToolFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.name, self.message)
    }
}

impl std::error::Error for ToolFailure {}

/// Makes a tool of an async closure.
///
/// ```
/// use farcell_core::tools::{ToolCall, ToolFailure, Tools, function};
/// use serde_json::{Value, json};
///
/// let double = function(
///     "double",
///     "Twice a number.",
///     json!({"type": "object", "properties": {"x": {"type": "number"}}, "required": ["x"]}),
///     |call: ToolCall| async move {
///         let x = call.arguments["x"].as_f64().ok_or(ToolFailure::new("BadArguments", "x is no number"))?;
///         Ok(json!(x * 2.0))
///     },
/// );
/// let tools = Tools::new([double])?;
/// # Ok::<(), farcell_core::Error>(())
/// ```
pub fn function<F, Fut, T>(
    name: impl Into<String>,
    doc: impl Into<String>,
    schema: Value,
    call: F,
) -> Arc<dyn Tool>
where
    F: Fn(ToolCall) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, ToolFailure>> + Send + 'static,
    T: Into<ToolOutput> + 'static,
{
    Arc::new(Function { name: name.into(), doc: doc.into(), schema, call })
}

struct Function<F> {
    name: String,
    doc: String,
    schema: Value,
    call: F,
}

#[async_trait]
impl<F, Fut, T> Tool for Function<F>
where
    F: Fn(ToolCall) -> Fut + Send + Sync + 'static,
    Fut: Future<Output = Result<T, ToolFailure>> + Send + 'static,
    T: Into<ToolOutput> + 'static,
{
    fn name(&self) -> &str {
        &self.name
    }

    fn doc(&self) -> &str {
        &self.doc
    }

    fn schema(&self) -> &Value {
        &self.schema
    }

    async fn call(&self, call: ToolCall) -> Result<ToolOutput, ToolFailure> {
        (self.call)(call).await.map(Into::into)
    }
}

/// Words of Python that no function can be called.
const KEYWORDS: &[&str] = &[
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def",
    "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is",
    "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

/// Checks that `name` can be that of a Python function or module. Letters of ASCII only: what they are called is typed on many keyboards.
pub(super) fn check_name(what: &str, name: &str) -> Result<()> {
    let bad = |why: &str| {
        Error::new(ErrorKind::BadInput, format!("{name:?} cannot be the name of {what}: {why}"))
            .at(Step::Parse)
            .with_hint("letters, digits and underscores make one, such as search_pages")
    };
    if name.len() > 100 {
        return Err(bad("it is longer than 100 characters"));
    }
    let is_word = name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_');
    if !is_word || name.bytes().next().is_none_or(|b| b.is_ascii_digit()) {
        return Err(bad("a Python function could not be called that"));
    }
    if KEYWORDS.contains(&name) {
        return Err(bad("it is a word of Python's own"));
    }
    Ok(())
}
