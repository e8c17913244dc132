//! What a subcommand works with: the config, the registry over the records of this machine, and names resolved to sessions.

use std::path::PathBuf;

use etcetera::BaseStrategy as _;
use farcell::{
    DriverOptions, Error, ErrorKind, Key, Registry, RegistryOptions, Result, Secrets, Session,
    SessionOptions, Step, Store, Target, is_secret_name,
};

use super::args::{Global, KernelArgs, SessionArgs};
use super::config::{Config, NamedTarget};

/// The shared state of one invocation.
#[derive(Debug)]
pub(crate) struct Context {
    pub(crate) config: Config,
    pub(crate) registry: Registry,
    pub(crate) json: bool,
    /// What cells print is shown as it came.
    raw: bool,
    /// Where records and saved displays are.
    pub(crate) state_dir: PathBuf,
}

impl Context {
    pub(crate) fn new(global: &Global) -> Result<Self> {
        let base = etcetera::choose_base_strategy().ok();
        let config = Config::load(global.config.as_deref(), base.as_ref().map(|b| b.config_dir()))?;
        let state_dir = match std::env::var_os("FARCELL_STATE_DIR").filter(|d| !d.is_empty()) {
            Some(dir) => PathBuf::from(dir),
            None => base
                .map(|b| b.state_dir().unwrap_or_else(|| b.data_dir()).join("farcell"))
                .ok_or_else(|| local_error("there is no home directory", "HOME is not set"))?,
        };
        let mut options =
            RegistryOptions { store: Some(Store::open(&state_dir)?), ..RegistryOptions::default() };
        options.cap = config.defaults.max_kernels.unwrap_or(options.cap);
        options.idle = config.defaults.idle.or(options.idle);
        options.secrets = secrets(&config);
        let mut drivers = DriverOptions::default();
        drivers.ssh = config.ssh.options();
        let registry = Registry::new(farcell::drivers_with(&drivers), options);
        let raw = global.raw || config.defaults.raw;
        Ok(Context { config, registry, json: global.json, raw, state_dir })
    }

    /// The target of some arguments, and its settings if it is a named one.
    pub(crate) fn target(&self, on: Option<&str>) -> Result<(Target, Option<&NamedTarget>)> {
        let given = choose(on, "FARCELL_TARGET", self.config.defaults.on.as_deref(), "local:");
        let text = given.as_str();
        if let Some(named) = self.config.targets.get(text) {
            return Ok((named.url.parse()?, Some(named)));
        }
        let target = text.parse().map_err(|e: Error| {
            if self.config.targets.is_empty() {
                return e;
            }
            let names = self.config.targets.keys().cloned().collect::<Vec<_>>().join(", ");
            e.with_hint(format!(
                "the config names these targets: {names}; others begin with a scheme, such as local:"
            ))
        })?;
        Ok((target, None))
    }

    /// The same for a session, whose account is an option of its target.
    pub(crate) fn target_of(&self, args: &SessionArgs) -> Result<(Target, Option<&NamedTarget>)> {
        let (target, named) = self.target(args.on.as_deref())?;
        let Some(user) = &args.user else { return Ok((target, named)) };
        let bad = |message: String| Error::new(ErrorKind::BadInput, message).at(Step::Parse);
        if !["local", "stdio"].contains(&target.scheme()) {
            return Err(bad(format!("--user is for local: and stdio:, and not for {target}"))
                .with_hint("elsewhere the target says who one is, as in ssh://ann@box"));
        }
        let is_plain = |c: char| c.is_alphanumeric() || "-_.".contains(c);
        if user.is_empty() || !user.chars().all(is_plain) {
            return Err(bad(format!("--user {user:?}: that is no name of an account")));
        }
        let joint = if target.rest().contains('?') { '&' } else { '?' };
        Ok((format!("{target}{joint}user={user}").parse()?, named))
    }

    /// The session of some arguments.
    pub(crate) fn session(&self, args: &SessionArgs, kernel: Option<&KernelArgs>) -> Result<Session> {
        self.session_in(&self.registry, args, kernel)
    }

    /// The session of some arguments, in a registry that need not be the user's.
    pub(crate) fn session_in(
        &self,
        registry: &Registry,
        args: &SessionArgs,
        kernel: Option<&KernelArgs>,
    ) -> Result<Session> {
        let (target, named) = self.target_of(args)?;
        let defaults = &self.config.defaults;
        let owner = choose(args.owner.as_deref(), "FARCELL_OWNER", defaults.owner.as_deref(), "default");
        let name = choose(args.session.as_deref(), "FARCELL_SESSION", defaults.session.as_deref(), "default");
        let mut options = SessionOptions {
            idle: defaults.idle,
            preload: defaults.preload.clone(),
            pool: defaults.pool,
            raw: self.raw,
            ..SessionOptions::default()
        };
        let mut passed = defaults.env_pass.clone();
        if let Some(named) = named {
            options.profile.clone_from(&named.profile);
            options.python.clone_from(&named.python);
            options.dir.clone_from(&named.dir);
            options.cwd.clone_from(&named.cwd);
            options.env.clone_from(&named.env);
            options.limits = named.limits.clone();
            if let Some(preload) = &named.preload {
                options.preload.clone_from(preload);
            }
            options.pool = named.pool.or(options.pool);
            passed.extend_from_slice(&named.env_pass);
        }
        if let Some(kernel) = kernel {
            for name in passed {
                let value = value_of(&name, "env_pass")?;
                options.env.entry(name).or_insert(value);
            }
            options.python = kernel.python.clone().or(options.python);
            options.cwd = kernel.cwd.clone().or(options.cwd);
            options.env.extend(environment(&kernel.env)?);
            kernel.limits.iter().for_each(|limit| limit.apply(&mut options.limits));
        }
        registry.session(&owner, &name, &target, options)
    }

    /// A session by its key.
    pub(crate) fn session_of(&self, key: &Key) -> Result<Session> {
        let options =
            SessionOptions { profile: key.profile.clone(), raw: self.raw, ..SessionOptions::default() };
        self.registry.session(&key.owner, &key.session, &key.target, options)
    }
}

/// What the command line says, else the environment, else the config, else the default.
fn choose(given: Option<&str>, variable: &str, config: Option<&str>, default: &str) -> String {
    if let Some(given) = given {
        return given.to_owned();
    }
    let environment = std::env::var(variable).ok().filter(|v| !v.is_empty());
    environment.unwrap_or_else(|| config.unwrap_or(default).to_owned())
}

/// What the program knows to be secret: the values that the config names, and those of its own variables whose names look like secrets. A kernel gets
/// these only when they are passed by name, and then cells of later commands may print them as well.
fn secrets(config: &Config) -> Secrets {
    let mut secrets = Secrets::new();
    for name in &config.defaults.secrets {
        // One that is not set here has no value to be redacted.
        let value = std::env::var(name).unwrap_or_default();
        secrets.add(name, &value);
    }
    for (name, value) in std::env::vars_os() {
        let (Ok(name), Ok(value)) = (name.into_string(), value.into_string()) else { continue };
        // A path tells where a secret is, a number is too common.
        let is_value =
            value.len() >= 8 && !value.starts_with('/') && !value.bytes().all(|b| b.is_ascii_digit());
        if is_value && is_secret_name(&name) {
            secrets.add(&name, &value);
        }
    }
    secrets
}

/// The value of a variable that is passed on by its name.
fn value_of(name: &str, by: &str) -> Result<String> {
    std::env::var(name).map_err(|_| {
        Error::new(
            ErrorKind::BadInput,
            format!("{by} {name}: there is no such variable here, or it is no text"),
        )
        .at(Step::Parse)
    })
}

/// Reads `NAME=VALUE` and `NAME`.
pub(crate) fn environment(args: &[String]) -> Result<Vec<(String, String)>> {
    let bad = |message: String| Error::new(ErrorKind::BadInput, message).at(Step::Parse);
    args.iter()
        .map(|arg| match arg.split_once('=') {
            Some(("", _)) => Err(bad(format!("--env {arg}: there is no name"))),
            Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
            None => value_of(arg, "--env")
                .map(|value| (arg.clone(), value))
                .map_err(|e| e.with_hint(format!("give a value: --env {arg}=VALUE"))),
        })
        .collect()
}

/// Something on this machine failed.
pub(crate) fn local_error(what: &str, e: impl std::fmt::Display) -> Error {
    Error::new(ErrorKind::Local, format!("{what}: {e}"))
}
