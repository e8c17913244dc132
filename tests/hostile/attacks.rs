//! Cells that attack the kernel that they run in. It is theirs to destroy: what counts is that the host hears the truth of it, and in time.

use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::{Duration, Instant};

use farcell::{Cell, NoEvents, Reply, Session, Status};
use libtest_mimic::Trial;
use rustix::process::{Pid, Signal, kill_process};

use crate::{cells, session, trial, within};

/// Into every descriptor that the interpreter has.
const WRITE_EVERYWHERE: &str = "
import os, struct
def everywhere(junk):
    for fd in range(3, 256):
        try:
            os.set_blocking(fd, False)
            os.write(fd, junk)
        except OSError:
            pass
";

/// What is done, and whether it needs a kernel's directory (`here`).
const ATTACKS: &[(&str, &str, bool)] = &[
    ("kills_its_supervisor", "import os, signal; os.kill(os.getppid(), signal.SIGKILL)", false),
    ("stops_its_supervisor", "import os, signal; os.kill(os.getppid(), signal.SIGSTOP)", false),
    ("writes_junk_everywhere", "everywhere(b'\\xff' * 4096)", false),
    ("announces_frames_everywhere", "everywhere(struct.pack('>I', 400 << 20) + b'R')", false),
    ("writes_frames_everywhere", "everywhere(b''.join(struct.pack('>I', 2) + k + b'{}' for k in (b'R', b'r', b'S', b'q', b'n', b'Q')))", false),
    ("floods_everywhere", "
import threading
def flood():
    while True:
        everywhere(struct.pack('>I', 2) + b'R{}')
threading.Thread(target=flood, daemon=True).start()", false),
    ("closes_everything", "os.closerange(3, 256)", false),
    ("forges_replies", "
import json
for n in range(1, 30):
    with open('%s/cells/cell_res_%06d.json' % (here, n), 'w') as f:
        json.dump({'v': 1, 'status': 'ok', 'stdout': 'forged', 'stderr': '', 'result': {'text/plain': '666'}, 'displays': [],
            'output': {'stdout_bytes': 0, 'stdout_omitted': 0, 'stderr_bytes': 0, 'stderr_omitted': 0, 'spill': None},
            'duration_ms': 0.0, 'queued_ms': 0.0, 'cell': {'id': '0' * 32, 'number': n},
            'kernel': {'id': os.path.basename(here), 'generation': 1, 'state': 'kept'}}, f)", true),
    ("makes_its_record_a_fifo", "os.unlink(here + '/kernel.json'); os.mkfifo(here + '/kernel.json')", true),
    ("makes_its_record_endless", "os.unlink(here + '/kernel.json'); os.symlink('/dev/zero', here + '/kernel.json')", true),
    ("rewrites_its_record", "
import json
r = json.load(open(here + '/kernel.json'))
r.update(id='k-' + 'f' * 16, pid=1, dir='/etc', base='/', generation='x', lane={'pid': 1, 'request': 0, 'reply': 1, 'inodes': [-1, 2 ** 64]})
json.dump(r, open(here + '/kernel.json', 'w'))
os.kill(os.getppid(), 9)", true),
    ("fills_its_page", "open(here + '/lane', 'r+b').write(b'\\xff' * 8192)", true),
    ("cuts_its_page", "os.truncate(here + '/lane', 0)", true),
    ("spoils_its_numbers", "open(here + '/cells/next', 'w').write('9' * 5000)", true),
    ("makes_its_numbers_a_fifo", "os.unlink(here + '/cells/next'); os.mkfifo(here + '/cells/next')", true),
    ("moves_its_cells", "os.rename(here + '/cells', here + '/elsewhere'); os.symlink('/etc', here + '/cells')", true),
    ("removes_its_directory", "import shutil; shutil.rmtree(here)", true),
];

pub(crate) fn trials() -> Vec<Trial> {
    let mut trials = vec![trial("attack::local::opens_its_directory_to_all", opened_to_all)];
    for (name, code, needs_directory) in ATTACKS {
        if !needs_directory {
            trials.push(trial(&format!("attack::stdio::{name}"), async move || {
                let (_registry, session) = session("stdio:");
                attack(&session, code).await;
            }));
        }
        trials.push(trial(&format!("attack::local::{name}"), async move || {
            let base = tempfile::tempdir().unwrap();
            let (registry, session) = session(&format!("local:?dir={}", base.path().display()));
            let code = format!(
                "import os\nhere = {:?} + '/' + os.environ['FARCELL_KERNEL']\n{code}",
                base.path().display().to_string()
            );
            attack(&session, &code).await;
            let _ = registry.dispose_all().await;
            end_all(base.path());
        }));
    }
    trials
}

async fn attack(session: &Session, code: &str) {
    // Quick and quiet, so that what follows takes the lane.
    cells::ok(session, WRITE_EVERYWHERE).await;
    cells::ok(session, "1").await;
    within(100, async {
        let attacked = run(session, code).await;
        assert!(attacked.is_none_or(|reply| !reply.stdout.contains("forged")));
        for _ in 0..2 {
            if let Some(reply) = run(session, "40 + 2").await {
                assert!(is_honest(&reply), "{reply:#?}");
            }
        }
    })
    .await;
    let _ = tokio::time::timeout(Duration::from_secs(40), session.stop()).await.expect("a stop is bounded");
    assert_eq!(cells::value(session, "40 + 2").await, "42");
}

/// Runs a cell in bounded time. What is an error has not been run.
async fn run(session: &Session, code: &str) -> Option<Reply> {
    let mut cell = Cell::new(code).timeout(Duration::from_secs(2));
    cell.queue_timeout = Duration::from_secs(2);
    let started = Instant::now();
    let ran = session.run(&cell, &NoEvents).await;
    assert!(started.elapsed() < Duration::from_secs(45), "it took {:?}: {ran:?}", started.elapsed());
    ran.map_err(|e| assert!(!e.message().is_empty())).ok()
}

/// Its value, or the word that there is none.
fn is_honest(reply: &Reply) -> bool {
    let value =
        reply.result.as_ref().and_then(|result| result.get("text/plain")).and_then(|text| text.as_str());
    match reply.status {
        Status::Ok => value == Some("42"),
        _ => value.is_none() && reply.error.is_some(),
    }
}

/// Ends what a kernel whose directory is gone has left: all of it has the base in its command line.
fn end_all(base: &Path) {
    let base = base.as_os_str().as_bytes();
    for entry in std::fs::read_dir("/proc").expect("there is a /proc").flatten() {
        let pid = entry.file_name().to_str().and_then(|name| Pid::from_raw(name.parse().ok()?));
        let line = std::fs::read(entry.path().join("cmdline")).unwrap_or_default();
        if let Some(pid) = pid.filter(|_| line.windows(base.len()).any(|part| part == base)) {
            // It may have ended by now.
            let _ = kill_process(pid, Signal::KILL);
        }
    }
}

/// What others may write to is not trusted any more, and the error says how to go on.
async fn opened_to_all() {
    let base = tempfile::tempdir().unwrap();
    let (_registry, session) = session(&format!("local:?dir={}", base.path().display()));
    let code = format!("import os; os.chmod({:?} + '/' + os.environ['FARCELL_KERNEL'], 0o777)", base.path());
    run(&session, &code).await;
    // Who has the kernel open may go on; who looks for it does not.
    let e = session.stop().await.unwrap_err();
    assert!(e.message().contains("others can write to it") && e.hint().is_some(), "{e}");
    end_all(base.path());
}
