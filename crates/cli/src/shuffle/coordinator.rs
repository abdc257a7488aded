//! `anabranch shuffle coordinator`: receives hosts' reports of flows, and sets their rate limits.

use super::allocator;
use crate::exit::OrUsage as _;
use crate::network;
use anabranch_http::{ServeConfig, Server};
use anabranch_net::admission::AdmissionLimits;
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_shuffle::{CoordinatorService, CoordinatorServiceConfig};
use anabranch_shuffle_proto::Scheduler;
use anabranch_shuffle_proto::hosts::Hosts;
use anyhow::Context as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of the command.
#[derive(clap::Args)]
pub struct Args {
    /// Address and port to listen on. By default only this machine can connect; 0.0.0.0:7190 means
    /// all of its addresses.
    #[arg(long, value_name = "IP[:PORT]", default_value = "127.0.0.1:7190", value_parser = network::listen_address_or::<7190>)]
    listen: SocketAddr,
    /// The folder that `shuffle keys` made, or a copy with ca.pem, controller.pem and
    /// controller.key.
    #[arg(long, value_name = "DIR", env = "ANABRANCH_KEYS", default_value = "keys/shuffle")]
    keys: PathBuf,
    /// File for the last 10,000 ended coflows. Created if it does not exist.
    #[arg(long, value_name = "FILE", default_value = "coordinator.redb")]
    store: PathBuf,
    /// Hosts file: a TOML file with [[host]] tables (`name`; `addresses` of flows to it; `link`
    /// rate; names of its `uplinks`) and [[uplink]] tables (`name`, `rate`).
    ///
    /// With this file, no other host may join, and no host has other addresses. A host without
    /// `addresses`, and each host without this file, has the address from which its agent connects.
    /// An uplink is a link that hosts share on their way to all others: a rack's or a site's. Rates
    /// are goodput: with packets of 1,500 bytes on Ethernet, 94 % of a link's rate.
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Scheduler, the rule by which rates are set. docs/shuffle.md explains which to choose.
    #[arg(long, value_parser = allocator::parser(), default_value_t)]
    allocator: Scheduler,
}

/// Descriptors for other uses than connections: the store, the runtime, the terminal.
const OWN_DESCRIPTORS: u64 = 64;

/// Runs until a signal ends the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let files =
        CredentialFiles::in_set(&args.keys, anabranch_shuffle::SYSTEM, Role::Controller, "controller");
    let identity = Identity::load(&files)?;
    let allocator = args.allocator;
    let read = |path: &PathBuf| -> anyhow::Result<Hosts> {
        let text = crate::text::read(path).with_context(|| format!("--hosts {}", path.display()))?;
        text.parse().with_context(|| format!("--hosts {}", path.display()))
    };
    let hosts = args.hosts.as_ref().map(read).transpose().or_usage()?;
    let descriptors = crate::process::raise_descriptor_limit();
    let half_open = AdmissionLimits::for_descriptors(descriptors);
    let serve = ServeConfig { address: args.listen, half_open, ..ServeConfig::default() };
    crate::process::check_descriptors(descriptors, serve.descriptors() + OWN_DESCRIPTORS);
    crate::process::runtime()?.block_on(async {
        let config = CoordinatorServiceConfig {
            allocator_name: allocator.name().to_owned(),
            hosts,
            ..CoordinatorServiceConfig::new(move || allocator.make(), &args.store)
        };
        let service = CoordinatorService::open(config)?;
        let server = Server::bind(service, &identity, serve).await?;
        if !quiet {
            errln!("coordinator listens on https://{}; {} decides", server.local_addr()?, allocator.name());
        }
        tokio::select! {
            () = server.run() => {}
            never = crate::keys::follow(&identity) => match never {},
            () = crate::process::asked_to_end() => if !quiet {
                errln!("coordinator ends; agents lift their limits until it is back");
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}
