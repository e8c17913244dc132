//! From nothing to the first reply, where a kernel stood before.

use crate::options::Options;
use crate::report::Report;
use crate::side::Lanes;

pub(crate) const MEASURE: &str = "spawn to first reply";

pub(crate) fn measure(lanes: &mut Lanes<'_>, options: &Options, report: &mut Report) {
    let rounds = options.amount(20, 2);
    let outcomes = lanes.in_turns(rounds, |_, lane| {
        let (took, kernels) = lane.side.spawn(1)?;
        lane.side.stop(&kernels)?;
        Ok(took)
    });
    lanes.tell(MEASURE, &outcomes, rounds, report);
}
