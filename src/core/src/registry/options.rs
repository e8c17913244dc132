//! Settings of a registry and of its sessions.

use std::collections::BTreeMap;
use std::time::Duration;

use super::store::Store;
use crate::output::Secrets;
use crate::wire::message::Limits;

/// The settings of a registry.
#[derive(Debug, Clone)]
pub struct RegistryOptions {
    /// How many kernels at most, not counting those of delegated children. Default: 4.
    pub cap: usize,
    /// After how long without use a kernel is stopped. Default: 8 hours; `None` for never.
    pub idle: Option<Duration>,
    /// How long a new session waits for room while all kernels are busy. Default: 60 s.
    pub wait_for_room: Duration,
    /// Where kernels are remembered for other processes; without it they end with the registry.
    pub store: Option<Store>,
    /// Values that are redacted in whatever comes from any kernel.
    pub secrets: Secrets,
}

impl Default for RegistryOptions {
    fn default() -> Self {
        RegistryOptions {
            cap: 4,
            idle: Some(Duration::from_secs(8 * 3600)),
            wait_for_room: Duration::from_secs(60),
            store: None,
            secrets: Secrets::new(),
        }
    }
}

/// How the kernels of a session are started; fields left alone take the defaults of target and far side.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SessionOptions {
    /// The name of these settings; kernels of different profiles are different kernels. Empty means `default`.
    pub profile: String,
    /// The Python to use.
    pub python: Option<String>,
    /// The base directory on the target.
    pub dir: Option<String>,
    /// The working directory of a new kernel.
    pub cwd: Option<String>,
    /// Environment variables of a new kernel.
    pub env: BTreeMap<String, String>,
    /// After how long without a cell a new kernel ends itself, even when nobody is left to ask. Default: a day.
    pub idle: Option<Duration>,
    /// Limits of a new kernel.
    pub limits: Limits,
    /// Modules that shall be imported before the first cell of a new kernel: on a target that has had a kernel of this kind lately that
    /// costs no time. One that cannot be imported is told in the first reply's note.
    pub preload: Vec<String>,
    /// How many kernels like this one shall stand ready on the target, so that a new session's first cell takes one over: at most 32. They are
    /// no kernels of the registry's, and end ten minutes after the last new kernel. `None` leaves the number as others have set it.
    pub pool: Option<u32>,
    /// Values that are redacted in whatever comes from this session's kernels, beside those of the registry and those of variables in `env`
    /// whose names look like secrets ([`is_secret_name`](crate::is_secret_name)).
    pub secrets: Secrets,
    /// Gives everything as it came: terminal escapes are not removed, and secrets not redacted.
    pub raw: bool,
}
