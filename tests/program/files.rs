//! `put` and `get`, as a user types them.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::Stdio;

use serde_json::{Value, json};

use super::harness::{Farcell, finish};

/// A file, its directory and an empty one beside it.
fn scene(farcell: &Farcell) -> (String, String) {
    let dir = farcell.dir().join("files");
    std::fs::create_dir(&dir).unwrap();
    let (from, there) = (dir.join("a b.txt"), dir.join("there"));
    std::fs::write(&from, "hello\n").unwrap();
    std::fs::create_dir(&there).unwrap();
    (from.display().to_string(), there.display().to_string())
}

#[test]
fn a_file_goes_there_and_back() {
    let farcell = Farcell::new();
    let (from, there) = scene(&farcell);
    std::fs::set_permissions(&from, std::fs::Permissions::from_mode(0o640)).unwrap();
    let ran = farcell.farcell(&["put", &from, &there]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), ""), "{ran:#?}");
    assert!(ran.stderr.contains("a b.txt (6 bytes in"), "{ran:#?}");
    let put = format!("{there}/a b.txt");
    assert_eq!(std::fs::metadata(&put).unwrap().permissions().mode() & 0o777, 0o640);
    let back = format!("{there}/x/y");
    let quiet = farcell.farcell(&["get", "-q", "-p", &put, &back]);
    assert_eq!((quiet.code, quiet.stderr.as_str()), (Some(0), ""));
    assert_eq!(std::fs::read_to_string(&back).unwrap(), "hello\n");
}

#[test]
fn json_has_a_document_for_each_file() {
    let farcell = Farcell::new();
    let (from, there) = scene(&farcell);
    let ran = farcell.farcell(&["--json", "put", &from, "/nowhere/at/all", &from, &there]);
    assert_eq!((ran.code, ran.stderr.as_str()), (Some(125), ""), "{ran:#?}");
    let documents: Vec<Value> = ran.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(documents.len(), 3, "those behind a failure are copied: {documents:#?}");
    assert_eq!(documents[0]["path"], json!(format!("{there}/a b.txt")));
    assert_eq!((&documents[0]["bytes"], &documents[0]["resumed_from"]), (&json!(6), &json!(0)));
    assert_eq!(documents[0]["sha256"], "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03");
    assert_eq!(documents[1]["error"]["name"], "NoFile", "{documents:#?}");
}

#[test]
fn a_dash_is_stdin_and_stdout() {
    let farcell = Farcell::new();
    let (_, there) = scene(&farcell);
    let to = format!("{there}/piped");
    let mut child = farcell.command(&["put", "-", &to]).stdin(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(&[7; 3_000_000]).unwrap();
    assert_eq!(finish(child).code, Some(0));
    assert_eq!(std::fs::read(&to).unwrap(), [7; 3_000_000]);
    std::fs::write(&to, "from there\n").unwrap();
    let ran = farcell.farcell(&["get", &to, &to, "-"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "from there\nfrom there\n"), "{ran:#?}");
    assert_eq!(farcell.farcell(&["--json", "get", &to, "-"]).code, Some(2));
}

#[test]
fn what_is_wrong_is_told_with_a_remedy() {
    let farcell = Farcell::new();
    let (from, there) = scene(&farcell);
    std::fs::create_dir(format!("{there}/a b.txt")).unwrap();
    let (missing, fifo) = (format!("{there}/none/x"), format!("{there}/fifo"));
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    for (args, code, said) in [
        (vec!["put", &missing, &there], 125, "no such file or directory"),
        (vec!["put", &from, &missing], 125, "--parents"),
        (vec!["put", &there, &missing], 125, "tar czf"),
        (vec!["put", &from, &there], 125, "a file does not replace a directory"),
        (vec!["put", &from, &fifo], 125, "is no plain file"),
        (vec!["put", &from, &from, &fifo], 125, "not a directory"),
        (vec!["get", &missing, &there], 125, "there is no file"),
        (vec!["get", &there, &there], 125, "is a directory"),
        (vec!["get", &fifo, &there], 125, "is no plain file"),
        (vec!["put", &from, ""], 2, "a value is required"),
        (vec!["put", &from], 2, "Usage"),
        (vec!["put", "--on", "nowhere:", &from, &there], 2, "no driver"),
    ] {
        let ran = farcell.farcell(&args);
        assert!(ran.code == Some(code) && ran.stderr.contains(said), "{args:?}: {ran:#?}");
        assert_eq!(ran.stdout, "", "{args:?}");
    }
}

#[test]
fn a_relative_path_begins_in_the_directory_of_the_program_or_of_the_named_target() {
    let farcell = Farcell::new();
    let (from, there) = scene(&farcell);
    let mut command = farcell.command(&["put", "-q", &from, "one"]);
    assert!(command.current_dir(&there).status().unwrap().success());
    assert_eq!(std::fs::read_to_string(format!("{there}/one")).unwrap(), "hello\n");
    let config = farcell.dir().join("config/farcell");
    std::fs::create_dir_all(&config).unwrap();
    let text = format!("[targets.box]\nurl = \"exec:env\"\ncwd = {there:?}\n");
    std::fs::write(config.join("config.toml"), text).unwrap();
    farcell.ok(&["put", "--on", "box", &from, "two"]);
    assert_eq!(std::fs::read_to_string(format!("{there}/two")).unwrap(), "hello\n");
    let mut command = farcell.command(&["get", "--on", "box", "two", "three"]);
    assert!(command.current_dir(&there).status().unwrap().success());
    assert_eq!(std::fs::read_to_string(format!("{there}/three")).unwrap(), "hello\n");
}
