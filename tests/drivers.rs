//! The conformance suite over every driver that comes with farcell: each case of each driver is a test of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use farcell::{Connector, Target};
use farcell_conformance::{Subject, kernel_cases, transport_cases};
use libtest_mimic::{Arguments, Trial};

/// The targets, under the names that tests carry.
fn targets() -> Vec<(&'static str, &'static str)> {
    vec![
        ("local", "local:"),
        ("exec", "exec:env FARCELL_PREFIX=1"),
        ("exec_quote", "exec+quote:sh -c"),
        ("stdio", "stdio:"),
    ]
}

/// How long a case may take before it counts as hung.
const BOUND: Duration = Duration::from_secs(120);

fn main() {
    let arguments = Arguments::from_args();
    let mut trials = Vec::new();
    for (name, target) in targets() {
        let target: Target = target.parse().unwrap();
        for case in kernel_cases() {
            let target = target.clone();
            let title = format!("{name}::{}", case.name);
            trials.push(Trial::test(title, move || {
                let subject = Subject::new(farcell::drivers(), target.clone());
                bounded(async {
                    let checked = AssertUnwindSafe((case.check)(&subject));
                    let outcome = futures_util::FutureExt::catch_unwind(checked).await;
                    subject.clean_up().await;
                    if let Err(panic) = outcome {
                        resume_unwind(panic);
                    }
                });
                Ok(())
            }));
        }
        if target.scheme() != "stdio" {
            for case in transport_cases() {
                let target = target.clone();
                trials.push(Trial::test(format!("{name}::transport::{}", case.name), move || {
                    bounded(async {
                        let connector = farcell::local::LocalConnector::default();
                        let connection = connector.connect(&target).await.unwrap();
                        (case.check)(connection.transport).await;
                    });
                    Ok(())
                }));
            }
        }
    }
    libtest_mimic::run(&arguments, trials).exit();
}

fn bounded(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(BOUND, work).await.expect("the case hangs") });
    // The tasks of dropped kernels see to it that their children end.
    runtime.shutdown_timeout(Duration::from_secs(5));
}
