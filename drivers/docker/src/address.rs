//! What a container target says: `docker://NAME`, `podman://NAME`, `compose://[PROJECT/]SERVICE`, with options.

use std::fmt;

use farcell_core::{Error, ErrorKind, Options, Result, Step, Target};

pub(crate) const DOCKER: &str = "docker";
pub(crate) const PODMAN: &str = "podman";
pub(crate) const COMPOSE: &str = "compose";
const OPTIONS: &[&str] = &["user", "workdir", "dir", "python", "host"];

/// Which container.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Container {
    /// By name, or by id or its beginning.
    Named(String),
    /// One that was made for the kernel of a session, by its name.
    Sandbox(String),
    /// The first container of a service.
    Service {
        /// Of any project, if `None` and there is one only.
        project: Option<String>,
        service: String,
    },
}

impl fmt::Display for Container {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Container::Named(name) => write!(f, "the container {name}"),
            Container::Sandbox(name) => write!(f, "the sandbox {name}"),
            Container::Service { project: Some(project), service } => {
                write!(f, "the service {service} of the project {project}")
            }
            Container::Service { project: None, service } => write!(f, "the service {service}"),
        }
    }
}

/// A target, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(crate) container: Container,
    /// Podman's sockets are looked for, not Docker's.
    pub(crate) podman: bool,
    /// The engine, as `DOCKER_HOST` names it.
    pub(crate) host: Option<String>,
    pub(crate) user: Option<String>,
    pub(crate) workdir: Option<String>,
    pub(crate) dir: Option<String>,
    pub(crate) python: Option<String>,
}

/// Reads a target.
pub(crate) fn read(target: &Target) -> Result<Address> {
    let bad = |message: String| Error::new(ErrorKind::BadInput, message).on(target).at(Step::Parse);
    let (address, options) = target.address_and_options(OPTIONS)?;
    let scheme = target.scheme();
    let named = address.strip_prefix("//").unwrap_or(address);
    let named = named.strip_suffix('/').unwrap_or(named);
    let container = if scheme == COMPOSE {
        let (project, service) = match named.split_once('/') {
            Some((project, service)) => (Some(name("the project", project).map_err(bad)?), service),
            None => (None, named),
        };
        Container::Service { project, service: name("the service", service).map_err(bad)? }
    } else {
        Container::Named(name("the container", named).map_err(bad)?)
    };
    let option = |name| options.get(name).map(str::to_owned);
    check_paths(target, &options)?;
    Ok(Address {
        container,
        podman: scheme == PODMAN,
        host: option("host"),
        user: option("user"),
        workdir: option("workdir"),
        dir: option("dir"),
        python: option("python"),
    })
}

/// The paths in a container that a target may name are absolute ones.
pub(crate) fn check_paths(target: &Target, options: &Options) -> Result<()> {
    for name in ["dir", "workdir"] {
        if let Some(path) = options.get(name).filter(|path| !path.starts_with('/')) {
            let absolute = name == "dir" && path.starts_with("~/");
            if !absolute {
                let message = format!("{name}={path} is not an absolute path");
                return Err(Error::new(ErrorKind::BadInput, message)
                    .on(target)
                    .at(Step::Parse)
                    .with_hint(format!("write {name}=/path, as it is called in the container")));
            }
        }
    }
    Ok(())
}

/// A name as the engines allow it. Everything else is no name of anything, and would be a path in a request.
fn name(what: &str, text: &str) -> Result<String, String> {
    let text = percent_encoding::percent_decode_str(text)
        .decode_utf8()
        .map_err(|_| format!("{what} is not UTF-8"))?;
    if text.is_empty() {
        return Err(format!(
            "{what} is missing; write docker://NAME, podman://NAME or compose://PROJECT/SERVICE"
        ));
    }
    let is_fine = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    if !text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_') || !text.chars().all(is_fine) {
        return Err(format!("{what} {text:?} is not a name: those have letters, digits, and _ . - only"));
    }
    Ok(text.into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Result<Address> {
        read(&text.parse().unwrap())
    }

    #[test]
    fn containers_are_named_in_all_their_ways() {
        let named = |name: &str| Container::Named(name.to_owned());
        assert_eq!(address("docker://web-1").unwrap().container, named("web-1"));
        assert_eq!(address("docker:web-1").unwrap().container, named("web-1"));
        let podman = address("podman://0f3c/").unwrap();
        assert_eq!((podman.container, podman.podman), (named("0f3c"), true));
        let service = |project: Option<&str>, service: &str| Container::Service {
            project: project.map(str::to_owned),
            service: service.to_owned(),
        };
        assert_eq!(address("compose://shop/web").unwrap().container, service(Some("shop"), "web"));
        assert_eq!(address("compose://web").unwrap().container, service(None, "web"));
    }

    #[test]
    fn options_are_read() {
        let a = address("docker://web?user=agent&workdir=/srv&dir=/d&python=/p&host=tcp://box:2375").unwrap();
        assert_eq!((a.user.as_deref(), a.workdir.as_deref()), (Some("agent"), Some("/srv")));
        assert_eq!((a.dir.as_deref(), a.python.as_deref()), (Some("/d"), Some("/p")));
        assert_eq!(a.host.as_deref(), Some("tcp://box:2375"));
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("docker:", "is missing"),
            ("docker://", "is missing"),
            ("docker://-rm", "\"-rm\" is not a name"),
            ("docker://a%2Fb", "\"a/b\" is not a name"),
            ("docker://../containers", "is not a name"),
            ("docker://$(x)", "is not a name"),
            ("docker://a%0Ab", "is not a name"),
            ("compose:///web", "the project is missing"),
            ("docker://web?workdir=srv", "workdir=srv"),
            ("docker://web?memory=1g", "\"memory\""),
        ] {
            let message = address(text).unwrap_err().to_string();
            assert!(message.contains(named), "{text}: {message}");
        }
    }
}
