//! All that one can log in with, and all that a host can show: kinds of keys, certificates, agents, passphrases, several things at once, ways over others.

use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use farcell::{Driver as _, Target};
use farcell_testbed::{HostKey, Sshd, account, available};
use libtest_mimic::Trial;

use crate::site::{Site, site, site_of, until};
use crate::trial;

pub(crate) fn trials(driver: &'static str) -> Vec<Trial> {
    let mut trials = vec![
        trial(driver, "every_kind_of_key_logs_in", kinds_of_keys),
        trial(driver, "a_host_shows_the_kind_of_key_that_is_known", known_kind),
        trial(driver, "a_certificate_of_a_user_logs_in", user_certificate),
        trial(driver, "a_certificate_of_a_host_is_believed", host_certificate),
        trial(driver, "a_passphrase_comes_from_the_environment", passphrase),
        trial(driver, "an_agent_signs", agent),
        trial(driver, "a_key_and_a_password_at_once", two_things),
        trial(driver, "questions_are_answered", questions),
        trial(driver, "a_command_leads_there", proxy_command),
        trial(driver, "two_jump_hosts_lead_there", two_jumps),
    ];
    if driver == "russh" {
        trials.push(trial(driver, "a_key_that_is_revoked_is_refused", revoked));
        trials.push(trial(driver, "a_doubtful_host_gets_no_password", doubtful));
        trials.push(trial(driver, "hosts_that_lead_to_each_other_are_an_error", jump_circle));
        trials.push(trial(driver, "a_program_is_asked_for_a_passphrase", program_is_asked));
        trials.push(trial(driver, "no_ssh_program_is_needed", no_program));
    }
    trials
}

/// A config with one host, `own`, of which only the address is said.
struct Own<'a> {
    site: &'a Site,
    config: PathBuf,
}

impl<'a> Own<'a> {
    fn new(site: &'a Site, more: &str) -> Self {
        let config = site.sshd.dir().join("own_config");
        let text = format!(
            "Host own\n HostName 127.0.0.1\n Port {}\n User {}\n IdentitiesOnly yes\n UserKnownHostsFile {}\n \
             GlobalKnownHostsFile none\n {more}\n",
            site.sshd.port(),
            site.sshd.user(),
            site.sshd.known_hosts().display(),
        );
        fs::write(&config, text).unwrap();
        Own { site, config }
    }

    fn target(&self, more: &str) -> Target {
        format!("ssh:own?driver={}&config={}{more}", self.site.driver, self.config.display()).parse().unwrap()
    }

    async fn logs_in(&self, more: &str) {
        let target = self.target(more);
        if let Err(e) = self.site.driver().list(&target, None).await {
            panic!("{e} ({:?}); sshd says: {}", e.hint(), self.site.sshd.log());
        }
    }
}

fn keygen(arguments: &[&str], file: &Path) {
    let mut command = Command::new("ssh-keygen");
    let output = command.arg("-q").args(arguments).arg(file).output().unwrap();
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// A new key of the user's, which the host does not know yet.
fn key(site: &Site, name: &str, kind: &[&str], passphrase: &str) -> PathBuf {
    let file = site.sshd.dir().join(name);
    keygen(&[kind, &["-N", passphrase, "-f"]].concat(), &file);
    file
}

fn public(file: &Path) -> String {
    fs::read_to_string(format!("{}.pub", file.display())).unwrap()
}

fn authorize(site: &Site, text: &str) {
    fs::write(site.sshd.dir().join("authorized_keys"), text).unwrap();
}

async fn kinds_of_keys(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let own = Own::new(&site, "IdentityAgent none");
    for (name, kind) in [
        ("ed25519", &["-t", "ed25519"][..]),
        ("ecdsa-256", &["-t", "ecdsa", "-b", "256"]),
        ("ecdsa-384", &["-t", "ecdsa", "-b", "384"]),
        ("ecdsa-521", &["-t", "ecdsa", "-b", "521"]),
        ("rsa", &["-t", "rsa", "-b", "2048"]),
        ("rsa-pem", &["-t", "rsa", "-b", "2048", "-m", "PEM"]),
        ("rsa-pkcs8", &["-t", "rsa", "-b", "2048", "-m", "PKCS8"]),
    ] {
        let file = key(&site, name, kind, "");
        authorize(&site, &public(&file));
        own.logs_in(&format!("&identity={}", file.display())).await;
    }
    assert!(site.sshd.log().contains("RSA SHA256:"), "{}", site.sshd.log());
}

async fn known_kind(driver: &'static str) {
    let kinds = [HostKey::Rsa, HostKey::Ecdsa, HostKey::Ed25519];
    let Some(site) = site_of(driver, Sshd::options().host_keys(&kinds)) else { return };
    let own = Own::new(&site, &format!("IdentityFile {}", site.sshd.identity().display()));
    let all = fs::read_to_string(site.sshd.known_hosts()).unwrap();
    let hosts = site.sshd.dir().join("one_kind");
    let known = format!("&known_hosts={}", hosts.display());
    for kind in ["ssh-rsa", "ecdsa-sha2-nistp256", "ssh-ed25519"] {
        let line = all.lines().find(|line| line.contains(kind)).unwrap();
        fs::write(&hosts, format!("{line}\n")).unwrap();
        own.logs_in(&known).await;
        keygen(&["-H", "-f"], &hosts);
        assert!(fs::read_to_string(&hosts).unwrap().starts_with("|1|"));
        own.logs_in(&known).await;
    }
}

async fn user_certificate(driver: &'static str) {
    let Some(sshd) = available(Sshd::start()) else { return };
    let authority = sshd.dir().join("authority");
    keygen(&["-t", "ed25519", "-N", "", "-f"], &authority);
    let trusts = format!("TrustedUserCAKeys {}.pub", authority.display());
    let Some(site) = site_of(driver, Sshd::options().extra(&trusts)) else { return };
    authorize(&site, "");
    let own = Own::new(&site, "IdentityAgent none");
    for (name, kind) in [("signed", &["-t", "ed25519"][..]), ("signed-rsa", &["-t", "rsa", "-b", "2048"])] {
        let file = key(&site, name, kind, "");
        let refused = site.refusal(&own.target(&format!("&identity={}", file.display()))).await;
        assert!(refused.message().contains("refused the login"), "{refused}");
        let sign = ["-s", authority.to_str().unwrap(), "-I", "test", "-n", site.sshd.user()];
        keygen(&sign, Path::new(&format!("{}.pub", file.display())));
        own.logs_in(&format!("&identity={}", file.display())).await;
    }
    assert!(site.sshd.log().contains("-CERT SHA256:"), "{}", site.sshd.log());
}

async fn host_certificate(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let authority = site.sshd.dir().join("authority");
    keygen(&["-t", "ed25519", "-N", "", "-f"], &authority);
    let host = site.sshd.dir().join("host_ed25519");
    let sshd_config = site.sshd.dir().join("sshd_config");
    let text = fs::read_to_string(&sshd_config).unwrap();
    fs::write(&sshd_config, format!("HostCertificate {}-cert.pub\n{text}", host.display())).unwrap();
    let own = Own::new(&site, &format!("IdentityFile {}", site.sshd.identity().display()));
    let hosts = site.sshd.dir().join("authorities");
    fs::write(&hosts, format!("@cert-authority 127.*,[127.*]:* {}", public(&authority))).unwrap();
    let known = format!("&known_hosts={}", hosts.display());
    let refused = site.refusal(&own.target(&known)).await;
    assert!(refused.message().contains("is not known"), "the host has no certificate yet: {refused}");
    let authority = authority.to_str().unwrap();
    for (name, is_right) in [("127.0.0.1", true), ("127.0.0.9", false)] {
        let host = format!("{}.pub", host.display());
        keygen(&["-s", authority, "-I", "test", "-h", "-n", name], Path::new(&host));
        site.sshd.restart().unwrap();
        if is_right {
            own.logs_in(&known).await;
        } else {
            let refused = site.refusal(&own.target(&known)).await;
            assert!(!refused.is_temporary(), "{refused:?}");
            if driver == "russh" {
                assert!(refused.message().contains("it is for 127.0.0.9"), "{refused}");
            }
        }
    }
}

async fn passphrase(driver: &'static str) {
    const VARIABLE: &str = "FARCELL_TEST_SSH_PASSPHRASE";
    const SECRET: &str = "quite a phrase 5d1c";
    let Some(mut site) = site(driver) else { return };
    let own_config = "IdentityAgent none";
    // Safety: of the tests of this process, no other looks at this variable, and it always has this value.
    unsafe { std::env::set_var(VARIABLE, SECRET) };
    for (name, kind) in [
        ("sealed", &["-t", "ed25519"][..]),
        ("sealed-rsa", &["-t", "rsa", "-b", "2048"]),
        ("sealed-pkcs8", &["-t", "rsa", "-b", "2048", "-m", "PKCS8"]),
    ] {
        let file = key(&site, name, kind, SECRET);
        authorize(&site, &public(&file));
        let identity = format!("&identity={}", file.display());
        site.options.password_env = None;
        let refused = site.refusal(&Own::new(&site, own_config).target(&identity)).await;
        assert!(refused.message().contains("refused the login"), "{refused}");
        if driver == "russh" {
            assert!(refused.hint().unwrap().contains("the passphrase of"), "{refused:?}");
        }
        site.options.password_env = Some(VARIABLE.to_owned());
        Own::new(&site, own_config).logs_in(&identity).await;
    }
}

/// An agent of one's own, which ends with it.
struct Agent {
    child: Child,
    socket: PathBuf,
}

impl Agent {
    async fn start(site: &Site) -> Self {
        let socket = site.sockets.path().join("agent");
        let mut command = Command::new("ssh-agent");
        let child = command.arg("-D").arg("-a").arg(&socket).stdout(Stdio::null()).spawn().unwrap();
        until("the agent listens", || socket.exists()).await;
        Agent { child, socket }
    }

    fn add(&self, file: &Path) {
        let added = Command::new("ssh-add").arg("-q").arg(file).env("SSH_AUTH_SOCK", &self.socket).status();
        assert!(added.unwrap().success());
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

async fn agent(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let agent = Agent::start(&site).await;
    let use_it = format!("IdentityAgent {}\n IdentitiesOnly no", agent.socket.display());
    for n in 0..7 {
        agent.add(&key(&site, &format!("wrong-{n}"), &["-t", "ed25519"], ""));
    }
    for kind in ["ed25519", "rsa"] {
        let file = key(&site, kind, &["-t", kind], "");
        authorize(&site, &public(&file));
        agent.add(&file);
        // The agent alone has it from now on.
        fs::remove_file(&file).unwrap();
        let own = Own::new(&site, &use_it);
        let text = fs::read_to_string(&own.config).unwrap().replacen("IdentitiesOnly yes", "", 1);
        fs::write(&own.config, &text).unwrap();
        let refused = site.refusal(&own.target("")).await;
        assert!(refused.message().contains("had enough of wrong keys"), "{refused}");
        assert!(refused.hint().unwrap().contains("identity="), "{refused:?}");
        // By its public half it is found.
        own.logs_in(&format!("&identity={}.pub", file.display())).await;
    }
}

async fn two_things(driver: &'static str) {
    const VARIABLE: &str = "FARCELL_TEST_SSH_TWO";
    const SECRET: &str = "second thing 9b2e";
    let Some(account) = available(account("two", "/bin/sh", "")) else { return };
    account.set_password(SECRET).unwrap();
    let options = Sshd::options().password_auth(&account).extra("AuthenticationMethods publickey,password");
    let Some(mut site) = site_of(driver, options) else { return };
    // Safety: of the tests of this process, no other looks at this variable, and it always has this value.
    unsafe { std::env::set_var(VARIABLE, SECRET) };
    let identity = format!("IdentityFile {}\n IdentityAgent none", site.sshd.identity().display());
    let refused = site.refusal(&Own::new(&site, &identity).target("")).await;
    assert!(refused.message().contains("refused the login"), "{refused}");
    site.options.password_env = Some(VARIABLE.to_owned());
    Own::new(&site, &identity).logs_in("").await;
}

async fn questions(driver: &'static str) {
    const VARIABLE: &str = "FARCELL_TEST_SSH_ANSWER";
    const SECRET: &str = "the answer is 8c4d";
    if !Path::new("/etc/pam.d/sshd").exists() {
        // What sshd asks is asked by PAM.
        return;
    }
    let Some(account) = available(account("asked", "/bin/sh", "")) else { return };
    account.set_password(SECRET).unwrap();
    let options = Sshd::options()
        .extra("UsePAM yes")
        .extra("KbdInteractiveAuthentication yes")
        .extra("AuthenticationMethods keyboard-interactive")
        .login_as(account.name());
    let Some(mut site) = site_of(driver, options) else { return };
    // Safety: of the tests of this process, no other looks at this variable, and it always has this value.
    unsafe { std::env::set_var(VARIABLE, SECRET) };
    let refused = site.refusal(&Own::new(&site, "").target("")).await;
    assert!(refused.message().contains("keyboard-interactive"), "{refused}");
    site.options.password_env = Some(VARIABLE.to_owned());
    Own::new(&site, "").logs_in("").await;
}

async fn proxy_command(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let identity = format!("IdentityFile {}\n ", site.sshd.identity().display());
    let command = format!("ProxyCommand ssh -F {} -W %h:%p box", site.sshd.ssh_config().display());
    Own::new(&site, &format!("{identity}{command}")).logs_in("").await;
    assert_eq!(site.sshd.accepted(), 2);
    let refused = site.refusal(&Own::new(&site, &format!("{identity}ProxyCommand false")).target("")).await;
    assert!(refused.message().contains("the way to own ended"), "{refused}");
    assert!(refused.is_temporary() && refused.hint().is_some(), "{refused:?}");
}

async fn two_jumps(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let identity = format!("IdentityFile {}\n ", site.sshd.identity().display());
    let hosts = fs::read_to_string(site.sshd.ssh_config()).unwrap();
    let own = Own::new(&site, &format!("{identity}ProxyJump box,behind\n{hosts}"));
    own.logs_in("").await;
    assert_eq!(site.sshd.accepted(), 3);
    own.logs_in("&jump=behind").await;
    assert_eq!(site.sshd.accepted(), 5, "the target goes before the config");
}

async fn revoked(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let own = Own::new(&site, &format!("IdentityFile {}", site.sshd.identity().display()));
    let hosts = fs::read_to_string(site.sshd.known_hosts()).unwrap();
    let key = fs::read_to_string(site.sshd.dir().join("host_ed25519.pub")).unwrap();
    fs::write(site.sshd.known_hosts(), format!("{hosts}@revoked * {key}")).unwrap();
    let refused = site.refusal(&own.target("&host_key=accept-new")).await;
    assert!(refused.message().contains("is revoked"), "{refused}");
    assert!(!refused.is_temporary(), "{refused:?}");
}

async fn doubtful(driver: &'static str) {
    const VARIABLE: &str = "FARCELL_TEST_SSH_DOUBTFUL";
    const SECRET: &str = "not for you 3e7f";
    let Some(account) = available(account("doubt", "/bin/sh", "")) else { return };
    account.set_password(SECRET).unwrap();
    let Some(mut site) = site_of(driver, Sshd::options().password_auth(&account)) else { return };
    // Safety: of the tests of this process, no other looks at this variable, and it always has this value.
    unsafe { std::env::set_var(VARIABLE, SECRET) };
    site.options.password_env = Some(VARIABLE.to_owned());
    let lax = "StrictHostKeyChecking no\n IdentityFile none\n IdentityAgent none";
    Own::new(&site, lax).logs_in("").await;
    site.sshd.swap_host_key().unwrap();
    let refused = site.refusal(&Own::new(&site, lax).target("")).await;
    assert!(refused.hint().unwrap().contains("no password is sent"), "{refused:?}");
    // By a key it is let in, as ssh does it.
    let identity = format!("&identity={}", site.sshd.identity().display());
    Own::new(&site, lax).logs_in(&identity).await;
}

async fn jump_circle(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let own = Own::new(&site, "ProxyJump other\nHost other\n HostName 127.0.0.1\n ProxyJump own");
    let refused = site.refusal(&own.target("")).await;
    assert!(refused.message().contains("without end"), "{refused}");
}

/// Runs a cell by the program, in an empty environment but for what is said.
async fn by_program(target: &Target, home: &Path, more: &[(&str, &str)]) -> (String, String) {
    let work = tokio::process::Command::new(env!("CARGO_BIN_EXE_farcell"))
        .args(["run", "--on", target.as_str(), "6 * 7"])
        .env_clear()
        .envs([("PATH", home), ("HOME", home), ("XDG_RUNTIME_DIR", home)])
        .envs(more.iter().copied())
        .stdin(Stdio::null())
        .output();
    let output = tokio::time::timeout(Duration::from_secs(60), work).await.unwrap().unwrap();
    let text = |bytes| String::from_utf8_lossy(bytes).trim().to_owned();
    (text(&output.stdout), text(&output.stderr))
}

async fn no_program(driver: &'static str) {
    let Some(site) = site(driver) else { return };
    let home = tempfile::tempdir().unwrap();
    let (said, complaint) = by_program(&site.target_of("box", ""), home.path(), &[]).await;
    assert_eq!(said, "42", "{complaint}");
}

async fn program_is_asked(driver: &'static str) {
    const SECRET: &str = "only when asked 1a6b";
    let Some(site) = site(driver) else { return };
    let home = tempfile::tempdir().unwrap();
    let sealed = key(&site, "asked", &["-t", "ed25519"], SECRET);
    authorize(&site, &public(&sealed));
    let (asked, program) = (home.path().join("asked"), home.path().join("program"));
    let script = format!("#!/bin/sh\necho \"$1\" >>{}\necho '{SECRET}'\n", asked.display());
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o700)).unwrap();
    let dir = site.sshd.dir().join("base");
    let target = Own::new(&site, "IdentityAgent none").target(&format!(
        "&identity={}&dir={}",
        sealed.display(),
        dir.display()
    ));
    let asks = [("SSH_ASKPASS", program.to_str().unwrap()), ("SSH_ASKPASS_REQUIRE", "force")];
    let (said, complaint) = by_program(&target, home.path(), &asks).await;
    assert_eq!(said, "42", "{complaint}");
    let questions = fs::read_to_string(&asked).unwrap();
    assert!(questions.contains("@own) Passphrase for") && questions.lines().count() == 1, "{questions}");
}
