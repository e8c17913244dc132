//! The file-cell protocol's messages and frames (`docs/protocol.md`), as types and codecs without any I/O.

pub mod answer;
pub mod file;
pub mod frame;
pub mod message;
pub mod record;
