//! `anabranch replicate relay`: a site's daemon. It sends, relays and receives, as the controller says.

use super::runner::Fault;
use super::service::{AcceptFrom, CONNECTIONS_MAX, Service, SiteConfig};
use crate::folder::secrets::{keep_outside, warn_of_any};
use crate::folder::{Folder, Links};
use crate::network::{self, TopologyArgs};
use crate::partial::leftovers::remove_old;
use anabranch_api::wire::{LinkAddress, RegisterRequest, TopologyDigest};
use anabranch_api::{Client, ClientError, SiteLink};
use anabranch_net::admission::AdmissionLimits;
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, System};
use anabranch_net::tls::CredentialFiles;
use anabranch_replicate::control::Report;
use anabranch_units::{ByteCount, Duration as Span, LinkId};
use anyhow::Context as _;
use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;

/// How to run it.
#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    network: TopologyArgs,
    /// The name of the site for which this relay runs, as the topology has it.
    #[arg(long, value_name = "SITE")]
    site: String,
    /// Where the controller listens.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7171")]
    controller: String,
    /// The folder that `replicate keys init` made, or a copy with ca.pem, sites/SITE.pem and sites/SITE.key.
    #[arg(long, value_name = "DIR", default_value = "keys/replicate")]
    keys: PathBuf,
    /// The folder below which this relay reads and writes files, and nowhere else. Keep it for that alone: --keys may not
    /// lie in it. Symbolic links in it are not followed.
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
    /// How long what has come of a file is kept when no transfer goes on with it.
    #[arg(long, value_name = "TIME", default_value = "168 h")]
    keep_partial: Span,
    /// Let the relay of SITE send files here of its own accord, below this folder of --dir (`SITE=.` for all of --dir).
    /// Without, only operators may send here. Repeatable.
    #[arg(long, value_name = "SITE=FOLDER")]
    accept_from: Vec<String>,
    /// The address and port on which to take in data. By default only this machine can connect; 0.0.0.0:7172 stands
    /// for all of its addresses.
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:7172", value_parser = network::listen_address)]
    listen: SocketAddr,
    /// Where other sites reach this one, as paris.example:7172. Needed with --listen 0.0.0.0, and behind NAT. Without: the
    /// address of --listen.
    #[arg(long, value_name = "HOST:PORT")]
    advertise: Option<String>,
    /// Where the site FROM reaches this one, if not where the others do. Repeatable.
    #[arg(long, value_name = "FROM=HOST:PORT")]
    link: Vec<String>,
    /// Take the place of a relay of this site that is running; that one then ends.
    #[arg(long)]
    take_over: bool,
    /// The most memory that all transfers together may take here. The process takes up to 64 MiB more.
    #[arg(long, value_name = "SIZE", default_value = "256 MiB")]
    memory: ByteCount,
    /// For tests only: make this site do wrong. `flip-ppm=N` flips one bit in N of a million symbols that it sends, as
    /// bad memory would, so that finding and avoiding such a site can be tested.
    #[arg(long, value_name = "FAULT", hide = true)]
    inject_fault: Option<Fault>,
}

/// How often it is looked for what is too old.
const LEFTOVERS_EVERY: std::time::Duration = std::time::Duration::from_secs(3_600);
/// How long reports are gathered before they are sent together.
const REPORT_GATHER: Duration = Duration::from_millis(5);
/// The most reports that wait for a controller that is away.
const REPORTS_MAX: usize = 4_096;
/// The most reports in one request.
const REPORTS_TOGETHER_MAX: usize = 256;
/// The most ranges in one request, unless a single report has more: with the rest they stay below the 4 MiB that a
/// controller takes.
const RANGES_TOGETHER_MAX: usize = 32_768;
/// How long to wait after the controller could not be reached.
const RETRY: Duration = Duration::from_secs(1);

/// Runs it until it is told to end.
///
/// Errors: one line for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let topology = args.network.load()?;
    let site = network::site(&topology, &args.site)?;
    let name = topology.site(site).name.clone();
    let root = args.dir.canonicalize().with_context(|| {
        format!("--dir {}: make this folder, or name the one that holds the files", args.dir.display())
    })?;
    let folder = Folder::open(&root, Links::Refused).with_context(|| root.display().to_string())?;
    let folder = Arc::new(folder);
    let rules = args.accept_from.iter().map(|rule| AcceptFrom::parse(rule, &topology));
    let accept = rules.collect::<Result<Vec<_>, _>>().map_err(anyhow::Error::msg).context("--accept-from")?;
    let files = CredentialFiles::in_set(&args.keys, System::Replicate, Role::Site, &name);
    keep_outside(&root, [args.keys.as_path(), &files.ca, &files.certificate, &files.key])?;
    warn_of_any(&folder);
    let identity = Identity::load(&files)?;
    let descriptors = crate::process::raise_descriptor_limit();
    let half_open = AdmissionLimits::for_descriptors(descriptors);
    crate::process::check_descriptors(descriptors, half_open.descriptors() + 2 * CONNECTIONS_MAX as u64);
    crate::process::runtime()?.block_on(async {
        let listener = anabranch_net::socket::listen(args.listen)?;
        let listen = listener.local_addr()?;
        let addresses = addresses(args, listen, &topology, site)?;
        let client = Client::new(&args.controller, &identity, Duration::from_secs(30))?;
        // Emptied at every turn of `send_reports`, which bounds what it holds; a turn takes no longer than the client's
        // patience.
        let (reports, reports_in) = mpsc::unbounded_channel();
        if let Some(fault) = args.inject_fault {
            tracing::warn!(
                flip_ppm = fault.flip_ppm,
                "this site does wrong on purpose: --inject-fault is for tests"
            );
        }
        let fault = args.inject_fault.unwrap_or_default();
        let (served, keep) = (Arc::clone(&folder), args.keep_partial.to_std());
        std::thread::spawn(move || {
            loop {
                remove_old(&served, keep);
                std::thread::sleep(LEFTOVERS_EVERY);
            }
        });
        let config = SiteConfig { folder, accept, memory_max: args.memory.as_u64(), half_open, fault };
        let service = Service::start(config, identity.clone(), vec![listener], reports);
        if !quiet {
            eprintln!("site {name} takes data on {listen}; controller {}", args.controller);
        }
        let session = crate::process::random()?;
        let digest = Some(TopologyDigest::of(&topology));
        let registration =
            RegisterRequest { session, addresses, topology: digest, take_over: args.take_over };
        let link = Arc::new(SiteLink::new(client, name, registration));
        tokio::select! {
            refused = converse(&link, &service) => Err(refused.into()),
            never = send_reports(&link, reports_in) => match never {},
            never = crate::keys::follow(&identity) => match never {},
            () = crate::process::asked_to_end() => {
                if !quiet {
                    eprintln!("site ends; what has arrived is kept");
                }
                Ok(ExitCode::SUCCESS)
            }
        }
    })
}

/// Where each link into this site is taken in.
fn addresses(
    args: &Args,
    listen: SocketAddr,
    topology: &anabranch_graph::Topology,
    site: anabranch_units::SiteId,
) -> anyhow::Result<Vec<LinkAddress>> {
    let everywhere = args.advertise.clone().unwrap_or_else(|| listen.to_string());
    let mut of_link: BTreeMap<LinkId, String> =
        topology.links_in(site).map(|l| (l, everywhere.clone())).collect();
    let wildcard = |a: &str| a.parse::<SocketAddr>().is_ok_and(|a| IpAddr::is_unspecified(&a.ip()));
    for entry in &args.link {
        let (from, address) =
            entry.split_once('=').with_context(|| format!("--link {entry}: write FROM=HOST:PORT"))?;
        let from = network::site(topology, from)?;
        let mut known = topology.links_in(site).filter(|l| topology.link(*l).from == from).peekable();
        anyhow::ensure!(known.peek().is_some(), "--link {entry}: no link comes from there to this site");
        of_link.extend(known.map(|l| (l, address.to_owned())));
    }
    if let Some((link, address)) = of_link.iter().find(|(_, a)| wildcard(a)) {
        let from = &topology.site(topology.link(*link).from).name;
        anyhow::bail!(
            "--listen {address} says where to listen, not where {from} finds this site: add --advertise HOST:PORT"
        );
    }
    Ok(of_link.into_iter().map(|(link, address)| LinkAddress { link, address }).collect())
}

/// Does what the controller says, until the controller will have nothing to do with this site.
async fn converse(link: &SiteLink, service: &Arc<Service>) -> ClientError {
    let mut lost = false;
    loop {
        match link.next_commands().await {
            Ok(commands) => {
                if std::mem::take(&mut lost) {
                    tracing::info!("the controller is back");
                }
                commands.into_iter().for_each(|c| service.handle(c));
            }
            // No such site here, another topology, another relay of this site: nothing that time mends.
            Err(error @ ClientError::Refused { status: 403 | 404 | 412 | 423, .. }) => return error,
            Err(error) => {
                if !std::mem::replace(&mut lost, true) {
                    tracing::warn!("{error}; trying on");
                }
                tokio::time::sleep(RETRY).await;
            }
        }
    }
}

async fn send_reports(
    link: &SiteLink,
    mut reports: mpsc::UnboundedReceiver<Report>,
) -> std::convert::Infallible {
    loop {
        let Some(first) = reports.recv().await else { std::future::pending().await };
        tokio::time::sleep(REPORT_GATHER).await;
        let mut batch = vec![first];
        while let Ok(more) = reports.try_recv() {
            batch.push(more);
        }
        keep_last_progress(&mut batch);
        while !batch.is_empty() {
            let count = fitting(&batch);
            match link.report(&batch[..count]).await {
                Ok(()) => {
                    batch.drain(..count);
                    continue;
                }
                // It would be refused for ever.
                Err(error @ ClientError::Refused { status: 400 | 413, .. }) => {
                    tracing::warn!(%error, count, "reports refused");
                    batch.drain(..count);
                    continue;
                }
                Err(error) => tracing::debug!(%error, "reports wait"),
            }
            tokio::time::sleep(RETRY).await;
            // What came meanwhile joins them, so that a controller that stays away costs no memory: old progress is no
            // news, and of the rest only the newest is worth keeping.
            while let Ok(more) = reports.try_recv() {
                batch.push(more);
            }
            keep_last_progress(&mut batch);
            batch.drain(..batch.len().saturating_sub(REPORTS_MAX));
        }
    }
}

/// How many of the first reports go together: at least one, and no more than a request may be large.
fn fitting(batch: &[Report]) -> usize {
    let mut ranges = 0;
    let fits = batch.iter().take(REPORTS_TOGETHER_MAX).take_while(|report| {
        if let Report::Inventory { have, .. } | Report::SinkDone { have, .. } = report {
            ranges += have.len();
        }
        ranges <= RANGES_TOGETHER_MAX
    });
    fits.count().max(1)
}

/// Of several progress reports of one attempt only the last is worth sending.
fn keep_last_progress(batch: &mut Vec<Report>) {
    let mut seen = std::collections::BTreeSet::new();
    let mut kept: Vec<Report> = Vec::with_capacity(batch.len());
    for report in batch.drain(..).rev() {
        match &report {
            Report::Progress { run, .. } if !seen.insert(*run) => {}
            _ => kept.push(report),
        }
    }
    kept.reverse();
    *batch = kept;
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_replicate::control::{Attempt, Run, TransferId};

    #[test]
    fn reports_with_many_ranges_go_one_by_one() {
        let run = Run { transfer: TransferId(1), attempt: Attempt(1) };
        let range = anabranch_replicate::control::ByteRange { start: 0, end: 1 };
        let done = |ranges| Report::SinkDone { run, have: vec![range; ranges] };
        assert_eq!(fitting(&[done(RANGES_TOGETHER_MAX), Report::Ready { run }, done(1)]), 2);
        assert_eq!(fitting(&[done(RANGES_TOGETHER_MAX + 1), Report::Ready { run }]), 1);
        assert_eq!(fitting(&vec![Report::Ready { run }; 1000]), REPORTS_TOGETHER_MAX);
    }

    #[test]
    fn of_old_progress_only_the_last_is_kept_and_the_rest_in_order() {
        let run = Run { transfer: TransferId(1), attempt: Attempt(1) };
        let progress =
            |verified_bytes| Report::Progress { run, verified_bytes, sink_stalled: 0.0, flows: vec![] };
        let mut batch = vec![progress(1), Report::Ready { run }, progress(2), Report::Completed { run }];
        keep_last_progress(&mut batch);
        assert_eq!(batch, [Report::Ready { run }, progress(2), Report::Completed { run }]);
    }
}
