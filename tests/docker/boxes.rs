//! Containers of a test, and short ways to run cells in them.

use farcell::docker::DockerConnector;
use farcell::{Drivers, FileCellDriver, Registry, RegistryOptions, Session, SessionOptions, Target};
use farcell_testbed::{Container, Engine, available};

pub(crate) use super::cells::{ok, until, value};
pub(crate) use super::pictures::built;

/// A container of one of the project's images, with further arguments for `docker run`. `None` where there is no such engine.
pub(crate) fn start(engine: Engine, image: &'static str, arguments: &[&str]) -> Option<Container> {
    available(engine.start((image, None), arguments))
}

/// Where kernels of a container are.
pub(crate) fn target(container: &Container) -> Target {
    target_with(container, "")
}

/// The same with options, as they stand behind the `?`.
pub(crate) fn target_with(container: &Container, options: &str) -> Target {
    container.target(options).parse().unwrap()
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
