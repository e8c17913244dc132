//! `--tool`: commands of this machine as functions of a cell, as a new user meets them.

use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::json;

use super::harness::{Farcell, Ran, document, finish, is_alive, signal, wait_until, with_command};

const ADD: &str = r#"
import json, sys
if sys.argv[1:] == ["--schema"]:
    print(json.dumps({
        "description": "Adds two numbers.",
        "properties": {"a": {"type": "number"}, "b": {"type": "number"}},
        "required": ["a", "b"],
    }))
else:
    arguments = json.load(sys.stdin)
    if arguments["b"] < 0:
        sys.exit("I add no negative numbers")
    print(json.dumps(arguments["a"] + arguments["b"]))
"#;

/// Writes a file of the test's.
fn file(farcell: &Farcell, name: &str, text: &str) -> PathBuf {
    let path = farcell.dir().join(name);
    std::fs::write(&path, text).unwrap();
    path
}

/// `--tool add=…` of the script above.
fn adder(farcell: &Farcell) -> String {
    format!("add=python3 {}", file(farcell, "add.py", ADD).display())
}

#[test]
fn a_cell_calls_a_command() {
    let farcell = Farcell::new();
    let add = adder(&farcell);
    let code = "from farcell_tools import add\nprint(add(1, b=2), add.__doc__)";
    assert_eq!(farcell.ok(&["run", "--tool", &add, code]), "3 Adds two numbers.");
    let ran = farcell.farcell(&[
        "run",
        "--tool",
        &add,
        "--trace-tools",
        "print('half', end='', flush=True); add(2, 3)",
    ]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "half5\n"), "{ran:#?}");
    let traced: Vec<_> = ran.stderr.lines().collect();
    assert_eq!(traced[0], r#"tool call 1: add({"a":2,"b":3})"#, "{ran:#?}");
    assert!(traced[1].starts_with("tool call 1: 5 in ") && traced.len() == 2, "{ran:#?}");
}

#[test]
fn a_command_that_fails_is_an_exception_with_its_words() {
    let farcell = Farcell::new();
    let add = adder(&farcell);
    let ran = farcell.farcell(&["run", "--tool", &add, "from farcell_tools import add\nadd(1, -1)"]);
    assert_eq!(ran.code, Some(1), "{ran:#?}");
    let last = ran.stderr.trim().lines().next_back().unwrap();
    assert!(last.contains("ToolError") && last.contains("I add no negative numbers"), "{ran:#?}");
    let args = ["run", "--json", "--trace-tools", "--tool", &add, "add(1, -1)"];
    let ran = farcell.farcell(&args);
    let reply = document(&ran);
    assert_eq!(reply["tools"]["calls"], 1);
    let error = &reply["tools"]["errors"][0];
    assert_eq!((&error["call"], &error["name"], &error["kind"]), (&json!(1), &json!("add"), &json!("tool")));
    assert!(error["message"].as_str().unwrap().contains("I add no negative numbers"), "{reply:#}");
    assert!(ran.stderr.contains("tool call 1: failed (tool)"), "{ran:#?}");
}

/// A shell script as a tool that takes anything, and what a call of it tells.
fn told(farcell: &Farcell, script: &str) -> Ran {
    let path = file(farcell, "tool.sh", script);
    let tool = format!("t=sh {}", path.display());
    let code =
        "from farcell_tools import t, ToolError\ntry: print(repr(t(x=1)))\nexcept ToolError as e: print(e)";
    farcell.farcell(&["run", "--tool", &tool, "--tool-schema", "t=any", "--tool-timeout", "20s", code])
}

#[test]
fn whatever_a_command_does_is_told() {
    let farcell = Farcell::new();
    for (script, tells) in [
        ("cat", "{'x': 1}"),
        ("true", "None"),
        ("echo '[1, 2.5, null]' # and noise\necho noise >&2", "[1, 2.5, None]"),
        ("echo 123456789012345678901234567890", "123456789012345678901234567890"),
        ("echo hello", "no JSON"),
        ("echo NaN", "no JSON"),
        (r#"echo '"\ud800"'"#, "no JSON"),
        (r"printf '\377'", "not UTF-8"),
        ("exit 7", "exit status 7"),
        ("kill -9 $$", "signal 9"),
        ("echo one >&2; echo two >&2; exit 1", "two"),
    ] {
        let ran = told(&farcell, script);
        assert!(ran.code == Some(0) && ran.stdout.contains(tells), "{script}: {ran:#?}");
    }
    let tool = format!("t=sh {}", file(&farcell, "slow.sh", "exec sleep 1000").display());
    let args = ["run", "--tool", &tool, "--tool-schema", "t=any", "--tool-timeout", "300ms"];
    let ran = farcell.farcell(&[&args[..], &["from farcell_tools import t; t()"]].concat());
    assert!(ran.code == Some(1) && ran.stderr.contains("did not end within 300ms"), "{ran:#?}");
}

#[test]
fn arguments_of_10_mb_go_to_a_command_and_back() {
    let farcell = Farcell::new();
    let code = "from farcell_tools import echo\ntext = 'x' * 10_000_000\necho(text=text) == {'text': text}";
    assert_eq!(farcell.ok(&["run", "--tool", "echo=cat", "--tool-schema", "echo=any", code]), "True");
}

#[test]
fn a_tool_that_cannot_be_is_refused_before_the_cell_runs() {
    let farcell = Farcell::new();
    let fails = format!("t=sh {}", file(&farcell, "fails.sh", "echo 'what schema?' >&2; exit 3").display());
    let mute = format!("t=sh {}", file(&farcell, "mute.sh", "exit 0").display());
    let talks = format!("t=sh {}", file(&farcell, "talks.sh", "echo hello").display());
    let list = format!("t=sh {}", file(&farcell, "list.sh", "echo '[]'").display());
    let broken = file(&farcell, "broken.json", "{");
    let from_broken = format!("t={}", broken.display());
    let refused = |args: &[&str], names: &str, remedy: &str| {
        let ran = farcell.farcell(&[&["run"], args, &["1"]].concat());
        assert_eq!((ran.code, ran.stdout.as_str()), (Some(2), ""), "{args:?}: {ran:#?}");
        assert_eq!(ran.stderr.matches("error:").count(), 1, "{args:?}: {ran:#?}");
        assert!(ran.stderr.contains(names), "{names:?} is not named: {ran:#?}");
        assert!(ran.stderr.contains(remedy), "the remedy {remedy:?} is missing: {ran:#?}");
    };
    refused(&["--tool", "t"], "--tool t: there is no tool", "--tool 't=COMMAND'");
    refused(&["--tool", "t="], "there is no command", "NAME=COMMAND");
    refused(&["--tool", "t='x"], "a quote is not closed", "");
    refused(&["--tool", "t=no-such-program-here x"], "\"no-such-program-here\"", "install it");
    refused(&["--tool", "t=/no/such/program"], "\"/no/such/program\"", "install it");
    refused(&["--tool", &fails], "exit status 3: what schema?", "--tool-schema t=FILE");
    refused(&["--tool", &mute], "printed nothing", "--tool-schema t=any");
    refused(&["--tool", &talks], "it begins with \"hello\"", "--tool-schema t=FILE");
    refused(&["--tool", &list], "it is a list", "JSON schema of an object");
    refused(&["--tool", "t=cat", "--tool-schema", "t=/no/such.json"], "/no/such.json", "");
    refused(&["--tool", "t=cat", "--tool-schema", &from_broken], "broken.json", "");
    refused(&["--tool", "t=cat", "--tool-schema", "u=any"], "--tool-schema u", "there are: t");
    refused(&["--tool", "t=cat", "--tool-schema", "t"], "there is no file", "NAME=FILE");
    refused(&["--tool", "t=cat", "--ask-tool", "u"], "--ask-tool u", "there are: t");
    refused(&["--tool", "a b=cat", "--tool-schema", "a b=any"], "\"a b\"", "underscores");
    refused(&["--tool", "t=cat", "--tool-schema", "t=any", "--tool", "t=cat"], "", "--tool-schema t=any");
    refused(&["--detach", "--tool", "t=cat"], "--detach", "--help");
}

#[test]
fn the_config_names_tools() {
    let farcell = Farcell::new();
    let add = adder(&farcell).replace("add=", "");
    let dir = farcell.dir().join("config/farcell");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("echo.json"), r#"{"properties": {"x": {"type": "string"}}, "required": ["x"]}"#)
        .unwrap();
    let config = |defaults: &str| {
        let tools = format!(
            "[tools.add]\ncommand = \"{add}\"\n[tools.echo]\ncommand = \"cat\"\nschema = \"echo.json\"\n"
        );
        std::fs::write(dir.join("config.toml"), format!("[defaults]\n{defaults}\n{tools}")).unwrap();
    };
    config("");
    let code = "from farcell_tools import echo\necho('x')";
    assert_eq!(farcell.ok(&["run", "--tool", "echo", code]), "{'x': 'x'}");
    let ran = farcell.farcell(&["run", code]);
    assert!(
        ran.code == Some(1) && ran.stderr.contains("Error"),
        "none is offered unless it is named: {ran:#?}"
    );
    let ran = farcell.farcell(&["run", "--tool", "search", "1"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("add, echo"), "{ran:#?}");
    config("tools = [\"add\"]\ntool_budget = 1\ntrace_tools = true");
    let ran = farcell.farcell(&["run", "from farcell_tools import add\nprint(add(1, 2))\nadd(3, 4)"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(1), "3\n"), "{ran:#?}");
    assert!(
        ran.stderr.contains("failed (budget)") && ran.stderr.contains("all of its 1 tool call"),
        "{ran:#?}"
    );
    // Nobody would answer the calls of a detached cell: it has none of them, and is no error.
    assert!(farcell.ok(&["run", "--detach", "1"]).starts_with("cell "));
    assert_eq!(farcell.ok(&["result", "--wait"]), "1");
}

/// A tool whose process group has two processes, which say who they are in a file.
fn sleeper(farcell: &Farcell, file_of_pids: &Path) -> String {
    let script =
        format!("sleep 1000 &\necho \"$$ $!\" > {0}.new; mv {0}.new {0}; wait\n", file_of_pids.display());
    format!("t=sh {}", file(farcell, "sleeper.sh", &script).display())
}

fn pids(path: &Path) -> Vec<i64> {
    std::fs::read_to_string(path).unwrap().split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

const CALL: &str = "from farcell_tools import t; t()";

#[test]
fn the_whole_process_group_ends_with_the_call() {
    let farcell = Farcell::new();
    // By Ctrl-C, by the cell's deadline, and by a signal that ends farcell.
    for (name, args, code) in [
        ("INT", &[][..], 130),
        ("deadline", &["--timeout", "2s"], 124),
        ("TERM", &[], 143),
        ("HUP", &[], 129),
    ] {
        let path = farcell.dir().join(format!("pids-{name}"));
        let tool = sleeper(&farcell, &path);
        let all = [&["run", "--tool", &tool, "--tool-schema", "t=any"], args, &[CALL]].concat();
        let child = farcell.start(&all);
        wait_until("the tool runs", || path.exists());
        let pids = pids(&path);
        assert!(name == "deadline" || pids.iter().all(|pid| is_alive(*pid)), "{name}");
        if name != "deadline" {
            signal(child.id().into(), name);
        }
        let ran = finish(child);
        assert_eq!(ran.code, Some(code), "{name}: {ran:#?}");
        wait_until("all of the tool is gone", || !pids.iter().any(|pid| is_alive(*pid)));
        if code > 128 && name != "INT" {
            abandoned(&farcell);
        }
    }
}

/// A cell whose farcell has gone waits for it, until it is interrupted.
fn abandoned(farcell: &Farcell) {
    farcell.ok(&["interrupt"]);
    assert_eq!(farcell.farcell(&["result", "--wait"]).code, Some(130));
}

#[test]
fn a_killed_farcell_takes_the_command_along() {
    let farcell = Farcell::new();
    let path = farcell.dir().join("pid");
    let script = format!("echo $$ > {0}.new; mv {0}.new {0}; exec sleep 1000\n", path.display());
    let tool = format!("t=sh {}", file(&farcell, "alone.sh", &script).display());
    let child = farcell.start(&["run", "--tool", &tool, "--tool-schema", "t=any", CALL]);
    wait_until("the tool runs", || path.exists());
    let pid = pids(&path)[0];
    signal(child.id().into(), "KILL");
    finish(child);
    wait_until("the tool is gone", || !is_alive(pid));
    abandoned(&farcell);
}

#[test]
fn nothing_of_a_call_is_in_a_command_line() {
    const SECRET: &str = "correct-horse-battery-staple";
    let farcell = Farcell::new();
    let path = farcell.dir().join("pids");
    let tool = sleeper(&farcell, &path);
    let cell = file(&farcell, "cell.py", &format!("from farcell_tools import t; t(x='{SECRET}')"));
    let args = ["-vv", "run", "--tool", &tool, "--tool-schema", "t=any", "-f", cell.to_str().unwrap()];
    let child = farcell.start(&args);
    wait_until("the tool runs", || path.exists());
    let seen = with_command(SECRET);
    assert!(seen.is_empty(), "in argv: {seen:?}");
    signal(child.id().into(), "INT");
    let ran = finish(child);
    let log: String = ran.stderr.lines().filter(|l| l.contains("DEBUG") || l.contains("TRACE")).collect();
    assert!(!log.is_empty() && !log.contains(SECRET) && !log.contains("\"token\""), "{log}");
    assert!(!farcell.ok(&["logs", "--supervisor"]).contains(SECRET));
}

#[test]
fn without_a_terminal_what_needs_a_person_is_denied() {
    let farcell = Farcell::new();
    let add = adder(&farcell);
    let run = farcell.command(&[
        "run",
        "--tool",
        &add,
        "--ask-tool",
        "add",
        "from farcell_tools import add; add(1, 2)",
    ]);
    // A session of its own has no terminal, whatever the tests are run at.
    let mut command = Command::new("setsid");
    command.arg("--wait").arg(run.get_program()).args(run.get_args()).stdin(Stdio::null());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let ran = finish(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    assert!(ran.code == Some(1) && ran.stderr.contains("there is no terminal to ask at"), "{ran:#?}");
}

/// Runs a cell at a terminal, and answers what is asked.
fn at_terminal(farcell: &Farcell, args: &[&str], answers: &[&str]) -> String {
    let run = farcell.command(args);
    let words: Vec<_> = run.get_args().map(|word| word.to_str().unwrap()).collect();
    let line = format!("{} {}", env!("CARGO_BIN_EXE_farcell"), shell_words::join(words));
    let mut command = Command::new("script");
    command
        .args(["-qec", &line, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    for (name, value) in run.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let mut child = command.spawn().unwrap();
    let (mut stdin, mut stdout) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
    let (mut seen, mut asked) = (Vec::new(), 0);
    let mut piece = [0; 4096];
    loop {
        let read = stdout.read(&mut piece).unwrap_or(0);
        if read == 0 {
            break;
        }
        seen.extend_from_slice(&piece[..read]);
        let questions = String::from_utf8_lossy(&seen).matches("[a]lways: ").count();
        while asked < questions.min(answers.len()) {
            writeln!(stdin, "{}", answers[asked]).unwrap();
            asked += 1;
        }
    }
    child.wait().unwrap();
    let seen = String::from_utf8_lossy(&seen).into_owned();
    assert_eq!(asked, answers.len(), "{seen}");
    seen
}

#[test]
fn a_person_at_the_terminal_decides() {
    let farcell = Farcell::new();
    let add = adder(&farcell);
    let args = ["run", "--tool", &add, "--ask-tool", "add"];
    let code = "from farcell_tools import add, ToolError\n\
        def t(*a):\n    try: return add(*a)\n    except ToolError as e: return e.kind\n[t(1, 1), t(1, 2), t(1, 3), t(1, 4)]";
    let seen = at_terminal(&farcell, &[&args[..], &[code]].concat(), &["y", "what?", "n", "always"]);
    assert!(seen.contains("[2, 'denied', 4, 5]"), "{seen}");
    assert!(seen.contains(r#"The cell wants to call add({"a":1,"b":1})."#), "{seen}");
}
