//! What a sandbox shall be like: `docker+run://IMAGE`, with options.

use std::fmt;

use farcell_core::{Error, ErrorKind, Options, Result, Step, Target};

use crate::address::check_paths;

pub(super) const DOCKER_RUN: &str = "docker+run";
pub(super) const PODMAN_RUN: &str = "podman+run";
const OPTIONS: &[&str] = &[
    "memory",
    "cpus",
    "pids",
    "network",
    "mount",
    "init",
    "read_only",
    "user",
    "workdir",
    "dir",
    "python",
    "host",
    "pull",
];

/// Enough for a kernel and what its cells start, and an end to fork bombs.
const PIDS: i64 = 256;
/// The processes of a kernel alone.
const FEWEST_PIDS: i64 = 16;
/// An interpreter and its supervisor have room in it.
const LEAST_MEMORY: i64 = 32 << 20;
/// The engines' own name for no network.
const NO_NETWORK: &str = "none";

/// A directory or file of the engine's machine that is seen in the sandbox.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Mount {
    pub(super) host: String,
    pub(super) container: String,
    pub(super) read_only: bool,
}

/// A target, read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) image: Image,
    /// Of Podman, not of Docker.
    pub(super) podman: bool,
    /// The engine, as `DOCKER_HOST` names it.
    pub(super) host: Option<String>,
    /// In bytes.
    pub(super) memory: Option<i64>,
    /// In thousand-millionths of a processor.
    pub(super) nano_cpus: Option<i64>,
    pub(super) pids: i64,
    pub(super) network: String,
    pub(super) mounts: Vec<Mount>,
    /// `None`: as far as the engine has one.
    pub(super) init: Option<bool>,
    pub(super) read_only: bool,
    pub(super) user: Option<String>,
    pub(super) workdir: Option<String>,
    pub(super) dir: Option<String>,
    pub(super) python: Option<String>,
    /// An image that is not there is fetched.
    pub(super) pulls: bool,
}

/// The name of an image, with its tag or digest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Image(String);

impl Image {
    fn read(text: &str) -> Result<Self, String> {
        let text = percent_encoding::percent_decode_str(text)
            .decode_utf8()
            .map_err(|_| "the name of the image is not UTF-8".to_owned())?;
        let text = text.strip_suffix('/').unwrap_or(&text);
        if text.is_empty() {
            return Err("the image is missing".to_owned());
        }
        let is_fine = |c: char| c.is_ascii_alphanumeric() || "._-/:@".contains(c);
        if !text.starts_with(|c: char| c.is_ascii_alphanumeric())
            || !text.chars().all(is_fine)
            || text.contains("//")
        {
            return Err(format!("{text:?} is not the name of an image"));
        }
        Ok(Image(text.to_owned()))
    }

    /// The name as it is asked for: without a tag, an engine would fetch all that there are.
    pub(super) fn with_tag(&self) -> String {
        let last = self.0.rsplit('/').next().unwrap_or(&self.0);
        if last.contains([':', '@']) { self.0.clone() } else { format!("{}:latest", self.0) }
    }
}

impl fmt::Display for Image {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// What is wrong with an option, and how it is written.
type Trouble = (String, &'static str);

/// Reads a target.
pub(super) fn read(target: &Target) -> Result<Order> {
    let bad = |(message, hint): Trouble| {
        Error::new(ErrorKind::BadInput, message).on(target).at(Step::Parse).with_hint(hint)
    };
    let (address, options) = target.address_and_options(OPTIONS)?;
    check_paths(target, &options)?;
    let image = Image::read(address.strip_prefix("//").unwrap_or(address)).map_err(|message| {
        bad((message, "write docker+run://IMAGE, such as docker+run://python:3.13-slim"))
    })?;
    let given = |name| options.get(name).map(str::to_owned);
    Ok(Order {
        image,
        podman: target.scheme() == PODMAN_RUN,
        host: given("host"),
        memory: option(&options, "memory", memory).map_err(bad)?,
        nano_cpus: option(&options, "cpus", cpus).map_err(bad)?,
        pids: option(&options, "pids", pids).map_err(bad)?.unwrap_or(PIDS),
        network: option(&options, "network", network).map_err(bad)?.unwrap_or_else(|| NO_NETWORK.to_owned()),
        mounts: option(&options, "mount", mounts).map_err(bad)?.unwrap_or_default(),
        init: option(&options, "init", yes_or_no).map_err(bad)?,
        read_only: option(&options, "read_only", yes_or_no).map_err(bad)?.unwrap_or(false),
        user: option(&options, "user", user).map_err(bad)?,
        workdir: given("workdir"),
        dir: given("dir"),
        python: given("python"),
        pulls: option(&options, "pull", pulls).map_err(bad)?.unwrap_or(true),
    })
}

fn option<T>(
    options: &Options,
    name: &str,
    read: fn(&str) -> Result<T, (&'static str, &'static str)>,
) -> Result<Option<T>, Trouble> {
    let Some(text) = options.get(name) else { return Ok(None) };
    read(text).map(Some).map_err(|(what, hint)| (format!("{name}={text} {what}"), hint))
}

fn memory(text: &str) -> Result<i64, (&'static str, &'static str)> {
    const HINT: &str = "write a number and k, m or g, such as memory=512m";
    let digits = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let shift = match &*text[digits.len()..].to_ascii_lowercase() {
        "k" => 10,
        "m" => 20,
        "g" => 30,
        "" => return Err(("has no unit", HINT)),
        _ => return Err(("is not a size", HINT)),
    };
    let number: i64 = digits.parse().map_err(|_| ("is not a size", HINT))?;
    let bytes = number.checked_mul(1 << shift).ok_or(("is too large", HINT))?;
    if bytes < LEAST_MEMORY {
        return Err(("is too little for a kernel", "at least 32m; a kernel alone needs about 20"));
    }
    Ok(bytes)
}

fn cpus(text: &str) -> Result<i64, (&'static str, &'static str)> {
    const HINT: &str = "write how many processors it may use, such as cpus=1.5";
    let number: f64 = text.parse().map_err(|_| ("is not a number", HINT))?;
    if !(0.01..=4096.0).contains(&number) {
        return Err(("is no share of processors", HINT));
    }
    Ok((number * 1e9).round() as i64)
}

fn pids(text: &str) -> Result<i64, (&'static str, &'static str)> {
    const HINT: &str = "write a number, such as pids=256; a kernel alone needs 16";
    let number = text.parse().map_err(|_| ("is not a number", HINT))?;
    if !(FEWEST_PIDS..=4_194_304).contains(&number) {
        return Err(("is not a number of processes that a kernel can live with", HINT));
    }
    Ok(number)
}

fn network(text: &str) -> Result<String, (&'static str, &'static str)> {
    if is_name(text) {
        return Ok(text.to_owned());
    }
    Err((
        "is not the name of a network",
        "write none, bridge, or a name that `docker network ls` or `podman network ls` shows",
    ))
}

fn user(text: &str) -> Result<String, (&'static str, &'static str)> {
    if text.split(':').count() <= 2 && text.split(':').all(is_name) {
        return Ok(text.to_owned());
    }
    Err(("is not a user", "write a name or a number, or user:group"))
}

fn is_name(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_')
        && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

fn yes_or_no(text: &str) -> Result<bool, (&'static str, &'static str)> {
    match text {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(("is neither true nor false", "write true or false")),
    }
}

fn pulls(text: &str) -> Result<bool, (&'static str, &'static str)> {
    match text {
        "missing" => Ok(true),
        "never" => Ok(false),
        _ => Err(("is not known", "write pull=missing, which is the default, or pull=never")),
    }
}

fn mounts(text: &str) -> Result<Vec<Mount>, (&'static str, &'static str)> {
    text.split(',').map(mount).collect()
}

fn mount(text: &str) -> Result<Mount, (&'static str, &'static str)> {
    const HINT: &str = "write mount=/on/the/host:/in/the/container, with :ro behind it for reading only; several are joined by commas";
    let mut parts = text.split(':');
    let (host, container, mode) = (parts.next().unwrap_or(""), parts.next().unwrap_or(""), parts.next());
    if !host.starts_with('/') || !container.starts_with('/') || container == "/" || parts.next().is_some() {
        return Err(("is not a mount", HINT));
    }
    let read_only = match mode {
        None | Some("rw") => false,
        Some("ro") => true,
        Some(_) => return Err(("has a mode that is neither ro nor rw", HINT)),
    };
    Ok(Mount { host: host.to_owned(), container: container.to_owned(), read_only })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(text: &str) -> Result<Order> {
        read(&text.parse().unwrap())
    }

    #[test]
    fn images_are_named_in_all_their_ways() {
        let digest = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";
        for (image, asked) in [
            ("debian", "debian:latest".to_owned()),
            ("debian:12", "debian:12".to_owned()),
            ("localhost:5000/a/b", "localhost:5000/a/b:latest".to_owned()),
            ("ghcr.io/a/b:v1.2_3", "ghcr.io/a/b:v1.2_3".to_owned()),
            (&format!("localhost:5000/a/b@{digest}"), format!("localhost:5000/a/b@{digest}")),
            (&format!("debian:12@{digest}"), format!("debian:12@{digest}")),
            (&format!("debian@{digest}"), format!("debian@{digest}")),
            ("sha256:0123456789ab", "sha256:0123456789ab".to_owned()),
        ] {
            let order = order(&format!("docker+run://{image}?pids=64")).unwrap();
            assert_eq!((order.image.to_string(), order.image.with_tag()), (image.to_owned(), asked));
        }
        assert!(order("podman+run:debian").unwrap().podman);
    }

    #[test]
    fn a_sandbox_is_closed_unless_it_is_said_otherwise() {
        let plain = order("docker+run://debian").unwrap();
        assert_eq!((plain.network.as_str(), plain.pids, plain.memory), ("none", 256, None));
        assert_eq!((plain.mounts.len(), plain.init, plain.pulls), (0, None, true));
    }

    #[test]
    fn options_are_read() {
        let text = "docker+run://debian?memory=512m&cpus=1.5&pids=64&network=lab&init=false&read_only=true&user=1000:1000&workdir=/srv\
                    &pull=never&mount=/a%20b:/b:ro,/c:/d";
        let order = order(text).unwrap();
        assert_eq!((order.memory, order.nano_cpus, order.pids), (Some(512 << 20), Some(1_500_000_000), 64));
        assert_eq!((order.network.as_str(), order.init, order.read_only), ("lab", Some(false), true));
        assert_eq!((order.user.as_deref(), order.workdir.as_deref()), (Some("1000:1000"), Some("/srv")));
        let mount = |host: &str, container: &str, read_only| Mount {
            host: host.to_owned(),
            container: container.to_owned(),
            read_only,
        };
        assert_eq!(order.mounts, [mount("/a b", "/b", true), mount("/c", "/d", false)]);
        assert!(!order.pulls);
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (text, named) in [
            ("docker+run:", "the image is missing"),
            ("docker+run://", "the image is missing"),
            ("docker+run://-rm", "\"-rm\" is not the name"),
            ("docker+run://a b", "\"a b\" is not the name"),
            ("docker+run://$(x)", "is not the name"),
            ("docker+run://a?memory=512", "memory=512 has no unit"),
            ("docker+run://a?memory=m", "memory=m is not a size"),
            ("docker+run://a?memory=5q", "memory=5q is not a size"),
            ("docker+run://a?memory=99999999999999g", "is too large"),
            ("docker+run://a?memory=4m", "memory=4m is too little"),
            ("docker+run://a?cpus=two", "cpus=two is not a number"),
            ("docker+run://a?cpus=0", "cpus=0 is no share"),
            ("docker+run://a?cpus=NaN", "cpus=NaN is no share"),
            ("docker+run://a?pids=many", "pids=many is not a number"),
            ("docker+run://a?pids=0", "pids=0 is not a number of processes"),
            ("docker+run://a?network=a/b", "network=a/b is not the name"),
            ("docker+run://a?mount=a:/b", "mount=a:/b is not a mount"),
            ("docker+run://a?mount=/a", "mount=/a is not a mount"),
            ("docker+run://a?mount=/a:/", "mount=/a:/ is not a mount"),
            ("docker+run://a?mount=/a:/b:rx", "neither ro nor rw"),
            ("docker+run://a?init=1", "init=1 is neither true nor false"),
            ("docker+run://a?read_only=yes", "read_only=yes is neither"),
            ("docker+run://a?user=a:b:c", "user=a:b:c is not a user"),
            ("docker+run://a?user=", "user= is not a user"),
            ("docker+run://a?pull=always", "pull=always is not known"),
            ("docker+run://a?workdir=srv", "workdir=srv is not an absolute path"),
            ("docker+run://a?privileged=true", "\"privileged\""),
        ] {
            let e = order(text).unwrap_err();
            assert!(e.message().contains(named), "{text}: {e}");
            assert!(e.hint().is_some() && e.kind() == ErrorKind::BadInput, "{e:?}");
        }
    }
}
