//! `anabranch spray keys`: certificates by which agents authenticate each other.

use crate::keys::Change;
use anabranch_net::keys::{SetRequest, VALID_DAYS};
use std::path::PathBuf;
use std::process::ExitCode;

/// Holders of the keys, and the folder of the set.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    change: Option<Change>,
    /// Folder of the set. If it does not exist, it is created with a new authority; otherwise its
    /// authority makes the new keys. A folder holds one system's keys only.
    #[arg(long, value_name = "DIR", default_value = "keys/spray")]
    out: PathBuf,
    /// Names of the hosts, separated by commas.
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    hosts: Vec<String>,
    /// Days until the certificates expire, unless the authority expires earlier.
    #[arg(long, value_name = "DAYS", default_value_t = VALID_DAYS)]
    valid_days: u32,
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    if let Some(change) = &args.change {
        return change.run(anabranch_spray::SYSTEM, quiet);
    }
    ensure_usage!(!args.hosts.is_empty(), "no names: give --hosts");
    let request = SetRequest {
        system: anabranch_spray::SYSTEM,
        sites: args.hosts.clone(),
        operators: vec![],
        controller_hosts: vec![],
        valid_days: args.valid_days,
    };
    crate::keys::make_or_add(&args.out, &request, quiet)?;
    Ok(ExitCode::SUCCESS)
}
