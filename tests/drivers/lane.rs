//! What no other driver than `stdio:` has: cells that go past the supervisor, and those that only begin to.

use std::time::Duration;

use farcell::{NoEvents, State, Status};
use farcell_conformance::Subject;
use libtest_mimic::Trial;

use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("stdio::lane::a_thousand_mixed_cells", mixed_cells),
        trial("stdio::lane::cells_that_are_given_up_disturb_nobody", given_up_cells),
        trial("stdio::lane::a_cell_that_writes_into_it_hurts_only_itself", meddling_cell),
    ]
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
