//! A cell of a session that has no kernel, and can have none: whether it may run by itself, and what its caller is told.

use super::key::Key;
use super::{Inner, Registry};
use crate::cell::Cell;
use crate::error::{Error, ErrorKind, Result};
use crate::event::EventSink;
use crate::kernel::KernelSpec;
use crate::reply::Reply;

impl Registry {
    /// Runs a cell that no kernel could be started for. Nothing of it has been sent by then, and it is sent at most once from here.
    ///
    /// # Errors
    /// `why`, where the target could hold a kernel, or the session had one: its cells count on variables. Whatever it is, the cell was not run.
    pub(crate) async fn run_once(
        &self,
        key: &Key,
        spec: &KernelSpec,
        cell: &Cell,
        why: Error,
        events: &dyn EventSink,
    ) -> Result<Reply> {
        if !may_run_alone(&self.inner, key, &why) {
            return Err(why);
        }
        if let Some(needs) = needs_kernel(cell) {
            return Err(why.with_message(|message| {
                format!("{needs} needs a kernel, and none can be started here: {message}")
            }));
        }
        let driver = self.inner.drivers.of(&key.target)?;
        let Some(mut reply) = driver.once(spec, cell, &why, events).await.map_err(|e| e.on(&key.target))?
        else {
            return Err(why);
        };
        let note = note(&why);
        reply.kernel.note = Some(match reply.kernel.note.take() {
            Some(more) => format!("{note}; {more}"),
            None => note,
        });
        Ok(reply)
    }
}

fn may_run_alone(inner: &Inner, key: &Key, why: &Error) -> bool {
    matches!(why.kind(), ErrorKind::NoPlace | ErrorKind::NoProcess) && !inner.has_record(key)
}

/// What of a cell cannot be had without a kernel.
fn needs_kernel(cell: &Cell) -> Option<&'static str> {
    if cell.tools.is_some() {
        Some("a cell with tools")
    } else if cell.reset {
        Some("a reset")
    } else {
        None
    }
}

/// What is to be known of a reply without a kernel.
fn note(why: &Error) -> String {
    let remedy = why.hint().map_or_else(String::new, |hint| format!(" ({hint})"));
    format!(
        "the cell ran by itself and its variables are not kept, as no kernel can be started: {}{remedy}",
        why.message()
    )
}
