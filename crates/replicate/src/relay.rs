//! A site's daemon, whole: a [`Service`] in conversation with the controller.
//!
//! Commands come by long polls, reports go in batches; both are tried again for as long as the controller is away, and data that has
//! arrived stays. Leaves out: keys that change on the disk, and rights to the folder, which are the program's.

use crate::client::{Client, SiteLink};
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

/// How often it is looked for what is too old.
const LEFTOVERS_EVERY: Duration = Duration::from_secs(3_600);
/// How long reports are gathered before they are sent together.
const REPORT_GATHER: Duration = Duration::from_millis(5);
/// How long to wait after the controller could not be reached.
const RETRY: Duration = Duration::from_secs(1);
/// How long a request to the controller is tried before its commands are asked for anew.
const PATIENCE: Duration = Duration::from_secs(30);

/// How a site's daemon is set up.
#[derive(Clone, Debug)]
pub struct RelayConfig {
    /// The network, the same as the controller's.
    pub topology: Topology,
    /// The site.
    pub site: SiteId,
    /// Where the controller listens, `host:port`.
    pub controller: String,
    /// The folder below which files are read and written, and nowhere else.
    pub folder: Arc<Folder>,
    /// Where to take in data.
    pub listen: SocketAddr,
    /// Where other sites reach this one, `host:port`; the address of `listen` without.
    pub advertise: Option<String>,
    /// Where the sites at the other ends of these links reach this one, if not where the others do.
    pub links: Vec<(LinkId, String)>,
    /// Which sites may have files put where of their own accord.
    pub accept: Vec<AcceptFrom>,
    /// The most memory that all transfers together may take.
    pub memory: ByteCount,
    /// How long the leftover of a file is kept when no transfer goes on with it.
    pub keep_partial: Duration,
    /// Whether to take the place of another process of this site that is running.
    pub take_over: bool,
    /// Data connections of peers that have not shown their identity.
    pub half_open: AdmissionLimits,
    /// A fault that the site has on purpose, for tests.
    pub fault: Fault,
}

impl RelayConfig {
    /// A daemon on a free port of loopback, with every other setting as the command has it by default.
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

/// Why a site's daemon does not begin.
#[derive(Debug)]
#[non_exhaustive]
pub enum RelayError {
    /// It cannot listen.
    Listen(io::Error),
    /// It would tell others to connect to an address that stands for all of a machine's.
    Wildcard {
        /// The address.
        address: String,
        /// A site that would have to connect.
        from: String,
    },
    /// The controller's address or the keys cannot be used.
    Client(ClientError),
    /// The system gives no random numbers.
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

/// A site's daemon that listens.
pub struct Relay {
    listener: TcpListener,
    address: SocketAddr,
    link: SiteLink,
    site: SiteConfig,
    identity: Identity,
    keep_partial: Duration,
}

impl Relay {
    /// Listens. Nothing is served before [`Relay::run`].
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

    /// Where it takes in data.
    pub fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// Does what the controller says, until that will have nothing to do with this site: why. Dropped, all of it ends; what has
    /// arrived is kept.
    pub async fn run(self) -> ClientError {
        // Emptied at every turn of `send_reports`, which bounds what it holds; a turn takes no longer than the client's
        // patience.
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

/// Where each link into this site is taken in.
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

/// Looks again and again for what is too old.
async fn remove_leftovers(folder: Arc<Folder>, keep: Duration) -> Infallible {
    loop {
        let folder = Arc::clone(&folder);
        // It ends early only with the runtime.
        let _ = tokio::task::spawn_blocking(move || remove_old(&folder, keep)).await;
        sleep(LEFTOVERS_EVERY).await;
    }
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
                // It would be refused for ever.
                Err(error @ ClientError::Refused { status: 400 | 413, .. }) => {
                    tracing::warn!(%error, count, "reports refused");
                    outbox.handle_sent(count);
                    continue;
                }
                Err(error) => tracing::debug!(%error, "reports wait"),
            }
            sleep(RETRY).await;
            // What came meanwhile joins them.
            outbox.extend(std::iter::from_fn(|| reports.try_recv().ok()));
            outbox.handle_away();
        }
    }
}
