//! Containers that are made for the sessions of tests.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use farcell::docker::SandboxDriver;
use farcell::{Drivers, Error, NoEvents, Registry, RegistryOptions, Session, SessionOptions, Store, Target};
use farcell_testbed::Engine;
use serde_json::Value;

use crate::boxes::{built, ok};

/// Whose sessions they are.
pub(crate) const OWNER: &str = "sandbox-tests";

/// A session in a sandbox, which is gone with this value.
pub(crate) struct Made {
    engine: Engine,
    pub(crate) session: Session,
    pub(crate) registry: Registry,
    pub(crate) name: String,
}

impl Drop for Made {
    fn drop(&mut self) {
        let _ = self.docker(&["rm", "-f", &self.name]);
    }
}

/// A session of its own on an image of the project's; `None` where there is no engine.
pub(crate) fn make(engine: Engine, image: &'static str, options: &str) -> Option<Made> {
    let target = target(engine, image, options)?;
    Some(make_in(engine, registry(None), &target, &unique(), SessionOptions::default()))
}

pub(crate) fn make_in(
    engine: Engine,
    registry: Registry,
    target: &Target,
    session: &str,
    options: SessionOptions,
) -> Made {
    let session = registry.session(OWNER, session, target, options).unwrap();
    let name = format!("farcell-{}", session.key().digest());
    Made { engine, session, registry, name }
}

pub(crate) fn target(engine: Engine, image: &'static str, options: &str) -> Option<Target> {
    Some(engine.sandboxes(&built(engine, image)?, options).parse().unwrap())
}

/// A session that no other test has, nor one of another run.
pub(crate) fn unique() -> String {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    format!("t-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed))
}

pub(crate) fn registry(store: Option<&tempfile::TempDir>) -> Registry {
    let store = store.map(|dir| Store::open(dir.path()).unwrap());
    let options = RegistryOptions { store, ..RegistryOptions::default() };
    Registry::new(Drivers::new().with(SandboxDriver::new()), options)
}

/// What the docker client prints; `None` if it fails.
pub(crate) fn ask(engine: Engine, arguments: &[&str]) -> Option<String> {
    let out = engine.command().args(arguments).output().unwrap();
    out.status.success().then(|| String::from_utf8(out.stdout).unwrap().trim().to_owned())
}

impl Made {
    pub(crate) fn docker(&self, arguments: &[&str]) -> Option<String> {
        ask(self.engine, arguments)
    }

    pub(crate) fn inspect(&self) -> Value {
        let text = self.docker(&["inspect", &self.name]).expect("the sandbox is there");
        serde_json::from_str::<Value>(&text).unwrap()[0].take()
    }

    pub(crate) fn is_there(&self) -> bool {
        self.docker(&["inspect", &self.name]).is_some()
    }

    pub(crate) async fn error(&self) -> Error {
        self.session.run(&"1".into(), &NoEvents).await.unwrap_err()
    }

    /// Waits until the engine is rid of it.
    pub(crate) async fn gone(&self, within: Duration) {
        let started = Instant::now();
        while self.is_there() {
            assert!(started.elapsed() < within, "{} stays", self.name);
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    /// What the engine says of it after a cell.
    pub(crate) async fn inspect_after(&self, code: &str) -> Value {
        ok(&self.session, code).await;
        self.inspect()
    }
}
