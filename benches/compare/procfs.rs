//! What /proc tells of processes.

use std::fs;

use crate::Result;

/// The memory of a process in bytes, with what it shares counted in parts (PSS).
pub(crate) fn proportional_memory(pid: i64) -> Result<u64> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let rollup = fs::read_to_string(&path).map_err(|e| format!("{path}: {e}"))?;
    kilobytes(&rollup, "Pss:")
}

/// The memory of this process that is in use.
pub(crate) fn own_memory() -> Result<u64> {
    kilobytes(&fs::read_to_string("/proc/self/status")?, "VmRSS:")
}

/// Finds processes of a container by the numbers that they have there.
pub(crate) fn in_container(init: i64, pids: &[i64]) -> Result<Vec<i64>> {
    let namespace = fs::read_link(format!("/proc/{init}/ns/pid"))?;
    let mut found = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let path = entry?.path();
        // One that has just gone is none of those.
        if fs::read_link(path.join("ns/pid")).ok().as_ref() != Some(&namespace) {
            continue;
        }
        let status = fs::read_to_string(path.join("status")).unwrap_or_default();
        let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:")).unwrap_or_default();
        let mut numbers = numbers.split_whitespace().filter_map(|n| n.parse::<i64>().ok());
        if let (Some(outside), Some(inside)) = (numbers.next(), numbers.next_back())
            && pids.contains(&inside)
        {
            found.push(outside);
        }
    }
    if found.len() == pids.len() {
        Ok(found)
    } else {
        Err(format!("of {} processes in the container {} were found", pids.len(), found.len()).into())
    }
}

fn kilobytes(text: &str, name: &str) -> Result<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix(name)).ok_or_else(|| format!("no {name}"))?;
    Ok(line.trim_end_matches("kB").trim().parse::<u64>()? * 1024)
}
