//! What can happen to a container, and what images can lack: each trap is a test of its own, against each engine.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod boxes;
#[path = "../common/cells.rs"]
mod cells;
mod events;
mod images;
mod made;
#[path = "../common/images.rs"]
mod pictures;
mod pulls;
mod sandbox;
mod standing;

use std::time::Duration;

use farcell_testbed::{Engine, bounded};
use libtest_mimic::{Arguments, Trial};

/// How long a test may take before it counts as hung.
const BOUND: Duration = Duration::from_secs(180);

fn main() {
    let arguments = Arguments::from_args();
    let of = |engine| events::trials(engine).into_iter().chain(images::trials(engine));
    let trials = Engine::ALL.into_iter().flat_map(of).chain([events::alone()]);
    let sandboxes =
        [Engine::DOCKER, Engine::PODMAN].into_iter().flat_map(sandbox::trials).chain([sandbox::alone()]);
    let read_only = [Engine::DOCKER, Engine::NEW].map(images::read_only);
    let standing = [Engine::DOCKER, Engine::NEW].into_iter().flat_map(standing::trials);
    let trials = trials.chain(sandboxes).chain(read_only).chain(standing).chain(pulls::trials()).collect();
    libtest_mimic::run(&arguments, trials).exit();
}

/// A test of one engine.
fn trial_on<F>(engine: Engine, name: &str, work: impl FnOnce(Engine) -> F + Send + 'static) -> Trial
where
    F: Future<Output = ()>,
{
    trial(&format!("{}::{name}", engine.name), move || work(engine))
}

fn trial<F>(name: &str, work: impl FnOnce() -> F + Send + 'static) -> Trial
where
    F: Future<Output = ()>,
{
    Trial::test(name, move || {
        bounded(BOUND, work());
        Ok(())
    })
}
