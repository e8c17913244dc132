//! A user of this machine who can write nothing but one file, or who may have no more than some processes.

use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::{fs, io};

use crate::trouble::Trouble;

const NO_PLACES: &str = "for d in /dev/shm /tmp /var/tmp; do mount -t tmpfs -o ro none $d || exit 77; done\n";
const PLACES: &str = "for d in /dev/shm /tmp /var/tmp; do mount --bind /mnt/places $d || exit 77; done\n";

/// Such a user. What may be written is the file `/mnt/count`, as commands of the target see it.
#[derive(Debug)]
pub struct Bare {
    dir: tempfile::TempDir,
    /// How a command becomes his.
    entry: String,
}

impl Bare {
    /// One for whom every usual place of a kernel is read-only. The number of the user has to be nobody else's.
    ///
    /// # Errors
    /// What the machine lacks.
    pub fn without_places(user: u32) -> Result<Bare, Trouble> {
        let bare = Bare::new(user, "")?;
        bare.close_places();
        bare.check()
    }

    /// One who may have so many processes at once. Places there are, and they are private.
    ///
    /// # Errors
    /// What the machine lacks.
    pub fn with_processes(user: u32, processes: u32) -> Result<Bare, Trouble> {
        let limit = format!("resource.setrlimit(resource.RLIMIT_NPROC, ({processes}, {processes})); ");
        let bare = Bare::new(user, &limit)?;
        bare.open_places();
        bare.check()
    }

    fn new(user: u32, limit: &str) -> Result<Bare, Trouble> {
        let made = || -> io::Result<tempfile::TempDir> {
            let dir = tempfile::Builder::new().prefix("farcell-test-").tempdir()?;
            fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755))?;
            fs::create_dir(dir.path().join("places"))?;
            fs::set_permissions(dir.path().join("places"), fs::Permissions::from_mode(0o1777))?;
            fs::write(dir.path().join("count"), "")?;
            fs::set_permissions(dir.path().join("count"), fs::Permissions::from_mode(0o666))?;
            Ok(dir)
        };
        let entry = format!(
            "exec /usr/bin/python3 -c 'import os, resource, sys; os.setgroups([]); os.setgid({user}); {limit}os.setuid({user}); \
             [os.environ.pop(name, None) for name in (\"HOME\", \"TMPDIR\")]; os.chdir(\"/\"); os.execvp(sys.argv[1], sys.argv[1:])' \"$@\"\n"
        );
        Ok(Bare { dir: made().map_err(|e| Trouble::failed("make a private directory", e))?, entry })
    }

    fn check(self) -> Result<Bare, Trouble> {
        let mut command = Command::new("unshare");
        command.args(["-m", "/bin/sh"]).arg(self.script()).arg("true").stderr(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => Ok(self),
            _ => Err(Trouble::no_root("mount in a namespace of its own")),
        }
    }

    fn script(&self) -> PathBuf {
        self.dir.path().join("bare")
    }

    fn write(&self, mounts: &str) {
        let dir = self.dir.path().display();
        let script = format!("mount --bind {dir} /mnt || exit 77\n{mounts}{}", self.entry);
        fs::write(self.script(), script).expect("the directory is ours");
    }

    /// From the next command on the places are there.
    pub fn open_places(&self) {
        self.write(PLACES);
    }

    /// From the next command on they are read-only.
    pub fn close_places(&self) {
        self.write(NO_PLACES);
    }

    /// The target.
    pub fn target(&self) -> String {
        format!("exec:unshare -m /bin/sh {}", self.script().display())
    }

    /// The file that may be written, as this process sees it.
    pub fn count(&self) -> PathBuf {
        self.dir.path().join("count")
    }

    /// How many lines are in it.
    pub fn lines(&self) -> usize {
        fs::read_to_string(self.count()).expect("it is there").lines().count()
    }
}
