//! One container of one engine: found by what the target says, asked to run commands, and asked what has become of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use bollard::Docker;
use bollard::errors::Error as Bollard;
use bollard::exec::{StartExecOptions, StartExecResults};
use bollard::models::{ContainerStateStatusEnum, ExecConfig};
use bollard::query_parameters::{InspectContainerOptions, ListContainersOptionsBuilder};
use farcell_core::leash::END;
use farcell_core::remote::{Ender, Remote};
use farcell_core::{Ended, Error, Pauses, Result};
use tokio::io::AsyncWriteExt as _;
use tokio::sync::OnceCell;

use crate::address::{Address, Container};
use crate::attach::{Apart, apart};
use crate::engine;
use crate::failure::{lasting, of_engine, passing};

/// How long the engine may take to notice that a command has ended whose streams have.
const NOTICE: Duration = Duration::from_secs(10);
/// The largest piece of output that the engine's frames are read into at once.
const PIECE: usize = 64 * 1024;

/// A container, as a target names it.
#[derive(Debug)]
pub(crate) struct Site {
    address: Address,
    client: OnceCell<(Docker, String)>,
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
    pub(crate) fn new(address: Address) -> Self {
        Site { address, client: OnceCell::new() }
    }

    /// The engine, and how it is reached.
    async fn engine(&self) -> Result<&(Docker, String)> {
        let connect = || async {
            let host = engine::locate(self.address.host.as_deref(), self.address.podman)?;
            Ok((engine::connect(&host).await?, host))
        };
        self.client.get_or_try_init(connect).await
    }

    /// What requests call the container.
    async fn container(&self) -> Result<String> {
        let (project, service) = match &self.address.container {
            Container::Named(name) => return Ok(name.clone()),
            Container::Service { project, service } => (project, service),
        };
        let (docker, host) = self.engine().await?;
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
        let (docker, host) = self.engine().await?;
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
        let Apart { stdout, stderr, over } = apart(output);
        let lost = Arc::new(AtomicBool::new(false));
        let ending = ended(docker.clone(), created, over, Arc::clone(&lost));
        let remote = Remote::new(input, stdout, stderr, ending);
        Ok((remote, Exec { site: Arc::clone(self), container, lost }))
    }

    /// Why a command could not be started: the container's own state says more than the refusal.
    async fn why_not(&self, e: Bollard, container: &str) -> Error {
        let (_, host) = match self.engine().await {
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
            404 => self.gone(),
            409 | 500 => match self.state(container).await {
                Ok(Some(error)) => error,
                Ok(None) => of_engine(e, host),
                Err(other) => other,
            },
            _ => of_engine(e, host),
        }
    }

    fn gone(&self) -> Error {
        lasting(
            format!("there is no such thing as {}", self.address.container),
            "`docker ps -a` shows the containers of this engine; one that was removed has taken its kernels along",
        )
    }

    /// What of the container's state keeps it from running commands.
    async fn state(&self, container: &str) -> Result<Option<Error>> {
        let (docker, host) = self.engine().await?;
        let found = match docker.inspect_container(container, None::<InspectContainerOptions>).await {
            Ok(found) => found,
            Err(Bollard::DockerResponseServerError { status_code: 404, .. }) => return Err(self.gone()),
            Err(e) => return Err(of_engine(e, host)),
        };
        let state = found.state.unwrap_or_default();
        let named = &self.address.container;
        Ok(match state.status {
            Some(ContainerStateStatusEnum::PAUSED) => Some(passing(
                format!("{named} is paused"),
                "`docker unpause` lets it go on, and its kernels with it",
            )),
            Some(ContainerStateStatusEnum::RUNNING) => None,
            Some(ContainerStateStatusEnum::RESTARTING) => {
                Some(passing(format!("{named} is being restarted"), "`docker logs` shows what it says"))
            }
            _ => {
                let memory = if state.oom_killed == Some(true) { ", out of memory" } else { "" };
                let status = state.exit_code.unwrap_or_default();
                Some(passing(
                    format!("{named} does not run (it ended with status {status}{memory})"),
                    "`docker start` starts it; the kernels that it had are gone",
                ))
            }
        })
    }
}

/// How an exec ends: its streams do, and then the engine is asked.
async fn ended(
    docker: Docker,
    id: String,
    over: tokio::sync::oneshot::Receiver<bool>,
    lost: Arc<AtomicBool>,
) -> Ended {
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
        let Ok((docker, _)) = self.site.engine().await else { return };
        let config = ExecConfig {
            attach_stdin: Some(true),
            attach_stdout: Some(true),
            cmd: Some(END.argv().map(str::to_owned).to_vec()),
            user: self.site.address.user.clone(),
            ..ExecConfig::default()
        };
        let Ok(created) = docker.create_exec(&self.container, config).await else { return };
        let Ok(StartExecResults::Attached { output, mut input }) =
            docker.start_exec(&created.id, None::<StartExecOptions>).await
        else {
            return;
        };
        let _ = input.write_all(format!("{process}\n").as_bytes()).await;
        let _ = input.shutdown().await;
        let _ = apart(output).over.await;
    }

    fn is_lost(&self) -> bool {
        self.lost.load(Ordering::Acquire)
    }
}
