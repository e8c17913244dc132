//! A warm cell: what `x += 1` costs in a kernel that stands.

use crate::lanes::Lanes;
use crate::options::Options;
use crate::report::Report;
use crate::side::Done;

pub(crate) const MEASURE: &str = "warm cell";
const ROUNDS: usize = 30;
const QUICK_ROUNDS: usize = 6;
/// How long a batch should take, in ms, and how many cells it may have: at least so many that all rounds make 300.
const BATCH_MS: f64 = 100.0;
const BATCH: (usize, usize) = (10, 50);
const QUICK_BATCH_MS: f64 = 25.0;
const QUICK_BATCH: (usize, usize) = (2, 20);

pub(crate) fn measure(lanes: &mut Lanes<'_>, options: &Options, report: &mut Report) {
    let rounds = options.amount(ROUNDS, QUICK_ROUNDS);
    let batches = batches(lanes, options);
    lanes.compare(MEASURE, rounds, report, |side, lane| {
        lane.side.count(&[lane.first], batches[side].clone()?)
    });
}

/// How many cells of each side make a turn; finding out is the warming, too.
fn batches(lanes: &mut Lanes<'_>, options: &Options) -> Vec<Done<usize>> {
    let ((least, most), ms) = if options.quick { (QUICK_BATCH, QUICK_BATCH_MS) } else { (BATCH, BATCH_MS) };
    let batch = |typical_ms: f64| ((ms / typical_ms) as usize).clamp(least, most);
    let lanes = lanes.lanes.iter_mut();
    lanes.map(|lane| Ok(batch(lane.side.count(&[lane.first], least)?.p50_ms()))).collect()
}
