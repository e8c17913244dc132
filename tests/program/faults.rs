//! Faults for real: kill -9 of each process, in the middle of things.

use std::io::{BufRead as _, BufReader};
use std::time::{Duration, Instant};

use serde_json::json;

use super::harness::{Farcell, document, finish, is_alive, signal, wait_until};

#[test]
fn a_killed_host_program_costs_nothing() {
    let farcell = Farcell::new();
    farcell.ok(&["run", "import time, pathlib; n = 0"]);
    let (mark, go) = (farcell.dir().join("mark"), farcell.dir().join("go"));
    let code = format!(
        "n += 1; print('so far'); pathlib.Path({:?}).touch()\nwhile not pathlib.Path({:?}).exists(): time.sleep(0.01)\nn",
        mark.display(),
        go.display()
    );
    let child = farcell.start(&["run", &code]);
    wait_until("the cell runs", || mark.exists());
    signal(child.id().into(), "KILL");
    finish(child);
    std::fs::write(&go, "").unwrap();
    let ran = farcell.farcell(&["result", "--wait"]);
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(0), "so far\n1\n"), "{ran:#?}");
    assert_eq!(farcell.ok(&["run", "n"]), "1");
}

#[test]
fn a_stdio_kernel_and_all_it_started_end_with_the_host() {
    let farcell = Farcell::with_target("stdio:");
    let mark = farcell.dir().join("mark");
    let code = format!(
        "import subprocess, os, time\np = subprocess.Popen(['sleep', '608'], start_new_session=True)\nq = os.fork()\n\
         if q == 0: os.setsid(); time.sleep(609)\nopen({:?}, 'w').write('%d %d %d %d ' % (os.getpid(), os.getppid(), p.pid, q))\ntime.sleep(600)",
        mark.display()
    );
    let child = farcell.start(&["run", &code]);
    let pids = || -> Vec<i64> {
        let text = std::fs::read_to_string(&mark).unwrap_or_default();
        text.split_whitespace().filter_map(|p| p.parse().ok()).collect()
    };
    wait_until("the cell runs", || pids().len() == 4);
    assert!(pids().iter().all(|pid| is_alive(*pid)));
    signal(child.id().into(), "KILL");
    finish(child);
    let killed = Instant::now();
    wait_until("all have ended", || !pids().iter().any(|pid| is_alive(*pid)));
    assert!(killed.elapsed() < Duration::from_secs(3), "{:?}", killed.elapsed());
}

#[test]
fn a_killed_supervisor_is_told_once_and_replaced() {
    let farcell = Farcell::new();
    farcell.ok(&["run", "import time, pathlib; x = 1"]);
    let supervisor = farcell.supervisor("default");
    let mark = farcell.dir().join("mark");
    let code = format!("print('so far'); pathlib.Path({:?}).touch(); time.sleep(600)", mark.display());
    let child = farcell.start(&["run", &code]);
    wait_until("the cell runs", || mark.exists());
    // What is in files is safe; what is still in the supervisor's hands dies with it.
    wait_until("its output is in files", || farcell.ok(&["logs"]) == "so far");
    signal(supervisor, "KILL");
    let killed = Instant::now();
    let ran = finish(child);
    assert!(killed.elapsed() < Duration::from_secs(3), "{:?}", killed.elapsed());
    assert_eq!((ran.code, ran.stdout.as_str()), (Some(137), "so far\n"), "{ran:#?}");
    let next = farcell.json(&["run", "'x' in dir()"]);
    assert_eq!(next["kernel"]["state"], "fresh", "it has been told: {next:#}");
    // And one that dies while nobody looks is told in the next reply.
    signal(farcell.supervisor("default"), "KILL");
    let next = farcell.json(&["run", "1"]);
    assert_eq!(next["kernel"]["state"], "lost", "{next:#}");
    assert!(next["kernel"]["note"].is_string());
    assert_eq!(farcell.json(&["run", "1"])["kernel"]["state"], "kept");
}

#[test]
fn a_full_disk_loses_no_reply() {
    let farcell = Farcell::new();
    let small = farcell.dir().join("small");
    std::fs::create_dir(&small).unwrap();
    let mount =
        |args: &[&str]| std::process::Command::new(args[0]).args(&args[1..]).status().unwrap().success();
    let path = small.to_str().unwrap();
    assert!(
        mount(&["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path]),
        "this test mounts a tmpfs and needs root"
    );
    let on = format!("local:?dir={path}/base");
    let outcome = std::panic::catch_unwind(|| {
        farcell.ok(&["run", "--on", &on, "x = 1"]);
        let reply = farcell.json(&["run", "--on", &on, "--max-output", "10K", "print('y' * 20_000_000); x"]);
        assert_eq!(
            (&reply["status"], &reply["result"]["text/plain"]),
            (&json!("ok"), &json!("1")),
            "{reply:#}"
        );
        assert_eq!(reply["output"]["stdout_bytes"], 20_000_001);
        // Filled up by somebody else, to the last byte.
        std::fs::write(small.join("filler"), vec![0; 4 << 20]).unwrap_err();
        let reply = farcell.json(&["run", "--on", &on, "print('z' * 1000); x + 1"]);
        if reply["status"] == "refused" {
            assert!(reply["error"]["message"].as_str().unwrap().contains("no room"), "{reply:#}");
        } else {
            assert_eq!(reply["result"]["text/plain"], "2", "{reply:#}");
        }
        std::fs::remove_file(small.join("filler")).unwrap();
        assert_eq!(farcell.ok(&["run", "--on", &on, "x + 2"]), "3");
    });
    farcell.farcell(&["stop", "--on", &on]);
    assert!(mount(&["umount", "-l", path]));
    if let Err(panic) = outcome {
        std::panic::resume_unwind(panic);
    }
}

#[test]
fn a_kernel_whose_directory_is_removed_does_not_run_its_cell_again() {
    let farcell = Farcell::new();
    farcell.ok(&["run", "import time, pathlib"]);
    let orphan = farcell.supervisor("default");
    let mark = farcell.dir().join("mark");
    let code = format!("open({:?}, 'a').write('x'); print('up'); time.sleep(600)", mark.display());
    let child = farcell.start(&["run", "--json", &code]);
    wait_until("the cell runs", || mark.exists());
    let kernels = std::fs::read_dir(farcell.base()).unwrap().flatten().map(|e| e.path());
    for kernel in kernels.filter(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("k-"))) {
        // Its supervisor may just be putting a file there.
        wait_until("it is removed", || std::fs::remove_dir_all(&kernel).is_ok() || !kernel.exists());
    }
    let reply = document(&finish(child));
    assert_eq!((&reply["status"], &reply["kernel"]["state"]), (&json!("died"), &json!("lost")), "{reply:#}");
    assert_eq!(farcell.ok(&["run", "6 * 7"]), "42");
    assert_eq!(std::fs::read_to_string(&mark).unwrap(), "x", "it ran once");
    // It would notice by itself with its next look at its directory, within a minute.
    signal(orphan, "TERM");
    wait_until("the orphan has ended", || !is_alive(orphan));
}

#[test]
fn ctrl_c_ends_the_cell_of_its_own_terminal_and_no_other() {
    let farcell = Farcell::new();
    farcell.ok(&["run", "import time, pathlib; ran = False"]);
    let (mark, go) = (farcell.dir().join("mark"), farcell.dir().join("go"));
    let long = format!(
        "pathlib.Path({:?}).touch()\nwhile not pathlib.Path({:?}).exists(): time.sleep(0.01)\n'to its end'",
        mark.display(),
        go.display()
    );
    farcell.ok(&["run", "--detach", &long]);
    wait_until("the first cell runs", || mark.exists());
    let mut second = farcell.start(&["run", "ran = True"]);
    let mut stderr = BufReader::new(second.stderr.take().unwrap()).lines();
    assert!(stderr.next().unwrap().unwrap().contains("waiting for 1 other"));
    signal(second.id().into(), "INT");
    let told = stderr.next().unwrap().unwrap();
    assert!(told.contains("taken back"), "{told}");
    assert_eq!(finish(second).code, Some(130));
    std::fs::write(&go, "").unwrap();
    assert_eq!(farcell.ok(&["result", "--wait"]), "'to its end'");
    assert_eq!(farcell.ok(&["run", "ran"]), "False");
}

#[test]
fn a_stop_ends_a_supervisor_that_does_not_answer() {
    let farcell = Farcell::new();
    farcell.ok(&["run", "1"]);
    let supervisor = farcell.supervisor("default");
    signal(supervisor, "STOP");
    assert!(farcell.ok(&["stop"]).starts_with("stopped"));
    wait_until("it has ended", || !is_alive(supervisor));
}

#[test]
fn a_target_that_is_gone_holds_up_no_other_session() {
    let farcell = Farcell::new();
    let gate = farcell.dir().join("gate");
    std::fs::write(&gate, "#!/bin/sh\nexec \"$@\"\n").unwrap();
    std::fs::set_permissions(&gate, std::os::unix::fs::PermissionsExt::from_mode(0o700)).unwrap();
    let on = format!("exec:{} env", gate.display());
    let config = farcell.dir().join("config/farcell/config.toml");
    std::fs::create_dir_all(config.parent().unwrap()).unwrap();
    std::fs::write(&config, "[defaults]\nmax_kernels = 1\n").unwrap();
    farcell.ok(&["run", "--on", &on, "-s", "gone", "1"]);
    let supervisor = farcell.supervisor("gone");
    std::fs::write(&gate, "#!/bin/sh\nexit 255\n").unwrap();
    let started = Instant::now();
    assert_eq!(farcell.ok(&["run", "-s", "other", "6 * 7"]), "42");
    assert!(started.elapsed() < Duration::from_secs(20), "{:?}", started.elapsed());
    std::fs::write(&gate, "#!/bin/sh\nexec \"$@\"\n").unwrap();
    signal(supervisor, "TERM");
    wait_until("it has ended", || !is_alive(supervisor));
}

#[test]
fn output_beyond_what_is_kept_is_told_and_its_end_is_shown() {
    let farcell = Farcell::new();
    let config = farcell.dir().join("config/farcell/config.toml");
    std::fs::create_dir_all(config.parent().unwrap()).unwrap();
    let target = format!("[targets.small]\nurl = 'local:?dir={}'\n", farcell.base().display());
    std::fs::write(&config, format!("{target}[targets.small.limits]\nspill_bytes = 100000\n")).unwrap();
    let ran = farcell.farcell(&["run", "--on", "small", "for i in range(500_000): print(i)"]);
    assert_eq!(ran.code, Some(0));
    assert!(ran.stdout.starts_with("0\n1\n2\n") && ran.stdout.ends_with("499998\n499999\n"));
    assert!(
        ran.stdout.contains("bytes were not kept") && ran.stderr.contains("bytes of output"),
        "{}",
        ran.stderr
    );
}
