//! The promises about kernels, by subject.

mod code;
mod control;
mod endings;
mod files;
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
        files::cases(),
        output::cases(),
        queue::cases(),
        registry::cases(),
        state::cases(),
    ]
    .concat()
}
