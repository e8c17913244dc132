//! What a cell prints: order, streams, bounds, bytes that are no text, and code that meddles with it.

use std::time::Duration;

use farcell_core::{Cell, NoEvents, State, Status};

use crate::Case;
use crate::subject::{Recorder, Subject, expect, ok, run_for, text};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case { name: "prints_and_children_come_in_order", check: |s| Box::pin(order(s)) },
        Case { name: "stdout_is_a_real_stream", check: |s| Box::pin(real_streams(s)) },
        Case { name: "a_logger_of_an_earlier_cell_still_speaks", check: |s| Box::pin(logger(s)) },
        Case { name: "text_that_is_no_unicode_kills_nothing", check: |s| Box::pin(no_unicode(s)) },
        Case { name: "long_output_keeps_head_and_tail_with_exact_counts", check: |s| Box::pin(long_line(s)) },
        Case { name: "endless_output_is_bounded", check: |s| Box::pin(flood(s)) },
        Case { name: "output_streams_while_the_cell_runs", check: |s| Box::pin(streams(s)) },
        Case { name: "a_cell_that_meddles_with_stdout_hurts_only_itself", check: |s| Box::pin(meddling(s)) },
        Case { name: "a_cell_that_prints_our_frames_hurts_nobody", check: |s| Box::pin(forged(s)) },
        Case { name: "late_output_is_not_lost", check: |s| Box::pin(late(s)) },
    ]
}

async fn order(s: &Subject) {
    let session = s.session("a");
    let code = "import os\nprint(1); os.system('echo 2'); print(3, end=''); os.system('echo 4'); print(5)";
    assert_eq!(ok(&session, code).await.stdout, "1\n2\n34\n5\n");
    let c = "import ctypes\nlibc = ctypes.CDLL(None)\nprint(1); _ = libc.puts(b'2'); print(3); _ = libc.printf(b'no newline')";
    assert_eq!(ok(&session, c).await.stdout, "1\n2\n3\nno newline");
}

async fn real_streams(s: &Subject) {
    let session = s.session("a");
    let code = "import sys, subprocess\nsys.stdout.buffer.write(b'raw\\n')\nsys.stdout.reconfigure(encoding='utf-8')\n\
                subprocess.Popen(['echo', 'child'], stdout=sys.stdout).wait()\nprint(sys.stdout.fileno(), sys.stderr.fileno(), sys.stdout.isatty())";
    assert_eq!(ok(&session, code).await.stdout, "raw\nchild\n1 2 False\n");
}

async fn logger(s: &Subject) {
    let session = s.session("a");
    ok(&session, "import logging\nlog = logging.getLogger('x'); log.addHandler(logging.StreamHandler()); log.warning('one')").await;
    assert_eq!(ok(&session, "log.warning('two')").await.stderr, "two\n");
}

async fn no_unicode(s: &Subject) {
    let session = s.session("a");
    let reply = ok(
        &session,
        "import os\nprint(os.fsdecode(b'f\\xff'))\nos.write(1, b'\\xff\\xfe|\\xe2\\x82')\n'\\udc80'",
    )
    .await;
    assert_eq!(reply.stdout, "f\\udcff\n\\xff\\xfe|\\xe2\\x82");
    assert_eq!(text(&reply), "'\\udc80'");
    // Three-byte characters over every possible border.
    let reply = ok(
        &session,
        "for i in range(0, 3000): os.write(1, '\\u20ac'.encode()[:2]); os.write(1, '\\u20ac'.encode()[2:])",
    )
    .await;
    assert_eq!(reply.stdout, "\u{20ac}".repeat(3000));
    let error = crate::subject::run(&session, "raise ValueError('\\udcff')").await.error.expect("an error");
    assert!(error.message.contains("udcff"), "{error:?}");
}

async fn long_line(s: &Subject) {
    let session = s.session("a");
    let mut cell = Cell::new("print('\u{20ac}' * 10_000_000); 'done'");
    cell.max_output = 10_000;
    let reply = session.run(&cell, &NoEvents).await.unwrap();
    expect(&reply, Status::Ok, State::Fresh);
    assert_eq!(reply.output.stdout_bytes, 30_000_001);
    assert!(
        reply.stdout.len() < 10_200
            && reply.stdout.starts_with('\u{20ac}')
            && reply.stdout.ends_with("\u{20ac}\n")
    );
    assert!(!reply.stdout.contains('\u{fffd}') && !reply.stdout.contains("\\x"), "a character was cut");
    let shown: usize = reply.stdout.matches('\u{20ac}').count() * 3 + 1;
    assert_eq!(shown as u64 + reply.output.stdout_omitted, 30_000_001, "the count is exact");
    assert!(reply.stdout.contains(&format!("{} bytes omitted", reply.output.stdout_omitted)));
    assert!(reply.output.spill.is_some());
    assert_eq!(text(&reply), "'done'");
}

async fn flood(s: &Subject) {
    let session = s.session("a");
    ok(&session, "1").await;
    let mut cell = Cell::new("while True: print('x' * 100)").timeout(Duration::from_secs(2));
    cell.max_output = 4000;
    let reply = session.run(&cell, &NoEvents).await.unwrap();
    expect(&reply, Status::Timeout, State::Kept);
    assert!(reply.stdout.len() < 4200 && reply.output.stdout_bytes > 1_000_000, "{:?}", reply.output);
    assert_eq!(text(&ok(&session, "1").await), "1");
}

async fn streams(s: &Subject) {
    let session = s.session("a");
    ok(&session, "import time, os, sys").await;
    let recorder = Recorder::default();
    let code = "print('first', end='', flush=True)\nwhile not os.path.exists('/tmp/farcell-case-%d' % os.getpid()): time.sleep(0.01)\n\
                os.unlink('/tmp/farcell-case-%d' % os.getpid())\nprint(' second')";
    let pid = text(&ok(&session, "os.getpid()").await).to_owned();
    let running = session.run(code_cell(code), &recorder);
    let check = async {
        recorder.wait_for(|r| r.output() == "first").await;
        ok(&s.session("helper"), &format!("open('/tmp/farcell-case-{pid}', 'w').close()")).await;
    };
    let (reply, ()) = tokio::join!(running, check);
    assert_eq!(reply.unwrap().stdout, "first second\n");
    assert_eq!(recorder.output(), "first second\n");
}

fn code_cell(code: &str) -> &'static Cell {
    Box::leak(Box::new(Cell::new(code)))
}

async fn meddling(s: &Subject) {
    let session = s.session("a");
    for code in [
        "import sys; sys.stdout.close()",
        "import io, sys; sys.stdout = io.StringIO(); print('lost')",
        "import sys; del sys.stdout, sys.stderr",
        "import os; os.close(1); os.close(2); os.close(0)",
        "import os; os.dup2(os.open('/dev/null', os.O_WRONLY), 1)",
        "import builtins; builtins.print = None",
        "import json; json.dumps = json.loads = json.JSONEncoder.encode = None",
        "import os; os.write = os.read = None",
        "import time; time.monotonic = time.time = None",
        "import struct; struct.pack = struct.unpack = None",
    ] {
        let reply = crate::subject::run(&session, code).await;
        assert_eq!(reply.status, Status::Ok, "{code}: {reply:#?}");
    }
    let code = "import sys; _ = sys.stdout.write('here\\n'); _ = sys.stderr.write('there\\n')";
    let reply = ok(&session, code).await;
    assert_eq!((reply.stdout.as_str(), reply.stderr.as_str()), ("here\n", "there\n"));
    assert_eq!(reply.kernel.state, State::Kept);
}

async fn forged(s: &Subject) {
    let session = s.session("a");
    let code = "import os\nos.write(1, b'\\x00\\x00\\x00\\x02R{}')\nfor fd in range(3, 1024):\n  try:\n    os.write(fd, b'\\x00\\x00\\x00\\x02r{}')\n  except OSError: pass\nprint('x')";
    // The cell may well lose its interpreter by this. The kernel must go on.
    let reply = run_for(&session, code, Duration::from_secs(20)).await;
    assert!(matches!(reply.status, Status::Ok | Status::Died | Status::Error), "{reply:#?}");
    assert_eq!(text(&ok(&session, "6 * 7").await), "42");
}

async fn late(s: &Subject) {
    let session = s.session("a");
    let code = "import threading, os\ngo = threading.Event()\nt = threading.Thread(target=lambda: (go.wait(), print('late')))\nt.start()\nos.getpid()";
    ok(&session, code).await;
    ok(&session, "threading.Timer(0.05, go.set).start()").await;
    let mut seen = String::new();
    for _ in 0..200 {
        seen.push_str(&ok(&session, "t.is_alive() and t.join(0.05)").await.stdout);
        if seen.contains("late\n") {
            return;
        }
    }
    panic!("what a thread printed was lost; seen: {seen:?}");
}
