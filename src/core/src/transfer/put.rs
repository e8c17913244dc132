//! Putting a file of this machine on a target.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::far::Far;
use super::here::{self, Source};
use super::pieces::{self, Manner};
use super::{ProgressSink, TransferOptions, TransferProgress, Transferred};
use crate::error::{Error, ErrorKind, Result, Step};
use crate::wire::file::{BLOCK, Finished, PutOpened, PutStep};
use crate::wire::message::Operation;

/// How often it is begun again because somebody has removed what had arrived.
const TRIES: u32 = 3;
/// How long the target is bothered with what a failure has left there.
const TIDY: Duration = Duration::from_secs(5);

/// Puts the file `from` at `to`.
pub(super) async fn put(
    far: &Arc<Far>,
    from: &Path,
    to: &str,
    options: &TransferOptions,
    progress: ProgressSink<'_>,
) -> Result<Transferred> {
    let started = Instant::now();
    let source = Source::open(from).await?;
    let name = match &options.name {
        Some(name) => name.clone(),
        None => here::name_of(from)?,
    };
    let putting = Putting {
        far: Arc::clone(far),
        sha256: here::digest(&source.file, source.size).await?,
        source,
        to: to.to_owned(),
        name,
        parents: options.parents,
        into: options.into,
    };
    let mut tries = 1;
    let (path, resumed_from) = loop {
        match putting.attempt(progress).await {
            Err(e) if e.kind() == ErrorKind::FileChanged && tries < TRIES => {
                tracing::debug!(error = %e, "a file is put once more from its beginning");
                tries += 1;
            }
            Err(e) if e.kind() == ErrorKind::Damaged && putting.source.has_changed(from).await => {
                let message = format!("{} was changed while it was sent", from.display());
                return Err(Error::new(ErrorKind::FileChanged, message)
                    .at(Step::Transfer)
                    .with_hint("put it again, or a copy of it that stays as it is"));
            }
            put => break put?,
        }
    };
    let Putting { sha256, source, .. } = putting;
    let seconds = started.elapsed().as_secs_f64();
    Ok(Transferred { path, bytes: source.size, sha256, resumed_from, seconds })
}

struct Putting {
    far: Arc<Far>,
    source: Source,
    sha256: String,
    to: String,
    name: String,
    parents: bool,
    into: bool,
}

impl Putting {
    /// Where the file is, and how much of it was there before.
    async fn attempt(&self, progress: ProgressSink<'_>) -> Result<(String, u64)> {
        let size = self.source.size;
        let data = if size <= BLOCK { Some(here::read(&self.source.file, 0, size).await?) } else { None };
        let open = Operation::Put(PutStep::Open {
            path: self.to.clone(),
            cwd: self.far.cwd.clone(),
            name: self.name.clone(),
            size,
            sha256: self.sha256.clone(),
            mode: self.source.mode,
            parents: self.parents,
            into: self.into,
            data,
        });
        let opened: PutOpened = self.far.ask(&open).await?;
        self.far.learn_base(opened.base.clone());
        if opened.done {
            progress(TransferProgress { done: size, total: size });
            return Ok((opened.path, 0));
        }
        let sent = self.send(&opened, progress).await;
        match &sent {
            Err(e) if e.kind() == ErrorKind::FileChanged => {
                // Another transfer of the same file to the same place may have been quicker.
                if let Ok(finished) = self.finish(&opened).await {
                    return Ok((finished.path, 0));
                }
                self.tidy(opened.part).await;
            }
            // What comes of a lost connection or of lost patience, the next one goes on with.
            Err(e) if !matches!(e.kind(), ErrorKind::Transport | ErrorKind::Deadline) => {
                self.tidy(opened.part).await;
            }
            _ => {}
        }
        sent
    }

    /// Has what has arrived removed.
    async fn tidy(&self, part: String) {
        let drop = Operation::Put(PutStep::Drop { part });
        let tidied = tokio::time::timeout(TIDY, self.far.ask::<Value>(&drop)).await;
        tracing::debug!(?tidied, "what had arrived is removed");
    }

    async fn send(&self, opened: &PutOpened, progress: ProgressSink<'_>) -> Result<(String, u64)> {
        let size = self.source.size;
        let file = &self.source.file;
        let check =
            |offset, count| Operation::Put(PutStep::Check { part: opened.part.clone(), offset, count });
        let missing = pieces::missing(&self.far, file, opened.have, size, check).await?;
        let resumed_from = size - missing.iter().map(|piece| piece.length).sum::<u64>();
        let work = |piece: pieces::Piece| {
            let (far, file, part) = (Arc::clone(&self.far), Arc::clone(file), opened.part.clone());
            async move {
                let data = here::read(&file, piece.offset, piece.length).await?;
                let step = Operation::Put(PutStep::Piece { part, offset: piece.offset, data });
                far.ask::<Value>(&step).await.map(|_| ())
            }
        };
        pieces::move_all(missing, size, Manner::of(&self.far), work, progress).await?;
        Ok((self.finish(opened).await?.path, resumed_from))
    }

    async fn finish(&self, opened: &PutOpened) -> Result<Finished> {
        let (size, sha256, mode) = (self.source.size, self.sha256.clone(), self.source.mode);
        let (part, path) = (opened.part.clone(), opened.path.clone());
        let finish = Operation::Put(PutStep::Finish { part, path, size, sha256, mode });
        self.far.step(&finish, size).await.map(|(finished, _)| finished)
    }
}
