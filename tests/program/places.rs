//! Directories that cannot or must not be used.

use std::os::unix::fs::{PermissionsExt as _, symlink};

use super::harness::{Farcell, Ran};

fn refused(ran: &Ran, names: &str) {
    assert_eq!(ran.code, Some(125), "{ran:#?}");
    assert!(ran.stderr.contains(names) && ran.stderr.contains("hint:"), "{ran:#?}");
    assert_eq!(ran.stderr.matches("error:").count(), 1, "{ran:#?}");
}

#[test]
fn a_planted_link_or_directory_is_refused() {
    let farcell = Farcell::new();
    let run = |dir: &std::path::Path| {
        farcell.farcell(&["run", "--on", &format!("local:?dir={}", dir.display()), "1"])
    };
    let real = farcell.dir().join("real");
    std::fs::create_dir(&real).unwrap();
    let link = farcell.dir().join("link");
    symlink(&real, &link).unwrap();
    refused(&run(&link), link.to_str().unwrap());
    let open = farcell.dir().join("open");
    std::fs::create_dir(&open).unwrap();
    std::fs::set_permissions(&open, std::fs::Permissions::from_mode(0o777)).unwrap();
    refused(&run(&open), open.to_str().unwrap());
    let theirs = farcell.dir().join("theirs");
    std::fs::create_dir(&theirs).unwrap();
    std::os::unix::fs::chown(&theirs, Some(65534), None)
        .expect("this test gives a directory away and needs root");
    refused(&run(&theirs), theirs.to_str().unwrap());
    let file = farcell.dir().join("file");
    std::fs::write(&file, "").unwrap();
    refused(&run(&file), file.to_str().unwrap());
    for dir in [&real, &open, &theirs] {
        assert_eq!(std::fs::read_dir(dir).unwrap().count(), 0, "nothing was put into {}", dir.display());
    }
}

#[test]
fn a_read_only_directory_is_named() {
    let farcell = Farcell::new();
    let dir = farcell.dir().join("ro");
    std::fs::create_dir(&dir).unwrap();
    let path = dir.to_str().unwrap();
    let mount =
        |args: &[&str]| std::process::Command::new(args[0]).args(&args[1..]).status().unwrap().success();
    assert!(
        mount(&["mount", "-t", "tmpfs", "-o", "ro,size=1m", "tmpfs", path]),
        "this test mounts a tmpfs and needs root"
    );
    let ran = farcell.farcell(&["run", "--on", &format!("local:?dir={path}/base"), "1"]);
    assert!(mount(&["umount", path]));
    refused(&ran, path);
    assert!(ran.stderr.contains("read-only"), "{ran:#?}");
}

#[test]
fn a_name_with_shell_characters_is_data() {
    let farcell = Farcell::new();
    let dir = farcell.dir().join("a b'c\"$(touch pwned)`;&");
    let encoded: String = dir.to_str().unwrap().bytes().map(|b| format!("%{b:02X}")).collect();
    let on = format!("local:?dir={encoded}");
    assert_eq!(farcell.ok(&["run", "--on", &on, "--session=-dash $x", "1 + 1"]), "2");
    assert!(dir.is_dir() && !farcell.dir().join("pwned").exists());
    farcell.ok(&["stop", "--on", &on, "--session=-dash $x"]);
}
