//! From nothing to the first reply, where a kernel stood before.

use crate::lanes::Lanes;
use crate::options::Options;
use crate::report::Report;

pub(crate) const MEASURE: &str = "spawn to first reply";

pub(crate) fn measure(lanes: &mut Lanes<'_>, options: &Options, report: &mut Report) {
    let rounds = options.amount(20, 2);
    lanes.compare(MEASURE, rounds, report, |_, lane| {
        let (took, kernels) = lane.side.spawn(1)?;
        lane.side.stop(&kernels)?;
        Ok(took)
    });
}
