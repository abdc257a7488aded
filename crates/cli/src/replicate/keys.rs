//! `anabranch replicate keys init`: a working set of certificates for mutual TLS.

use crate::network::TopologyArgs;
use anabranch_net::keys::{SetRequest, VALID_DAYS, make_set, write_set};
use std::path::PathBuf;
use std::process::ExitCode;

/// What to do with keys.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Make an authority, and a certificate and key for the controller, every site and an operator.
    Init(InitArgs),
}

/// For whom, and where to.
#[derive(clap::Args)]
pub struct InitArgs {
    #[command(flatten)]
    network: TopologyArgs,
    /// The folder to make; it must not exist. Each machine then gets ca.pem and its own pair, nothing else.
    #[arg(long, value_name = "DIR", default_value = "keys")]
    out: PathBuf,
    /// Names of the operators who may submit transfers.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "operator")]
    operators: Vec<String>,
    /// Host names or addresses of the controller, for browsers and curl.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    controller_hosts: Vec<String>,
    /// Days until the certificates expire.
    #[arg(long, value_name = "DAYS", default_value_t = VALID_DAYS)]
    valid_days: u32,
}

/// Runs it.
///
/// Errors: one line for the user.
pub fn run(command: &Command, quiet: bool) -> anyhow::Result<ExitCode> {
    let Command::Init(args) = command;
    let topology = args.network.load()?;
    let request = SetRequest {
        sites: topology.sites().iter().map(|s| s.name.clone()).collect(),
        operators: args.operators.clone(),
        controller_hosts: args.controller_hosts.clone(),
        valid_days: args.valid_days,
    };
    write_set(&args.out, &make_set(&request)?)?;
    if quiet {
        return Ok(ExitCode::SUCCESS);
    }
    eprintln!(
        "keys for the controller, {} sites and {} in {}/; valid {} days; ca.key makes new ones: keep it apart",
        request.sites.len(),
        request.operators.join(", "),
        args.out.display(),
        args.valid_days
    );
    Ok(ExitCode::SUCCESS)
}
