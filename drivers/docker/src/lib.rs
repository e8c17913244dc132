//! farcell's driver for containers: `docker:`, `podman:` and `compose:` for those that are there, `docker+run:` and `podman+run:` for
//! those that are made for a session, over the engine's API.
//!
//! A command in a container is an exec whose streams are attached. Docker and Podman's compatible socket are spoken to alike, from API 1.41 (Docker
//! 20.10, of 2020) on.

mod address;
mod attach;
mod connector;
mod engine;
mod failure;
mod gone;
mod sandbox;
mod site;
mod transport;
mod tunnel;

use farcell_core::{Drivers, FileCellDriver};

pub use connector::DockerConnector;
pub use sandbox::SandboxDriver;

/// Adds the drivers of this crate.
pub fn register(drivers: Drivers) -> Drivers {
    drivers.with(FileCellDriver::new(DockerConnector::default())).with(SandboxDriver::new())
}
