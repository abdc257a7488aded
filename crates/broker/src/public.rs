//! Routes of the players' port: content steering for HLS and DASH, a redirect for players without
//! steering, and playback reports. The port is plain HTTP/1.1 and open to everyone.
//!
//! A proxy in front terminates TLS, because players need a publicly trusted certificate. Leaves
//! out: connections and their limits (`http::plain`), the answers (`media::steering`). Read
//! [`PublicServer`] first.
#![allow(clippy::disallowed_methods, reason = "a driver: reads the clock")]

use crate::service::BrokerService;
use anabranch_http::PeerAddress;
use anabranch_http::plain::{Clients, PlainLimits, PlainServer, Proxies, RequestRate, refusal};
use anabranch_media::cmcd::REPORTS_MAX;
use anabranch_media::prefixes::PrefixTable;
use anabranch_media::steering::{Dialect, QueryError, SteeringQuery, Viewer, without_viewer};
use anabranch_units::BitRate;
use axum::Router;
use axum::body::Body;
use axum::extract::rejection::StringRejection;
use axum::extract::{Extension, Path, Request, State};
use axum::http::{HeaderValue, StatusCode, Uri, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use std::net::{IpAddr, SocketAddr};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Configuration of the players' port.
#[derive(Clone, Debug)]
pub struct PublicConfig {
    /// Address to listen on; port 0 takes a free port. Loopback by default.
    pub address: SocketAddr,
    /// Limits of connections and bodies, in number, size and time.
    pub limits: PlainLimits,
    /// Trusted proxies, and origins whose pages may send requests with credentials.
    pub clients: Clients,
    /// Maximum answers per second. Above it, a request is refused with the time of the next attempt
    /// if its address has had [`anabranch_http::plain::ADDRESS_REQUESTS_PER_S`] answers in this
    /// second.
    pub answers_per_s_max: u64,
    /// Locations and providers of viewers, by address.
    pub places: PrefixTable,
    /// Bitrate assumed for a viewer whose request states none.
    pub bitrate: BitRate,
    /// True if redirects lead to `https` addresses.
    pub redirects_to_tls: bool,
    /// Public address of this port, such as `https://steer.example`, for absolute reload addresses.
    /// `None`: reload addresses are relative, as in the standards; Shaka resolves relative
    /// addresses against the manifest's address.
    pub url: Option<String>,
}

impl Default for PublicConfig {
    fn default() -> Self {
        Self {
            address: ([127, 0, 0, 1], 7180).into(),
            limits: PlainLimits::default(),
            clients: Clients { proxies: Proxies::loopback(), ..Clients::default() },
            answers_per_s_max: 50_000,
            places: PrefixTable::default(),
            bitrate: BitRate::bps(3_000_000),
            redirects_to_tls: true,
            url: None,
        }
    }
}

/// Location and provider of an address that is not in the table.
const ELSEWHERE: &str = "elsewhere";
/// A bound listener, not yet serving.
pub struct PublicServer {
    server: PlainServer,
    public: Public,
}

#[derive(Clone)]
struct Public(Arc<Shared>);

struct Shared {
    service: BrokerService,
    config: PublicConfig,
    /// Number of the next viewer; each viewer gets another number.
    numbers: AtomicU64,
    rate: RequestRate,
    /// Addresses of the first requests. `None` without a table of places, and after the check for a
    /// proxy.
    first: Mutex<Option<FirstAddresses>>,
}

/// Number of requests after which an address that all requests share counts as a proxy's.
const SOLE_ADDRESS_QUESTIONS: u32 = 100;

/// The check whether the first requests all come from one address.
#[derive(Default)]
struct FirstAddresses {
    address: Option<IpAddr>,
    questions: u32,
}

impl FirstAddresses {
    /// Counts a request. Breaks with `None` at a second address, and with the address if it is
    /// still the only one after the last request of the check.
    fn note(&mut self, from: IpAddr) -> ControlFlow<Option<IpAddr>> {
        if *self.address.get_or_insert(from) != from {
            return ControlFlow::Break(None);
        }
        self.questions += 1;
        if self.questions < SOLE_ADDRESS_QUESTIONS {
            ControlFlow::Continue(())
        } else {
            ControlFlow::Break(Some(from))
        }
    }
}

impl PublicServer {
    /// Binds the listener.
    ///
    /// Errors: an address that cannot be bound; no random numbers.
    pub fn bind(service: BrokerService, config: PublicConfig) -> std::io::Result<Self> {
        let Clients { proxies, cors } = config.clients.clone();
        let server = PlainServer::bind(config.address, config.limits)?.with_proxies(proxies).with_cors(cors);
        let numbers = AtomicU64::new(anabranch_net::random()?);
        let rate = RequestRate::new(config.answers_per_s_max);
        let first = Mutex::new((!config.places.is_empty()).then(FirstAddresses::default));
        Ok(Self { server, public: Public(Arc::new(Shared { service, config, numbers, rate, first })) })
    }

    /// Address of the listener.
    ///
    /// Errors: an error of the operating system.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.server.local_addr()
    }

    /// Serves players on a separate thread, because messages of networks and searches can occupy
    /// the other threads for tenths of a second. Returns only if that thread cannot start; drop the
    /// future to stop.
    ///
    /// Errors: an error of the operating system.
    pub async fn run(self) -> std::io::Result<()> {
        let router = Router::new()
            .route("/steering/{dialect}", get(steer))
            .route("/redirect/{*path}", get(redirect))
            .route("/cmcd", post(report))
            .with_state(self.public);
        self.server.run_on_thread("players", router).await
    }
}

impl Public {
    fn is_busy(&self, from: IpAddr) -> bool {
        !self.0.rate.admits(Instant::now(), from)
    }

    /// Warns once if all first requests come from one address, which is a proxy's.
    fn check_addresses(&self, from: IpAddr) {
        let mut first = self.0.first.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(ControlFlow::Break(sole)) = first.as_mut().map(|first| first.note(from)) else { return };
        *first = None;
        drop(first);
        if let Some(from) = sole {
            tracing::warn!(
                "--places sees one address alone: all of the first {SOLE_ADDRESS_QUESTIONS} questions came from {from}; \
                 if it is a proxy, name it with --proxies, and have it say the viewers' addresses (X-Forwarded-For)"
            );
        }
    }

    /// Parses a steering request and records the playback report in it.
    fn ask(&self, dialect: Dialect, uri: &Uri, from: IpAddr) -> Result<SteeringQuery, QueryError> {
        self.check_addresses(from);
        let (location, isp) = self.0.config.places.lookup(from).unwrap_or((ELSEWHERE, ELSEWHERE));
        let defaults = Viewer {
            location: location.to_owned(),
            isp: isp.to_owned(),
            number: self.0.numbers.fetch_add(1, Ordering::Relaxed),
            bitrate: self.0.config.bitrate,
        };
        let ask = SteeringQuery::read(dialect, uri.query().unwrap_or_default(), defaults)?;
        if let Some(report) = &ask.report {
            self.0.service.report([&**report].into_iter(), Some(&ask));
        }
        Ok(ask)
    }

    fn busy(&self) -> Response {
        let retry = [(header::RETRY_AFTER, HeaderValue::from(self.0.service.ttl_s()))];
        (StatusCode::TOO_MANY_REQUESTS, retry, "too many questions: ask later\n").into_response()
    }
}

async fn steer(
    State(public): State<Public>,
    Extension(PeerAddress(from)): Extension<PeerAddress>,
    Path(dialect): Path<String>,
    request: Request,
) -> Response {
    let dialect = match &*dialect {
        "hls" => Dialect::Hls,
        "dash" => Dialect::Dash,
        _ => return refusal(StatusCode::NOT_FOUND, "there are /steering/hls and /steering/dash"),
    };
    if public.is_busy(from) {
        return public.busy();
    }
    let ask = match public.ask(dialect, request.uri(), from) {
        Ok(ask) => ask,
        Err(error) => return refusal(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    // Status 410 makes a player stop its requests (HLS, section 7.3, and DASH).
    if !public.0.service.steers() {
        return refusal(StatusCode::GONE, "players are not steered any more");
    }
    let Some(mut steering) = public.0.service.steer(&ask) else {
        return refusal(StatusCode::GONE, "no network is known");
    };
    if let Some(url) = &public.0.config.url {
        steering.reload_uri = format!("{url}/steering/{}{}", dialect.word(), steering.reload_uri);
    }
    let body = serde_json::to_vec(&steering).expect("it is made of strings");
    ([(header::CONTENT_TYPE, dialect.content_type())], Body::from(body)).into_response()
}

/// Handles playback reports, one per line (CTA-5004-A, event mode).
async fn report(
    State(public): State<Public>,
    Extension(PeerAddress(from)): Extension<PeerAddress>,
    body: Result<String, StringRejection>,
) -> Response {
    if public.is_busy(from) {
        return public.busy();
    }
    let text = match body {
        Ok(text) => text,
        Err(error) => return refusal(error.status(), &error.body_text()),
    };
    if public.0.service.report(text.lines().take(REPORTS_MAX), None) {
        StatusCode::NO_CONTENT.into_response()
    } else {
        refusal(StatusCode::NOT_FOUND, "reports do not count here: serve with --believe-players")
    }
}

async fn redirect(
    State(public): State<Public>,
    Extension(PeerAddress(from)): Extension<PeerAddress>,
    request: Request,
) -> Response {
    if public.is_busy(from) {
        return public.busy();
    }
    let ask = match public.ask(Dialect::Hls, request.uri(), from) {
        Ok(ask) => ask,
        Err(error) => return refusal(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let Some(host) = public.0.service.host(&ask) else {
        return refusal(StatusCode::SERVICE_UNAVAILABLE, "no network's host is known");
    };
    let scheme = if public.0.config.redirects_to_tls { "https" } else { "http" };
    // The path is not decoded, because its encoding must reach the cluster unchanged.
    let path = request.uri().path().strip_prefix("/redirect").unwrap_or_default();
    let query = without_viewer(request.uri().query().unwrap_or_default());
    let mark = if query.is_empty() { "" } else { "?" };
    match HeaderValue::try_from(format!("{scheme}://{host}{path}{mark}{query}")) {
        Ok(to) => (StatusCode::FOUND, [(header::LOCATION, to)]).into_response(),
        Err(_) => refusal(StatusCode::BAD_REQUEST, "the path is none"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// #52: behind a proxy that was not configured, `--places` placed all viewers at the proxy's
    /// address.
    #[test]
    fn sole_address_of_the_first_requests_is_reported() {
        let [proxy, viewer] = [1, 2].map(|last| IpAddr::from([192, 0, 2, last]));
        let mut first = FirstAddresses::default();
        for _ in 1..SOLE_ADDRESS_QUESTIONS {
            assert_eq!(first.note(proxy), ControlFlow::Continue(()));
        }
        assert_eq!(first.note(proxy), ControlFlow::Break(Some(proxy)));
        let mut first = FirstAddresses::default();
        assert_eq!(first.note(proxy), ControlFlow::Continue(()));
        assert_eq!(first.note(viewer), ControlFlow::Break(None));
    }
}
