//! farcell's driver for containers: `docker:`, `podman:` and `compose:`, over the engine's API.
//!
//! A command in a container is an exec whose streams are attached. Docker and Podman's compatible socket are spoken to alike, from API 1.41 (Docker
//! 20.10, of 2020) on.

mod address;
mod attach;
mod connector;
mod engine;
mod failure;
mod site;
mod transport;

use farcell_core::{Drivers, FileCellDriver};

pub use connector::DockerConnector;

/// Adds the driver of this crate.
pub fn register(drivers: Drivers) -> Drivers {
    drivers.with(FileCellDriver::new(DockerConnector::default()))
}
