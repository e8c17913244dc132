//! The engine of farcell: persistent kernels on any machine that can be reached.
//!
//! A [`Session`] runs [`Cell`]s and gets [`Reply`]s. Behind it a [`Registry`] keeps [`Kernel`]s, which [`Driver`]s start. Most drivers are a
//! [`FileCellDriver`] over a [`Transport`]: a way to run one command on a target is all that a new kind of target has to bring.
//!
//! The engine knows no driver; see the crate `farcell` for those that come with it.

pub mod cell;
mod error;
mod event;
mod filecell;
#[cfg(feature = "fuzzing")]
#[doc(hidden)]
pub mod fuzzing;
mod id;
pub mod kernel;
pub mod lane;
pub mod link;
mod output;
mod quote;
mod registry;
mod reply;
mod retry;
pub mod runner;
mod session;
mod tail;
mod target;
pub mod tools;
mod transcript;
mod transfer;
mod transport;
pub mod wire;

pub use bytes;
pub use tokio::time::Instant;

pub use crate::cell::Cell;
pub use crate::error::{Error, ErrorKind, Result, Retry, Step};
pub use crate::event::{Event, EventSink, NoEvents, RecordEvents, Stream, TextDecoder};
pub use crate::filecell::{Connection, Connector, FileCellDriver, LinkChoice};
pub use crate::id::{CellId, CellNumber, Generation, KernelId, Nonce};
pub use crate::kernel::{Control, Driver, Fetched, Kernel, KernelSpec, Which};
pub use crate::output::{CleanStream, Cleaner, SECRET_WORDS, Secrets, is_secret_name};
pub use crate::quote::quote;
pub use crate::registry::{
    Drivers, Key, Loss, Registry, RegistryOptions, SessionOptions, Store, Stored, child_owner,
};
pub use crate::reply::{
    CellInfo, ErrorInfo, KernelInfo, MimeBundle, OutputInfo, Reply, State, Status, ToolError, ToolInfo,
    TroubleKind,
};
pub use crate::retry::Pauses;
pub use crate::session::{Session, Submitted};
pub use crate::tail::Tail;
pub use crate::target::{Options, Target};
pub use crate::tools::{Approver, Authority, Decision, Tool, ToolCall, ToolFailure, ToolOutput, Tools};
pub use crate::transcript::Transcript;
pub use crate::transfer::{FileSite, ProgressSink, TransferOptions, TransferProgress, Transferred};
pub use crate::transport::{
    Attached, Capabilities, ClosesOnShutdown, Command, Duplex, Ended, Output, Running, Transport, leash,
    remote, streams,
};
pub use crate::wire::message::{Action, Echo, Limits, Probe, ReadFile};
