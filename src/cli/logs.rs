//! `farcell logs`: what a cell has printed so far, or what its supervisor has noted.

use std::time::Duration;

use farcell::bytes::{Bytes, BytesMut};
use farcell::wire::record;
use farcell::{
    CellNumber, Error, ErrorKind, Event, Fetched, ReadFile, RecordEvents, Result, Session, Step, Stream,
    Which,
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
Unlike a reply, this is all of the output, as far as it was kept (64 MiB a cell).
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
    let mut printer = Printer::default();
    loop {
        // Asked before reading, so that what was printed until the end is not missed.
        let ended = !args.follow || has_ended(&session, number).await?;
        printer.catch_up(&session, number).await?;
        if ended {
            return Ok(Exit::OK);
        }
        tokio::select! {
            () = tokio::time::sleep(PAUSE) => {}
            _ = tokio::signal::ctrl_c() => return Ok(Exit::INTERRUPTED),
        }
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
    let mut offset = 0;
    loop {
        let piece = session.read(ReadFile::Log, None, offset, PIECE).await?;
        if piece.bytes.is_empty() {
            return Ok(Exit::OK);
        }
        output::bytes(&piece.bytes);
        offset = piece.next;
    }
}

/// Prints the records of a cell's file as far as they are whole.
#[derive(Default)]
struct Printer {
    offset: u64,
    pending: BytesMut,
    records: RecordEvents,
}

impl Printer {
    async fn catch_up(&mut self, session: &Session, number: CellNumber) -> Result<()> {
        loop {
            let piece = session.read(ReadFile::Out, Some(number), self.offset, PIECE).await?;
            if piece.bytes.is_empty() {
                return Ok(());
            }
            self.offset = piece.next;
            self.pending.extend_from_slice(&piece.bytes);
            let bytes: Bytes = self.pending.split().freeze();
            let (records, used) = record::read(&bytes);
            self.pending.extend_from_slice(&bytes[used..]);
            self.records.emit(records, &|event: Event| match event {
                Event::Output { stream: Stream::Stdout, text } => output::raw_stdout(&text),
                Event::Output { stream: Stream::Stderr, text } => output::raw_stderr(&text),
                _ => {}
            });
        }
    }
}
