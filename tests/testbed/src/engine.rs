//! Engines of containers, images that are made from Debian packages on the spot, and containers that go with the value that stands for them.

use std::collections::BTreeMap;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Mutex, PoisonError};

use crate::Trouble;
use crate::processes::becomes_so;

const BUILD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/images/build");

/// How long a container may take to run.
const READY: std::time::Duration = std::time::Duration::from_secs(60);

/// An engine of this machine. All of them are driven by the docker client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Engine {
    /// What tests are called by.
    pub name: &'static str,
    scheme: &'static str,
    /// Where it is, if it is not the one that the docker client takes by itself.
    host: Option<&'static str>,
    remedy: &'static str,
}

/// An image of the project: a name that `fixtures/images/build` knows, and the Debian suite, if it is not this machine's own.
pub type Image = (&'static str, Option<&'static str>);

impl Engine {
    /// This machine's Docker.
    pub const DOCKER: Engine =
        Engine { name: "docker", scheme: "docker", host: None, remedy: "fixtures/setup docker starts one" };
    /// A Docker of a newer Debian suite, beside it.
    pub const NEW: Engine = Engine {
        name: "docker_new",
        scheme: "docker",
        host: Some("unix:///run/farcell/new-engine.sock"),
        remedy: "fixtures/setup new-engine starts one",
    };
    /// Podman, by its API.
    pub const PODMAN: Engine = Engine {
        name: "podman",
        scheme: "podman",
        host: Some("unix:///run/farcell/podman.sock"),
        remedy: "fixtures/setup podman starts one",
    };
    /// All of them.
    pub const ALL: [Engine; 3] = [Engine::DOCKER, Engine::NEW, Engine::PODMAN];

    /// The docker client, for this engine.
    pub fn command(&self) -> Command {
        let mut command = Command::new("docker");
        self.host.inspect(|host| _ = command.env("DOCKER_HOST", host));
        command
    }

    /// The target of a container, with options as they stand behind the `?`.
    pub fn target(&self, container: &str, options: &str) -> String {
        self.addressed(self.scheme, container, options)
    }

    /// The target of a service, written as `[PROJECT/]SERVICE`.
    pub fn service(&self, service: &str) -> String {
        self.addressed("compose", service, "")
    }

    /// The target whose sessions each have a sandbox of an image, with options as they stand behind the `?`.
    pub fn sandboxes(&self, image: &str, options: &str) -> String {
        self.addressed(&format!("{}+run", self.scheme), image, options)
    }

    fn addressed(&self, scheme: &str, name: &str, options: &str) -> String {
        let host = self.host.map(|host| format!("host={host}"));
        let options: Vec<_> = host.as_deref().into_iter().chain(Some(options)).collect();
        let options = options.join("&");
        let options = options.trim_matches('&');
        let mark = if options.is_empty() { "" } else { "?" };
        format!("{scheme}://{name}{mark}{options}")
    }

    /// The name of an image, which is made by the first who asks.
    pub fn image(&self, (name, suite): Image) -> Result<String, Trouble> {
        static BUILT: Mutex<BTreeMap<(Engine, Image), String>> = Mutex::new(BTreeMap::new());
        let mut built = BUILT.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(image) = built.get(&(*self, (name, suite))) {
            return Ok(image.clone());
        }
        if !self.command().arg("info").output().is_ok_and(|out| out.status.success()) {
            return Err(Trouble::Missing { what: format!("the engine {}", self.name), remedy: self.remedy });
        }
        let mut build = Command::new(BUILD);
        build.arg(name).args(suite.iter().flat_map(|suite| ["--suite", suite])).stderr(Stdio::inherit());
        self.host.inspect(|host| _ = build.env("DOCKER_HOST", host));
        let out = build.output().map_err(|e| Trouble::failed("run fixtures/images/build", e))?;
        if !out.status.success() {
            return Err(Trouble::failed(format!("make the image {name}"), out.status));
        }
        let image = String::from_utf8_lossy(&out.stdout).trim().to_owned();
        built.insert((*self, (name, suite)), image.clone());
        Ok(image)
    }

    /// A container that runs, with further arguments for `docker run`. It reads its stdin, and so ends with this process, however that ends; it
    /// cannot be restarted.
    pub fn hold(&self, image: Image, arguments: &[&str]) -> Result<Container, Trouble> {
        let image = self.image(image)?;
        let mut container = Container::new(*self);
        let mut run = self.run(&container.name, &["--rm", "-i"], arguments);
        run.args([&image, "cat"]).stdin(Stdio::piped()).stdout(Stdio::null());
        let mut child = run.spawn().map_err(|e| Trouble::failed("run docker", e))?;
        let mut runs = false;
        becomes_so(READY, || {
            runs = container.inspect("{{.State.Running}}").is_some_and(|said| said == "true");
            runs || child.try_wait().is_ok_and(|ended| ended.is_some())
        });
        container.held = Some(child);
        if !runs {
            return Err(Trouble::failed("start a container", "it does not run"));
        }
        Ok(container)
    }

    /// A container that can be restarted. It ends by itself after ten minutes if this process does not come to it.
    pub fn start(&self, image: Image, arguments: &[&str]) -> Result<Container, Trouble> {
        let image = self.image(image)?;
        let container = Container::new(*self);
        let mut run = self.run(&container.name, &["-d"], arguments);
        let out = run.args([&image, "sleep", "600"]).output();
        let out = out.map_err(|e| Trouble::failed("run docker", e))?;
        if !out.status.success() {
            return Err(Trouble::failed("start a container", String::from_utf8_lossy(&out.stderr)));
        }
        Ok(container)
    }

    fn run(&self, name: &str, first: &[&str], more: &[&str]) -> Command {
        let mut command = self.command();
        command.arg("run").args(first).args(["--network", "none", "--name", name]).args(more);
        command
    }
}

/// A container. One that an engine was asked for goes with this value.
#[derive(Debug)]
pub struct Container {
    /// Its name.
    pub name: String,
    /// Where it is.
    pub engine: Engine,
    goes: bool,
    held: Option<Child>,
}

impl Container {
    fn new(engine: Engine) -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        // By this name `fixtures/setup clear` knows whose it was.
        let name = format!("farcell-t-{}-{count}", std::process::id());
        Container { name, engine, goes: true, held: None }
    }

    /// One that somebody else looks after.
    pub(crate) fn named(engine: Engine, name: String) -> Self {
        Container { name, engine, goes: false, held: None }
    }

    /// Its target, with options as they stand behind the `?`.
    pub fn target(&self, options: &str) -> String {
        self.engine.target(&self.name, options)
    }

    /// `docker VERB … NAME`, which has to succeed.
    pub fn docker(&self, verb: &[&str]) {
        let out = self.engine.command().args(verb).arg(&self.name).output().unwrap();
        assert!(out.status.success(), "{verb:?}: {}", String::from_utf8_lossy(&out.stderr));
    }

    /// What a shell in it prints; nothing if it does not run.
    pub fn sh(&self, script: &str) -> String {
        let args = ["exec", &self.name, "/bin/sh", "-c", script];
        let out = self.engine.command().args(args).output().unwrap();
        String::from_utf8(out.stdout).unwrap()
    }

    /// What the engine says of it; `None` if there is none.
    pub fn inspect(&self, format: &str) -> Option<String> {
        let out = self.engine.command().args(["inspect", "-f", format, &self.name]).output().ok()?;
        out.status.success().then(|| String::from_utf8_lossy(&out.stdout).trim().to_owned())
    }

    /// What its healthcheck says.
    pub(crate) fn health(&self) -> Option<String> {
        self.inspect("{{.State.Health.Status}}")
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        if !self.goes {
            return;
        }
        let _ = self.engine.command().args(["rm", "-f", &self.name]).output();
        if let Some(mut held) = self.held.take() {
            let _ = held.wait();
        }
    }
}
