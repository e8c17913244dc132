//! Where control sockets lie: in a short directory that is ours alone, whatever `TMPDIR` says, because a socket's path has about a hundred bytes.

use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use openssh::Session;
use sha2::{Digest as _, Sha256};
use tempfile::TempDir;

use crate::address::Address;
use crate::failure::Failure;
use crate::options::SshOptions;

/// The longest directory that leaves room for a socket's name and for the suffix that ssh adds while it makes the socket.
const SHORT: usize = 60;
/// How long a master may take to say that it is alive. It is on this machine.
const ALIVE: Duration = Duration::from_secs(3);
const SUFFIX: &str = "sock";

/// The control socket of one connection, with a master behind it or not.
#[derive(Debug)]
pub(super) enum Socket {
    /// Of this process alone; it goes with the last handle.
    Own(TempDir),
    /// Left for the next process. The lock is held by who logs in.
    Kept { path: PathBuf, lock: File },
}

impl Socket {
    pub(super) async fn of(address: &Address, options: &SshOptions) -> Result<Self, Failure> {
        let dir = dir(options)?;
        if options.control_persist.is_zero() {
            let own = tempfile::Builder::new().prefix("own-").tempdir_in(&dir);
            return own
                .map(Socket::Own)
                .map_err(|e| Failure::local(format!("cannot use {}: {e}", dir.display())));
        }
        let name = name(address, options);
        let at = dir.join(format!("{name}.lock"));
        let failed = |e: &dyn std::fmt::Display| Failure::local(format!("cannot lock {}: {e}", at.display()));
        let lock = File::create(&at).map_err(|e| failed(&e))?;
        // Another process may be logging in. The host bounds this wait.
        let lock = tokio::task::spawn_blocking(move || lock.lock().map(|()| lock)).await;
        let lock = lock.map_err(|e| failed(&e))?.map_err(|e| failed(&e))?;
        Ok(Socket::Kept { path: dir.join(format!("{name}.{SUFFIX}")), lock })
    }

    pub(super) fn dir(&self) -> &Path {
        match self {
            Socket::Own(dir) => dir.path(),
            Socket::Kept { path, .. } => path.parent().unwrap_or(path),
        }
    }

    pub(super) fn path(&self) -> PathBuf {
        match self {
            // This is the name that the crate `openssh` looks for.
            Socket::Own(dir) => dir.path().join("master"),
            Socket::Kept { path, .. } => path.clone(),
        }
    }

    /// What ssh says while it logs in.
    pub(super) fn log(&self) -> PathBuf {
        self.path().with_extension("log")
    }

    /// True if a master answers there. A socket that an earlier one has left is removed.
    pub(super) async fn has_master(&self) -> bool {
        let Socket::Kept { path, .. } = self else { return false };
        if !path.exists() {
            return false;
        }
        let master = Session::resume_mux(path.clone().into(), None);
        let lives = matches!(tokio::time::timeout(ALIVE, master.check()).await, Ok(Ok(())));
        if !lives {
            tracing::debug!(socket = %path.display(), "a stale control socket is removed");
            let _ = std::fs::remove_file(path);
        }
        lives
    }

    pub(super) fn into_session(self) -> Session {
        match self {
            Socket::Own(dir) => Session::new_native_mux(dir),
            Socket::Kept { path, lock } => {
                drop(lock);
                Session::resume_mux(path.into(), None)
            }
        }
    }
}

/// Ends the masters that were left for later processes; returns how many. What still runs over one is not cut: it ends when that has ended.
pub(crate) async fn close_kept(options: &SshOptions) -> usize {
    let Ok(dir) = dir(options) else { return 0 };
    let Ok(entries) = std::fs::read_dir(dir) else { return 0 };
    let mut closed = 0;
    for path in entries.flatten().map(|entry| entry.path()) {
        if path.extension().is_some_and(|extension| extension == SUFFIX) {
            let master = Session::resume_mux(path.clone().into(), None);
            if matches!(tokio::time::timeout(ALIVE, master.close()).await, Ok(Ok(()))) {
                closed += 1;
            }
            let _ = std::fs::remove_file(path);
        }
    }
    closed
}

pub(super) fn inode(path: &Path) -> io::Result<u64> {
    Ok(std::fs::symlink_metadata(path)?.ino())
}

/// Removes a socket, unless another one has taken its place.
pub(super) fn remove(path: &Path, of: u64) {
    if inode(path).is_ok_and(|inode| inode == of) {
        let _ = std::fs::remove_file(path);
    }
}

/// The name of a connection: the same one for all processes that would open the same.
fn name(address: &Address, options: &SshOptions) -> String {
    let digest = Sha256::digest(format!("{address:?} {:?}", options.password_env));
    digest[..8].iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The directory, made if it is not there. It has to be ours, and nobody else's.
fn dir(options: &SshOptions) -> Result<PathBuf, Failure> {
    let uid = rustix::process::getuid().as_raw();
    let runtime = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let candidates = match &options.control_dir {
        Some(dir) => vec![dir.clone()],
        None => runtime
            .filter(|dir| dir.is_absolute())
            .map(|dir| dir.join("farcell-ssh"))
            .into_iter()
            .chain([PathBuf::from(format!("/tmp/farcell-ssh-{uid}"))])
            .collect(),
    };
    let mut why = String::new();
    for dir in candidates {
        match usable(&dir, uid) {
            Ok(()) => return Ok(dir),
            Err(e) => why = format!("{}: {e}", dir.display()),
        }
    }
    Err(Failure::local(format!("no directory for control sockets: {why}"))
        .hint("control_dir in the config names another one"))
}

fn usable(dir: &Path, uid: u32) -> Result<(), String> {
    if dir.as_os_str().len() > SHORT {
        return Err(format!("it is longer than {SHORT} bytes, and a socket's path must be short"));
    }
    match DirBuilder::new().mode(0o700).create(dir) {
        Ok(()) => {}
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        Err(e) => return Err(e.to_string()),
    }
    let found = std::fs::symlink_metadata(dir).map_err(|e| e.to_string())?;
    if !found.is_dir() {
        return Err("it is not a directory".to_owned());
    }
    if found.uid() != uid || found.mode() & 0o077 != 0 {
        return Err("it belongs to somebody else, or others have access to it".to_owned());
    }
    Ok(())
}
