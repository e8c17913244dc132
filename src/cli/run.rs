//! `farcell run`: one cell.

use std::io::Read as _;
use std::path::PathBuf;
use std::time::Duration;

use farcell::{Cell, CellId, Echo, Error, ErrorKind, Reply, Result, Session, Status, Step};
use serde_json::json;
use tokio::signal::unix::{SignalKind, signal};

use super::args::{self, KernelArgs, SessionArgs};
use super::context::{Context, environment, local_error};
use super::exit::{self, Exit};
use super::output;
use super::show::Live;
use super::tools::ToolArgs;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  farcell run 'x = 41'
  farcell run -s work --timeout 10m -f train.py
  echo 'print(6 * 7)' | farcell run -
  farcell run --json '1/0'                    one JSON document: the reply
  farcell run --tool 'search=python3 search.py' 'from farcell_tools import search; search(\"x\")'
  farcell run --detach --timeout 1h -f long.py; farcell result --wait

Ctrl-C interrupts the cell and keeps the variables; a second Ctrl-C does not wait for that.
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
    #[arg(short, long, conflicts_with = "tools")]
    detach: bool,
    /// How much of each output stream the reply holds [default: 1M]
    #[arg(long, value_name = "SIZE", value_parser = args::size)]
    max_output: Option<u64>,
    /// Which values are shown: that of a last expression, or of every expression as at Python's prompt
    #[arg(long, value_enum, default_value = "last")]
    echo: EchoArg,
    #[command(flatten)]
    tools: ToolArgs,
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
    let cell = cell.tools(args.tools.tools(context).await?);
    let live =
        Live::new(context, &session.key().session, context.json).trace_tools(args.tools.traces(context));
    let outcome = tokio::select! {
        outcome = run_interruptibly(&session, &cell, &live) => outcome,
        // What tools have started ends with us, so that we must not end without a word.
        exit = terminated(), if cell.tools.is_some() => return exit,
    };
    match outcome {
        Ok(reply) => {
            show(context, &live, &reply);
            let unused =
                [("--python", args.kernel.python.is_some()), ("--limit", !args.kernel.limits.is_empty())];
            for (name, _) in unused.iter().filter(|(_, given)| *given && reply.kernel.reused) {
                output::note(&format!(
                    "{name} was not used, as the session has its kernel; it counts after `farcell stop`"
                ));
            }
            Ok(exit::of_reply(&reply))
        }
        Err(e) if context.json => {
            output::document(&session.refusal(&e));
            Ok(exit::of_error(&e))
        }
        Err(e) => Err(e),
    }
}

/// The error for a cell that Ctrl-C kept from running.
fn withdrawn() -> Error {
    Error::new(ErrorKind::Interrupted, "the cell was taken back before it began; it was not run")
}

/// The error for a cell without a kernel, which ends with whoever waits for it.
fn abandoned() -> Error {
    Error::new(ErrorKind::Interrupted, "the cell ran without a kernel, and was ended with this command")
}

/// The error for a cell that was left while it was being interrupted.
fn left(_pressed_again: ()) -> Error {
    Error::new(ErrorKind::Interrupted, "left while the cell was being ended")
        .with_hint("`farcell result --wait` tells how it ended")
}

/// Runs a cell. Ctrl-C interrupts it, and no other cell of its session; a second one leaves it alone.
pub(crate) async fn run_interruptibly(session: &Session, cell: &Cell, live: &Live) -> Result<Reply> {
    let running = session.run(cell, live);
    tokio::pin!(running);
    tokio::select! {
        outcome = &mut running => return outcome,
        pressed = ctrl_c() => pressed?,
    }
    let Some(id) = live.cell() else { return Err(withdrawn()) };
    if live.is_alone() {
        return Err(abandoned());
    }
    let ending = end(session, &id);
    tokio::pin!(ending);
    tokio::select! {
        outcome = &mut running => {
            if outcome.as_ref().is_ok_and(|reply| reply.status == Status::Lost) {
                // Whoever follows a cell that is being taken back may hear before us that there is none any more.
                tokio::select! {
                    ended = &mut ending => if matches!(ended, Ok(Ending::Withdrawn)) { return Err(withdrawn()) },
                    pressed = ctrl_c() => pressed?,
                }
            }
            return outcome;
        }
        pressed = ctrl_c() => return Err(pressed.map_or_else(|e| e, left)),
        ended = &mut ending => match ended {
            Ok(Ending::Withdrawn) => return Err(withdrawn()),
            Ok(Ending::Interrupted) => {}
            Ok(Ending::Neither(why)) => output::note(&why),
            Err(e) => output::note(&format!("the cell could not be interrupted: {e}")),
        },
    }
    tokio::select! {
        outcome = &mut running => outcome,
        pressed = ctrl_c() => Err(pressed.map_or_else(|e| e, left)),
    }
}

/// Waits for a signal that would end this process at once.
async fn terminated() -> Result<Exit> {
    let listen = |kind: SignalKind| signal(kind).map_err(|e| local_error("cannot listen for signals", e));
    let (mut term, mut hup) = (listen(SignalKind::terminate())?, listen(SignalKind::hangup())?);
    Ok(tokio::select! {
        _ = term.recv() => Exit::of_signal(15),
        _ = hup.recv() => Exit::of_signal(1),
    })
}

async fn ctrl_c() -> Result<()> {
    tokio::signal::ctrl_c().await.map_err(|e| local_error("cannot listen for Ctrl-C", e))
}

enum Ending {
    Interrupted,
    Withdrawn,
    Neither(String),
}

/// Interrupts a cell if it runs, or takes it back if it waits.
async fn end(session: &Session, id: &CellId) -> Result<Ending> {
    let done = session.interrupt_cell(id).await?;
    if done.done {
        return Ok(Ending::Interrupted);
    }
    if session.withdraw(id).await? {
        return Ok(Ending::Withdrawn);
    }
    Ok(Ending::Neither(done.detail.unwrap_or_else(|| "nothing was interrupted".to_owned())))
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
    if !context.registry.driver(&session.key().target)?.keeps_kernels() {
        let target = &session.key().target;
        return Err(Error::new(
            ErrorKind::BadInput,
            format!("the kernels of {target} end with this command"),
        )
        .at(Step::Parse)
        .with_hint("--detach needs a target whose kernels stay, such as local:"));
    }
    let sent = session.submit(cell, &live).await?;
    let key = session.key();
    if context.json {
        output::document(&json!({
            "cell": {"id": sent.id, "number": sent.number},
            "kernel": {
                "id": sent.kernel, "target": key.target, "session": key.session, "owner": key.owner, "note": sent.note,
            },
        }));
    } else {
        output::line(&format!("cell {} of session {:?} on {}", sent.number, key.session, key.target));
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
