//! Persistent code kernels on any machine that can be reached.
//!
//! This crate is the facade: the engine of [`farcell_core`], and the drivers that were compiled in, one cargo feature each.
//!
//! | feature | targets |
//! |---|---|
//! | `local` | `local:`, `stdio:`, `exec:PREFIX`, `exec+quote:PREFIX` |
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

#[cfg(feature = "local")]
pub use farcell_local as local;

/// The drivers that were compiled in.
pub fn drivers() -> Drivers {
    let drivers = Drivers::new();
    #[cfg(feature = "local")]
    let drivers = farcell_local::register(drivers);
    drivers
}
