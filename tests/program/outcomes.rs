//! Every way in which a cell can end: its JSON reply field by field, and its exit status.

use std::time::Instant;

use serde_json::{Value, json};

use super::harness::{Farcell, Ran, document, finish, is_alive, signal, wait_until};

/// The fields that a reply has whatever happened; `result` and `error` come and go.
const FIELDS: &[&str] = &[
    "status",
    "stdout",
    "stderr",
    "displays",
    "exit_code",
    "signal",
    "output",
    "tools",
    "duration_ms",
    "queued_ms",
    "cell",
    "kernel",
];
const OUTPUT: &[&str] = &["stdout_bytes", "stdout_omitted", "stderr_bytes", "stderr_omitted", "spill"];
const KERNEL: &[&str] = &["id", "target", "session", "owner", "language", "reused", "state", "note"];
const ERROR: &[&str] = &["kind", "name", "message", "traceback", "hint"];

fn keys(value: &Value) -> Vec<&str> {
    value.as_object().unwrap_or_else(|| panic!("no object: {value}")).keys().map(String::as_str).collect()
}

fn sorted<'a>(fields: &[&'a str]) -> Vec<&'a str> {
    let mut fields = fields.to_vec();
    fields.sort_unstable();
    fields
}

/// Checks the shape of a reply, and the parts that are given.
fn check(ran: &Ran, code: i32, status: &str, state: &str, kind: Option<&str>) -> Value {
    let reply = document(ran);
    assert_eq!(ran.code, Some(code), "{ran:#?}");
    assert_eq!(
        (reply["status"].as_str(), reply["kernel"]["state"].as_str()),
        (Some(status), Some(state)),
        "{reply:#}"
    );
    let mut fields = FIELDS.to_vec();
    if reply.get("result").is_some() {
        fields.push("result");
    }
    if let Some(kind) = kind {
        fields.push("error");
        assert_eq!(sorted(&keys(&reply["error"])), sorted(ERROR));
        assert_eq!(reply["error"]["kind"], kind, "{reply:#}");
        assert!(
            !reply["error"]["message"].as_str().unwrap().is_empty() || status == "interrupted",
            "{reply:#}"
        );
        assert_ne!(reply["error"]["hint"], "", "an empty hint is no hint");
    }
    assert_eq!(sorted(&keys(&reply)), sorted(&fields), "{reply:#}");
    assert_eq!(sorted(&keys(&reply["output"])), sorted(OUTPUT));
    assert_eq!(sorted(&keys(&reply["kernel"])), sorted(KERNEL));
    assert_eq!(sorted(&keys(&reply["cell"])), ["id", "number"]);
    assert_eq!(reply["tools"], json!({"calls": 0, "errors": []}));
    reply
}

#[test]
fn ok() {
    let farcell = Farcell::new();
    let reply = check(&farcell.farcell(&["run", "--json", "print('a'); 41 + 1"]), 0, "ok", "fresh", None);
    assert_eq!((&reply["stdout"], &reply["result"]), (&json!("a\n"), &json!({"text/plain": "42"})));
    assert_eq!((&reply["exit_code"], &reply["kernel"]["reused"]), (&json!(0), &json!(false)));
    let reply = check(&farcell.farcell(&["run", "--json", "x = 1"]), 0, "ok", "kept", None);
    assert_eq!((reply.get("result"), &reply["kernel"]["reused"]), (None, &json!(true)));
}

#[test]
fn error() {
    let farcell = Farcell::new();
    let reply = check(&farcell.farcell(&["run", "--json", "1/0"]), 1, "error", "fresh", Some("exception"));
    assert_eq!(reply["error"]["name"], "ZeroDivisionError");
    assert!(reply["error"]["traceback"].as_str().unwrap().contains("1/0"));
}

#[test]
fn exit() {
    let farcell = Farcell::new();
    let reply = check(
        &farcell.farcell(&["run", "--json", "import sys; sys.exit(7)"]),
        7,
        "exit",
        "fresh",
        Some("exit"),
    );
    assert_eq!(reply["exit_code"], 7);
    let ran = farcell.farcell(&["run", "import sys; sys.exit('why')"]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(1), "why\n"));
}

#[test]
fn timeout() {
    let farcell = Farcell::new();
    farcell.ok(&["run", "import time; x = 1"]);
    let ran = farcell.farcell(&["run", "--json", "--timeout", "300ms", "print('so far'); time.sleep(60)"]);
    let reply = check(&ran, 124, "timeout", "kept", Some("deadline"));
    assert_eq!(reply["stdout"], "so far\n");
    assert_eq!(farcell.ok(&["run", "x"]), "1");
}

#[test]
fn interrupted_by_ctrl_c() {
    let farcell = Farcell::new();
    farcell.ok(&["run", "import time, pathlib; x = 1"]);
    let mark = farcell.dir().join("mark");
    let code = format!("pathlib.Path({:?}).touch(); time.sleep(60)", mark.display());
    let child = farcell.start(&["run", "--json", &code]);
    wait_until("the cell runs", || mark.exists());
    signal(child.id().into(), "INT");
    let reply = check(&finish(child), 130, "interrupted", "kept", Some("signal"));
    assert_eq!(reply["error"]["name"], "KeyboardInterrupt");
    assert_eq!(farcell.ok(&["run", "x"]), "1");
}

#[test]
fn died() {
    let farcell = Farcell::new();
    let ran = farcell.farcell(&["run", "--json", "import os; print('so far'); os._exit(3)"]);
    let reply = check(&ran, 137, "died", "reset", Some("exit"));
    assert_eq!((&reply["exit_code"], &reply["stdout"]), (&json!(3), &json!("so far\n")));
    let ran = farcell.farcell(&["run", "--json", "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)"]);
    let reply = check(&ran, 137, "died", "reset", Some("signal"));
    assert_eq!((&reply["signal"], &reply["exit_code"]), (&json!("SIGSEGV"), &json!(null)));
}

#[test]
fn refused() {
    let farcell = Farcell::new();
    let ran = farcell.farcell(&["run", "--json", "--python", "/no/such/python", "1"]);
    let reply = check(&ran, 125, "refused", "none", Some("spawn"));
    assert_eq!(
        (&reply["cell"], &reply["kernel"]["id"]),
        (&json!({"id": null, "number": null}), &json!(null))
    );
    assert!(reply["error"]["hint"].as_str().unwrap().contains("python"));
}

/// A command prefix that can be cut: while the file `cut` is there, nothing gets through.
fn gate(farcell: &Farcell) -> String {
    let gate = farcell.dir().join("gate");
    let dir = farcell.dir().display();
    let script = format!("#!/bin/sh\necho $$ >>{dir}/groups\n[ -e {dir}/cut ] && exit 255\nexec \"$@\"\n");
    std::fs::write(&gate, script).unwrap();
    std::fs::set_permissions(&gate, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    format!("exec:{} env", gate.display())
}

/// Closes the gate and cuts what is on its way: each command leads a process group of its own.
fn cut(farcell: &Farcell) {
    std::fs::write(farcell.dir().join("cut"), "").unwrap();
    let groups = std::fs::read_to_string(farcell.dir().join("groups")).unwrap();
    for group in groups.split_whitespace() {
        // Those that are over are no longer there to be killed.
        let kill = std::process::Command::new("kill").args(["-9", "--", &format!("-{group}")]).output();
        kill.unwrap();
    }
}

#[test]
fn lost_and_found() {
    let farcell = Farcell::new();
    let on = gate(&farcell);
    farcell.ok(&["run", "--on", &on, "import time, pathlib; n = 0"]);
    let (mark, go) = (farcell.dir().join("mark"), farcell.dir().join("go"));
    let code = format!(
        "n += 1; pathlib.Path({:?}).touch(); print('so far')\nwhile not pathlib.Path({:?}).exists(): time.sleep(0.01)\nn",
        mark.display(),
        go.display()
    );
    let child = farcell.start(&["run", "--json", "--timeout", "4s", "--on", &on, &code]);
    wait_until("the cell runs", || mark.exists());
    cut(&farcell);
    check(&finish(child), 125, "lost", "unknown", Some("transport"));
    // Meanwhile the cell has met its own deadline, which its supervisor enforces with no host left.
    std::fs::remove_file(farcell.dir().join("cut")).unwrap();
    let ran = farcell.farcell(&["result", "--json", "--wait", "--on", &on]);
    let reply = check(&ran, 124, "timeout", "kept", Some("deadline"));
    assert_eq!(reply["stdout"], "so far\n");
    assert_eq!(farcell.ok(&["run", "--on", &on, "n"]), "1", "it ran once");
}

#[test]
fn a_reply_survives_a_cut_connection() {
    let farcell = Farcell::new();
    let on = gate(&farcell);
    farcell.ok(&["run", "--on", &on, "import time, pathlib; n = 0"]);
    let (mark, go) = (farcell.dir().join("mark"), farcell.dir().join("go"));
    let code = format!(
        "n += 1; pathlib.Path({:?}).touch()\nwhile not pathlib.Path({:?}).exists(): time.sleep(0.01)\nprint('end'); n",
        mark.display(),
        go.display()
    );
    let child = farcell.start(&["run", "--timeout", "60s", "--on", &on, &code]);
    wait_until("the cell runs", || mark.exists());
    cut(&farcell);
    std::fs::write(&go, "").unwrap();
    std::fs::remove_file(farcell.dir().join("cut")).unwrap();
    let ran = finish(child);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "end\n1\n"), "{ran:#?}");
    assert!(ran.stderr.contains("connection lost") && ran.stderr.contains("connection is back"), "{ran:#?}");
}

#[test]
fn a_kernel_that_does_not_answer_is_told_in_bounded_time() {
    let farcell = Farcell::new();
    farcell.ok(&["run", "import time, pathlib"]);
    let supervisor = farcell.supervisor("default");
    let mark = farcell.dir().join("mark");
    let code = format!("pathlib.Path({:?}).touch(); time.sleep(60)", mark.display());
    let started = Instant::now();
    let child = farcell.start(&["run", "--json", "--timeout", "1s", &code]);
    wait_until("the cell runs", || mark.exists());
    signal(supervisor, "STOP");
    let ran = finish(child);
    assert!(started.elapsed().as_secs() < 40, "{:?}", started.elapsed());
    check(&ran, 125, "lost", "unknown", Some("deadline"));
    signal(supervisor, "CONT");
    let ran = farcell.farcell(&["result", "--wait", "--json"]);
    check(&ran, 124, "timeout", "kept", Some("deadline"));
    assert!(is_alive(supervisor));
}
