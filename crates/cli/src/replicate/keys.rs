//! `anabranch replicate keys`: a working set of certificates for mutual TLS, with later additions
//! of sites and operators.

use crate::keys::Change;
use crate::network::TopologyArgs;
use anabranch_net::keys::{SetRequest, VALID_DAYS, add_to_set, make_set, write_set};
use std::path::PathBuf;
use std::process::ExitCode;

/// Operations on keys.
#[derive(clap::Subcommand)]
pub enum Command {
    /// Make a new set: an authority, and keys for the controller, each site of a topology and an
    /// operator.
    Init(InitArgs),
    /// Make keys for more sites or operators, by the authority of an existing set.
    Add(AddArgs),
    #[command(flatten)]
    Change(Change),
}

/// Holders of the keys, and the folder of the set.
#[derive(clap::Args)]
pub struct AddArgs {
    /// The folder of the set, with ca.pem and ca.key.
    #[arg(long, value_name = "DIR", default_value = "keys/replicate")]
    keys: PathBuf,
    /// Names of the sites, as in the topology.
    #[arg(long, value_name = "SITE", value_delimiter = ',')]
    sites: Vec<String>,
    /// Names of the operators.
    #[arg(long, value_name = "NAME", value_delimiter = ',')]
    operators: Vec<String>,
    /// Days until the certificates expire, unless the authority expires earlier.
    #[arg(long, value_name = "DAYS", default_value_t = VALID_DAYS)]
    valid_days: u32,
}

/// Holders of the keys, and the folder to create.
#[derive(clap::Args)]
pub struct InitArgs {
    #[command(flatten)]
    network: TopologyArgs,
    /// Folder to create, without keys so far. Each machine then gets ca.pem and its own pair,
    /// nothing else. A folder holds one system's keys only.
    #[arg(long, value_name = "DIR", default_value = "keys/replicate")]
    out: PathBuf,
    /// Names of the operators who may submit transfers.
    #[arg(long, value_name = "NAME", value_delimiter = ',', default_value = "operator")]
    operators: Vec<String>,
    /// Host names or addresses of the controller, for browsers and curl, which check them.
    #[arg(long, value_name = "HOST", value_delimiter = ',')]
    controller_hosts: Vec<String>,
    /// Days until the certificates expire.
    #[arg(long, value_name = "DAYS", default_value_t = VALID_DAYS)]
    valid_days: u32,
}

/// Runs the command.
///
/// Errors: one line for the user.
pub fn run(command: &Command, quiet: bool) -> anyhow::Result<ExitCode> {
    match command {
        Command::Init(args) => init(args, quiet),
        Command::Add(args) => add(args, quiet),
        Command::Change(change) => change.run(anabranch_replicate::SYSTEM, quiet),
    }
}

fn add(args: &AddArgs, quiet: bool) -> anyhow::Result<ExitCode> {
    ensure_usage!(
        !(args.sites.is_empty() && args.operators.is_empty()),
        "no names: give --sites, --operators, or both"
    );
    let request = SetRequest {
        system: anabranch_replicate::SYSTEM,
        sites: args.sites.clone(),
        operators: args.operators.clone(),
        controller_hosts: vec![],
        valid_days: args.valid_days,
    };
    write_set(&args.keys, &add_to_set(&args.keys, &request)?)?;
    if !quiet {
        let names: Vec<_> = args.sites.iter().chain(&args.operators).map(String::as_str).collect();
        errln!("keys for {} in {}/", names.join(", "), args.keys.display());
    }
    Ok(ExitCode::SUCCESS)
}

fn init(args: &InitArgs, quiet: bool) -> anyhow::Result<ExitCode> {
    let topology = args.network.load()?;
    let request = SetRequest {
        system: anabranch_replicate::SYSTEM,
        sites: topology.sites().iter().map(|s| s.name.clone()).collect(),
        operators: args.operators.clone(),
        controller_hosts: args.controller_hosts.clone(),
        valid_days: args.valid_days,
    };
    write_set(&args.out, &make_set(&request)?)?;
    if quiet {
        return Ok(ExitCode::SUCCESS);
    }
    errln!(
        "keys for the controller, {} sites and {} in {}/; valid {} days; with ca.key `keys add` makes more: keep it apart",
        request.sites.len(),
        request.operators.join(", "),
        args.out.display(),
        args.valid_days
    );
    Ok(ExitCode::SUCCESS)
}
