//! Files that are put on the target and got from it.

use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use farcell_core::{ErrorKind, Result, Session, SessionOptions, TransferOptions, Transferred};
use futures_util::future::join_all;

use crate::Case;
use crate::subject::{Recorder, Subject, ok, text};

pub(crate) fn cases() -> Vec<Case> {
    vec![
        Case { name: "files_of_all_sizes_arrive_as_they_were", check: |s| Box::pin(sizes(s)) },
        Case { name: "a_large_file_goes_both_ways", check: |s| Box::pin(large(s)) },
        Case { name: "the_name_of_a_file_is_data", check: |s| Box::pin(names(s)) },
        Case { name: "a_file_goes_where_cp_would_put_it", check: |s| Box::pin(places(s)) },
        Case {
            name: "the_relative_path_of_a_file_begins_where_it_is_said_to",
            check: |s| Box::pin(relative(s)),
        },
        Case { name: "a_file_that_cannot_be_moved_is_told_and_left_alone", check: |s| Box::pin(refused(s)) },
        Case {
            name: "a_link_to_a_file_is_followed_at_the_source_and_replaced_at_the_end",
            check: |s| Box::pin(links(s)),
        },
        Case { name: "a_reader_never_sees_half_a_file", check: |s| Box::pin(halves(s)) },
        Case { name: "many_files_at_once_and_the_same_one_twice", check: |s| Box::pin(many(s)) },
    ]
}

/// A directory here and one there, and a session to look at that.
struct Places {
    here: tempfile::TempDir,
    there: String,
    session: Session,
}

impl Places {
    async fn new(s: &Subject) -> Self {
        let session = s.session("files");
        let code = "import tempfile, hashlib, os, stat, shutil\n\
                    def sha(path):\n    return hashlib.sha256(open(path, 'rb').read()).hexdigest()\n\
                    there = tempfile.mkdtemp()\nthere";
        let there = text(&ok(&session, code).await).trim_matches('\'').to_owned();
        Places { here: tempfile::tempdir().unwrap(), there, session }
    }

    fn here(&self, name: &str) -> PathBuf {
        self.here.path().join(name)
    }

    fn there(&self, name: &str) -> String {
        format!("{}/{name}", self.there)
    }

    /// A file here with content that no two blocks of have in common.
    fn make(&self, name: &str, size: usize) -> PathBuf {
        let path = self.here(name);
        std::fs::write(&path, content(size)).unwrap();
        path
    }

    /// What Python makes of an expression there.
    async fn ask(&self, code: &str) -> String {
        text(&ok(&self.session, code).await).to_owned()
    }

    /// Nothing of a transfer is left on either side; the directory there is removed.
    async fn end(self) {
        let left: Vec<_> = walk(self.here.path()).into_iter().filter(|p| is_part(p)).collect();
        assert!(left.is_empty(), "left here: {left:?}");
        let code = "left = [n for _, _, names in os.walk(there) for n in names if n.endswith('.part')]\nshutil.rmtree(there); left";
        assert_eq!(self.ask(code).await, "[]", "left there");
    }
}

fn is_part(path: &Path) -> bool {
    path.to_string_lossy().ends_with(".part")
}

fn walk(directory: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(directory).unwrap().flatten().map(|entry| entry.path());
    entries
        .flat_map(|path| if path.is_dir() && !path.is_symlink() { walk(&path) } else { vec![path] })
        .collect()
}

fn content(size: usize) -> Vec<u8> {
    (0..size.div_ceil(8) as u64)
        .flat_map(|n| n.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes())
        .take(size)
        .collect()
}

async fn put(s: &Subject, from: &Path, to: &str, options: &TransferOptions) -> Result<Transferred> {
    s.registry.put(&s.target, from, to, options, &mut |_| ()).await
}

async fn get(s: &Subject, from: &str, to: &Path, options: &TransferOptions) -> Result<Transferred> {
    s.registry.get(&s.target, from, to, options, &mut |_| ()).await
}

fn plain() -> TransferOptions {
    TransferOptions::default()
}

/// There and back again.
async fn round(s: &Subject, places: &Places, size: usize, mode: u32) {
    let from = places.make("from", size);
    std::fs::set_permissions(&from, std::fs::Permissions::from_mode(mode)).unwrap();
    let (to, mut told) = (places.there("to"), Vec::new());
    let sent =
        s.registry.put(&s.target, &from, &to, &plain(), &mut |p| told.push((p.done, p.total))).await.unwrap();
    let size = size as u64;
    assert_eq!((sent.path.as_str(), sent.bytes, sent.resumed_from), (to.as_str(), size, 0));
    assert!(told.is_sorted() && told.last() == Some(&(size, size)), "{told:?}");
    let seen = places.ask(&format!("sha({to:?}), stat.S_IMODE(os.stat({to:?}).st_mode)")).await;
    assert_eq!(seen, format!("('{}', {mode})", sent.sha256));
    let back = places.here("back");
    let got = get(s, &to, &back, &plain()).await.unwrap();
    assert_eq!((got.bytes, &got.sha256), (size, &sent.sha256));
    assert!(std::fs::read(&back).unwrap() == std::fs::read(&from).unwrap());
    assert_eq!(std::fs::metadata(&back).unwrap().permissions().mode() & 0o777, mode);
}

async fn sizes(s: &Subject) {
    let places = Places::new(s).await;
    let block = 1 << 20;
    for (size, mode) in [0, 1, 65535, 65536, 65537, block, block + 1, 3 * block + 7]
        .into_iter()
        .zip([0o600, 0o644, 0o755, 0o640, 0o400, 0o777, 0o664, 0o711])
    {
        round(s, &places, size, mode).await;
    }
    places.end().await;
}

async fn large(s: &Subject) {
    let places = Places::new(s).await;
    round(s, &places, 20_000_000, 0o644).await;
    places.end().await;
}

async fn names(s: &Subject) {
    let places = Places::new(s).await;
    for name in [
        "a b",
        "it's",
        "\"x\"",
        "$(touch x)",
        "a\nb",
        "-rf",
        "ü€𝄞",
        "\\",
        "*",
        ".hidden",
        "~",
        "%41",
        &"n".repeat(255),
    ] {
        let from = places.make(name, 100);
        put(s, &from, &places.there, &plain()).await.unwrap();
        let to = places.there(name);
        get(s, &to, &places.here("back/"), &TransferOptions { parents: true, ..plain() }).await.unwrap();
        assert_eq!(std::fs::read(places.here("back").join(name)).unwrap(), content(100), "{name:?}");
    }
    assert_eq!(places.ask("len(os.listdir(there))").await, "13");
    places.end().await;
}

async fn places(s: &Subject) {
    let places = Places::new(s).await;
    let from = places.make("f", 10);
    let path = |t: Result<Transferred>| t.map(|t| t.path).map_err(|e| e.kind());
    let parents = TransferOptions { parents: true, ..plain() };
    let into = TransferOptions { into: true, ..plain() };
    let there = places.there.as_str();
    // Into a directory, under another name, over a file, and where directories are missing.
    assert_eq!(path(put(s, &from, there, &plain()).await), Ok(places.there("f")));
    assert_eq!(path(put(s, &from, &format!("{there}/"), &into).await), Ok(places.there("f")));
    assert_eq!(path(put(s, &from, &places.there("g"), &plain()).await), Ok(places.there("g")));
    assert_eq!(path(put(s, &from, &places.there("a/b"), &plain()).await), Err(ErrorKind::NoFile));
    assert_eq!(path(put(s, &from, &places.there("a/"), &plain()).await), Err(ErrorKind::NoFile));
    assert_eq!(path(put(s, &from, &places.there("a"), &into).await), Err(ErrorKind::NoFile));
    assert_eq!(path(put(s, &from, &places.there("a/b"), &parents).await), Ok(places.there("a/b")));
    assert_eq!(path(put(s, &from, &places.there("c/d/"), &parents).await), Ok(places.there("c/d/f")));
    assert_eq!(path(put(s, &from, &places.there("g"), &into).await), Err(ErrorKind::BadInput));
    assert_eq!(path(put(s, &from, &places.there("g/x"), &parents).await), Err(ErrorKind::BadInput));
    ok(&places.session, "os.makedirs(there + '/e/f')").await;
    let taken = put(s, &from, &places.there("e"), &plain()).await.unwrap_err();
    assert!(taken.kind() == ErrorKind::BadInput && taken.message().contains("e/f"), "{taken}");
    // The same here.
    let here = |name: &str| places.here(name);
    let g = places.there("g");
    let display = |path: PathBuf| Ok(path.display().to_string());
    assert_eq!(path(get(s, &g, places.here.path(), &plain()).await), display(here("g")));
    assert_eq!(path(get(s, &g, &here("h"), &plain()).await), display(here("h")));
    assert_eq!(path(get(s, &g, &here("a/b"), &plain()).await), Err(ErrorKind::NoFile));
    assert_eq!(path(get(s, &g, &here("a/b"), &parents).await), display(here("a/b")));
    assert_eq!(path(get(s, &g, &here("h"), &into).await), Err(ErrorKind::BadInput));
    std::fs::create_dir_all(here("e/g")).unwrap();
    assert_eq!(path(get(s, &g, &here("e"), &plain()).await), Err(ErrorKind::BadInput));
    places.end().await;
}

async fn relative(s: &Subject) {
    let places = Places::new(s).await;
    let from = places.make("f", 10);
    let cwd = TransferOptions { cwd: Some(places.there.clone()), ..plain() };
    assert_eq!(put(s, &from, "x", &cwd).await.unwrap().path, places.there("x"));
    assert_eq!(get(s, "x", &places.here("y"), &cwd).await.unwrap().bytes, 10);
    // A session knows the directory that its kernels are started in.
    let options = SessionOptions { cwd: Some(places.there.clone()), ..SessionOptions::default() };
    let session = s.registry.session("conformance-files", "cwd", &s.target, options).unwrap();
    assert_eq!(session.put(&from, "z", plain(), &mut |_| ()).await.unwrap().path, places.there("z"));
    assert_eq!(session.get("z", &places.here("z"), plain(), &mut |_| ()).await.unwrap().bytes, 10);
    // Without a word it is where a new kernel begins.
    let name = format!("farcell-test-{}-{:p}", std::process::id(), s);
    let begins = put(s, &from, &name, &plain()).await.unwrap().path;
    let home = put(s, &from, &format!("~/{name}"), &plain()).await.unwrap().path;
    let seen = places.ask("os.getcwd(), os.path.expanduser('~')").await;
    let dir = |path: &str| Path::new(path).parent().unwrap().display().to_string();
    assert_eq!(seen, format!("('{}', '{}')", dir(&begins), dir(&home)));
    ok(&places.session, &format!("[os.path.exists(p) and os.remove(p) for p in ({begins:?}, {home:?})]"))
        .await;
    places.end().await;
}

async fn refused(s: &Subject) {
    let places = Places::new(s).await;
    let (small, big) = (places.make("small", 10), places.make("big", 3 << 20));
    ok(&places.session, "os.mkfifo(there + '/fifo'); os.mkdir(there + '/dir')").await;
    let fifo = places.there("fifo");
    for file in [&small, &big] {
        let e = put(s, file, &fifo, &plain()).await.unwrap_err();
        assert!(e.kind() == ErrorKind::BadInput && e.message().contains("no plain file"), "{e}");
        let e = put(s, file, "/proc/farcell", &plain()).await.unwrap_err();
        assert!(matches!(e.kind(), ErrorKind::NoFile | ErrorKind::Denied), "{e}");
    }
    let missing = places.here("missing");
    let there = |name: &str| places.there(name);
    assert_eq!(put(s, &missing, &there("x"), &plain()).await.unwrap_err().kind(), ErrorKind::NoFile);
    let e = put(s, places.here.path(), &there("x"), &plain()).await.unwrap_err();
    assert!(e.kind() == ErrorKind::BadInput && e.hint().unwrap().contains("tar"), "{e}");
    let e = put(s, Path::new("/dev/null"), &there("x"), &plain()).await.unwrap_err();
    assert_eq!(e.kind(), ErrorKind::BadInput, "{e}");
    for (from, kind) in
        [("nothing", ErrorKind::NoFile), ("dir", ErrorKind::BadInput), ("fifo", ErrorKind::BadInput)]
    {
        let e = get(s, &there(from), &missing, &plain()).await.unwrap_err();
        assert!(e.kind() == kind && e.message().contains(from), "{e}");
    }
    assert_eq!(get(s, "x\0y", &missing, &plain()).await.unwrap_err().kind(), ErrorKind::BadInput);
    assert!(!missing.exists());
    // A file that does not say how long it is is one all the same.
    let got = get(s, "/proc/self/status", &places.here("status"), &plain()).await.unwrap();
    assert!(got.bytes > 0 && std::fs::read_to_string(places.here("status")).unwrap().contains("Pid:"));
    assert_eq!(
        places.ask("sorted(os.listdir(there)), stat.S_ISFIFO(os.stat(there + '/fifo').st_mode)").await,
        "(['dir', 'fifo'], True)"
    );
    places.end().await;
}

async fn links(s: &Subject) {
    let places = Places::new(s).await;
    let file = places.make("file", 2_000_000);
    symlink(&file, places.here("link")).unwrap();
    ok(&places.session, "open(there + '/kept', 'w').write('kept'); os.symlink('kept', there + '/l'); os.symlink('real', there + '/r'); os.mkdir(there + '/d'); os.symlink('d', there + '/dl')").await;
    put(s, &places.here("link"), &places.there("l"), &plain()).await.unwrap();
    put(s, &file, &places.there("real"), &plain()).await.unwrap();
    put(s, &file, &places.there("dl"), &plain()).await.unwrap();
    let seen = places.ask("os.path.islink(there + '/l'), open(there + '/kept').read(), os.path.getsize(there + '/l'), os.listdir(there + '/d')").await;
    assert_eq!(seen, "(False, 'kept', 2000000, ['file'])");
    symlink("kept", places.here("back")).unwrap();
    std::fs::write(places.here("kept"), "kept").unwrap();
    get(s, &places.there("r"), &places.here("back"), &plain()).await.unwrap();
    assert_eq!(std::fs::read(places.here("kept")).unwrap(), b"kept");
    assert!(!places.here("back").is_symlink());
    assert_eq!(std::fs::read(places.here("back")).unwrap(), content(2_000_000));
    places.end().await;
}

async fn halves(s: &Subject) {
    let places = Places::new(s).await;
    let versions = [places.here("one"), places.here("two")];
    for (path, byte) in versions.iter().zip(*b"12") {
        std::fs::write(path, vec![byte; 2_500_000]).unwrap();
    }
    let to = places.there("to");
    put(s, &versions[0], &to, &plain()).await.unwrap();
    let code = "print('up', flush=True)\nseen = set()\n\
                while not os.path.exists(there + '/stop'):\n    data = open(there + '/to', 'rb').read()\n    \
                seen.add((len(data), data[:1], len(set(data[::4096]))))\nsorted(seen)";
    let recorder = Recorder::default();
    let cell = farcell_core::Cell::new(code);
    let writer = async {
        recorder.wait_for(|r| r.output() == "up\n").await;
        for turn in 1..8 {
            put(s, &versions[turn % 2], &to, &plain()).await.unwrap();
        }
        put(s, &versions[0], &places.there("stop"), &plain()).await.unwrap();
    };
    let (reply, ()) = tokio::join!(places.session.run(&cell, &recorder), writer);
    assert_eq!(text(&reply.unwrap()), "[(2500000, b'1', 1), (2500000, b'2', 1)]");
    places.end().await;
}

async fn many(s: &Subject) {
    let places = Places::new(s).await;
    let files: Vec<_> = (0..6).map(|n| places.make(&format!("f{n}"), 700_000 * n + n)).collect();
    let into = TransferOptions { into: true, ..plain() };
    // Each of them twice, as two programs would that know nothing of each other.
    let put_all = files.iter().chain(&files).map(|file| put(s, file, &places.there, &into));
    for put in join_all(put_all).await {
        put.unwrap();
    }
    let names: Vec<_> = (0..6).map(|n| places.there(&format!("f{n}"))).collect();
    let back = places.here("back");
    std::fs::create_dir(&back).unwrap();
    for got in join_all(names.iter().chain(&names).map(|name| get(s, name, &back, &into))).await {
        got.unwrap();
    }
    for file in &files {
        let name = file.file_name().unwrap();
        assert!(std::fs::read(file).unwrap() == std::fs::read(back.join(name)).unwrap(), "{name:?}");
    }
    places.end().await;
}
