//! `farcell run`: one cell.

use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use farcell::{Cell, Echo, Error, ErrorKind, Reply, Result, Session, Step};
use serde_json::json;

use super::args::{self, KernelArgs, SessionArgs};
use super::context::{Context, environment};
use super::exit::{self, Exit};
use super::output;
use super::show::Live;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  farcell run 'x = 41'
  farcell run -s work --timeout 10m -f train.py
  echo 'print(6 * 7)' | farcell run -
  farcell run --json '1/0'                    one JSON document: the reply
  farcell run --detach 'import time; time.sleep(60)'; farcell result --wait

Ctrl-C interrupts the cell and keeps the variables; a second Ctrl-C leaves the cell running.
What the cell printed streams as it comes. More than --max-output is kept on the target:
`farcell logs --cell N` prints all of it.")]
pub(crate) struct Args {
    #[command(flatten)]
    session: SessionArgs,
    #[command(flatten)]
    kernel: KernelArgs,
    /// The code; `-` reads it from stdin
    #[arg(required_unless_present = "file")]
    code: Option<String>,
    /// Read the code from a file
    #[arg(short, long, value_name = "FILE", conflicts_with = "code")]
    file: Option<PathBuf>,
    /// How long the cell may run, such as 90s or 10m, or none [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = args::timeout)]
    timeout: Option<args::Timeout>,
    /// How long it may wait for other cells of the session
    #[arg(long, value_name = "TIME", value_parser = args::duration, default_value = "10m")]
    queue_timeout: Duration,
    /// Run it without the variables of earlier cells
    #[arg(long)]
    reset: bool,
    /// Send the cell and return at once; `farcell result` fetches the reply
    #[arg(short, long)]
    detach: bool,
    /// How much of each output stream the reply holds [default: 1M]
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    max_output: Option<u64>,
    /// Which values are shown: that of a last expression, or of every expression as at Python's prompt
    #[arg(long, value_enum, default_value = "last")]
    echo: EchoArg,
}

#[derive(Debug, Clone, Copy, clap::ValueEnum)]
enum EchoArg {
    Last,
    All,
}

pub(crate) async fn run(context: &Context, args: Args) -> Result<Exit> {
    let session = context.session(&args.session, Some(&args.kernel))?;
    let cell = cell(context, &args)?;
    if args.detach {
        return detach(context, &session, &cell).await;
    }
    let live = Live::new(context, &session.key().session, context.json);
    let Some(outcome) = run_interruptibly(&session, &cell, &live).await? else {
        output::note("the cell goes on; `farcell result --wait` fetches its reply");
        return Ok(Exit::INTERRUPTED);
    };
    match outcome {
        Ok(reply) => {
            show(context, &live, &reply);
            Ok(exit::of_reply(&reply))
        }
        Err(e) if context.json => {
            output::document(&session.refusal(&e));
            Ok(exit::of_error(&e))
        }
        Err(e) => Err(e),
    }
}

/// Runs a cell; Ctrl-C interrupts it, a second one leaves it alone. `None` if it was left.
pub(crate) async fn run_interruptibly(
    session: &Session,
    cell: &Cell,
    live: &Live,
) -> Result<Option<Result<Reply>>> {
    let running = session.run(cell, live);
    tokio::pin!(running);
    let mut presses = 0;
    loop {
        tokio::select! {
            outcome = &mut running => return Ok(Some(outcome)),
            signal = tokio::signal::ctrl_c() => {
                signal.map_err(|e| super::context::local_error("cannot listen for Ctrl-C", e))?;
                presses += 1;
                if presses > 1 {
                    return Ok(None);
                }
                let interrupting = session.interrupt(None);
                tokio::select! {
                    outcome = &mut running => return Ok(Some(outcome)),
                    done = interrupting => match done {
                        Ok(done) if !done.done => output::note(done.detail.as_deref().unwrap_or("nothing was interrupted")),
                        Ok(_) => {}
                        Err(e) => output::note(&format!("the cell could not be interrupted: {e}")),
                    },
                }
            }
        }
    }
}

fn show(context: &Context, live: &Live, reply: &Reply) {
    if context.json {
        output::document(reply);
    } else {
        live.finish(reply);
    }
}

async fn detach(context: &Context, session: &Session, cell: &Cell) -> Result<Exit> {
    let live = Live::new(context, &session.key().session, context.json);
    let number = session.submit(cell, &live).await?;
    let key = session.key();
    if context.json {
        output::document(&json!({
            "cell": {"number": number},
            "kernel": {"target": key.target, "session": key.session, "owner": key.owner},
        }));
    } else {
        output::line(&format!("cell {number} of session {:?} on {}", key.session, key.target));
    }
    Ok(Exit::OK)
}

fn cell(context: &Context, args: &Args) -> Result<Cell> {
    let defaults = &context.config.defaults;
    let mut cell = Cell::new(code(args)?);
    if let Some(args::Timeout(timeout)) = args.timeout.or(defaults.timeout) {
        cell.timeout = timeout;
    }
    cell.queue_timeout = args.queue_timeout;
    if let Some(size) = args.max_output.or(defaults.max_output) {
        cell.max_output = usize::try_from(size).unwrap_or(usize::MAX);
    }
    cell.echo = match args.echo {
        EchoArg::Last => Echo::Last,
        EchoArg::All => Echo::All,
    };
    cell.reset = args.reset;
    cell.cwd.clone_from(&args.kernel.cwd);
    cell.env.extend(environment(&args.kernel.env)?);
    Ok(cell)
}

fn code(args: &Args) -> Result<String> {
    let bad = |message: String| Error::new(ErrorKind::BadInput, message).at(Step::Parse);
    let (bytes, source) = match (&args.file, args.code.as_deref()) {
        (Some(path), _) => {
            let bytes =
                std::fs::read(path).map_err(|e| bad(format!("cannot read {}: {e}", path.display())))?;
            (bytes, path.display().to_string())
        }
        (None, Some("-") | None) => {
            let mut bytes = Vec::new();
            std::io::stdin().read_to_end(&mut bytes).map_err(|e| bad(format!("cannot read stdin: {e}")))?;
            (bytes, "stdin".to_owned())
        }
        (None, Some(code)) => return Ok(code.to_owned()),
    };
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        bad(format!("{source} is not UTF-8: the byte at offset {at} makes no sense"))
            .with_hint("save it as UTF-8; farcell does not read other encodings")
    })
}
