//! Short ways to run cells, for the tests of more than one driver.

use std::time::Duration;

use farcell::{Cell, NoEvents, Reply, Session, Status};

/// Runs a cell that has to end well.
pub(crate) async fn ok(session: &Session, code: &str) -> Reply {
    let reply =
        session.run(&Cell::new(code), &NoEvents).await.unwrap_or_else(|e| panic!("{e} ({:?})", e.hint()));
    assert_eq!(reply.status, Status::Ok, "{reply:#?}");
    reply
}

/// The text of a cell's value.
pub(crate) async fn value(session: &Session, code: &str) -> String {
    let reply = ok(session, code).await;
    reply.result.unwrap()["text/plain"].as_str().unwrap().to_owned()
}

/// Waits for something that has to happen, which somebody else brings about.
pub(crate) async fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let started = std::time::Instant::now();
    while !is_so() {
        assert!(started.elapsed() < Duration::from_secs(30), "it does not come to this: {what}");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
