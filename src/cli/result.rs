//! `farcell result`: the reply of a cell that was sent earlier.

use std::time::Duration;

use farcell::{CellId, CellNumber, Fetched, Result, Which};
use serde_json::json;

use super::args::{self, SessionArgs};
use super::context::Context;
use super::exit::{self, Exit};
use super::output;
use super::show::Live;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The exit status is that of the cell; 124 if it has not ended yet.
A reply is kept until a later cell of the session is run after it was delivered.")]
pub(crate) struct Args {
    #[command(flatten)]
    session: SessionArgs,
    /// Which cell, by its number or by its id; the last one if not given
    #[arg(value_name = "CELL", value_parser = which)]
    cell: Option<Which>,
    /// Wait for the cell to end
    #[arg(short, long)]
    wait: bool,
    /// How long to wait at most
    #[arg(long, value_name = "TIME", value_parser = args::duration, default_value = "24h", requires = "wait")]
    timeout: Duration,
}

fn which(text: &str) -> std::result::Result<Which, String> {
    if let Ok(number) = text.parse() {
        return Ok(Which::Number(CellNumber(number)));
    }
    CellId::parse(text)
        .map(Which::Id)
        .map_err(|_| "it is neither a number nor an id of 32 hex digits".to_owned())
}

pub(crate) async fn run(context: &Context, args: &Args) -> Result<Exit> {
    let session = context.session(&args.session, None)?;
    let which = args.cell.clone().unwrap_or(Which::Last);
    let wait = if args.wait { args.timeout } else { Duration::ZERO };
    let live = Live::new(context, &session.key().session, context.json);
    let fetched = tokio::select! {
        fetched = session.fetch(&which, wait, &live) => fetched?,
        _ = tokio::signal::ctrl_c() => {
            output::note("the cell goes on");
            return Ok(Exit::INTERRUPTED);
        }
    };
    match fetched {
        Fetched::Settled(reply) => {
            if context.json {
                output::document(&reply);
            } else {
                live.finish(&reply);
            }
            Ok(exit::of_reply(&reply))
        }
        Fetched::Running { number, for_ms } => {
            if context.json {
                output::document(&json!({ "cell": {"number": number}, "running_ms": for_ms }));
            } else {
                output::note(&format!("cell {number} has been running for {:.1} s", for_ms / 1000.0));
            }
            Ok(Exit::DEADLINE)
        }
        Fetched::Waiting { number, ahead } => {
            if context.json {
                output::document(&json!({ "cell": {"number": number}, "ahead": ahead }));
            } else {
                output::note(&format!("cell {number} waits for {ahead} other(s)"));
            }
            Ok(Exit::DEADLINE)
        }
    }
}
