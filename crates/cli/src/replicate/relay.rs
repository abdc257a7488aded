//! `anabranch replicate relay`: a site's daemon. It sends, forwards and receives on the
//! controller's commands.

use crate::exit::OrUsage as _;
use crate::metrics::MetricsArgs;
use crate::network::{self, TopologyArgs};
use anabranch_disk::folder::secrets::{keep_outside, warn_of_any};
use anabranch_disk::folder::{Folder, Links};
use anabranch_graph::Topology;
use anabranch_net::admission::AdmissionLimits;
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_replicate::{AcceptFrom, CONNECTIONS_MAX, Fault, Relay, RelayConfig};
use anabranch_units::{ByteCount, Duration as Span, LinkId, SiteId};
use anyhow::Context as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

/// Options of the command.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    network: TopologyArgs,
    /// Name of this relay's site, as in the topology.
    #[arg(long, value_name = "SITE")]
    site: String,
    /// Address of the controller.
    #[arg(long, value_name = "HOST:PORT", env = "ANABRANCH_CONTROLLER", default_value = "127.0.0.1:7171")]
    controller: String,
    /// The folder that `replicate keys init` made, or a copy with ca.pem, sites/SITE.pem and
    /// sites/SITE.key.
    #[arg(long, value_name = "DIR", env = "ANABRANCH_KEYS", default_value = "keys/replicate")]
    keys: PathBuf,
    /// Folder that contains all files this relay reads and writes, and no others: --keys may not
    /// lie in it. Symbolic links in it are not followed.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// Time for which a partial file is kept without a transfer that resumes it.
    #[arg(long, value_name = "TIME", default_value = "168 h")]
    keep_partial: Span,
    /// Let the relay of SITE submit transfers to this folder below --dir (`SITE=.` for all of
    /// --dir). Without it, only operators may send here. Repeatable.
    #[arg(long, value_name = "SITE=FOLDER")]
    accept_from: Vec<String>,
    /// Address and port on which to receive data. By default only this machine can connect;
    /// 0.0.0.0:7172 means all of its addresses.
    #[arg(long, value_name = "IP[:PORT]", default_value = "127.0.0.1:7172", value_parser = network::listen_address_or::<7172>)]
    listen: SocketAddr,
    /// Address at which other sites reach this one, such as paris.example:7172. Needed with
    /// --listen 0.0.0.0, and behind NAT. Without: the address of --listen.
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Address at which the site FROM reaches this one, if it differs from --advertise. Repeatable.
    #[arg(long, value_name = "FROM=HOST:PORT")]
    link: Vec<String>,
    /// Replace a running relay of this site, which then ends.
    #[arg(long)]
    take_over: bool,
    /// Maximum memory of all transfers together at this site. The process takes up to 64 MiB more.
    #[arg(long, value_name = "SIZE", default_value = "256 MiB")]
    memory: ByteCount,
    #[command(flatten)]
    metrics: MetricsArgs,
    /// For tests only: make this site faulty. `flip-ppm=N` flips one bit in N of a million symbols
    /// that it sends, as bad memory would, to test the detection and avoidance of a faulty site.
    #[arg(long, value_name = "FAULT", hide = true)]
    inject_fault: Option<Fault>,
}

/// Runs until a signal ends the command.
///
/// Errors: one line for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let topology = args.network.load()?;
    let site = network::site(&topology, &args.site)?;
    let name = topology.site(site).name.clone();
    let root = args.dir.canonicalize().with_context(|| {
        format!("--dir {}: make this folder, or name the one that holds the files", args.dir.display())
    });
    let root = root.or_usage()?;
    let folder =
        Folder::open(&root, Links::Refused).with_context(|| root.display().to_string()).or_usage()?;
    let folder = Arc::new(folder);
    let rules = args.accept_from.iter().map(|rule| AcceptFrom::parse(rule, &topology));
    let accept = rules.collect::<Result<Vec<_>, _>>().context("--accept-from").or_usage()?;
    let files = CredentialFiles::in_set(&args.keys, anabranch_replicate::SYSTEM, Role::Site, &name);
    keep_outside(&root, [args.keys.as_path(), &files.ca, &files.certificate, &files.key]).or_usage()?;
    warn_of_any(&folder);
    let identity = Identity::load(&files)?;
    let descriptors = crate::process::raise_descriptor_limit();
    let half_open = AdmissionLimits::for_descriptors(descriptors);
    crate::process::check_descriptors(descriptors, half_open.descriptors() + 2 * CONNECTIONS_MAX as u64);
    if let Some(fault) = args.inject_fault {
        tracing::warn!(
            flip_ppm = fault.flip_ppm,
            "this site does wrong on purpose: --inject-fault is for tests"
        );
    }
    let config = RelayConfig {
        listen: args.listen,
        advertise: args.advertise.clone(),
        links: links(args, &topology, site)?,
        accept,
        memory: args.memory,
        keep_partial: args.keep_partial.to_std(),
        take_over: args.take_over,
        half_open,
        fault: args.inject_fault.unwrap_or_default(),
        ..RelayConfig::new(&topology, site, folder, &args.controller)
    };
    crate::process::runtime()?.block_on(async {
        let listener = args.metrics.bind()?;
        let relay = Relay::bind(config, &identity).await?;
        if !quiet {
            errln!("site {name} takes data on {}; controller {}", relay.local_addr(), args.controller);
        }
        let metrics = relay.metrics();
        tokio::select! {
            refused = relay.run() => Err(refused.into()),
            never = crate::keys::follow(&identity) => match never {},
            never = listener.serve(quiet, metrics) => match never {},
            () = crate::process::asked_to_end() => {
                if !quiet {
                    errln!("site ends; arrived data is kept");
                }
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}

/// Parses the `--link` options for links into this site.
fn links(args: &Args, topology: &Topology, site: SiteId) -> anyhow::Result<Vec<(LinkId, String)>> {
    let mut links = Vec::new();
    for entry in &args.link {
        let (from, address) = entry
            .split_once('=')
            .with_context(|| format!("--link {entry}: write FROM=HOST:PORT"))
            .or_usage()?;
        let from = network::site(topology, from)?;
        let mut known = topology.links_in(site).filter(|l| topology.link(*l).from == from).peekable();
        ensure_usage!(known.peek().is_some(), "--link {entry}: no link comes from there to this site");
        links.extend(known.map(|l| (l, address.to_owned())));
    }
    Ok(links)
}
