//! Looks at this machine's processes, by `/proc`.

use std::collections::BTreeSet;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long anything may take that has to happen at all; generous, as machines under test are busy.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until something is so; panics if that never happens.
pub fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    assert!(becomes_so(PATIENCE, &mut is_so), "it never happened: {what}");
}

/// Asks again and again, as there is nothing to wait on, whether something is so; false if it is not so within the bound.
pub(crate) fn becomes_so(bound: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let started = Instant::now();
    while !is_so() {
        if started.elapsed() > bound {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

/// True if a process is there and not a zombie.
pub fn is_alive(pid: i64) -> bool {
    stat(pid).is_some_and(|(state, _)| !matches!(state, 'Z' | 'X'))
}

/// Processes, apart from this one, whose command lines contain a word; each with its command line.
pub fn with_command(word: &str) -> Vec<(i64, String)> {
    let line = |pid| Some(read(pid, "cmdline")?.replace('\0', " "));
    let others = alive().filter(|pid| *pid != i64::from(std::process::id()));
    others.filter_map(|pid| line(pid).filter(|line| line.contains(word)).map(|line| (pid, line))).collect()
}

/// Processes whose environment has a variable of this value. It is the environment that they were started with.
pub fn with_variable(name: &str, value: &str) -> Vec<i64> {
    let entry = format!("{name}={value}");
    let has = |pid: &i64| read(*pid, "environ").is_some_and(|all| all.split('\0').any(|e| e == entry));
    alive().filter(has).collect()
}

/// Processes of a user.
pub fn of_user(uid: u32) -> Vec<i64> {
    alive().filter(|pid| std::fs::metadata(path(*pid, "")).is_ok_and(|m| m.uid() == uid)).collect()
}

/// The children of a process, theirs, and so on.
pub fn descendants(pid: i64) -> Vec<i64> {
    let all: Vec<(i64, i64)> = alive().filter_map(|pid| Some((pid, stat(pid)?.1))).collect();
    let mut found = BTreeSet::from([pid]);
    let mut before = 0;
    while found.len() > before {
        before = found.len();
        found.extend(
            all.iter().filter(|(_, parent)| found.contains(parent)).map(|(pid, _)| *pid).collect::<Vec<_>>(),
        );
    }
    found.remove(&pid);
    found.into_iter().collect()
}

/// The program that a process runs, as the kernel names it: at most 15 bytes.
pub fn program(pid: i64) -> Option<String> {
    Some(read(pid, "comm")?.trim_end().to_owned())
}

/// How many file descriptors a process has open; `None` if it is gone or somebody else's.
pub fn open_files(pid: i64) -> Option<usize> {
    Some(std::fs::read_dir(path(pid, "fd")).ok()?.count())
}

/// Sends SIGKILL; false if there is no such process.
pub fn kill(pid: i64) -> bool {
    let pid = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw);
    pid.is_some_and(|pid| rustix::process::kill_process(pid, rustix::process::Signal::KILL).is_ok())
}

fn alive() -> impl Iterator<Item = i64> {
    let entries = std::fs::read_dir("/proc").expect("there is a /proc").flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter(|pid| is_alive(*pid))
}

/// The state and the parent of a process.
fn stat(pid: i64) -> Option<(char, i64)> {
    let stat = read(pid, "stat")?;
    let mut words = stat.rsplit_once(") ")?.1.split(' ');
    Some((words.next()?.chars().next()?, words.next()?.parse().ok()?))
}

fn read(pid: i64, name: &str) -> Option<String> {
    Some(String::from_utf8_lossy(&std::fs::read(path(pid, name)).ok()?).into_owned())
}

fn path(pid: i64, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/{pid}")).join(name)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn a_child_is_found_by_mark_word_and_parent_until_it_ends() {
        let mark = format!("mark-{}", std::process::id());
        let mut command = Command::new("sh");
        let script = "echo; read line; exec 7</dev/null 8</dev/null; echo; read line";
        command.args(["-c", script, &mark]).env("TESTBED_MARK", &mark);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let mut said = child.stdout.take().unwrap();
        // It has said something, so it has become what it is to be.
        said.read_exact(&mut [0]).unwrap();
        let pid = i64::from(child.id());
        assert_eq!(with_variable("TESTBED_MARK", &mark), [pid]);
        assert_eq!(with_command(&mark).iter().map(|(pid, _)| *pid).collect::<Vec<_>>(), [pid]);
        assert!(descendants(i64::from(std::process::id())).contains(&pid));
        assert!(of_user(rustix::process::getuid().as_raw()).contains(&pid));
        let before = open_files(pid).unwrap();
        child.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        said.read_exact(&mut [0]).unwrap();
        assert_eq!(open_files(pid), Some(before + 2));
        assert!(kill(pid));
        wait_until("a killed process is not alive, though nobody has collected it", || !is_alive(pid));
        assert_eq!(with_variable("TESTBED_MARK", &mark), [] as [i64; 0]);
        child.wait().unwrap();
        assert!(!kill(pid));
    }
}
