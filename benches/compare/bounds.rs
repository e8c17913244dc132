//! What farcell has to reach, and whether it does. A ratio is one of medians, of rows of the same run.

use crate::lanes::{FLOOR, LINE};
use crate::places::ROUND_TRIP_MS;
use crate::report::Report;
use crate::{bulk, crowd, flight, many, rate, spawn, warm};

const POLLED: &str = "polled protocol";
const EXECNET: [&str; 2] = ["execnet", "execnet via"];
const IPYKERNEL: &str = "ipykernel";
/// Which floors are no peers.
const NO_PEERS: [&str; 3] = [FLOOR, LINE, "bare pipe (Python)"];
const FAR: &str = "ssh, 50 ms";

/// Judges all of it; what was not measured is said to be so.
pub(crate) fn judge(report: &mut Report) {
    warm_cells(report);
    spawns(report);
    bulk_cells(report);
    far_away(report);
    alone(report);
}

fn warm_cells(report: &mut Report) {
    for (system, most) in [("farcell stdio:", 1.5), ("farcell local:", 3.0)] {
        at_most(report, warm::MEASURE, "local", system, most, &[FLOOR]);
    }
    for target in ["ssh", "docker"] {
        at_most(report, warm::MEASURE, target, "farcell", 1.25, &EXECNET[..1]);
    }
    at_most(report, warm::MEASURE, "docker", "farcell", 2.0, &[LINE]);
    for target in ["local", "ssh", "docker", FAR] {
        for system in systems(target) {
            // Far away all of them wait for the same round trip; that one has a bound below.
            if target != FAR {
                faster_than_all(report, target, system);
            }
            tail(report, target, system);
        }
    }
    for (target, least) in [("ssh", 500.0), ("docker", 1000.0)] {
        let times = ratio(report, warm::MEASURE, target, POLLED, "farcell");
        let sentence = format!(
            "a warm cell on {target}: the {POLLED} takes {} times as long, at least {least}",
            figure(times)
        );
        report.verdict(times.map(|times| times >= least), sentence);
    }
}

/// No peer is quicker, but for execnet, which is the floor in other words and has bounds of its own.
fn faster_than_all(report: &mut Report, target: &str, system: &str) {
    let own = p50(report, warm::MEASURE, target, system);
    let excused = |peer: &str| NO_PEERS.contains(&peer) || EXECNET.contains(&peer);
    let rows = report.rows().iter().filter(|r| r.measure == warm::MEASURE && r.target == target);
    let peers = rows.filter(|r| !r.system.starts_with("farcell") && !excused(&r.system));
    let quickest =
        peers.filter_map(|r| Some((r.p50_ms?, r.system.clone()))).min_by(|a, b| a.0.total_cmp(&b.0));
    let Some((ms, peer)) = quickest else { return };
    let sentence = format!("a warm cell on {target}: {system} takes {} ms, {peer} {ms:.3}", figure(own));
    report.verdict(own.map(|own| own < ms), sentence);
}

fn tail(report: &mut Report, target: &str, system: &str) {
    let Some(row) = report.row(warm::MEASURE, target, system) else { return };
    let times = row.p99_ms.zip(row.p50_ms).map(|(p99, p50)| p99 / p50);
    let sentence =
        format!("a warm cell on {target}: {system}'s p99 is {} times its p50, at most 4", figure(times));
    report.verdict(times.map(|times| times <= 4.0), sentence);
}

fn spawns(report: &mut Report) {
    for target in ["local", "ssh", "docker"] {
        for system in systems(target) {
            at_most(report, spawn::MEASURE, target, system, 1.0 / 20.0, &[IPYKERNEL]);
            at_most(report, spawn::MEASURE, target, system, 1.0 / 5.0, &EXECNET);
        }
    }
}

fn bulk_cells(report: &mut Report) {
    for target in ["local", "ssh", "docker"] {
        for measure in [bulk::OUTPUT, bulk::CODE[1].0] {
            for system in systems(target) {
                at_most(report, measure, target, system, 1.5, &EXECNET[..1]);
            }
        }
    }
}

fn far_away(report: &mut Report) {
    let trips = p50(report, warm::MEASURE, FAR, "farcell").map(|ms| ms / ROUND_TRIP_MS);
    let sentence = format!("a warm cell on {FAR} takes {} round trips, at most 1.1", figure(trips));
    report.verdict(trips.map(|trips| trips <= 1.1), sentence);
    let trips = report.row(flight::MEASURE, FAR, "farcell").and_then(|r| r.figure);
    let sentence = format!("{} take {} round trips, at most 8", flight::MEASURE, figure(trips));
    report.verdict(trips.map(|trips| trips <= 8.0), sentence);
}

fn alone(report: &mut Report) {
    let of = |report: &Report, measure| report.row(measure, "local", rate::SYSTEM).and_then(|r| r.figure);
    let rate = of(report, rate::SPAWNS);
    report.verdict(rate.map(|r| r >= 300.0), format!("{} spawns per second, at least 300", figure(rate)));
    for measure in [rate::MEMORY, many::MEMORY] {
        let memory = of(report, measure);
        report.verdict(memory.map(|mb| mb <= 3.0), format!("{measure}: {} MB, at most 3", figure(memory)));
    }
    let memory = report.row(crowd::MEASURE, "local", crowd::SYSTEM).and_then(|r| r.figure);
    report.verdict(
        memory.map(|kb| kb <= 64.0),
        format!("{}: {} KB, at most 64", crowd::MEASURE, figure(memory)),
    );
}

/// A system may take so many times what the quickest of these takes.
fn at_most(report: &mut Report, measure: &str, target: &str, system: &str, most: f64, others: &[&str]) {
    let best = others
        .iter()
        .filter_map(|other| Some((p50(report, measure, target, other)?, *other)))
        .min_by(|a, b| a.0.total_cmp(&b.0));
    // Who was not asked to compare is told nothing.
    if best.is_none() && report.row(measure, target, system).is_none() {
        return;
    }
    let other = best.map_or(others[0], |(_, other)| other);
    let times = ratio(report, measure, target, system, other);
    let sentence = format!(
        "{measure} on {target}: {system} takes {} times what {other} takes, at most {most:.2}",
        figure(times)
    );
    report.verdict(times.map(|times| times <= most), sentence);
}

fn systems(target: &str) -> &'static [&'static str] {
    if target == "local" { &["farcell stdio:", "farcell local:"] } else { &["farcell"] }
}

fn p50(report: &Report, measure: &str, target: &str, system: &str) -> Option<f64> {
    report.row(measure, target, system)?.p50_ms
}

fn ratio(report: &Report, measure: &str, target: &str, system: &str, other: &str) -> Option<f64> {
    Some(p50(report, measure, target, system)? / p50(report, measure, target, other)?)
}

fn figure(value: Option<f64>) -> String {
    match value {
        None => "?".to_owned(),
        Some(value) if value >= 100.0 => format!("{value:.0}"),
        Some(value) => format!("{value:.3}"),
    }
}
