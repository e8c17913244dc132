//! Where the engine is: as the target says, as the environment says, as the current context says, or at one of the usual places.

use std::env;
use std::path::{Path, PathBuf};
use std::time::Duration;

use bollard::Docker;
use farcell_core::{Error, ErrorKind, Instant, Result, Step};
use serde_json::Value;
use sha2::{Digest as _, Sha256};
use tokio::sync::OnceCell;

use crate::failure;
use crate::tunnel::{Tunnel, Way};

/// How long the engine may take for one answer.
const ANSWER: Duration = Duration::from_secs(20);

/// An engine, asked for its address and its version when it is first needed.
#[derive(Debug)]
pub(crate) struct Engine {
    /// Its address, if the target says one.
    named: Option<String>,
    /// Podman's sockets are looked for, not Docker's.
    podman: bool,
    client: OnceCell<(Docker, String)>,
    /// It is Podman, whatever its address looks like.
    is_podman: OnceCell<bool>,
    /// To one that is elsewhere.
    tunnel: OnceCell<Tunnel>,
}

impl Engine {
    pub(crate) fn new(named: Option<String>, podman: bool) -> Self {
        Engine { named, podman, client: OnceCell::new(), is_podman: OnceCell::new(), tunnel: OnceCell::new() }
    }

    /// Requests to the engine, and how it is reached.
    pub(crate) async fn client(&self) -> Result<&(Docker, String)> {
        let connect = || async {
            let host = locate(self.named.as_deref(), self.podman)?;
            if !host.starts_with("ssh://") {
                return Ok((connect(&host, &host).await?, host));
            }
            let tunnel = self
                .tunnel
                .get_or_try_init(|| async { Tunnel::open(&Way::read(&host)?, self.program()) })
                .await?;
            let connected = connect(&format!("unix://{}", tunnel.path()), &host).await;
            match (connected, tunnel.trouble()) {
                (Ok(client), _) => Ok((client, host)),
                (Err(e), None) => Err(e),
                (Err(e), Some(said)) => {
                    let hint =
                        format!("`ssh HOST {} version` has to work without a question", self.program());
                    Err(failure::passing(format!("the engine at {host} is not reached: {said}"), hint)
                        .with_source(e))
                }
            }
        };
        self.client.get_or_try_init(connect).await
    }

    /// Whether it is Podman that answers; asked once, until `deadline`.
    pub(crate) async fn is_podman(&self, deadline: Instant) -> Result<bool> {
        let ask = || async {
            let (docker, host) = self.client().await?;
            let version = docker.version().await.map_err(|e| failure::of_engine(e, host))?;
            let mut parts = version.components.unwrap_or_default().into_iter();
            Ok(parts.any(|part| part.name.starts_with("Podman")))
        };
        tokio::time::timeout_at(deadline, self.is_podman.get_or_try_init(ask)).await.map_or_else(
            |_| Err(Error::new(ErrorKind::Deadline, "the engine did not say in time what it is")),
            |known| known.copied(),
        )
    }

    /// The program by which a person speaks to it.
    pub(crate) fn program(&self) -> &'static str {
        if self.podman { "podman" } else { "docker" }
    }
}

/// How an engine is reached, as `DOCKER_HOST` writes it.
fn locate(named: Option<&str>, podman: bool) -> Result<String> {
    let variable = |name: &str| env::var(name).ok().filter(|value| !value.is_empty());
    if let Some(host) = named {
        return Ok(host.to_owned());
    }
    if podman {
        if let Some(host) = variable("CONTAINER_HOST") {
            return Ok(host);
        }
        let usual = [user_socket("podman/podman.sock"), Some("/run/podman/podman.sock".into())];
        return first(usual, "/run/podman/podman.sock");
    }
    if let Some(host) = variable("DOCKER_HOST") {
        return Ok(host);
    }
    let config =
        variable("DOCKER_CONFIG").map(PathBuf::from).or_else(|| Some(env::home_dir()?.join(".docker")));
    if let Some(config) = config
        && let Some(host) = context(&config, variable("DOCKER_CONTEXT"))?
    {
        return Ok(host);
    }
    let usual = [
        Some("/var/run/docker.sock".into()),
        user_socket("docker.sock"),
        user_socket("podman/podman.sock"),
        Some("/run/podman/podman.sock".into()),
    ];
    first(usual, "/var/run/docker.sock")
}

fn user_socket(name: &str) -> Option<PathBuf> {
    env::var_os("XDG_RUNTIME_DIR").map(|dir| PathBuf::from(dir).join(name))
}

/// The first that is there; the one that is missed if none is.
fn first<const N: usize>(candidates: [Option<PathBuf>; N], missed: &str) -> Result<String> {
    let found = candidates.into_iter().flatten().find(|path| path.exists());
    Ok(format!("unix://{}", found.unwrap_or_else(|| missed.into()).display()))
}

/// The SHA-256 of a text, as hex digits.
pub(crate) fn digest(text: &str) -> String {
    Sha256::digest(text).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The engine of the current context of the docker client, if one was chosen that is not the default.
fn context(config: &Path, named: Option<String>) -> Result<Option<String>> {
    let chosen = || {
        let text = std::fs::read_to_string(config.join("config.json")).ok()?;
        let value: Value = serde_json::from_str(&text).ok()?;
        Some(value.get("currentContext")?.as_str()?.to_owned())
    };
    let Some(name) = named.or_else(chosen).filter(|name| name != "default" && !name.is_empty()) else {
        return Ok(None);
    };
    let digest = digest(&name);
    let path = config.join("contexts/meta").join(digest).join("meta.json");
    let host = std::fs::read_to_string(&path).ok().and_then(|text| {
        let value: Value = serde_json::from_str(&text).ok()?;
        Some(value.get("Endpoints")?.get("docker")?.get("Host")?.as_str()?.to_owned())
    });
    host.map(Some).ok_or_else(|| {
        Error::new(
            ErrorKind::BadInput,
            format!("the docker context {name:?} has no engine in {}", path.display()),
        )
        .at(Step::Connect)
        .with_hint("`docker context ls` shows those that there are; host= names an engine itself")
    })
}

/// Connects to an engine and agrees on a version of the API. `named` is how errors call it.
async fn connect(host: &str, named: &str) -> Result<Docker> {
    let seconds = ANSWER.as_secs();
    let version = bollard::API_DEFAULT_VERSION;
    let client = match host.split_once("://") {
        Some(("unix", path)) => Docker::connect_with_unix(path, seconds, version),
        Some(("tcp" | "http", _)) => Docker::connect_with_http(host, seconds, version),
        _ => {
            let error =
                Error::new(ErrorKind::BadInput, format!("{host:?} is not an engine that can be reached"))
                    .at(Step::Connect)
                    .with_hint("unix:///path, ssh://user@host and tcp://host:port can");
            return Err(error);
        }
    };
    let client = client.map_err(|e| failure::of_engine(e, named))?;
    let agreed = tokio::time::timeout(ANSWER, client.negotiate_version()).await;
    let client = agreed
        .map_err(|_| {
            failure::passing(format!("the engine at {named} does not answer"), "`docker info` tells more")
        })?
        .map_err(|e| failure::of_engine(e, named))?;
    tracing::debug!(host = named, version = %client.client_version(), "an engine is there");
    Ok(client)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_current_context_leads_to_its_engine() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(context(dir.path(), None).unwrap(), None);
        std::fs::write(dir.path().join("config.json"), r#"{"currentContext": "lab"}"#).unwrap();
        let e = context(dir.path(), None).unwrap_err();
        assert!(e.to_string().contains("\"lab\""), "{e}");
        // As the docker client lays it out: a directory named by the digest of the context's name.
        let meta = dir.path().join("contexts/meta/9cd2eb9f74ed8f9ba5b42d36ba5e0f1b4a4e2e0a3c7d1e2a");
        assert!(!meta.exists());
        let digest: String = Sha256::digest("lab").iter().map(|byte| format!("{byte:02x}")).collect();
        let meta = dir.path().join("contexts/meta").join(digest);
        std::fs::create_dir_all(&meta).unwrap();
        let text = r#"{"Name": "lab", "Endpoints": {"docker": {"Host": "tcp://lab:2375"}}}"#;
        std::fs::write(meta.join("meta.json"), text).unwrap();
        assert_eq!(context(dir.path(), None).unwrap().as_deref(), Some("tcp://lab:2375"));
        assert_eq!(context(dir.path(), Some("default".to_owned())).unwrap(), None);
    }
}
