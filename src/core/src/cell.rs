//! A cell as the caller describes it.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::id::CellId;
use crate::tools::Tools;
use crate::wire::message::{self, Echo, Request};

/// One piece of code to run, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cell {
    /// The code.
    pub code: String,
    /// How long it may run, from its start. Default: 60 s. `None` sets no bound.
    pub timeout: Option<Duration>,
    /// How long it may wait for other cells of its kernel before it is withdrawn. Default: 10 minutes.
    pub queue_timeout: Duration,
    /// How many bytes of each stream the reply holds; head and tail, if there was more. Default: 1 MiB.
    pub max_output: usize,
    /// Which values are shown.
    pub echo: Echo,
    /// Directory to change to first. It stays.
    pub cwd: Option<String>,
    /// Environment variables to set first. They stay.
    pub env: BTreeMap<String, String>,
    /// Run it in a new interpreter, without the variables of earlier cells.
    pub reset: bool,
    /// The functions of this process that its code may call.
    pub tools: Option<Tools>,
}

impl Cell {
    /// A cell with the defaults.
    pub fn new(code: impl Into<String>) -> Self {
        Cell {
            code: code.into(),
            timeout: Some(Duration::from_secs(60)),
            queue_timeout: Duration::from_secs(600),
            max_output: 1024 * 1024,
            echo: Echo::Last,
            cwd: None,
            env: BTreeMap::new(),
            reset: false,
            tools: None,
        }
    }

    /// Sets how long it may run.
    #[must_use]
    pub fn timeout(mut self, timeout: impl Into<Option<Duration>>) -> Self {
        self.timeout = timeout.into();
        self
    }

    /// Lets its code call these tools. Somebody has to wait for it: a cell that is only submitted has none.
    #[must_use]
    pub fn tools(mut self, tools: impl Into<Option<Tools>>) -> Self {
        self.tools = tools.into();
        self
    }

    /// Its timeout as both sides' clocks can take it.
    pub fn timeout_ms(&self) -> Option<u64> {
        self.timeout.map(|timeout| millis(clamped(timeout)))
    }

    /// The message that is sent for it; its tools are offered by a [`Desk`](crate::tools::Desk).
    pub fn to_request(&self, id: CellId) -> Request {
        Request {
            v: message::VERSION,
            id,
            code: self.code.as_str().into(),
            timeout_ms: self.timeout_ms(),
            max_output: self.max_output as u64,
            echo: self.echo,
            cwd: self.cwd.clone(),
            env: self.env.clone(),
            reset: self.reset,
            tools: None,
        }
    }
}

impl From<&str> for Cell {
    fn from(code: &str) -> Self {
        Cell::new(code)
    }
}

/// The longest duration that is meant: some thirty years. Longer ones would overflow the clocks of one side or the other.
pub const LONGEST: Duration = Duration::from_secs(1_000_000_000);

/// A duration that can be added to any moment.
pub fn clamped(duration: Duration) -> Duration {
    duration.min(LONGEST)
}

/// Whole milliseconds, rounded up, so that a short timeout never becomes none.
pub fn millis(duration: Duration) -> u64 {
    u64::try_from(duration.as_micros().div_ceil(1000)).unwrap_or(u64::MAX)
}
