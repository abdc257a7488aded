//! `anabranch spray up`: a host's agent.
//!
//! Leaves out: the agent itself (`anabranch_spray::Agent`). Read [`Args`].

use super::socket_of;
use crate::exit::OrUsage as _;
use crate::network;
use crate::process::{asked_to_end, raise_descriptor_limit, runtime};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_spray::{Agent, AgentConfig, AgentError, Peer};
use anabranch_units::{BitRate, ByteCount, Duration};
use anyhow::Context as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Command, ExitCode};

/// Options of the command.
#[derive(clap::Args)]
pub struct Args {
    /// A host to which TCP is spread over every path, as NAME=ADDRESS or NAME=HOST:PORT with the
    /// name in its keys; NAME defaults to HOST. Repeatable. Its agent must name this host, too. TCP
    /// to all other hosts is unchanged.
    #[arg(long = "peer", value_name = "[NAME=]HOST[:PORT]", required = true, num_args = 1..)]
    peers: Vec<Peer>,
    /// Name of this host, as given to `spray keys --hosts`.
    #[arg(long, value_name = "HOST")]
    name: String,
    /// The folder that `spray keys` made, or a copy with ca.pem, sites/HOST.pem and sites/HOST.key.
    #[arg(long, value_name = "DIR", default_value = "keys/spray")]
    keys: PathBuf,
    /// Address and port to listen on: TCP for control, UDP for packets. By default all of this
    /// machine's addresses, port 7200; callers without keys of the same set are refused.
    #[arg(long, value_name = "IP:PORT", value_parser = network::listen_address)]
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
    /// Number of the agent's routing table. Its rules have this priority and the following ones.
    #[arg(long, value_name = "N", default_value_t = 7_200)]
    table: u32,
    /// Unix socket for `spray status`. Without: /run/anabranch/spray-NAME.sock.
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Maximum datagrams sealed with one key, for tests; ciphers have higher limits.
    #[arg(long, value_name = "N", hide = true)]
    key_packets: Option<u64>,
}

/// Rephrases an error in terms of this command's options.
fn worded(error: AgentError) -> anyhow::Error {
    let is_usage = matches!(error, AgentError::Setting(_) | AgentError::Config(_) | AgentError::Twice(..));
    let error = anyhow::Error::from(error);
    if is_usage { Err::<(), _>(error).or_usage().expect_err("it is one") } else { error }
}

/// This program as an agent's guard.
fn guard(table: u32) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["spray", "guard", "--table", &table.to_string()]);
    Ok(command)
}

/// Runs until a signal ends the command.
///
/// Errors: one line for the user.
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
        peers: args.peers.clone(),
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
    runtime()?.block_on(async {
        let agent = Agent::start(config, &identity).await.map_err(worded)?;
        if !quiet {
            let peers: Vec<String> = args.peers.iter().map(ToString::to_string).collect();
            eprintln!(
                "agent of {} on {}; TCP to {} goes over every path while their agents answer, and the ordinary way otherwise",
                args.name,
                agent.address(),
                peers.join(", ")
            );
        }
        let ended = tokio::select! {
            ended = agent.run(asked_to_end()) => ended,
            never = crate::keys::follow(&identity) => match never {},
        };
        ended.map_err(worded)?;
        if !quiet {
            eprintln!("agent of {} ends; its device and its rules are gone", args.name);
        }
        Ok(ExitCode::SUCCESS)
    })
}
