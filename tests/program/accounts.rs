//! Kernels of another account: `--user NAME`, where the host is root.

use std::os::unix::fs::{PermissionsExt as _, chown};
use std::process::Stdio;

use super::harness::{Farcell, finish};

/// An account that every system has, and its number where the base system gives it.
const ACCOUNT: (&str, u32) = ("nobody", 65534);

/// A farcell whose base directory is the account's.
fn shared() -> Farcell {
    let farcell = Farcell::new();
    std::fs::set_permissions(farcell.dir(), std::fs::Permissions::from_mode(0o711)).unwrap();
    std::fs::create_dir(farcell.base()).unwrap();
    std::fs::set_permissions(farcell.base(), std::fs::Permissions::from_mode(0o700)).unwrap();
    chown(farcell.base(), Some(ACCOUNT.1), None).expect("this test gives a directory away and needs root");
    farcell
}

#[test]
fn a_kernel_of_another_account_cannot_read_the_hosts_environment() {
    let farcell = shared();
    let code = format!(
        "import os\nprint(os.getuid() == os.geteuid() == {}, 0 in os.getgroups() + [os.getgid()], os.environ['USER'], os.getcwd())\n\
         open('/proc/%d/environ' % {})",
        ACCOUNT.1,
        std::process::id()
    );
    for on in [format!("local:?dir={}", farcell.base().display()), "stdio:".to_owned()] {
        let mut command = farcell.command(&["run", "--on", &on, "--user", ACCOUNT.0, &code]);
        command.env("MY_API_TOKEN", "planted").stdout(Stdio::piped()).stderr(Stdio::piped());
        let ran = finish(command.spawn().unwrap());
        assert_eq!(ran.code, Some(1), "{ran:#?}");
        assert!(ran.stdout.starts_with(&format!("True False {} /", ACCOUNT.0)), "{ran:#?}");
        assert!(ran.stderr.contains("PermissionError"), "{ran:#?}");
    }
}

#[test]
fn the_kernel_of_an_account_is_another_than_ones_own() {
    let farcell = shared();
    farcell.ok(&["run", "--user", ACCOUNT.0, "x = 1"]);
    assert_eq!(farcell.ok(&["run", "--user", ACCOUNT.0, "x"]), "1");
    let dir = farcell.dir().join("mine");
    let ran = farcell.farcell(&["run", "--on", &format!("local:?dir={}", dir.display()), "x"]);
    assert!(ran.stderr.contains("NameError"), "{ran:#?}");
    farcell.ok(&["stop", "--user", ACCOUNT.0]);
}

#[test]
fn an_account_that_cannot_be_taken_is_told() {
    let farcell = Farcell::new();
    for (args, told) in [
        (["--on", "local:", "--user", "no-such-account"], "there is no such account"),
        (["--on", "local:", "--user", "a b"], "no name of an account"),
        (["--on", "exec:env", "--user", "nobody"], "--user is for local: and stdio:"),
    ] {
        let ran = farcell.farcell(&[&["run"], &args[..], &["1"]].concat());
        assert_eq!(ran.code, Some(2), "{ran:#?}");
        assert!(ran.stderr.contains(told), "{ran:#?}");
    }
}
