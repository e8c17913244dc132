//! `farcell put` and `farcell get`.

use std::io::{self, IsTerminal as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use farcell::{Error, ErrorKind, Result, Step, Target, TransferOptions, TransferProgress, Transferred};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::args::{self, SessionArgs};
use super::context::{Context, local_error};
use super::exit::{self, Exit};
use super::output;

const PUT_EXAMPLES: &str = "\
A relative REMOTE begins where a new kernel of the target would: in the current directory for
local:, else in the home directory, which ~/ names too. Into a directory a file goes under its own
name. An existing file is replaced when the new one is there as a whole, and checked; until then
it stays as it is. Permissions travel along. Links are followed; a link in place of the
destination is replaced.

What was cut off is not lost: the same command goes on where it was.

Examples:
  farcell put data.csv /srv/data/                    into a directory of this machine
  farcell put --on web *.py app/                     several files, into ~/app
  farcell put --on web -p conf.toml .config/x/       make .config/x if it is missing
  tar cz src | farcell put --on web - src.tgz        what comes on stdin
  farcell put --json --on web big.bin /data/big.bin  {\"path\":\"/data/big.bin\",\"bytes\":…

Exit status: 0 ok, 124 --timeout has passed, 125 a file was not copied, 2 wrong usage. After a file
that cannot be copied, those behind it are.";

const GET_EXAMPLES: &str = "\
A relative REMOTE begins where a new kernel of the target would: in the current directory for
local:, else in the home directory, which ~/ names too. Patterns are not expanded there. Into a
directory a file goes under its own name. An existing file is replaced when the new one is here as
a whole, and checked; until then it stays as it is. Permissions travel along.

What was cut off is not lost: the same command goes on where it was.

Examples:
  farcell get --on web /var/log/app.log .            into the current directory
  farcell get --on web results.csv '~/x y' out/      several files, into a directory
  farcell get --on web app.log - | grep ERROR        to stdout, when it is here as a whole

Exit status: 0 ok, 124 --timeout has passed, 125 a file was not copied, 2 wrong usage. After a file
that cannot be copied, those behind it are.";

#[derive(Debug, clap::Args)]
struct Common {
    // The session counts where each has a machine of its own, such as a sandbox.
    #[command(flatten)]
    session: SessionArgs,
    /// Make the directories that the destination needs
    #[arg(short, long)]
    parents: bool,
    /// Give up after so long, such as 90s or 5m; without it only when nothing gets through any more
    #[arg(long, value_name = "DURATION", value_parser = args::duration)]
    timeout: Option<Duration>,
    /// The Python to run, as a path or name on the target
    #[arg(long, value_name = "PATH")]
    python: Option<String>,
    /// Print nothing but errors
    #[arg(short, long)]
    quiet: bool,
}

#[derive(Debug, clap::Args)]
#[command(after_help = PUT_EXAMPLES, override_usage = "farcell put [OPTIONS] LOCAL... REMOTE")]
pub(crate) struct PutArgs {
    #[command(flatten)]
    common: Common,
    /// Files of this machine, or - for stdin; then the file or directory on the target
    #[arg(required = true, num_args = 2.., value_name = "PATHS")]
    paths: Vec<PathBuf>,
}

#[derive(Debug, clap::Args)]
#[command(after_help = GET_EXAMPLES, override_usage = "farcell get [OPTIONS] REMOTE... LOCAL")]
pub(crate) struct GetArgs {
    #[command(flatten)]
    common: Common,
    /// Files of the target; then the file or directory on this machine, or - for stdout
    #[arg(required = true, num_args = 2.., value_name = "PATHS")]
    paths: Vec<PathBuf>,
}

pub(crate) async fn put(context: &Context, args: PutArgs) -> Result<Exit> {
    let (sources, to) = split(args.paths)?;
    let to = text(&to)?;
    let mut copying = Copying::new(context, args.common, sources.len() > 1)?;
    for source in &sources {
        if is_dash(source) {
            let spooled = spool()?;
            // A directory needs a name for it.
            copying.options.name = Some("stdin".to_owned());
            let outcome = copying.put(spooled.path(), &to, "stdin").await;
            copying.options.name = None;
            copying.tell("stdin", outcome)?;
        } else {
            let shown = source.display().to_string();
            let outcome = copying.put(source, &to, &shown).await;
            copying.tell(&shown, outcome)?;
        }
    }
    Ok(copying.exit)
}

pub(crate) async fn get(context: &Context, args: GetArgs) -> Result<Exit> {
    let (sources, to) = split(args.paths)?;
    let to_stdout = is_dash(&to);
    if to_stdout && context.json {
        return Err(usage("with --json stdout is for the document: name a file, not -"));
    }
    let mut copying = Copying::new(context, args.common, sources.len() > 1 && !to_stdout)?;
    for source in &sources {
        let source = text(source)?;
        if to_stdout {
            let spooled =
                tempfile::tempdir().map_err(|e| local_error("cannot make a temporary directory", e))?;
            let path = spooled.path().join("file");
            let outcome = copying.get(&source, &path).await;
            match outcome {
                Ok(_) => pour(&path)?,
                Err(e) => copying.tell(&source, Err(e))?,
            }
        } else {
            let outcome = copying.get(&source, &to).await;
            copying.tell(&source, outcome)?;
        }
    }
    Ok(copying.exit)
}

/// The sources, and where they go.
fn split(mut paths: Vec<PathBuf>) -> Result<(Vec<PathBuf>, PathBuf)> {
    let to = paths.pop().ok_or_else(|| usage("a destination is missing"))?;
    Ok((paths, to))
}

fn usage(message: &str) -> Error {
    Error::new(ErrorKind::BadInput, message).at(Step::Parse)
}

fn text(path: &Path) -> Result<String> {
    let text = path.to_str().map(str::to_owned);
    text.ok_or_else(|| usage(&format!("{path:?} is not UTF-8, as paths on a target are")))
}

fn is_dash(path: &Path) -> bool {
    path.as_os_str() == "-"
}

/// What comes on stdin, as a file: a transfer wants to know how long it is.
fn spool() -> Result<tempfile::NamedTempFile> {
    let failed = |e| local_error("cannot read stdin", e);
    let mut file = tempfile::NamedTempFile::new().map_err(failed)?;
    io::copy(&mut io::stdin().lock(), &mut file).map_err(failed)?;
    file.rewind().map_err(failed)?;
    Ok(file)
}

/// Prints a file on stdout.
fn pour(path: &Path) -> Result<()> {
    let failed = |e| local_error("cannot print the file", e);
    let mut file = std::fs::File::open(path).map_err(failed)?;
    let mut out = io::stdout().lock();
    match io::copy(&mut file, &mut out).and_then(|_| out.flush()) {
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => std::process::exit(141),
        printed => printed.map_err(failed),
    }
}

/// Some files on their way.
struct Copying<'a> {
    context: &'a Context,
    target: Target,
    options: TransferOptions,
    quiet: bool,
    /// The status of the first file that could not be copied.
    exit: Exit,
}

impl<'a> Copying<'a> {
    fn new(context: &'a Context, common: Common, into: bool) -> Result<Self> {
        let Common { session, parents, timeout, python, quiet } = common;
        let (target, named) = context.target_of(&session)?;
        let key = Some(context.session(&session, None)?.key().digest());
        let mut options =
            TransferOptions { parents, into, timeout, python, key, ..TransferOptions::default() };
        if let Some(named) = named {
            options.python = options.python.or_else(|| named.python.clone());
            options.dir.clone_from(&named.dir);
            options.cwd.clone_from(&named.cwd);
        }
        Ok(Copying { context, target, options, quiet, exit: Exit::OK })
    }

    async fn put(&self, from: &Path, to: &str, shown: &str) -> Result<Transferred> {
        let bar = self.bar(shown);
        let mut progress = |p| advance(&bar, p);
        let put = self.context.registry.put(&self.target, from, to, &self.options, &mut progress);
        let outcome = interruptible(put).await;
        bar.finish_and_clear();
        outcome
    }

    async fn get(&self, from: &str, to: &Path) -> Result<Transferred> {
        let bar = self.bar(from);
        let mut progress = |p| advance(&bar, p);
        let get = self.context.registry.get(&self.target, from, to, &self.options, &mut progress);
        let outcome = interruptible(get).await;
        bar.finish_and_clear();
        outcome
    }

    /// A bar for a person who looks at stderr; else nothing.
    fn bar(&self, shown: &str) -> ProgressBar {
        if self.quiet || self.context.json || !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let style = ProgressStyle::with_template(
            "{msg} {bar:25} {binary_bytes}/{binary_total_bytes} {binary_bytes_per_sec} {eta}",
        );
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
        bar.with_message(shown.to_owned())
    }

    /// Says what became of one file. Only an interrupt keeps those behind it from being copied.
    fn tell(&mut self, shown: &str, outcome: Result<Transferred>) -> Result<()> {
        match outcome {
            Ok(moved) if self.context.json => output::document(&moved),
            Ok(_) if self.quiet => {}
            Ok(moved) => output::aside(&sentence(shown, &moved)),
            Err(e) if e.kind() == ErrorKind::Interrupted => return Err(e),
            Err(e) => {
                output::error(&e, self.context.json);
                if self.exit == Exit::OK {
                    self.exit = exit::of_error(&e);
                }
            }
        }
        Ok(())
    }
}

fn advance(bar: &ProgressBar, progress: TransferProgress) {
    bar.set_length(progress.total);
    bar.set_position(progress.done);
}

fn sentence(shown: &str, moved: &Transferred) -> String {
    let Transferred { path, bytes, resumed_from, seconds, .. } = moved;
    let resumed =
        if *resumed_from > 0 { format!(", {resumed_from} of them were there") } else { String::new() };
    format!("{shown} -> {path} ({bytes} bytes in {seconds:.2} s{resumed})")
}

async fn interruptible(work: impl Future<Output = Result<Transferred>>) -> Result<Transferred> {
    tokio::select! {
        outcome = work => outcome,
        _ = tokio::signal::ctrl_c() => {
            Err(Error::new(ErrorKind::Interrupted, "the file was not copied")
                .with_hint("the same command goes on where this one has come to"))
        }
    }
}
