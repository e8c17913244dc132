//! Persistent code kernels on any machine that can be reached.
//!
//! This crate is the facade: the engine of [`farcell_core`], and the drivers that were compiled in, one cargo feature each.
//!
//! | feature | targets |
//! |---|---|
//! | `local` | `local:`, `stdio:`, `exec:PREFIX`, `exec+quote:PREFIX` |
//! | `docker` | `docker://NAME`, `podman://NAME`, `compose://PROJECT/SERVICE`, `docker+run://IMAGE`, `podman+run://IMAGE` |
//! | `ssh` | `ssh://user@host:port`, `ssh:alias`, by the ssh program |
//! | `russh` | the same with `driver=russh`, which needs no ssh program |
//! | `cli` | the program `farcell`; a library user leaves it out |
//!
//! ```no_run
//! # #[cfg(feature = "local")]
//! # async fn example() -> farcell::Result<()> {
//! use farcell::{Cell, NoEvents, Registry, RegistryOptions, SessionOptions};
//!
//! let registry = Registry::new(farcell::drivers(), RegistryOptions::default());
//! let session = registry.session("me", "default", &"stdio:".parse()?, SessionOptions::default())?;
//! session.run(&Cell::new("x = 41"), &NoEvents).await?;
//! let reply = session.run(&Cell::new("x + 1"), &NoEvents).await?;
//! assert_eq!(reply.result.unwrap()["text/plain"], "42");
//! # Ok(())
//! # }
//! ```

pub use farcell_core::*;

#[cfg(feature = "docker")]
pub use farcell_docker as docker;
#[cfg(feature = "local")]
pub use farcell_local as local;
#[cfg(feature = "ssh")]
pub use farcell_ssh as ssh;

/// The drivers that were compiled in, as they are without any options.
pub fn drivers() -> Drivers {
    drivers_with(&DriverOptions::default())
}

/// What the drivers that were compiled in can be told.
#[derive(Debug, Clone, Default)]
#[non_exhaustive]
pub struct DriverOptions {
    /// For targets `ssh:`.
    #[cfg(feature = "ssh")]
    pub ssh: ssh::SshOptions,
}

/// The drivers that were compiled in.
#[cfg_attr(not(feature = "ssh"), allow(unused_variables, reason = "depends on the features"))]
pub fn drivers_with(options: &DriverOptions) -> Drivers {
    let drivers = Drivers::new();
    #[cfg(feature = "local")]
    let drivers = farcell_local::register(drivers);
    #[cfg(feature = "docker")]
    let drivers = farcell_docker::register(drivers);
    #[cfg(feature = "ssh")]
    let drivers = farcell_ssh::register(drivers, options.ssh.clone());
    drivers
}
