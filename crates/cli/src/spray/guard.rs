//! `anabranch spray guard`: the process that an agent starts, by which TCP goes the ordinary way if the agent stands still or is killed.

use anabranch_spray::guard::watch;
use std::process::ExitCode;

/// Whose guard.
#[derive(clap::Args)]
pub struct Args {
    /// The agent's routing table.
    #[arg(long, value_name = "N")]
    table: u32,
}

/// Runs it until its agent is gone.
///
/// Errors: one line for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    watch(args.table)?;
    Ok(ExitCode::SUCCESS)
}
