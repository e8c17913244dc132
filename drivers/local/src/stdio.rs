//! The stdio driver: the same supervisor as everywhere, as a child process, with frames on its pipes in place of files.
//!
//! Its kernels end with this process, however that ends, and all that they started with them.

mod channel;
mod down;
mod follow;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod kernel;
mod lane;
mod request;

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant as StdInstant};

use async_trait::async_trait;
use farcell_core::kernel::{Diagnosis, Identity, Started};
use farcell_core::link::Carrier;
use farcell_core::wire::message::KernelRecord;
use farcell_core::{
    CellNumber, Driver, Error, ErrorKind, FileCellDriver, Instant, Kernel, KernelSpec, Probe, ProgressSink,
    Result, Step, Target, TransferOptions, Transferred,
};

use self::channel::Channel;
use self::kernel::StdioKernel;
use crate::account::Account;
use crate::connector::{LocalConnector, OPTIONS};

const STDIO: &str = "stdio";
/// How long starting a kernel may take.
const SPAWN: Duration = Duration::from_secs(60);

/// Serves `stdio:`.
#[derive(Debug)]
pub struct StdioDriver {
    /// Questions about the machine, and its files, are the same as for `local:`.
    machine: FileCellDriver<LocalConnector>,
}

impl Default for StdioDriver {
    fn default() -> Self {
        StdioDriver { machine: FileCellDriver::new(LocalConnector::default()) }
    }
}

#[async_trait]
impl Driver for StdioDriver {
    fn schemes(&self) -> &'static [&'static str] {
        &[STDIO]
    }

    fn keeps_kernels(&self) -> bool {
        false
    }

    fn check(&self, target: &Target) -> Result<()> {
        let (address, options) = target.address_and_options(OPTIONS)?;
        if address.is_empty() {
            return options.get("user").map(Account::find).transpose().map(|_| ()).map_err(|e| e.on(target));
        }
        Err(Error::new(ErrorKind::BadInput, format!("{STDIO}: takes no address, and {address:?} is one"))
            .on(target)
            .at(Step::Parse)
            .with_hint("write stdio: or stdio:?python=/path"))
    }

    async fn spawn(&self, spec: &KernelSpec) -> Result<Started> {
        let (_, options) = spec.target.address_and_options(OPTIONS)?;
        let mut message = spec.to_spawn()?;
        let account = options.get("user").map(Account::find).transpose()?;
        if message.cwd.is_none() && account.is_none() {
            message.cwd = std::env::current_dir().ok().and_then(|d| d.into_os_string().into_string().ok());
        }
        let python = spec.python.as_deref().or(options.get("python"));
        let dir = spec.dir.as_deref().or(options.get("dir"));
        let started =
            Channel::open(&spec.key, &message, (python, dir, account), Instant::now() + SPAWN).await;
        let (channel, record, lane) = started.map_err(|e| e.on(&spec.target).at(Step::Spawn))?;
        let kernel = StdioKernel::new(channel, record, lane, spec.identity(), spec.grace);
        Ok(Started { kernel: Arc::new(kernel), reused: false, previous: None })
    }

    async fn adopt(
        &self,
        _: &Identity,
        _: &KernelRecord,
        _: &[CellNumber],
    ) -> Result<Option<Arc<dyn Kernel>>> {
        Ok(None)
    }

    async fn doctor(&self, target: &Target, dir: Option<&str>, python: Option<&str>) -> Result<Diagnosis> {
        let mut diagnosis = self.machine.doctor(&as_local(target)?, dir, python).await?;
        // What a step costs here is a frame over a pipe, so ask a real kernel.
        let spec = KernelSpec {
            target: target.clone(),
            owner: "doctor".to_owned(),
            session: "doctor".to_owned(),
            key: "0".repeat(32),
            python: python.map(str::to_owned),
            dir: dir.map(str::to_owned),
            cwd: None,
            env: std::collections::BTreeMap::new(),
            idle: None,
            grace: Duration::from_secs(1),
            limits: farcell_core::Limits::default(),
            preload: Vec::new(),
            pool: None,
        };
        let kernel = self.spawn(&spec).await?.kernel;
        kernel.probe().await?;
        let started = StdInstant::now();
        kernel.probe().await?;
        diagnosis.carrier = Carrier::Pipes;
        diagnosis.round_trip_ms = started.elapsed().as_secs_f64() * 1000.0;
        Ok(diagnosis)
    }

    async fn list(&self, target: &Target, _: Option<&str>) -> Result<Vec<Probe>> {
        self.check(target)?;
        Ok(Vec::new())
    }

    async fn put(
        &self,
        target: &Target,
        from: &Path,
        to: &str,
        options: &TransferOptions,
        progress: ProgressSink<'_>,
    ) -> Result<Transferred> {
        self.machine.put(&as_local(target)?, from, to, options, progress).await
    }

    async fn get(
        &self,
        target: &Target,
        from: &str,
        to: &Path,
        options: &TransferOptions,
        progress: ProgressSink<'_>,
    ) -> Result<Transferred> {
        self.machine.get(&as_local(target)?, from, to, options, progress).await
    }

    async fn sweep(&self, target: &Target, older_than: Duration) -> Result<u64> {
        self.machine.sweep(&as_local(target)?, older_than).await
    }
}

fn as_local(target: &Target) -> Result<Target> {
    format!("local:{}", target.rest()).parse()
}
