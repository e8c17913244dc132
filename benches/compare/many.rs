//! Many kernels of each side at once: what each takes of the target's memory, and a cell in one after the other.

use crate::lanes::{Lane, Lanes};
use crate::options::Options;
use crate::places::Place;
use crate::report::Report;
use crate::side::{Done, KernelNumber, Processes, Trouble};
use crate::{fixtures, procfs};

pub(crate) const ROBIN: &str = "many kernels in turns";
pub(crate) const MEMORY: &str = "memory per kernel";

pub(crate) fn measure(lanes: &mut Lanes<'_>, options: &Options, report: &mut Report) {
    let count = options.amount(50, 2);
    let rounds = options.amount(3, 1);
    let mut kernels: Vec<Done<Vec<KernelNumber>>> = Vec::new();
    let mut memory: Vec<Done<u64>> = Vec::new();
    for lane in &mut lanes.lanes {
        let spawned = lane.side.spawn(count).map(|(_, kernels)| kernels);
        memory.push(spawned.clone().and_then(|kernels| per_kernel(lane, &kernels)));
        kernels.push(spawned);
    }
    tell_memory(lanes, &memory, count, report);
    lanes.compare(ROBIN, rounds, report, |side, lane| lane.side.count(&kernels[side].clone()?, 1));
    for (lane, kernels) in lanes.lanes.iter_mut().zip(kernels) {
        if let Err(trouble) = kernels.and_then(|kernels| lane.side.stop(&kernels)) {
            eprintln!("compare: {}: {trouble}", lane.system);
        }
    }
}

/// The memory of the far side's processes, divided by the kernels.
fn per_kernel(lane: &mut Lane, kernels: &[KernelNumber]) -> Done<u64> {
    let processes = lane.side.processes(kernels)?;
    let total = total(&processes).map_err(|e| Trouble::Failed(e.to_string()))?;
    Ok(total / kernels.len().max(1) as u64)
}

/// The memory of processes, pages that are shared counted in parts (PSS).
pub(crate) fn total(processes: &Processes) -> crate::Result<u64> {
    let pids = match &processes.container {
        Some(container) => procfs::in_container(fixtures::init_of(container)?, &processes.pids)?,
        None => processes.pids.clone(),
    };
    pids.into_iter().map(procfs::proportional_memory).sum()
}

fn tell_memory(lanes: &Lanes<'_>, memory: &[Done<u64>], count: usize, report: &mut Report) {
    for (lane, memory) in lanes.lanes.iter().zip(memory) {
        let row = lanes.row(MEMORY, lane);
        report.add(match memory {
            Ok(bytes) => {
                let megabytes = *bytes as f64 / 1e6;
                let note = format!("{megabytes:.1} MB each of {count}{}", what_is_counted(lane, lanes.place));
                crate::report::Row { n: count, rounds: 1, figure: Some(megabytes), ..row }.noting(&note)
            }
            Err(trouble) => row.noting(&trouble.to_string()),
        });
    }
}

/// What a reader would otherwise ask.
fn what_is_counted(lane: &Lane, place: &Place) -> String {
    match lane.system {
        system if system.starts_with("farcell") => " (PSS on the target, both processes)".to_owned(),
        system if system.starts_with("SWE-ReX") => " (PSS on the target, without its server)".to_owned(),
        _ if place.is_local() => " (PSS)".to_owned(),
        _ => " (PSS on the target)".to_owned(),
    }
}
