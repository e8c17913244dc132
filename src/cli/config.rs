//! The config file: defaults and named targets. A mistake in it is reported with line and column, never passed over.

use std::collections::BTreeMap;
use std::io::IsTerminal as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use farcell::ssh::SshOptions;
use farcell::{Error, ErrorKind, Limits, Result, Step};
use serde::{Deserialize, Deserializer};

use super::args;

/// How long the program keeps a connection for the next command.
const CONTROL_PERSIST: Duration = Duration::from_secs(60);

/// What can stand in the file.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Config {
    pub(crate) defaults: Defaults,
    pub(crate) targets: BTreeMap<String, NamedTarget>,
    pub(crate) ssh: Ssh,
    pub(crate) tools: BTreeMap<String, ConfiguredTool>,
    /// Where the file is, for paths in it.
    #[serde(skip)]
    pub(crate) dir: Option<PathBuf>,
}

/// A command that cells may call as a tool, where it is named.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ConfiguredTool {
    pub(crate) command: String,
    /// A file, or `any`; else `COMMAND --schema` prints it.
    #[serde(default)]
    pub(crate) schema: Option<String>,
    /// A person is asked before each call.
    #[serde(default)]
    pub(crate) ask: bool,
    #[serde(default, deserialize_with = "optional_duration")]
    pub(crate) timeout: Option<Duration>,
}

/// How connections by ssh are kept.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Ssh {
    #[serde(deserialize_with = "optional_duration")]
    pub(crate) connect_timeout: Option<Duration>,
    #[serde(deserialize_with = "optional_duration")]
    pub(crate) keepalive: Option<Duration>,
    pub(crate) keepalive_count: Option<u32>,
    pub(crate) max_sessions: Option<usize>,
    /// How long a connection is kept for the next command; `0s` for not at all.
    #[serde(deserialize_with = "optional_duration_or_none")]
    pub(crate) control_persist: Option<Duration>,
    pub(crate) control_dir: Option<PathBuf>,
    /// The name of an environment variable, never a password.
    pub(crate) password_env: Option<String>,
    #[serde(deserialize_with = "optional_duration")]
    pub(crate) first_pause: Option<Duration>,
    #[serde(deserialize_with = "optional_duration")]
    pub(crate) last_pause: Option<Duration>,
}

/// Values for arguments that are not given.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct Defaults {
    /// A target or the name of one.
    pub(crate) on: Option<String>,
    pub(crate) session: Option<String>,
    pub(crate) owner: Option<String>,
    #[serde(deserialize_with = "optional_timeout")]
    pub(crate) timeout: Option<args::Timeout>,
    #[serde(deserialize_with = "optional_size")]
    pub(crate) max_output: Option<u64>,
    /// How many kernels at most; the one used longest ago makes room.
    pub(crate) max_kernels: Option<usize>,
    /// After how long without use a kernel is stopped.
    #[serde(deserialize_with = "optional_duration")]
    pub(crate) idle: Option<Duration>,
    /// Modules that are imported before the first cell of a kernel.
    pub(crate) preload: Vec<String>,
    /// How many kernels stand ready on a target.
    pub(crate) pool: Option<u32>,
    /// What cells print is shown as it came.
    pub(crate) raw: bool,
    /// Names of environment variables whose values are redacted.
    pub(crate) secrets: Vec<String>,
    /// Names of environment variables that new kernels get.
    pub(crate) env_pass: Vec<String>,
    /// The tools of this file that cells may call where the command line names none.
    pub(crate) tools: Vec<String>,
    #[serde(deserialize_with = "optional_duration")]
    pub(crate) tool_timeout: Option<Duration>,
    pub(crate) tool_budget: Option<u32>,
    pub(crate) trace_tools: bool,
}

/// A target under a name of its own, with what its kernels shall be like.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct NamedTarget {
    pub(crate) url: String,
    #[serde(default)]
    pub(crate) python: Option<String>,
    #[serde(default)]
    pub(crate) dir: Option<String>,
    #[serde(default)]
    pub(crate) cwd: Option<String>,
    #[serde(default)]
    pub(crate) env: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) profile: String,
    #[serde(default)]
    pub(crate) limits: Limits,
    /// Instead of that of the defaults.
    #[serde(default)]
    pub(crate) preload: Option<Vec<String>>,
    /// Instead of that of the defaults.
    #[serde(default)]
    pub(crate) pool: Option<u32>,
    /// Beside those of the defaults.
    #[serde(default)]
    pub(crate) env_pass: Vec<String>,
}

impl Ssh {
    /// What the driver is told. A program keeps connections for the next command, and may ask the person at the terminal.
    pub(crate) fn options(&self) -> SshOptions {
        let mut options = SshOptions::default();
        let set = |place: &mut Duration, value: Option<Duration>| *place = value.unwrap_or(*place);
        options.control_persist = CONTROL_PERSIST;
        set(&mut options.control_persist, self.control_persist);
        set(&mut options.connect_timeout, self.connect_timeout);
        set(&mut options.keepalive, self.keepalive);
        set(&mut options.first_pause, self.first_pause);
        set(&mut options.last_pause, self.last_pause);
        options.keepalive_count = self.keepalive_count.unwrap_or(options.keepalive_count);
        options.max_sessions = self.max_sessions.unwrap_or(options.max_sessions);
        options.control_dir.clone_from(&self.control_dir);
        options.password_env.clone_from(&self.password_env);
        options.ask = std::io::stdin().is_terminal() || std::env::var_os("SSH_ASKPASS").is_some();
        options
    }
}

impl Config {
    /// Reads the file that was named, or the one in `config_dir` if it is there.
    pub(crate) fn load(named: Option<&Path>, config_dir: Option<PathBuf>) -> Result<Self> {
        let (path, required) = match (named, config_dir) {
            (Some(path), _) => (path.to_owned(), true),
            (None, Some(dir)) => (dir.join("farcell/config.toml"), false),
            (None, None) => return Ok(Config::default()),
        };
        let bad = |message: String| Error::new(ErrorKind::BadInput, message).at(Step::Parse);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound && !required => return Ok(Config::default()),
            Err(e) => {
                return Err(
                    bad(format!("cannot read the config file {}: {e}", path.display())).with_source(e)
                );
            }
        };
        let config: Config = toml::from_str(&text).map_err(|e| {
            // toml's own message names line and column and shows the place.
            bad(format!("the config file {} has a mistake\n{}", path.display(), e.to_string().trim_end()))
                .with_hint("docs/guide.md lists what can stand in it")
        })?;
        Ok(Config { dir: path.parent().map(Path::to_owned), ..config })
    }
}

fn optional_timeout<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<args::Timeout>, D::Error> {
    text(deserializer, args::timeout)
}

fn optional_duration<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Duration>, D::Error> {
    text(deserializer, args::duration)
}

fn optional_duration_or_none<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> std::result::Result<Option<Duration>, D::Error> {
    text(deserializer, args::duration_or_none)
}

fn optional_size<'de, D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Option<u64>, D::Error> {
    text(deserializer, args::size)
}

/// A value that is written as text, read like the argument of the same name.
fn text<'de, D: Deserializer<'de>, T>(
    deserializer: D,
    read: impl Fn(&str) -> std::result::Result<T, String>,
) -> std::result::Result<Option<T>, D::Error> {
    let text = String::deserialize(deserializer)?;
    read(&text).map(Some).map_err(serde::de::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(text: &str) -> Result<Config> {
        let dir = std::env::temp_dir().join(format!("farcell-config-test-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let path = dir.join(format!("{:x}.toml", text.len()));
        std::fs::write(&path, text).unwrap();
        let config = Config::load(Some(&path), None);
        std::fs::remove_file(&path).unwrap();
        config
    }

    #[test]
    fn a_typo_is_reported_with_its_place() {
        let e = load("[defaults]\ntimeout = \"60s\"\nsesion = \"x\"\n").unwrap_err();
        assert!(e.to_string().contains("line 3, column 1") && e.to_string().contains("sesion"), "{e}");
        let e = load("[defaults]\nidle = \"soon\"\n").unwrap_err();
        assert!(e.to_string().contains("line 2"), "{e}");
    }

    #[test]
    fn a_target_has_its_own_preload_or_that_of_the_defaults() {
        let config = load(
            "[defaults]\npreload = [\"numpy\"]\n[targets.a]\nurl = \"local:\"\n[targets.b]\nurl = \"local:\"\npreload = []\n",
        )
        .unwrap();
        assert_eq!(config.defaults.preload, ["numpy"]);
        assert_eq!(config.targets["a"].preload, None);
        assert_eq!(config.targets["b"].preload, Some(Vec::new()));
    }

    #[test]
    fn a_target_has_its_own_pool_or_that_of_the_defaults() {
        let config = load(
            "[defaults]\npool = 2\n[targets.a]\nurl = \"local:\"\n[targets.b]\nurl = \"local:\"\npool = 0\n",
        )
        .unwrap();
        assert_eq!(config.defaults.pool, Some(2));
        assert_eq!((config.targets["a"].pool, config.targets["b"].pool), (None, Some(0)));
        assert!(load("[defaults]\npool = -1\n").is_err());
    }

    #[test]
    fn a_file_that_is_not_there_is_only_missed_if_it_was_named() {
        assert!(Config::load(None, Some("/nowhere".into())).is_ok());
        assert_eq!(
            Config::load(Some(Path::new("/nowhere/x")), None).unwrap_err().kind(),
            ErrorKind::BadInput
        );
    }
}
