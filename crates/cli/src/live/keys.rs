//! `anabranch live keys`: certificates by which controllers, nodes and operators authenticate each
//! other.

use crate::exit::OrUsage as _;
use crate::keys::Change;
use anabranch_live::description::{DESCRIPTION_BYTES_MAX, Description};
use anabranch_net::keys::{SetRequest, VALID_DAYS};
use anyhow::Context as _;
use std::path::PathBuf;
use std::process::ExitCode;

/// Holders, and the folder of the set.
#[derive(clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    change: Option<Change>,
    /// The folder of the set. A missing folder is created with a new authority and a controller's
    /// keys. The authority of an existing folder makes the new keys. A folder holds one system's
    /// keys only.
    #[arg(long, value_name = "DIR", default_value = "keys/live")]
    out: PathBuf,
    /// Names of nodes, as the network's description has them.
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    nodes: Vec<String>,
    /// The network's description: keys for all its nodes.
    #[arg(long, value_name = "FILE", conflicts_with = "nodes")]
    network: Option<PathBuf>,
    /// Names of operators, who may look and drain.
    #[arg(long, value_name = "NAME,NAME", value_delimiter = ',')]
    operators: Vec<String>,
    /// Host names or addresses of the controllers, for curl.
    #[arg(long, value_name = "HOST,HOST", value_delimiter = ',')]
    controller_hosts: Vec<String>,
    /// Days until the certificates expire, unless the authority expires earlier.
    #[arg(long, value_name = "DAYS", default_value_t = VALID_DAYS)]
    valid_days: u32,
}

/// Makes the keys.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    if let Some(change) = &args.change {
        return change.run(anabranch_live::SYSTEM, quiet);
    }
    let nodes = match &args.network {
        Some(path) => {
            let shown = || format!("--network {}", path.display());
            let text = super::read_text(path, DESCRIPTION_BYTES_MAX).with_context(shown).or_usage()?;
            let described = Description::from_toml(&text).with_context(shown).or_usage()?;
            described.nodes.into_iter().map(|node| node.name).collect()
        }
        None => args.nodes.clone(),
    };
    ensure_usage!(
        !(nodes.is_empty() && args.operators.is_empty()),
        "no names: give --network, --nodes or --operators"
    );
    let request = SetRequest {
        system: anabranch_live::SYSTEM,
        sites: nodes,
        operators: args.operators.clone(),
        controller_hosts: args.controller_hosts.clone(),
        valid_days: args.valid_days,
    };
    crate::keys::make_or_add(&args.out, &request, quiet)?;
    Ok(ExitCode::SUCCESS)
}
