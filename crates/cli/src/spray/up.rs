//! `anabranch spray up`: a host's agent.
//!
//! Leaves out: the agent itself (`anabranch_spray::Agent`). Read [`Args`].

use super::socket_of;
use crate::exit::OrUsage as _;
use crate::metrics::MetricsArgs;
use crate::network;
use crate::process::{asked_to_end, raise_descriptor_limit, runtime};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_spray::{Agent, AgentConfig, Peer, PeerChanges};
use anabranch_units::{BitRate, ByteCount, Duration};
use anyhow::Context as _;
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitCode};
use tokio::signal::unix::{SignalKind, signal};

/// Maximum number of peers that the first line of output names.
const SHOWN_PEERS_MAX: usize = 16;

/// Options of the command.
#[derive(clap::Args)]
pub struct Args {
    /// A host to which TCP is spread over every path, as NAME=ADDRESS or NAME=HOST:PORT with the
    /// name in its keys; NAME defaults to HOST. Repeatable. Its agent must name this host, too. TCP
    /// to all other hosts is unchanged.
    #[arg(long = "peer", value_name = "[NAME=]HOST[:PORT]", required_unless_present = "peers_from", num_args = 1..)]
    peers: Vec<Peer>,
    /// File with a peer on each line, in the form of --peer; `#` begins a comment. The line of this
    /// host counts for nothing, so all hosts may have the same file. SIGHUP reads it again; peers
    /// that stay keep their connections.
    #[arg(long = "peers", value_name = "FILE")]
    peers_from: Option<PathBuf>,
    /// Name of this host, as given to `spray keys --hosts`.
    #[arg(long, value_name = "HOST")]
    name: String,
    /// The folder that `spray keys` made, or a copy with ca.pem, sites/HOST.pem and sites/HOST.key.
    #[arg(long, value_name = "DIR", env = "ANABRANCH_KEYS", default_value = "keys/spray")]
    keys: PathBuf,
    /// Address and port for agents' control connections (TCP) and packets (UDP); port 7200 without
    /// one. Calls to peers leave from the same address. By default all of this machine's addresses.
    /// Only keys of the same set are let in.
    #[arg(long, value_name = "IP[:PORT]", value_parser = network::listen_address_or::<{ anabranch_spray::PORT }>)]
    listen: Option<SocketAddr>,
    /// Number of UDP source ports. Switches spread packets over their paths by these ports; more
    /// ports spread more evenly.
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u16).range(1..=128))]
    ways: u16,
    /// Bytes sent from which a flow is long: it keeps to one path while short flows are active.
    #[arg(long, value_name = "SIZE", default_value = "100 kB")]
    long: ByteCount,
    /// Maximum wait for a packet that later packets have overtaken.
    #[arg(long, value_name = "TIME", default_value = "50 ms")]
    hold_max: Duration,
    /// Rate of the narrowest link on the path, from which the number of packets to code together is
    /// computed.
    #[arg(long, value_name = "RATE", default_value = "1 Gbit/s")]
    rate: BitRate,
    /// Name of the network device to create.
    #[arg(long, value_name = "NAME", default_value = "spray0")]
    device: String,
    /// Number of the agent's routing table. Its rules have this priority and the next ones.
    #[arg(long, value_name = "N", default_value_t = 7_200)]
    table: u32,
    /// Unix socket for `spray status`. Without: /run/anabranch/spray-NAME.sock.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Maximum datagrams sealed with one key, for tests; ciphers have higher limits.
    #[arg(long, value_name = "N", hide = true)]
    key_packets: Option<u64>,
}

/// Builds the command of this program as an agent's guard.
fn guard(table: u32) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["spray", "guard", "--table", &table.to_string()]);
    Ok(command)
}

/// Peers of --peer and of the file of --peers.
///
/// Errors: an unreadable file, or an invalid line; one line for the user.
fn peers(args: &Args) -> anyhow::Result<Vec<Peer>> {
    let mut peers = args.peers.clone();
    if let Some(path) = &args.peers_from {
        let shown = path.display().to_string();
        let text = crate::text::read(path).with_context(|| format!("--peers {shown}"))?;
        let listed = anabranch_spray::read_peers(&shown, &text, &args.name).map_err(anyhow::Error::msg)?;
        peers.extend(listed.into_iter().filter(|peer| !args.peers.contains(peer)));
    }
    Ok(peers)
}

/// Reads the file of --peers again at each SIGHUP. An invalid file changes nothing.
///
/// Errors: the signal cannot be handled.
async fn follow_peers(args: &Args, changes: &PeerChanges) -> std::io::Result<Infallible> {
    let mut hangups = signal(SignalKind::hangup())?;
    loop {
        hangups.recv().await;
        let set = peers(args).and_then(|peers| changes.set(peers).map_err(anyhow::Error::msg));
        match set {
            Ok((came, went)) => tracing::info!("peers were read again: {came} new, {went} gone"),
            Err(error) => tracing::warn!("the peers stay as they were: {error:#}"),
        }
    }
}

/// Runs until a signal ends the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let files = CredentialFiles::in_set(&args.keys, anabranch_spray::SYSTEM, Role::Site, &args.name);
    let identity = Identity::load(&files)?;
    raise_descriptor_limit();
    let socket = match &args.socket {
        Some(path) => path.clone(),
        None => {
            let path = socket_of(&args.name);
            std::fs::create_dir_all(path.parent().expect("it is in a folder")).context(
                "/run/anabranch: cannot be made: run the agent as root, or name a socket with --socket",
            )?;
            path
        }
    };
    let config = AgentConfig {
        peers: peers(args).or_usage()?,
        listen: args.listen,
        ways: args.ways,
        long: args.long,
        hold_max: args.hold_max,
        rate: args.rate,
        device: args.device.clone(),
        table: args.table,
        socket: Some(socket),
        guard: guard(args.table)
            .inspect_err(|error| {
                tracing::warn!("no guard: an agent that stands still holds up TCP to its peers: {error}")
            })
            .ok(),
        key_packets: args.key_packets,
        ..AgentConfig::new(&args.name)
    };
    let shown = match &config.peers[..] {
        peers if peers.len() > SHOWN_PEERS_MAX => format!("{} peers", peers.len()),
        peers => peers.iter().map(ToString::to_string).collect::<Vec<_>>().join(", "),
    };
    runtime()?.block_on(async {
        let listener = args.metrics.bind()?;
        let agent = Agent::start(config, &identity).await?;
        if !quiet {
            errln!(
                "agent of {} on {}; TCP to {} goes over every path while their agents answer, and the ordinary way otherwise",
                args.name,
                agent.address(),
                shown
            );
        }
        let changes = agent.peer_changes();
        let following = async {
            match args.peers_from {
                Some(_) => follow_peers(args, &changes).await,
                None => std::future::pending().await,
            }
        };
        let metrics = agent.metrics();
        let ended = tokio::select! {
            ended = agent.run(asked_to_end()) => ended,
            Err(error) = following => return Err(error.into()),
            never = crate::keys::follow(&identity) => match never {},
            never = listener.serve_later(quiet, metrics) => match never {},
        };
        ended?;
        if !quiet {
            errln!("agent of {} ends; its device and its rules are gone", args.name);
        }
        Ok(ExitCode::SUCCESS)
    })
}
