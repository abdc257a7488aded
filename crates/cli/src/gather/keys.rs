//! `anabranch gather keys`: certificates by which servers and clients authenticate each other.

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
    #[arg(long, value_name = "DIR", default_value = "keys/gather")]
    out: PathBuf,
    /// Names of the servers, separated by commas. Without: `server`, or none where an old set
    /// gets only clients.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    servers: Vec<String>,
    /// Names of the clients, separated by commas. Without: `client`, or none where an old set
    /// gets only servers.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    clients: Vec<String>,
    /// Days until the certificates expire, unless the authority expires earlier.
    #[arg(long, value_name = "DAYS", default_value_t = VALID_DAYS)]
    valid_days: u32,
}

/// Runs the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    if let Some(change) = &args.change {
        return change.run(anabranch_gather::SYSTEM, quiet);
    }
    let has_names = !(args.servers.is_empty() && args.clients.is_empty());
    let is_addition = has_names && args.out.join("ca.key").exists();
    let names = |given: &[String], default: &str| {
        if given.is_empty() && !is_addition { vec![default.to_owned()] } else { given.to_vec() }
    };
    let request = SetRequest {
        system: anabranch_gather::SYSTEM,
        sites: names(&args.servers, "server"),
        operators: names(&args.clients, "client"),
        controller_hosts: vec![],
        valid_days: args.valid_days,
    };
    crate::keys::make_or_add(&args.out, &request, quiet)?;
    Ok(ExitCode::SUCCESS)
}
