//! Faults for real: kill -9 of each process, in the middle of things.

use std::time::{Duration, Instant};

use serde_json::json;

use super::harness::{Farcell, finish, is_alive, signal, wait_until};

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
            assert!(reply["error"]["message"].as_str().unwrap().contains("full"), "{reply:#}");
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
