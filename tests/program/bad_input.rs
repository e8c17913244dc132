//! Wrong input: one clear sentence that names it, exit status 2 or 125, and nothing left behind.

use super::harness::{Farcell, Ran};

/// Exactly one error is told, it names what is wrong, and it has a remedy.
fn refused(ran: &Ran, code: i32, names: &[&str], remedy: &str) {
    assert_eq!(ran.code, Some(code), "{ran:#?}");
    assert!(ran.stdout.is_empty(), "{ran:#?}");
    assert_eq!(ran.stderr.matches("error:").count(), 1, "{ran:#?}");
    for name in names {
        assert!(ran.stderr.contains(name), "{name:?} is not named: {ran:#?}");
    }
    assert!(ran.stderr.contains(remedy), "the remedy {remedy:?} is missing: {ran:#?}");
    assert!(!ran.stderr.contains("panicked"), "{ran:#?}");
}

#[test]
fn targets() {
    let farcell = Farcell::new();
    let run = |on: &str| farcell.farcell(&["run", "--on", on, "1"]);
    refused(&run("laptop"), 2, &["\"laptop\""], "begins with a scheme");
    refused(&run("telnet:x"), 2, &["telnet:x"], "local:");
    refused(&run("local:somewhere"), 2, &["\"somewhere\""], "write local:");
    refused(&run("local:?dir=relative"), 2, &["dir=relative"], "dir=/path");
    refused(&farcell.farcell(&["run", "--on", "stdio:", "--detach", "1"]), 2, &["stdio:"], "local:");
    assert_eq!(farcell.farcell(&["logs", "--json"]).code, Some(2));
    refused(&farcell.farcell(&["result", "xyz"]), 2, &["xyz"], "32 hex digits");
    refused(&run("local:?dri=/x"), 2, &["\"dri\""], "dir, python");
    refused(&run("stdio:x"), 2, &["\"x\""], "write stdio:");
    refused(&run("exec:"), 2, &["no command prefix"], "exec:docker exec");
    refused(&run("exec:'open"), 2, &["split into words"], "");
    refused(&run("exec:no-such-program-here x"), 125, &["\"no-such-program-here\""], "install it");
    refused(&run("exec:false"), 125, &["exec:false", "exit status 1"], "/bin/sh");
}

#[test]
fn code() {
    let farcell = Farcell::new();
    let latin = farcell.dir().join("latin.py");
    std::fs::write(&latin, b"x = '\xe9'\n").unwrap();
    refused(&farcell.farcell(&["run", "-f", "/no/such/file.py"]), 2, &["/no/such/file.py"], "");
    refused(&farcell.farcell(&["run", "-f", latin.to_str().unwrap()]), 2, &["latin.py", "offset 5"], "UTF-8");
    refused(&farcell.farcell(&["run", "-f", "/"]), 2, &["cannot read /"], "");
    refused(&farcell.farcell(&["run"]), 2, &["<CODE>"], "--help");
    assert_eq!(farcell.ok(&["run", ""]), "");
}

#[test]
fn arguments() {
    let farcell = Farcell::new();
    refused(&farcell.farcell(&["run", "--timeout", "0", "1"]), 2, &["--timeout"], "more than zero");
    refused(&farcell.farcell(&["run", "--timeout", "soon", "1"]), 2, &["'soon'"], "90s");
    refused(&farcell.farcell(&["run", "--max-output", "x", "1"]), 2, &["'x'"], "64K");
    refused(&farcell.farcell(&["run", "--env", "NO_SUCH_NAME", "1"]), 2, &["NO_SUCH_NAME"], "VALUE");
    refused(&farcell.farcell(&["run", "--env", "=x", "1"]), 2, &["no name"], "");
    refused(&farcell.farcell(&["run", "-s", "", "1"]), 2, &["session"], "1 to 200");
    refused(&farcell.farcell(&["run", "--no-such", "1"]), 2, &["--no-such"], "--help");
    refused(&farcell.farcell(&["runn", "1"]), 2, &["runn"], "run");
    refused(&farcell.farcell(&["run", "--cwd", "/no/such/dir", "1"]), 125, &["/no/such/dir"], "leave it out");
    refused(
        &farcell.farcell(&["run", "--python", "/no/such/python", "1"]),
        125,
        &["/no/such/python"],
        "--python",
    );
    refused(&farcell.farcell(&["result", "-s", "nobody"]), 1, &["\"nobody\""], "farcell run");
    refused(&farcell.farcell(&["interrupt", "-s", "nobody"]), 1, &["\"nobody\""], "farcell run");
}

#[test]
fn config() {
    let farcell = Farcell::new();
    let path = farcell.dir().join("config/farcell/config.toml");
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    for (text, names) in [
        ("[defaults]\nsesion = 'x'\n", ["line 2, column 1", "sesion"]),
        ("[defaults\n", ["line 1", "config.toml"]),
        ("[targets.a]\nurl = 'local:'\npyton = 'x'\n", ["line 3", "pyton"]),
        ("[defaults]\ntimeout = 'soon'\n", ["line 2", "timeout"]),
    ] {
        std::fs::write(&path, text).unwrap();
        refused(&farcell.farcell(&["run", "1"]), 2, &names, "docs/guide.md");
    }
    std::fs::write(&path, "[targets.here]\nurl = 'local:'\n").unwrap();
    refused(&farcell.farcell(&["run", "--on", "there", "1"]), 2, &["\"there\""], "here");
    std::fs::remove_file(&path).unwrap();
    refused(&farcell.farcell(&["--config", "/no/such.toml", "run", "1"]), 2, &["/no/such.toml"], "");
}
