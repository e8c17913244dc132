//! The suite in containers: of several engines, and with several Pythons.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use farcell::docker::{DockerConnector, SandboxDriver};
use farcell::{Drivers, FileCellDriver, LinkChoice};
use farcell_testbed::{Boxes, Compose, Container, Engine, Image, available};

const DEBIAN: Image = ("debian", None);

/// What the suite runs in: the name that tests carry, the engine, and the image.
pub(crate) const PLACES: [(&str, Engine, Image); 7] = [
    ("docker", Engine::DOCKER, DEBIAN),
    ("docker_slim", Engine::DOCKER, ("slim", None)),
    ("docker_py39", Engine::DOCKER, ("debian", Some("bullseye"))),
    ("docker_py313", Engine::DOCKER, ("debian", Some("trixie"))),
    ("docker_py314", Engine::DOCKER, ("debian", Some("sid"))),
    ("docker_new", Engine::NEW, DEBIAN),
    ("podman", Engine::PODMAN, DEBIAN),
];

/// One container for all cases of a place.
static CONTAINERS: Mutex<BTreeMap<&'static str, Option<Container>>> = Mutex::new(BTreeMap::new());
/// The plain box of docker-compose.yml.
static BOXES: Mutex<Option<Option<Boxes>>> = Mutex::new(None);

/// A target in a place; `None` where its engine is missing.
pub(crate) fn target((name, engine, image): (&'static str, Engine, Image)) -> Option<String> {
    let mut containers = CONTAINERS.lock().unwrap_or_else(PoisonError::into_inner);
    let start = || available(engine.hold(image, &["--init", "--shm-size", "512m"]));
    Some(containers.entry(name).or_insert_with(start).as_ref()?.target(""))
}

/// A target whose kernels each have a sandbox.
pub(crate) fn sandbox_target() -> Option<String> {
    Some(format!("docker+run://{}", available(Engine::DOCKER.image(DEBIAN))?))
}

/// A target in a service of Compose.
pub(crate) fn service() -> Option<String> {
    let mut boxes = BOXES.lock().unwrap_or_else(PoisonError::into_inner);
    let up = || available(Boxes::up(Compose::Two, &["python"]));
    let project = &boxes.get_or_insert_with(up).as_ref()?.project;
    Some(Engine::DOCKER.service(&format!("{project}/python")))
}

/// Ends all that was started. Those in [`CONTAINERS`] would end with this process anyway.
pub(crate) fn end() {
    CONTAINERS.lock().unwrap_or_else(PoisonError::into_inner).clear();
    BOXES.lock().unwrap_or_else(PoisonError::into_inner).take();
}

pub(crate) fn connector() -> DockerConnector {
    DockerConnector::default()
}

pub(crate) fn drivers() -> Drivers {
    Drivers::new().with(FileCellDriver::new(connector()))
}

pub(crate) fn sandboxes() -> Drivers {
    Drivers::new().with(SandboxDriver::new())
}

pub(crate) fn exec_only() -> Drivers {
    Drivers::new().with(FileCellDriver::new(connector()).links(LinkChoice::ExecOnly))
}
