//! OpenSSH's server, one per test, with keys made on the spot.

mod config;

use std::fs::{self, File};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpStream};
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

pub use config::{HostKey, SshdOptions};

use crate::keeper::Keeper;
use crate::processes::{becomes_so, descendants, is_alive, kill, program};
use crate::trouble::{Trouble, run};

/// How long sshd may take to answer.
const READY: Duration = Duration::from_secs(20);

/// How often another port is tried when somebody else was quicker.
const TRIES: usize = 5;

/// An sshd on a port of 127.0.0.1. When it is dropped, all that was started through it ends, detached kernels included.
#[derive(Debug)]
pub struct Sshd {
    keeper: Keeper,
    options: SshdOptions,
    program: PathBuf,
    port: u16,
    user: String,
    listener: AtomicI64,
}

impl Sshd {
    /// An sshd as tests mostly want it: the user that the test runs as logs in with a key.
    pub fn start() -> Result<Sshd, Trouble> {
        SshdOptions::default().start()
    }

    /// Says first what is to be different.
    pub fn options() -> SshdOptions {
        SshdOptions::default()
    }

    fn with(options: SshdOptions) -> Result<Sshd, Trouble> {
        let program = find_sshd()?;
        let own = own_name()?;
        let user = options.login.clone().unwrap_or_else(|| own.clone());
        if rustix::process::getuid().is_root() {
            // Where the package's service would make it.
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o755)
                .create("/run/sshd")
                .map_err(|e| Trouble::failed("make /run/sshd", e))?;
        } else if user != own {
            return Err(Trouble::no_root("let others log in"));
        }
        let keeper = Keeper::start("farcell-sshd-")?;
        let mut sshd = Sshd { keeper, options, program, port: 0, user, listener: AtomicI64::new(0) };
        sshd.make_keys()?;
        for tries_left in (0..TRIES).rev() {
            sshd.port = crate::port::of(&crate::port::listen()?);
            sshd.write("sshd_config", &sshd.options.sshd_config(sshd.keeper.dir(), sshd.port, &sshd.user))?;
            match sshd.restart() {
                Err(_) if tries_left > 0 && sshd.log().contains("Address already in use") => {}
                started => {
                    started?;
                    break;
                }
            }
        }
        sshd.write("known_hosts", "")?;
        sshd.alias("box", sshd.port)?;
        Ok(sshd)
    }

    /// The port.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Who logs in.
    pub fn user(&self) -> &str {
        &self.user
    }

    /// A file for `ssh -F`: it knows the host `box`, `password` if that was asked for, and those added by [`Sshd::alias`].
    pub fn ssh_config(&self) -> PathBuf {
        self.keeper.dir().join("ssh_config")
    }

    /// The host's keys, under the name `box` and under the address of each alias.
    pub fn known_hosts(&self) -> PathBuf {
        self.keeper.dir().join("known_hosts")
    }

    /// The private key of the user who logs in.
    pub fn identity(&self) -> PathBuf {
        self.keeper.dir().join("key")
    }

    /// A directory that goes with the sshd.
    pub fn dir(&self) -> &Path {
        self.keeper.dir()
    }

    /// OpenSSH's client on its way to an alias, with the command still to be added.
    pub fn ssh(&self, alias: &str) -> Command {
        let mut command = Command::new("ssh");
        command.arg("-F").arg(self.ssh_config()).args(["-T", alias]).stdin(Stdio::null());
        command
    }

    /// Lets `ssh -F` know the same host at another port, that of a proxy for instance.
    pub fn alias(&self, name: &str, port: u16) -> Result<(), Trouble> {
        self.append("ssh_config", &self.options.host(name, self.keeper.dir(), port, &self.user))?;
        for kind in &self.options.host_keys {
            let key = fs::read_to_string(self.keeper.dir().join(format!("{}.pub", kind.file())))
                .map_err(|e| Trouble::failed("read a host key", e))?;
            self.append("known_hosts", &format!("{name},[127.0.0.1]:{port} {key}"))?;
        }
        Ok(())
    }

    /// Ends the listener: new connections are refused, sessions live on.
    pub fn kill(&self) {
        let pid = self.listener.swap(0, Ordering::Relaxed);
        if pid != 0 {
            kill(pid);
            assert!(becomes_so(READY, || !is_alive(pid)), "sshd {pid} cannot be killed");
        }
    }

    /// Starts the listener, on the same port, after ending the one before; sessions live on.
    pub fn restart(&self) -> Result<(), Trouble> {
        self.kill();
        let config = self.keeper.dir().join("sshd_config");
        // sshd refuses a name without a directory: it starts itself again for each connection.
        let argv = [path(&self.program), "-D", "-e", "-f", path(&config)];
        let pid = self.keeper.run(&argv)?;
        self.listener.store(pid, Ordering::Relaxed);
        let mut ready = false;
        becomes_so(READY, || {
            ready = answers(self.port);
            ready || !is_alive(pid)
        });
        // Another sshd may have been quicker to take the port.
        if ready && is_alive(pid) {
            return Ok(());
        }
        self.kill();
        Err(Trouble::failed("start sshd", self.log()))
    }

    /// Ends the processes of sshd that serve connections, those that are not through with logging in too. What they had started lives on.
    pub fn end_sessions(&self) {
        let listener = self.listener.load(Ordering::Relaxed);
        // Newer ones have programs of their own for it: sshd-session, sshd-auth.
        let serves =
            |pid: &i64| *pid != listener && program(*pid).is_some_and(|name| name.starts_with("sshd"));
        let sessions = || descendants(self.keeper.pid()).into_iter().filter(serves).collect::<Vec<_>>();
        let none_left = becomes_so(READY, || {
            let found = sessions();
            found.iter().for_each(|pid| _ = kill(*pid));
            found.is_empty()
        });
        assert!(none_left, "sessions do not end: {:?}", sessions());
    }

    /// The processes that there are because of logins: sshd's own, and what they started. The listener is none of them.
    pub fn processes(&self) -> Vec<i64> {
        let listener = self.listener.load(Ordering::Relaxed);
        descendants(self.keeper.pid()).into_iter().filter(|pid| *pid != listener).collect()
    }

    /// Gives the host other keys, as if it had been installed anew; `known_hosts` still has the old ones.
    pub fn swap_host_key(&self) -> Result<(), Trouble> {
        self.options.host_keys.iter().try_for_each(|kind| self.make_key(*kind, kind.file()))?;
        self.restart()
    }

    /// How many logins there were.
    pub fn accepted(&self) -> usize {
        self.log().lines().filter(|line| line.starts_with("Accepted ")).count()
    }

    /// What sshd logged.
    pub fn log(&self) -> String {
        let log = fs::read(self.keeper.dir().join("log")).unwrap_or_default();
        String::from_utf8_lossy(&log).into_owned()
    }

    fn make_keys(&self) -> Result<(), Trouble> {
        self.make_key(HostKey::Ed25519, "key")?;
        let key = self.keeper.dir().join("key.pub");
        fs::copy(key, self.keeper.dir().join("authorized_keys"))
            .map_err(|e| Trouble::failed("copy the user's key", e))?;
        self.options.host_keys.iter().try_for_each(|kind| self.make_key(*kind, kind.file()))
    }

    fn make_key(&self, kind: HostKey, name: &str) -> Result<(), Trouble> {
        let file = self.keeper.dir().join(name);
        // ssh-keygen would ask before it replaces one.
        for old in [file.clone(), file.with_extension("pub")] {
            let _ = fs::remove_file(old);
        }
        run(Command::new("ssh-keygen").args(kind.keygen()).args(["-q", "-N", "", "-f"]).arg(file), b"")
    }

    fn write(&self, name: &str, text: &str) -> Result<(), Trouble> {
        fs::write(self.keeper.dir().join(name), text).map_err(|e| Trouble::failed(format!("write {name}"), e))
    }

    fn append(&self, name: &str, text: &str) -> Result<(), Trouble> {
        let file = File::options().create(true).append(true).open(self.keeper.dir().join(name));
        file.and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|e| Trouble::failed(format!("write {name}"), e))
    }
}

/// True if what listens there greets as an ssh server does.
fn answers(port: u16) -> bool {
    let Ok(mut connection) = TcpStream::connect((Ipv4Addr::LOCALHOST, port)) else { return false };
    let mut greeting = [0; 4];
    connection.set_read_timeout(Some(Duration::from_secs(1))).is_ok()
        && connection.read_exact(&mut greeting).is_ok()
        && &greeting == b"SSH-"
}

/// sshd is seldom in the path of a user who is not root.
fn find_sshd() -> Result<PathBuf, Trouble> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let more = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let mut candidates = std::env::split_paths(&path).chain(more).map(|dir| dir.join("sshd"));
    candidates.find(|p| p.is_absolute() && p.is_file()).ok_or_else(|| Trouble::no_program("sshd"))
}

fn own_name() -> Result<String, Trouble> {
    let output = Command::new("id").arg("-un").output().map_err(|e| Trouble::failed("run id", e))?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn path(path: &Path) -> &str {
    path.to_str().expect("temporary directories have plain names")
}
