//! The container of one session: found or made, looked at, removed.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bollard::Docker;
use bollard::errors::Error as Bollard;
use bollard::models::{ContainerStateStatusEnum, ContainerSummary};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, InspectContainerOptions, ListContainersOptionsBuilder,
    RemoveContainerOptionsBuilder, StartContainerOptions,
};
use farcell_core::{Error, ErrorKind, EventSink, Instant, Pauses, Result, Step, Target};

use super::body::{IS_SANDBOX, KEY, Whose, body, mark, target_label};
use super::order::Order;
use super::pull::pull;
use crate::engine::Engine;
use crate::failure::{of_engine, passing};

/// How long an engine may take to make a container, or to be rid of one.
const MAKE: Duration = Duration::from_secs(60);
/// One that was made and not started for so long has lost whoever made it.
const UNSTARTED: Duration = Duration::from_secs(300);

/// The container of a session.
#[derive(Debug)]
pub(super) struct House {
    pub(super) engine: Arc<Engine>,
    pub(super) order: Order,
    target: Target,
    key: String,
    /// What the engine calls it.
    pub(super) name: String,
    /// It was made by this process.
    made: AtomicBool,
}

/// What there is under its name.
enum Found {
    Nothing,
    /// Made, and not started.
    Unstarted,
    Runs,
    /// It has ended, and is about to be removed.
    Leaving,
}

impl House {
    pub(super) fn new(engine: Arc<Engine>, order: Order, target: Target, key: &str) -> Self {
        let name = format!("farcell-{key}");
        House { engine, order, target, key: key.to_owned(), name, made: AtomicBool::new(false) }
    }

    /// What it knows its hosts' lines by.
    pub(super) fn mark(&self) -> String {
        mark(&self.key)
    }

    /// Sees to it that the container runs. An image is fetched until `until`; the rest takes as long as it takes.
    pub(super) async fn make(&self, whose: &Whose, until: Instant, events: &dyn EventSink) -> Result<()> {
        let engine = self.engine.client().await?;
        let (docker, _) = engine;
        let mut init = self.order.init.unwrap_or(true);
        let mut pulls = self.order.pulls;
        let mut give_up = Instant::now() + MAKE;
        let mut pauses = Pauses::between(Duration::from_millis(20), Duration::from_millis(500));
        loop {
            match self.create(docker, whose, init).await {
                Ok(()) => self.made.store(true, Ordering::Release),
                Err(e) if is_missing_image(&e) => {
                    if !std::mem::replace(&mut pulls, false) {
                        return Err(self.no_image());
                    }
                    pull(engine, self.engine.program(), &self.order.image, until, events).await?;
                    give_up = Instant::now() + MAKE;
                    continue;
                }
                Err(e) if is_taken(&e) => match self.find().await? {
                    Found::Runs => return Ok(()),
                    Found::Unstarted => {}
                    Found::Nothing | Found::Leaving => {
                        self.pause(&mut pauses, give_up).await?;
                        continue;
                    }
                },
                Err(e) => return Err(self.refused(e).await),
            }
            match docker.start_container(&self.name, None::<StartContainerOptions>).await {
                Ok(()) => {
                    tracing::debug!(name = self.name, image = %self.order.image, init, "a sandbox runs");
                    self.sweep().await;
                    return Ok(());
                }
                // Somebody has removed it meanwhile.
                Err(e) if is_missing_container(&e) => self.pause(&mut pauses, give_up).await?,
                Err(e) => {
                    let without_init = init && self.order.init.is_none() && e.to_string().contains("init");
                    let e = self.refused(e).await;
                    let _ = self.remove().await;
                    if !without_init {
                        return Err(e);
                    }
                    tracing::info!(error = %e, "the engine has no init; the sandbox's own program reaps");
                    init = false;
                }
            }
        }
    }

    async fn create(&self, docker: &Docker, whose: &Whose, init: bool) -> Result<(), Bollard> {
        let options = CreateContainerOptionsBuilder::new().name(&self.name).build();
        let body = body(&self.order, &self.target, &self.key, whose, init);
        docker.create_container(Some(options), body).await.map(drop)
    }

    async fn pause(&self, pauses: &mut Pauses, give_up: Instant) -> Result<()> {
        let pause = pauses.next_pause();
        if Instant::now() + pause >= give_up {
            let hint = format!("`{} rm -f {}` removes it by hand", self.engine.program(), self.name);
            return Err(passing(format!("the old sandbox {} does not go", self.name), hint));
        }
        tokio::time::sleep(pause).await;
        Ok(())
    }

    async fn find(&self) -> Result<Found> {
        let (docker, host) = self.engine.client().await?;
        let found = match docker.inspect_container(&self.name, None::<InspectContainerOptions>).await {
            Ok(found) => found,
            Err(e) if status(&e) == Some(404) => return Ok(Found::Nothing),
            Err(e) => return Err(of_engine(e, host)),
        };
        let labels = found.config.and_then(|config| config.labels).unwrap_or_default();
        if labels.get(KEY) != Some(&self.key) {
            let message = format!("there is a container {} that farcell has not made", self.name);
            return Err(Error::new(ErrorKind::Spawn, message)
                .at(Step::Spawn)
                .with_hint("rename it, or remove it; sandboxes have names that begin with farcell-"));
        }
        Ok(match found.state.unwrap_or_default().status {
            Some(ContainerStateStatusEnum::CREATED) => Found::Unstarted,
            Some(
                ContainerStateStatusEnum::EXITED
                | ContainerStateStatusEnum::DEAD
                | ContainerStateStatusEnum::REMOVING,
            ) => Found::Leaving,
            // Whether it is paused or in another state that does not let commands in, the first command tells.
            _ => Found::Runs,
        })
    }

    /// What there is of it, in words.
    pub(super) async fn describe(&self) -> Result<Option<String>> {
        Ok(match self.find().await? {
            Found::Nothing | Found::Leaving => None,
            Found::Unstarted => Some(format!("the sandbox {}, not started", self.name)),
            Found::Runs => Some(format!("the sandbox {}, without a kernel on record", self.name)),
        })
    }

    /// Removes it, and waits until it is gone. False if there was none.
    pub(super) async fn remove(&self) -> Result<bool> {
        if matches!(self.find().await?, Found::Nothing) {
            return Ok(false);
        }
        let (docker, host) = self.engine.client().await?;
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        let give_up = Instant::now() + MAKE;
        let mut pauses = Pauses::between(Duration::from_millis(10), Duration::from_millis(200));
        match docker.remove_container(&self.name, Some(options)).await {
            Err(e) if matches!(status(&e), Some(404 | 409)) => {}
            Err(e) => return Err(of_engine(e, host)),
            Ok(()) => {}
        }
        // It was removing itself, perhaps.
        while !matches!(self.find().await?, Found::Nothing) {
            self.pause(&mut pauses, give_up).await?;
        }
        Ok(true)
    }

    /// Removes it if it was made by this process, as what it was made for has come to nothing.
    pub(super) async fn undo(&self) {
        if self.made.swap(false, Ordering::AcqRel)
            && let Err(e) = self.remove().await
        {
            tracing::info!(error = %e, "a sandbox of no use stays until it ends by itself");
        }
    }

    /// Removes sandboxes whose makers were killed before they could start them: nothing in those would ever end.
    async fn sweep(&self) {
        let filters = [("status", "created".to_owned()), ("label", format!("{IS_SANDBOX}=1"))];
        let Ok(found) = list(&self.engine, &filters).await else { return };
        let Ok((docker, _)) = self.engine.client().await else { return };
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let is_old = |created: i64| {
            u64::try_from(created).is_ok_and(|created| now.as_secs() > created + UNSTARTED.as_secs())
        };
        for container in found.into_iter().filter(|container| container.created.is_some_and(is_old)) {
            let Some(id) = container.id else { continue };
            let options = RemoveContainerOptionsBuilder::new().v(true).build();
            let removed = docker.remove_container(&id, Some(options)).await;
            tracing::info!(id, ?removed, "a sandbox that was never started");
        }
    }

    fn no_image(&self) -> Error {
        let image = &self.order.image;
        let message = format!("the engine does not have the image {image}");
        let hint =
            format!("`{} pull {image}` fetches it; pull=missing lets farcell do so", self.engine.program());
        Error::new(ErrorKind::Spawn, message).at(Step::Spawn).with_hint(hint)
    }

    /// The engine does not want to make or start such a container.
    async fn refused(&self, e: Bollard) -> Error {
        let (Bollard::DockerResponseServerError { message, .. }, Ok((_, host))) =
            (&e, self.engine.client().await)
        else {
            return of_engine(e, "its address");
        };
        let message = message.trim();
        let program = self.engine.program();
        let has = |words: &str| message.contains(words);
        let (what, hint) = if has("/bin/sh") {
            (
                "the image has no /bin/sh".to_owned(),
                "farcell needs a POSIX shell and Python in the image".to_owned(),
            )
        } else if has("network") {
            (
                format!("no sandbox in the network {}", self.order.network),
                format!("`{program} network ls` shows those that there are"),
            )
        } else if has("bind source path") || has("mount") {
            (
                "a mount cannot be had".to_owned(),
                "mount= names a path of the engine's machine, which has to be there".to_owned(),
            )
        } else if has("CPUs") || has("cpus") {
            (
                "too many processors".to_owned(),
                format!("`{program} info` says how many the engine's machine has"),
            )
        } else if has("unable to find user") || has("no matching entries in passwd") {
            (
                format!("the image has no user {:?}", self.order.user.as_deref().unwrap_or("")),
                "write a user that its /etc/passwd has, or a number".to_owned(),
            )
        } else {
            ("no sandbox can be made".to_owned(), format!("`{program} info` tells more"))
        };
        let message = format!("{what}: the engine at {host} says: {message}");
        Error::new(ErrorKind::Spawn, message).at(Step::Spawn).with_hint(hint).with_source(e)
    }
}

/// Containers by filters.
async fn list(engine: &Engine, filters: &[(&str, String)]) -> Result<Vec<ContainerSummary>> {
    let (docker, host) = engine.client().await?;
    let filters: HashMap<_, _> = filters.iter().map(|(name, value)| (*name, vec![value.as_str()])).collect();
    let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
    docker.list_containers(Some(options)).await.map_err(|e| of_engine(e, host))
}

/// The keys of the sandboxes of a target that run.
pub(super) async fn keys(engine: &Engine, target: &Target) -> Result<Vec<String>> {
    let label = format!("{}={}", super::body::TARGET, target_label(target));
    let found = list(engine, &[("status", "running".to_owned()), ("label", label)]).await?;
    Ok(found.into_iter().filter_map(|container| container.labels?.remove(KEY)).collect())
}

fn status(e: &Bollard) -> Option<u16> {
    match e {
        Bollard::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

/// The name is in use; Podman says so in words alone.
fn is_taken(e: &Bollard) -> bool {
    let Bollard::DockerResponseServerError { status_code, message } = e else { return false };
    *status_code == 409 || message.contains("already in use")
}

fn is_missing_image(e: &Bollard) -> bool {
    let Bollard::DockerResponseServerError { status_code: 404, message } = e else { return false };
    message.to_ascii_lowercase().contains("no such image") || message.contains("image not known")
}

/// There is none, or it is on its way out.
fn is_missing_container(e: &Bollard) -> bool {
    let Bollard::DockerResponseServerError { status_code, message } = e else { return false };
    let message = message.to_ascii_lowercase();
    *status_code == 409
        || (*status_code == 404
            && (message.contains("no such container") || message.contains("no container with")))
}
