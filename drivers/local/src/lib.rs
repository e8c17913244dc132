//! farcell's drivers for this machine: `local:` (the shell), `exec:PREFIX` (any command that gives a shell), `stdio:` (a child process over pipes).

mod account;
mod connector;
mod env;
mod open;
mod process;
mod stdio;

use farcell_core::{Drivers, FileCellDriver};

pub use connector::LocalConnector;
pub use env::kernel_environment;
pub use process::run_program;
pub use stdio::StdioDriver;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub use stdio::fuzzing;

/// Adds the drivers of this crate.
pub fn register(drivers: Drivers) -> Drivers {
    drivers.with(FileCellDriver::new(LocalConnector::default())).with(StdioDriver::default())
}
