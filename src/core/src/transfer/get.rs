//! Getting a file from a target.

use std::path::Path;
use std::sync::Arc;

use tokio::task::JoinSet;
use tokio::time::Instant;

use super::far::Far;
use super::here::{self, Landing};
use super::pieces::{self, Manner};
use super::{ProgressSink, TransferOptions, TransferProgress, Transferred};
use crate::error::{Error, ErrorKind, Result, Step};
use crate::id;
use crate::wire::file::{BLOCK, Digest, GetOpened, GetStep};
use crate::wire::message::Operation;

/// Gets the file `from`, and puts it at `to`.
pub(super) async fn get(
    far: &Arc<Far>,
    from: &str,
    to: &Path,
    options: &TransferOptions,
    progress: ProgressSink<'_>,
) -> Result<Transferred> {
    let started = Instant::now();
    let name = match &options.name {
        Some(name) => name.clone(),
        None => name_in(from)?,
    };
    let destination = here::destination(to, &name, options.parents, options.into).await?;
    let open = GetStep::Open { path: from.to_owned(), cwd: far.cwd.clone(), max: BLOCK };
    let (opened, bytes): (GetOpened, _) = far.step(&Operation::Get(open), BLOCK).await?;
    far.learn_base(opened.base.clone());
    let parts = [
        far.target().to_string(),
        opened.path.clone(),
        opened.stamp.clone(),
        opened.changed.clone(),
        opened.size.to_string(),
    ];
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let landing = Landing::open(&destination, &id::digest(&parts, 8)).await?;
    let getting = Getting { far: Arc::clone(far), opened, landing };
    let got = getting.receive(bytes, progress).await;
    if let Err(e) = &got
        && !matches!(e.kind(), ErrorKind::Transport | ErrorKind::Deadline)
    {
        getting.landing.remove();
    }
    let (sha256, resumed_from) = got?;
    let Getting { opened, landing, .. } = getting;
    landing.settle(opened.mode, opened.size, &sha256).await?;
    let (path, seconds) = (destination.display().to_string(), started.elapsed().as_secs_f64());
    Ok(Transferred { path, bytes: opened.size, sha256, resumed_from, seconds })
}

/// The last part of a path on a target. What the far side may say of it does not count here.
fn name_in(path: &str) -> Result<String> {
    let name = path.rsplit('/').next().unwrap_or_default();
    if matches!(name, "" | "." | "..") || path == "~" {
        return Err(
            Error::new(ErrorKind::BadInput, format!("{path:?} is not the path of a file")).at(Step::Parse)
        );
    }
    Ok(name.to_owned())
}

struct Getting {
    far: Arc<Far>,
    opened: GetOpened,
    landing: Landing,
}

impl Getting {
    /// Has all bytes in the part, and gives their checksum, and how many were there before.
    async fn receive(&self, bytes: Vec<u8>, progress: ProgressSink<'_>) -> Result<(String, u64)> {
        let GetOpened { path, size, stamp, sha256, .. } = &self.opened;
        let (size, file) = (*size, &self.landing.file);
        let (theirs, resumed_from) = match sha256 {
            Some(sha256) => {
                // Another transfer of the same may read it at this moment, so it is never shorter than it shall be.
                here::write(file, 0, bytes).await?;
                here::set_length(file, size).await?;
                progress(TransferProgress { done: size, total: size });
                (sha256.clone(), 0)
            }
            None => {
                let mut digest = JoinSet::new();
                let step = Operation::Get(GetStep::Digest { path: path.clone(), stamp: stamp.clone(), size });
                let far = Arc::clone(&self.far);
                digest.spawn(async move { far.step::<Digest>(&step, size).await });
                let resumed_from = self.fill(progress).await?;
                let digest = digest.join_next().await.unwrap_or_else(|| Ok(Err(self.changed())));
                (digest.unwrap_or_else(|e| Err(here::task_failed(&e)))?.0.sha256, resumed_from)
            }
        };
        if here::digest(file, size).await? == theirs && here::length(file).await? == size {
            return Ok((theirs, resumed_from));
        }
        Err(self.changed())
    }

    fn changed(&self) -> Error {
        let path = &self.opened.path;
        let message = format!(
            "what arrived of {path:?} is not what is there: its SHA-256 differs. It was removed here"
        );
        Error::new(ErrorKind::Damaged, message)
            .on(self.far.target())
            .at(Step::Transfer)
            .with_hint("get it again; if it is being written to, get a copy of it that stays as it is")
    }

    /// Gets the pieces that are missing.
    async fn fill(&self, progress: ProgressSink<'_>) -> Result<u64> {
        let GetOpened { path, size, stamp, .. } = &self.opened;
        let (size, file) = (*size, &self.landing.file);
        let check = |offset, count| {
            let (path, stamp) = (path.clone(), stamp.clone());
            Operation::Get(GetStep::Check { path, stamp, offset, count })
        };
        let have = here::length(file).await?;
        if have > size {
            here::set_length(file, 0).await?;
        }
        let have = if have > size { 0 } else { have };
        let missing = pieces::missing(&self.far, file, have, size, check).await?;
        let resumed_from = size - missing.iter().map(|piece| piece.length).sum::<u64>();
        let work = |piece: pieces::Piece| {
            let (far, file) = (Arc::clone(&self.far), Arc::clone(file));
            let (path, stamp) = (path.clone(), stamp.clone());
            let (offset, max) = (piece.offset, piece.length);
            async move {
                let step = Operation::Get(GetStep::Piece { path, stamp, offset, max });
                let (_, bytes): (serde_json::Value, _) = far.step(&step, max).await?;
                if bytes.len() as u64 != max {
                    let message = format!("{} bytes came for {max}", bytes.len());
                    return Err(Error::new(ErrorKind::Protocol, message).on(far.target()));
                }
                here::write(&file, offset, bytes).await
            }
        };
        pieces::move_all(missing, size, Manner::of(&self.far), work, progress).await?;
        Ok(resumed_from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_the_last_part_and_never_leads_elsewhere() {
        assert_eq!(name_in("~/a/b c").unwrap(), "b c");
        assert_eq!(name_in("-x\n").unwrap(), "-x\n");
        for path in ["", "/", "a/", "..", "a/..", "~", "a/."] {
            assert_eq!(name_in(path).unwrap_err().kind(), ErrorKind::BadInput, "{path}");
        }
    }
}
