//! A side of the comparison: farcell, a peer or the floor, each with the same five abilities.

use std::fmt;

use serde_json::Value;

use crate::samples::Samples;

/// Why a side has no figure.
#[derive(Debug, Clone)]
pub(crate) enum Trouble {
    /// It does not offer this.
    Cannot(String),
    /// It went wrong.
    Failed(String),
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Cannot(why) => write!(f, "not possible: {why}"),
            Trouble::Failed(why) => write!(f, "failed: {why}"),
        }
    }
}

impl<E: std::error::Error> From<E> for Trouble {
    fn from(e: E) -> Self {
        Trouble::Failed(e.to_string())
    }
}

/// What a side could do.
pub(crate) type Done<T> = std::result::Result<T, Trouble>;

/// The number of a kernel of a side.
pub(crate) type KernelNumber = usize;

/// The processes of kernels, in the numbers of the container if it is in one.
#[derive(Debug)]
pub(crate) struct Processes {
    pub(crate) pids: Vec<i64>,
    pub(crate) container: Option<String>,
}

/// A side. It checks what it measures: a count that is wrong, or output that is short, is a failure.
pub(crate) trait Side {
    /// What it was.
    fn version(&self) -> &str;
    /// What has to be known to read its figures.
    fn note(&self) -> &str;
    /// Starts kernels, one after the other, each up to its first reply.
    fn spawn(&mut self, count: usize) -> Done<(Samples, Vec<KernelNumber>)>;
    /// Runs `x += 1` in each of these kernels, so many times in turns.
    fn count(&mut self, kernels: &[KernelNumber], rounds: usize) -> Done<Samples>;
    /// Runs a cell that prints so many bytes, which have to arrive.
    fn print(&mut self, kernel: KernelNumber, rounds: usize, bytes: usize) -> Done<Samples>;
    /// Runs a cell that is itself so long.
    fn load(&mut self, kernel: KernelNumber, rounds: usize, bytes: usize) -> Done<Samples>;
    /// Which processes on the far side these kernels are.
    fn processes(&mut self, kernels: &[KernelNumber]) -> Done<Processes>;
    /// Ends kernels.
    fn stop(&mut self, kernels: &[KernelNumber]) -> Done<()>;
}

/// The times in an answer, in milliseconds.
pub(crate) fn samples_of(answer: &Value) -> Samples {
    let mut samples = Samples::default();
    for ms in answer["ms"].as_array().into_iter().flatten().filter_map(Value::as_f64) {
        samples.push(std::time::Duration::from_secs_f64(ms / 1000.0));
    }
    samples
}
