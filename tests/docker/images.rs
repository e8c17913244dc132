//! What images lack, and containers forbid.

use farcell::{Driver as _, ErrorKind};
use libtest_mimic::Trial;

use crate::boxes::{driver, ok, registry, session, start, value};
use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("busybox_and_python_are_enough", || works("slim", &[], "")),
        trial("another_user_without_an_entry_in_passwd", || works("slim", &["--user", "4711:4711"], "")),
        trial("the_user_of_the_target", the_user),
        trial("a_read_only_root_with_a_tmpfs", || works("slim", &["--read-only", "--tmpfs", "/tmp"], "")),
        trial("a_read_only_root_with_dev_shm_alone", || works("slim", &["--read-only"], "")),
        trial("a_tmp_from_which_nothing_is_executed", || {
            works("slim", &["--tmpfs", "/tmp:noexec"], "?dir=/tmp/f")
        }),
        trial("no_init_and_no_capabilities", || {
            works("slim", &["--cap-drop", "ALL", "--security-opt", "no-new-privileges"], "")
        }),
        trial("a_name_of_a_compose_service", service),
        trial("no_python_is_one_clear_error", no_python),
        trial("a_user_that_is_not_there", no_user),
        trial("few_processes_are_told", few_processes),
    ]
}

async fn works(image: &str, arguments: &[&str], options: &str) {
    let Some(container) = start(image, arguments) else { return };
    let registry = registry();
    let target = container.target_with(options);
    let session = session(&registry, &target, "works");
    ok(&session, "import os; x = os.getuid()").await;
    let uid = if arguments.contains(&"4711:4711") { "4711" } else { "0" };
    assert_eq!(value(&session, "x").await, uid);
    // A process that ends is not taken for one that lives, reaped or not.
    ok(&session, "import subprocess; subprocess.check_call(['/bin/sh', '-c', 'sleep 0.1 & exit 0'])").await;
    assert!(session.stop().await.unwrap());
    registry.dispose_all().await.unwrap();
}

async fn the_user() {
    let Some(container) = start("slim", &[]) else { return };
    let registry = registry();
    let target = container.target_with("?user=1234:1234&workdir=/tmp");
    let session = session(&registry, &target, "user");
    assert_eq!(
        value(&session, "import os; (os.getuid(), os.getgid(), os.getcwd())").await,
        "(1234, 1234, '/tmp')"
    );
    registry.dispose_all().await.unwrap();
}

async fn service() {
    let labels = [
        "--label",
        "com.docker.compose.project=farcell-t-shop",
        "--label",
        "com.docker.compose.service=farcell-t-web",
    ];
    let Some(first) = start("slim", &labels) else { return };
    let registry = registry();
    let target = "compose://farcell-t-shop/farcell-t-web".parse().unwrap();
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
    let _second = start("slim", &other).unwrap();
    let e = driver().list(&"compose://farcell-t-web".parse().unwrap(), None).await.unwrap_err();
    assert!(e.message().contains("farcell-t-other, farcell-t-shop"), "{e}");
    registry.dispose_all().await.unwrap();
}

async fn no_python() {
    let Some(container) = start("nopython", &[]) else { return };
    let registry = registry();
    let session = session(&registry, &container.target(), "none");
    let e = session.run(&"1".into(), &farcell::NoEvents).await.unwrap_err();
    assert!(e.message().contains("Python 3.6") && e.hint().unwrap().contains("python3"), "{e:?}");
    assert!(!e.is_temporary());
}

async fn no_user() {
    let Some(container) = start("slim", &[]) else { return };
    let e = driver().list(&container.target_with("?user=nobody-at-all"), None).await.unwrap_err();
    assert!(e.message().contains("nobody-at-all"), "{e}");
    assert_eq!(e.kind(), ErrorKind::Transport);
}

async fn few_processes() {
    let Some(container) = start("slim", &["--pids-limit", "3"]) else { return };
    let registry = registry();
    let session = session(&registry, &container.target(), "few");
    let e = session.run(&"1".into(), &farcell::NoEvents).await.unwrap_err();
    assert!(!e.message().is_empty() && e.step().is_some(), "{e:?}");
}
