//! Login shells that print, are slow, or are none of the Bourne family: they get to see one plain line, and what they do costs once.

use farcell::LinkChoice;
use farcell_testbed::{NOISY_BASHRC, SLOW_BASHRC, Sshd, SshdOptions, account, available};
use libtest_mimic::Trial;

use crate::site::{ok, session, site_of, value};
use crate::trial;

pub(crate) fn trials(driver: &'static str) -> Vec<Trial> {
    let shell = |name: &'static str, shell: &'static str, bashrc: &'static str| {
        trial(driver, name, move |d| of_account(d, shell, bashrc, |options| options))
    };
    vec![
        shell("a_noisy_bashrc", "/bin/bash", NOISY_BASHRC),
        shell("a_slow_bashrc", "/bin/bash", SLOW_BASHRC),
        shell("fish", "/usr/bin/fish", ""),
        shell("tcsh", "/bin/tcsh", ""),
        shell("dash", "/bin/dash", ""),
        trial(driver, "a_locale_that_is_not_there", |d| {
            of_account(d, "/bin/bash", "export LC_ALL=xx_XX.UTF-8 LANG=xx_XX\n", |options| {
                options.set_env("LC_ALL", "xx_XX.UTF-8")
            })
        }),
        trial(driver, "a_forced_command_that_hands_on_what_was_asked_for", |d| {
            of_account(d, "/bin/bash", "", |options| options.force_command("eval \"$SSH_ORIGINAL_COMMAND\""))
        }),
        trial(driver, "a_forced_command_that_does_not_is_told", forced),
        trial(driver, "a_target_without_python_is_told", no_python),
    ]
}

async fn of_account(
    driver: &'static str,
    shell: &'static str,
    bashrc: &'static str,
    change: impl Fn(SshdOptions) -> SshdOptions,
) {
    let Some(account) = available(account("shell", shell, bashrc)) else { return };
    for links in [LinkChoice::Best, LinkChoice::ExecOnly] {
        let Some(mut site) = site_of(driver, change(Sshd::options().login_as(account.name()))) else {
            return;
        };
        site.links = links;
        let registry = site.registry();
        let session = session(&registry, &site.target(), "shell");
        ok(&session, "x = '\u{e9}!$HOME'").await;
        assert_eq!(value(&session, "x").await, "'\u{e9}!$HOME'");
        let uid = value(&session, "import os; os.getuid()").await;
        assert_eq!(uid, account.uid().to_string());
        registry.dispose_all().await.unwrap();
    }
}

async fn forced(driver: &'static str) {
    let Some(site) = site_of(driver, Sshd::options().force_command("echo this box runs backups only")) else {
        return;
    };
    let e = site.refusal(&site.target()).await;
    assert!(e.message().contains("ended without an answer"), "{e}");
    assert!(e.hint().is_some(), "{e:?}");
}

async fn no_python(driver: &'static str) {
    let Some(site) = site_of(driver, Sshd::options()) else { return };
    let e = site.refusal(&site.target_of("behind", "&python=/nowhere/python3")).await;
    assert!(e.message().contains("Python 3.6") && e.message().contains("/nowhere/python3"), "{e}");
    assert!(e.hint().unwrap().contains("python3"), "{e:?}");
}
