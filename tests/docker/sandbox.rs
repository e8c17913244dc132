//! Containers that are made for a session: what they are like, whom they are for, and that nothing of them is left.

use std::sync::Arc;
use std::time::{Duration, Instant};

use farcell::docker::SandboxDriver;
use farcell::{Cell, Driver as _, ErrorKind, NoEvents, SessionOptions, State, Status, TransferOptions};
use farcell_testbed::Engine;
use libtest_mimic::Trial;

use crate::boxes::{built, ok, value};
use crate::events::{Seen, long};
use crate::made::{Made, OWNER, make, make_in, registry, target, unique};
use crate::trial_on;

/// Podman 4 cannot restart a container that goes when it ends: it is sometimes gone before it is started again.
pub(crate) fn alone() -> Trial {
    trial_on(Engine::DOCKER, "a_sandbox_that_was_restarted_is_told", restarted)
}

pub(crate) fn trials(engine: Engine) -> Vec<Trial> {
    vec![
        trial_on(engine, "a_sandbox_is_closed", closed),
        trial_on(engine, "a_sandbox_without_init_reaps", without_init),
        trial_on(engine, "a_sandbox_is_found_by_the_next_process", found_again),
        trial_on(engine, "two_sessions_have_two_sandboxes", two_sessions),
        trial_on(engine, "one_sandbox_is_made_for_many_first_callers", many_first_callers),
        trial_on(engine, "a_sandbox_goes_with_its_session", stopped),
        trial_on(engine, "a_sandbox_goes_when_it_was_idle", idle),
        trial_on(engine, "a_paused_sandbox_can_be_stopped", paused),
        trial_on(engine, "a_sandbox_that_was_removed_is_made_anew", removed),
        trial_on(engine, "a_sandbox_that_is_removed_under_a_cell_is_a_death", removed_during_a_cell),
        trial_on(engine, "a_cell_that_is_stopped_with_its_sandbox_has_its_reply", stopped_during_a_cell),
        trial_on(engine, "the_memory_of_a_sandbox_has_an_end", out_of_memory),
        trial_on(engine, "the_processes_of_a_sandbox_have_an_end", out_of_pids),
        trial_on(engine, "options_of_a_sandbox", options),
        trial_on(engine, "what_an_engine_refuses_is_told", refused),
        trial_on(engine, "an_image_without_python_leaves_no_sandbox", no_python),
        trial_on(engine, "one_that_was_not_started_is_started", unstarted),
        trial_on(engine, "a_stranger_of_that_name_is_left_alone", stranger),
        trial_on(engine, "files_go_into_the_sandbox_of_their_session", files),
        trial_on(engine, "kernels_and_facts_of_a_sandbox", listed),
    ]
}

async fn closed(engine: Engine) {
    let Some(made) = make(engine, "slim", "") else { return };
    ok(&made.session, "x = 1").await;
    let found = made.inspect();
    let host = &found["HostConfig"];
    assert_eq!(host["NetworkMode"], "none");
    if engine == Engine::DOCKER {
        assert_eq!(host["CapDrop"], serde_json::json!(["ALL"])); // Podman names each of them; the cell below sees that none is left
    }
    assert_eq!(host["SecurityOpt"], serde_json::json!(["no-new-privileges"]));
    assert_eq!((&host["PidsLimit"], &host["Privileged"]), (&256.into(), &false.into()));
    assert_eq!((&host["AutoRemove"], &host["Init"]), (&true.into(), &true.into()));
    let ipc = if engine == Engine::PODMAN { "shareable" } else { "private" };
    assert_eq!((&host["IpcMode"], &host["PublishAllPorts"]), (&ipc.into(), &false.into()));
    let labels = &found["Config"]["Labels"];
    assert_eq!(
        (&labels["farcell.sandbox"], &labels["farcell.key"]),
        (&"1".into(), &made.session.key().digest().into())
    );
    assert_eq!(labels["farcell.session"], made.session.key().session.as_str());
    assert_ne!(labels["farcell.owner"], OWNER, "a label can be read by others than the owner");
    let code = "status = dict(l.split(':\\t') for l in open('/proc/self/status').read().splitlines() if ':\\t' in l)\n\
                links = sorted(l.split(':')[0].strip() for l in open('/proc/net/dev').readlines()[2:])\n\
                tmp = [l.split()[2:4] for l in open('/proc/mounts') if l.split()[1] == '/tmp'][0]\n\
                int(status['CapEff'], 16), int(status['CapBnd'], 16), status['NoNewPrivs'], links, tmp[0], 'noexec' in tmp[1]";
    assert_eq!(value(&made.session, code).await, "(0, 0, '1', ['lo'], 'tmpfs', False)");
    assert!(made.session.stop().await.unwrap());
}

async fn without_init(engine: Engine) {
    let Some(made) = make(engine, "slim", "init=false") else { return };
    assert_eq!(value(&made.session, "open('/proc/1/comm').read()").await, "'sh\\n'");
    // The orphan becomes a child of the first process, which has to reap it.
    let code = "import subprocess, time, os\n\
                subprocess.check_call(['/bin/sh', '-c', 'sleep 0.1 & echo $! > /tmp/orphan'])\n\
                pid = open('/tmp/orphan').read().strip()\n\
                until = time.monotonic() + 30\n\
                while os.path.exists('/proc/' + pid) and time.monotonic() < until: time.sleep(0.05)\n\
                os.path.exists('/proc/' + pid)";
    assert_eq!(value(&made.session, code).await, "False");
    assert!(made.session.stop().await.unwrap());
}

async fn found_again(engine: Engine) {
    let Some(target) = target(engine, "slim", "") else { return };
    let store = tempfile::tempdir().unwrap();
    let name = unique();
    let first = make_in(engine, registry(Some(&store)), &target, &name, SessionOptions::default());
    ok(&first.session, "x = 41").await;
    let id = first.inspect()["Id"].clone();
    let second = make_in(engine, registry(Some(&store)), &target, &name, SessionOptions::default());
    let reply = ok(&second.session, "x + 1").await;
    assert_eq!((&reply.result.unwrap()["text/plain"], reply.kernel.reused), (&"42".into(), true));
    assert_eq!(reply.kernel.target, target);
    // Also without a record: by its name, and the kernel by its key.
    let third = make_in(engine, registry(None), &target, &name, SessionOptions::default());
    assert_eq!(value(&third.session, "x").await, "41");
    assert_eq!(third.inspect()["Id"], id);
    assert!(second.session.stop().await.unwrap());
    assert!(!first.is_there());
}

async fn two_sessions(engine: Engine) {
    let Some(target) = target(engine, "slim", "") else { return };
    let registry = registry(None);
    let one = make_in(engine, registry.clone(), &target, &unique(), SessionOptions::default());
    let two = make_in(engine, registry, &target, &unique(), SessionOptions::default());
    ok(&one.session, "x = 1; open('/tmp/mine', 'w').close()").await;
    assert_eq!(
        value(&two.session, "import os; ('x' in globals(), os.path.exists('/tmp/mine'))").await,
        "(False, False)"
    );
    assert_ne!(one.inspect()["Id"], two.inspect()["Id"]);
    assert!(one.session.stop().await.unwrap());
    assert!(!one.is_there() && two.is_there());
    assert_eq!(value(&two.session, "6 * 7").await, "42");
    assert_eq!(two.registry.dispose_all().await.unwrap(), 1);
    assert!(!two.is_there());
}

async fn many_first_callers(engine: Engine) {
    let Some(target) = target(engine, "slim", "") else { return };
    let name = unique();
    // Processes that know nothing of each other.
    let made: Vec<_> = (0..4)
        .map(|_| Arc::new(make_in(engine, registry(None), &target, &name, SessionOptions::default())))
        .collect();
    let mut callers = tokio::task::JoinSet::new();
    for made in &made {
        let made = Arc::clone(made);
        callers.spawn(async move { value(&made.session, "import os; (os.uname()[1], os.getpid())").await });
    }
    let mut seen = callers.join_all().await;
    seen.dedup();
    assert_eq!(seen.len(), 1, "{seen:?}");
    assert!(made[0].session.stop().await.unwrap());
}

async fn stopped(engine: Engine) {
    let Some(made) = make(engine, "slim", "") else { return };
    assert!(!made.session.stop().await.unwrap());
    ok(&made.session, "x = 1").await;
    assert!(made.session.stop().await.unwrap());
    assert!(!made.is_there(), "it is gone when stop is over");
    let reply = ok(&made.session, "'x' in globals()").await;
    assert_eq!((&reply.result.unwrap()["text/plain"], reply.kernel.state), (&"False".into(), State::Fresh));
    assert!(made.session.stop().await.unwrap());
}

async fn idle(engine: Engine) {
    let Some(target) = target(engine, "slim", "") else { return };
    // Longer than one look of the sandbox's keeper: what it has never seen it waits for.
    let options = SessionOptions { idle: Some(Duration::from_secs(6)), ..SessionOptions::default() };
    let made = make_in(engine, registry(None), &target, &unique(), options);
    ok(&made.session, "x = 1").await;
    assert!(made.is_there());
    // The kernel leaves, and then the sandbox does, although our stream is still open.
    made.gone(Duration::from_secs(60)).await;
    let reply = ok(&made.session, "'x' in globals()").await;
    assert_eq!(reply.kernel.state, State::Lost);
    let note = reply.kernel.note.unwrap();
    assert!(note.contains("had no kernel any more and ended"), "{note}");
    assert!(made.session.stop().await.unwrap());
}

async fn paused(engine: Engine) {
    let Some(made) = make(engine, "slim", "") else { return };
    ok(&made.session, "x = 1").await;
    made.docker(&["pause", &made.name]).unwrap();
    let e = make_in(
        engine,
        registry(None),
        &made.session.key().target,
        &made.session.key().session,
        SessionOptions::default(),
    )
    .error()
    .await;
    assert!(
        e.message().contains("is paused") && e.hint().unwrap().contains(&format!("{} unpause", engine.name)),
        "{e:?}"
    );
    assert!(made.session.stop().await.unwrap());
    assert!(!made.is_there());
}

/// What an engine knows of a container that somebody has removed by force. Podman does not remember who sent a signal.
fn removed_by(engine: Engine) -> &'static str {
    if engine == Engine::PODMAN { "killed or removed" } else { "removed" }
}

async fn removed(engine: Engine) {
    let Some(made) = make(engine, "slim", "") else { return };
    ok(&made.session, "x = 1").await;
    made.docker(&["rm", "-f", &made.name]).unwrap();
    let reply = ok(&made.session, "'x' in globals()").await;
    assert_eq!((&reply.result.unwrap()["text/plain"], reply.kernel.state), (&"False".into(), State::Lost));
    let note = reply.kernel.note.unwrap();
    assert!(note.contains(&format!("the sandbox {} was {}", made.name, removed_by(engine))), "{note}");
    let reply = ok(&made.session, "1").await;
    assert_eq!((reply.kernel.state, reply.kernel.note), (State::Kept, None), "it is told once");
    assert!(made.session.stop().await.unwrap());
}

async fn removed_during_a_cell(engine: Engine) {
    let Some(made) = make(engine, "slim", "") else { return };
    let seen = Seen::default();
    let removed = std::cell::Cell::new(None);
    let remove = async {
        seen.running().await;
        made.docker(&["rm", "-f", &made.name]).unwrap();
        removed.set(Some(Instant::now()));
    };
    let cell = long();
    let (reply, ()) = tokio::join!(made.session.run(&cell, &seen), remove);
    let reply = reply.unwrap();
    assert!(
        removed.get().unwrap().elapsed() < Duration::from_secs(20),
        "it was not waited for until the deadline"
    );
    assert_eq!((reply.status, reply.kernel.state), (Status::Died, State::Lost), "{reply:#?}");
    let error = reply.error.unwrap();
    let told = format!("was {} while the cell ran", removed_by(engine));
    assert!(error.message.contains(&told), "{}", error.message);
    let reply = ok(&made.session, "6 * 7").await;
    assert_eq!(reply.kernel.note, None, "who has that reply knows");
    assert!(made.session.stop().await.unwrap());
}

async fn restarted(engine: Engine) {
    let Some(made) = make(engine, "slim", "") else { return };
    ok(&made.session, "x = 1").await;
    made.docker(&["restart", "-t", "0", &made.name]).unwrap();
    let reply = ok(&made.session, "'x' in globals()").await;
    assert_eq!((&reply.result.unwrap()["text/plain"], reply.kernel.state), (&"False".into(), State::Lost));
    let note = reply.kernel.note.unwrap();
    assert!(note.contains(&format!("the sandbox {} was restarted", made.name)), "{note}");
    assert!(made.session.stop().await.unwrap());
}

async fn stopped_during_a_cell(engine: Engine) {
    let Some(target) = target(engine, "slim", "") else { return };
    let store = tempfile::tempdir().unwrap();
    let name = unique();
    let made = make_in(engine, registry(Some(&store)), &target, &name, SessionOptions::default());
    ok(&made.session, "1").await;
    let seen = Seen::default();
    let stop = async {
        seen.running().await;
        // Another process does it.
        let other = make_in(engine, registry(Some(&store)), &target, &name, SessionOptions::default());
        assert!(other.session.stop().await.unwrap());
    };
    let cell = long();
    let (reply, ()) = tokio::join!(made.session.run(&cell, &seen), stop);
    let reply = reply.unwrap();
    assert_eq!((reply.status, reply.stdout.as_str()), (Status::Died, "begin\n"), "{reply:#?}");
    assert!(!made.is_there());
}

async fn out_of_memory(engine: Engine) {
    let Some(made) = make(engine, "slim", "memory=100m") else { return };
    assert_eq!(made.inspect_after("1").await["HostConfig"]["MemorySwap"], 100 << 20);
    let reply = made.session.run(&Cell::new("b = bytearray(400 << 20)"), &NoEvents).await.unwrap();
    assert_eq!((reply.status, reply.signal.as_deref()), (Status::Died, Some("SIGKILL")), "{reply:#?}");
    assert!(reply.error.unwrap().hint.unwrap().contains("out-of-memory"));
    assert_eq!(value(&made.session, "6 * 7").await, "42");
    assert!(made.session.stop().await.unwrap());
}

async fn out_of_pids(engine: Engine) {
    let Some(made) = make(engine, "slim", "pids=32") else { return };
    let code = "import subprocess\n\
                started = []\n\
                try:\n    for _ in range(100): started.append(subprocess.Popen(['sleep', '60']))\n\
                except OSError as e: why = type(e).__name__\n\
                for p in started: p.kill(); p.wait()\n\
                why, 8 < len(started) < 32";
    assert_eq!(value(&made.session, code).await, "('BlockingIOError', True)");
    assert!(made.session.stop().await.unwrap());
}

async fn options(engine: Engine) {
    let shared = tempfile::tempdir().unwrap();
    std::fs::write(shared.path().join("data"), "seen").unwrap();
    let path = shared.path().display();
    let options = format!(
        "read_only=true&user=1234:1234&workdir=/tmp&network=host&cpus=0.5&mount={path}:/in:ro,{path}:/other"
    );
    let Some(made) = make(engine, "slim", &options) else { return };
    let code = "import os\n\
                def writes(path):\n    try: open(path, 'w').close()\n    except OSError as e: return e.errno\n    return 0\n\
                os.getuid(), os.getgid(), os.getcwd(), open('/in/data').read(), open('/other/data').read(), writes('/in/x'), writes('/x'), writes('/tmp/x')";
    assert_eq!(value(&made.session, code).await, "(1234, 1234, '/tmp', 'seen', 'seen', 30, 30, 0)");
    let found = made.inspect();
    assert_eq!(
        (&found["HostConfig"]["NanoCpus"], &found["HostConfig"]["NetworkMode"]),
        (&500_000_000.into(), &"host".into())
    );
    assert!(made.session.stop().await.unwrap());
}

async fn refused(engine: Engine) {
    for (options, message, hint) in [
        ("network=farcell-nosuch", "no sandbox in the network farcell-nosuch", "network ls"),
        ("mount=/nonexistent/farcell:/x", "/nonexistent/farcell", "has to be there"),
        ("cpus=4000", "too many processors", "docker info"),
        ("user=nobody-at-all", "no user \"nobody-at-all\"", "passwd"),
        ("python=/nope", "/nope", "python3"),
    ] {
        if engine == Engine::PODMAN && ["mount=", "cpus="].iter().any(|of| options.starts_with(of)) {
            continue; // Podman 4 makes a directory there, and takes as many as it can have
        }
        let Some(made) = make(engine, "slim", options) else { return };
        let e = made.error().await;
        assert!(e.message().contains(message) && e.hint().unwrap().contains(hint), "{options}: {e:?}");
        assert_eq!((e.kind(), e.target()), (ErrorKind::Spawn, Some(&made.session.key().target)), "{e:?}");
        assert!(!e.is_temporary() && !made.is_there(), "{options}");
    }
    let far = "docker+run://debian?host=unix:///nowhere/docker.sock".parse().unwrap();
    let e = make_in(engine, registry(None), &far, "far", SessionOptions::default()).error().await;
    assert!(e.message().contains("there is no engine at unix:///nowhere/docker.sock"), "{e}");
}

async fn no_python(engine: Engine) {
    let Some(target) = target(engine, "nopython", "") else { return };
    let store = tempfile::tempdir().unwrap();
    let made = make_in(engine, registry(Some(&store)), &target, &unique(), SessionOptions::default());
    let e = made.error().await;
    assert!(e.message().contains("Python 3.6") && e.hint().unwrap().contains("python3"), "{e:?}");
    assert!(!made.is_there());
    assert!(made.registry.stored().is_empty(), "nothing is on record: {:?}", made.registry.stored());
}

/// As a farcell leaves it that was killed between two requests.
fn create(made: &Made, image: &str, label: &str) {
    let arguments = [
        "create",
        "--network",
        "none",
        "--name",
        &made.name,
        "--label",
        label,
        image,
        "/bin/sh",
        "-c",
        "sleep 300",
    ];
    made.docker(&arguments).expect("docker create");
}

async fn unstarted(engine: Engine) {
    let Some(made) = make(engine, "slim", "") else { return };
    create(&made, &built(engine, "slim").unwrap(), &format!("farcell.key={}", made.session.key().digest()));
    assert!(made.registry.housing(made.session.key()).await.unwrap().unwrap().contains("not started"));
    assert_eq!(value(&made.session, "6 * 7").await, "42");
    assert!(made.session.stop().await.unwrap());
    assert!(!made.is_there());
}

async fn stranger(engine: Engine) {
    let Some(made) = make(engine, "slim", "") else { return };
    create(&made, &built(engine, "slim").unwrap(), "farcell.key=another");
    let e = made.error().await;
    assert!(e.message().contains("that farcell has not made") && e.hint().is_some(), "{e:?}");
    let driver = SandboxDriver::new();
    let key = made.session.key();
    assert!(driver.unhouse(&key.target, &key.digest()).await.is_err());
    assert!(made.is_there());
}

async fn files(engine: Engine) {
    let Some(made) = make(engine, "slim", "") else { return };
    let here = tempfile::tempdir().unwrap();
    let (from, back) = (here.path().join("from"), here.path().join("back"));
    std::fs::write(&from, "some bytes").unwrap();
    let options = TransferOptions::default();
    let e = made.session.put(&from, "/tmp/there", options.clone(), &mut |_| ()).await.unwrap_err();
    assert!(e.hint().unwrap().contains("first cell makes its sandbox"), "{e:?}");
    ok(&made.session, "1").await;
    made.session.put(&from, "/tmp/there", options.clone(), &mut |_| ()).await.unwrap();
    assert_eq!(value(&made.session, "open('/tmp/there').read()").await, "'some bytes'");
    made.session.get("/tmp/there", &back, options.clone(), &mut |_| ()).await.unwrap();
    assert_eq!(std::fs::read_to_string(back).unwrap(), "some bytes");
    let e = made
        .registry
        .put(&made.session.key().target, &from, "/tmp/x", &options, &mut |_| ())
        .await
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::BadInput);
    assert!(made.session.stop().await.unwrap());
}

async fn listed(engine: Engine) {
    // An option that no other test has, so that its sandboxes are its own.
    let Some(made) = make(engine, "slim", "pids=199") else { return };
    let driver = SandboxDriver::new();
    let target = &made.session.key().target;
    assert!(driver.list(target, None).await.unwrap().is_empty());
    ok(&made.session, "1").await;
    let kernels = driver.list(target, None).await.unwrap();
    assert_eq!(kernels.len(), 1);
    assert_eq!(kernels[0].kernel.as_ref().unwrap().session, made.session.key().session);
    assert!(made.session.stop().await.unwrap());
    let facts = driver.doctor(target, None, None).await.unwrap().facts;
    assert!(facts["python"].as_str().unwrap().contains("python"), "{facts}");
    let label = format!("label=farcell.image={}", built(engine, "slim").unwrap());
    let left = made.docker(&["ps", "-aq", "--filter", "name=farcell-doctor-", "--filter", &label]).unwrap();
    assert_eq!(left, "", "the sandbox that was made for the question is gone");
}
