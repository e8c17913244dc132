//! Much at once: a cell that prints 1 MB, and cells that are 200 KB and 10 MB long.

use crate::lanes::Lanes;
use crate::options::Options;
use crate::report::Report;

pub(crate) const OUTPUT: &str = "1 MB of output";
pub(crate) const CODE: [(&str, usize); 2] = [("200 KB of code", 200_000), ("10 MB of code", 10_000_000)];

pub(crate) fn output(lanes: &mut Lanes<'_>, options: &Options, report: &mut Report) {
    let rounds = options.amount(20, 2);
    lanes.compare(OUTPUT, rounds, report, |_, lane| lane.side.print(lane.first, 1, 1_000_000));
}

pub(crate) fn code(lanes: &mut Lanes<'_>, options: &Options, report: &mut Report) {
    for (measure, bytes) in CODE {
        let rounds = options.amount(if bytes > 1_000_000 { 10 } else { 20 }, 2);
        lanes.compare(measure, rounds, report, |_, lane| lane.side.load(lane.first, 1, bytes));
    }
}
