//! A node of `live`: its listeners and request handlers.

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

/// Share of [`RelayConfig::viewers_max`], in percent, above which `/health` returns 503.
const HEALTHY_VIEWERS_PERCENT: usize = 90;
/// Longest name of a node, in bytes.
const NAME_BYTES_MAX: usize = 63;

/// Configuration of a node.
#[derive(Clone, Debug)]
pub struct NodeConfig {
    /// Name, unique among all nodes. `CDN-Loop` uses the name to detect loops.
    pub name: String,
    /// Address on which to listen for viewers and other nodes. Port 0 selects a free port.
    pub address: SocketAddr,
    /// URLs of the parents, `http://HOST:PORT`, in order of preference. Ignored with `control`.
    pub parents: Vec<String>,
    /// Control that selects the parents. If `None`, parents are asked in the configured order.
    pub control: Option<NodeControl>,
    /// Rule for query parameters other than the delivery directives.
    pub query: QueryRule,
    /// Limits of the relay.
    pub relay: RelayConfig,
    /// Secrets for signed URLs. If `None`, viewers may request any URL.
    pub signing: Option<SigningSecrets>,
    /// TLS listener for viewers. `None` for no TLS.
    pub secure: Option<SecureListener>,
    /// Limits of each listener for viewers.
    pub limits: PlainLimits,
    /// Trusted proxies, and web origins that may send credentials.
    pub clients: Clients,
}

/// Reason why a node cannot start.
#[derive(Debug)]
#[non_exhaustive]
pub enum NodeError {
    /// The name is not an HTTP token of 1 to 63 bytes.
    BadName(String),
    /// No parent is configured.
    NoParent,
    /// A parent's URL is invalid.
    BadParent(OriginUrlError),
    /// A limit of the relay is invalid.
    BadLimit(RelayConfigError),
    /// The address named in the error cannot be bound.
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
    /// Creates a configuration without parents and with default limits.
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

/// A bound node that does not serve yet.
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
    /// Comparison of the timelines of parents that are asked together. `None` unless legs are
    /// doubled.
    timelines: Option<Arc<TimelineCheck>>,
    signing: Option<SigningSecrets>,
    cors: Cors,
    unsigned: Arc<UnsignedCounts>,
}

impl Node {
    /// Binds the listeners. The control selects the parents; without a control, parents are asked
    /// in the configured order ([`StaticParents`]).
    ///
    /// Errors: see [`NodeError`].
    pub fn bind(config: NodeConfig) -> Result<Self, NodeError> {
        let control = config.control.clone();
        Self::bind_with(config, |parents| match control {
            Some(control) => control.route(),
            None => Arc::new(StaticParents::new(parents)),
        })
    }

    /// Binds the listeners. `route` selects the parents.
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
        // With a control, parents may be added later.
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

    /// Address of the listener for viewers.
    ///
    /// Errors: an error of the system.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.server.local_addr()
    }

    /// Address of the TLS listener for viewers. `None` if there is none.
    ///
    /// Errors: an error of the system.
    pub fn secure_addr(&self) -> std::io::Result<Option<SocketAddr>> {
        self.secure.as_ref().map(PlainServer::local_addr).transpose()
    }

    /// Returns a function that formats the metrics for Prometheus. It can be called while the node
    /// runs.
    pub fn metrics(&self) -> impl Fn() -> String + Clone + Send + Sync + use<> {
        let (shared, unsigned) = (Arc::clone(&self.state.shared), Arc::clone(&self.state.unsigned));
        move || {
            let (counts, viewers) = shared.with(|relay, _| (relay.counts(), relay.viewers()));
            metrics::text(&counts, viewers, &unsigned)
        }
    }

    /// Returns a function that reads the relay's counts. It can be called while the node runs.
    pub fn counter(&self) -> impl Fn() -> RelayCounts + Send + Sync + use<> {
        let shared = Arc::clone(&self.state.shared);
        move || shared.with(|relay, _| relay.counts())
    }

    /// Serves requests. Never returns; stops when dropped.
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

/// Answers load balancers whether new viewers should be sent to this node.
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

/// The request's target. If only signed URLs are served, checks and removes the signature.
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

/// Requests admission from the control: the stream must be in the network, and an edge needs a
/// route.
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
