//! The conformance suite over every driver that comes with farcell, each case of each driver a test of its own; and what only some of them have.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod cut_files;
mod docker;
mod falling_back;
mod lane;
mod mixed;
mod once;
mod pool;
mod ssh;
mod tools;
mod wrapped;

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::Arc;
use std::time::Duration;

use farcell::local::LocalConnector;
use farcell::{Connector, Drivers, FileCellDriver, LinkChoice, Target};
use farcell_conformance::{Subject, kernel_cases, transport_cases};
use farcell_testbed::bounded;
use libtest_mimic::{Arguments, Trial};

/// The name that tests carry, the target, and the drivers that lead to it.
struct Row {
    name: &'static str,
    /// Found by the first case that runs, as containers and servers are started for it. `None` where the machine lacks something, and it was said.
    target: Arc<dyn Fn() -> Option<String> + Send + Sync>,
    drivers: fn() -> Drivers,
    /// Its processes are not this machine's.
    is_elsewhere: bool,
}

/// What is tested. Streams are taken where there is no other word.
fn targets() -> Vec<Row> {
    let here = |name, target: &'static str, drivers| Row {
        name,
        target: Arc::new(|| Some(target.to_owned())),
        drivers,
        is_elsewhere: false,
    };
    let ssh = |name, driver, drivers| Row {
        name,
        target: Arc::new(move || ssh::target(driver)),
        drivers,
        is_elsewhere: false,
    };
    let container = |name, place, drivers| Row {
        name,
        target: Arc::new(move || docker::target(place)),
        drivers,
        is_elsewhere: true,
    };
    let mut rows = vec![
        here("local", "local:", farcell::drivers),
        here("local_exec", "local:", exec_only),
        here("exec", "exec:env FARCELL_PREFIX=1", farcell::drivers),
        here("exec_quote", "exec+quote:sh -c", farcell::drivers),
        here("stdio", "stdio:", farcell::drivers),
        ssh("openssh", "openssh", ssh::drivers),
        ssh("openssh_exec", "openssh", ssh::exec_only),
    ];
    if cfg!(feature = "russh") {
        rows.extend([ssh("russh", "russh", ssh::drivers), ssh("russh_exec", "russh", ssh::exec_only)]);
    }
    rows.extend(docker::PLACES.map(|place| container(place.0, place, docker::drivers)));
    rows.push(container("docker_exec", docker::PLACES[0], docker::exec_only));
    let compose = Arc::new(docker::service);
    rows.push(Row { name: "compose", target: compose, drivers: docker::drivers, is_elsewhere: true });
    let sandbox = Arc::new(docker::sandbox_target);
    rows.push(Row { name: "sandbox", target: sandbox, drivers: docker::sandboxes, is_elsewhere: true });
    rows
}

fn exec_only() -> Drivers {
    Drivers::new().with(FileCellDriver::new(LocalConnector::default()).links(LinkChoice::ExecOnly))
}

/// Cases in which a second session looks at the processes and files of the first, or files are moved without any: where each session has a machine
/// of its own, they mean nothing. What holds there instead is in `tests/docker/sandbox.rs`.
const OF_ONE_MACHINE: &[&str] = &[
    "a_cell_that_ignores_signals_is_ended_with_its_children",
    "a_cell_that_waits_too_long_is_withdrawn",
    "a_child_left_behind_does_not_delay_the_reply",
    "a_dead_supervisor_is_told_within_a_second",
    "a_file_goes_where_cp_would_put_it",
    "a_file_that_cannot_be_moved_is_told_and_left_alone",
    "a_large_file_goes_both_ways",
    "a_link_to_a_file_is_followed_at_the_source_and_replaced_at_the_end",
    "a_prompt_is_seen_before_the_secret_behind_it",
    "a_reader_never_sees_half_a_file",
    "a_second_cell_waits_its_turn_and_is_told",
    "a_secret_is_in_no_argv_no_log_and_no_open_file",
    "a_stopped_session_starts_afresh",
    "a_submitted_cell_is_fetched_later",
    "a_supervisor_killed_between_cells_is_told",
    "an_idle_kernel_is_reaped_without_being_asked",
    "an_interpreter_killed_between_cells_is_told",
    "files_of_all_sizes_arrive_as_they_were",
    "many_files_at_once_and_the_same_one_twice",
    "output_streams_while_the_cell_runs",
    "the_name_of_a_file_is_data",
    "the_relative_path_of_a_file_begins_where_it_is_said_to",
];

/// How long a case may take before it counts as hung.
const BOUND: Duration = Duration::from_secs(120);

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for name in OF_ONE_MACHINE {
        assert!(kernel_cases().iter().any(|case| case.name == *name), "there is no case {name}");
    }
    for Row { name, target, drivers, is_elsewhere } in targets() {
        let is_apart = name == "sandbox";
        for case in
            kernel_cases().into_iter().filter(|case| !is_apart || !OF_ONE_MACHINE.contains(&case.name))
        {
            let target = Arc::clone(&target);
            trials.push(Trial::test(format!("{name}::{}", case.name), move || {
                let Some(target) = target() else { return Ok(()) };
                let mut subject = Subject::new(drivers(), target.parse().unwrap());
                if is_elsewhere {
                    subject = subject.is_elsewhere();
                }
                bounded(BOUND, checked(&subject, (case.check)(&subject)));
                Ok(())
            }));
        }
        if ["stdio", "sandbox"].contains(&name) || name.ends_with("_exec") {
            continue;
        }
        for case in transport_cases() {
            let target = Arc::clone(&target);
            trials.push(Trial::test(format!("{name}::transport::{}", case.name), move || {
                let Some(target) = target() else { return Ok(()) };
                let target: Target = target.parse().unwrap();
                bounded(BOUND, async {
                    let connection = match target.scheme() {
                        "ssh" => ssh::connector().connect(&target).await.unwrap(),
                        "docker" | "podman" | "compose" => {
                            docker::connector().connect(&target).await.unwrap()
                        }
                        _ => LocalConnector::default().connect(&target).await.unwrap(),
                    };
                    (case.check)(connection.transport).await;
                });
                Ok(())
            }));
        }
    }
    trials.extend(
        lane::trials()
            .into_iter()
            .chain(falling_back::trials())
            .chain(mixed::trials())
            .chain(cut_files::trials())
            .chain(once::trials())
            .chain(pool::trials())
            .chain(tools::trials()),
    );
    let conclusion = libtest_mimic::run(&arguments, trials);
    docker::end();
    conclusion.exit();
}

/// Sees to it that a subject leaves nothing, also where a check fails.
async fn checked(subject: &Subject, check: impl Future<Output = ()>) {
    let outcome = futures_util::FutureExt::catch_unwind(AssertUnwindSafe(check)).await;
    subject.clean_up().await;
    if let Err(panic) = outcome {
        resume_unwind(panic);
    }
}

/// A test of its own.
fn trial(name: &str, work: impl AsyncFnOnce() + Send + 'static) -> Trial {
    Trial::test(name, move || {
        bounded(BOUND, work());
        Ok(())
    })
}
