//! `anabranch replicate controller`: plans transfers, installs them, and monitors them.

use crate::network::{self, TopologyArgs};
use anabranch_http::{ServeConfig, Server};
use anabranch_net::admission::AdmissionLimits;
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_replicate::{Controller, ControllerConfig};
use anabranch_replicate_proto::coordinator::{DefaultPlanner, JointConfig};
use anabranch_units::Duration;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of the command.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    network: TopologyArgs,
    /// Address and port to listen on. By default only this machine can connect; 0.0.0.0:7171 means
    /// all of its addresses.
    #[arg(long, value_name = "IP[:PORT]", default_value = "127.0.0.1:7171", value_parser = network::listen_address_or::<7171>)]
    listen: SocketAddr,
    /// The folder that `replicate keys init` made, or a copy with ca.pem, controller.pem and
    /// controller.key.
    #[arg(long, value_name = "DIR", env = "ANABRANCH_KEYS", default_value = "keys/replicate")]
    keys: PathBuf,
    /// File for transfers, which survive restarts. Created if it does not exist.
    #[arg(long, value_name = "FILE", default_value = "controller.redb")]
    store: PathBuf,
    /// Time for which a transfer waits for a site that is down or unreachable for the others,
    /// before it gives the site up.
    #[arg(long, value_name = "TIME", default_value = "10 min")]
    site_wait: Duration,
    /// Time for which a slow destination may delay the others of its transfer, before it is
    /// postponed.
    ///
    /// A destination delays the others if they get less than half of the planned rate. The plan
    /// does not know other traffic: raise this time if transfers share their links with other
    /// traffic.
    #[arg(long, value_name = "TIME", default_value = "5 s")]
    patience: Duration,
    /// Plan concurrent transfers jointly, and hold each to its share of the links.
    ///
    /// A new transfer waits 0.1 s for others. Running ones are replanned if the slowest of them
    /// gains 10 %, or all together gain 10 % without loss to the slowest.
    #[arg(long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set)]
    joint: bool,
}

/// Descriptors for anything but connections: the store, the runtime, the terminal.
const OWN_DESCRIPTORS: u64 = 64;

/// Runs until a signal ends the command.
///
/// Errors: one line for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let topology = args.network.load()?;
    let files =
        CredentialFiles::in_set(&args.keys, anabranch_replicate::SYSTEM, Role::Controller, "controller");
    let identity = Identity::load(&files)?;
    let descriptors = crate::process::raise_descriptor_limit();
    let half_open = AdmissionLimits::for_descriptors(descriptors);
    let serve = ServeConfig { address: args.listen, half_open, ..ServeConfig::default() };
    crate::process::check_descriptors(descriptors, serve.descriptors() + OWN_DESCRIPTORS);
    crate::process::runtime()?.block_on(async {
        let mut config = ControllerConfig::new(topology, DefaultPlanner, &args.store);
        config.coordinator.site_wait = args.site_wait;
        config.coordinator.slow_hold = args.patience;
        config.coordinator.joint = args.joint.then(JointConfig::default);
        let controller = Controller::open(config)?;
        let server = Server::bind(controller, &identity, serve).await?;
        if !quiet {
            errln!("controller listens on https://{}", server.local_addr()?);
        }
        tokio::select! {
            () = server.run() => {}
            never = crate::keys::follow(&identity) => match never {},
            () = crate::process::asked_to_end() => if !quiet {
                errln!("controller ends; transfers go on when it is back");
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}
