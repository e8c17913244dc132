//! The transports of this machine: the local shell, and any command that gives a shell somewhere.

use async_trait::async_trait;
use bytes::Bytes;
use farcell_core::{
    Capabilities, Command, Connection, Connector, Duplex, Error, ErrorKind, Instant, Output, Result, Step,
    Target, Transport,
};

use crate::account::{Account, Setting};
use crate::open::open;
use crate::process;

const LOCAL: &str = "local";
/// The prefix's own arguments are followed by the command's, one by one: `docker exec -i web`, `kubectl exec -i pod --`, `sudo -u agent`.
const EXEC: &str = "exec";
/// The prefix joins its arguments and hands them to a shell, so that they have to be quoted: `ssh -T box`, `su agent -c`.
const EXEC_QUOTE: &str = "exec+quote";
pub(crate) const OPTIONS: &[&str] = &["dir", "python", "user"];

/// Serves `local:`, `exec:PREFIX` and `exec+quote:PREFIX`.
#[derive(Debug, Clone, Default)]
pub struct LocalConnector {}

/// How commands are run.
#[derive(Debug)]
enum Way {
    /// By the shell of this machine, in a chosen environment, perhaps of another account.
    Shell(Option<Account>),
    /// As further arguments of a command, in this process's environment.
    Prefix(Vec<String>),
    /// As one quoted argument of a command, likewise.
    Quoted(Vec<String>),
}

#[derive(Debug)]
struct LocalTransport {
    target: Target,
    way: Way,
}

fn way(target: &Target) -> Result<Way> {
    if target.scheme() == LOCAL {
        let (address, options) = target.address_and_options(OPTIONS)?;
        if !address.trim_matches('/').is_empty() {
            return Err(Error::new(
                ErrorKind::BadInput,
                format!("{LOCAL}: takes no address, and {address:?} is one"),
            )
            .on(target)
            .at(Step::Parse)
            .with_hint("write local: or local:?dir=/path&python=/path&user=name"));
        }
        if let Some(dir) = options.get("dir").filter(|dir| !dir.starts_with('/') && !dir.starts_with("~/")) {
            return Err(Error::new(ErrorKind::BadInput, format!("dir={dir} is not an absolute path"))
                .on(target)
                .at(Step::Parse)
                .with_hint("write dir=/path"));
        }
        return Ok(Way::Shell(options.get("user").map(Account::find).transpose()?));
    }
    let words = shell_words::split(target.rest()).map_err(|e| {
        Error::new(ErrorKind::BadInput, format!("the command prefix cannot be split into words: {e}"))
            .on(target)
            .at(Step::Parse)
    })?;
    if words.is_empty() {
        return Err(Error::new(ErrorKind::BadInput, "there is no command prefix").on(target).at(Step::Parse).with_hint(
            "write a command that gives a shell, such as exec:docker exec -i web or exec+quote:ssh -T box",
        ));
    }
    Ok(if target.scheme() == EXEC_QUOTE { Way::Quoted(words) } else { Way::Prefix(words) })
}

#[async_trait]
impl Connector for LocalConnector {
    fn schemes(&self) -> &'static [&'static str] {
        &[LOCAL, EXEC, EXEC_QUOTE]
    }

    fn check(&self, target: &Target) -> Result<()> {
        way(target).map(|_| ())
    }

    async fn connect(&self, target: &Target) -> Result<Connection> {
        let way = way(target)?;
        let (is_local, is_ours) = (matches!(way, Way::Shell(_)), matches!(way, Way::Shell(None)));
        let connection = Connection::new(LocalTransport { target: target.clone(), way });
        if !is_local {
            return Ok(connection);
        }
        let (_, options) = target.address_and_options(OPTIONS)?;
        let option = |name| options.get(name).map(str::to_owned);
        // Another account begins at home: it may not be let into our directory.
        let here = is_ours.then(std::env::current_dir).and_then(|dir| dir.ok());
        let cwd = here.and_then(|dir| dir.into_os_string().into_string().ok());
        Ok(connection.dir(option("dir")).python(option("python")).cwd(cwd))
    }
}

#[async_trait]
impl Transport for LocalTransport {
    fn target(&self) -> &Target {
        &self.target
    }

    fn capabilities(&self) -> Capabilities {
        let is_here = matches!(self.way, Way::Shell(_));
        Capabilities::new().tells_signals(is_here).opens(true).is_here(is_here)
    }

    async fn exec(&self, command: &Command, stdin: Bytes, deadline: Instant) -> Result<Output> {
        process::run(&self.argv(command), self.setting(), stdin, deadline)
            .await
            .map_err(|e| e.on(&self.target))
    }

    async fn open(&self, command: &Command, _: Instant) -> Result<Duplex> {
        open(&self.argv(command), self.setting()).map_err(|e| e.on(&self.target))
    }
}

impl LocalTransport {
    fn argv(&self, command: &Command) -> Vec<String> {
        match &self.way {
            Way::Shell(_) => command.argv().map(str::to_owned).to_vec(),
            Way::Prefix(words) => [words.clone(), command.argv().map(str::to_owned).to_vec()].concat(),
            Way::Quoted(words) => [words.clone(), vec![command.login_shell_line()]].concat(),
        }
    }

    fn setting(&self) -> Setting {
        match &self.way {
            Way::Shell(account) => Setting::of_kernels(account.clone()),
            Way::Prefix(_) | Way::Quoted(_) => Setting::default(),
        }
    }
}
