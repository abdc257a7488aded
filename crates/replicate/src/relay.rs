//! A site's daemon: a [`Service`] connected to the controller.
//!
//! Commands arrive by long polls, reports leave in batches. Both are retried while the controller
//! is unreachable, and received data is kept. Leaves out: reloading keys, and access rights to the
//! folder, which are left to the program.

use crate::client::{Client, SiteLink};
use crate::metrics::SiteMetrics;
use crate::runner::Fault;
use crate::service::{AcceptFrom, Service, SiteConfig};
use crate::wire::{LinkAddress, RegisterRequest, TopologyDigest};
use anabranch_disk::folder::Folder;
use anabranch_disk::partial::leftovers::remove_old;
use anabranch_graph::Topology;
use anabranch_http::ClientError;
use anabranch_net::admission::AdmissionLimits;
use anabranch_net::identity::Identity;
use anabranch_net::{random, socket};
use anabranch_replicate_proto::control::Report;
use anabranch_replicate_proto::outbox::Outbox;
use anabranch_units::{ByteCount, LinkId, SiteId};
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio::time::sleep;

/// Interval between two searches for expired partial files.
const LEFTOVERS_EVERY: Duration = Duration::from_secs(3_600);
/// Time for which reports are collected into one batch.
const REPORT_GATHER: Duration = Duration::from_millis(5);
/// Pause after a failed request to the controller.
const RETRY: Duration = Duration::from_secs(1);
/// Retry time of one request to the controller; after it the relay asks for commands again.
const PATIENCE: Duration = Duration::from_secs(30);

/// Configuration of a site's daemon.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// The network, equal to the controller's.
    pub topology: Topology,
    /// Id of the site.
    pub site: SiteId,
    /// Address of the controller, as `host:port`.
    pub controller: String,
    /// Folder that contains all files the relay reads and writes.
    pub folder: Arc<Folder>,
    /// Address on which to receive data.
    pub listen: SocketAddr,
    /// Address at which other sites reach this one, as `host:port`. `None`: the address of
    /// `listen`.
    pub advertise: Option<String>,
    /// Addresses for the sites at the other ends of these links, where they differ from
    /// `advertise`.
    pub links: Vec<(LinkId, String)>,
    /// Sites that may write files here without an operator, and the folders they may write to.
    pub accept: Vec<AcceptFrom>,
    /// Maximum memory of all transfers together.
    pub memory: ByteCount,
    /// Time for which a partial file is kept without a transfer that resumes it.
    pub keep_partial: Duration,
    /// True to replace another running process of this site.
    pub take_over: bool,
    /// Limits on data connections of unauthenticated peers.
    pub half_open: AdmissionLimits,
    /// Fault to inject, for tests.
    pub fault: Fault,
}

impl RelayConfig {
    /// Creates a configuration on a free loopback port, with the command's defaults for all other
    /// settings.
    pub fn new(
        topology: &Topology,
        site: SiteId,
        folder: impl Into<Arc<Folder>>,
        controller: impl Into<String>,
    ) -> Self {
        Self {
            topology: topology.clone(),
            site,
            controller: controller.into(),
            folder: folder.into(),
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            advertise: None,
            links: Vec::new(),
            accept: Vec::new(),
            memory: ByteCount::mib(256),
            keep_partial: Duration::from_secs(168 * 3_600),
            take_over: false,
            half_open: AdmissionLimits::default(),
            fault: Fault::default(),
        }
    }
}

/// Reason why a site's daemon does not start.
#[derive(Debug)]
#[non_exhaustive]
pub enum RelayError {
    /// The data address cannot be bound.
    Listen(io::Error),
    /// The advertised address would be a wildcard, to which no site can connect.
    Wildcard {
        /// The wildcard address.
        address: String,
        /// A site that would have to connect to the wildcard address.
        from: String,
    },
    /// The controller's address or the keys are unusable.
    Client(ClientError),
    /// The system provides no random numbers.
    Random(io::Error),
}

impl std::fmt::Display for RelayError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Listen(error) | Self::Random(error) => error.fmt(f),
            Self::Wildcard { address, from } => write!(
                f,
                "--listen {address} says where to listen, not where {from} finds this site: add --advertise HOST:PORT"
            ),
            Self::Client(error) => error.fmt(f),
        }
    }
}
impl std::error::Error for RelayError {}

/// A site's daemon, listening.
pub struct Relay {
    listener: TcpListener,
    address: SocketAddr,
    link: SiteLink,
    site: SiteConfig,
    identity: Identity,
    keep_partial: Duration,
}

impl Relay {
    /// Binds the data address. Nothing is served before [`Relay::run`].
    ///
    /// Must be called inside the runtime. Errors: [`RelayError`].
    pub async fn bind(config: RelayConfig, identity: &Identity) -> Result<Self, RelayError> {
        let listener = socket::listen(config.listen).map_err(RelayError::Listen)?;
        let address = listener.local_addr().map_err(RelayError::Listen)?;
        let addresses = addresses(&config, address)?;
        let client = Client::new(&config.controller, identity, PATIENCE).map_err(RelayError::Client)?;
        let registration = RegisterRequest {
            session: random().map_err(RelayError::Random)?,
            addresses,
            topology: Some(TopologyDigest::of(&config.topology)),
            take_over: config.take_over,
        };
        let name = config.topology.site(config.site).name.clone();
        let site = SiteConfig {
            folder: config.folder,
            accept: config.accept,
            memory_max: config.memory.as_u64(),
            half_open: config.half_open,
            fault: config.fault,
            metrics: Arc::new(SiteMetrics::new(&config.topology, config.site)),
        };
        let link = SiteLink::new(client, name, registration);
        Ok(Self {
            listener,
            address,
            link,
            site,
            identity: identity.clone(),
            keep_partial: config.keep_partial,
        })
    }

    /// Data address of the site.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// The site's metrics in Prometheus' text format, while it runs as well.
    pub fn metrics(&self) -> impl Fn() -> String + Clone + Send + Sync + use<> {
        let metrics = Arc::clone(&self.site.metrics);
        move || metrics.text()
    }

    /// Executes the controller's commands until the controller refuses this site. Returns the
    /// refusal. Dropping the future ends all work; received data is kept.
    pub async fn run(self) -> ClientError {
        // `send_reports` empties the channel at every turn, which takes at most the client's retry
        // time; this bounds the channel.
        let (reports, reports_in) = mpsc::unbounded_channel();
        let folder = Arc::clone(&self.site.folder);
        let service = Service::start(self.site, self.identity, vec![self.listener], reports);
        tokio::select! {
            refused = converse(&self.link, &service) => refused,
            never = send_reports(&self.link, reports_in) => match never {},
            never = remove_leftovers(folder, self.keep_partial) => match never {},
        }
    }
}

/// Address of each link into this site.
fn addresses(config: &RelayConfig, listen: SocketAddr) -> Result<Vec<LinkAddress>, RelayError> {
    let topology = &config.topology;
    let everywhere = config.advertise.clone().unwrap_or_else(|| listen.to_string());
    let links = topology.links_in(config.site);
    let mut of_link: BTreeMap<LinkId, String> = links.map(|l| (l, everywhere.clone())).collect();
    let own = |(link, _): &&(LinkId, String)| topology.links_in(config.site).any(|l| l == *link);
    of_link.extend(config.links.iter().filter(own).cloned());
    let wildcard = |a: &str| a.parse::<SocketAddr>().is_ok_and(|a| IpAddr::is_unspecified(&a.ip()));
    if let Some((link, address)) = of_link.iter().find(|(_, a)| wildcard(a)) {
        let from = topology.site(topology.link(*link).from).name.clone();
        return Err(RelayError::Wildcard { address: address.clone(), from });
    }
    Ok(of_link.into_iter().map(|(link, address)| LinkAddress { link, address }).collect())
}

/// Removes expired partial files periodically.
async fn remove_leftovers(folder: Arc<Folder>, keep: Duration) -> Infallible {
    loop {
        let folder = Arc::clone(&folder);
        // The task ends early only with the runtime.
        let _ = tokio::task::spawn_blocking(move || remove_old(&folder, keep)).await;
        sleep(LEFTOVERS_EVERY).await;
    }
}

/// Executes the controller's commands until the controller refuses this site.
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
            // Unknown site, other topology, other relay of this site: waiting does not help.
            Err(error @ ClientError::Refused { status: 403 | 404 | 412 | 423, .. }) => return error,
            Err(error) => {
                if !std::mem::replace(&mut lost, true) {
                    tracing::warn!("{error}; trying on");
                }
                sleep(RETRY).await;
            }
        }
    }
}

async fn send_reports(link: &SiteLink, mut reports: mpsc::UnboundedReceiver<Report>) -> Infallible {
    let mut outbox = Outbox::default();
    loop {
        let Some(first) = reports.recv().await else { std::future::pending().await };
        sleep(REPORT_GATHER).await;
        outbox.extend([first]);
        outbox.extend(std::iter::from_fn(|| reports.try_recv().ok()));
        outbox.thin();
        while !outbox.next().is_empty() {
            let count = outbox.next().len();
            match link.report(outbox.next()).await {
                Ok(()) => {
                    outbox.handle_sent(count);
                    continue;
                }
                // The controller would refuse this batch again.
                Err(error @ ClientError::Refused { status: 400 | 413, .. }) => {
                    tracing::warn!(%error, count, "reports refused");
                    outbox.handle_sent(count);
                    continue;
                }
                Err(error) => tracing::debug!(%error, "reports wait"),
            }
            sleep(RETRY).await;
            // Reports that arrived meanwhile join the unsent ones.
            outbox.extend(std::iter::from_fn(|| reports.try_recv().ok()));
            outbox.handle_away();
        }
    }
}
