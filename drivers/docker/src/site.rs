//! One container of one engine: found by what the target says, asked to run commands, and asked what has become of it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bollard::Docker;
use bollard::container::AttachContainerResults;
use bollard::errors::Error as Bollard;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::{ContainerStateStatusEnum, ExecConfig};
use bollard::query_parameters::{
    AttachContainerOptionsBuilder, InspectContainerOptions, ListContainersOptionsBuilder,
};
use farcell_core::bytes::Bytes;
use farcell_core::leash::END;
use farcell_core::remote::{Ender, Remote};
use farcell_core::streams::Overheard;
use farcell_core::{Duplex, Ended, Error, Instant, Pauses, Result, Retry, Running};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::oneshot;

use crate::address::{Address, Container};
use crate::attach::{Apart, apart};
use crate::engine::Engine;
use crate::failure::{lasting, of_engine, passing, sandbox_ended};

/// How long the engine may take to notice that a command has ended whose streams have.
const NOTICE: Duration = Duration::from_secs(10);
/// How long a container that does not run is taken for one that is being restarted, and waited for.
const RESTART: Duration = Duration::from_secs(5);
/// The largest piece of output that the engine's frames are read into at once.
const PIECE: usize = 64 * 1024;

/// A container, as a target names it.
#[derive(Debug)]
pub(crate) struct Site {
    address: Address,
    engine: Arc<Engine>,
    /// Since when it is known not to run.
    stopped: Mutex<Option<Instant>>,
}

/// The connection to a container's own program. To drop it ends that alone.
#[derive(Debug)]
struct Visit {
    said: Overheard,
    /// The outputs are passed on for as long as this is there.
    _open: oneshot::Receiver<bool>,
}

impl Running for Visit {
    fn stderr(&self) -> Bytes {
        self.said.to_bytes()
    }
}

/// An exec, and where it is.
#[derive(Debug)]
pub(crate) struct Exec {
    site: Arc<Site>,
    container: String,
    /// What the engine says of it is not to be had any more.
    lost: Arc<AtomicBool>,
}

impl Site {
    pub(crate) fn new(address: Address, engine: Arc<Engine>) -> Self {
        Site { address, engine, stopped: Mutex::default() }
    }

    pub(crate) fn engine(&self) -> &Engine {
        &self.engine
    }

    /// What requests call the container.
    async fn container(&self) -> Result<String> {
        let (project, service) = match &self.address.container {
            Container::Named(name) | Container::Sandbox(name) => return Ok(name.clone()),
            Container::Service { project, service } => (project, service),
        };
        let (docker, host) = self.engine.client().await?;
        let mut labels = vec![format!("com.docker.compose.service={service}")];
        labels.extend(project.as_ref().map(|project| format!("com.docker.compose.project={project}")));
        let filters = [("label".to_owned(), labels)].into();
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        let mut found = docker.list_containers(Some(options)).await.map_err(|e| of_engine(e, host))?;
        let label = |name: &str, labels: &Option<std::collections::HashMap<String, String>>| {
            labels.as_ref().and_then(|labels| labels.get(name).cloned()).unwrap_or_default()
        };
        let mut projects: Vec<_> =
            found.iter().map(|c| label("com.docker.compose.project", &c.labels)).collect();
        projects.sort();
        projects.dedup();
        if projects.len() > 1 {
            return Err(lasting(
                format!("{} is in several projects: {}", self.address.container, projects.join(", ")),
                format!("write compose://PROJECT/{service}"),
            ));
        }
        // One that runs before one that does not, then the first of its number.
        found.sort_by_key(|c| {
            let runs = c.state.as_ref().is_some_and(|state| state.to_string() == "running");
            let number = label("com.docker.compose.container-number", &c.labels).parse().unwrap_or(u32::MAX);
            (!runs, number)
        });
        found.into_iter().find_map(|c| c.id).ok_or_else(|| {
            lasting(
                format!("there is no container of {}", self.address.container),
                "`docker-compose up -d` starts it; `docker ps` shows what runs",
            )
        })
    }

    /// Starts a command.
    pub(crate) async fn start(self: &Arc<Self>, argv: &[&str]) -> Result<(Remote, Exec)> {
        let container = self.container().await?;
        let (docker, host) = self.engine.client().await?;
        let config = ExecConfig {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            attach_stderr: Some(true),
            tty: Some(false),
            cmd: Some(argv.iter().map(|&word| word.to_owned()).collect()),
            user: self.address.user.clone(),
            working_dir: self.address.workdir.clone(),
            ..ExecConfig::default()
        };
        let created = match docker.create_exec(&container, config).await {
            Ok(created) => created.id,
            Err(e) => return Err(self.why_not(e, &container).await),
        };
        let options = StartExecOptions { detach: false, tty: false, output_capacity: Some(PIECE) };
        let (output, input) = match docker.start_exec(&created, Some(options)).await {
            Ok(StartExecResults::Attached { output, input }) => (output, input),
            Ok(StartExecResults::Detached) => {
                return Err(lasting(
                    format!("the engine at {host} attached nothing"),
                    "`docker info` tells more",
                ));
            }
            Err(e) => return Err(self.why_not(e, &container).await),
        };
        *self.stopped() = None;
        let Apart { stdin, stdout, stderr, over } = apart(output, input, is_local(host));
        let lost = Arc::new(AtomicBool::new(false));
        let ending = ended(docker.clone(), created, over, Arc::clone(&lost));
        let remote = Remote::new(stdin, stdout, stderr, ending);
        Ok((remote, Exec { site: Arc::clone(self), container, lost }))
    }

    /// The streams of the container's own program.
    pub(crate) async fn attach(&self) -> Result<Duplex> {
        let container = self.container().await?;
        let (docker, host) = self.engine.client().await?;
        let options =
            AttachContainerOptionsBuilder::new().stream(true).stdin(true).stdout(true).stderr(true).build();
        let AttachContainerResults { output, input } =
            match docker.attach_container(&container, Some(options)).await {
                Ok(attached) => attached,
                Err(e) => return Err(self.why_not(e, &container).await),
            };
        *self.stopped() = None;
        let Apart { stdin, stdout, stderr, over } = apart(output, input, is_local(host));
        Ok(Duplex::new(stdin, stdout, Visit { said: Overheard::new(stderr), _open: over }))
    }

    /// Why a command could not be started: the container's own state says more than the refusal.
    async fn why_not(&self, e: Bollard, container: &str) -> Error {
        let (_, host) = match self.engine.client().await {
            Ok(engine) => engine,
            Err(e) => return e,
        };
        let Bollard::DockerResponseServerError { status_code, message } = &e else {
            return of_engine(e, host);
        };
        if message.contains("executable file not found") || message.contains("no such file or directory") {
            return lasting(
                format!(
                    "{} has no /bin/sh, or no such working directory: {}",
                    self.address.container,
                    message.trim()
                ),
                "farcell needs a POSIX shell and Python in the container; take an image that has them",
            );
        }
        if message.contains("unable to find user") {
            return lasting(
                format!(
                    "{} has no user {:?}",
                    self.address.container,
                    self.address.user.as_deref().unwrap_or("")
                ),
                "write a user that its /etc/passwd has, or a number",
            );
        }
        match *status_code {
            404 => self.gone().await,
            409 | 500 => match self.state(container).await {
                Ok(Some(error)) => error,
                // It is about its state, which has changed in between.
                Ok(None) if *status_code == 409 => passing(
                    format!("{} was just being started or stopped", self.address.container),
                    format!("`{} ps -a` shows what became of it", self.engine.program()),
                ),
                Ok(None) => of_engine(e, host),
                Err(other) => other,
            },
            _ => of_engine(e, host),
        }
    }

    fn stopped(&self) -> MutexGuard<'_, Option<Instant>> {
        self.stopped.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn gone(&self) -> Error {
        let named = &self.address.container;
        let program = self.engine.program();
        match named {
            Container::Sandbox(name) => sandbox_ended(self.engine.why_gone(name).await),
            Container::Named(_) | Container::Service { .. } => lasting(
                format!("there is no such thing as {named}"),
                format!(
                    "`{program} ps -a` shows the containers of this engine; one that was removed has taken its kernels along"
                ),
            ),
        }
    }

    /// What of the container's state keeps it from running commands.
    async fn state(&self, container: &str) -> Result<Option<Error>> {
        let (docker, host) = self.engine.client().await?;
        let found = match docker.inspect_container(container, None::<InspectContainerOptions>).await {
            Ok(found) => found,
            Err(Bollard::DockerResponseServerError { status_code: 404, .. }) => {
                return Err(self.gone().await);
            }
            Err(e) => return Err(of_engine(e, host)),
        };
        let state = found.state.unwrap_or_default();
        let named = &self.address.container;
        let program = self.engine.program();
        Ok(match state.status {
            Some(ContainerStateStatusEnum::PAUSED) => Some(passing(
                format!("{named} is paused"),
                format!("`{program} unpause` lets it go on, and its kernels with it"),
            )),
            Some(ContainerStateStatusEnum::RUNNING) => None,
            Some(ContainerStateStatusEnum::RESTARTING) => Some(passing(
                format!("{named} is being restarted"),
                format!("`{program} logs` shows what it says"),
            )),
            // It is about to be removed.
            _ if matches!(named, Container::Sandbox(_)) => Some(self.gone().await),
            _ => {
                let memory = if state.oom_killed == Some(true) { ", out of memory" } else { "" };
                let status = state.exit_code.unwrap_or_default();
                let error = passing(
                    format!("{named} does not run (it ended with status {status}{memory})"),
                    format!("`{program} start` starts it; the kernels that it had are gone"),
                );
                let since = *self.stopped().get_or_insert_with(Instant::now);
                Some(if since.elapsed() > RESTART { error.retry(Retry::Never) } else { error })
            }
        })
    }
}

fn is_local(host: &str) -> bool {
    host.starts_with("unix:")
}

/// How an exec ends: its streams do, and then the engine is asked.
async fn ended(docker: Docker, id: String, over: oneshot::Receiver<bool>, lost: Arc<AtomicBool>) -> Ended {
    let lose = || {
        lost.store(true, Ordering::Release);
        Ended::Unknown
    };
    if !over.await.unwrap_or(false) {
        return lose();
    }
    let ask = async {
        let mut pauses = Pauses::between(Duration::from_millis(1), Duration::from_millis(100));
        loop {
            match docker.inspect_exec(&id).await {
                Ok(found) if found.running != Some(true) => match found.exit_code {
                    Some(code) => return i32::try_from(code).map_or(Ended::Unknown, Ended::Exit),
                    None => return Ended::Unknown,
                },
                Ok(_) => tokio::time::sleep(pauses.next_pause()).await,
                Err(_) => return lose(),
            }
        }
    };
    tokio::time::timeout(NOTICE, ask).await.unwrap_or(Ended::Unknown)
}

#[async_trait]
impl Ender for Exec {
    async fn end(&self, process: u64) {
        // The same container, whatever the name leads to by now.
        let Ok((docker, host)) = self.site.engine.client().await else { return };
        let config = ExecConfig {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            cmd: Some(END.argv().map(str::to_owned).to_vec()),
            user: self.site.address.user.clone(),
            ..ExecConfig::default()
        };
        let Ok(created) = docker.create_exec(&self.container, config).await else { return };
        let Ok(StartExecResults::Attached { output, input }) =
            docker.start_exec(&created.id, None::<StartExecOptions>).await
        else {
            return;
        };
        let Apart { mut stdin, over, .. } = apart(output, input, is_local(host));
        let _ = stdin.write_all(format!("{process}\n").as_bytes()).await;
        let _ = stdin.shutdown().await;
        let _ = over.await;
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}
