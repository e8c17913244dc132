//! What images lack, and containers forbid.

use farcell::{Driver as _, ErrorKind, State, Status};
use farcell_testbed::Engine;
use libtest_mimic::Trial;

use crate::boxes::{driver, ok, registry, session, start, target, target_with, value};
use crate::trial_on;

pub(crate) fn trials(engine: Engine) -> Vec<Trial> {
    vec![
        trial_on(engine, "busybox_and_python_are_enough", |engine| works(engine, "slim", &[], "")),
        trial_on(engine, "another_user_without_an_entry_in_passwd", |engine| {
            works(engine, "slim", &["--user", "4711:4711"], "")
        }),
        trial_on(engine, "the_user_of_the_target", the_user),
        trial_on(engine, "a_read_only_root_with_a_tmpfs", |engine| {
            works(engine, "slim", &["--read-only", "--tmpfs", "/tmp"], "")
        }),
        trial_on(engine, "a_read_only_root_with_dev_shm_alone", |engine| {
            works(engine, "slim", &["--read-only"], "")
        }),
        trial_on(engine, "a_tmp_from_which_nothing_is_executed", |engine| {
            works(engine, "slim", &["--tmpfs", "/tmp:noexec"], "dir=/tmp/f")
        }),
        trial_on(engine, "no_init_and_no_capabilities", |engine| {
            works(engine, "slim", &["--cap-drop", "ALL", "--security-opt", "no-new-privileges"], "")
        }),
        trial_on(engine, "a_name_of_a_compose_service", service),
        trial_on(engine, "no_python_is_one_clear_error", no_python),
        trial_on(engine, "a_user_that_is_not_there", no_user),
        trial_on(engine, "few_processes_are_told", few_processes),
    ]
}

/// Not of Podman: its read-only containers have places in memory, and by its socket that cannot be turned off.
pub(crate) fn read_only(engine: Engine) -> Trial {
    trial_on(engine, "where_nothing_can_be_written_a_cell_runs_by_itself", nothing_writable)
}

async fn works(engine: Engine, image: &'static str, arguments: &[&str], options: &str) {
    let Some(container) = start(engine, image, arguments) else { return };
    let registry = registry();
    let target = target_with(&container, options);
    let session = session(&registry, &target, "works");
    ok(&session, "import os; x = os.getuid()").await;
    let uid = if arguments.contains(&"4711:4711") { "4711" } else { "0" };
    assert_eq!(value(&session, "x").await, uid);
    // A process that ends is not taken for one that lives, reaped or not.
    ok(&session, "import subprocess; subprocess.check_call(['/bin/sh', '-c', 'sleep 0.1 & exit 0'])").await;
    assert!(session.stop().await.unwrap());
    registry.dispose_all().await.unwrap();
}

async fn the_user(engine: Engine) {
    let Some(container) = start(engine, "slim", &[]) else { return };
    let registry = registry();
    let target = target_with(&container, "user=1234:1234&workdir=/tmp");
    let session = session(&registry, &target, "user");
    assert_eq!(
        value(&session, "import os; (os.getuid(), os.getgid(), os.getcwd())").await,
        "(1234, 1234, '/tmp')"
    );
    registry.dispose_all().await.unwrap();
}

async fn nothing_writable(engine: Engine) {
    let Some(container) = start(engine, "slim", &["--read-only", "--ipc", "none"]) else { return };
    let registry = registry();
    let session = session(&registry, &target(&container), "alone");
    for _ in 0..2 {
        let reply = ok(&session, "assert 'x' not in globals()\nx = 6\nprint('out')\nx * 7").await;
        assert_eq!((reply.kernel.state, reply.stdout.as_str()), (State::None, "out\n"), "{reply:#?}");
        assert!(reply.kernel.note.as_ref().unwrap().contains("dir="), "{reply:#?}");
        assert_eq!(reply.result.unwrap()["text/plain"], "42");
    }
    let reply = session.run(&"1 / 0".into(), &farcell::NoEvents).await.unwrap();
    assert_eq!((reply.status, reply.kernel.state), (Status::Error, State::None));
    registry.dispose_all().await.unwrap();
}

async fn service(engine: Engine) {
    let labels = [
        "--label",
        "com.docker.compose.project=farcell-t-shop",
        "--label",
        "com.docker.compose.service=farcell-t-web",
    ];
    let Some(first) = start(engine, "slim", &labels) else { return };
    let registry = registry();
    let target = engine.service("farcell-t-shop/farcell-t-web").parse().unwrap();
    let hostname = first.sh("hostname");
    assert_eq!(
        value(&session(&registry, &target, "a"), "import os; os.uname()[1]").await,
        format!("'{}'", hostname.trim())
    );
    let other = [
        "--label",
        "com.docker.compose.project=farcell-t-other",
        "--label",
        "com.docker.compose.service=farcell-t-web",
    ];
    let _second = start(engine, "slim", &other).unwrap();
    let e = driver().list(&engine.service("farcell-t-web").parse().unwrap(), None).await.unwrap_err();
    assert!(e.message().contains("farcell-t-other, farcell-t-shop"), "{e}");
    registry.dispose_all().await.unwrap();
}

async fn no_python(engine: Engine) {
    let Some(container) = start(engine, "nopython", &[]) else { return };
    let registry = registry();
    let session = session(&registry, &target(&container), "none");
    let e = session.run(&"1".into(), &farcell::NoEvents).await.unwrap_err();
    assert!(e.message().contains("Python 3.6") && e.hint().unwrap().contains("python3"), "{e:?}");
    assert!(!e.is_temporary());
}

async fn no_user(engine: Engine) {
    let Some(container) = start(engine, "slim", &[]) else { return };
    let e = driver().list(&target_with(&container, "user=nobody-at-all"), None).await.unwrap_err();
    assert!(e.message().contains("nobody-at-all"), "{e}");
    assert_eq!(e.kind(), ErrorKind::Transport);
}

async fn few_processes(engine: Engine) {
    let Some(container) = start(engine, "slim", &["--pids-limit", "3"]) else { return };
    let registry = registry();
    let session = session(&registry, &target(&container), "few");
    // What an engine itself needs to begin a command differs, and may be more than there is.
    match session.run(&"1".into(), &farcell::NoEvents).await {
        Ok(reply) => {
            assert_eq!(reply.kernel.state, State::None, "{reply:?}");
            assert!(reply.kernel.note.as_ref().unwrap().contains("no free process"), "{reply:?}");
            if reply.status != Status::Ok {
                // The engine's own start of the command came to nothing: whether the cell ran is more than it says.
                assert_eq!(reply.status, Status::Lost, "{reply:?}");
                assert!(reply.error.as_ref().unwrap().hint.is_some(), "{reply:?}");
            }
        }
        Err(e) => assert!(!e.message().is_empty() && e.step().is_some(), "{e:?}"),
    }
}
