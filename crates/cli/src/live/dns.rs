//! `anabranch live dns`: viewers ask by name, and get the addresses of their edge; players are steered.

use crate::exit::OrUsage as _;
use anabranch_live::directory_file::DirectoryFile;
use anabranch_live::dns::{DnsConfig, DnsServer};
use anabranch_live::steering::{SteeringConfig, SteeringServer};
use anabranch_live_proto::directory::names::Zone;
use anyhow::Context as _;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;

/// Longest time to live, in seconds: a day.
const TTL_S_MAX: i64 = 86_400;

/// Settings of a name server.
#[derive(clap::Args)]
pub struct Args {
    /// File with the channels, edges, groups and places of viewers, in JSON. It is read again when it changes.
    #[arg(long, value_name = "FILE")]
    directory: PathBuf,
    /// Zone of the names: RENDITION.CHANNEL.ZONE, and CHANNEL.ZONE for the lowest bitrate.
    #[arg(long, value_name = "NAME")]
    zone: String,
    /// Address for questions over UDP and TCP. The default admits this machine only. A machine with several addresses needs one of them here.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7253", value_parser = crate::network::listen_address)]
    listen: SocketAddr,
    /// Address of this server as ns.ZONE answers it. Repeat it for further ones. By default it is the address of --listen.
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
    /// Base of the steering URL as players reach it, as https://steer.example. By default reload URIs are relative.
    #[arg(long, value_name = "URL", requires = "steering")]
    steering_url: Option<String>,
}

/// Answers until Ctrl-C or SIGTERM.
///
/// Errors: one line for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    crate::process::raise_descriptor_limit();
    let zone = zone(args).or_usage()?;
    let shown = || format!("directory {}", args.directory.display());
    let file = DirectoryFile::open(&args.directory).with_context(shown).or_usage()?;
    crate::process::runtime()?.block_on(async {
        let mut config = DnsConfig::new(args.listen, zone.clone());
        config.ttl_s = args.ttl;
        let dns = DnsServer::bind(config, file.subscribe())
            .with_context(|| format!("listening at {}", args.listen))?;
        let steering = steering(args, &file)?;
        if !quiet {
            eprintln!("name server of {zone} listens at {}", dns.local_addr()?);
            if let Some(steering) = &steering {
                eprintln!("steering at http://{}/v1/steering/CHANNEL", steering.local_addr()?);
            }
        }
        let steers = async {
            match steering {
                Some(steering) => steering.run().await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            never = dns.run() => match never {},
            never = steers => match never {},
            never = file.run() => match never {},
            () = crate::process::asked_to_end() => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}

fn zone(args: &Args) -> anyhow::Result<Zone> {
    let mut servers = args.address.clone();
    if servers.is_empty() && !args.listen.ip().is_unspecified() {
        servers.push(args.listen.ip());
    }
    Ok(Zone::new(&args.zone, servers)?)
}

fn steering(args: &Args, file: &DirectoryFile) -> anyhow::Result<Option<SteeringServer>> {
    let Some(address) = args.steering else { return Ok(None) };
    let mut config = SteeringConfig::new(address);
    config.ttl_s = args.steering_ttl;
    config.url.clone_from(&args.steering_url);
    let server = SteeringServer::bind(config, file.subscribe());
    Ok(Some(server.with_context(|| format!("listening at {address}"))?))
}
