//! Accounts of this machine with login shells and startup files that ssh drivers stumble over.

use std::fs::{self, File, Permissions, TryLockError};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::processes::{PATIENCE, becomes_so, is_alive, kill, of_user};
use crate::trouble::{Trouble, run};

/// What the names of all accounts made here begin with.
pub const ACCOUNT_PREFIX: &str = "farcell-t-";

/// A `.bashrc` that prints on both streams, as many do who think of terminals only.
pub const NOISY_BASHRC: &str = "echo 'welcome to this box'\necho 'bashrc: something is deprecated' >&2\n";

/// The same, and it takes its time.
pub const SLOW_BASHRC: &str =
    "echo 'welcome to this box'\necho 'bashrc: something is deprecated' >&2\nsleep 0.3\n";

/// Places that anyone may write to, where a user who is gone may have left something.
const SHARED: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// An account. When it is dropped, it is removed with all its processes and files.
#[derive(Debug)]
pub struct Account {
    name: String,
    uid: u32,
    home: PathBuf,
}

/// Makes an account with this login shell and this `.bashrc`, of its own for each call; needs root. What an ended process has left behind of
/// such accounts is removed before. `name` is there for people who read the log, in at most 8 letters.
pub fn account(name: &str, shell: &str, bashrc: &str) -> Result<Account, Trouble> {
    static COUNT: AtomicU32 = AtomicU32::new(0);
    if !rustix::process::getuid().is_root() {
        return Err(Trouble::no_root("make an account"));
    }
    if !Path::new(shell).exists() {
        return Err(Trouble::no_program(shell));
    }
    assert!(name.len() <= 8, "{name:?} is too long: the names of accounts end at 32 letters");
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let name = format!("{ACCOUNT_PREFIX}{name}-{}-{count}", std::process::id());
    let home = Path::new("/home").join(&name);
    {
        let _lock = lock()?;
        sweep()?;
        // A password that no text gives: one that begins with `!` is a locked account for sshd.
        run(
            Command::new("useradd")
                .args(["--create-home", "--no-log-init", "--password", "*", "--shell", shell, "--home-dir"])
                .arg(&home)
                .arg(&name),
            b"",
        )?;
    }
    let uid = fs::metadata(&home).map_err(|e| Trouble::failed("look at a new home", e))?.uid();
    // From here on it is removed, whatever happens.
    let account = Account { name, uid, home };
    fs::set_permissions(&account.home, Permissions::from_mode(0o700))
        .map_err(|e| Trouble::failed("close a new home", e))?;
    account.write(".bashrc", bashrc)?;
    Ok(account)
}

impl Account {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The number.
    pub fn uid(&self) -> u32 {
        self.uid
    }

    /// The home directory.
    pub fn home(&self) -> &Path {
        &self.home
    }

    /// Writes a file of the account's, named from its home.
    pub fn write(&self, name: &str, text: &str) -> Result<(), Trouble> {
        let own = |path: &Path| chown(path, Some(self.uid), Some(self.uid));
        let write = || {
            let mut dir = self.home.clone();
            for part in Path::new(name).parent().into_iter().flat_map(Path::components) {
                dir.push(part);
                fs::create_dir_all(&dir)?;
                own(&dir)?;
            }
            let path = self.home.join(name);
            fs::write(&path, text)?;
            own(&path)
        };
        write().map_err(|e| Trouble::failed(format!("write {name} of {}", self.name), e))
    }

    /// Gives it a password.
    pub fn set_password(&self, password: &str) -> Result<(), Trouble> {
        let _lock = lock()?;
        let line = format!("{}:{password}\n", self.name);
        // With a method it is done without PAM, which small machines have not set up.
        run(Command::new("chpasswd").args(["--crypt-method", "SHA512"]), line.as_bytes())
    }
}

impl Drop for Account {
    fn drop(&mut self) {
        let removed = lock().and_then(|_lock| remove(&self.name, self.uid));
        assert!(removed.is_ok() || std::thread::panicking(), "{}", removed.unwrap_err());
    }
}

/// Keeps other tests from making and removing accounts: the programs for it fail if they meet. It leaves no file behind.
fn lock() -> Result<File, Trouble> {
    let failed = |reason: String| Trouble::failed("lock the accounts", reason);
    let dir = File::open("/etc").map_err(|e| failed(e.to_string()))?;
    let mut outcome = Ok(());
    becomes_so(PATIENCE, || {
        outcome = dir.try_lock();
        !matches!(outcome, Err(TryLockError::WouldBlock))
    });
    outcome.map_err(|e| failed(e.to_string()))?;
    Ok(dir)
}

/// Removes accounts whose makers have ended without doing so.
fn sweep() -> Result<(), Trouble> {
    let accounts = fs::read_to_string("/etc/passwd").map_err(|e| Trouble::failed("read /etc/passwd", e))?;
    for line in accounts.lines().filter(|line| line.starts_with(ACCOUNT_PREFIX)) {
        let mut fields = line.split(':');
        let (name, uid) = (fields.next().unwrap_or_default(), fields.nth(1));
        let maker = name.rsplit('-').nth(1).and_then(|pid| pid.parse().ok());
        if let (Some(maker), Some(uid)) = (maker, uid.and_then(|uid| uid.parse().ok()))
            && !is_alive(maker)
        {
            remove(name, uid)?;
        }
    }
    Ok(())
}

/// Removes an account, its processes, and what it has left where anyone may write: the next one may get its number.
fn remove(name: &str, uid: u32) -> Result<(), Trouble> {
    let none_left = becomes_so(PATIENCE, || {
        let left = of_user(uid);
        left.iter().for_each(|pid| _ = kill(*pid));
        left.is_empty()
    });
    if !none_left {
        return Err(Trouble::failed(format!("end the processes of {name}"), format!("{:?}", of_user(uid))));
    }
    for entry in SHARED.iter().flat_map(fs::read_dir).flatten().flatten() {
        if entry.metadata().is_ok_and(|m| m.uid() == uid) {
            let path = entry.path();
            // Entries come and go while this looks; what is really left is seen by whoever looks for it.
            let _ = if entry.file_type().is_ok_and(|t| t.is_dir()) {
                fs::remove_dir_all(path)
            } else {
                fs::remove_file(path)
            };
        }
    }
    run(Command::new("userdel").args(["--remove", name]), b"")
}
