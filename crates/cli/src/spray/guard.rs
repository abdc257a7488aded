//! `anabranch spray guard`: the process that returns TCP to the ordinary route if its agent is
//! stopped or killed.

use anabranch_spray::guard::watch;
use std::process::ExitCode;

/// The agent's table.
#[derive(clap::Args)]
pub struct Args {
    /// Routing table of the agent.
    #[arg(long, value_name = "N")]
    table: u32,
}

/// Runs until the agent ends.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    watch(args.table)?;
    Ok(ExitCode::SUCCESS)
}
