//! A runtime for one test, and an end to it.

use std::time::Duration;

/// Runs an asynchronous test in a runtime of its own.
///
/// # Panics
/// If it takes longer than `bound`: then it counts as hung.
pub fn bounded(bound: Duration, work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(async { tokio::time::timeout(bound, work).await.expect("the test hangs") });
    // The tasks of dropped kernels see to it that their children end.
    runtime.shutdown_timeout(Duration::from_secs(5));
}
