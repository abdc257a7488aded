//! `anabranch live dns`: answers viewers' DNS queries with the addresses of their edge, and steers
//! players among edges.

use crate::clients::ClientArgs;
use crate::exit::OrUsage as _;
use crate::metrics::MetricsArgs;
use anabranch_http::plain::Proxies;
use anabranch_live::SYSTEM;
use anabranch_live::controller::client::ControllerClient;
use anabranch_live::controller::follow::FollowedDirectory;
use anabranch_live::directory_file::DirectoryFile;
use anabranch_live::dns::{DnsConfig, DnsServer};
use anabranch_live::steering::{SteeringConfig, SteeringServer};
use anabranch_live_proto::directory::Directory;
use anabranch_live_proto::directory::names::Zone;
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anyhow::Context as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch::Receiver;

/// Task that reloads the directory when it changes.
type DirectoryTask = Pin<Box<dyn Future<Output = std::convert::Infallible>>>;

/// Maximum time to live, in seconds: a day.
const TTL_S_MAX: i64 = 86_400;

/// Settings of a name server.
#[derive(clap::Args)]
pub struct Args {
    /// File with the channels, edges, groups and places of viewers, in JSON. It is read again when
    /// it changes.
    #[arg(long, value_name = "FILE", required_unless_present = "controller", conflicts_with = "controller")]
    directory: Option<PathBuf>,
    /// Controllers whose directory is followed, as HOST:PORT; the next one is asked if one does not
    /// answer.
    #[arg(long, value_name = "HOST:PORT,...", value_delimiter = ',')]
    controller: Vec<String>,
    /// The folder that `live keys` made, or a copy with ca.pem, operators/NAME.pem and
    /// operators/NAME.key.
    #[arg(long, value_name = "DIR", env = "ANABRANCH_KEYS", default_value = "keys/live")]
    keys: PathBuf,
    /// The operator's name, as `live keys --operators` was given it.
    #[arg(long, value_name = "NAME", default_value = "operator", requires = "controller")]
    operator: String,
    /// Zone of the names: RENDITION.CHANNEL.ZONE, and CHANNEL.ZONE for the lowest bitrate.
    #[arg(long, value_name = "NAME")]
    zone: String,
    /// Address for questions over UDP and TCP. The default admits this machine only. A machine with
    /// several addresses needs one of them here.
    #[arg(long, value_name = "IP[:PORT]", default_value = "127.0.0.1:7253", value_parser = crate::network::listen_address_or::<7253>)]
    listen: SocketAddr,
    /// Address of this server in answers for ns.ZONE. Repeatable. By default it is the address of
    /// --listen.
    #[arg(long, value_name = "IP")]
    address: Vec<IpAddr>,
    /// Seconds for which resolvers keep an answer.
    #[arg(long, value_name = "SECONDS", default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=TTL_S_MAX))]
    ttl: u32,
    /// Address for content steering of players, at /v1/steering/CHANNEL. By default there is none.
    #[arg(long, value_name = "IP:PORT", value_parser = crate::network::listen_address)]
    steering: Option<SocketAddr>,
    /// Seconds until a player asks for steering again.
    #[arg(long, value_name = "SECONDS", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..=TTL_S_MAX), requires = "steering")]
    steering_ttl: u32,
    /// Base of the steering URL as players reach it, as https://steer.example. By default reload
    /// URIs are relative.
    #[arg(long, value_name = "URL", requires = "steering")]
    steering_url: Option<String>,
    #[command(flatten)]
    clients: ClientArgs,
    #[command(flatten)]
    metrics: MetricsArgs,
}

/// Serves until Ctrl-C or SIGTERM.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    crate::process::raise_descriptor_limit();
    let zone = zone(args).or_usage()?;
    crate::process::runtime()?.block_on(async {
        let (directory, follows) = follow(args).await?;
        let mut config = DnsConfig::new(args.listen, zone.clone());
        config.ttl_s = args.ttl;
        let listener = args.metrics.bind()?;
        let dns = DnsServer::bind(config, directory.clone())
            .with_context(|| format!("listening at {}", args.listen))?;
        let steering = steering(args, directory)?;
        if !quiet {
            errln!("name server of {zone} listens at {}", dns.local_addr()?);
            if let Some(steering) = &steering {
                errln!("steering at http://{}/v1/steering/CHANNEL", steering.local_addr()?);
            }
        }
        let steers = async {
            match steering {
                Some(steering) => steering.run().await,
                None => std::future::pending().await,
            }
        };
        let metrics = dns.metrics();
        tokio::select! {
            never = listener.serve(quiet, metrics) => match never {},
            never = dns.run() => match never {},
            never = steers => match never {},
            never = follows => match never {},
            () = crate::process::asked_to_end() => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}

/// Returns the directory, and the task that follows its changes.
async fn follow(args: &Args) -> anyhow::Result<(Receiver<Arc<Directory>>, DirectoryTask)> {
    if let Some(path) = &args.directory {
        let shown = || format!("directory {}", path.display());
        let file = DirectoryFile::open(path).with_context(shown).or_usage()?;
        return Ok((file.subscribe(), Box::pin(file.run())));
    }
    let files = CredentialFiles::in_set(&args.keys, SYSTEM, Role::Operator, &args.operator);
    let identity = Identity::load(&files)?;
    let client = |address: &String| ControllerClient::new(address, &identity, Duration::from_secs(10));
    let clients = args.controller.iter().map(client).collect::<Result<Vec<_>, _>>()?;
    let followed = FollowedDirectory::start(clients).await?;
    let receiver = followed.subscribe();
    let follows = async move {
        tokio::select! {
            never = followed.run() => never,
            never = crate::keys::follow(&identity) => never,
        }
    };
    Ok((receiver, Box::pin(follows)))
}

fn zone(args: &Args) -> anyhow::Result<Zone> {
    let mut servers = args.address.clone();
    if servers.is_empty() && !args.listen.ip().is_unspecified() {
        servers.push(args.listen.ip());
    }
    Ok(Zone::new(&args.zone, servers)?)
}

fn steering(args: &Args, directory: Receiver<Arc<Directory>>) -> anyhow::Result<Option<SteeringServer>> {
    let Some(address) = args.steering else { return Ok(None) };
    let mut config = SteeringConfig::new(address);
    config.ttl_s = args.steering_ttl;
    config.clients = args.clients.clients(Proxies::loopback())?;
    config.url.clone_from(&args.steering_url);
    let server = SteeringServer::bind(config, directory);
    Ok(Some(server.with_context(|| format!("listening at {address}"))?))
}
