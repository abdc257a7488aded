//! `anabranch shuffle keys`: certificates by which coordinator, agents and operators authenticate
//! each other.

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
    /// The folder of the set. A missing folder is created with a new authority and a coordinator's
    /// keys. The authority of an existing folder makes the new keys. A folder holds one system's
    /// keys only.
    #[arg(long, value_name = "DIR", default_value = "keys/shuffle")]
    out: PathBuf,
    /// Names of the hosts.
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    hosts: Vec<String>,
    /// Names of operators, who may watch coflows, flows and rates but change nothing.
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    operators: Vec<String>,
    /// Host names or addresses of the coordinator, for curl.
    #[arg(long, value_name = "HOST,HOST", value_delimiter = ',')]
    coordinator_hosts: Vec<String>,
    /// Days until the certificates expire, unless the authority expires earlier.
    #[arg(long, value_name = "DAYS", default_value_t = VALID_DAYS)]
    valid_days: u32,
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    if let Some(change) = &args.change {
        return change.run(anabranch_shuffle::SYSTEM, quiet);
    }
    ensure_usage!(
        !(args.hosts.is_empty() && args.operators.is_empty()),
        "no names: give --hosts, --operators, or both"
    );
    let request = SetRequest {
        system: anabranch_shuffle::SYSTEM,
        sites: args.hosts.clone(),
        operators: args.operators.clone(),
        controller_hosts: args.coordinator_hosts.clone(),
        valid_days: args.valid_days,
    };
    crate::keys::make_or_add(&args.out, &request, quiet)?;
    Ok(ExitCode::SUCCESS)
}
