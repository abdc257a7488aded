//! `anabranch broker serve`: rounds with networks' agents, and answers to players.

use crate::clients::ClientArgs;
use crate::etcd::EtcdArgs;
use crate::exit::OrUsage as _;
use crate::network;
use anabranch_broker::{
    BrokerService, BrokerServiceConfig, Contracts, PublicConfig, PublicServer, ServeConfig, Server,
    StoreConfig,
};
use anabranch_broker_proto::broker::Settings;
use anabranch_broker_proto::designs;
use anabranch_broker_proto::limits::{check_bitrate, check_weight};
use anabranch_http::plain::{CONNECTIONS_MAX, PlainLimits, Proxies};
use anabranch_media::prefixes::PrefixTable;
use anabranch_net::admission::AdmissionLimits;
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_units::{BitRate, Duration};
use anyhow::Context as _;
use std::fs::File;
use std::io::BufReader;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

/// Options of the command.
#[derive(clap::Args)]
pub struct Args {
    /// Contracts file: a TOML file with a [[network]] table for each network.
    ///
    /// Keys: `name` as in its certificate; `pathway`, its name in players' manifests (default: the
    /// name); `price` per Mbit/s by contract; `price_max`; `capacity` of a median cluster;
    /// `clusters_max` and `bids_max` of a round; and [[network.cluster]] tables with `number` and
    /// `host`, for clusters with a host name for players.
    #[arg(long, value_name = "FILE", default_value = "contracts.toml")]
    contracts: PathBuf,
    /// Address for networks' agents and operators, by mutual TLS. By default only this machine can
    /// connect.
    #[arg(long, value_name = "IP[:PORT]", default_value = "127.0.0.1:7195", value_parser = network::listen_address_or::<7195>)]
    listen: SocketAddr,
    /// The folder that `broker keys` made, or a copy with ca.pem, controller.pem and
    /// controller.key.
    #[arg(long, value_name = "DIR", env = "ANABRANCH_KEYS", default_value = "keys/broker")]
    keys: PathBuf,
    /// File for the last accepted decision. Created if it does not exist.
    #[arg(long, value_name = "FILE", default_value = "broker.redb")]
    store: PathBuf,
    #[command(flatten)]
    etcd: EtcdArgs,
    /// Design, which decides what networks are told, match and announce: a name from `broker
    /// evaluate --help`.
    #[arg(long, value_name = "DESIGN", default_value = "marketplace")]
    design: String,
    /// Seconds between two rounds.
    #[arg(long, value_name = "SECONDS", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..=86_400))]
    every: u64,
    /// Seconds for networks to bid.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u64).range(1..=3_600))]
    bids_within: u64,
    /// Weight of one point of score: scores are round trips in ms, plus a penalty for losses.
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0)]
    score_weight: f64,
    /// Weight of one unit of money, the unit of prices per Mbit/s.
    #[arg(long, value_name = "WEIGHT", default_value_t = 1.0)]
    cost_weight: f64,
    /// Seconds after which players ask again.
    #[arg(long, value_name = "SECONDS", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    ttl: u32,
    #[command(flatten)]
    players: PlayersArgs,
}

/// Players' port, and assumptions about players.
#[derive(clap::Args)]
struct PlayersArgs {
    /// Address for players, by plain HTTP: put a proxy with a public certificate in front. By
    /// default only this machine can connect.
    #[arg(long, value_name = "IP[:PORT]", default_value = "127.0.0.1:7196", value_parser = network::listen_address_or::<7196>)]
    players: SocketAddr,
    /// Locations of addresses: a CSV table with the columns prefix, location and isp. Without it,
    /// the `location` and `isp` in a player's request count, and players without them are in one
    /// place.
    #[arg(long, value_name = "FILE")]
    places: Option<PathBuf>,
    /// Bitrate assumed for a viewer whose player has not reported its throughput.
    #[arg(long, value_name = "RATE", default_value = "3 Mbit/s")]
    bitrate: BitRate,
    /// Public address of --players, such as https://steer.example, from which reload addresses are
    /// built. Without it they are relative, as the standards allow; Shaka resolves them against the
    /// manifest's address.
    #[arg(long, value_name = "URL", value_parser = url)]
    players_url: Option<String>,
    /// Maximum number of players' connections, if descriptors suffice. Above it, the address with
    /// the most connections loses the one with the oldest request. Behind one proxy, which is one
    /// address, that is the longest idle connection.
    #[arg(long, value_name = "COUNT", default_value_t = CONNECTIONS_MAX as u64, value_parser = clap::value_parser!(u64).range(4..=1_000_000))]
    players_max: u64,
    /// Use players' reports about networks (CMCD, in steering requests or to /cmcd): a network
    /// whose players stall loses trust. Anybody can send reports, so use this only where strangers
    /// cannot reach --players.
    #[arg(long)]
    believe_players: bool,
    /// Redirect players without steering to http: instead of https:.
    #[arg(long)]
    plain_redirects: bool,
    #[command(flatten)]
    clients: ClientArgs,
}

/// Parses the base of a URL: a scheme and a host.
fn url(text: &str) -> Result<String, String> {
    let rest = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let is_host =
        |host: &str| !host.is_empty() && !host.contains(|c: char| c.is_whitespace() || "/?#@".contains(c));
    match rest.map(|rest| rest.trim_end_matches('/')).filter(|host| is_host(host)) {
        Some(_) => Ok(text.trim_end_matches('/').to_owned()),
        None => Err("write http://HOST or https://HOST, with :PORT if it is not the usual one".to_owned()),
    }
}

impl Args {
    /// Store of the decisions.
    fn store(&self, identity: &Identity) -> anyhow::Result<StoreConfig> {
        let Some(etcd) = self.etcd.config("broker")? else {
            return Ok(StoreConfig::File(self.store.clone()));
        };
        Ok(StoreConfig::Etcd { etcd, identity: identity.clone() })
    }
}

impl PlayersArgs {
    /// Locations of viewers.
    ///
    /// Errors: one line with the file.
    fn places(&self) -> anyhow::Result<PrefixTable> {
        let Some(path) = &self.places else { return Ok(PrefixTable::default()) };
        let place = || format!("--places {}", path.display());
        PrefixTable::read(BufReader::new(File::open(path).with_context(place)?)).with_context(place)
    }

    fn config(&self, limits: PlainLimits, places: PrefixTable) -> anyhow::Result<PublicConfig> {
        Ok(PublicConfig {
            address: self.players,
            limits,
            clients: self.clients.clients(Proxies::loopback())?,
            places,
            bitrate: self.bitrate,
            redirects_to_tls: !self.plain_redirects,
            url: self.players_url.clone(),
            ..PublicConfig::default()
        })
    }
}

/// Descriptors for other uses than connections: the store, the runtime, the terminal.
const OWN_DESCRIPTORS: u64 = 64;

/// Runs until a signal ends the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    for (name, weight) in [("--score-weight", args.score_weight), ("--cost-weight", args.cost_weight)] {
        check_weight(weight).context(name).or_usage()?;
    }
    check_bitrate(args.players.bitrate).context("--bitrate").or_usage()?;
    let design = designs::by_name(&args.design).with_context(|| {
        let names: Vec<String> = designs::all().iter().map(|design| design.name()).collect();
        format!("--design {}: is no design: there are {}", args.design, names.join(", "))
    });
    let design = design.or_usage()?;
    let files = CredentialFiles::in_set(&args.keys, anabranch_broker::SYSTEM, Role::Controller, "controller");
    let identity = Identity::load(&files)?;
    let shown = args.contracts.display();
    let text =
        crate::text::read(&args.contracts).with_context(|| format!("--contracts {shown}")).or_usage()?;
    let contracts: Contracts = text.parse().with_context(|| format!("--contracts {shown}")).or_usage()?;
    let places = args.players.places().or_usage()?;
    let settings = Settings {
        every: Duration::from_secs(args.every),
        bids_within: Duration::from_secs(args.bids_within),
        score_weight: args.score_weight,
        cost_weight: args.cost_weight,
        ..Settings::new(design)
    };
    let descriptors = crate::process::raise_descriptor_limit();
    let half_open = AdmissionLimits::for_descriptors(descriptors);
    let serve = ServeConfig { address: args.listen, half_open, ..ServeConfig::default() };
    let others = serve.descriptors() + OWN_DESCRIPTORS;
    let limits = PlainLimits::for_descriptors(descriptors, others, args.players.players_max as usize);
    crate::process::check_descriptors(descriptors, others + limits.descriptors());
    let public = args.players.config(limits, places)?;
    crate::process::runtime()?.block_on(async {
        let config = BrokerServiceConfig {
            settings,
            contracts,
            store: args.store(&identity)?,
            ttl_s: args.ttl,
            believes_players: args.players.believe_players,
        };
        let service = BrokerService::open(config)?;
        let players = PublicServer::bind(service.clone(), public)
            .with_context(|| format!("--players {}", args.players.players))?;
        let server = Server::bind(service.clone(), &identity, serve)
            .await
            .with_context(|| format!("--listen {}", args.listen))?;
        if !quiet {
            errln!("broker listens on https://{}; {} decides", server.local_addr()?, args.design);
            errln!("players ask http://{}/steering/hls and /steering/dash", players.local_addr()?);
        }
        tokio::select! {
            () = server.run() => {}
            ended = players.run() => ended.context("--players")?,
            never = crate::keys::follow(&identity) => match never {},
            () = crate::process::asked_to_end() => if !quiet {
                errln!("broker ends; players go on with what they have");
            }
        }
        service.give_lead_back().await;
        Ok(ExitCode::SUCCESS)
    })
}
