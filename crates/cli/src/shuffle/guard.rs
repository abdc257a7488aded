//! `anabranch shuffle guard`: the process that an agent starts to lift its limits if it is killed.

use anabranch_shuffle::agent::guard::watch;
use std::path::PathBuf;
use std::process::ExitCode;

/// The agent's state.
#[derive(clap::Args)]
pub struct Args {
    /// The agent's state file.
    #[arg(long, value_name = "FILE")]
    state: PathBuf,
    /// Device on which the agent may have a queue.
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
}

/// Runs until the agent ends.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    watch(&args.state, args.device.as_deref())?;
    Ok(ExitCode::SUCCESS)
}
