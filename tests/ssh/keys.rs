//! Who is let in, and who is believed: host keys, user keys, passwords, and hosts that are not there.

use std::fs;
use std::time::Duration;

use farcell::{Driver as _, ErrorKind, Step, Target};
use farcell_testbed::{Sshd, account, available};
use libtest_mimic::Trial;

use crate::site::{Site, ok, session, site, site_of};
use crate::trial;

pub(crate) fn trials(driver: &'static str) -> Vec<Trial> {
    vec![
        trial(driver, "a_host_that_is_not_known_is_refused", unknown_host),
        trial(driver, "a_host_whose_key_has_changed_is_refused_by_file_and_line", changed_key),
        trial(driver, "a_new_host_is_believed_once_where_that_is_wanted", accept_new),
        trial(driver, "a_wrong_key_is_refused_for_good", wrong_key),
        trial(driver, "a_password_comes_from_the_environment_and_goes_nowhere", password),
        trial(driver, "nobody_listens", nobody_listens),
        trial(driver, "a_host_that_does_not_answer_is_told_in_bounded_time", no_answer),
        trial(driver, "a_dark_host_holds_up_no_other", one_dark_among_many),
        trial(driver, "a_jump_host_leads_there", jump),
    ]
}

/// A target by address and port, with files of its own.
fn plain(site: &Site, more: &str) -> Target {
    let (port, identity) = (site.sshd.port(), site.sshd.identity());
    let user = site.sshd.user();
    let driver = site.driver;
    // A config of its own: that of the user who runs the tests shall not count.
    let config = site.sshd.dir().join("empty_config");
    fs::write(&config, "").unwrap();
    format!(
        "ssh://{user}@127.0.0.1:{port}?driver={driver}&identity={}&config={}{more}",
        identity.display(),
        config.display()
    )
    .parse()
    .unwrap()
}

async fn unknown_host(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let hosts = site.sshd.dir().join("none");
    fs::write(&hosts, "").unwrap();
    for more in ["", "&host_key=strict"] {
        let e = site.refusal(&plain(&site, &format!("&known_hosts={}{more}", hosts.display()))).await;
        assert!(e.message().contains("the host key of") && e.message().contains("is not known"), "{e}");
        assert!(!e.is_temporary() && e.step() == Some(Step::Connect), "{e:?}");
        assert!(e.hint().unwrap().contains("accept-new"), "{e:?}");
    }
    assert_eq!(fs::read_to_string(&hosts).unwrap(), "", "nothing was written down");
}

async fn changed_key(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let target = plain(&site, &format!("&known_hosts={}", site.sshd.known_hosts().display()));
    site.driver().list(&target, None).await.unwrap();
    site.sshd.swap_host_key().unwrap();
    for more in ["", "&host_key=accept-new"] {
        let e = site.refusal(&format!("{target}{more}").parse().unwrap()).await;
        let place = format!("{}:1", site.sshd.known_hosts().display());
        assert!(e.message().contains("has changed") && e.message().contains(&place), "{e}");
        assert!(!e.is_temporary(), "{e:?}");
    }
    let anyway: Target = format!("{target}&host_key=off").parse().unwrap();
    site.driver().list(&anyway, None).await.unwrap();
}

async fn accept_new(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let hosts = site.sshd.dir().join("new");
    let target = plain(&site, &format!("&known_hosts={}&host_key=accept-new", hosts.display()));
    site.driver().list(&target, None).await.unwrap();
    let written = fs::read_to_string(&hosts).unwrap();
    assert_eq!(written.lines().filter(|line| line.contains("ssh-ed25519")).count(), 1, "{written}");
    site.driver().list(&target, None).await.unwrap();
    assert_eq!(fs::read_to_string(&hosts).unwrap(), written, "it is known by now");
    let strict: Target = target.as_str().replace("accept-new", "strict").parse().unwrap();
    site.driver().list(&strict, None).await.unwrap();
}

async fn wrong_key(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    // Any key that is no user's will do: a host's.
    let other = site.sshd.dir().join("host_ed25519");
    let target = format!("{}", plain(&site, &format!("&known_hosts={}", site.sshd.known_hosts().display())))
        .replace(
            &format!("identity={}", site.sshd.identity().display()),
            &format!("identity={}", other.display()),
        );
    let e = site.refusal(&target.parse().unwrap()).await;
    assert!(e.message().contains("refused the login") && e.message().contains("publickey"), "{e}");
    assert!(!e.is_temporary() && e.hint().is_some(), "{e:?}");
    let e =
        site.refusal(&target.replace(&*other.to_string_lossy(), "/nonexistent/key").parse().unwrap()).await;
    assert!(e.message().contains("identity=/nonexistent/key"), "{e}");
}

async fn password(driver: &'static str) {
    const VARIABLE: &str = "FARCELL_TEST_SSH_PASSWORD";
    const SECRET: &str = "open sesame 7f3a";
    let Some(account) = available(account("pass", "/bin/sh", "")) else { return };
    account.set_password(SECRET).unwrap();
    let Some(mut site) = site_of(driver, Sshd::options().password_auth(&account)) else { return };
    let target = site.target_of("password", "");
    let e = site.refusal(&target).await;
    assert!(e.message().contains("refused the login"), "{e}");
    site.options.password_env = Some("FARCELL_TEST_NO_SUCH_VARIABLE".to_owned());
    let e = site.refusal(&target).await;
    assert!(e.message().contains("FARCELL_TEST_NO_SUCH_VARIABLE"), "{e}");
    // Safety: of the tests of this process, no other looks at this variable, and none changes the environment.
    unsafe { std::env::set_var(VARIABLE, SECRET) };
    site.options.password_env = Some(VARIABLE.to_owned());
    let registry = site.registry();
    let session = session(&registry, &target, "password");
    ok(&session, "x = 1").await;
    let seen = farcell_testbed::processes::with_command("sesame");
    assert!(seen.is_empty(), "the password is in an argument: {seen:?}");
    assert!(
        !format!("{registry:?} {:?}", site.options).contains("sesame"),
        "the password is in a debug text"
    );
    registry.dispose_all().await.unwrap();
}

async fn nobody_listens(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    site.sshd.kill();
    let target = plain(&site, &format!("&known_hosts={}", site.sshd.known_hosts().display()));
    let e = site.refusal(&target).await;
    assert!(e.message().contains("refused"), "{e}");
    assert!(
        (e.kind(), e.is_temporary(), e.step()) == (ErrorKind::Transport, true, Some(Step::Connect)),
        "{e:?}"
    );
    let e = site.refusal(&"ssh://no-such-host.invalid".parse().unwrap()).await;
    assert!(e.message().contains("no-such-host.invalid"), "{e}");
}

async fn no_answer(driver: &'static str) {
    let Some(mut site) = site(driver) else { return };
    site.options.connect_timeout = Duration::from_secs(2);
    site.proxy.black_hole(true);
    let started = std::time::Instant::now();
    let e = site.refusal(&site.target()).await;
    assert!(e.is_temporary() && e.hint().is_some(), "{e:?}");
    assert!(started.elapsed() < Duration::from_secs(10), "it took {:?}", started.elapsed());
}

async fn one_dark_among_many(driver: &'static str) {
    let Some(mut site) = site(driver) else { return };
    site.options.connect_timeout = Duration::from_secs(60);
    let registry = site.registry();
    let dark = site.target();
    site.proxy.black_hole(true);
    let waiting = session(&registry, &dark, "dark");
    let waiting = tokio::spawn(async move { ok(&waiting, "1").await });
    let others = (0..19).map(|n| {
        // Each a host of its own, as far as we can tell.
        let name = format!("h{n}");
        site.sshd.alias(&name, site.sshd.port()).unwrap();
        session(&registry, &site.target_of(&name, ""), "light")
    });
    let others: Vec<_> = others.collect();
    let replies = others.iter().map(|session| ok(session, "1"));
    futures_util::future::join_all(replies).await;
    assert!(!waiting.is_finished(), "the dark one is still waited for");
    site.proxy.black_hole(false);
    site.proxy.cut_all();
    waiting.abort();
    let _ = waiting.await;
    registry.dispose(|key| key.target != dark).await.unwrap();
}

async fn jump(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let registry = site.registry();
    let session = session(&registry, &site.target_of("box", "&jump=behind"), "jump");
    ok(&session, "x = 1").await;
    assert!(site.proxy.connections().opened >= 1, "it went by the jump host");
    assert_eq!(site.sshd.accepted(), 2, "one login on the way, one at the end");
    registry.dispose_all().await.unwrap();
}
