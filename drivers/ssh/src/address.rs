//! What an ssh target says: `ssh://[user@]host[:port]` or `ssh:alias`, with options.

use std::fmt;
use std::path::PathBuf;

use farcell_core::{Error, ErrorKind, Result, Step, Target};

use crate::failure::Failure;

/// The options of a target.
const OPTIONS: &[&str] =
    &["driver", "identity", "known_hosts", "config", "host_key", "jump", "dir", "python"];

/// Which program speaks ssh.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Program {
    /// The user's own ssh, with everything that is configured for it.
    Openssh,
    /// None: the protocol is spoken by this process.
    Russh,
}

/// What happens with a host whose key is not known. One whose key has changed is refused, except with `Off`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum HostKeys {
    /// It is refused.
    Strict,
    /// Its key is believed and written down.
    AcceptNew,
    /// Any key is believed.
    Off,
}

/// A host and how to get there. Targets with the same one share a connection.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct Address {
    /// A name, an address without brackets, or an alias of the ssh config.
    pub(crate) host: String,
    pub(crate) user: Option<String>,
    pub(crate) port: Option<u16>,
    pub(crate) program: Program,
    pub(crate) identity: Option<PathBuf>,
    pub(crate) known_hosts: Option<PathBuf>,
    pub(crate) config: Option<PathBuf>,
    /// As the ssh config says, if `None`.
    pub(crate) host_keys: Option<HostKeys>,
    /// Hosts on the way, as `-J` takes them.
    pub(crate) jump: Option<String>,
}

/// What else the target says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Place {
    pub(crate) dir: Option<String>,
    pub(crate) python: Option<String>,
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Program::Openssh => "openssh",
            Program::Russh => "russh",
        })
    }
}

impl Address {
    /// Says which of the named files is not there. Looked at before each login: ssh itself only warns, or fails with another reason.
    pub(crate) fn check_files(&self) -> Result<(), Failure> {
        for (name, path) in [("identity", &self.identity), ("config", &self.config)] {
            let Some(path) = path else { continue };
            std::fs::File::open(path).map_err(|e| {
                Failure::lasting(format!("{name}={} cannot be read: {e}", path.display()))
                    .hint("check the path; it is one of this machine")
            })?;
        }
        Ok(())
    }
}

#[cfg(feature = "russh")]
impl Address {
    /// A host on the way to this one. What this one's target says of keys is not about it, as with ssh.
    pub(crate) fn hop(&self, hop: &str) -> Result<Address, String> {
        let (user, host, port) = authority_of(hop.strip_prefix("ssh://").unwrap_or(hop))?;
        user.iter().chain([&host]).try_for_each(|part| word("the host", part))?;
        Ok(Address {
            host,
            user,
            port,
            program: self.program,
            identity: None,
            known_hosts: None,
            config: self.config.clone(),
            host_keys: None,
            jump: None,
        })
    }
}

impl fmt::Display for Address {
    /// The host as a person would write it, for messages.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        match self.port {
            Some(port) if self.host.contains(':') => write!(f, "[{}]:{port}", self.host),
            Some(port) => write!(f, "{}:{port}", self.host),
            None => f.write_str(&self.host),
        }
    }
}

/// Reads a target.
pub(crate) fn read(target: &Target) -> Result<(Address, Place)> {
    let bad = |message: String| Error::new(ErrorKind::BadInput, message).on(target).at(Step::Parse);
    let (address, options) = target.address_and_options(OPTIONS)?;
    let (user, host, port) = match address.strip_prefix("//") {
        Some(authority) => authority_of(authority).map_err(bad)?,
        None => alias_of(address).map_err(bad)?,
    };
    if let Some(user) = &user {
        word("the user", user).map_err(bad)?;
    }
    word("the host", &host).map_err(bad)?;
    let program = match options.get("driver") {
        None | Some("openssh") => Program::Openssh,
        Some("russh") => Program::Russh,
        Some(other) => {
            return Err(bad(format!("driver={other} is not a driver"))
                .with_hint("write driver=openssh or driver=russh"));
        }
    };
    let host_keys = match options.get("host_key") {
        None => None,
        Some("strict") => Some(HostKeys::Strict),
        Some("accept-new") => Some(HostKeys::AcceptNew),
        Some("off") => Some(HostKeys::Off),
        Some(other) => {
            return Err(bad(format!("host_key={other} is not a way to treat host keys"))
                .with_hint("write host_key=strict, accept-new or off"));
        }
    };
    let jump = options.get("jump").map(str::to_owned);
    for hop in jump.iter().flat_map(|jump| jump.split(',')) {
        let (user, host, _) = authority_of(hop.strip_prefix("ssh://").unwrap_or(hop)).map_err(bad)?;
        user.iter().chain([&host]).try_for_each(|part| word("jump", part)).map_err(bad)?;
    }
    let path = |name: &str| options.get(name).map(|path| file(name, path)).transpose().map_err(bad);
    let dir = options.get("dir").map(str::to_owned);
    if let Some(dir) = dir.as_deref().filter(|dir| !dir.starts_with('/') && !dir.starts_with("~/")) {
        return Err(bad(format!("dir={dir} is not an absolute path")).with_hint("write dir=/path"));
    }
    let address = Address {
        host,
        user,
        port,
        program,
        identity: path("identity")?,
        known_hosts: path("known_hosts")?,
        config: path("config")?,
        host_keys,
        jump,
    };
    Ok((address, Place { dir, python: options.get("python").map(str::to_owned) }))
}

type Authority = (Option<String>, String, Option<u16>);

/// `[user@]host[:port]`, the host perhaps in brackets.
fn authority_of(text: &str) -> Result<Authority, String> {
    let text = text.strip_suffix('/').unwrap_or(text);
    if text.contains('/') {
        return Err("an ssh target has no path; dir=/path names the directory for kernels".to_owned());
    }
    let (user, rest) = match text.rsplit_once('@') {
        Some((user, rest)) => (Some(decoded("the user", user)?), rest),
        None => (None, text),
    };
    let (host, port) = if let Some(rest) = rest.strip_prefix('[') {
        let (host, behind) = rest.split_once(']').ok_or("the bracket of the host's address is not closed")?;
        if behind.is_empty() {
            (host, None)
        } else {
            let port = behind
                .strip_prefix(':')
                .ok_or_else(|| format!("{behind:?} behind the host's address is not a port"))?;
            (host, Some(port))
        }
    } else {
        match rest.split_once(':') {
            Some((_, port)) if port.contains(':') => {
                return Err("an IPv6 address stands in brackets: ssh://[::1]:22".to_owned());
            }
            Some((host, port)) => (host, Some(port)),
            None => (rest, None),
        }
    };
    let port = match port {
        Some(port) => match port.parse() {
            Ok(number) if number != 0 => Some(number),
            _ => return Err(format!("{port:?} is not a port; ports are 1 to 65535")),
        },
        None => None,
    };
    Ok((user, decoded("the host", host)?, port))
}

/// A name of the ssh config, perhaps with a user.
fn alias_of(text: &str) -> Result<Authority, String> {
    if text.contains('/') {
        return Err(format!("{text:?} is not a host"));
    }
    Ok(match text.rsplit_once('@') {
        Some((user, host)) => (Some(user.to_owned()), host.to_owned(), None),
        None => (None, text.to_owned(), None),
    })
}

fn decoded(what: &str, text: &str) -> Result<String, String> {
    let decoded = percent_encoding::percent_decode_str(text).decode_utf8();
    decoded.map(Into::into).map_err(|_| format!("{what} is not UTF-8"))
}

/// Refuses what some shell of a `ProxyCommand`, or ssh itself, would not take for a plain word.
fn word(what: &str, text: &str) -> Result<(), String> {
    if text.is_empty() {
        return Err(format!("{what} is missing; write ssh://host, ssh://user@host:port, or ssh:alias"));
    }
    if text.starts_with('-') {
        return Err(format!("{what} {text:?} begins with a dash, which ssh would take for an option"));
    }
    let is_odd = |c: &char| c.is_whitespace() || c.is_control() || "'\"`\\$;&<>|(){}*?!#".contains(*c);
    match text.chars().find(is_odd) {
        Some(c) => Err(format!("{what} {text:?} contains {c:?}")),
        None => Ok(()),
    }
}

/// A file of this machine.
fn file(name: &str, path: &str) -> Result<PathBuf, String> {
    if path.is_empty() {
        return Err(format!("{name}= names no file"));
    }
    if path.contains(['"', '\n', '\r']) || path.contains("${") {
        return Err(format!("{name}={path:?} contains what ssh cannot be given in a file's name"));
    }
    match path.strip_prefix("~/") {
        Some(rest) => match std::env::home_dir() {
            Some(home) => Ok(home.join(rest)),
            None => Err(format!("{name}={path}: there is no home directory")),
        },
        // ssh takes a relative one for relative to something else.
        None => std::path::absolute(path).map_err(|e| format!("{name}={path}: {e}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Address {
        read(&text.parse().unwrap()).unwrap().0
    }

    fn refusal(text: &str) -> String {
        read(&text.parse().unwrap()).unwrap_err().to_string()
    }

    #[test]
    fn hosts_are_read_in_all_their_forms() {
        for (text, user, host, port) in [
            ("ssh://box", None, "box", None),
            ("ssh://agent@box:2222", Some("agent"), "box", Some(2222)),
            ("ssh://box:22/", None, "box", Some(22)),
            ("ssh://[::1]:22", None, "::1", Some(22)),
            ("ssh://a%40b@[fe80::1%25eth0]", Some("a@b"), "fe80::1%eth0", None),
            ("ssh:box", None, "box", None),
            ("ssh:agent@box", Some("agent"), "box", None),
        ] {
            let found = address(text);
            assert_eq!(
                (found.user.as_deref(), found.host.as_str(), found.port),
                (user, host, port),
                "{text}"
            );
        }
    }

    #[test]
    fn options_are_read() {
        let target = "ssh://box?driver=russh&identity=/k&known_hosts=/h&config=/c&host_key=accept-new&jump=a@b:7,c&dir=/d&python=/p";
        let (found, place) = read(&target.parse().unwrap()).unwrap();
        assert_eq!(found.program, Program::Russh);
        assert_eq!(
            (found.identity, found.known_hosts, found.config),
            (Some("/k".into()), Some("/h".into()), Some("/c".into()))
        );
        assert_eq!((found.host_keys, found.jump.as_deref()), (Some(HostKeys::AcceptNew), Some("a@b:7,c")));
        assert_eq!((place.dir.as_deref(), place.python.as_deref()), (Some("/d"), Some("/p")));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("ssh:", "the host is missing"),
            ("ssh://", "the host is missing"),
            ("ssh://@box", "the user is missing"),
            ("ssh://box:0", "\"0\" is not a port"),
            ("ssh://box:ssh", "\"ssh\" is not a port"),
            ("ssh://::1", "in brackets"),
            ("ssh://[::1", "not closed"),
            ("ssh://box/tmp", "no path"),
            ("ssh:-oProxyCommand=x", "begins with a dash"),
            ("ssh://-x@box", "begins with a dash"),
            ("ssh:a b", "contains ' '"),
            ("ssh:$(x)", "contains '$'"),
            ("ssh:box?driver=putty", "driver=putty"),
            ("ssh:box?host_key=yes", "host_key=yes"),
            ("ssh:box?identity=", "identity="),
            ("ssh:box?jump=-x", "begins with a dash"),
            ("ssh:box?dir=x", "dir=x"),
            ("ssh:box?port=22", "port"),
        ] {
            let message = refusal(text);
            assert!(message.contains(named), "{text}: {message}");
        }
    }
}
