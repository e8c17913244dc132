//! The conformance suite over every driver that comes with farcell, each case of each driver a test of its own; and what only some of them have.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

mod cut_files;
mod docker;
mod falling_back;
mod lane;
mod mixed;
mod pool;
mod ssh;
mod wrapped;

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use farcell::local::LocalConnector;
use farcell::{Connector, Drivers, FileCellDriver, LinkChoice, Target};
use farcell_conformance::{Subject, kernel_cases, transport_cases};
use libtest_mimic::{Arguments, Trial};

/// The name that tests carry, the target, and the drivers that lead to it.
type Row = (&'static str, String, fn() -> Drivers);

/// What is tested. Streams are taken where there is no other word.
fn targets() -> Vec<Row> {
    let mut rows: Vec<Row> = vec![
        ("local", "local:".to_owned(), farcell::drivers),
        ("local_exec", "local:".to_owned(), exec_only),
        ("exec", "exec:env FARCELL_PREFIX=1".to_owned(), farcell::drivers),
        ("exec_quote", "exec+quote:sh -c".to_owned(), farcell::drivers),
        ("stdio", "stdio:".to_owned(), farcell::drivers),
    ];
    if let Some(target) = ssh::target("openssh") {
        rows.push(("openssh", target.clone(), ssh::drivers));
        rows.push(("openssh_exec", target, ssh::exec_only));
    }
    if let Some(target) = docker::target() {
        rows.push(("docker", target.clone(), docker::drivers));
        rows.push(("docker_exec", target, docker::exec_only));
    }
    if let Some(target) = ssh::target("russh").filter(|_| cfg!(feature = "russh")) {
        rows.push(("russh", target.clone(), ssh::drivers));
        rows.push(("russh_exec", target, ssh::exec_only));
    }
    rows
}

fn exec_only() -> Drivers {
    Drivers::new().with(FileCellDriver::new(LocalConnector::default()).links(LinkChoice::ExecOnly))
}

/// How long a case may take before it counts as hung.
const BOUND: Duration = Duration::from_secs(120);

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for (name, target, drivers) in targets() {
        let target: Target = target.parse().unwrap();
        for case in kernel_cases() {
            let target = target.clone();
            let title = format!("{name}::{}", case.name);
            trials.push(Trial::test(title, move || {
                let mut subject = Subject::new(drivers(), target.clone());
                if target.scheme() == "docker" {
                    subject = subject.is_elsewhere();
                }
                bounded(checked(&subject, (case.check)(&subject)));
                Ok(())
            }));
        }
        if target.scheme() == "stdio" || name.ends_with("_exec") {
            continue;
        }
        for case in transport_cases() {
            let target = target.clone();
            trials.push(Trial::test(format!("{name}::transport::{}", case.name), move || {
                bounded(async {
                    let connection = match target.scheme() {
                        "ssh" => ssh::connector().connect(&target).await.unwrap(),
                        "docker" => docker::connector().connect(&target).await.unwrap(),
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
            .chain(pool::trials()),
    );
    libtest_mimic::run(&arguments, trials).exit();
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
        bounded(work());
        Ok(())
    })
}

fn bounded(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(BOUND, work).await.expect("the case hangs") });
    // The tasks of dropped kernels see to it that their children end.
    runtime.shutdown_timeout(Duration::from_secs(5));
}
