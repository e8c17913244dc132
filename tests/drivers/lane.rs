//! What only drivers of this machine have: cells that go from the host to the interpreter, and those that only begin to.

use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use farcell::{LinkChoice, NoEvents, Session, State, Status};
use farcell_conformance::Subject;
use libtest_mimic::Trial;
use rustix::process::Signal;

use crate::falling_back::signal;
use crate::trial;
use crate::wrapped::World;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("stdio::lane::a_thousand_mixed_cells", || mixed_cells("stdio:")),
        trial("local::lane::a_thousand_mixed_cells", || mixed_cells("local:")),
        trial("stdio::lane::cells_that_are_given_up_disturb_nobody", || given_up_cells("stdio:")),
        trial("local::lane::cells_that_are_given_up_disturb_nobody", || given_up_cells("local:")),
        trial("stdio::lane::a_cell_that_was_given_up_is_not_overtaken", not_overtaken),
        trial("local::lane::a_quick_cell_needs_no_courier", no_courier),
        trial("local::lane::a_death_in_it_is_a_reply", deaths),
        trial("stdio::lane::a_cell_that_writes_into_it_hurts_only_itself", meddling_cell),
    ]
}

async fn mixed_cells(target: &str) {
    let subject = Subject::new(farcell::drivers(), target.parse().unwrap());
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

async fn given_up_cells(target: &str) {
    let subject = Subject::new(farcell::drivers(), target.parse().unwrap());
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

async fn not_overtaken() {
    let subject = Subject::new(farcell::drivers(), "stdio:".parse().unwrap());
    let session = warmed_up(&subject).await;
    let reply = session.run(&"os.getppid()".into(), &NoEvents).await.unwrap();
    let supervisor = reply.result.unwrap()["text/plain"].as_str().unwrap().parse().unwrap();
    signal(supervisor, Signal::STOP);
    // It goes by way of the supervisor, and lies in its pipe.
    let mut cell = farcell::Cell::new("x += 1");
    cell.env.insert("A".to_owned(), "1".to_owned());
    let given_up = tokio::time::timeout(Duration::from_millis(50), session.run(&cell, &NoEvents)).await;
    assert!(given_up.is_err(), "{given_up:?}");
    let go_on = async {
        // For the next one this is more than enough to be over, had it taken the lane.
        tokio::time::sleep(Duration::from_millis(100)).await;
        signal(supervisor, Signal::CONT);
    };
    let next = farcell::Cell::new("x");
    let (reply, ()) = tokio::join!(session.run(&next, &NoEvents), go_on);
    let reply = reply.unwrap();
    assert_eq!(reply.result.as_ref().unwrap()["text/plain"], "1", "{reply:#?}");
    subject.clean_up().await;
}

/// Has a kernel whose next quick cell takes the lane.
async fn warmed_up(subject: &Subject) -> Session {
    let session = subject.session("lane");
    for code in ["import os; x = 0", "None", "None"] {
        session.run(&code.into(), &NoEvents).await.unwrap();
    }
    session
}

async fn no_courier() {
    let world = Arc::new(World::default());
    world.is_here.store(true, SeqCst);
    let subject = Subject::new(world.drivers(LinkChoice::Best), "local:".parse().unwrap());
    let session = warmed_up(&subject).await;
    let mut direct = 0;
    for n in 1..=200_u64 {
        let before = world.passed.load(SeqCst);
        let reply = session.run(&"x += 1; x".into(), &NoEvents).await.unwrap();
        let value = reply.result.as_ref().and_then(|bundle| bundle.get("text/plain")).unwrap();
        assert_eq!(value.as_str(), Some(n.to_string().as_str()), "{reply:#?}");
        direct += u64::from(world.passed.load(SeqCst) == before);
    }
    // On a busy machine some of them take too long.
    assert!(direct >= 20, "{direct} of 200 cells did without a courier");
    subject.clean_up().await;
}

async fn deaths() {
    for code in
        ["os._exit(3)", "os.kill(os.getpid(), 9)", "os.kill(os.getppid(), 9); import time; time.sleep(9)"]
    {
        let subject = Subject::new(farcell::drivers(), "local:".parse().unwrap());
        let session = warmed_up(&subject).await;
        let reply = session.run(&code.into(), &NoEvents).await.unwrap();
        assert_eq!(reply.status, Status::Died, "{reply:#?}");
        let reply = session.run(&"6 * 7".into(), &NoEvents).await.unwrap();
        assert_eq!(reply.status, Status::Ok, "{reply:#?}");
        subject.clean_up().await;
    }
}
