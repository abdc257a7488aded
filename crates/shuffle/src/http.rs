//! The coordinator's routes: each caller's rights, and requests and answers in JSON.
//!
//! An agent may make requests for its own host only; operators may only read. Leaves out: TLS and
//! connections. Read [`router`] first.

use crate::service::{CoordinatorService, JoinError};
use crate::wire::{
    CoflowView, CoflowsView, EndedCoflowView, FlowView, HistoryView, HostView, HostsView, JoinRequest,
    LeaveRequest, LimitsReply, ReportsRequest,
};
use anabranch_http::answer::{
    ErrorBody, HealthView, Refusal, Reply, complete, is_operator, read, speaks_for,
};
use anabranch_http::{PeerAddress, Service};
use anabranch_net::keys::System;
use anabranch_net::tls::PeerIdentity;
use anabranch_shuffle_proto::coordinator::ReportError;
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Extension, Path, Query, State};
use axum::http::{StatusCode, header};
use axum::response::{Json, Response};
use axum::routing::{get, post};
use std::time::Duration;
use utoipa::OpenApi;

/// Maximum time that a request for limits may wait, in milliseconds.
const LIMITS_WAIT_MAX_MS: u64 = 10_000;
/// Default and maximum number of flows in one reply.
const FLOWS_DEFAULT: usize = 4_096;
const FLOWS_MAX: usize = 65_536;
/// Default and maximum number of ended coflows in one reply.
const COUNT_DEFAULT: usize = 100;
const COUNT_MAX: usize = 10_000;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Anabranch shuffle coordinator",
        description = "Rates for the flows of coflows, so that the mean coflow completes early. Mutual TLS: the role and name in the caller's certificate decide what it may do.",
    ),
    paths(join, reports, leave, limits, coflows, history, hosts, healthz, metrics),
    components(schemas(
        ErrorBody,
        HealthView,
        JoinRequest,
        ReportsRequest,
        LeaveRequest,
        LimitsReply,
        CoflowsView,
        CoflowView,
        FlowView,
        HostsView,
        HostView,
        HistoryView,
        EndedCoflowView
    ))
)]
struct Description;

/// OpenAPI description of the HTTP interface, as JSON.
pub fn openapi() -> String {
    Description::openapi().to_json().expect("the description is made of strings")
}

impl Service for CoordinatorService {
    const SYSTEM: System = crate::SYSTEM;

    fn router(&self) -> Router {
        router(self.clone())
    }

    async fn drive(self) {
        self.go_on().await;
    }
}

/// Builds all routes. The caller's [`PeerIdentity`] must be among the request's extensions.
pub(crate) fn router(service: CoordinatorService) -> Router {
    let routes = Router::new()
        .route("/v1/hosts/{host}/join", post(join))
        .route("/v1/hosts/{host}/reports", post(reports))
        .route("/v1/hosts/{host}/leave", post(leave))
        .route("/v1/hosts/{host}/limits", get(limits))
        .route("/v1/hosts", get(hosts))
        .route("/v1/coflows", get(coflows))
        .route("/v1/history", get(history))
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(|| async { ([(header::CONTENT_TYPE, "application/json")], openapi()) }));
    complete(routes).with_state(service)
}

fn refused(error: &ReportError) -> Refusal {
    let status = match error {
        ReportError::NotJoined(_) => StatusCode::CONFLICT,
        ReportError::TooManyHosts
        | ReportError::TooManyUplinks
        | ReportError::TooManyFlows
        | ReportError::TooManyCoflows => StatusCode::TOO_MANY_REQUESTS,
        // The request may succeed once the other host has left.
        ReportError::AddressTaken { .. } | ReportError::UplinkRate { .. } => StatusCode::LOCKED,
        _ => StatusCode::BAD_REQUEST,
    };
    Refusal(status, error.to_string())
}

impl From<JoinError> for Refusal {
    fn from(error: JoinError) -> Self {
        match error {
            JoinError::Refused(error) => refused(&error),
            other => Self(StatusCode::FORBIDDEN, other.to_string()),
        }
    }
}

/// Checks a number in a query against its maximum.
fn at_most<T: PartialOrd + std::fmt::Display>(
    name: &str,
    given: Option<T>,
    default: T,
    most: T,
) -> Result<T, Refusal> {
    let value = given.unwrap_or(default);
    if value <= most {
        return Ok(value);
    }
    Err(Refusal(StatusCode::BAD_REQUEST, format!("{name}={value}: is at most {most}")))
}

#[utoipa::path(post, path = "/v1/hosts/{host}/join", params(("host" = String, Path)), request_body = JoinRequest,
    responses((status = 204), (status = 400, body = ErrorBody), (status = 403, body = ErrorBody, description = "another's keys, or an address that is not this host's"), (status = 423, body = ErrorBody, description = "another host says otherwise"), (status = 429, body = ErrorBody)))]
async fn join(
    State(service): State<CoordinatorService>,
    Extension(peer): Extension<PeerIdentity>,
    Extension(PeerAddress(from)): Extension<PeerAddress>,
    Path(host): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Refusal> {
    speaks_for(&peer, "host", &host)?;
    service.join(&host, from, read(body)?)?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(post, path = "/v1/hosts/{host}/reports", params(("host" = String, Path)), request_body = ReportsRequest,
    responses((status = 204), (status = 400, body = ErrorBody, description = "the first report that cannot be taken; those before it count"), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody, description = "join again")))]
async fn reports(
    State(service): State<CoordinatorService>,
    Extension(peer): Extension<PeerIdentity>,
    Path(host): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Refusal> {
    speaks_for(&peer, "host", &host)?;
    service.reports(&host, read(body)?).map_err(|error| refused(&error))?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(post, path = "/v1/hosts/{host}/leave", params(("host" = String, Path)), request_body = LeaveRequest,
    responses((status = 204), (status = 403, body = ErrorBody)))]
async fn leave(
    State(service): State<CoordinatorService>,
    Extension(peer): Extension<PeerIdentity>,
    Path(host): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Refusal> {
    speaks_for(&peer, "host", &host)?;
    service.leave(&host, read::<LeaveRequest>(body)?.session);
    Ok(StatusCode::NO_CONTENT)
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct LimitsQuery {
    session: u64,
    wait_ms: Option<u64>,
}

#[utoipa::path(get, path = "/v1/hosts/{host}/limits",
    params(("host" = String, Path), ("session" = u64, Query),
        ("wait_ms" = Option<u64>, Query, description = "how long to wait for a limit, at most and unless told otherwise 10000")),
    responses((status = 200, body = LimitsReply), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody, description = "join again")))]
async fn limits(
    State(service): State<CoordinatorService>,
    Extension(peer): Extension<PeerIdentity>,
    Path(host): Path<String>,
    Query(query): Query<LimitsQuery>,
) -> Reply<LimitsReply> {
    speaks_for(&peer, "host", &host)?;
    let wait_ms = at_most("wait_ms", query.wait_ms, LIMITS_WAIT_MAX_MS, LIMITS_WAIT_MAX_MS)?;
    let wait = Duration::from_millis(wait_ms);
    let limits = service.limits(&host, query.session, wait).await.map_err(|error| refused(&error))?;
    Ok(Json(LimitsReply { limits }))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct CoflowsQuery {
    flows_max: Option<usize>,
}

#[utoipa::path(get, path = "/v1/coflows",
    params(("flows_max" = Option<usize>, Query, description = "flows in the reply, 4096 unless told otherwise and 65536 at most")),
    responses((status = 200, body = CoflowsView), (status = 403, body = ErrorBody)))]
async fn coflows(
    State(service): State<CoordinatorService>,
    Extension(peer): Extension<PeerIdentity>,
    Query(query): Query<CoflowsQuery>,
) -> Reply<CoflowsView> {
    is_operator(&peer, "look")?;
    Ok(Json(service.coflows(at_most("flows_max", query.flows_max, FLOWS_DEFAULT, FLOWS_MAX)?)))
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct HistoryQuery {
    count: Option<usize>,
}

#[utoipa::path(get, path = "/v1/history",
    params(("count" = Option<usize>, Query, description = "how many, 100 unless told otherwise and 10000 at most")),
    responses((status = 200, body = HistoryView), (status = 403, body = ErrorBody), (status = 503, body = ErrorBody)))]
async fn history(
    State(service): State<CoordinatorService>,
    Extension(peer): Extension<PeerIdentity>,
    Query(query): Query<HistoryQuery>,
) -> Reply<HistoryView> {
    is_operator(&peer, "look")?;
    let count = at_most("count", query.count, COUNT_DEFAULT, COUNT_MAX)?;
    let coflows =
        service.history(count).await.map_err(|e| Refusal(StatusCode::SERVICE_UNAVAILABLE, e.to_string()))?;
    Ok(Json(HistoryView { coflows }))
}

#[utoipa::path(get, path = "/v1/hosts", responses((status = 200, body = HostsView), (status = 403, body = ErrorBody)))]
async fn hosts(
    State(service): State<CoordinatorService>,
    Extension(peer): Extension<PeerIdentity>,
) -> Reply<HostsView> {
    is_operator(&peer, "look")?;
    Ok(Json(HostsView { hosts: service.hosts() }))
}

#[utoipa::path(get, path = "/healthz", responses((status = 200, body = HealthView), (status = 503, body = HealthView)))]
async fn healthz(State(service): State<CoordinatorService>) -> (StatusCode, Json<HealthView>) {
    HealthView::reply(service.trouble())
}

#[utoipa::path(get, path = "/metrics", responses((status = 200, content_type = "text/plain", body = String), (status = 403, body = ErrorBody)))]
async fn metrics(
    State(service): State<CoordinatorService>,
    Extension(peer): Extension<PeerIdentity>,
) -> Result<Response, Refusal> {
    anabranch_http::metrics::reply(&peer, || service.metrics())
}
