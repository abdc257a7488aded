//! The control of a node and its sockets: reports to the controller, and messages with neighbours.
//!
//! A node gets the network's description from the controller, or from a file of an earlier run, and
//! follows changes of the network. Each child connects to each of its parents over mutual TLS. The
//! machine (`live_proto::control::node`) decides. Requests of viewers wait here for its decisions,
//! and upstream requests follow its routes. Leaves out: bytes of video. Read [`NodeControl`] first.

mod neighbours;
mod topology;
mod transfers;

use crate::body::UNSENT_BYTES_MAX;
use crate::controller::client::ControllerClient;
use crate::description::{DescriptionError, Layout, NodeEntry};
use crate::parents::{PendingHop, Route};
use anabranch_http::origin::{Origin, OriginUrlError, Security};
use anabranch_http::plain::PlainLimits;
use anabranch_http::{ClientError, PeerAddress};
use anabranch_live_proto::control::audience::Audience;
use anabranch_live_proto::control::messages::{GroupId, Refusal, Report};
use anabranch_live_proto::control::node::{ControlMode, Event, Node, RequestId, Settings, Transmit};
use anabranch_live_proto::relay::{Hop, Key};
use anabranch_live_proto::{NodeId, Object, Tier};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::refusals::Refusals;
use anabranch_units::{Duration, Instant, Seed};
use axum::body::HttpBody;
use hyper::body::Incoming;
use hyper::{Request, Response};
use neighbours::Outbox;
use std::collections::{BTreeMap, BTreeSet};
use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::net::TcpListener;
use tokio::sync::{Notify, mpsc, oneshot};
use tokio::time::timeout;
use topology::{NetworkFollower, Topology};
pub use transfers::TransferMeter;
use transfers::Transfers;

/// Longest wait for a controller's answer with the network's description.
const DESCRIPTION_TIME: std::time::Duration = std::time::Duration::from_secs(5);
/// Longest wait for the answer to a report.
const REPORT_TIME: std::time::Duration = std::time::Duration::from_secs(3);
/// Maximum number of reports that wait for the controller. A further report is dropped, and the
/// next is complete.
const REPORTS_MAX: usize = 4;
/// Longest wait of a viewer or an upstream request for a route.
const ROUTE_TIME: std::time::Duration = std::time::Duration::from_secs(3);
/// Longest wait for a route if the controller alone decides. It exceeds the controller's usual
/// round and the stages of its plan.
const CENTRAL_ROUTE_TIME: std::time::Duration = std::time::Duration::from_secs(15);
/// Maximum number of viewers that wait for a decision.
const WAITING_MAX: usize = 16_384;
/// Window of the estimate of viewers. It exceeds the pauses of players with segments of 10 s.
const AUDIENCE_WINDOW: Duration = Duration::from_secs(15);
/// Longest time from a grant to the first byte. Players without low latency request once per
/// segment.
const DELIVER_TIMEOUT: Duration = Duration::from_secs(12);

/// Configuration of a node's control.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// Name of the node, as in the network's description and in its certificate.
    pub name: String,
    /// Controllers as `host:port`, tried in turn.
    pub controllers: Vec<String>,
    /// Keys and certificate of the node.
    pub identity: Identity,
    /// Address on which to listen for control connections of the next tier. Edges need none.
    pub address: Option<SocketAddr>,
    /// Address on which to serve objects to the next tier by mutual TLS. Needed if the node's media
    /// URL in the network's description begins with `https://`.
    pub objects_address: Option<SocketAddr>,
    /// File that stores the network's description, for a start without a controller.
    pub cache: Option<PathBuf>,
    /// Which decisions the node follows: the controller's, its own, or both.
    pub mode: ControlMode,
}

/// Reason why the control cannot start.
#[derive(Debug)]
#[non_exhaustive]
pub enum ControlError {
    /// No controller is configured.
    NoController,
    /// A controller's address is invalid, or the keys belong to another system.
    Client(ClientError),
    /// No controller has answered, and no file has a description. Holds the last error.
    NoDescription(String),
    /// The description is invalid.
    Description(DescriptionError),
    /// The network has no node with this name.
    UnknownNode(String),
    /// The tier of a node does not fit the program. Holds the node's name, its tier and the
    /// program's tiers.
    OtherTier(String, Tier, &'static str),
    /// Children connect to the named node, but no address to listen on is configured.
    NoListener(String),
    /// The named node's media URL begins with `https://`, but no address for objects is configured.
    NoObjectsListener(String),
    /// A parent's URL is invalid.
    BadParent(OriginUrlError),
    /// The address named in the error cannot be bound.
    Bind(std::io::Error),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoController => write!(f, "no controller is given: name one as HOST:PORT"),
            Self::Client(error) => write!(f, "{error}"),
            Self::NoDescription(error) => write!(f, "the network is not known: {error}"),
            Self::Description(error) => write!(f, "the controller's network: {error}"),
            Self::UnknownNode(name) => {
                write!(f, "node `{name}`: not in the controller's network: add a [[node]] of this name")
            }
            Self::OtherTier(name, tier, expected) => {
                let tier = format!("{tier:?}").to_lowercase();
                write!(f, "node `{name}` is a {tier} in the controller's network: this program is {expected}")
            }
            Self::NoListener(name) => {
                write!(f, "node `{name}`: the next tier connects to it: give --control IP:PORT")
            }
            Self::NoObjectsListener(name) => write!(
                f,
                "node `{name}`: the next tier fetches from its https:// URL by mutual TLS: give --objects IP:PORT"
            ),
            Self::BadParent(error) => write!(f, "parent: {error}"),
            Self::Bind(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for ControlError {}

/// The control of one node. Clones share its state.
#[derive(Clone)]
pub struct NodeControl {
    shared: Arc<Shared>,
}

impl fmt::Debug for NodeControl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("NodeControl").field(&self.shared.name).finish()
    }
}

struct Shared {
    topology: RwLock<Arc<Topology>>,
    id: NodeId,
    name: String,
    identity: Identity,
    cache: Option<PathBuf>,
    controllers: Vec<ControllerClient>,
    listener: Mutex<Option<TcpListener>>,
    has_listener: bool,
    /// Listener for objects, until the node or source takes it.
    objects_listener: Mutex<Option<TcpListener>>,
    state: Mutex<State>,
    /// Longest wait of a viewer or an upstream request for a route.
    route_time: std::time::Duration,
    signals: Signals,
    /// Sender of failed parents, for the relay.
    failed: mpsc::UnboundedSender<Hop>,
    /// Receiver of failed parents, until the relay takes it.
    failed_due: Mutex<Option<mpsc::UnboundedReceiver<Hop>>>,
    transfers: Arc<Transfers>,
    epoch: tokio::time::Instant,
}

/// Notifications for which tasks wait.
#[derive(Default)]
struct Signals {
    /// The machine's next deadline has changed.
    changed: Notify,
    /// A route has changed.
    routed: Notify,
    /// The network has changed.
    grown: Notify,
}

struct State {
    node: Node,
    audience: Audience,
    /// Parent from which each object is fetched.
    routes: BTreeMap<Object, NodeId>,
    waiting: BTreeMap<RequestId, oneshot::Sender<Result<(), Refusal>>>,
    requests: u64,
    /// Open connections to parents and children.
    outboxes: BTreeMap<NodeId, Outbox>,
    reports: mpsc::Sender<Report>,
    /// Receiver of reports, until the task that sends them takes it.
    reports_due: Option<mpsc::Receiver<Report>>,
    /// Log lines about failed parents and lost streams. A parent may fail repeatedly.
    refusals: Refusals,
}

/// Error for a viewer who is refused, with the reason.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct UnservedViewer(pub(crate) Refusal);

impl NodeControl {
    /// Obtains the network's description and binds the listeners. `tiers` are the tiers that the
    /// calling program serves, and their description for an error message.
    ///
    /// Errors: see [`ControlError`].
    pub async fn start(
        config: ControlConfig,
        (tiers, expected): (&[Tier], &'static str),
    ) -> Result<Self, ControlError> {
        if config.controllers.is_empty() {
            return Err(ControlError::NoController);
        }
        let client = |address: &String| ControllerClient::new(address, &config.identity, DESCRIPTION_TIME);
        let clients = config.controllers.iter().map(client).collect::<Result<Vec<_>, _>>();
        let controllers = clients.map_err(ControlError::Client)?;
        let (stamp, layout) = Topology::start(&controllers, &config).await?;
        let network = layout.network();
        let unknown = || ControlError::UnknownNode(config.name.clone());
        let id = network.find(&config.name).ok_or_else(unknown)?;
        let tier = network.node(id).tier;
        if !tiers.contains(&tier) {
            return Err(ControlError::OtherTier(config.name, tier, expected));
        }
        let listener = match config.address {
            Some(address) => Some(anabranch_net::socket::listen(address).map_err(ControlError::Bind)?),
            None if !network.links_out(id).is_empty() => return Err(ControlError::NoListener(config.name)),
            None => None,
        };
        let is_secure = layout.entry(id).media.starts_with("https://");
        let objects_listener = match config.objects_address {
            Some(address) => {
                let listener = anabranch_net::socket::listen(address).map_err(ControlError::Bind)?;
                let unsent = anabranch_net::socket::bound_unsent(&listener, UNSENT_BYTES_MAX);
                unsent.map_err(ControlError::Bind)?;
                Some(listener)
            }
            None if is_secure && tier != Tier::Edge => {
                return Err(ControlError::NoObjectsListener(config.name));
            }
            None => None,
        };
        let epoch = tokio::time::Instant::now();
        let now = Instant::from_std(epoch.elapsed());
        let settings =
            Settings { deliver_timeout: DELIVER_TIMEOUT, mode: config.mode, ..Settings::default() };
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let life = u64::try_from(since_1970.as_micros()).unwrap_or(u64::MAX);
        let node = Node::new(now, network, id, life, settings, Seed::new(life));
        let (reports, reports_due) = mpsc::channel(REPORTS_MAX);
        let state = State {
            node,
            audience: Audience::new(now, AUDIENCE_WINDOW),
            routes: BTreeMap::new(),
            waiting: BTreeMap::new(),
            requests: 0,
            outboxes: BTreeMap::new(),
            reports,
            reports_due: Some(reports_due),
            refusals: Refusals::default(),
        };
        let (failed, failed_due) = mpsc::unbounded_channel();
        let topology = Topology::new(stamp, layout, (id, &config.identity), &[]);
        let topology = topology.map_err(ControlError::BadParent)?;
        let transfers = Transfers::new(epoch);
        transfers.declare(&topology, id);
        let shared = Shared {
            transfers,
            failed,
            failed_due: Mutex::new(Some(failed_due)),
            topology: RwLock::new(Arc::new(topology)),
            route_time: match config.mode {
                ControlMode::Centralized => CENTRAL_ROUTE_TIME,
                ControlMode::Hybrid | ControlMode::Distributed => ROUTE_TIME,
            },
            id,
            name: config.name,
            identity: config.identity,
            cache: config.cache,
            controllers,
            has_listener: listener.is_some(),
            listener: Mutex::new(listener),
            objects_listener: Mutex::new(objects_listener),
            state: Mutex::new(state),
            signals: Signals::default(),
            epoch,
        };
        Ok(Self { shared: Arc::new(shared) })
    }

    /// The current network.
    pub fn layout(&self) -> Arc<Layout> {
        self.shared.layout()
    }

    /// Tier of the node.
    pub fn tier(&self) -> Tier {
        self.shared.layout().network().node(self.shared.id).tier
    }

    /// Origins of the parents, indexed by [`Hop`].
    pub(crate) fn parents(&self) -> Vec<Origin> {
        self.shared.topology().parents.iter().map(|(_, origin)| origin.clone()).collect()
    }

    /// Serves objects to the next tier by mutual TLS, with the responses of `answer`. Never
    /// returns. Waits for ever if there is no listener for objects, or on the second call.
    pub(crate) async fn serve_objects<A, F, B>(&self, answer: A, limits: PlainLimits) -> Infallible
    where
        A: Fn(PeerAddress, Request<Incoming>) -> F + Clone + Send + Sync + 'static,
        F: Future<Output = Response<B>> + Send + 'static,
        B: HttpBody + Send + 'static,
        B::Data: Send,
        B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        let listener = self.shared.objects_listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        match listener {
            Some(listener) => {
                neighbours::serve_objects(Arc::clone(&self.shared), listener, answer, limits).await
            }
            None => std::future::pending().await,
        }
    }

    /// Address of the listener for objects by mutual TLS. `None` if there is no such listener, or
    /// once objects are served.
    pub fn objects_addr(&self) -> Option<SocketAddr> {
        let listener = self.shared.objects_listener.lock().unwrap_or_else(PoisonError::into_inner);
        listener.as_ref()?.local_addr().ok()
    }

    /// Routes of the control, for the relay.
    pub(crate) fn route(&self) -> Arc<dyn Route> {
        Arc::new(Routes(Arc::clone(&self.shared)))
    }

    /// Receiver of failed parents. `None` after the first call.
    pub(crate) fn failed_parents(&self) -> Option<mpsc::UnboundedReceiver<Hop>> {
        self.shared.failed_due.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Runs deadlines and connections. Never returns; stops when dropped. Must be called once only.
    pub async fn run(&self) {
        let shared = &self.shared;
        let due = shared.lock().reports_due.take();
        let listener = shared.listener.lock().unwrap_or_else(PoisonError::into_inner).take();
        let mut tasks = tokio::task::JoinSet::new();
        tasks.spawn(transfers::measure(Arc::clone(shared)));
        let mut parents = 0;
        if let Some(listener) = listener {
            tasks.spawn(neighbours::serve_children(Arc::clone(shared), listener));
        }
        if let Some(due) = due {
            tasks.spawn(report(Arc::clone(shared), due));
        }
        loop {
            let topology = shared.topology();
            for (parent, _) in &topology.parents[parents..] {
                tasks.spawn(neighbours::follow_parent(Arc::clone(shared), *parent));
            }
            parents = topology.parents.len();
            let due = {
                let state = shared.lock();
                state.node.poll_timeout().min(state.audience.poll_timeout())
            };
            let wait = due.saturating_since(shared.now()).to_std();
            // One millisecond is added because timers may fire early by their rounding.
            let wait = tokio::time::sleep(wait + std::time::Duration::from_millis(1));
            tokio::select! {
                () = wait => shared.with(State::handle_timeout),
                () = shared.signals.changed.notified() => {}
                () = shared.signals.grown.notified() => {}
            }
        }
    }

    /// Sets the objects that this source imports. All other imports end.
    pub(crate) fn set_imports(&self, imports: &BTreeSet<Object>) {
        self.shared.with(|state, _| {
            let before: Vec<Object> = state.node.objects().collect();
            for object in before.iter().filter(|object| !imports.contains(object)) {
                state.node.handle_import_ended(*object);
            }
            for object in imports {
                if !state.node.is_receiving(*object) && !state.node.handle_import(*object) {
                    tracing::warn!("an object is not imported: the node's table is full");
                }
            }
        });
    }

    /// Requests admission for a viewer's request, and waits for a route if there is none.
    ///
    /// Errors: the viewer is refused. It should ask another edge, or ask for a lower bitrate.
    pub(crate) async fn admit(
        &self,
        viewer: IpAddr,
        object: Object,
        key: &Key,
    ) -> Result<(), UnservedViewer> {
        let shared = &self.shared;
        // Viewers outside all groups get a group id that no plan contains.
        let group = shared.layout().group_of(viewer).unwrap_or(GroupId(u32::MAX));
        let media = (!key.is_playlist()).then(|| anabranch_units::fnv1a(key.path().bytes()));
        let (number, answer) = {
            let mut state = shared.lock();
            if state.audience.handle_request(group, object, media) {
                return Ok(());
            }
            if state.waiting.len() >= WAITING_MAX {
                return Err(UnservedViewer(Refusal::TableFull));
            }
            let (told, answer) = oneshot::channel();
            state.requests += 1;
            let number = RequestId(state.requests);
            state.waiting.insert(number, told);
            (number, answer)
        };
        // If the viewer leaves while it waits, dropping the slot cancels its request.
        let place = WaitingSlot { shared: Arc::clone(shared), number, object };
        shared.with(|state, now| state.node.handle_viewer(now, number, group, object));
        let answer = timeout(shared.route_time, answer).await;
        drop(place);
        match answer {
            Ok(Ok(Ok(()))) => {
                shared.with(|state, _| {
                    if state.audience.admit(group, object) {
                        state.node.handle_audience(group, object, 1);
                    } else {
                        state.node.handle_viewer_left(group, object);
                    }
                });
                Ok(())
            }
            Ok(Ok(Err(refusal))) => Err(UnservedViewer(refusal)),
            Ok(Err(_)) | Err(_) => Err(UnservedViewer(Refusal::NoParent)),
        }
    }
}

/// Origin of a parent. The scheme of its URL decides between mutual TLS and no TLS.
fn origin(parent: &NodeEntry, identity: &Identity) -> Result<Origin, OriginUrlError> {
    if !parent.media.starts_with("https://") {
        return Origin::new(&parent.media);
    }
    let (identity, name) = (identity.clone(), parent.name.clone());
    Origin::with(&parent.media, Security::Mutual { identity, role: Role::Site, name }, None)
}

/// The slot of a waiting viewer. Dropping the slot cancels the request.
struct WaitingSlot {
    shared: Arc<Shared>,
    number: RequestId,
    object: Object,
}

impl Drop for WaitingSlot {
    fn drop(&mut self) {
        let (number, object) = (self.number, self.object);
        self.shared.with(|state, _| {
            if state.waiting.remove(&number).is_some() {
                state.node.handle_viewer_cancelled(number, object);
            }
        });
    }
}

impl State {
    fn handle_timeout(&mut self, now: Instant) {
        for change in self.audience.handle_timeout(now) {
            self.node.handle_audience(change.group, change.object, change.viewers);
        }
        if now >= self.node.poll_timeout() {
            self.node.handle_timeout(now);
        }
    }
}

impl Shared {
    fn now(&self) -> Instant {
        Instant::from_std(self.epoch.elapsed())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn topology(&self) -> Arc<Topology> {
        Arc::clone(&self.topology.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn set_topology(&self, topology: Arc<Topology>) {
        *self.topology.write().unwrap_or_else(PoisonError::into_inner) = topology;
    }

    fn layout(&self) -> Arc<Layout> {
        Arc::clone(&self.topology().layout)
    }

    fn name(&self, node: NodeId) -> String {
        self.layout().entry(node).name.clone()
    }

    /// Calls the machine, then sends its messages and handles its events.
    fn with<T>(&self, call: impl FnOnce(&mut State, Instant) -> T) -> T {
        let mut state = self.lock();
        let due = state.node.poll_timeout();
        let now = self.now();
        let result = call(&mut state, now);
        while let Some(message) = state.node.poll_transmit() {
            match message {
                Transmit::Parent(node, message) => state.send(node, &message),
                Transmit::Child(node, message) => state.send(node, &message),
                // A dropped report leaves a gap, and the controller then requests a complete
                // report.
                Transmit::Controller(report) => drop(state.reports.try_send(report)),
            }
        }
        let mut is_routed = false;
        while let Some(event) = state.node.poll_event() {
            is_routed |= self.act(&mut state, event);
        }
        let is_earlier = state.node.poll_timeout() < due;
        drop(state);
        if is_routed {
            self.signals.routed.notify_waiters();
        }
        if is_earlier {
            self.signals.changed.notify_one();
        }
        result
    }

    /// Handles an event of the machine. Returns whether a route has changed.
    fn act(&self, state: &mut State, event: Event) -> bool {
        match event {
            Event::Fetch { object, parent, .. } => {
                state.routes.insert(object, parent);
                return true;
            }
            Event::Stop(object, parent) if state.routes.get(&object) == Some(&parent) => {
                match state.node.upstream(object).filter(|upstream| *upstream != parent) {
                    Some(upstream) => drop(state.routes.insert(object, upstream)),
                    None => drop(state.routes.remove(&object)),
                }
                return true;
            }
            Event::ViewerAdmitted(number) => state.tell(number, Ok(())),
            Event::ViewerRefused(number, refusal) => state.tell(number, Err(refusal)),
            Event::ViewersLost(object, refusal) => {
                state.audience.handle_lost(object);
                let layout = self.layout();
                let (channel, rendition) = layout.names(object).unwrap_or_default();
                let line = format!("{channel}/{rendition}: viewers have lost it: {refusal}");
                state.refusals.note(None, &line);
            }
            Event::ParentFailed(parent) => {
                let line = format!("parent {}: failed: its streams move", self.name(parent));
                state.refusals.note(None, &line);
                let hop = self.topology().parents.iter().position(|(node, _)| *node == parent);
                // A source has no relay, so nobody receives this.
                let _ = hop.map(|at| self.failed.send(Hop(at as u32)));
            }
            Event::Installed(version) => tracing::debug!("tables {version} are installed"),
            Event::UpdateRefused(error) => tracing::warn!("tables of the controller are refused: {error}"),
            _ => {}
        }
        false
    }
}

impl State {
    fn send(&self, to: NodeId, message: &impl serde::Serialize) {
        // Messages may be lost: they are dropped if the connection's queue is full.
        if let Some(outbox) = self.outboxes.get(&to) {
            outbox.send(message);
        }
    }

    fn tell(&mut self, number: RequestId, answer: Result<(), Refusal>) {
        if let Some(waiting) = self.waiting.remove(&number) {
            // The receiver is gone if the viewer has left.
            let _ = waiting.send(answer);
        }
    }
}

/// Sends reports to the leading controller. Never returns.
async fn report(shared: Arc<Shared>, mut due: mpsc::Receiver<Report>) {
    let mut asked = 0;
    let mut is_heard = true;
    let mut follower = NetworkFollower::default();
    while let Some(report) = due.recv().await {
        let mut answer = Err(String::new());
        // A controller that does not lead refuses at once. The next controller then gets the same
        // report.
        for _ in 0..shared.controllers.len() {
            let client = &shared.controllers[asked % shared.controllers.len()];
            let refused = match client.report(&shared.name, &report, REPORT_TIME).await {
                Ok(reply) => {
                    answer = Ok((client, reply));
                    break;
                }
                Err(error) => error,
            };
            asked += 1;
            answer = Err(refused.to_string());
            if !matches!(refused, ClientError::Refused { .. }) {
                break;
            }
        }
        match answer {
            Ok((client, reply)) => {
                if !std::mem::replace(&mut is_heard, true) {
                    tracing::info!("controller at {}: answers again", client.address());
                }
                // The network comes first, because the tables may name its new nodes.
                follower.follow(&shared, client, &reply).await;
                shared.with(|state, now| {
                    let messages = reply.messages.into_iter();
                    messages.for_each(|message| state.node.handle_controller(now, message));
                });
            }
            Err(error) => {
                if std::mem::replace(&mut is_heard, false) {
                    tracing::warn!("{error}: local control goes on");
                }
            }
        }
    }
    std::future::pending().await
}

/// The routes by which the relay sends upstream requests.
struct Routes(Arc<Shared>);

impl Routes {
    fn hop(&self, parent: NodeId) -> Option<Hop> {
        self.0.topology().parents.iter().position(|(node, _)| *node == parent).map(|at| Hop(at as u32))
    }

    /// The parent of a hop and the object of a key.
    fn of(&self, key: &Key, hop: Hop) -> Option<(NodeId, Object)> {
        let topology = self.0.topology();
        let (parent, _) = topology.parents.get(hop.0 as usize)?;
        Some((*parent, topology.layout.object(key.path())?))
    }

    fn lose(&self, key: &Key, hop: Hop) {
        let Some((parent, object)) = self.of(key, hop) else { return };
        self.0.with(|state, now| state.node.handle_undelivered(now, object, parent));
    }
}

impl Route for Routes {
    fn origin(&self, hop: Hop) -> Option<Origin> {
        self.0.topology().parents.get(hop.0 as usize).map(|(_, origin)| origin.clone())
    }

    fn next_hop(&self, key: &Key, tried: &[Hop]) -> Option<Hop> {
        let layout = self.0.layout();
        let state = self.0.lock();
        let is_new = |hop: &Hop| !tried.contains(hop);
        if let Some(object) = layout.object(key.path()) {
            return self.hop(*state.routes.get(&object)?).filter(is_new);
        }
        // A multivariant playlist belongs to no stream. Any parent with a stream of its channel has
        // it.
        let objects: Vec<Object> = layout.channel(key.path()).collect();
        let routed = objects.iter().filter_map(|object| self.hop(*state.routes.get(object)?)).find(is_new);
        let nearest = || {
            let ways = objects.iter().flat_map(|object| state.node.ways(*object));
            let mut ways: Vec<_> = ways.map(|way| (way.distance, way.parent)).collect();
            ways.sort_unstable();
            ways.into_iter().filter_map(|(_, parent)| self.hop(parent)).find(is_new)
        };
        routed.or_else(nearest)
    }

    fn wait(&self, key: &Key, tried: &[Hop]) -> PendingHop {
        let (routes, key, tried) = (Self(Arc::clone(&self.0)), key.clone(), tried.to_vec());
        Box::pin(async move {
            let found = async {
                loop {
                    let routed = routes.0.signals.routed.notified();
                    tokio::pin!(routed);
                    routed.as_mut().enable();
                    if let Some(hop) = routes.next_hop(&key, &tried) {
                        return hop;
                    }
                    routed.await;
                }
            };
            timeout(routes.0.route_time, found).await.ok()
        })
    }

    fn meter(&self, key: &Key, hop: Hop, is_ready: bool) -> Option<TransferMeter> {
        let (parent, object) = self.of(key, hop)?;
        let ready = (is_ready && !key.is_playlist()).then_some(object.bitrate);
        Some(self.0.transfers.start(parent, ready))
    }

    fn delivered(&self, key: &Key, hop: Hop) {
        let Some((parent, object)) = self.of(key, hop) else { return };
        if self.0.lock().node.upstream(object) != Some(parent) {
            self.0.with(|state, now| state.node.handle_delivered(now, object, parent));
        }
    }

    fn suspect(&self, key: &Key, hop: Hop) {
        self.lose(key, hop);
    }

    fn failed(&self, key: &Key, hop: Hop) {
        self.lose(key, hop);
    }
}
