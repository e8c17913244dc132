//! `farcell completions`: scripts for shells.

use clap::CommandFactory as _;
use clap_complete::Shell;
use farcell::Result;

use super::exit::Exit;
use super::output;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Example:\n  farcell completions bash > ~/.local/share/bash-completion/completions/farcell"
)]
pub(crate) struct Args {
    /// The shell; found by $SHELL if not given
    #[arg(value_enum)]
    shell: Option<Shell>,
}

pub(crate) fn run(args: &Args) -> Result<Exit> {
    let shell = args.shell.or_else(Shell::from_env).unwrap_or(Shell::Bash);
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut super::Cli::command(), "farcell", &mut script);
    output::bytes(&script);
    Ok(Exit::OK)
}
