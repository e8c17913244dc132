//! The boxes of `docker-compose.yml`, brought up as a project of one's own, by either Compose.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use tempfile::TempDir;

use crate::processes::becomes_so;
use crate::trouble::run;
use crate::{Container, Engine, Trouble};

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const REMEDY: &str = "fixtures/setup compose has both versions of Compose";
/// How long a box may take to be well.
const HEALTHY: std::time::Duration = std::time::Duration::from_secs(60);

/// Which Compose.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Compose {
    /// 1.29, the last one in Python.
    One,
    /// 2, of a newer Debian suite.
    Two,
}

impl Compose {
    fn program(self) -> PathBuf {
        match self {
            Compose::One => "docker-compose".into(),
            Compose::Two => PathBuf::from(ROOT)
                .join("fixtures/cache/compose/usr/libexec/docker/cli-plugins/docker-compose"),
        }
    }

    /// Its version, as it tells it.
    pub fn version(self) -> Result<String, Trouble> {
        let out = Command::new(self.program()).args(["version", "--short"]).output();
        let missing = |_| Trouble::Missing { what: format!("Compose {self:?}"), remedy: REMEDY };
        Ok(String::from_utf8_lossy(&out.map_err(missing)?.stdout).trim().to_owned())
    }
}

/// The boxes, or some of them. They go with this value.
#[derive(Debug)]
pub struct Boxes {
    /// The name of the project, with which those of the containers begin.
    pub project: String,
    /// The port of the ssh box on 127.0.0.1.
    pub port: u16,
    compose: Compose,
    base: String,
    dir: TempDir,
}

impl Boxes {
    /// Builds the images that are not there yet, starts these services, and waits until they are well.
    pub fn up(compose: Compose, services: &[&str]) -> Result<Self, Trouble> {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        compose.version()?;
        let base = Engine::DOCKER.image(("debian", None))?;
        let failed = |e: std::io::Error| Trouble::failed("make a directory", e);
        let dir = tempfile::Builder::new().prefix("farcell-boxes-").tempdir().map_err(failed)?;
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let project = format!("farcell-t-{}-c{count}", std::process::id());
        // It is free now, and given to nobody else so soon.
        let port = crate::port::of(&crate::port::listen()?);
        let boxes = Boxes { project, port, compose, base, dir };
        run(Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(boxes.key()), b"")?;
        let out = boxes.compose(&[&["up", "-d", "--build"], services].concat())?;
        if !out.status.success() {
            let said = [out.stdout, out.stderr].concat();
            return Err(Trouble::failed("bring the boxes up", String::from_utf8_lossy(&said)));
        }
        services.iter().try_for_each(|service| boxes.wait_healthy(service))?;
        Ok(boxes)
    }

    /// Waits until a box is well.
    pub fn wait_healthy(&self, service: &str) -> Result<(), Trouble> {
        let container = self.container(service);
        if becomes_so(HEALTHY, || container.health().as_deref() == Some("healthy")) {
            return Ok(());
        }
        let log = container.inspect("{{json .State.Health}}").unwrap_or_default();
        Err(Trouble::failed(format!("wait for the box {service}"), log))
    }

    /// Runs Compose on this project.
    pub fn compose(&self, args: &[&str]) -> Result<Output, Trouble> {
        let key = fs::read_to_string(self.key().with_extension("pub"));
        let mut command = Command::new(self.compose.program());
        command
            .current_dir(ROOT)
            .args(["-p", &self.project])
            .args(args)
            // Debian's builder, which needs no plugin.
            .env("DOCKER_BUILDKIT", "0")
            .env("FARCELL_BOXES", &self.project)
            .env("FARCELL_BOX_BASE", &self.base)
            .env("FARCELL_BOX_PORT", self.port.to_string())
            .env("FARCELL_BOX_KEY", key.map_err(|e| Trouble::failed("read a key", e))?.trim());
        command.output().map_err(|e| Trouble::failed("run Compose", e))
    }

    /// The container of a service.
    pub fn container(&self, service: &str) -> Container {
        Container::named(Engine::DOCKER, format!("{}-{service}", self.project))
    }

    /// The key that logs in to the ssh box.
    pub fn key(&self) -> PathBuf {
        self.dir.path().join("key")
    }

    fn known_hosts(&self) -> PathBuf {
        self.dir.path().join("known_hosts")
    }

    /// Forgets the key that the ssh box had.
    pub fn forget_host_key(&self) {
        let _ = fs::remove_file(self.known_hosts());
    }

    /// The target of the ssh box.
    pub fn ssh(&self) -> String {
        let known = self.known_hosts();
        format!(
            "ssh://agent@127.0.0.1:{}?identity={}&known_hosts={}&host_key=accept-new&config=/dev/null",
            self.port,
            self.key().display(),
            known.display()
        )
    }

    /// Ends the boxes, and says what of the project is left: containers, networks and volumes.
    pub fn down(&self) -> String {
        let _ = self.compose(&["down", "-v", "--timeout", "0"]);
        let label = format!("label=com.docker.compose.project={}", self.project);
        let left = [&["ps", "-a"] as &[&str], &["network", "ls"], &["volume", "ls"]].map(|what| {
            let out = Engine::DOCKER.command().args(what).args(["-q", "--filter", &label]).output();
            out.map_or_else(|e| e.to_string(), |out| String::from_utf8_lossy(&out.stdout).into_owned())
        });
        left.concat()
    }
}

impl Drop for Boxes {
    fn drop(&mut self) {
        self.down();
    }
}
