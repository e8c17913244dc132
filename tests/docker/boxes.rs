//! Containers of a test, and short ways to run cells in them.

use std::collections::BTreeMap;
use std::io::Write as _;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use farcell::docker::DockerConnector;
use farcell::{Drivers, FileCellDriver, Registry, RegistryOptions, Session, SessionOptions, Target};

pub(crate) use super::cells::{ok, until, value};

/// A container that goes with this value.
pub(crate) struct Box {
    pub(crate) name: String,
}

/// A container of one of the project's images, with further arguments for `docker run`. `None` where there is no engine.
pub(crate) fn start(image: &str, arguments: &[&str]) -> Option<Box> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    let image = built(image)?;
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("farcell-t-{}-{count}", std::process::id());
    let mut run = Command::new("docker");
    run.args(["run", "-d", "--label", "farcell-test", "--network", "none", "--name", &name]);
    // It ends by itself if this process does not come to it.
    run.args(arguments).args([&image, "sleep", "600"]);
    let out = run.output().unwrap();
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    Some(Box { name })
}

/// The image's name; built by the first who asks.
fn built(image: &str) -> Option<String> {
    static BUILT: Mutex<BTreeMap<String, Option<String>>> = Mutex::new(BTreeMap::new());
    let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
    let build = || {
        let out = Command::new("fixtures/images/build").arg(image).stderr(Stdio::inherit()).output().unwrap();
        if out.status.success() {
            return Some(String::from_utf8(out.stdout).unwrap().trim().to_owned());
        }
        assert!(
            std::env::var("CI").as_deref() != Ok("true"),
            "the image {image} could not be built; `fixtures/setup docker` starts an engine"
        );
        let _ = writeln!(std::io::stderr(), "SKIPPED: no engine; `fixtures/setup docker` starts one");
        None
    };
    built.entry(image.to_owned()).or_insert_with(build).clone()
}

impl Box {
    pub(crate) fn target(&self) -> Target {
        self.target_with("")
    }

    pub(crate) fn target_with(&self, options: &str) -> Target {
        format!("docker://{}{options}", self.name).parse().unwrap()
    }

    /// `docker VERB … NAME`, which has to succeed.
    pub(crate) fn docker(&self, verb: &[&str]) {
        let out = Command::new("docker").args(verb).arg(&self.name).output().unwrap();
        assert!(out.status.success(), "{verb:?}: {}", String::from_utf8_lossy(&out.stderr));
    }

    /// What a shell in the container prints.
    pub(crate) fn sh(&self, script: &str) -> String {
        let out =
            Command::new("docker").args(["exec", &self.name, "/bin/sh", "-c", script]).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    }
}

impl Drop for Box {
    fn drop(&mut self) {
        let _ = Command::new("docker").args(["rm", "-f", &self.name]).output();
    }
}

pub(crate) fn driver() -> FileCellDriver<DockerConnector> {
    FileCellDriver::new(DockerConnector::default())
}

pub(crate) fn registry() -> Registry {
    Registry::new(Drivers::new().with(driver()), RegistryOptions::default())
}

pub(crate) fn session(registry: &Registry, target: &Target, name: &str) -> Session {
    registry.session("docker", name, target, SessionOptions::default()).unwrap()
}
