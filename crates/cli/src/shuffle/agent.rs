//! `anabranch shuffle agent`: a host's agent. It reports the host's flows, and limits them to the
//! rates that the coordinator sets.
//!
//! Leaves out: the agent itself (`anabranch_shuffle::Agent`). Read [`Args`].

use crate::exit::OrUsage as _;
use crate::metrics::MetricsArgs;
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, escaped};
use anabranch_net::tls::CredentialFiles;
use anabranch_pace::PacerOptions;
use anabranch_shuffle::{Agent, AgentConfig, ListenConfig};
use anabranch_shuffle_proto::coordinator::check_name;
use anabranch_shuffle_proto::rules::Rules;
use anabranch_units::BitRate;
use anyhow::Context as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};

/// Options of the command.
#[derive(clap::Args)]
pub struct Args {
    /// Address of the coordinator, as HOST:PORT or https://HOST:PORT.
    #[arg(long, value_name = "HOST:PORT", env = "ANABRANCH_COORDINATOR", default_value = "127.0.0.1:7190")]
    coordinator: String,
    /// The folder that `shuffle keys` made, or a copy with ca.pem, sites/HOST.pem and
    /// sites/HOST.key.
    #[arg(long, value_name = "DIR", env = "ANABRANCH_KEYS", default_value = "keys/shuffle")]
    keys: PathBuf,
    /// Name of the host, as given to `shuffle keys --hosts`.
    #[arg(long, value_name = "HOST")]
    name: String,
    /// Goodput of the host's link each way, such as "9.4 Gbit/s" for a link of 10 Gbit/s with
    /// packets of 1,500 bytes. Without: computed from rate and MTU of the default route's device.
    #[arg(long, value_name = "RATE")]
    link: Option<BitRate>,
    /// An address of flows to this host. Repeatable. The coordinator accepts only addresses from
    /// its --hosts file or, without the file, the address from which this agent connects. Without:
    /// all of these.
    #[arg(long, value_name = "ADDRESS")]
    address: Vec<IpAddr>,
    /// Unix socket on which programs announce their flows, one JSON object a line:
    /// {"flow":{"local":"10.0.0.1:40000","remote":"10.0.0.2:7000"},"coflow":"job-7","size_bytes":1000000}.
    ///
    /// Each line is answered by one line; a connection that is silent for 5 s is closed.
    /// {"ended":{"local":…,"remote":…},"coflow":"job-7"} states that all data is written although
    /// the connection stays open; the flow is complete once the data has arrived. Only root, or the
    /// user who created the flow's socket, may announce it.
    #[arg(long, value_name = "PATH")]
    listen: Option<PathBuf>,
    /// Group that may use the socket of --listen, besides root.
    #[arg(long, value_name = "GROUP", requires = "listen")]
    group: Option<String>,
    /// Announce flows by rules, for programs that do not. A TOML file of [[rule]] tables with
    /// `remote = "10.0.0.0/8"`, `remote_port`, `local_port` (all optional; a port, or a range as
    /// "7400-7415") and `coflow = "job-{remote_host}"`.
    ///
    /// {remote_host}, {remote_port} and {local_host} are filled in. The first rule that matches a
    /// flow applies. The flow's size is the bytes that its program has written so far.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Cgroup whose programs' connections may be rate-limited by BPF. Without: all of the host's.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// Network device whose queue may be replaced by an HTB one, for flows that cannot be
    /// rate-limited in another way. Without: none is replaced.
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// File that lists the flows with limits, so that the next agent lifts a killed agent's limits.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
    #[command(flatten)]
    metrics: MetricsArgs,
}

/// Runs until a signal ends the command.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    check_name(&args.name).or_usage()?;
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
        Some(path) => crate::text::read(path)
            .map_err(anyhow::Error::from)
            .and_then(|text| Ok(text.parse()?))
            .with_context(|| format!("--rules {}", path.display()))
            .or_usage()?,
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
    let listen = args.listen.clone().map(|path| ListenConfig { path, group: args.group.clone() });
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
        let listener = args.metrics.bind()?;
        let agent = Agent::start(config, &identity)?;
        if !quiet {
            errln!(
                "agent of {}, with a link of {}; coordinator {}",
                args.name,
                agent.link_rate(),
                agent.coordinator()
            );
        }
        let metrics = agent.metrics();
        let ended = tokio::select! {
            ended = agent.run(crate::process::asked_to_end()) => ended,
            never = crate::keys::follow(&identity) => match never {},
            never = listener.serve(quiet, metrics) => match never {},
        };
        if !quiet {
            errln!("agent of {} ends; it has lifted its limits", args.name);
        }
        ended?;
        Ok(ExitCode::SUCCESS)
    })
}

/// Builds the command of this program as an agent's guard.
fn guard(state: &Path, device: Option<&str>) -> std::io::Result<Command> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--quiet", "shuffle", "guard", "--state"]).arg(state);
    command.args(device.map(|device| format!("--device={device}")));
    Ok(command)
}
