//! What holds for one host: its target's options, then what its user has configured for ssh, which an ssh program is asked for where there is one.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::Command;

use super::config::{self, words};
use crate::address::{Address, HostKeys};
use crate::failure::Failure;

/// How long `ssh -G` may take: a `Match exec` in the config can run anything.
const ASK: Duration = Duration::from_secs(10);
/// The longest answer that is listened to.
const ANSWER: u64 = 1 << 20;
/// The keys that are tried where none is configured, in the home directory's `.ssh`.
const KEYS: [&str; 3] = ["id_ed25519", "id_ecdsa", "id_rsa"];
/// The ways to log in that we have, in ssh's own order.
const METHODS: [Method; 3] = [Method::Key, Method::Questions, Method::Password];

/// A way to log in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    /// `publickey`
    Key,
    /// `keyboard-interactive`
    Questions,
    /// `password`
    Password,
}

/// How the server is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Way {
    Direct,
    /// By way of these hosts, with commas.
    Jump(String),
    /// By what this command of a shell reads and writes.
    Command(String),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    Any,
    V4,
    V6,
}

#[derive(Debug, Clone)]
pub(super) struct Settings {
    pub(super) hostname: String,
    pub(super) port: u16,
    pub(super) user: String,
    pub(super) identities: Vec<PathBuf>,
    pub(super) certificates: Vec<PathBuf>,
    pub(super) identities_only: bool,
    pub(super) agent: Option<PathBuf>,
    /// The first is the one that new keys are written to.
    pub(super) known_hosts: Vec<PathBuf>,
    pub(super) global_known_hosts: Vec<PathBuf>,
    pub(super) key_alias: Option<String>,
    pub(super) host_keys: HostKeys,
    pub(super) way: Way,
    pub(super) connect_timeout: Option<Duration>,
    pub(super) family: Family,
    pub(super) methods: Vec<Method>,
    /// Nobody is to be asked.
    pub(super) batch: bool,
}

impl Settings {
    /// What holds for a host.
    pub(super) async fn of(address: &Address) -> Result<Self, Failure> {
        let said = match ask_ssh(address).await? {
            Some(said) => said,
            None => config::said(address)?,
        };
        read(address, &said)
    }
}

/// What ssh would do with this host; `None` if there is no ssh program.
async fn ask_ssh(address: &Address) -> Result<Option<String>, Failure> {
    let mut command = Command::new("ssh");
    command.arg("-G");
    if let Some(config) = &address.config {
        command.arg("-F").arg(config);
    }
    if let Some(user) = &address.user {
        command.args(["-l", user]);
    }
    if let Some(port) = address.port {
        command.args(["-p", &port.to_string()]);
    }
    command.arg("--").arg(&address.host);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let failed =
        |why: &dyn std::fmt::Display| Failure::local(format!("cannot ask ssh for its config: {why}"));
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(failed(&e)),
    };
    let (mut said, mut complaint) = (String::new(), String::new());
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let listen = async {
        let answer = async {
            match stdout {
                Some(stdout) => stdout.take(ANSWER).read_to_string(&mut said).await,
                None => Ok(0),
            }
        };
        let complain = async {
            match stderr {
                Some(stderr) => stderr.take(ANSWER).read_to_string(&mut complaint).await,
                None => Ok(0),
            }
        };
        tokio::try_join!(answer, complain)?;
        child.wait().await
    };
    let status = tokio::time::timeout(ASK, listen)
        .await
        .map_err(|_| failed(&"it takes too long").hint("a Match exec in the ssh config may hang"))?
        .map_err(|e| failed(&e))?;
    if status.success() {
        return Ok(Some(said));
    }
    let last =
        complaint.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or("no reason is given");
    Err(Failure::lasting(last).hint("the ssh config has a mistake"))
}

/// Reads lines as `ssh -G` prints them.
fn read(address: &Address, said: &str) -> Result<Settings, Failure> {
    let options: Vec<_> = said.lines().filter_map(|line| line.trim().split_once(' ')).collect();
    let all = |name: &'static str| {
        options.iter().filter(move |(said, _)| *said == name).map(|(_, value)| value.trim())
    };
    let first = |name| all(name).next();
    let set = |name| first(name).filter(|value| !value.eq_ignore_ascii_case("none"));
    let yes = |name, default| first(name).map_or(default, |value| !matches!(value, "no" | "false" | "off"));

    let user = match address.user.as_deref().or_else(|| first("user")) {
        Some(user) => user.to_owned(),
        None => own_name().ok_or_else(|| {
            Failure::lasting(format!("there is no user to log in to {address} as"))
                .hint("write ssh://user@host, or set USER")
        })?,
    };
    let port = match (address.port, first("port")) {
        (Some(port), _) => port,
        (None, None) => 22,
        (None, Some(port)) => port.parse().map_err(|_| {
            Failure::lasting(format!("{port:?} is not a port")).hint("the ssh config has a mistake")
        })?,
    };
    let mut tokens = Tokens { host: &address.host, hostname: address.host.clone(), port, user: user.clone() };
    if let Some(hostname) = first("hostname") {
        tokens.hostname = tokens.text(hostname);
    }
    let files =
        |name| all(name).filter(|value| !value.eq_ignore_ascii_case("none")).map(|value| tokens.path(value));
    let lists = |name| -> Option<Vec<PathBuf>> {
        let value = first(name)?;
        Some(
            words(value)
                .iter()
                .filter(|word| !word.eq_ignore_ascii_case("none"))
                .map(|word| tokens.path(word))
                .collect(),
        )
    };
    let identities = match &address.identity {
        Some(path) => vec![path.clone()],
        None if first("identityfile").is_some() => files("identityfile").collect(),
        None => KEYS.iter().map(|key| tokens.path(&format!("~/.ssh/{key}"))).collect(),
    };
    let known_hosts = match &address.known_hosts {
        Some(path) => vec![path.clone()],
        None => lists("userknownhostsfile").unwrap_or_else(|| vec![tokens.path("~/.ssh/known_hosts")]),
    };
    let agent = match first("identityagent") {
        Some(value) if value.eq_ignore_ascii_case("none") => None,
        None | Some("SSH_AUTH_SOCK") => {
            std::env::var_os("SSH_AUTH_SOCK").filter(|path| !path.is_empty()).map(PathBuf::from)
        }
        Some(value) => match value.strip_prefix('$').filter(|name| !name.starts_with('{')) {
            Some(variable) => std::env::var_os(variable).map(PathBuf::from),
            None => Some(tokens.path(value)),
        },
    };
    let way = match (&address.jump, set("proxyjump"), set("proxycommand")) {
        (Some(jump), ..) => Way::Jump(jump.clone()),
        (None, Some(jump), _) => Way::Jump(jump.to_owned()),
        (None, None, Some(command)) => Way::Command(tokens.text(command)),
        (None, None, None) => Way::Direct,
    };
    let host_keys = address.host_keys.unwrap_or(match first("stricthostkeychecking") {
        Some("accept-new") => HostKeys::AcceptNew,
        Some("no" | "off" | "false") => HostKeys::Off,
        // Nobody is asked about a key, so that `ask` is no.
        _ => HostKeys::Strict,
    });
    Ok(Settings {
        port,
        identities,
        certificates: files("certificatefile").collect(),
        identities_only: address.identity.is_some() || yes("identitiesonly", false),
        agent,
        known_hosts,
        global_known_hosts: lists("globalknownhostsfile")
            .unwrap_or_else(|| vec!["/etc/ssh/ssh_known_hosts".into(), "/etc/ssh/ssh_known_hosts2".into()]),
        key_alias: set("hostkeyalias").map(str::to_owned),
        host_keys,
        way,
        connect_timeout: first("connecttimeout")
            .and_then(|value| value.parse().ok())
            .map(Duration::from_secs),
        family: match first("addressfamily") {
            Some("inet") => Family::V4,
            Some("inet6") => Family::V6,
            _ => Family::Any,
        },
        methods: methods(first("preferredauthentications"), &yes),
        batch: yes("batchmode", false),
        hostname: tokens.hostname,
        user,
    })
}

/// The ways to log in, in the order that they are tried.
fn methods(preferred: Option<&str>, yes: &dyn Fn(&'static str, bool) -> bool) -> Vec<Method> {
    let mut methods: Vec<_> = match preferred {
        None => METHODS.to_vec(),
        Some(list) => list
            .split(',')
            .filter_map(|name| match name.trim() {
                "publickey" => Some(Method::Key),
                "keyboard-interactive" => Some(Method::Questions),
                "password" => Some(Method::Password),
                _ => None,
            })
            .collect(),
    };
    methods.retain(|method| match method {
        Method::Key => yes("pubkeyauthentication", true),
        Method::Questions => yes("kbdinteractiveauthentication", true),
        Method::Password => yes("passwordauthentication", true),
    });
    methods
}

/// What stands for something else in the values of options.
struct Tokens<'a> {
    host: &'a str,
    hostname: String,
    port: u16,
    user: String,
}

impl Tokens<'_> {
    /// With all `%` sequences replaced that we know; the others stay.
    fn text(&self, value: &str) -> String {
        let mut text = String::with_capacity(value.len());
        let mut rest = value.chars();
        while let Some(c) = rest.next() {
            if c != '%' {
                text.push(c);
                continue;
            }
            let token = rest.next().unwrap_or('%');
            match token {
                '%' => text.push('%'),
                'h' => text.push_str(&self.hostname),
                'n' => text.push_str(self.host),
                'p' => text.push_str(&self.port.to_string()),
                'r' => text.push_str(&self.user),
                'u' => text.push_str(&own_name().unwrap_or_default()),
                'd' => text.push_str(&home().display().to_string()),
                'i' => text.push_str(&rustix::process::getuid().as_raw().to_string()),
                other => {
                    text.push('%');
                    text.push(other);
                }
            }
        }
        text
    }

    /// A file: with variables and the home directory in their places, too.
    fn path(&self, value: &str) -> PathBuf {
        let text = self.text(value);
        let mut path = String::with_capacity(text.len());
        let mut rest = text.as_str();
        while let Some((before, after)) = rest.split_once("${")
            && let Some((variable, behind)) = after.split_once('}')
        {
            path.push_str(before);
            path.push_str(&std::env::var(variable).unwrap_or_default());
            rest = behind;
        }
        path.push_str(rest);
        match path.strip_prefix("~/") {
            Some(rest) => home().join(rest),
            None => PathBuf::from(path),
        }
    }
}

fn home() -> PathBuf {
    std::env::home_dir().unwrap_or_else(|| Path::new("/").to_owned())
}

/// Who runs this process.
fn own_name() -> Option<String> {
    let name =
        ["USER", "LOGNAME"].iter().find_map(|name| std::env::var(name).ok().filter(|name| !name.is_empty()));
    name.or_else(|| rustix::process::getuid().is_root().then(|| "root".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(target: &str, said: &str) -> Settings {
        read(&crate::address::read(&target.parse().unwrap()).unwrap().0, said).unwrap()
    }

    #[test]
    fn the_answer_of_ssh_is_read() {
        let said = "host box\nuser agent\nhostname 10.0.0.7\nport 2222\naddressfamily inet6\nbatchmode yes\nidentitiesonly yes\n\
            stricthostkeychecking accept-new\nhostkeyalias known\nidentityfile /k/%h-%r-%%\nidentityfile ~/second\n\
            certificatefile /c\nidentityagent none\nuserknownhostsfile /a \"/b c\"\nglobalknownhostsfile /g\n\
            connecttimeout 7\nproxyjump a,b:7\npreferredauthentications password,gssapi-with-mic,publickey\npasswordauthentication yes\n";
        let found = settings("ssh:box", said);
        assert_eq!((found.user.as_str(), found.hostname.as_str(), found.port), ("agent", "10.0.0.7", 2222));
        assert_eq!(found.identities, [PathBuf::from("/k/10.0.0.7-agent-%"), home().join("second")]);
        assert_eq!((found.certificates, found.agent), (vec![PathBuf::from("/c")], None));
        assert_eq!(found.known_hosts, [PathBuf::from("/a"), PathBuf::from("/b c")]);
        assert_eq!(found.global_known_hosts, [PathBuf::from("/g")]);
        assert_eq!((found.host_keys, found.key_alias.as_deref()), (HostKeys::AcceptNew, Some("known")));
        assert_eq!(
            (found.way, found.connect_timeout),
            (Way::Jump("a,b:7".to_owned()), Some(Duration::from_secs(7)))
        );
        assert_eq!((found.family, found.methods), (Family::V6, vec![Method::Password, Method::Key]));
        assert!(found.batch && found.identities_only);
    }

    #[test]
    fn the_target_goes_first() {
        let said = "user agent\nhostname inner\nport 22\nidentityfile /k\nuserknownhostsfile /a\nstricthostkeychecking false\nproxycommand nc %h %p\n";
        let found = settings("ssh://me@box:7?identity=/i&known_hosts=/h&host_key=strict&jump=j", said);
        assert_eq!((found.user.as_str(), found.port, found.way), ("me", 7, Way::Jump("j".to_owned())));
        assert_eq!((found.identities, found.known_hosts), (vec!["/i".into()], vec!["/h".into()]));
        assert!(found.host_keys == HostKeys::Strict && found.identities_only);
        let found = settings("ssh:box", said);
        assert_eq!((found.host_keys, found.way), (HostKeys::Off, Way::Command("nc inner 22".to_owned())));
    }

    #[test]
    fn nothing_has_to_be_configured() {
        let found = settings("ssh://me@box", "");
        assert_eq!((found.hostname.as_str(), found.port, found.way), ("box", 22, Way::Direct));
        assert_eq!((found.host_keys, found.identities_only), (HostKeys::Strict, false));
        assert_eq!(found.identities[0], home().join(".ssh/id_ed25519"));
        assert_eq!(found.methods, METHODS);
    }

    #[tokio::test]
    async fn ssh_itself_is_asked_where_it_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let config = dir.path().join("config");
        std::fs::write(&config, "Host box\n HostName 127.0.0.9\n Port 2200\n User agent\n").unwrap();
        let target = format!("ssh:box?config={}", config.display());
        let found = Settings::of(&crate::address::read(&target.parse().unwrap()).unwrap().0).await.unwrap();
        assert_eq!((found.user.as_str(), found.hostname.as_str(), found.port), ("agent", "127.0.0.9", 2200));
        std::fs::write(&config, "Nonsense yes\n").unwrap();
        if let Ok(Some(_)) | Err(_) =
            ask_ssh(&crate::address::read(&"ssh:box".parse().unwrap()).unwrap().0).await
        {
            let failure =
                Settings::of(&crate::address::read(&target.parse().unwrap()).unwrap().0).await.unwrap_err();
            assert!(failure.hint.unwrap().contains("mistake"), "{}", failure.message);
        }
    }
}
