//! One connection per host: who shares it, what it leaves, and what a server with little room makes of it.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::time::Duration;

use farcell::{LinkChoice, Registry};
use farcell_testbed::Sshd;
use farcell_testbed::processes::{open_files, with_command};
use libtest_mimic::Trial;

use crate::site::{Site, ok, session, site, site_of, until, value};
use crate::trial;

pub(crate) fn trials(driver: &'static str) -> Vec<Trial> {
    let mut trials = vec![
        trial(driver, "many_callers_at_once_log_in_once", one_login),
        trial(driver, "a_server_with_room_for_two_sessions_is_busy_and_not_dead", |d| {
            few_sessions(d, LinkChoice::Best)
        }),
        trial(driver, "a_server_with_room_for_two_sessions_is_busy_by_commands_too", |d| {
            few_sessions(d, LinkChoice::ExecOnly)
        }),
        trial(driver, "nothing_is_left_with_the_last_handle", nothing_left),
        trial(driver, "many_rounds_leave_nothing", many_rounds),
        trial(driver, "an_idle_connection_is_kept_alive", kept_alive),
    ];
    if driver == "openssh" {
        trials.push(trial(driver, "a_directory_of_others_is_refused", unsafe_directory));
        trials.push(trial(driver, "what_a_config_says_for_people_is_not_in_the_way", odd_config));
    }
    trials
}

async fn one_login(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let registry = site.registry();
    let sessions: Vec<_> = (0..8).map(|n| session(&registry, &site.target(), &format!("s{n}"))).collect();
    futures_util::future::join_all(sessions.iter().map(|session| ok(session, "1"))).await;
    // Another target of the same host shares the connection as well.
    let dir = site.sshd.dir().join("base");
    ok(&session(&registry, &site.target_of("behind", &format!("&dir={}", dir.display())), "dir"), "1").await;
    assert_eq!(site.sshd.accepted(), 1);
    registry.dispose_all().await.unwrap();
}

async fn few_sessions(driver: &'static str, links: LinkChoice) {
    let Some(mut site) = site_of(driver, Sshd::options().max_sessions(2)) else { return };
    site.links = links;
    let registry = site.registry();
    let sessions: Vec<_> = (0..6).map(|n| session(&registry, &site.target(), &format!("s{n}"))).collect();
    let work = sessions.iter().map(|session| async move {
        ok(session, "import time; x = 1").await;
        ok(session, "time.sleep(0.5); x += 1").await;
        assert_eq!(value(session, "x").await, "2");
    });
    futures_util::future::join_all(work).await;
    assert_eq!(site.sshd.accepted(), 1, "nobody took it for a loss");
    registry.dispose_all().await.unwrap();
}

async fn use_and_drop(site: &Site, registry: Registry) {
    let session = session(&registry, &site.target(), "short");
    ok(&session, "1").await;
    session.stop().await.unwrap();
}

/// What of the connection is on this machine, and what of it at the host.
fn left(site: &Site) -> (usize, usize, usize) {
    let here = with_command(&site.sockets.path().display().to_string()).len();
    let files = std::fs::read_dir(site.sockets.path().join("s")).map_or(0, |entries| entries.count());
    (here, files, site.proxy.connections().open)
}

async fn nothing_left(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    use_and_drop(&site, site.registry()).await;
    until("nothing is left", || left(&site) == (0, 0, 0)).await;
}

async fn many_rounds(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let files = || open_files(i64::from(std::process::id())).unwrap();
    for _ in 0..3 {
        use_and_drop(&site, site.registry()).await;
    }
    until("nothing is left", || left(&site) == (0, 0, 0)).await;
    let before = files();
    for _ in 0..20 {
        use_and_drop(&site, site.registry()).await;
    }
    until("nothing is left", || left(&site) == (0, 0, 0)).await;
    // Other tests of this process open and close theirs meanwhile.
    until("no descriptor is left", || files() <= before + 10).await;
}

async fn kept_alive(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let registry = site.registry();
    let session = session(&registry, &site.target(), "idle");
    ok(&session, "x = 1").await;
    let before = site.proxy.bytes();
    // Nobody uses it: what passes are signs of life.
    until("a sign of life", || site.proxy.bytes().down > before.down).await;
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(value(&session, "x").await, "1");
    assert_eq!(site.sshd.accepted(), 1);
    registry.dispose_all().await.unwrap();
}

async fn unsafe_directory(driver: &'static str) {
    let Some(mut site) = site(driver) else { return };
    let dir = site.sockets.path().join("open");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o755)).unwrap();
    let link = site.sockets.path().join("link");
    std::fs::create_dir(site.sockets.path().join("s")).unwrap();
    symlink(site.sockets.path().join("s"), &link).unwrap();
    let long = site.sockets.path().join("x".repeat(100));
    for dir in [&dir, &link, &long] {
        site.options.control_dir = Some(dir.clone());
        let e = site.refusal(&site.target()).await;
        assert!(e.message().contains(&*dir.to_string_lossy()) && e.hint().is_some(), "{e}");
    }
}

async fn odd_config(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let own = site.sshd.ssh_config();
    let config = site.sshd.dir().join("odd_config");
    let text = format!(
        "ControlMaster auto\nControlPath {0}/theirs\nControlPersist 1\nRequestTTY force\nRemoteCommand echo theirs\nPermitLocalCommand yes\n\
         LocalCommand touch {0}/touched\nLogLevel QUIET\nInclude {1}\n",
        site.sshd.dir().display(),
        own.display()
    );
    std::fs::write(&config, text).unwrap();
    let target =
        site.target().as_str().replace(&*own.to_string_lossy(), &config.to_string_lossy()).parse().unwrap();
    let registry = site.registry();
    let session = session(&registry, &target, "odd");
    ok(&session, "x = 1").await;
    assert!(!site.sshd.dir().join("touched").exists());
    // Their own control socket goes after a second without use; ours is another one.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert_eq!(value(&session, "x").await, "1");
    assert_eq!(site.sshd.accepted(), 1);
    registry.dispose_all().await.unwrap();
}
