//! `anabranch broker keys`: certificates by which broker, networks and operators authenticate each
//! other.

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
    /// The folder of the set. A missing folder is created with a new authority and a broker's keys.
    /// The authority of an existing folder makes the new keys. A folder holds one system's keys
    /// only.
    #[arg(long, value_name = "DIR", default_value = "keys/broker")]
    out: PathBuf,
    /// Names of content networks, as in the broker's contracts file.
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    networks: Vec<String>,
    /// Names of operators, who may watch, set clients and report players' measurements.
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    operators: Vec<String>,
    /// Host names or addresses of the broker, for curl.
    #[arg(long, value_name = "HOST,HOST", value_delimiter = ',')]
    broker_hosts: Vec<String>,
    /// Days until the certificates expire, unless the authority expires earlier.
    #[arg(long, value_name = "DAYS", default_value_t = VALID_DAYS)]
    valid_days: u32,
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    if let Some(change) = &args.change {
        return change.run(anabranch_broker::SYSTEM, quiet);
    }
    ensure_usage!(
        !(args.networks.is_empty() && args.operators.is_empty()),
        "no names: give --networks, --operators, or both"
    );
    let request = SetRequest {
        system: anabranch_broker::SYSTEM,
        sites: args.networks.clone(),
        operators: args.operators.clone(),
        controller_hosts: args.broker_hosts.clone(),
        valid_days: args.valid_days,
    };
    crate::keys::make_or_add(&args.out, &request, quiet)?;
    Ok(ExitCode::SUCCESS)
}
