//! A host of one's own behind a proxy, and short ways to run cells there.

use std::time::Duration;

pub(crate) use super::cells::{ok, until, value};
use farcell::ssh::{SshConnector, SshOptions};
use farcell::{
    Driver, Drivers, FileCellDriver, LinkChoice, Registry, RegistryOptions, Session, SessionOptions, Target,
};
use farcell_testbed::{ACCOUNT_PREFIX, Proxy, Sshd, SshdOptions, available};

/// A host, the proxy that leads to it, and where control sockets lie.
pub(crate) struct Site {
    pub(crate) driver: &'static str,
    pub(crate) sshd: Sshd,
    pub(crate) proxy: Proxy,
    pub(crate) sockets: tempfile::TempDir,
    pub(crate) links: LinkChoice,
    pub(crate) options: SshOptions,
    /// It is not the user of the test who logs in.
    has_account: bool,
}

/// `None` where there can be no server.
pub(crate) fn site(driver: &'static str) -> Option<Site> {
    site_of(driver, Sshd::options())
}

/// The same with a server that is different.
pub(crate) fn site_of(driver: &'static str, options: SshdOptions) -> Option<Site> {
    let sshd = available(options.start())?;
    let proxy = Proxy::start(sshd.port()).unwrap();
    sshd.alias("behind", proxy.port()).unwrap();
    // In /tmp, whatever TMPDIR is: the paths of sockets are short.
    let sockets = tempfile::Builder::new().prefix("farcell-t-").tempdir_in("/tmp").unwrap();
    let mut options = SshOptions::default();
    options.control_dir = Some(sockets.path().join("s"));
    options.keepalive = Duration::from_secs(1);
    options.keepalive_count = 2;
    options.first_pause = Duration::from_millis(20);
    options.last_pause = Duration::from_millis(500);
    let has_account = sshd.user().starts_with(ACCOUNT_PREFIX);
    Some(Site { driver, sshd, proxy, sockets, links: LinkChoice::Best, options, has_account })
}

impl Site {
    /// The target of a host of the ssh config, with further options.
    pub(crate) fn target_of(&self, host: &str, more: &str) -> Target {
        let config = self.sshd.ssh_config();
        // Kernels of one base directory come from one zygote, and that ends with the sshd through which it was started: those of another test must
        // not be among them. Accounts have a directory each.
        let base = self.sshd.dir().join("base");
        let dir = if self.has_account || more.contains("dir=") {
            String::new()
        } else {
            format!("&dir={}", base.display())
        };
        format!("ssh:{host}?driver={}&config={}{dir}{more}", self.driver, config.display()).parse().unwrap()
    }

    /// The target behind the proxy.
    pub(crate) fn target(&self) -> Target {
        self.target_of("behind", "")
    }

    pub(crate) fn driver(&self) -> FileCellDriver<SshConnector> {
        FileCellDriver::new(SshConnector::new(self.options.clone())).links(self.links)
    }

    /// A registry with connections of its own.
    pub(crate) fn registry(&self) -> Registry {
        let options = RegistryOptions { cap: 64, ..RegistryOptions::default() };
        Registry::new(Drivers::new().with(self.driver()), options)
    }

    /// Why the target cannot be reached.
    pub(crate) async fn refusal(&self, target: &Target) -> farcell::Error {
        self.driver().list(target, None).await.expect_err("the target should not be reached")
    }
}

/// A session behind the proxy.
pub(crate) fn session(registry: &Registry, target: &Target, name: &str) -> Session {
    let owner = format!("ssh-{}", std::process::id());
    registry.session(&owner, name, target, SessionOptions::default()).unwrap()
}
