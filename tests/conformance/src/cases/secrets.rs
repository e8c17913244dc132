//! What code, variables and calls carry stays between the host and its kernel.

use farcell_core::{Cell, NoEvents, Status, Tools};

use super::tools::waiting_as;
use crate::Case;
use crate::subject::{Subject, ok, text};

pub(crate) fn cases() -> Vec<Case> {
    vec![Case { name: "a_secret_is_in_no_argv_no_log_and_no_open_file", check: |s| Box::pin(planted(s)) }]
}

/// Halves, so that whoever looks for the whole does not carry it himself.
const HALVES: [&str; 2] = ["hunter2-correct", "-horse-battery"];

/// Lists where on the target the secret or the way to it is open to others: command lines, logs of the kernel, files and directories of the base.
fn search(base: &str, dir: &str) -> String {
    format!(
        "import os, stat\n\
         secret, base, dir = ({:?} + {:?}).encode(), {base:?}, {dir:?}\n\
         found = []\n\
         for pid in filter(str.isdigit, os.listdir('/proc') if os.path.isdir('/proc') else []):\n    \
             try:\n        with open('/proc/%s/cmdline' % pid, 'rb') as f: line = f.read()\n    \
             except OSError: continue\n    \
             if secret in line: found.append(line)\n\
         for top, folders, files in os.walk(base) if base else []:\n    \
             for each in [os.path.join(top, name) for name in folders + files] + [top]:\n        \
                 try: mode = os.lstat(each).st_mode\n        except OSError: continue\n        \
                 if not stat.S_ISLNK(mode) and mode & 0o077: found.append((each, oct(mode)))\n\
         if dir:\n    with open(dir + '/runner.log', 'rb') as f:\n        if secret in f.read(): found.append('runner.log')\n\
         found",
        HALVES[0], HALVES[1]
    )
}

/// The same command lines on this machine.
fn command_lines(secret: &str) -> Vec<String> {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).replace('\0', " "));
    lines.filter(|line| line.contains(secret)).collect()
}

async fn planted(s: &Subject) {
    let (session, looker) = (s.session("a"), s.session("looker"));
    ok(&looker, "1").await;
    let secret = HALVES.concat();
    let mut waiting = waiting_as("wait");
    let code = format!(
        "import os\nfrom farcell_tools import wait\nassert os.environ['PLANTED'] == {secret:?}\nprint({secret:?})\nwait(text={secret:?})"
    );
    let mut cell = Cell::new(code).tools(Tools::new([waiting.tool.clone()]).unwrap());
    cell.env.insert("PLANTED".to_owned(), secret.clone());
    let running = session.run(&cell, &NoEvents);
    let looking = async {
        waiting.begun.recv().await.expect("the tool is called");
        let record = session.probe().await.unwrap().and_then(|probe| probe.kernel).expect("a record");
        let found = ok(&looker, &search(&record.base, &record.dir)).await;
        assert_eq!(text(&found), "[]");
        assert_eq!(command_lines(&secret), [""; 0]);
        waiting.gate.add_permits(1);
    };
    let (reply, ()) = tokio::join!(running, looking);
    let reply = reply.unwrap();
    assert_eq!(reply.status, Status::Ok, "{reply:#?}");
}
