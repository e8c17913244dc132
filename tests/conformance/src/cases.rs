//! The promises about kernels, by subject.

mod cleaning;
mod code;
mod control;
mod endings;
mod files;
mod output;
mod queue;
mod registry;
mod secrets;
mod state;
mod tools;

use crate::Case;

pub(crate) fn all() -> Vec<Case> {
    [
        cleaning::cases(),
        code::cases(),
        control::cases(),
        endings::cases(),
        files::cases(),
        output::cases(),
        queue::cases(),
        registry::cases(),
        secrets::cases(),
        state::cases(),
        tools::cases(),
    ]
    .concat()
}
