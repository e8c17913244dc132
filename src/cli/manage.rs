//! `farcell interrupt`, `reset` and `stop`.

use std::collections::BTreeSet;

use farcell::{CellNumber, Key, Result, Session, Target};
use serde_json::json;

use super::args::SessionArgs;
use super::context::Context;
use super::exit::Exit;
use super::output;

#[derive(Debug, clap::Args)]
pub(crate) struct InterruptArgs {
    #[command(flatten)]
    session: SessionArgs,
    /// Only if this cell is the one that runs
    #[arg(long, value_name = "NUMBER")]
    cell: Option<u64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct ResetArgs {
    #[command(flatten)]
    session: SessionArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "A running cell gets its reply (died) before its kernel ends.")]
pub(crate) struct StopArgs {
    #[command(flatten)]
    session: SessionArgs,
    /// All kernels of all sessions that this machine knows, and what was made for them; with --owner, those of the owner and its
    /// children
    #[arg(long, conflicts_with_all = ["session", "on"])]
    all: bool,
}

pub(crate) async fn interrupt(context: &Context, args: &InterruptArgs) -> Result<Exit> {
    let session = context.session(&args.session, None)?;
    let done = session.interrupt(args.cell.map(CellNumber)).await?;
    report(context, &session, "interrupted", done.done, done.detail.as_deref())
}

pub(crate) async fn reset(context: &Context, args: &ResetArgs) -> Result<Exit> {
    let session = context.session(&args.session, None)?;
    let done = session.reset().await?;
    report(context, &session, "reset", done.done, done.detail.as_deref())
}

pub(crate) async fn stop(context: &Context, args: &StopArgs) -> Result<Exit> {
    if !args.all {
        let session = context.session(&args.session, None)?;
        let stopped = session.stop().await?;
        return report(context, &session, "stopped", stopped, Some("there was no kernel"));
    }
    let owner = args.session.owner.as_deref();
    let places = if owner.is_none() { places(context) } else { BTreeSet::new() };
    let stopped = context.registry.dispose(|key: &Key| owner.is_none_or(|o| key.belongs_to(o))).await?;
    for (target, base) in &places {
        // What makes spawns quick goes as well. It would end by itself: no error of this command.
        match context.registry.driver(target)?.cool(target, base).await {
            Ok(ended) => tracing::debug!(%target, ended, "nothing is kept warm"),
            Err(e) => tracing::debug!(%target, "what is kept warm stays for a while: {e}"),
        }
    }
    if owner.is_none() {
        let closed = context.registry.close_kept().await;
        tracing::debug!(closed, "no connection is left open");
    }
    if context.json {
        output::document(&json!({ "stopped": stopped }));
    } else {
        output::line(&format!("{stopped} kernel(s) stopped"));
    }
    Ok(Exit::OK)
}

/// Where the kernels are that this machine knows.
fn places(context: &Context) -> BTreeSet<(Target, String)> {
    let kernels = context.registry.stored().into_iter();
    let places = kernels.filter_map(|s| s.kernel.map(|kernel| (s.key.target, kernel.base)));
    places.filter(|(_, base)| !base.is_empty()).collect()
}

fn report(
    context: &Context,
    session: &Session,
    what: &str,
    done: bool,
    detail: Option<&str>,
) -> Result<Exit> {
    let key = session.key();
    if context.json {
        output::document(
            &json!({ what: done, "detail": detail.filter(|_| !done), "session": key.session, "target": key.target }),
        );
    } else if done {
        output::line(&format!("{what}: session {:?} on {}", key.session, key.target));
    } else {
        output::note(&format!("not {what}: {}", detail.unwrap_or("the kernel gave no reason")));
    }
    Ok(if done { Exit::OK } else { Exit::NOT_DONE })
}
