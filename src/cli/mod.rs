//! The command line: one file per subcommand, and what they share.

mod args;
mod bench;
mod completions;
mod config;
mod context;
mod display;
mod doctor;
mod exit;
mod logs;
mod manage;
mod output;
mod ps;
mod repl;
mod result;
mod run;
mod show;
mod tools;
mod transfer;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use self::context::Context;
use self::exit::Exit;

/// Persistent Python kernels on any machine that can be reached.
///
/// One call runs one cell; variables survive to the next call, and what a cell printed is never lost.
#[derive(Debug, Parser)]
#[command(name = "farcell", version, max_term_width = 100, after_help = EXAMPLES, subcommand_required = true, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    global: args::Global,
    #[command(subcommand)]
    command: Command,
}

const EXAMPLES: &str = "\
Examples:
  farcell run 'x = 41'                        run a cell on this machine
  farcell run 'x + 1'                         42: the kernel is still there
  farcell run --on 'exec:docker exec -i web' -f job.py
  farcell run --on docker+run://python:3 'x'  in a container of its own, without network
  farcell run --detach --timeout 1h -f long.py
  farcell repl                                the same kernel, interactively
  farcell put --on web data.csv /srv/         copy a file there, and get to copy one back
  farcell ps                                  kernels, and what they do

Exit status of run: 0 ok, 1 exception, n for sys.exit(n), 124 deadline, 130 interrupted,
137 died, 125 farcell itself failed, 2 wrong usage.";

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a cell in a session's kernel, starting the kernel if there is none
    Run(run::Args),
    /// Type cells at a prompt
    Repl(repl::Args),
    /// List kernels and what they do
    Ps(ps::Args),
    /// Fetch the reply of a cell that was sent earlier
    Result(result::Args),
    /// Show what the current cell has printed so far
    Logs(logs::Args),
    /// Interrupt the running cell; the variables stay
    Interrupt(manage::InterruptArgs),
    /// Throw the variables away; the kernel stays
    Reset(manage::ResetArgs),
    /// End kernels
    Stop(manage::StopArgs),
    /// Copy files of this machine to a target
    Put(transfer::PutArgs),
    /// Copy files of a target to this machine
    Get(transfer::GetArgs),
    /// Say whether a target is fit for kernels, and what is missing
    Doctor(doctor::Args),
    /// Measure how quick a target is
    Bench(bench::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
}

/// Runs the program.
pub(crate) fn main() -> ExitCode {
    let cli = Cli::parse();
    output::start_logging(cli.global.verbose);
    let json = cli.global.json;
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let outcome = match runtime {
        Ok(runtime) => {
            let outcome = runtime.block_on(dispatch(cli));
            // A reader thread that waits for the terminal must not hold up the exit.
            runtime.shutdown_timeout(std::time::Duration::from_millis(100));
            outcome
        }
        Err(e) => Err(context::local_error("cannot start the runtime", e)),
    };
    match outcome {
        Ok(exit) => exit.into(),
        Err(e) => {
            output::error(&e, json);
            exit::of_error(&e).into()
        }
    }
}

async fn dispatch(cli: Cli) -> farcell::Result<Exit> {
    if let Command::Completions(args) = &cli.command {
        return completions::run(args);
    }
    let context = Context::new(&cli.global)?;
    match cli.command {
        Command::Run(args) => run::run(&context, args).await,
        Command::Repl(args) => repl::run(&context, args).await,
        Command::Ps(args) => ps::run(&context, &args).await,
        Command::Result(args) => result::run(&context, &args).await,
        Command::Logs(args) => logs::run(&context, &args).await,
        Command::Interrupt(args) => manage::interrupt(&context, &args).await,
        Command::Reset(args) => manage::reset(&context, &args).await,
        Command::Stop(args) => manage::stop(&context, &args).await,
        Command::Put(args) => transfer::put(&context, args).await,
        Command::Get(args) => transfer::get(&context, args).await,
        Command::Doctor(args) => doctor::run(&context, &args).await,
        Command::Bench(args) => bench::run(&context, &args).await,
        Command::Completions(args) => completions::run(&args),
    }
}
