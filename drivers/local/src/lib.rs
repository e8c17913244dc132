//! farcell's drivers for this machine: `local:` (the shell), `exec:PREFIX` (any command that gives a shell), `stdio:` (a child process over pipes).

mod connector;
mod env;
mod open;
mod process;
mod stdio;

use farcell_core::{Drivers, FileCellDriver};

pub use connector::LocalConnector;
pub use env::kernel_environment;
pub use stdio::StdioDriver;

/// Adds the drivers of this crate.
pub fn register(drivers: Drivers) -> Drivers {
    drivers.with(FileCellDriver::new(LocalConnector::default())).with(StdioDriver::default())
}
