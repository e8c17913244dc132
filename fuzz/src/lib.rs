//! What is tried on the decoders of farcell: whatever bytes come, they do not panic, take no more memory than what came accounts for, and give the same in
//! pieces as at once. One function for each target in `fuzz_targets/`; `tests/replay.rs` calls them with the corpora.
//!
//! The first byte of an input says in pieces of what length the rest comes, where that can matter.

mod calls;
mod memory;
mod streams;
mod texts;
mod wire;

pub use calls::calls;
pub use streams::{courier, leash, stdio};
pub use texts::{page, targets, text};
pub use wire::{answers, files, frames, records, replies};

/// One of them.
pub type Target = fn(&[u8]);

/// All targets by name.
pub const TARGETS: &[(&str, Target)] = &[
    ("answers", answers),
    ("calls", calls),
    ("courier", courier),
    ("files", files),
    ("frames", frames),
    ("leash", leash),
    ("page", page),
    ("records", records),
    ("replies", replies),
    ("stdio", stdio),
    ("targets", targets),
    ("text", text),
];

/// The nonce of all inputs.
const NONCE: &str = "0123456789abcdef0123456789abcdef";

/// What decoders may take before they have anything: buffers of a usual size.
const BASE: usize = 4 << 20;

/// How long the pieces are, and the bytes that come in them.
fn cut(data: &[u8]) -> (usize, &[u8]) {
    match data.split_first() {
        Some((cut, rest)) => (usize::from(*cut).max(1), rest),
        None => (1, data),
    }
}
