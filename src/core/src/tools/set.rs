//! A set of tools, and what a cell may do with it.

use std::any::Any;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::approval::Approver;
use super::schema::check_schema;
use super::tool::{Tool, check_name};
use crate::error::{Error, ErrorKind, Result, Step};
use crate::wire::message::OfferedTool;

/// How many calls a cell may make, if nothing else is said.
const BUDGET: u32 = 50;
/// How many of them run at once.
const PARALLEL: usize = 8;
/// How many tools a set may have.
const MOST: usize = 256;
/// How long a call waits for a host that has gone.
const PATIENCE: Duration = Duration::from_secs(600);
/// The module that cells import them from.
const IMPORT: &str = "farcell_tools";

/// A set of tools, and what a cell may do with it. A clone is the same set, with the same memory of what a person has agreed to for good.
#[derive(Clone)]
pub struct Tools {
    set: Arc<Set>,
    pub(super) import: Arc<str>,
    pub(super) budget: u32,
    allowed: Option<Arc<BTreeSet<String>>>,
    pub(super) parallel: usize,
    pub(super) patience: Duration,
    pub(super) context: Option<Arc<dyn Any + Send + Sync>>,
    pub(super) approver: Option<Arc<dyn Approver>>,
    pub(super) asking: Arc<Asking>,
}

struct Set {
    by_name: BTreeMap<String, Arc<dyn Tool>>,
    /// As the far side is told, in the order in which they were given.
    offered: Arc<[OfferedTool]>,
}

/// What the person who is asked has said so far.
#[derive(Debug, Default)]
pub(super) struct Asking {
    /// One question at a time.
    pub(super) turn: tokio::sync::Mutex<()>,
    always: Mutex<BTreeSet<String>>,
}

impl Asking {
    fn always(&self) -> MutexGuard<'_, BTreeSet<String>> {
        self.always.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_always(&self, tool: &str) -> bool {
        self.always().contains(tool)
    }

    pub(super) fn set_always(&self, tool: &str) {
        self.always().insert(tool.to_owned());
    }
}

impl Tools {
    /// A set of tools.
    ///
    /// # Errors
    /// A name that a Python function cannot have, two tools of one name, a schema that is none of an object.
    pub fn new(tools: impl IntoIterator<Item = Arc<dyn Tool>>) -> Result<Self> {
        let bad = |message: String| Error::new(ErrorKind::BadInput, message).at(Step::Parse);
        let mut by_name = BTreeMap::new();
        let mut offered = Vec::new();
        for tool in tools {
            let name = tool.name().to_owned();
            check_name("a tool", &name)?;
            // What the module has beside them.
            if matches!(name.as_str(), "ToolError" | "aio") || name.starts_with("__") {
                let e = bad(format!("{name:?} cannot be the name of a tool: the module of the tools has it"));
                return Err(e.with_hint("give the tool another name"));
            }
            check_schema(&name, tool.schema())?;
            offered.push(OfferedTool {
                name: name.clone(),
                doc: tool.doc().to_owned(),
                schema: tool.schema().clone(),
            });
            if by_name.insert(name.clone(), tool).is_some() {
                let e = bad(format!("there are two tools called {name:?}"));
                return Err(e.with_hint("cells call a tool by its name, so each needs its own"));
            }
        }
        if offered.is_empty() {
            return Err(bad("a set of tools needs at least one".to_owned()));
        }
        if offered.len() > MOST {
            return Err(bad(format!("{} tools are too many: {MOST} is the most", offered.len())));
        }
        Ok(Tools {
            set: Arc::new(Set { by_name, offered: offered.into() }),
            import: IMPORT.into(),
            budget: BUDGET,
            allowed: None,
            parallel: PARALLEL,
            patience: PATIENCE,
            context: None,
            approver: None,
            asking: Arc::default(),
        })
    }

    /// Has cells import them from a module of another name than `farcell_tools`.
    ///
    /// # Errors
    /// A name that a Python module cannot have.
    pub fn import(mut self, module: &str) -> Result<Self> {
        check_name("a module", module)?;
        self.import = module.into();
        Ok(self)
    }

    /// How many calls one cell may make. Default: 50.
    #[must_use]
    pub fn budget(mut self, calls: u32) -> Self {
        self.budget = calls;
        self
    }

    /// Allows these tools only. The others are there, and calls of them are refused. So what is allowed can change from cell to cell, and the module that
    /// cells see stays the same.
    ///
    /// # Errors
    /// A name that no tool of the set has.
    pub fn allow<'a>(mut self, names: impl IntoIterator<Item = &'a str>) -> Result<Self> {
        let names: BTreeSet<String> = names.into_iter().map(str::to_owned).collect();
        if let Some(name) = names.iter().find(|name| !self.set.by_name.contains_key(*name)) {
            let message = format!("{name:?} cannot be allowed: there is no tool of that name");
            let hint = format!("there are: {}", self.names());
            return Err(Error::new(ErrorKind::BadInput, message).at(Step::Parse).with_hint(hint));
        }
        self.allowed = Some(Arc::new(names));
        Ok(self)
    }

    /// How many calls of one cell run at once; others wait their turn. Default: 8.
    #[must_use]
    pub fn parallel(mut self, calls: usize) -> Self {
        self.parallel = calls.clamp(1, 1024);
        self
    }

    /// For how long a call waits for an answer while nobody waits for its cell: this process may have gone, and may come back. Default: 10 minutes.
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Something of the caller's own that every call gets to see: [`Authority::context`](super::Authority::context).
    #[must_use]
    pub fn context<T: Any + Send + Sync>(mut self, context: Arc<T>) -> Self {
        self.context = Some(context);
        self
    }

    /// Who is asked about calls of tools that [need it](Tool::needs_approval). Without one they are denied.
    #[must_use]
    pub fn approver(mut self, approver: Arc<dyn Approver>) -> Self {
        self.approver = Some(approver);
        self
    }

    pub(super) fn get(&self, name: &str) -> Option<&Arc<dyn Tool>> {
        self.set.by_name.get(name)
    }

    pub(super) fn is_allowed(&self, name: &str) -> bool {
        self.allowed.as_ref().is_none_or(|allowed| allowed.contains(name))
    }

    /// Their names, for messages.
    pub(super) fn names(&self) -> String {
        self.set.by_name.keys().map(String::as_str).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn list(&self) -> &Arc<[OfferedTool]> {
        &self.set.offered
    }
}

impl PartialEq for Tools {
    fn eq(&self, other: &Self) -> bool {
        fn same<T: ?Sized>(a: Option<&Arc<T>>, b: Option<&Arc<T>>) -> bool {
            match (a, b) {
                (Some(a), Some(b)) => Arc::ptr_eq(a, b),
                (None, None) => true,
                _ => false,
            }
        }
        Arc::ptr_eq(&self.set, &other.set)
            && (&self.import, self.budget, &self.allowed) == (&other.import, other.budget, &other.allowed)
            && (self.parallel, self.patience) == (other.parallel, other.patience)
            && same(self.context.as_ref(), other.context.as_ref())
            && same(self.approver.as_ref(), other.approver.as_ref())
    }
}

impl Eq for Tools {}

impl fmt::Debug for Tools {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tools")
            .field("names", &self.set.by_name.keys().collect::<Vec<_>>())
            .field("import", &self.import)
            .field("budget", &self.budget)
            .field("allowed", &self.allowed)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::tool::{ToolCall, function};
    use super::*;

    fn tool(name: &str, schema: Value) -> Arc<dyn Tool> {
        function(name, "doc", schema, |_: ToolCall| async { Ok(Value::Null) })
    }

    #[test]
    fn a_set_that_could_not_be_imported_is_refused() {
        for (names, why) in [
            (&["a b"][..], "\"a b\""),
            (&["1a"], "could not be called that"),
            (&[""], "\"\""),
            (&["class"], "word of Python's own"),
            (&["ToolError"], "the module of the tools has it"),
            (&["a", "b", "a"], "two tools called \"a\""),
            (&[], "at least one"),
        ] {
            let e = Tools::new(names.iter().map(|name| tool(name, json!({})))).unwrap_err();
            assert!(e.message().contains(why), "{names:?}: {e}");
        }
        let e = Tools::new([tool("a", json!(1))]).unwrap_err();
        assert!(e.message().contains("a number"), "{e}");
        let tools = Tools::new([tool("a", json!({}))]).unwrap();
        assert!(tools.clone().import("os.path").is_err());
        assert!(tools.allow(["b"]).unwrap_err().hint().unwrap().contains("there are: a"));
    }

    #[test]
    fn equal_is_the_same_set_with_the_same_rules() {
        let tools = Tools::new([tool("a", json!({}))]).unwrap();
        assert_eq!(tools, tools.clone());
        assert_ne!(tools, tools.clone().budget(1));
        assert_ne!(tools, tools.clone().context(Arc::new(1)));
        assert_ne!(tools, Tools::new([tool("a", json!({}))]).unwrap());
    }
}
