//! What /proc tells of processes.

use std::fs;
use std::path::Path;

use crate::Result;

/// The most memory that a process has had at once, in bytes (VmHWM).
pub(crate) fn peak_memory(pid: i64) -> Result<u64> {
    let status = fs::read_to_string(format!("/proc/{pid}/status"))?;
    let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).ok_or("there is no VmHWM")?;
    Ok(peak.trim_end_matches("kB").trim().parse::<u64>()? * 1024)
}

/// How many descriptors a process has open.
pub(crate) fn open_fds(pid: i64) -> Result<usize> {
    Ok(fs::read_dir(format!("/proc/{pid}/fd"))?.count())
}

/// How many processes were started with one of these in their environment, as `NAME=value`.
pub(crate) fn marked_processes(marks: &[String]) -> Result<usize> {
    let is_marked = |process: &Path| {
        // One that has gone, or is another user's, is none of ours.
        let environment = fs::read(process.join("environ")).unwrap_or_default();
        environment.split(|b| *b == 0).any(|entry| marks.iter().any(|mark| mark.as_bytes() == entry))
    };
    let mut found = 0;
    for process in fs::read_dir("/proc")? {
        found += usize::from(is_marked(&process?.path()));
    }
    Ok(found)
}

/// How many files and directories there are under a directory.
pub(crate) fn entries_under(directory: &Path) -> Result<usize> {
    let mut found = 0;
    for entry in fs::read_dir(directory)? {
        let entry = entry?;
        found += 1;
        if entry.file_type()?.is_dir() {
            found += entries_under(&entry.path())?;
        }
    }
    Ok(found)
}
