//! The conformance suite over every driver that comes with farcell: each case of each driver is a test of its own.
#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test")]

use std::panic::{AssertUnwindSafe, resume_unwind};
use std::time::Duration;

use farcell::{Connector, NoEvents, State, Status, Target};
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
    // What no other driver has: cells that go past the supervisor, and those that only begin to.
    trials.push(Trial::test("stdio::lane::a_thousand_mixed_cells", || {
        bounded(mixed_cells());
        Ok(())
    }));
    trials.push(Trial::test("stdio::lane::cells_that_are_given_up_disturb_nobody", || {
        bounded(given_up_cells());
        Ok(())
    }));
    trials.push(Trial::test("stdio::lane::a_cell_that_writes_into_it_hurts_only_itself", || {
        bounded(meddling_cell());
        Ok(())
    }));
    libtest_mimic::run(&arguments, trials).exit();
}

async fn mixed_cells() {
    let subject = Subject::new(farcell::drivers(), "stdio:".parse().unwrap());
    let session = subject.session("lane");
    session.run(&"import os, time; n = 0".into(), &NoEvents).await.unwrap();
    for n in 1..=1000_u64 {
        let (code, printed) = match n % 7 {
            0 => ("n += 1; print(n)", true),
            1 => ("n += 1; os.system(f'echo {n}'); None", true),
            2 => ("n += 1; time.sleep(0.0015 + n % 10 / 10000); n", false),
            3 => ("n += 1; time.sleep(0.002); os.write(1, b'%d\\n' % n); None", true),
            _ => ("n += 1; n", false),
        };
        let reply = session.run(&code.into(), &NoEvents).await.unwrap();
        assert_eq!(reply.status, Status::Ok, "{reply:#?}");
        assert_eq!(reply.cell.number.unwrap().0, n + 1, "{reply:#?}");
        assert_eq!(reply.stdout, if printed { format!("{n}\n") } else { String::new() }, "{reply:#?}");
        let value = reply.result.as_ref().and_then(|bundle| bundle.get("text/plain"));
        let value = value.and_then(|value| value.as_str()).map(str::to_owned);
        assert_eq!(value, (!printed).then(|| n.to_string()), "{reply:#?}");
        assert_eq!(reply.kernel.state, State::Kept);
    }
    subject.clean_up().await;
}

async fn meddling_cell() {
    let subject = Subject::new(farcell::drivers(), "stdio:".parse().unwrap());
    let session = subject.session("lane");
    session.run(&"import os".into(), &NoEvents).await.unwrap();
    let code = "for fd in range(3, 400):\n    try: os.write(fd, b'xyz')\n    except OSError: pass";
    let reply = session.run(&code.into(), &NoEvents).await.unwrap();
    assert_eq!(reply.status, Status::Died, "{reply:#?}");
    for n in 0..50 {
        let reply = session.run(&format!("{n}").as_str().into(), &NoEvents).await.unwrap();
        assert_eq!(reply.status, Status::Ok, "{reply:#?}");
    }
    subject.clean_up().await;
}

async fn given_up_cells() {
    let subject = Subject::new(farcell::drivers(), "stdio:".parse().unwrap());
    let session = subject.session("lane");
    session.run(&"import time; n = 0".into(), &NoEvents).await.unwrap();
    for n in 1..=200_u64 {
        // Between nothing and twice as long as it takes.
        let patience = Duration::from_micros(n * 20);
        let cell = "time.sleep(0.002); n += 1".into();
        let given_up = tokio::time::timeout(patience, session.run(&cell, &NoEvents)).await.is_err();
        let n = || async { session.run(&"n".into(), &NoEvents).await.unwrap() };
        let (first, second) = (n().await, n().await);
        assert_eq!(first.status, Status::Ok, "{first:#?}");
        assert_eq!(first.result, second.result, "whatever began was over before the next cell ({given_up})");
    }
    // Nobody asks after this one again, and yet it does not run for ever.
    let cell = farcell::Cell::new("while True: time.sleep(0.001)").timeout(Duration::from_millis(300));
    let _ = tokio::time::timeout(Duration::from_millis(1), session.run(&cell, &NoEvents)).await;
    let began = std::time::Instant::now();
    session.run(&"n".into(), &NoEvents).await.unwrap();
    assert!(began.elapsed() < Duration::from_secs(10), "its deadline was kept");
    // Half a frame would be the end of the kernel.
    let big = farcell::Cell::new(format!("x = '{}'", "y".repeat(20_000_000)));
    let _ = tokio::time::timeout(Duration::from_millis(5), session.run(&big, &NoEvents)).await;
    let reply = session.run(&"6 * 7".into(), &NoEvents).await.unwrap();
    assert_eq!((reply.status, reply.kernel.state), (Status::Ok, State::Kept), "{reply:#?}");
    subject.clean_up().await;
}

fn bounded(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(BOUND, work).await.expect("the case hangs") });
    // The tasks of dropped kernels see to it that their children end.
    runtime.shutdown_timeout(Duration::from_secs(5));
}
