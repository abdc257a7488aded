//! `anabranch live node`: a reflector or an edge, under a controller or with a fixed list of
//! parents.

use super::controller::{NodeControlArgs, follow_keys};
use super::secure::{ReloadableFiles, SecureArgs, follow};
use super::sign::SecretFile;
use crate::exit::OrUsage as _;
use crate::metrics::MetricsArgs;
use anabranch_live::control::NodeControl;
use anabranch_live::{Node, NodeConfig};
use anabranch_live_proto::Tier;
use anyhow::Context as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Settings of a node.
#[derive(clap::Args)]
pub struct Args {
    /// Address for viewers and other nodes. The default admits this machine only.
    #[arg(long, value_name = "IP[:PORT]", default_value = "127.0.0.1:7202", value_parser = crate::network::listen_address_or::<7202>)]
    listen: SocketAddr,
    /// Source or node to fetch from, as http://10.0.0.1:7201. Repeat it for further parents; the
    /// first one that answers is asked.
    #[arg(long, value_name = "URL", required_unless_present = "controller", conflicts_with = "controller")]
    parent: Vec<String>,
    /// Ask two parents for each object at once; the first copy of each byte counts.
    #[arg(long, conflicts_with = "controller")]
    doubled: bool,
    /// Name of this node, unique among all nodes: rings of nodes are found by it. By default made
    /// from the address.
    #[arg(long, value_name = "NAME")]
    name: Option<String>,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// Secrets of signed URLs (see `live sign`): no other URL is served. The file is read again on
    /// SIGHUP and when it changes.
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    #[command(flatten)]
    secure: SecureArgs,
    #[command(flatten)]
    control: NodeControlArgs,
}

/// Relays until Ctrl-C or SIGTERM.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    crate::process::raise_descriptor_limit();
    let by_address = || args.listen.to_string().replace(['[', ']'], "").replace(':', "-");
    let name = args.name.clone().unwrap_or_else(by_address);
    let mut config = NodeConfig::new(&name, args.listen);
    config.parents.clone_from(&args.parent);
    config.relay.is_doubled = args.doubled;
    config.secure = args.secure.listener()?;
    config.clients = args.secure.clients()?;
    let certificate = config.secure.as_ref().map(|secure| secure.certificate.clone());
    let mut files: Vec<_> =
        certificate.into_iter().map(|file| Arc::new(file) as Arc<dyn ReloadableFiles>).collect();
    if let Some(path) = &args.secret_file {
        let file = SecretFile::open(path).or_usage()?;
        config.signing = Some(file.secrets());
        files.push(file);
    }
    let controlled = args.control.is_controlled().then(|| args.control.config(&name)).transpose()?;
    crate::process::runtime()?.block_on(async {
        let mut identity = None;
        if let Some(control) = controlled {
            identity = Some(control.identity.clone());
            let tiers = [Tier::Reflector, Tier::Edge];
            config.control = Some(NodeControl::start(control, (&tiers, "for reflectors and edges")).await?);
        }
        let listener = args.metrics.bind()?;
        let node = Node::bind(config).with_context(|| format!("listening at {}", args.listen))?;
        if !quiet {
            let above = if identity.is_some() { "a controller".to_owned() } else { args.parent.join(", ") };
            let secure = node.secure_addr()?.map(|at| format!(" and https://{at}")).unwrap_or_default();
            errln!("node {name} listens at http://{}{secure}, below {above}", node.local_addr()?);
        }
        let metrics = node.metrics();
        tokio::select! {
            never = listener.serve(quiet, metrics) => match never {},
            never = node.run() => match never {},
            never = follow_keys(identity.as_ref()) => match never {},
            never = follow(files) => match never {},
            () = crate::process::asked_to_end() => {}
        }
        Ok(ExitCode::SUCCESS)
    })
}
