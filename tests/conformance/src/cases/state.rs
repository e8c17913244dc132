//! Variables, working directory, environment: what stays from cell to cell, and what a reset takes.

use std::time::Duration;

use farcell_core::{Cell, NoEvents, State, Status};

use crate::Case;
use crate::subject::{Subject, expect, ok, run, text};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case { name: "variables_survive", check: |s| Box::pin(variables_survive(s)) },
        Case { name: "sessions_are_apart", check: |s| Box::pin(sessions_are_apart(s)) },
        Case { name: "a_directory_and_a_variable_stay", check: |s| Box::pin(directory_and_env(s)) },
        Case { name: "a_wrong_directory_is_named", check: |s| Box::pin(wrong_directory(s)) },
        Case { name: "a_reset_takes_the_variables", check: |s| Box::pin(reset(s)) },
        Case { name: "a_stopped_session_starts_afresh", check: |s| Box::pin(stopped(s)) },
        Case { name: "every_field_of_a_reply_is_right", check: |s| Box::pin(every_field(s)) },
    ]
}

async fn variables_survive(s: &Subject) {
    let session = s.session("a");
    let first = ok(&session, "x = 41").await;
    expect(&first, Status::Ok, State::Fresh);
    assert!(!first.kernel.reused && first.result.is_none());
    let second = ok(&session, "x + 1").await;
    expect(&second, Status::Ok, State::Kept);
    assert_eq!(text(&second), "42");
    assert!(second.kernel.reused);
    assert_eq!(first.kernel.id, second.kernel.id);
}

async fn sessions_are_apart(s: &Subject) {
    ok(&s.session("a"), "x = 1").await;
    let reply = run(&s.session("b"), "x").await;
    assert_eq!(reply.error.expect("an error").name, "NameError");
}

async fn directory_and_env(s: &Subject) {
    let session = s.session("a");
    let mut cell = Cell::new("import os; os.getcwd(), os.environ['FARCELL_CASE']");
    cell.cwd = Some("/usr".to_owned());
    cell.env.insert("FARCELL_CASE".to_owned(), "a b\n$(c)".to_owned());
    let reply = session.run(&cell, &NoEvents).await.unwrap();
    assert_eq!(text(&reply), "('/usr', 'a b\\n$(c)')");
    assert_eq!(
        text(&ok(&session, "os.getcwd(), os.environ['FARCELL_CASE']").await),
        "('/usr', 'a b\\n$(c)')"
    );
    ok(&session, "os.chdir('/')").await;
    assert_eq!(text(&ok(&session, "os.getcwd()").await), "'/'");
}

async fn wrong_directory(s: &Subject) {
    let session = s.session("a");
    ok(&session, "x = 1").await;
    let mut cell = Cell::new("x = 2");
    cell.cwd = Some("/no/such/place".to_owned());
    let reply = session.run(&cell, &NoEvents).await.unwrap();
    assert_eq!(reply.status, Status::Error);
    assert!(reply.error.unwrap().message.contains("/no/such/place"));
    assert_eq!(text(&ok(&session, "x").await), "1");
}

async fn reset(s: &Subject) {
    let session = s.session("a");
    let id = ok(&session, "x = 1").await.kernel.id;
    assert!(session.reset().await.unwrap().done);
    let reply = run(&session, "x").await;
    assert_eq!((reply.status, &reply.kernel.id), (Status::Error, &id), "{reply:#?}");
    ok(&session, "y = 1").await;
    let mut cell = Cell::new("'y' in dir()");
    cell.reset = true;
    let reply = session.run(&cell, &NoEvents).await.unwrap();
    assert_eq!((text(&reply), reply.kernel.state), ("False", State::Reset));
}

async fn stopped(s: &Subject) {
    let session = s.session("a");
    let id = ok(&session, "x = 1").await.kernel.id;
    let pid = s.supervisor_pid(&session).await;
    assert!(session.stop().await.unwrap());
    assert!(!session.stop().await.unwrap(), "there is nothing left to stop");
    s.wait_gone(pid).await;
    let reply = ok(&session, "'x' in dir()").await;
    expect(&reply, Status::Ok, State::Fresh);
    assert_ne!(reply.kernel.id, id);
    assert_eq!(reply.kernel.note, None, "a stop on request is no loss");
}

async fn every_field(s: &Subject) {
    let session = s.session("fields");
    ok(&session, "import sys, time").await;
    let code = "print('out'); print('err', file=sys.stderr); time.sleep(0.02); {'a': 1}";
    let reply = ok(&session, code).await;
    assert_eq!((reply.stdout.as_str(), reply.stderr.as_str()), ("out\n", "err\n"));
    assert_eq!(text(&reply), "{'a': 1}");
    assert!(reply.displays.is_empty() && reply.error.is_none() && reply.signal.is_none());
    assert_eq!(reply.exit_code, Some(0));
    let out = &reply.output;
    assert_eq!((out.stdout_bytes, out.stderr_bytes, out.stdout_omitted, out.stderr_omitted), (4, 4, 0, 0));
    assert_eq!((&out.spill, reply.tools.calls), (&None, 0));
    assert!(reply.duration_ms >= 20.0 && reply.duration_ms < 30_000.0, "{}", reply.duration_ms);
    assert!(reply.queued_ms >= 0.0 && reply.queued_ms < 30_000.0);
    assert_eq!(reply.cell.number.expect("a number").0, 2);
    assert_eq!(reply.cell.id.expect("an id").as_str().len(), 32);
    assert_eq!((&reply.kernel.target, reply.kernel.session.as_str()), (&s.target, "fields"));
    assert_eq!(reply.kernel.language, "python");
    assert!(Duration::from_secs_f64(reply.duration_ms / 1000.0) > Duration::ZERO);
}
