//! A program that embeds farcell: a runtime, and a registry whose kernels end with it.

use farcell::{Cell, NoEvents, Registry, RegistryOptions, Reply, Session, SessionOptions, Status};
use tokio::runtime::{Builder, Runtime};

use crate::Result;

/// Dropping it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) runtime: Runtime,
    registry: Registry,
}

impl Host {
    pub(crate) fn new(runtime: Runtime) -> Self {
        Host { runtime, registry: Registry::new(farcell::drivers(), RegistryOptions::default()) }
    }

    /// A session that no other process knows.
    pub(crate) fn session(&self, target: &str, name: &str, python: &str) -> Result<Session> {
        let owner = format!("floor-{}", std::process::id());
        let options = SessionOptions { python: Some(python.to_owned()), ..SessionOptions::default() };
        Ok(self.registry.session(&owner, name, &target.parse()?, options)?)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(e) = self.runtime.block_on(self.registry.dispose_all()) {
            eprintln!("floor: a kernel is left behind: {e}");
        }
    }
}

/// A runtime like that of the program `farcell`.
pub(crate) fn two_workers() -> Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// A runtime that does all of its work on the caller's thread.
pub(crate) fn one_thread() -> Result<Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

/// Runs a cell that nobody watches and that has to end well.
pub(crate) async fn run(session: &Session, cell: &Cell) -> Result<Reply> {
    let reply = session.run(cell, &NoEvents).await?;
    if reply.status == Status::Ok {
        Ok(reply)
    } else {
        Err(format!("{:?} ended with {reply:?}", cell.code).into())
    }
}
