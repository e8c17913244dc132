//! One cell without a kernel, where none can be started: sent by a command of its own, and never again.

use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde_json::Value;
use tokio::time::Instant;

use super::{Connector, FileCellDriver, Site};
use crate::cell::{Cell, LONGEST, clamped};
use crate::error::{Error, ErrorKind, Result, Step};
use crate::event::{Event, EventSink};
use crate::id::CellId;
use crate::kernel::{Identity, KernelSpec};
use crate::link::{self, Call, ExecLink};
use crate::reply::{CellInfo, ErrorInfo, KernelInfo, Reply, State, Status};
use crate::retry::Pauses;
use crate::target::Target;
use crate::wire::message::{Operation, RanOnce};

/// What a command may take beyond its cell: sending, starting Python, ending what ignores signals, coming back.
const MARGIN: Duration = Duration::from_secs(30);
/// How long the processes of a stream that was given up may take to end.
const ENDING: Duration = Duration::from_secs(10);

impl<C: Connector> FileCellDriver<C> {
    /// Runs a cell without a kernel.
    ///
    /// # Errors
    /// Only where it was not run. What is not known to be so is a reply that is lost.
    pub(super) async fn run_once(
        &self,
        spec: &KernelSpec,
        cell: &Cell,
        why: &Error,
        events: &dyn EventSink,
    ) -> Result<Reply> {
        let site = self.site(&spec.target).await?;
        let commands = Arc::clone(&site.commands);
        let python = spec.python.clone().or_else(|| site.python.clone());
        let id = CellId::random()?;
        let mut message = spec.to_spawn()?;
        message.cwd = message.cwd.or_else(|| site.cwd.clone());
        if why.kind() == ErrorKind::NoProcess {
            self.make_room(site, &spec.target, &commands, python.as_deref()).await?;
        }
        let operation = Operation::Once { spec: message, cell: cell.to_request(id.clone()) };
        let bound = cell.timeout.map_or(LONGEST, clamped) + spec.grace * 2 + MARGIN;
        let call = call(&operation, python.as_deref(), bound);
        events.event(Event::Sent { id: id.clone() });
        events.event(Event::Alone);
        match link::ask::<RanOnce>(commands.as_ref(), call).await {
            Ok(RanOnce { reply }) => {
                let mut reply = spec.identity().complete(reply);
                // Known here, whatever the far side says of it.
                reply.cell.id = Some(id);
                reply.kernel = KernelInfo { id: None, reused: false, state: State::None, ..reply.kernel };
                Ok(reply)
            }
            Err(e) if was_not_run(&e) => Err(e),
            Err(e) => Ok(lost(&spec.identity(), id, &e)),
        }
    }

    /// Gives the processes of an idle stream back, and waits until a command gets through.
    async fn make_room(
        &self,
        site: Arc<Site>,
        target: &Target,
        commands: &ExecLink,
        python: Option<&str>,
    ) -> Result<()> {
        // The next one to come connects anew; kernels that have this link keep it.
        self.sites.lock().unwrap_or_else(PoisonError::into_inner).remove(target);
        drop(site);
        let (until, mut pauses) = (Instant::now() + ENDING, Pauses::new());
        loop {
            let Err(e) = link::ask::<Value>(commands, call(&Operation::List {}, python, ENDING)).await else {
                return Ok(());
            };
            let pause = pauses.next_pause();
            if Instant::now() + pause >= until {
                return Err(e);
            }
            tokio::time::sleep(pause).await;
        }
    }
}

fn call<'a>(operation: &'a Operation, python: Option<&'a str>, bound: Duration) -> Call<'a> {
    Call { operation, base: None, dir: None, python, deadline: Instant::now() + bound }
}

/// Nothing has reached the target, or the far side has said so itself, which it does only before it begins.
fn was_not_run(e: &Error) -> bool {
    e.step() == Some(Step::Connect)
        || matches!(e.kind(), ErrorKind::BadInput | ErrorKind::NoPlace | ErrorKind::NoProcess)
}

/// The reply for a cell whose fate is not known, and never will be.
fn lost(identity: &Identity, id: CellId, e: &Error) -> Reply {
    let hint = "the cell may have run, and its reply cannot be fetched; look at what it was to change before you run it again";
    let error = ErrorInfo::lost(e, format!("no reply: {e}"), hint);
    let kernel = identity.kernel(None, false, State::None, None);
    Reply::without_run(Status::Lost, error, CellInfo { id: Some(id), number: None }, kernel)
}
