//! The broker's routes for networks and operators: each caller's rights, and requests and answers
//! in JSON.
//!
//! A network's agent may send requests for its own network only. Operators read the state, set
//! clients and report players' measurements. Leaves out: TLS and connections; players' requests
//! (`public`). Read [`router`] first.

use crate::service::{BrokerService, NetworkError};
use crate::wire::{
    Assent, BidResult, Bids, BidsReply, Call, Clients, ClientsRequest, CountedReply, CountedRequest,
    DecisionView, ErrorBody, HealthView, JoinRequest, LeadView, MeasuredRequest, MessagesReply,
    NetworkMessage, NetworkTrustView, NetworkView, NetworksView, PlaceClients, PlacementView, Proposal,
    RoundView, RoundsView, SteeringRequest,
};
use anabranch_broker_proto::broker::PlaceDemand;
use anabranch_http::Service;
use anabranch_http::answer::{Refusal, Reply, complete, is_operator, read, speaks_for};
use anabranch_net::keys::{Role, System};
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

/// Maximum time for which an agent may wait for messages, in milliseconds.
const WAIT_MAX_MS: u64 = 10_000;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Anabranch broker",
        description = "Content networks bid clusters, the broker places clients. Mutual TLS: the role and name in the caller's certificate decide what it may do. Players ask elsewhere.",
    ),
    paths(
        join, leave, messages, bids, assents, clients, counted, steering, measured, networks, rounds,
        decision, lead, healthz, metrics
    ),
    components(schemas(
        ErrorBody,
        HealthView,
        JoinRequest,
        MessagesReply,
        NetworkMessage,
        Call,
        Proposal,
        BidResult,
        Bids,
        BidsReply,
        Assent,
        ClientsRequest,
        CountedRequest,
        CountedReply,
        PlaceClients,
        Clients,
        SteeringRequest,
        MeasuredRequest,
        NetworksView,
        NetworkView,
        LeadView,
        RoundsView,
        RoundView,
        DecisionView,
        PlacementView,
        NetworkTrustView
    ))
)]
struct Description;

/// OpenAPI description of the HTTP interface, as JSON.
pub fn openapi() -> String {
    Description::openapi().to_json().expect("the description is made of strings")
}

impl Service for BrokerService {
    const SYSTEM: System = crate::SYSTEM;

    fn router(&self) -> Router {
        router(self.clone())
    }

    async fn drive(self) {
        self.go_on().await;
    }
}

/// Builds all routes. The caller's [`PeerIdentity`] must be among the extensions of each request.
pub(crate) fn router(service: BrokerService) -> Router {
    let routes = Router::new()
        .route("/v1/networks/{network}/join", post(join))
        .route("/v1/networks/{network}/leave", post(leave))
        .route("/v1/networks/{network}/messages", get(messages))
        .route("/v1/networks/{network}/bids", post(bids))
        .route("/v1/networks/{network}/assents", post(assents))
        .route("/v1/clients", post(clients))
        .route("/v1/counted", post(counted))
        .route("/v1/steering", post(steering))
        .route("/v1/measured", post(measured))
        .route("/v1/networks", get(networks))
        .route("/v1/rounds", get(rounds))
        .route("/v1/decision", get(decision))
        .route("/v1/lead", get(lead))
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(|| async { ([(header::CONTENT_TYPE, "application/json")], openapi()) }));
    complete(routes).with_state(service)
}

impl From<NetworkError> for Refusal {
    fn from(error: NetworkError) -> Self {
        let status = match error {
            NetworkError::Unknown(_) => StatusCode::FORBIDDEN,
            NetworkError::NotJoined(_) => StatusCode::CONFLICT,
            NetworkError::Follows(_) => StatusCode::MISDIRECTED_REQUEST,
        };
        Self(status, error.to_string())
    }
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct SessionQuery {
    session: u64,
}

#[utoipa::path(post, path = "/v1/networks/{network}/join", params(("network" = String, Path)), request_body = JoinRequest,
    responses((status = 204), (status = 403, body = ErrorBody, description = "another's keys, or no contract"), (status = 421, body = ErrorBody, description = "another broker leads")))]
async fn join(
    State(service): State<BrokerService>,
    Extension(peer): Extension<PeerIdentity>,
    Path(network): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Refusal> {
    speaks_for(&peer, "network", &network)?;
    service.join(&network, read::<JoinRequest>(body)?.session)?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(post, path = "/v1/networks/{network}/leave", params(("network" = String, Path)), request_body = JoinRequest,
    responses((status = 204), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn leave(
    State(service): State<BrokerService>,
    Extension(peer): Extension<PeerIdentity>,
    Path(network): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Refusal> {
    speaks_for(&peer, "network", &network)?;
    service.leave(&network, read::<JoinRequest>(body)?.session)?;
    Ok(StatusCode::NO_CONTENT)
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct MessagesQuery {
    session: u64,
    after: u64,
    wait_ms: Option<u64>,
}

#[utoipa::path(get, path = "/v1/networks/{network}/messages",
    params(("network" = String, Path), ("session" = u64, Query),
        ("after" = u64, Query, description = "the number of the last message that is known, 0 at first"),
        ("wait_ms" = Option<u64>, Query, description = "how long to wait for one, at most and unless told otherwise 10000")),
    responses((status = 200, body = MessagesReply), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody, description = "join again")))]
async fn messages(
    State(service): State<BrokerService>,
    Extension(peer): Extension<PeerIdentity>,
    Path(network): Path<String>,
    Query(query): Query<MessagesQuery>,
) -> Reply<MessagesReply> {
    speaks_for(&peer, "network", &network)?;
    let wait_ms = query.wait_ms.unwrap_or(WAIT_MAX_MS);
    if wait_ms > WAIT_MAX_MS {
        return Err(Refusal(StatusCode::BAD_REQUEST, format!("wait_ms={wait_ms}: is at most {WAIT_MAX_MS}")));
    }
    let wait = Duration::from_millis(wait_ms);
    let messages = service.messages(&network, query.session, query.after, wait).await?;
    Ok(Json(MessagesReply { messages }))
}

#[utoipa::path(post, path = "/v1/networks/{network}/bids", params(("network" = String, Path), ("session" = u64, Query)), request_body = Bids,
    responses((status = 200, body = BidsReply, description = "what became of each bid; wrong ones are refused by themselves"), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody, description = "join again"), (status = 413, body = ErrorBody, description = "send them in parts, all but the last with `more`")))]
async fn bids(
    State(service): State<BrokerService>,
    Extension(peer): Extension<PeerIdentity>,
    Path(network): Path<String>,
    Query(query): Query<SessionQuery>,
    body: Result<Bytes, BytesRejection>,
) -> Reply<BidsReply> {
    speaks_for(&peer, "network", &network)?;
    Ok(Json(service.bids(&network, query.session, read(body)?)?))
}

#[utoipa::path(post, path = "/v1/networks/{network}/assents", params(("network" = String, Path), ("session" = u64, Query)), request_body = Assent,
    responses((status = 204), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody)))]
async fn assents(
    State(service): State<BrokerService>,
    Extension(peer): Extension<PeerIdentity>,
    Path(network): Path<String>,
    Query(query): Query<SessionQuery>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Refusal> {
    speaks_for(&peer, "network", &network)?;
    service.assent(&network, query.session, &read(body)?)?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(post, path = "/v1/clients", request_body = ClientsRequest,
    responses((status = 204, description = "they hold for fifteen minutes"), (status = 403, body = ErrorBody)))]
async fn clients(
    State(service): State<BrokerService>,
    Extension(peer): Extension<PeerIdentity>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Refusal> {
    is_operator(&peer, "count clients")?;
    service.give_clients(gathered(read::<ClientsRequest>(body)?.places))?;
    Ok(StatusCode::NO_CONTENT)
}

fn gathered(places: Vec<PlaceClients>) -> Vec<PlaceDemand> {
    let of = |PlaceClients { location, isp, clients }| PlaceDemand { location, isp, clients };
    places.into_iter().map(of).collect()
}

#[utoipa::path(post, path = "/v1/counted", request_body = CountedRequest,
    responses((status = 200, body = CountedReply, description = "they hold for three leases"), (status = 403, body = ErrorBody, description = "not a broker's keys"), (status = 421, body = ErrorBody, description = "another broker leads")))]
async fn counted(
    State(service): State<BrokerService>,
    Extension(peer): Extension<PeerIdentity>,
    body: Result<Bytes, BytesRejection>,
) -> Reply<CountedReply> {
    if peer.role != Role::Controller {
        let reason = format!("{} `{}` may not say what a broker has counted", peer.role.word(), peer.name);
        return Err(Refusal(StatusCode::FORBIDDEN, reason));
    }
    let CountedRequest { broker, part, places } = read(body)?;
    Ok(Json(service.note_counted(broker, part, gathered(places))?))
}

#[utoipa::path(post, path = "/v1/steering", request_body = SteeringRequest,
    responses((status = 204, description = "of this broker alone, until it ends or is told otherwise"), (status = 403, body = ErrorBody)))]
async fn steering(
    State(service): State<BrokerService>,
    Extension(peer): Extension<PeerIdentity>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Refusal> {
    is_operator(&peer, "say whether players are steered")?;
    service.set_steers(read::<SteeringRequest>(body)?.steers);
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(post, path = "/v1/measured", request_body = MeasuredRequest,
    responses((status = 204), (status = 403, body = ErrorBody)))]
async fn measured(
    State(service): State<BrokerService>,
    Extension(peer): Extension<PeerIdentity>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Refusal> {
    is_operator(&peer, "report measurements")?;
    let MeasuredRequest { network, scores, delivered_share } = read(body)?;
    service.measured(&network, scores, delivered_share)?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(get, path = "/v1/networks", responses((status = 200, body = NetworksView), (status = 403, body = ErrorBody)))]
async fn networks(
    State(service): State<BrokerService>,
    Extension(peer): Extension<PeerIdentity>,
) -> Reply<NetworksView> {
    is_operator(&peer, "look")?;
    Ok(Json(NetworksView { networks: service.networks() }))
}

#[utoipa::path(get, path = "/v1/rounds", responses((status = 200, body = RoundsView), (status = 403, body = ErrorBody)))]
async fn rounds(
    State(service): State<BrokerService>,
    Extension(peer): Extension<PeerIdentity>,
) -> Reply<RoundsView> {
    is_operator(&peer, "look")?;
    Ok(Json(RoundsView { rounds: service.rounds() }))
}

#[utoipa::path(get, path = "/v1/decision", responses((status = 200, body = DecisionView), (status = 403, body = ErrorBody)))]
async fn decision(
    State(service): State<BrokerService>,
    Extension(peer): Extension<PeerIdentity>,
) -> Reply<DecisionView> {
    is_operator(&peer, "look")?;
    Ok(Json((*service.decision()).clone()))
}

#[utoipa::path(get, path = "/v1/lead", responses((status = 200, body = LeadView), (status = 403, body = ErrorBody)))]
async fn lead(
    State(service): State<BrokerService>,
    Extension(peer): Extension<PeerIdentity>,
) -> Reply<LeadView> {
    is_operator(&peer, "look")?;
    Ok(Json(service.lead()))
}

#[utoipa::path(get, path = "/healthz", responses((status = 200, body = HealthView), (status = 503, body = HealthView)))]
async fn healthz(State(service): State<BrokerService>) -> (StatusCode, Json<HealthView>) {
    HealthView::reply(service.trouble())
}

#[utoipa::path(get, path = "/metrics", responses((status = 200, content_type = "text/plain", body = String), (status = 403, body = ErrorBody)))]
async fn metrics(
    State(service): State<BrokerService>,
    Extension(peer): Extension<PeerIdentity>,
) -> Result<Response, Refusal> {
    anabranch_http::metrics::reply(&peer, || service.metrics())
}
