//! `farcell logs`: what a cell has printed so far, or what its supervisor has noted.

use std::time::Duration;

use farcell::{
    CellNumber, Error, ErrorKind, Event, Fetched, ReadFile, Result, Session, Step, Stream, TextDecoder, Which,
};

use super::args::SessionArgs;
use super::context::Context;
use super::exit::Exit;
use super::output;

/// How much is read at once.
const PIECE: u64 = 1024 * 1024;
/// How long to wait for a running cell before its file is looked at again.
const PAUSE: Duration = Duration::from_millis(300);

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Unlike a reply, this is all of the output, as far as it was kept (64 MiB a cell); cleaned alike, unless with --raw.
The output of a cell is there until its reply has been acknowledged, and longer if the reply left some of it out.")]
pub(crate) struct Args {
    #[command(flatten)]
    session: SessionArgs,
    /// Which cell; the last one if not given
    #[arg(long, value_name = "NUMBER")]
    cell: Option<u64>,
    /// Go on until the cell ends
    #[arg(short, long)]
    follow: bool,
    /// The supervisor's own log instead
    #[arg(long, conflicts_with_all = ["cell", "follow"])]
    supervisor: bool,
}

pub(crate) async fn run(context: &Context, args: &Args) -> Result<Exit> {
    if context.json {
        return Err(Error::new(ErrorKind::BadInput, "logs prints text, not a JSON document")
            .at(Step::Parse)
            .with_hint("`farcell result --json` prints the reply of a cell"));
    }
    let session = context.session(&args.session, None)?;
    if args.supervisor {
        return supervisor(&session).await;
    }
    let which = args.cell.map_or(Which::Last, |n| Which::Number(CellNumber(n)));
    let number = match args.cell {
        Some(n) => CellNumber(n),
        None => number(&session, &which).await?,
    };
    let mut transcript = session.transcript(number, &print);
    loop {
        // Asked before reading, so that what was printed until the end is not missed.
        let ended = has_ended(&session, number).await?;
        transcript.catch_up().await?;
        if ended || !args.follow {
            transcript.finish(ended);
            return Ok(Exit::OK);
        }
        transcript.let_go();
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            _ = tokio::signal::ctrl_c() => return Ok(Exit::INTERRUPTED),
        }
    }
}

fn print(event: Event) {
    match event {
        Event::Output { stream: Stream::Stdout, text, .. } => output::raw_stdout(&text),
        Event::Output { stream: Stream::Stderr, text, .. } => output::raw_stderr(&text),
        _ => {}
    }
}

async fn number(session: &Session, which: &Which) -> Result<CellNumber> {
    Ok(match session.look(which).await? {
        Fetched::Settled(reply) => reply.cell.number.unwrap_or(CellNumber(0)),
        Fetched::Running { number, .. } | Fetched::Waiting { number, .. } => number,
    })
}

async fn has_ended(session: &Session, number: CellNumber) -> Result<bool> {
    match session.look(&Which::Number(number)).await {
        Ok(fetched) => Ok(matches!(fetched, Fetched::Settled(_))),
        // Acknowledged by somebody else: it has certainly ended.
        Err(e) if e.kind() == ErrorKind::UnknownCell => Ok(true),
        Err(e) => Err(e),
    }
}

async fn supervisor(session: &Session) -> Result<Exit> {
    let (mut offset, mut decoder, mut text) = (0, TextDecoder::default(), session.cleaner().stream());
    loop {
        let piece = session.read(ReadFile::Log, None, offset, PIECE).await?;
        output::raw_stdout(&text.push(&decoder.push(&piece.bytes)));
        if piece.bytes.is_empty() {
            output::raw_stdout(&text.finish(false));
            return Ok(Exit::OK);
        }
        offset = piece.next;
    }
}
