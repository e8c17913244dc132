//! Records of kernels on this machine, one file a key, so that another process finds them again. Safe for many processes at once.

use std::fs::{self, DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

use super::key::Key;
use crate::error::{Error, ErrorKind, Result, Step};
use crate::id::{self, CellNumber, KernelId};
use crate::wire::message::KernelRecord;

const VERSION: u32 = 1;

/// What is remembered of a key.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Stored {
    pub(super) v: u32,
    /// The key.
    pub key: Key,
    /// Its kernel, as far as is known.
    pub kernel: Option<KernelRecord>,
    /// Replies that were delivered and not yet acknowledged.
    #[serde(default)]
    pub delivered: Vec<CellNumber>,
    /// The last use, in seconds since 1970.
    pub last_used: f64,
    /// A loss that the session has not been told of.
    #[serde(default)]
    pub loss: Option<Loss>,
    /// Something is being made for a kernel, or was and no kernel came of it: [`Registry::housing`](crate::Registry::housing) tells.
    #[serde(default)]
    pub housed: bool,
}

/// A kernel that was lost with its variables.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Loss {
    /// Which kernel.
    pub kernel: Option<KernelId>,
    /// Why, as a fragment that fits behind "because ".
    pub why: String,
    /// The user knows.
    #[serde(default)]
    pub told: bool,
}

impl Stored {
    /// A record of `key`, used just now.
    pub fn new(key: Key, kernel: Option<KernelRecord>) -> Self {
        let last_used = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
        Stored { v: VERSION, key, kernel, delivered: Vec::new(), last_used, loss: None, housed: false }
    }

    /// Which kernel it has.
    pub(super) fn kernel_id(&self) -> Option<&KernelId> {
        self.kernel.as_ref().map(|kernel| &kernel.id)
    }

    /// The last use as a moment.
    pub fn last_used(&self) -> SystemTime {
        let seconds = Duration::try_from_secs_f64(self.last_used).unwrap_or_default();
        UNIX_EPOCH.checked_add(seconds).unwrap_or(UNIX_EPOCH)
    }
}

/// A directory of records.
#[derive(Debug, Clone)]
pub struct Store {
    dir: PathBuf,
}

impl Store {
    /// Opens the store under a state directory, creating it with mode 0700.
    pub fn open(state: &Path) -> Result<Self> {
        let dir = state.join("kernels");
        DirBuilder::new().recursive(true).mode(0o700).create(&dir).map_err(|e| failed("create", &dir, e))?;
        let mode = fs::metadata(&dir).map_err(|e| failed("read", &dir, e))?.permissions().mode();
        if mode & 0o022 != 0 {
            return Err(Error::new(ErrorKind::Local, format!("{} is writable by others", dir.display()))
                .at(Step::Records)
                .with_hint(format!("chmod 700 {}", dir.display())));
        }
        Ok(Store { dir })
    }

    /// The record of a key.
    pub fn load(&self, key: &Key) -> Option<Stored> {
        read(&self.path(key))
    }

    /// All records. One that cannot be read is passed over with a warning.
    pub fn load_all(&self) -> Vec<Stored> {
        let Ok(entries) = fs::read_dir(&self.dir) else { return Vec::new() };
        let paths = entries.flatten().map(|e| e.path());
        paths.filter(|p| p.extension().is_some_and(|x| x == "json")).filter_map(|p| read(&p)).collect()
    }

    /// Changes the record of a key: `change` gets the one that is there, and what it gives is written, or the record removed.
    /// One process at a time, so that nobody's change is lost.
    pub fn update(&self, key: &Key, change: impl FnOnce(Option<Stored>) -> Option<Stored>) -> Result<()> {
        let lock_path = self.dir.join("lock");
        let lock = OpenOptions::new().create(true).truncate(false).write(true).mode(0o600).open(&lock_path);
        // Held for the time of two small files, by processes that do nothing else meanwhile; released with the file.
        let lock =
            lock.and_then(|file| file.lock().map(|()| file)).map_err(|e| failed("lock", &lock_path, e))?;
        let done = match change(self.load(key)) {
            Some(stored) => self.write(&stored),
            None => self.remove(key),
        };
        drop(lock);
        done
    }

    /// Writes a record; readers see the old one or the new one, never a half.
    fn write(&self, stored: &Stored) -> Result<()> {
        let path = self.path(&stored.key);
        let text = serde_json::to_vec_pretty(stored)
            .map_err(|e| Error::new(ErrorKind::Local, "a record cannot be encoded").with_source(e))?;
        let suffix = id::CellId::random()?;
        let tmp = path.with_extension(format!("tmp-{suffix}"));
        let written = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&tmp)
            .and_then(|mut file| file.write_all(&text))
            .and_then(|()| fs::rename(&tmp, &path));
        written.map_err(|e| {
            // The half-written file is of no use; that it cannot be removed either changes nothing.
            let _ = fs::remove_file(&tmp);
            failed("write", &path, e)
        })
    }

    fn remove(&self, key: &Key) -> Result<()> {
        match fs::remove_file(self.path(key)) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(failed("remove", &self.path(key), e)),
            _ => Ok(()),
        }
    }

    fn path(&self, key: &Key) -> PathBuf {
        self.dir.join(key.digest()).with_extension("json")
    }
}

fn read(path: &Path) -> Option<Stored> {
    let text = match fs::read(path) {
        Ok(text) => text,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return None,
        Err(e) => {
            tracing::warn!(path = %path.display(), error = %e, "a record cannot be read");
            return None;
        }
    };
    match serde_json::from_slice::<Stored>(&text) {
        Ok(stored) if stored.v == VERSION => Some(stored),
        Ok(stored) => {
            tracing::warn!(path = %path.display(), version = stored.v, "a record of another version is left alone");
            None
        }
        Err(e) => {
            tracing::warn!(path = %path.display(), error = %e, "a record makes no sense and is left alone");
            None
        }
    }
}

fn failed(verb: &str, path: &Path, e: io::Error) -> Error {
    Error::new(ErrorKind::Local, format!("cannot {verb} {}: {e}", path.display()))
        .at(Step::Records)
        .with_hint("set FARCELL_STATE_DIR to a directory that can be written")
        .with_source(e)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(session: &str) -> Key {
        Key {
            owner: "o".into(),
            session: session.into(),
            target: "local:".parse().unwrap(),
            profile: "default".into(),
        }
    }

    #[test]
    fn a_record_comes_back_and_a_broken_one_harms_nobody() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path()).unwrap();
        let mut stored = Stored::new(key("a"), None);
        stored.loss = Some(Loss { kernel: None, why: "it was idle".into(), told: false });
        store.update(&key("a"), |_| Some(stored.clone())).unwrap();
        fs::write(state.path().join("kernels/broken.json"), b"{").unwrap();
        assert_eq!(store.load(&key("a")), Some(stored.clone()));
        assert_eq!(store.load_all(), vec![stored]);
        store.update(&key("a"), |_| None).unwrap();
        store.update(&key("a"), |_| None).unwrap();
        assert!(store.load_all().is_empty());
    }

    #[test]
    fn no_change_is_lost_between_threads() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(state.path()).unwrap();
        std::thread::scope(|scope| {
            for n in 0..8 {
                let store = &store;
                scope.spawn(move || {
                    let add = |old: Option<Stored>| {
                        let mut stored = old.unwrap_or_else(|| Stored::new(key("a"), None));
                        stored.delivered.push(CellNumber(n));
                        Some(stored)
                    };
                    store.update(&key("a"), add).unwrap();
                });
            }
        });
        assert_eq!(store.load(&key("a")).unwrap().delivered.len(), 8);
    }

    #[test]
    fn records_are_private() {
        let state = tempfile::tempdir().unwrap();
        let store = Store::open(&state.path().join("new")).unwrap();
        store.update(&key("a"), |_| Some(Stored::new(key("a"), None))).unwrap();
        let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&store.dir), mode(&store.path(&key("a")))), (0o700, 0o600));
        fs::set_permissions(&store.dir, fs::Permissions::from_mode(0o777)).unwrap();
        assert_eq!(Store::open(&state.path().join("new")).unwrap_err().kind(), ErrorKind::Local);
    }
}
