//! `anabranch live controller`: the controller of a network, and the options of its nodes and
//! operators.

use super::worlds::{PriorityName, ppm, share, weight};
use crate::etcd::EtcdArgs;
use crate::exit::OrUsage as _;
use anabranch_http::{ServeConfig, Server};
use anabranch_live::SYSTEM;
use anabranch_live::control::ControlConfig;
use anabranch_live::controller::client::ControllerClient;
use anabranch_live::controller::{ControllerConfig, ControllerService, StoreConfig};
use anabranch_live::description::{DESCRIPTION_BYTES_MAX, Description};
use anabranch_live_proto::control::node::ControlMode;
use anabranch_net::admission::AdmissionLimits;
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_units::Duration;
use anyhow::Context as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Default address of the controller.
pub(super) const ADDRESS: &str = "127.0.0.1:7200";

/// Settings of a controller.
#[derive(clap::Args)]
pub struct Args {
    /// Description of the network, for a new --store; a store with a network keeps its own (`live
    /// network`). A TOML file with [[node]], [[link]], [[group]] and [[channel]] tables, as
    /// described in docs/live.md.
    #[arg(long, value_name = "FILE", default_value = "live.toml")]
    network: PathBuf,
    /// Address for nodes and operators, by mutual TLS. The default admits this machine only.
    #[arg(long, value_name = "IP[:PORT]", default_value = ADDRESS, value_parser = crate::network::listen_address_or::<7200>)]
    listen: SocketAddr,
    /// The folder that `live keys` made, or a copy with ca.pem, controller.pem and controller.key.
    #[arg(long, value_name = "DIR", env = "ANABRANCH_KEYS", default_value = "keys/live")]
    keys: PathBuf,
    /// File for the number of the lead, the drained nodes and the network. Created if it does not
    /// exist.
    #[arg(long, value_name = "FILE", default_value = "live.redb")]
    store: PathBuf,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// Time between two plans, from 1 s to an hour.
    #[arg(long, value_name = "TIME", default_value = "60s")]
    every: Duration,
    /// Preference among bitrates: `quality` weights a viewer by its bitrate, `quantity` by the
    /// inverse of its bitrate, `balanced` equally.
    #[arg(long, value_enum, default_value = "balanced")]
    priority: PriorityName,
    /// Weight of cost: the share of a mean viewer's value that a path of cost 60 costs at the mean
    /// bitrate.
    #[arg(long, value_name = "SHARE", default_value_t = 0.1, value_parser = weight)]
    cost_share: f64,
    /// Share of each link that plans leave free for local decisions.
    #[arg(long, value_name = "SHARE", default_value_t = 0.05, value_parser = share)]
    slack: f64,
    /// Price of moving a running stream to another parent, in the unit of a link's cost times
    /// Mbit/s.
    #[arg(long, value_name = "PRICE", default_value_t = 10.0, value_parser = weight)]
    move_price: f64,
    /// Maximum number of running streams that one plan moves, besides streams on failed links.
    #[arg(long, value_name = "COUNT", default_value_t = 1_000)]
    moves: usize,
}

/// Runs until Ctrl-C or SIGTERM.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let (least, most) = (Duration::from_secs(1), Duration::from_secs(3_600));
    ensure_usage!(
        (least..=most).contains(&args.every),
        "--every {}: must be from {least} to {most}",
        args.every
    );
    let shown = args.network.display();
    let text = super::read_text(&args.network, DESCRIPTION_BYTES_MAX);
    let text = text.with_context(|| format!("--network {shown}")).or_usage()?;
    let description =
        Description::from_toml(&text).with_context(|| format!("--network {shown}")).or_usage()?;
    let files = CredentialFiles::in_set(&args.keys, SYSTEM, Role::Controller, "controller");
    let identity = Identity::load(&files)?;
    let descriptors = crate::process::raise_descriptor_limit();
    let half_open = AdmissionLimits::for_descriptors(descriptors);
    let serve = ServeConfig { address: args.listen, half_open, ..ServeConfig::default() };
    crate::process::check_descriptors(descriptors, serve.descriptors());
    let mut config = ControllerConfig::new(description, Some(&args.store));
    if let Some(etcd) = args.etcd.config("live")? {
        config.store = StoreConfig::Etcd(etcd);
    }
    config.settings.round = args.every;
    config.settings.slack_ppm = ppm(args.slack);
    config.settings.moves_max = args.moves;
    config.round.priority = args.priority.into();
    config.round.cost_share = args.cost_share;
    config.round.move_price = args.move_price;
    crate::process::runtime()?.block_on(async {
        let service = ControllerService::open(config).with_context(|| format!("--network {shown}"))?;
        let nodes = service.layout().network().nodes().len();
        let server = Server::bind(service.clone(), &identity, serve)
            .await
            .with_context(|| format!("--listen {}", args.listen))?;
        if !quiet {
            errln!("controller listens on https://{} for {nodes} nodes", server.local_addr()?);
        }
        tokio::select! {
            () = server.run() => {}
            never = crate::keys::follow(&identity) => match never {},
            () = crate::process::asked_to_end() => {
                service.give_lead_back().await;
                if !quiet {
                    errln!("controller ends; nodes go on by themselves");
                }
            }
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Options by which a node reaches its controllers.
#[derive(clap::Args)]
pub struct NodeControlArgs {
    /// Controllers that choose the parents, as HOST:PORT; the next one is asked if one does not
    /// answer. Needs keys of this node's name.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', requires = "name")]
    controller: Vec<String>,
    /// The folder that `live keys` made, or a copy with ca.pem, sites/NAME.pem and sites/NAME.key.
    #[arg(long, value_name = "DIR", env = "ANABRANCH_KEYS", default_value = "keys/live")]
    keys: PathBuf,
    /// Address for the control of the next tier, by mutual TLS: the port of `control` in the
    /// network's description.
    #[arg(long, value_name = "IP:PORT", requires = "controller", value_parser = crate::network::listen_address)]
    control: Option<SocketAddr>,
    /// Address for objects of the next tier, by mutual TLS: the port of `media` in the network's
    /// description, if that begins with https://.
    #[arg(long, value_name = "IP:PORT", requires = "controller", value_parser = crate::network::listen_address)]
    objects: Option<SocketAddr>,
    /// File that keeps the network's description, for a start without a controller. [default:
    /// NAME.network.json]
    #[arg(long, value_name = "FILE", requires = "controller")]
    cache: Option<PathBuf>,
    /// Decisions that the node follows. `distributed` and `centralized` are for comparisons with
    /// `hybrid`.
    #[arg(long, value_enum, value_name = "MODE", default_value = "hybrid", requires = "controller")]
    mode: ModeName,
}

/// Decisions that a node follows, as users name them.
#[derive(Copy, Clone, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ModeName {
    /// The controller's routes while they hold, and local decisions otherwise.
    Hybrid,
    /// Local decisions only.
    Distributed,
    /// The controller's routes only: a request waits for its round.
    Centralized,
}

impl From<ModeName> for ControlMode {
    fn from(name: ModeName) -> Self {
        match name {
            ModeName::Hybrid => Self::Hybrid,
            ModeName::Distributed => Self::Distributed,
            ModeName::Centralized => Self::Centralized,
        }
    }
}

impl NodeControlArgs {
    /// Returns true if a controller chooses the parents.
    pub(super) fn is_controlled(&self) -> bool {
        !self.controller.is_empty()
    }

    /// Settings of the node's control.
    ///
    /// Errors: keys that cannot be read.
    pub(super) fn config(&self, name: &str) -> anyhow::Result<ControlConfig> {
        let files = CredentialFiles::in_set(&self.keys, SYSTEM, Role::Site, name);
        let cache = self.cache.clone().unwrap_or_else(|| format!("{name}.network.json").into());
        Ok(ControlConfig {
            name: name.to_owned(),
            controllers: self.controller.clone(),
            identity: Identity::load(&files)?,
            address: self.control,
            objects_address: self.objects,
            cache: Some(cache),
            mode: self.mode.into(),
        })
    }
}

/// Reloads the keys of a program when they change, if it has keys. Never returns.
pub(super) async fn follow_keys(identity: Option<&Identity>) -> std::convert::Infallible {
    match identity {
        Some(identity) => crate::keys::follow(identity).await,
        None => std::future::pending().await,
    }
}

/// Options by which an operator reaches the controller.
#[derive(clap::Args)]
pub struct OperatorArgs {
    /// Controllers, as HOST:PORT or https://HOST:PORT; the one that leads is asked.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',', env = "ANABRANCH_CONTROLLER", default_value = ADDRESS)]
    controller: Vec<String>,
    /// The folder that `live keys` made, or a copy with ca.pem, operators/NAME.pem and
    /// operators/NAME.key.
    #[arg(long, value_name = "DIR", env = "ANABRANCH_KEYS", default_value = "keys/live")]
    keys: PathBuf,
    /// Name of the operator, as given to `live keys --operators`.
    #[arg(long, value_name = "NAME", default_value = "operator")]
    operator: String,
}

impl OperatorArgs {
    /// Creates a client in the operator's name.
    ///
    /// Errors: unreadable keys, an invalid address.
    pub(super) fn client(&self) -> anyhow::Result<ControllerClient> {
        let files = CredentialFiles::in_set(&self.keys, SYSTEM, Role::Operator, &self.operator);
        let patience = std::time::Duration::from_secs(10);
        Ok(ControllerClient::of(&self.controller, &Identity::load(&files)?, patience)?)
    }
}

/// A node to drain.
#[derive(clap::Args)]
pub struct DrainArgs {
    /// Name of the node.
    #[arg(value_name = "NODE")]
    node: String,
    /// Have the node carry streams again.
    #[arg(long)]
    undo: bool,
    #[command(flatten)]
    operator: OperatorArgs,
}

/// Drains a node, or ends the drain.
///
/// Errors: a one-line message for the user.
pub fn drain(args: &DrainArgs, quiet: bool) -> anyhow::Result<ExitCode> {
    let client = args.operator.client()?;
    crate::process::runtime()?.block_on(client.drain(&args.node, !args.undo))?;
    if !quiet {
        let line = if args.undo {
            "carries streams again"
        } else {
            "takes no new stream, and its streams move: `live status` shows when none is left"
        };
        errln!("node {}: {line}", args.node);
    }
    Ok(ExitCode::SUCCESS)
}
