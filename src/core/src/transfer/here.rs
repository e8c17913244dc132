//! This machine's side of a transfer: the only place that opens, reads and writes its files. Unix, as the links and permissions here are.

use std::fs::{self, OpenOptions, Permissions};
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use bytes::Bytes;
use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};

pub(super) use std::fs::File;

use crate::error::{Error, ErrorKind, Result, Step};
use crate::id::hex;
use crate::wire::file::BLOCK;

/// The permissions that travel.
const PERMISSIONS: u32 = 0o777;
/// What the names of files that are not whole begin and end with.
const MARK: &str = ".farcell-";
const TAIL: &str = ".part";
/// After how long one of these is removed.
const STALE: Duration = Duration::from_secs(24 * 3600);

/// Does what may wait for a disk.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.unwrap_or_else(|e| Err(task_failed(&e)))
}

/// A task of ours that has failed by itself, or with the runtime.
pub(super) fn task_failed(e: &tokio::task::JoinError) -> Error {
    Error::new(ErrorKind::Local, format!("a task of the transfer failed: {e}")).at(Step::Transfer)
}

/// What went wrong with a file here.
fn trouble(doing: &str, path: &Path, e: io::Error) -> Error {
    let (kind, hint) = match e.kind() {
        io::ErrorKind::NotFound => (ErrorKind::NoFile, None),
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => (ErrorKind::Denied, None),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
            (ErrorKind::Local, Some("free some space on this machine, or choose another place"))
        }
        _ => (ErrorKind::Local, None),
    };
    // Without the number behind the words.
    let words = e.to_string();
    let words = words.split(" (os error").next().unwrap_or_default().to_lowercase();
    let error = Error::new(kind, format!("cannot {doing} {path:?} here: {words}")).at(Step::Transfer);
    let error = error.with_source(e);
    match hint {
        Some(hint) => error.with_hint(hint),
        None => error,
    }
}

fn refuse(kind: ErrorKind, message: String, hint: &str) -> Error {
    Error::new(kind, message).at(Step::Transfer).with_hint(hint)
}

/// A file's own name.
pub(super) fn name_of(path: &Path) -> Result<String> {
    let name = path.file_name().and_then(|name| name.to_str());
    name.map(str::to_owned).ok_or_else(|| {
        refuse(
            ErrorKind::BadInput,
            format!("{path:?} has no name that could be used on a target"),
            "names there are UTF-8: give it another one",
        )
    })
}

/// A file that is sent.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) file: Arc<File>,
    pub(super) size: u64,
    pub(super) mode: u32,
    changed: Option<SystemTime>,
}

impl Source {
    /// Opens a plain file. Nothing else is opened: a FIFO would wait, a device may do something.
    pub(super) async fn open(path: &Path) -> Result<Self> {
        let path = path.to_owned();
        blocking(move || {
            let read = |e| trouble("read", &path, e);
            let about = fs::metadata(&path).map_err(read)?;
            if about.is_dir() {
                return Err(refuse(
                    ErrorKind::BadInput,
                    format!("{path:?} is a directory"),
                    "put its files one by one, or pack it first: tar czf",
                ));
            }
            if !about.is_file() {
                let message = format!("{path:?} is no plain file");
                return Err(refuse(ErrorKind::BadInput, message, "copy what it gives to a plain file first"));
            }
            let file = OpenOptions::new()
                .read(true)
                .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
                .open(&path)
                .map_err(read)?;
            let about = file.metadata().map_err(read)?;
            let (size, mode) = (about.len(), about.mode() & PERMISSIONS);
            Ok(Source { file: Arc::new(file), size, mode, changed: about.modified().ok() })
        })
        .await
    }

    /// Whether somebody has written to it since, or put another file in its place.
    pub(super) async fn has_changed(&self, path: &Path) -> bool {
        let (path, file) = (path.to_owned(), Arc::clone(&self.file));
        let (size, changed) = (self.size, self.changed);
        let same = blocking(move || {
            let (now, then) = (fs::metadata(&path).ok(), file.metadata().ok());
            let is_as_it_was = then.as_ref().is_some_and(|a| a.len() == size && a.modified().ok() == changed);
            Ok(is_as_it_was && now.zip(then).is_some_and(|(a, b)| a.ino() == b.ino() && a.dev() == b.dev()))
        });
        !same.await.unwrap_or(false)
    }
}

fn lost(e: io::Error) -> Error {
    if e.kind() == io::ErrorKind::UnexpectedEof {
        return refuse(
            ErrorKind::FileChanged,
            "the file was cut short while it was sent".to_owned(),
            "put it again, or a copy of it that stays as it is",
        );
    }
    Error::new(ErrorKind::Local, format!("cannot read the file here: {e}")).at(Step::Transfer).with_source(e)
}

/// A piece of a file.
pub(super) async fn read(file: &Arc<File>, offset: u64, length: u64) -> Result<Bytes> {
    let file = Arc::clone(file);
    blocking(move || {
        let mut data = vec![0; usize::try_from(length).unwrap_or(usize::MAX)];
        file.read_exact_at(&mut data, offset).map_err(lost)?;
        Ok(data.into())
    })
    .await
}

/// Writes a piece of a file.
pub(super) async fn write(file: &Arc<File>, offset: u64, data: Vec<u8>) -> Result<()> {
    let file = Arc::clone(file);
    blocking(move || file.write_all_at(&data, offset).map_err(|e| trouble("write", Path::new("the file"), e)))
        .await
}

/// Gives a file its length.
pub(super) async fn set_length(file: &Arc<File>, length: u64) -> Result<()> {
    let file = Arc::clone(file);
    blocking(move || file.set_len(length).map_err(|e| trouble("write", Path::new("the file"), e))).await
}

/// How long a file is.
pub(super) async fn length(file: &Arc<File>) -> Result<u64> {
    let file = Arc::clone(file);
    blocking(move || Ok(file.metadata().map_err(lost)?.len())).await
}

/// The SHA-256 of the first `size` bytes.
pub(super) async fn digest(file: &Arc<File>, size: u64) -> Result<String> {
    let file = Arc::clone(file);
    blocking(move || hash(&file, 0, size).map_err(lost)).await
}

/// The SHA-256 of each of some blocks.
pub(super) async fn block_hashes(file: &Arc<File>, offset: u64, count: u64) -> Result<Vec<String>> {
    let file = Arc::clone(file);
    blocking(move || {
        (0..count).map(|at| hash(&file, offset + at * BLOCK, BLOCK)).collect::<io::Result<_>>().map_err(lost)
    })
    .await
}

fn hash(file: &File, mut offset: u64, size: u64) -> io::Result<String> {
    let (mut total, mut data, end) = (Sha256::new(), vec![0; 256 * 1024], offset + size);
    while offset < end {
        let most = data.len().min(usize::try_from(end - offset).unwrap_or(usize::MAX));
        let read = file.read_at(&mut data[..most], offset)?;
        if read == 0 {
            break;
        }
        total.update(&data[..read]);
        offset += read as u64;
    }
    Ok(hex(&total.finalize()))
}

/// Where a file called `name` is to be that shall go to `path`, as `cp` would have it.
pub(super) async fn destination(path: &Path, name: &str, parents: bool, into: bool) -> Result<PathBuf> {
    let (path, name) = (path.to_owned(), name.to_owned());
    blocking(move || {
        let at = if path.is_dir() {
            path.join(&name)
        } else if into || path.as_os_str().as_bytes().ends_with(b"/") {
            need_directory(&path, parents)?;
            path.join(&name)
        } else {
            let parent = path.parent().filter(|parent| !parent.as_os_str().is_empty());
            need_directory(parent.unwrap_or(Path::new(".")), parents)?;
            path
        };
        match fs::metadata(&at) {
            Ok(about) if about.is_dir() => Err(refuse(
                ErrorKind::BadInput,
                format!("{at:?} is a directory"),
                "a file does not replace a directory: remove it, or choose another place",
            )),
            Ok(about) if !about.is_file() => {
                let message = format!("{at:?} is no plain file, and is not replaced");
                Err(refuse(ErrorKind::BadInput, message, "choose another place"))
            }
            _ => Ok(at),
        }
    })
    .await
}

fn need_directory(path: &Path, parents: bool) -> Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    if path.exists() {
        let message = format!("{path:?} is not a directory");
        return Err(refuse(ErrorKind::BadInput, message, "choose another place"));
    }
    if !parents {
        let message = format!("there is no directory {path:?} here");
        return Err(refuse(ErrorKind::NoFile, message, "make it first, or have it made: --parents"));
    }
    fs::create_dir_all(path).map_err(|e| trouble("make the directory", path, e))
}

/// A file on its way: a part beside its destination until it is whole.
#[derive(Debug)]
pub(super) struct Landing {
    pub(super) file: Arc<File>,
    part: PathBuf,
    destination: PathBuf,
}

impl Landing {
    /// Opens the part. It is the same one for the same `content` and destination, so that a later transfer finds it.
    pub(super) async fn open(destination: &Path, content: &str) -> Result<Self> {
        let name = destination.file_name().map(|name| name.to_string_lossy()).unwrap_or_default();
        let digest = crate::id::digest(&[&name, content], 8);
        let destination = destination.to_owned();
        blocking(move || {
            let directory = destination.parent().filter(|parent| !parent.as_os_str().is_empty());
            let directory = directory.unwrap_or(Path::new("."));
            sweep(directory);
            let part = directory.join(format!("{MARK}{digest}{TAIL}"));
            let file = open_part(&part).map_err(|e| trouble("write in", directory, e))?;
            Ok(Landing { file: Arc::new(file), part, destination })
        })
        .await
    }

    /// Gives up what has arrived.
    pub(super) fn remove(&self) {
        // It may be gone already.
        let _ = fs::remove_file(&self.part);
    }

    /// Puts the file in its place.
    pub(super) async fn settle(self, mode: u32, size: u64, sha256: &str) -> Result<()> {
        let sha256 = sha256.to_owned();
        blocking(move || {
            let Landing { file, part, destination } = &self;
            let placed = file
                .set_permissions(Permissions::from_mode(mode & PERMISSIONS))
                .and_then(|()| fs::rename(part, destination));
            match placed {
                // Another transfer of the same file to the same place was quicker.
                Err(e) if e.kind() == io::ErrorKind::NotFound && is_there(destination, size, &sha256) => {
                    Ok(())
                }
                placed => placed.map_err(|e| trouble("write", destination, e)),
            }
        })
        .await
    }
}

fn is_there(path: &Path, size: u64, sha256: &str) -> bool {
    let Ok(file) = File::open(path) else { return false };
    let length = file.metadata().map_or(0, |about| about.len());
    length == size && hash(&file, 0, size).is_ok_and(|hash| hash == sha256)
}

/// A part of ours. One that is there and may have been planted is removed.
fn open_part(part: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).mode(0o600);
    for _ in 0..3 {
        match options.clone().create_new(true).open(part) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            opened => return opened,
        }
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        if let Ok(file) = options.clone().custom_flags(flags.bits().cast_signed()).open(part) {
            let about = file.metadata()?;
            let is_ours = about.uid() == rustix::process::geteuid().as_raw();
            if about.is_file() && is_ours && about.nlink() == 1 {
                return Ok(file);
            }
        }
        match fs::remove_file(part) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Err(io::Error::other("somebody makes the file for what arrives again and again"))
}

/// Removes what transfers left that nobody has gone on with.
fn sweep(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with(MARK) || !name.ends_with(TAIL) {
            continue;
        }
        let Ok(about) = entry.metadata() else { continue };
        let age = about.modified().ok().and_then(|at| at.elapsed().ok()).unwrap_or_default();
        if about.is_file() && age > STALE {
            // It is only tidying up.
            let _ = fs::remove_file(entry.path());
        }
    }
}
