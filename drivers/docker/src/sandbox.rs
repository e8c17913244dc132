//! Containers that are made for a session and go with it: `docker+run://IMAGE` and `podman+run://IMAGE`.

mod body;
mod driver;
mod house;
mod kernel;
mod order;
mod pull;

pub use self::driver::SandboxDriver;
