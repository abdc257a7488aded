//! The controller's HTTP routes: rights of callers, and requests and answers in JSON.
//!
//! A node may report only for itself. Operators may view and change the network, and drain nodes.
//! Any party may read the network and the directory. Leaves out: TLS and connections (`http`). Read
//! [`router`] first.

use super::wire::{
    DrainRequest, ErrorBody, EventView, EventsView, HealthView, LinkView, NetworkChange, NetworkVersion,
    NetworkView, NodeView, NodesView, ReportReply, RoundView, RoundsView, StreamView, TreesView,
};
use super::{ControllerService, RequestRefusal};
use anabranch_http::Service;
use anabranch_http::answer::{Refusal, Reply, complete, is_operator, read, speaks_for};
use anabranch_http::metrics;
use anabranch_live_proto::control::messages::Report;
use anabranch_net::keys::System;
use anabranch_net::tls::PeerIdentity;
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Extension, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{Json, Response};
use axum::routing::{get, post};
use std::time::Duration;
use utoipa::OpenApi;

/// Longest time that a request may wait for news, in milliseconds.
const WAIT_MAX_MS: u64 = 10_000;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Anabranch live controller",
        description = "Nodes report and take tables, operators look, drain nodes and change the network. Of several controllers only the one that leads answers; the others answer 421 with its address. Mutual TLS: role and name in the caller's certificate decide what it may do.",
    ),
    paths(report, drain, network, change, directory, nodes, trees, events, rounds, healthz, show_metrics),
    components(schemas(
        ErrorBody,
        HealthView,
        ReportReply,
        DrainRequest,
        NetworkView,
        NetworkChange,
        NetworkVersion,
        NodesView,
        NodeView,
        TreesView,
        LinkView,
        StreamView,
        EventsView,
        EventView,
        RoundsView,
        RoundView
    ))
)]
struct OpenApiDocument;

/// OpenAPI description of the HTTP interface, as JSON.
pub fn openapi() -> String {
    OpenApiDocument::openapi().to_json().expect("the description is made of strings")
}

impl Service for ControllerService {
    const SYSTEM: System = crate::SYSTEM;

    fn router(&self) -> Router {
        router(self.clone())
    }

    async fn drive(self) {
        self.go_on().await;
    }
}

/// All routes. The caller's [`PeerIdentity`] must be an extension of the request.
pub(crate) fn router(service: ControllerService) -> Router {
    let routes = Router::new()
        .route("/v1/nodes/{node}/report", post(report))
        .route("/v1/nodes/{node}/drain", post(drain))
        .route("/v1/network", get(network).post(change))
        .route("/v1/directory", get(directory))
        .route("/v1/nodes", get(nodes))
        .route("/v1/trees", get(trees))
        .route("/v1/events", get(events))
        .route("/v1/rounds", get(rounds))
        .route("/healthz", get(healthz))
        .route("/metrics", get(show_metrics))
        .route("/openapi.json", get(|| async { ([(header::CONTENT_TYPE, "application/json")], openapi()) }));
    complete(routes).with_state(service)
}

impl From<RequestRefusal> for Refusal {
    fn from(unchanged: RequestRefusal) -> Self {
        let status = match &unchanged {
            RequestRefusal::Follows(Some(_)) => StatusCode::MISDIRECTED_REQUEST,
            RequestRefusal::Follows(None) => StatusCode::SERVICE_UNAVAILABLE,
            RequestRefusal::UnknownNode(_) => StatusCode::NOT_FOUND,
            RequestRefusal::OtherVersion(..) => StatusCode::CONFLICT,
            RequestRefusal::Bad(_) => StatusCode::BAD_REQUEST,
            RequestRefusal::NotStored(_) => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self(status, unchanged.to_string())
    }
}

#[utoipa::path(post, path = "/v1/nodes/{node}/report", params(("node" = String, Path)), request_body = Object,
    responses((status = 200, body = ReportReply), (status = 403, body = ErrorBody, description = "another's keys"), (status = 404, body = ErrorBody), (status = 421, body = ErrorBody, description = "another controller leads")))]
async fn report(
    State(service): State<ControllerService>,
    Extension(peer): Extension<PeerIdentity>,
    Path(node): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Reply<ReportReply> {
    speaks_for(&peer, "node", &node)?;
    Ok(Json(service.report(&node, read::<Report>(body)?)?))
}

#[utoipa::path(post, path = "/v1/nodes/{node}/drain", params(("node" = String, Path)), request_body = DrainRequest,
    responses((status = 204), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 421, body = ErrorBody), (status = 500, body = ErrorBody, description = "the store does not answer")))]
async fn drain(
    State(service): State<ControllerService>,
    Extension(peer): Extension<PeerIdentity>,
    Path(node): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Refusal> {
    is_operator(&peer, "drain a node")?;
    let DrainRequest { drain } = read(body)?;
    service.drain(&node, drain).await?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(get, path = "/v1/network", responses((status = 200, body = NetworkView), (status = 503, body = ErrorBody, description = "no network is known yet")))]
async fn network(State(service): State<ControllerService>) -> Reply<NetworkView> {
    let (lead, version, network) = service.network()?;
    Ok(Json(NetworkView { lead, version, network }))
}

#[utoipa::path(post, path = "/v1/network", request_body = NetworkChange,
    responses((status = 200, body = NetworkVersion), (status = 400, body = ErrorBody, description = "a bad change: nothing is changed"),
        (status = 403, body = ErrorBody), (status = 409, body = ErrorBody, description = "the network has another version"),
        (status = 421, body = ErrorBody), (status = 500, body = ErrorBody, description = "the store does not answer")))]
async fn change(
    State(service): State<ControllerService>,
    Extension(peer): Extension<PeerIdentity>,
    body: Result<Bytes, BytesRejection>,
) -> Reply<NetworkVersion> {
    is_operator(&peer, "change the network")?;
    let NetworkChange { version, changes } = read(body)?;
    Ok(Json(NetworkVersion { version: service.change(version, changes).await? }))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct DirectoryQuery {
    /// ETag of the caller's directory. The answer is delayed until the directory differs from it.
    etag: Option<String>,
    wait_ms: Option<u64>,
}

fn wait(wait_ms: Option<u64>) -> Result<Duration, Refusal> {
    let wait_ms = wait_ms.unwrap_or(WAIT_MAX_MS);
    if wait_ms > WAIT_MAX_MS {
        return Err(Refusal(StatusCode::BAD_REQUEST, format!("wait_ms={wait_ms}: is at most {WAIT_MAX_MS}")));
    }
    Ok(Duration::from_millis(wait_ms))
}

#[utoipa::path(get, path = "/v1/directory",
    params(("etag" = Option<String>, Query, description = "the ETag of the directory that is known"), ("wait_ms" = Option<u64>, Query)),
    responses((status = 200, body = Object, description = "places of viewers"), (status = 204, description = "no news"), (status = 421, body = ErrorBody)))]
async fn directory(
    State(service): State<ControllerService>,
    Query(query): Query<DirectoryQuery>,
) -> Result<Response, Refusal> {
    let until = tokio::time::Instant::now() + wait(query.wait_ms)?;
    let mut receiver = service.directory();
    loop {
        if !service.leads() {
            return Err(service.follows().into());
        }
        let directory = std::sync::Arc::clone(&receiver.borrow_and_update());
        let text = serde_json::to_vec(&*directory).expect("a directory is plain data");
        let etag = etag(&text);
        if query.etag.as_ref() != Some(&etag) {
            let response = Response::builder().header(header::CONTENT_TYPE, "application/json");
            let response = response.header(header::ETAG, &etag).body(text.into());
            return Ok(response.expect("its headers are digits"));
        }
        if tokio::time::timeout_at(until, receiver.changed()).await.is_err() {
            let response = Response::builder().status(StatusCode::NO_CONTENT);
            return Ok(response.body(axum::body::Body::empty()).expect("it is empty"));
        }
    }
}

/// ETag of a text: its 64-bit FNV-1a hash.
pub(super) fn etag(text: &[u8]) -> String {
    let hash = anabranch_units::fnv1a(text.iter().copied());
    format!("{hash:016x}")
}

#[utoipa::path(get, path = "/v1/nodes", responses((status = 200, body = NodesView), (status = 403, body = ErrorBody)))]
async fn nodes(
    State(service): State<ControllerService>,
    Extension(peer): Extension<PeerIdentity>,
) -> Reply<NodesView> {
    is_operator(&peer, "look")?;
    Ok(Json(NodesView { nodes: service.nodes()? }))
}

#[utoipa::path(get, path = "/v1/trees", responses((status = 200, body = TreesView), (status = 403, body = ErrorBody)))]
async fn trees(
    State(service): State<ControllerService>,
    Extension(peer): Extension<PeerIdentity>,
) -> Reply<TreesView> {
    is_operator(&peer, "look")?;
    Ok(Json(TreesView { links: service.links()?, streams: service.streams()? }))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct EventsQuery {
    #[serde(default)]
    after: u64,
    wait_ms: Option<u64>,
}

#[utoipa::path(get, path = "/v1/events",
    params(("after" = Option<u64>, Query, description = "number of the last event that is known"), ("wait_ms" = Option<u64>, Query)),
    responses((status = 200, body = EventsView), (status = 403, body = ErrorBody)))]
async fn events(
    State(service): State<ControllerService>,
    Extension(peer): Extension<PeerIdentity>,
    Query(query): Query<EventsQuery>,
) -> Reply<EventsView> {
    is_operator(&peer, "look")?;
    let wait = wait(query.wait_ms)?;
    Ok(Json(EventsView { events: service.events(query.after, wait).await }))
}

#[utoipa::path(get, path = "/v1/rounds", responses((status = 200, body = RoundsView), (status = 403, body = ErrorBody)))]
async fn rounds(
    State(service): State<ControllerService>,
    Extension(peer): Extension<PeerIdentity>,
) -> Reply<RoundsView> {
    is_operator(&peer, "look")?;
    Ok(Json(RoundsView { rounds: service.rounds() }))
}

#[utoipa::path(get, path = "/healthz", responses((status = 200, body = HealthView), (status = 503, body = HealthView)))]
async fn healthz(State(service): State<ControllerService>) -> (StatusCode, Json<HealthView>) {
    HealthView::reply(service.trouble())
}

#[utoipa::path(get, path = "/metrics", responses((status = 200, body = String), (status = 403, body = ErrorBody)))]
async fn show_metrics(
    State(service): State<ControllerService>,
    Extension(peer): Extension<PeerIdentity>,
) -> Result<Response, Refusal> {
    metrics::reply(&peer, || service.metrics())
}
