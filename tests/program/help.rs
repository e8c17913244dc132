//! `--help` teaches; what it says is looked at when it changes.

use super::harness::Farcell;

#[test]
fn help_of_the_program() {
    insta::assert_snapshot!(Farcell::new().ok(&["--help"]));
}

#[test]
fn help_of_run() {
    insta::assert_snapshot!(Farcell::new().ok(&["run", "--help"]));
}

#[test]
fn help_of_put() {
    insta::assert_snapshot!(Farcell::new().ok(&["put", "--help"]));
}

#[test]
fn help_of_get() {
    insta::assert_snapshot!(Farcell::new().ok(&["get", "--help"]));
}

#[test]
fn every_subcommand_has_help_and_completions_know_it() {
    let farcell = Farcell::new();
    let bash = farcell.ok(&["completions", "bash"]);
    for command in [
        "run",
        "repl",
        "ps",
        "result",
        "logs",
        "interrupt",
        "reset",
        "stop",
        "put",
        "get",
        "doctor",
        "completions",
    ] {
        assert!(farcell.ok(&[command, "--help"]).contains("Usage: farcell"), "{command}");
        assert!(
            bash.contains(&format!("farcell__{command}")) || bash.contains(&format!("farcell,{command})")),
            "{command}"
        );
    }
    for shell in ["zsh", "fish"] {
        assert!(farcell.ok(&["completions", shell]).contains("farcell"));
    }
}
