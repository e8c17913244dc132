//! farcell as a side: a program that embeds it, driven through its library.

use std::time::{Duration, Instant};

use farcell::{Cell, NoEvents, Registry, RegistryOptions, Reply, Session, SessionOptions, Status};
use tokio::runtime::{Builder, Runtime};

use crate::places::{Place, Way};
use crate::samples::Samples;
use crate::side::{Done, KernelNumber, Processes, Side, Trouble};
use crate::work;

/// A runtime, a registry, and what they lead to. Dropping it leaves nothing behind.
#[derive(Debug)]
pub(crate) struct Host {
    pub(crate) runtime: Runtime,
    registry: Registry,
    target: String,
    options: SessionOptions,
}

impl Host {
    /// A program like `farcell` itself, with its two workers.
    pub(crate) fn new(target: &str, python: &str, base: Option<&str>) -> crate::Result<Self> {
        let options = RegistryOptions { cap: 100_000, ..RegistryOptions::default() };
        Ok(Host {
            runtime: two_workers()?,
            registry: Registry::new(farcell::drivers(), options),
            target: target.to_owned(),
            options: SessionOptions {
                python: Some(python.to_owned()),
                dir: base.map(str::to_owned),
                // Should we be killed, they end soon.
                idle: Some(Duration::from_secs(15 * 60)),
                ..SessionOptions::default()
            },
        })
    }

    /// A session that no other process knows.
    pub(crate) fn session(&self, name: &str) -> Done<Session> {
        self.session_on(&self.target, name)
    }

    pub(crate) fn session_on(&self, target: &str, name: &str) -> Done<Session> {
        let owner = format!("compare-{}", std::process::id());
        Ok(self.registry.session(&owner, name, &target.parse()?, self.options.clone())?)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if let Err(e) = self.runtime.block_on(self.registry.dispose_all()) {
            eprintln!("compare: a kernel is left behind: {e}");
        }
    }
}

/// A runtime like that of the program `farcell`.
pub(crate) fn two_workers() -> crate::Result<Runtime> {
    Ok(Builder::new_multi_thread().worker_threads(2).enable_all().build()?)
}

/// Runs a cell that nobody watches and that has to end well.
pub(crate) async fn run(session: &Session, cell: &Cell) -> Done<Reply> {
    let reply = session.run(cell, &NoEvents).await?;
    if reply.status == Status::Ok {
        Ok(reply)
    } else {
        Err(Trouble::Failed(format!("a cell ended with {:?}: {:?}", reply.status, reply.error)))
    }
}

/// Both processes of a kernel.
pub(crate) async fn processes(session: &Session) -> Done<Vec<i64>> {
    let kernel = session.probe().await?.and_then(|probe| probe.kernel);
    let kernel = kernel.ok_or_else(|| Trouble::Failed("a kernel has gone".to_owned()))?;
    let interpreter = kernel.interpreter_pid.ok_or_else(|| Trouble::Failed("no interpreter".to_owned()))?;
    Ok(vec![kernel.pid, interpreter])
}

/// A kernel, and what its count has to be.
#[derive(Debug)]
struct Counted {
    session: Session,
    count: usize,
}

/// farcell on one of its targets.
#[derive(Debug)]
pub(crate) struct FarcellSide {
    kernels: Vec<Counted>,
    container: Option<String>,
    host: Host,
}

impl FarcellSide {
    pub(crate) fn start(place: &Place, target: &str) -> Done<Self> {
        Self::with_host(place, Host::new(target, &place.python, place.base.as_deref()))
    }

    /// The same with a pool of ready kernels, which the other sides do not share: another variable, another kind.
    pub(crate) fn start_with_pool(place: &Place, target: &str, pool: u32) -> Done<Self> {
        let host = Host::new(target, &place.python, place.base.as_deref()).map(|mut host| {
            host.options.pool = Some(pool);
            host.options.env.insert("LC_FARCELL_COMPARE".to_owned(), "pool".to_owned());
            host
        });
        Self::with_host(place, host)
    }

    fn with_host(place: &Place, host: crate::Result<Host>) -> Done<Self> {
        let container = match &place.way {
            Way::Docker { container, .. } => Some(container.clone()),
            _ => None,
        };
        let host = host.map_err(|e| Trouble::Failed(e.to_string()))?;
        Ok(FarcellSide { kernels: Vec::new(), container, host })
    }

    /// Runs a cell in a kernel so many times.
    fn time(&self, kernel: KernelNumber, cell: &Cell, rounds: usize) -> Done<(Samples, Option<Reply>)> {
        let session = &self.kernels[kernel].session;
        self.host.runtime.block_on(async {
            let (mut samples, mut last) = (Samples::default(), None);
            for _ in 0..rounds {
                let started = Instant::now();
                let reply = run(session, cell).await?;
                samples.push(started.elapsed());
                last = Some(reply);
            }
            Ok((samples, last))
        })
    }

    fn expect(&self, kernel: KernelNumber, question: &str, expected: usize) -> Done<()> {
        let session = &self.kernels[kernel].session;
        let reply = self.host.runtime.block_on(run(session, &Cell::new(question)))?;
        if reply.stdout.trim() == expected.to_string() {
            Ok(())
        } else {
            Err(Trouble::Failed(format!("{question}: {:?}, not {expected}", reply.stdout)))
        }
    }
}

impl Side for FarcellSide {
    fn version(&self) -> &str {
        env!("CARGO_PKG_VERSION")
    }

    fn note(&self) -> &str {
        "its library in this program, two workers"
    }

    fn spawn(&mut self, count: usize) -> Done<(Samples, Vec<KernelNumber>)> {
        let (mut samples, mut numbers) = (Samples::default(), Vec::new());
        for _ in 0..count {
            let session = self.host.session(&format!("kernel-{}", self.kernels.len()))?;
            let started = Instant::now();
            self.host.runtime.block_on(run(&session, &Cell::new(work::FIRST)))?;
            samples.push(started.elapsed());
            numbers.push(self.kernels.len());
            self.kernels.push(Counted { session, count: 0 });
        }
        Ok((samples, numbers))
    }

    fn count(&mut self, kernels: &[KernelNumber], rounds: usize) -> Done<Samples> {
        let cell = Cell::new(work::COUNT);
        let mut samples = Samples::default();
        self.host.runtime.block_on(async {
            for _ in 0..rounds {
                for number in kernels {
                    let kernel = &mut self.kernels[*number];
                    let started = Instant::now();
                    run(&kernel.session, &cell).await?;
                    samples.push(started.elapsed());
                    kernel.count += 1;
                }
            }
            Done::Ok(())
        })?;
        for number in kernels {
            self.expect(*number, work::ASK_COUNT, self.kernels[*number].count)?;
        }
        Ok(samples)
    }

    fn print(&mut self, kernel: KernelNumber, rounds: usize, bytes: usize) -> Done<Samples> {
        let (samples, last) = self.time(kernel, &Cell::new(work::printing(bytes)), rounds)?;
        match last {
            Some(reply) if reply.stdout.len() == bytes => Ok(samples),
            other => Err(Trouble::Failed(format!(
                "of {bytes} bytes of output {:?} arrive",
                other.map(|reply| reply.stdout.len())
            ))),
        }
    }

    fn load(&mut self, kernel: KernelNumber, rounds: usize, bytes: usize) -> Done<Samples> {
        let (samples, _) = self.time(kernel, &Cell::new(work::loading(bytes)), rounds)?;
        self.expect(kernel, work::ASK_SIZE, bytes)?;
        Ok(samples)
    }

    fn processes(&mut self, kernels: &[KernelNumber]) -> Done<Processes> {
        let mut pids = Vec::new();
        for number in kernels {
            pids.extend(self.host.runtime.block_on(processes(&self.kernels[*number].session))?);
        }
        Ok(Processes { pids, container: self.container.clone() })
    }

    fn stop(&mut self, kernels: &[KernelNumber]) -> Done<()> {
        for number in kernels {
            self.host.runtime.block_on(self.kernels[*number].session.stop())?;
        }
        Ok(())
    }
}
