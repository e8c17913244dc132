//! farcell's drivers for ssh: `ssh:`.
//!
//! There are two, behind the same [`Transport`](farcell_core::Transport) and with the same targets. `openssh` runs the user's own ssh program, with everything that is
//! configured for it. `russh` needs no ssh program. Both keep one connection per host, for all of its kernels.

mod address;
mod channels;
mod connector;
mod failure;
mod host;
mod live;
#[cfg(feature = "openssh")]
mod openssh;
mod options;
#[cfg(feature = "russh")]
mod russh;
mod transport;

use farcell_core::{Drivers, FileCellDriver};

pub use address::{HostKeys, Program};
pub use connector::SshConnector;
pub use options::SshOptions;

/// Adds the drivers of this crate.
pub fn register(drivers: Drivers, options: SshOptions) -> Drivers {
    drivers.with(FileCellDriver::new(SshConnector::new(options)))
}
