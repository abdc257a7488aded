//! A node of `live`: its listeners and routes.

use crate::answer::{AnswerBody, answer};
use crate::body::{RETRY_AFTER_S, UNSENT_BYTES_MAX, text};
use crate::control::{NodeControl, UnservedViewer};
use crate::metrics::{self, UnsignedCounts};
use crate::parents::{Route, StaticParents};
use crate::secure::SecureListener;
use crate::shared::{CDN_LOOP, Shared};
use crate::signing::{SignatureError, SigningSecrets};
use crate::timelines::TimelineCheck;
use anabranch_http::PeerAddress;
use anabranch_http::origin::{Origin, OriginUrlError};
use anabranch_http::plain::{Clients, Cors, CrossOrigin, PlainLimits, PlainServer};
use anabranch_live_proto::Tier;
use anabranch_live_proto::relay::{
    ByteRange, JoinRequest, Key, QueryRule, Relay, RelayConfig, RelayConfigError, RelayCounts, cdn_loop,
};
use axum::http::request::Parts;
use axum::http::{HeaderValue, Method, StatusCode, header};
use hyper::body::Incoming;
use hyper::{Request, Response};
use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::SystemTime;

/// Share of [`RelayConfig::viewers_max`], in percent, above which `/health` answers 503.
const HEALTHY_VIEWERS_PERCENT: usize = 90;
/// Names of nodes, in bytes.
const NAME_BYTES_MAX: usize = 63;

/// Set-up of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Unique among all nodes: `CDN-Loop` finds rings by it.
    pub name: String,
    /// Listener for viewers and other nodes; port 0 takes a free one.
    pub address: SocketAddr,
    /// URLs of the parents, `http://HOST:PORT`, the preferred one first. Unused with `control`.
    pub parents: Vec<String>,
    /// Control that chooses the parents. `None`: the parents are asked in their order.
    pub control: Option<NodeControl>,
    /// Rule for query parameters other than the delivery directives.
    pub query: QueryRule,
    /// Limits of the relay.
    pub relay: RelayConfig,
    /// Secrets of the URLs that viewers may ask for. `None`: they may ask for all.
    pub signing: Option<SigningSecrets>,
    /// Listener for viewers over TLS. `None` for none.
    pub secure: Option<SecureListener>,
    /// Limits of each listener for viewers.
    pub limits: PlainLimits,
    /// Proxies in front, and pages that may ask with credentials.
    pub clients: Clients,
}

/// A node that cannot start.
#[derive(Debug)]
#[non_exhaustive]
pub enum NodeError {
    /// A name that is no token of HTTP of 1 to 63 bytes.
    BadName(String),
    /// No parent is given.
    NoParent,
    /// A parent's URL.
    BadParent(OriginUrlError),
    /// A limit of the relay.
    BadLimit(RelayConfigError),
    /// An address, as the error says, cannot be listened on.
    Bind(std::io::Error),
}

impl fmt::Display for NodeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::BadName(name) => {
                write!(
                    f,
                    "node name `{name}`: must have 1 to {NAME_BYTES_MAX} letters, digits, `-`, `.` or `_`"
                )
            }
            Self::NoParent => write!(f, "no parent is given: name one, as in http://10.0.0.1:8080"),
            Self::BadParent(error) => write!(f, "parent: {error}"),
            Self::BadLimit(error) => write!(f, "{error}"),
            Self::Bind(error) => write!(f, "{error}"),
        }
    }
}

impl std::error::Error for NodeError {}

impl NodeConfig {
    /// A node without parents, with default limits.
    pub fn new(name: &str, address: SocketAddr) -> Self {
        let limits = PlainLimits { unsent_bytes_max: UNSENT_BYTES_MAX, ..PlainLimits::default() };
        Self {
            name: name.to_owned(),
            address,
            parents: Vec::new(),
            control: None,
            query: QueryRule::default(),
            relay: RelayConfig::default(),
            signing: None,
            secure: None,
            limits,
            clients: Clients::default(),
        }
    }
}

/// A bound node, not yet serving.
pub struct Node {
    server: PlainServer,
    secure: Option<PlainServer>,
    state: NodeState,
    limits: PlainLimits,
}

#[derive(Clone)]
struct NodeState {
    shared: Arc<Shared>,
    control: Option<NodeControl>,
    name: Arc<str>,
    query: QueryRule,
    viewers_max: usize,
    /// Check of parents that are asked at once. `None` unless legs are doubled.
    timelines: Option<Arc<TimelineCheck>>,
    signing: Option<SigningSecrets>,
    cors: Cors,
    unsigned: Arc<UnsignedCounts>,
}

impl Node {
    /// Listens. Parents are asked as the control decides, or else in the order of the configuration
    /// ([`StaticParents`]).
    ///
    /// Errors: see [`NodeError`].
    pub fn bind(config: NodeConfig) -> Result<Self, NodeError> {
        let control = config.control.clone();
        Self::bind_with(config, |parents| match control {
            Some(control) => control.route(),
            None => Arc::new(StaticParents::new(parents)),
        })
    }

    /// Listens, and asks the parents that `route` chooses.
    ///
    /// Errors: see [`NodeError`].
    pub fn bind_with(
        config: NodeConfig,
        route: impl FnOnce(&[Origin]) -> Arc<dyn Route>,
    ) -> Result<Self, NodeError> {
        let is_token = |b: u8| b.is_ascii_alphanumeric() || b"-._".contains(&b);
        let length = config.name.len();
        if length == 0 || length > NAME_BYTES_MAX || !config.name.bytes().all(is_token) {
            return Err(NodeError::BadName(config.name));
        }
        let parents = match &config.control {
            Some(control) => control.parents(),
            None => {
                let parents = config.parents.iter().map(|url| Origin::new(url));
                parents.collect::<Result<_, _>>().map_err(NodeError::BadParent)?
            }
        };
        // Parents of a control can come later.
        if parents.is_empty() && config.control.is_none() {
            return Err(NodeError::NoParent);
        }
        let viewers_max = config.relay.viewers_max;
        let is_doubled = config.relay.is_doubled && config.control.is_none();
        let timelines = is_doubled.then(Arc::<TimelineCheck>::default);
        let relay = Relay::new(config.relay).map_err(NodeError::BadLimit)?;
        let Clients { proxies, cors } = config.clients;
        let server = PlainServer::bind(config.address, config.limits).map_err(NodeError::Bind)?;
        let server = server.with_proxies(proxies.clone());
        let secure = config.secure.map(|secure| secure.bind(config.limits, proxies));
        let secure = secure.transpose().map_err(NodeError::Bind)?;
        let shared = Shared::new(relay, route(&parents), parents);
        let control = config.control;
        let state = NodeState {
            shared,
            control,
            name: config.name.into(),
            query: config.query,
            viewers_max,
            timelines,
            signing: config.signing,
            cors,
            unsigned: Arc::default(),
        };
        Ok(Self { server, secure, state, limits: config.limits })
    }

    /// Where it listens for viewers.
    ///
    /// Errors: the system's.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.server.local_addr()
    }

    /// Where it listens for viewers over TLS. `None` if it does not.
    ///
    /// Errors: the system's.
    pub fn secure_addr(&self) -> std::io::Result<Option<SocketAddr>> {
        self.secure.as_ref().map(PlainServer::local_addr).transpose()
    }

    /// The node's metrics in Prometheus' text format, while it runs as well.
    pub fn metrics(&self) -> impl Fn() -> String + Clone + Send + Sync + use<> {
        let (shared, unsigned) = (Arc::clone(&self.state.shared), Arc::clone(&self.state.unsigned));
        move || {
            let (counts, viewers) = shared.with(|relay, _| (relay.counts(), relay.viewers()));
            metrics::text(&counts, viewers, &unsigned)
        }
    }

    /// The relay's counts, while it runs as well.
    pub fn counter(&self) -> impl Fn() -> RelayCounts + Send + Sync + use<> {
        let shared = Arc::clone(&self.state.shared);
        move || shared.with(|relay, _| relay.counts())
    }

    /// Serves. Never returns; drop it to stop.
    pub async fn run(self) -> Infallible {
        let Self { server, secure, state, limits } = self;
        let timer = Arc::clone(&state.shared).run_timer();
        let (control, shared) = (state.control.clone(), Arc::clone(&state.shared));
        let children_control = state.control.clone();
        let control = async {
            let Some(control) = control else { std::future::pending().await };
            let failed = async {
                let Some(mut failed) = control.failed_parents() else { std::future::pending().await };
                while let Some(hop) = failed.recv().await {
                    shared.with(|relay, now| relay.handle_parent_failed(now, hop));
                }
                std::future::pending().await
            };
            tokio::select! {
                () = control.run() => {}
                () = failed => {}
            }
        };
        let (checked, timelines) = (Arc::clone(&state.shared), state.timelines.clone());
        let timelines = async {
            match timelines {
                Some(timelines) => timelines.run(&checked).await,
                None => std::future::pending().await,
            }
        };
        let answer = move |PeerAddress(from), request: Request<Incoming>| {
            relay(state.clone(), from, request.into_parts().0)
        };
        let (for_secure, for_children) = (answer.clone(), answer.clone());
        let children = async {
            match children_control {
                Some(control) => control.serve_objects(for_children, limits).await,
                None => std::future::pending().await,
            }
        };
        let secure_viewers = async {
            match secure {
                Some(server) => server.run_answers(for_secure).await,
                None => std::future::pending().await,
            }
        };
        tokio::select! {
            never = server.run_answers(answer) => never,
            never = secure_viewers => never,
            never = children => never,
            never = timelines => never,
            () = timer => unreachable!("the timer never ends"),
            () = control => unreachable!("the control never ends"),
        }
    }
}

/// Whether new viewers should come here: load balancers ask.
fn health(node: &NodeState) -> Response<AnswerBody> {
    let viewers = node.shared.with(|relay, _| relay.viewers());
    let is_full = viewers * 100 >= node.viewers_max * HEALTHY_VIEWERS_PERCENT;
    let status = if is_full { StatusCode::SERVICE_UNAVAILABLE } else { StatusCode::OK };
    let line = format!("{viewers} requests under way, at most {}\n", node.viewers_max);
    let mut response = text(status, line);
    response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    response
}

async fn relay(node: NodeState, from: IpAddr, request: Parts) -> Response<AnswerBody> {
    let asked = CrossOrigin::of(&request.method, &request.headers);
    let mut response = match request.method {
        Method::GET if request.uri.path() == "/health" => health(&node),
        Method::GET | Method::HEAD => match signed_target(&node, from, &request) {
            Ok(target) => serve(&node, from, &request, target).await,
            Err(error) => {
                let mut response = text(StatusCode::FORBIDDEN, format!("{error}\n"));
                response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
                response
            }
        },
        Method::OPTIONS => text(StatusCode::NO_CONTENT, ""),
        _ => {
            let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "");
            let allow = HeaderValue::from_static("GET, HEAD, OPTIONS");
            response.headers_mut().insert(header::ALLOW, allow);
            response
        }
    };
    node.cors.share(&asked, response.headers_mut());
    response
}

/// A request's target, without its signature where signed URLs alone are served.
fn signed_target<'a>(node: &NodeState, from: IpAddr, request: &'a Parts) -> Result<&'a str, SignatureError> {
    let target = request.uri.path_and_query().map_or("/", |target| target.as_str());
    let Some(secrets) = &node.signing else { return Ok(target) };
    let since_1970 = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
    secrets.check(target, since_1970.as_secs(), from).inspect_err(|error| node.unsigned.count(error))
}

async fn serve(node: &NodeState, from: IpAddr, request: &Parts, target: &str) -> Response<AnswerBody> {
    let key = match Key::read(target, node.query) {
        Ok(key) => key,
        Err(error) => return text(StatusCode::BAD_REQUEST, format!("{error}\n")),
    };
    if let Some(control) = &node.control
        && let Err(response) = admit(control, from, &key).await
    {
        return *response;
    }
    if let Some(timelines) = &node.timelines {
        timelines.saw(&key);
    }
    let headers = &request.headers;
    let received = headers.get_all(CDN_LOOP).iter().filter_map(|value| value.to_str().ok());
    let passed = match cdn_loop::forwarded(received, &node.name) {
        Ok(passed) => passed,
        Err(error) => return text(StatusCode::LOOP_DETECTED, format!("{error}\n")),
    };
    let value = |name| headers.get(name).and_then(|value| value.to_str().ok());
    let range = value(header::RANGE).and_then(ByteRange::read);
    let if_range = value(header::IF_RANGE).map(str::to_owned);
    let is_head_only = request.method == Method::HEAD;
    answer(&node.shared, JoinRequest { key, range, if_range, passed }, is_head_only).await
}

/// Admits a request by the control: a stream of the network, with a route at an edge.
async fn admit(control: &NodeControl, from: IpAddr, key: &Key) -> Result<(), Box<Response<AnswerBody>>> {
    let no_store = |mut response: Response<AnswerBody>| {
        response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
        Box::new(response)
    };
    let layout = control.layout();
    let Some(object) = layout.object(key.path()) else {
        if layout.channel(key.path()).next().is_some() {
            return Ok(());
        }
        let line = "no such channel or rendition in the controller's network\n";
        return Err(no_store(text(StatusCode::NOT_FOUND, line)));
    };
    if control.tier() != Tier::Edge {
        return Ok(());
    }
    control.admit(from, object, key).await.map_err(|UnservedViewer(refusal)| {
        let mut response = text(StatusCode::SERVICE_UNAVAILABLE, format!("{refusal}\n"));
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
        no_store(response)
    })
}
