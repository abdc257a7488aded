//! `anabranch shuffle agent`: a host's part. It reports the host's flows, and holds them to the rates that come back.
//!
//! Leaves out: the agent itself, and how it lifts limits while the coordinator is away (`anabranch_shuffle::Agent`). Read [`Args`].

use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, escaped};
use anabranch_net::tls::CredentialFiles;
use anabranch_pace::PacerOptions;
use anabranch_shuffle::{Agent, AgentConfig, Listen};
use anabranch_shuffle_proto::coordinator::check_name;
use anabranch_shuffle_proto::rules::Rules;
use anabranch_units::BitRate;
use anyhow::Context as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// How to run it.
#[derive(clap::Args)]
pub struct Args {
    /// Where the coordinator listens, as HOST:PORT or https://HOST:PORT.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7190")]
    coordinator: String,
    /// The folder that `shuffle keys` made, or a copy with ca.pem, sites/HOST.pem and sites/HOST.key.
    #[arg(long, value_name = "DIR", default_value = "keys/shuffle")]
    keys: PathBuf,
    /// The host's name, as `shuffle keys --hosts` was given it.
    #[arg(long, value_name = "HOST")]
    name: String,
    /// What the host's link carries of data, out and in, as "9.4 Gbit/s" for a link of 10 Gbit/s on which packets have 1,500
    /// bytes. Without: reckoned from the rate and the packets' size that the default route's device names.
    #[arg(long, value_name = "RATE")]
    link: Option<BitRate>,
    /// An address that flows to this host have. Repeatable. The coordinator takes only addresses that its --hosts file gives
    /// this host or, without one, the address from which this agent connects. Without: all of those.
    #[arg(long, value_name = "ADDRESS")]
    address: Vec<IpAddr>,
    /// The Unix socket over which programs announce their flows, one JSON object a line:
    /// {"flow":{"local":"10.0.0.1:40000","remote":"10.0.0.2:7000"},"coflow":"job-7","size_bytes":1000000}.
    ///
    /// Each line is answered by one; who is silent for 5 s has to connect again.
    /// {"ended":{"local":…,"remote":…},"coflow":"job-7"} says that all is written though the connection stays; it is over
    /// once that has arrived. Only the user who made the flow's socket, or root, may speak of it.
    #[arg(long, value_name = "PATH")]
    listen: Option<PathBuf>,
    /// The group that may use the socket of --listen, beside root.
    #[arg(long, value_name = "GROUP", requires = "listen")]
    group: Option<String>,
    /// Announce flows by rules, for programs that do not. A TOML file of [[rule]] tables with `remote = "10.0.0.0/8"`,
    /// `remote_port`, `local_port` (all optional; a port, or a range as "7400-7415") and `coflow = "job-{remote_host}"`.
    ///
    /// {remote_host}, {remote_port} and {local_host} are filled in. The first rule that fits a flow counts. What such a flow
    /// has to move is what its program has written so far.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// The cgroup whose programs' connections may be held to rates by BPF. Without: all of the host's.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// The network device whose queue may be replaced by an HTB one, for flows that can be held to rates in no other way.
    /// Without: none is replaced.
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// The file that says which flows have limits, so that the next agent lifts what a killed one left.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

/// Runs it until it is told to end.
///
/// Errors: one line for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    check_name(&args.name)?;
    anyhow::ensure!(
        args.state.is_some() || rustix::process::geteuid().is_root(),
        "an agent sets limits on all users' flows: run it as root, or name a file that it may write with --state, for your own flows"
    );
    let identity = Identity::load(&CredentialFiles::in_set(
        &args.keys,
        anabranch_shuffle::SYSTEM,
        Role::Site,
        &args.name,
    ))?;
    let rules: Rules = match &args.rules {
        Some(path) => std::fs::read_to_string(path)
            .map_err(anyhow::Error::from)
            .and_then(|text| Ok(text.parse()?))
            .with_context(|| format!("--rules {}", path.display()))?,
        None => Rules::default(),
    };
    let state = match &args.state {
        Some(path) => path.clone(),
        None => {
            let folder = PathBuf::from("/run/anabranch");
            std::fs::create_dir_all(&folder)
                .context("/run/anabranch: cannot be made: name a file with --state")?;
            folder.join(format!("shuffle-{}.jsonl", escaped(&args.name)))
        }
    };
    let listen = args.listen.clone().map(|path| Listen { path, group: args.group.clone() });
    let config = AgentConfig {
        link_rate: args.link,
        addresses: args.address.clone(),
        rules,
        listen,
        pacer: PacerOptions {
            cgroup: args.cgroup.clone(),
            device: args.device.clone(),
            ..PacerOptions::default()
        },
        guard: guard(&state, args.device.as_deref())
            .inspect_err(|error| {
                tracing::warn!("no guard: if this agent is killed, limits stay until the next one: {error}");
            })
            .ok(),
        ..AgentConfig::new(&args.name, &args.coordinator, state)
    };
    crate::process::runtime()?.block_on(async {
        let agent = Agent::start(config, &identity)?;
        if !quiet {
            eprintln!(
                "agent of {}, with a link of {}; coordinator {}",
                args.name,
                agent.link_rate(),
                agent.coordinator()
            );
        }
        let ended = tokio::select! {
            ended = agent.run(crate::process::asked_to_end()) => ended,
            never = crate::keys::follow(&identity) => match never {},
        };
        if !quiet {
            eprintln!("agent of {} ends; it has lifted its limits", args.name);
        }
        ended?;
        Ok(ExitCode::SUCCESS)
    })
}

/// This program as the guard of an agent.
fn guard(state: &Path, device: Option<&str>) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--quiet", "shuffle", "guard", "--state"]).arg(state);
    command.args(device.map(|device| format!("--device={device}")));
    Ok(command)
}
