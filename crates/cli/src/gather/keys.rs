//! `anabranch gather keys`: certificates with which servers and clients know each other.

use anabranch_net::keys::{SetRequest, VALID_DAYS, add_to_set, make_set, write_set};
use anyhow::ensure;
use std::path::PathBuf;
use std::process::ExitCode;

/// For whom, and where.
#[derive(clap::Args)]
pub struct Args {
    /// The folder to make, with an authority of its own; or that of an authority which is there, that makes more.
    #[arg(long, value_name = "DIR", default_value = "keys")]
    out: PathBuf,
    /// Names of the servers.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "server")]
    servers: Vec<String>,
    /// Names of the clients.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "client")]
    clients: Vec<String>,
    /// Days until the certificates expire, if the authority does not before.
    #[arg(long, value_name = "DAYS", default_value_t = VALID_DAYS)]
    valid_days: u32,
}

/// Runs it.
///
/// Errors: one line for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    ensure!(
        !(args.servers.is_empty() && args.clients.is_empty()),
        "keys for nobody: name --servers, --clients, or both"
    );
    let request = SetRequest {
        sites: args.servers.clone(),
        operators: args.clients.clone(),
        controller_hosts: vec![],
        valid_days: args.valid_days,
    };
    let is_there = args.out.join("ca.key").exists();
    let set = if is_there { add_to_set(&args.out, &request)? } else { make_set(&request)? };
    write_set(&args.out, &set)?;
    if !quiet {
        let names: Vec<_> = args.servers.iter().chain(&args.clients).map(String::as_str).collect();
        eprintln!(
            "keys for {} in {}/: each machine needs ca.pem and its own pair",
            names.join(", "),
            args.out.display()
        );
    }
    Ok(ExitCode::SUCCESS)
}
