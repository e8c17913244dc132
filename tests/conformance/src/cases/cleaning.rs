//! What comes out of a cell: without terminal escapes, and without secrets, in whatever part of a reply or event they are.

use farcell_core::{Cell, Event, NoEvents, Status};

use crate::Case;
use crate::subject::{Gate, Recorder, Subject, ok, run, text};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case { name: "no_part_of_a_reply_has_escapes_or_secrets", check: |s| Box::pin(every_part(s)) },
        Case { name: "events_have_neither_even_when_they_come_in_pieces", check: |s| Box::pin(pieces(s)) },
        Case { name: "a_prompt_is_seen_before_the_secret_behind_it", check: |s| Box::pin(prompt(s)) },
        Case {
            name: "a_secret_at_the_cut_is_redacted_and_so_it_is_in_the_spill",
            check: |s| Box::pin(cut(s)),
        },
        Case { name: "a_value_that_was_passed_by_name_is_redacted", check: |s| Box::pin(by_name(s)) },
    ]
}

/// A token that belongs to nobody, as the code of a cell that makes it, so that no traceback shows it as source.
const TOKEN: &str = "'gh' + 'p_' + 'q7Rk2ZtX9mB4vL8s' + 'W3nY6cD1fG5hJ0pAq7Rk'";
/// Parts of it that must not be seen.
const PARTS: [&str; 3] = ["q7Rk2Z", "W3nY6c", "pAq7Rk"];

fn assert_clean(text: &str) {
    for part in PARTS.iter().chain(&["\x1b"]) {
        assert!(!text.contains(part), "{part:?} is in {text:?}");
    }
}

async fn every_part(s: &Subject) {
    let session = s.session("a");
    let code = format!(
        "import sys\nt = '\\x1b[1m' + {TOKEN}\nprint(t, '<'); print(t, '>', file=sys.stderr)\n\
         class Shown:\n    def __repr__(self): return t\n    def _repr_html_(self): return t + '<b>'\n\
         display(Shown()); Shown()"
    );
    let reply = ok(&session, &code).await;
    assert_clean(&serde_json::to_string(&reply).unwrap());
    assert_eq!(reply.stdout, "[redacted: github token] <\n");
    assert_eq!(reply.stderr, "[redacted: github token] >\n");
    assert_eq!(text(&reply), "[redacted: github token]");
    let error = run(&session, "raise ValueError(t)").await.error.expect("an error");
    assert_clean(&format!("{error:?}"));
    assert_eq!(error.message, "[redacted: github token]");
    assert!(error.traceback.expect("a traceback").contains("ValueError: [redacted: github token]"));
    // What was left behind is as it was.
    assert_eq!(text(&ok(&session, "len(t)").await), "44");
}

async fn pieces(s: &Subject) {
    let session = s.session("a");
    let code = format!(
        "import sys, time\nfor c in 'a\\x1b]0;t\\x07b ' + {TOKEN} + ' c\\x1b[0m\\n': sys.stdout.write(c); sys.stdout.flush(); time.sleep(0.01)"
    );
    let recorder = Recorder::default();
    let reply = session.run(&Cell::new(code.as_str()), &recorder).await.unwrap();
    assert_eq!(reply.status, Status::Ok, "{reply:#?}");
    assert_clean(&reply.stdout);
    // Where nothing comes for a moment, what is no secret by itself is shown.
    let shown = recorder.output();
    let begun = shown.strip_prefix("ab ").and_then(|rest| rest.strip_suffix("[redacted: github token] c\n"));
    assert!(begun.is_some_and(|begun| "ghp_".starts_with(begun)), "{shown:?}");
    assert_eq!(reply.stdout, "ab [redacted: github token] c\n");
    let bytes = recorder
        .events()
        .iter()
        .map(|event| if let Event::Output { bytes, .. } = event { *bytes } else { 0 })
        .sum::<u64>();
    assert_eq!(bytes, reply.output.stdout_bytes);
}

async fn prompt(s: &Subject) {
    let session = s.session("a");
    let gate = Gate::new(s);
    let code = format!(
        "import sys\nsys.stdout.write('Password: '); sys.stdout.flush()\n{}print('Tr0ub' + '4dor')",
        gate.wait()
    );
    let recorder = Recorder::default();
    let cell = Cell::new(code.as_str());
    let running = session.run(&cell, &recorder);
    let opening = async {
        recorder.wait_for(|r| r.output() == "Password: ").await;
        gate.open().await;
    };
    let (reply, ()) = tokio::join!(running, opening);
    assert_eq!(reply.unwrap().stdout, "Password: [redacted: password]\n");
    assert_eq!(recorder.output(), "Password: [redacted: password]\n");
}

async fn cut(s: &Subject) {
    let session = s.session("a");
    // The head ends in the middle of one token, and the tail begins in the middle of another.
    let code = format!("t = {TOKEN}\nprint('x' * 480 + ' ' + t + ' ' * 3000 + t + ' ' + 'y' * 478)");
    let mut cell = Cell::new(code.as_str());
    cell.max_output = 1000;
    let reply = session.run(&cell, &NoEvents).await.unwrap();
    assert!(reply.output.stdout_omitted > 3000 - 100, "{reply:#?}");
    assert!(reply.stdout.contains(" bytes omitted "), "{reply:#?}");
    assert_clean(&reply.stdout);
    assert!(reply.stdout.contains("yyy") && reply.stdout.contains("xxx"), "{reply:#?}");
    let number = reply.cell.number.expect("a number");
    let recorder = Recorder::default();
    let mut transcript = session.transcript(number, &recorder);
    transcript.catch_up().await.unwrap();
    transcript.finish(true);
    assert_clean(&recorder.output());
    assert_eq!(recorder.output().matches("[redacted: github token]").count(), 2);
}

async fn by_name(s: &Subject) {
    let session = s.session("a");
    let mut cell = Cell::new("import os\nprint(os.environ['MY_API_TOKEN'], os.environ['MY_WORD'])");
    cell.env.insert("MY_API_TOKEN".to_owned(), "correct horse".to_owned());
    cell.env.insert("MY_WORD".to_owned(), "battery".to_owned());
    let reply = session.run(&cell, &NoEvents).await.unwrap();
    assert_eq!(reply.stdout, "[redacted: MY_API_TOKEN] battery\n");
    // It stays there for later cells, and so does what is known of it.
    assert_eq!(ok(&session, "print(os.environ['MY_API_TOKEN'])").await.stdout, "[redacted: MY_API_TOKEN]\n");
}
