//! Content steering of `live`. It moves viewers that are already playing, which DNS cannot do.
//!
//! `GET /v1/steering/CHANNEL` returns a steering manifest for HLS and DASH. Its pathways are the
//! names of the open edges of the viewer's group, in the directory's order of preference. Manifests
//! of the channel must name their pathways (DASH: service locations) after the edges.
//!
//! The reload URI contains the viewer's group, so a viewer behind a proxy keeps its group. For a
//! request without a group, the group follows from the viewer's address. Leaves out: the manifests
//! of channels, TLS. Read [`SteeringServer`] and [`SteeringConfig`] first.

use anabranch_http::PeerAddress;
use anabranch_http::plain::{Clients, PlainLimits, PlainServer, RequestRate, refusal};
use anabranch_live_proto::Object;
use anabranch_live_proto::directory::Directory;
use anabranch_media::steering::{Dialect, PATHWAYS_MAX, QueryError, SteeringManifest, SteeringQuery, Viewer};
use anabranch_units::BitRate;
use axum::extract::{Extension, Path, Request, State};
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use axum::routing::get;
use axum::{Json, Router};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Instant;
use tokio::sync::watch;

/// Configuration of a steering server.
#[derive(Clone, Debug)]
pub struct SteeringConfig {
    /// Address on which to listen for players. Port 0 selects a free port.
    pub address: SocketAddr,
    /// Limits of connections.
    pub limits: PlainLimits,
    /// Trusted proxies, and web origins that may send credentials.
    pub clients: Clients,
    /// Maximum number of answers per second. Above this rate each network still gets
    /// [`anabranch_http::plain::ADDRESS_REQUESTS_PER_S`] answers, and other players must retry
    /// later.
    pub answers_per_s_max: u64,
    /// Time until a player asks again, in seconds.
    pub ttl_s: u32,
    /// Base of the reload URI, as players reach this server: `https://steer.example`. `None` for a
    /// relative reload URI, as in the standards; Shaka resolves it against the manifest's server.
    pub url: Option<String>,
}

impl SteeringConfig {
    /// Creates a configuration with default limits.
    pub fn new(address: SocketAddr) -> Self {
        let (limits, clients) = (PlainLimits::default(), Clients::default());
        Self { address, limits, clients, answers_per_s_max: 50_000, ttl_s: 10, url: None }
    }
}

/// A bound steering server that does not serve yet.
pub struct SteeringServer {
    server: PlainServer,
    state: Arc<SteeringState>,
}

struct SteeringState {
    config: SteeringConfig,
    directory: watch::Receiver<Arc<Directory>>,
    rate: RequestRate,
}

impl SteeringServer {
    /// Binds the listener. Requests are answered from the current value of `directory`.
    ///
    /// Errors: an address that cannot be bound.
    pub fn bind(config: SteeringConfig, directory: watch::Receiver<Arc<Directory>>) -> std::io::Result<Self> {
        let Clients { proxies, cors } = config.clients.clone();
        let server = PlainServer::bind(config.address, config.limits)?.with_proxies(proxies).with_cors(cors);
        let rate = RequestRate::new(config.answers_per_s_max);
        Ok(Self { server, state: Arc::new(SteeringState { config, directory, rate }) })
    }

    /// Address of the listener.
    ///
    /// Errors: an error of the system.
    pub fn local_addr(&self) -> std::io::Result<SocketAddr> {
        self.server.local_addr()
    }

    /// Serves requests. Never returns; stops when dropped.
    pub async fn run(self) -> Infallible {
        let router = Router::new().route("/v1/steering/{channel}", get(steer)).with_state(self.state);
        self.server.run(router).await
    }
}

/// Parses a player's query by its standard, HLS or DASH. HLS players need not identify themselves.
fn read(query: &str) -> Result<SteeringQuery, QueryError> {
    let is_dash = query.split('&').any(|parameter| parameter.starts_with("_DASH_"));
    let dialect = if is_dash { Dialect::Dash } else { Dialect::Hls };
    let unknown = Viewer { location: String::new(), isp: String::new(), bitrate: BitRate::bps(0), number: 0 };
    SteeringQuery::read(dialect, query, unknown)
}

/// The manifest for a player's query. `None` for a channel that is not in the directory. Without an
/// open edge no pathway is listed.
fn manifest(
    directory: &Directory,
    config: &SteeringConfig,
    channel: &str,
    asked: &SteeringQuery,
    from: IpAddr,
) -> Option<SteeringManifest> {
    let (id, listed) = directory.channel(channel)?;
    let bitrates = || listed.renditions.iter().map(|rendition| rendition.bitrate);
    let watched = bitrates().filter(|bitrate| *bitrate <= asked.viewer.bitrate).max();
    let object = Object { channel: id, bitrate: watched.or_else(|| bitrates().min())? };
    let named = directory.group_named(&asked.viewer.location);
    let group = named.or_else(|| directory.group_of(from).0);
    let edges = directory.serving_edges(group, object).filter_map(|edge| directory.edge(edge));
    let pathway_priority = edges.take(PATHWAYS_MAX).map(|edge| edge.name.clone()).collect();
    let base = config.url.as_ref().map(|url| format!("{url}/v1/steering/")).unwrap_or_default();
    let name = group.and_then(|group| directory.contents().groups.get(group.0 as usize));
    let location = name.map(|group| format!("location={}", group.name));
    let others = Some(&*asked.others).filter(|others| !others.is_empty());
    let query: Vec<&str> = location.as_deref().into_iter().chain(others).collect();
    let mark = if query.is_empty() { "" } else { "?" };
    Some(SteeringManifest {
        version: 1,
        ttl: config.ttl_s,
        reload_uri: format!("{base}{channel}{mark}{}", query.join("&")),
        pathway_priority,
        pathway_clones: Vec::new(),
    })
}

async fn steer(
    State(state): State<Arc<SteeringState>>,
    Extension(PeerAddress(from)): Extension<PeerAddress>,
    Path(channel): Path<String>,
    request: Request,
) -> Response {
    let retry = |status, why| {
        let mut response = refusal(status, why);
        response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(state.config.ttl_s));
        response
    };
    if !state.rate.admits(Instant::now(), from) {
        return retry(StatusCode::TOO_MANY_REQUESTS, "too many questions: ask later");
    }
    let asked = match read(request.uri().query().unwrap_or_default()) {
        Ok(asked) => asked,
        Err(error) => return refusal(StatusCode::BAD_REQUEST, &error.to_string()),
    };
    let directory = Arc::clone(&state.directory.borrow());
    let Some(manifest) = manifest(&directory, &state.config, &channel, &asked, from) else {
        return refusal(StatusCode::NOT_FOUND, "no such channel");
    };
    if manifest.pathway_priority.is_empty() {
        return retry(StatusCode::SERVICE_UNAVAILABLE, "no edge is open: ask later");
    }
    let kind = [(header::CONTENT_TYPE, asked.dialect.content_type())];
    (kind, Json(manifest)).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_live_proto::directory::exercise::sample;
    use anabranch_media::steering::QUERY_BYTES_MAX;

    fn answer(query: &str, from: [u8; 4]) -> Option<SteeringManifest> {
        let directory = Directory::new(sample()).expect("no defect");
        let config = SteeringConfig::new(([127, 0, 0, 1], 0).into());
        manifest(&directory, &config, "news", &read(query).expect("no fault"), from.into())
    }

    fn pathways(query: &str, from: [u8; 4]) -> Vec<String> {
        answer(query, from).expect("the channel is listed").pathway_priority
    }

    #[test]
    fn planned_edges_are_listed_first() {
        assert_eq!(pathways("", [10, 1, 0, 1]), ["edge-1", "edge-2"], "paris has no place: the nearest");
        assert_eq!(pathways("", [10, 2, 0, 1]), ["edge-2", "edge-1"], "lyon's place is edge-2");
        assert_eq!(pathways("_HLS_throughput=9000000", [10, 2, 0, 1]), ["edge-1", "edge-2"], "at 1.4 Mbit/s");
        assert_eq!(pathways("_DASH_throughput=\"300000\"", [10, 2, 0, 1]), ["edge-2", "edge-1"]);
    }

    #[test]
    fn reload_uri_keeps_the_viewers_group() {
        let first = answer("", [10, 2, 0, 1]).expect("the channel is listed");
        assert_eq!(first.reload_uri, "news?location=lyon");
        let again =
            answer("location=lyon&_HLS_pathway=edge-2", [192, 0, 2, 1]).expect("the channel is listed");
        assert_eq!(again, first);
        let unmapped = answer("location=gone", [192, 0, 2, 1]).expect("the channel is listed");
        assert_eq!(unmapped.reload_uri, "news");
    }

    #[test]
    fn query_parameters_reveal_the_players_standard() {
        assert_eq!(read("_DASH_pathway=edge-1").map(|asked| asked.dialect), Ok(Dialect::Dash));
        assert_eq!(read("").map(|asked| asked.dialect), Ok(Dialect::Hls));
        assert!(read(&"x".repeat(QUERY_BYTES_MAX + 1)).is_err());
        // #52: the token of a protected channel was lost on the first reload.
        let signed = answer("token=a%2Fb&location=lyon&_HLS_pathway=edge-2", [192, 0, 2, 1]);
        assert_eq!(signed.expect("the channel is listed").reload_uri, "news?location=lyon&token=a%2Fb");
        let unmapped = answer("token=a", [192, 0, 2, 1]).expect("the channel is listed");
        assert_eq!(unmapped.reload_uri, "news?token=a");
    }
}
