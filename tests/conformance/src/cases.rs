//! The promises about kernels, by subject.

mod code;
mod control;
mod endings;
mod output;
mod queue;
mod registry;
mod state;

use crate::Case;

pub(crate) fn all() -> Vec<Case> {
    [
        code::cases(),
        control::cases(),
        endings::cases(),
        output::cases(),
        queue::cases(),
        registry::cases(),
        state::cases(),
    ]
    .concat()
}
