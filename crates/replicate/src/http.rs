//! The controller's routes: each caller's rights, and requests and answers in JSON.
//!
//! A site may act only for itself. Operators submit, watch and cancel transfers. A site may also
//! submit and cancel transfers whose source it is (CodedBulk section 2.4, step 1). Leaves out: TLS
//! and connections. Read [`router`] first.

use crate::controller::{Controller, SiteTaken, SubmitRefusal};
use crate::wire::{
    CommandsReply, DestinationRequest, DestinationView, EventView, HopOverrideRequest, HopRequest,
    LinkAddress, LinkName, LinkView, NumberedCommand, RatesView, RegisterReply, RegisterRequest,
    ReportsRequest, SiteView, SourceReply, SubmitReply, SubmitRequest, TopologyDigest, TopologyView,
    TransferView, TransfersView,
};
use anabranch_graph::Topology;
use anabranch_http::Service;
use anabranch_http::answer::{ErrorBody, HealthView, Refusal, Reply, complete, read, speaks_for};
use anabranch_net::keys::{Role, System};
use anabranch_net::tls::PeerIdentity;
use anabranch_replicate_proto::control::{HopSettings, Submitter, TransferId};
use anabranch_replicate_proto::coordinator::{
    Destination, EventKind, HopOverride, SubmitError, SubmitResult, TransferRequest, TransferStatus, Verdict,
    without_connecting,
};
use anabranch_sessions::Position;
use anabranch_units::text::printable;
use anabranch_units::{BitRate, LinkId, SiteId};
use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{Extension, Path, Query, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::sse::{Event as SseEvent, KeepAlive, Sse};
use axum::response::{IntoResponse, Json, Response};
use axum::routing::{get, post};
use futures_util::stream::{Stream, unfold};
use serde::Deserialize;
use std::collections::VecDeque;
use std::convert::Infallible;
use utoipa::OpenApi;

/// Maximum time for which a site may wait for commands.
const COMMANDS_WAIT_MAX: std::time::Duration = std::time::Duration::from_secs(10);
/// Maximum bytes of a request for a transfer.
const SUBMIT_BYTES_MAX: usize = 64 << 10;
/// Approximate bytes of transfers in one reply; a single larger transfer still fits.
const PAGE_BYTES: usize = 1 << 20;

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Anabranch replicate controller",
        description = "One file to many sites at the min-cut rate. Mutual TLS: the role and name in the caller's certificate decide what it may do.",
    ),
    paths(
        register, commands, reports, topology, submit, source, transfers, transfer, plan, events, cancel,
        healthz, metrics
    ),
    components(schemas(
        ErrorBody,
        RegisterRequest,
        LinkAddress,
        TopologyDigest,
        RegisterReply,
        CommandsReply,
        NumberedCommand,
        ReportsRequest,
        SubmitRequest,
        DestinationRequest,
        LinkName,
        HopRequest,
        HopOverrideRequest,
        SubmitReply,
        SourceReply,
        EventView,
        TransferView,
        DestinationView,
        TransfersView,
        TopologyView,
        SiteView,
        LinkView,
        HealthView
    ))
)]
struct Description;

/// OpenAPI description of the HTTP interface, as JSON.
pub fn openapi() -> String {
    Description::openapi().to_json().expect("the description is made of strings")
}

/// Builds all routes. The caller's [`PeerIdentity`] must be among the request's extensions.
pub(crate) fn router(controller: Controller) -> Router {
    let routes = Router::new()
        .route("/v1/sites/{site}/register", post(register))
        .route("/v1/sites/{site}/commands", get(commands))
        .route("/v1/sites/{site}/reports", post(reports))
        .route("/v1/topology", get(topology))
        .route("/v1/transfers", get(transfers).post(submit))
        .route("/v1/source", post(source))
        .route("/v1/transfers/{id}", get(transfer).delete(cancel))
        .route("/v1/transfers/{id}/plan", get(plan))
        .route("/v1/transfers/{id}/events", get(events))
        .route("/healthz", get(healthz))
        .route("/metrics", get(metrics))
        .route("/openapi.json", get(|| async { ([(header::CONTENT_TYPE, "application/json")], openapi()) }));
    complete(routes).with_state(controller)
}

impl Service for Controller {
    const SYSTEM: System = crate::SYSTEM;

    fn router(&self) -> axum::Router {
        router(self.clone())
    }

    async fn drive(self) {
        self.run().await;
    }
}

fn own_site(controller: &Controller, peer: &PeerIdentity, site: &str) -> Result<SiteId, Refusal> {
    speaks_for(peer, "site", site)?;
    controller.topology().site_ids().find(|s| controller.topology().site(*s).name == site).ok_or_else(|| {
        Refusal(StatusCode::NOT_FOUND, format!("no site `{site}` in this controller's topology"))
    })
}

fn unregistered() -> Refusal {
    Refusal(StatusCode::CONFLICT, "this session is not known here: register again".into())
}

fn no_transfer(peer: &PeerIdentity, id: u64) -> Refusal {
    let why = match peer.role {
        Role::Operator => "it never existed, or is forgotten".to_owned(),
        // The peer may not learn which of the three applies.
        role => format!("it never existed, is forgotten, or is none of {} `{}`", role.word(), peer.name),
    };
    Refusal(StatusCode::NOT_FOUND, format!("no transfer {id}: {why}"))
}

#[utoipa::path(post, path = "/v1/sites/{site}/register", params(("site" = String, Path)), request_body = RegisterRequest,
    responses((status = 200, body = RegisterReply), (status = 403, body = ErrorBody),
        (status = 412, body = ErrorBody, description = "another topology"),
        (status = 423, body = ErrorBody, description = "another process serves the site")))]
async fn register(
    State(controller): State<Controller>,
    Extension(peer): Extension<PeerIdentity>,
    Path(site): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Reply<RegisterReply> {
    let site = own_site(&controller, &peer, &site)?;
    let request: RegisterRequest = read(body)?;
    let topology = controller.topology();
    for a in &request.addresses {
        let ends_here = a.link.index() < topology.links().len() && topology.link(a.link).to == site;
        if !ends_here {
            let reason = format!("link {} does not end at site `{}`", a.link, peer.name);
            return Err(Refusal(StatusCode::BAD_REQUEST, reason));
        }
        let parts =
            a.address.rsplit_once(':').filter(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok());
        let Some((host, _)) = parts.filter(|_| a.address.len() <= 300) else {
            let address = printable(&a.address).chars().take(300).collect::<String>();
            let reason = format!("data address `{address}` of link {}: must be host:port", a.link);
            return Err(Refusal(StatusCode::BAD_REQUEST, reason));
        };
        let host = host.strip_prefix('[').and_then(|h| h.strip_suffix(']')).unwrap_or(host);
        if let Some(allowed) = topology.site(site).hosts.as_ref().filter(|allowed| !allowed.allows(host)) {
            let reason = format!(
                "data address `{}` of link {}: the topology has site `{}` at {allowed}: choose one there, or change it",
                printable(&a.address),
                a.link,
                printable(&peer.name)
            );
            return Err(Refusal(StatusCode::BAD_REQUEST, reason));
        }
    }
    let own = TopologyDigest::of(topology);
    let other = request.topology.unwrap_or_else(|| own.clone());
    if other.names != own.names {
        let reason = "the relay's topology has other sites or links than this controller's: start both with the same file";
        return Err(Refusal(StatusCode::PRECONDITION_FAILED, reason.into()));
    }
    let warning = (other.whole != own.whole).then(|| {
        "the relay's topology has other rates or delays than the controller's, which are those that count"
            .to_owned()
    });
    if let Some(warning) = &warning {
        controller.notes().note(Some(&peer), &format!("{peer}: {warning}"));
    }
    let addresses = request.addresses.into_iter().map(|a| (a.link, a.address)).collect();
    let registered = controller.register(site, request.session, addresses, request.take_over).await;
    let (after, queue) = registered.map_err(|SiteTaken { session, address }| {
        let reason = format!(
            "another relay of site `{}` is running, which takes in data at {address} (session {session:016x}): end that \
             one, or start the new one with --take-over",
            peer.name
        );
        Refusal(StatusCode::LOCKED, reason)
    })?;
    Ok(Json(RegisterReply { after, queue, site: site.0, warning }))
}

#[derive(serde::Deserialize)]
struct CommandsQuery {
    session: u64,
    queue: u64,
    #[serde(default)]
    after: u64,
    wait_ms: Option<u64>,
}

#[utoipa::path(get, path = "/v1/sites/{site}/commands",
    params(("site" = String, Path), ("session" = u64, Query),
        ("queue" = u64, Query, description = "the numbering of commands that the registration was answered with"),
        ("after" = u64, Query, description = "number of the last command that was taken over"),
        ("wait_ms" = Option<u64>, Query, description = "how long to wait for a command, at most and unless told otherwise 10000")),
    responses((status = 200, body = CommandsReply), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody, description = "register again")))]
async fn commands(
    State(controller): State<Controller>,
    Extension(peer): Extension<PeerIdentity>,
    Path(site): Path<String>,
    Query(query): Query<CommandsQuery>,
) -> Reply<CommandsReply> {
    let site = own_site(&controller, &peer, &site)?;
    let wait = query.wait_ms.map_or(COMMANDS_WAIT_MAX, std::time::Duration::from_millis);
    let commands = controller
        .commands(
            site,
            query.session,
            Position { numbering: query.queue, after: query.after },
            wait.min(COMMANDS_WAIT_MAX),
        )
        .await
        .map_err(|_| unregistered())?;
    let commands =
        commands.into_iter().map(|(number, command)| NumberedCommand { number, command }).collect();
    Ok(Json(CommandsReply { commands }))
}

#[utoipa::path(post, path = "/v1/sites/{site}/reports", params(("site" = String, Path)), request_body = ReportsRequest,
    responses((status = 204), (status = 403, body = ErrorBody), (status = 409, body = ErrorBody, description = "register again")))]
async fn reports(
    State(controller): State<Controller>,
    Extension(peer): Extension<PeerIdentity>,
    Path(site): Path<String>,
    body: Result<Bytes, BytesRejection>,
) -> Result<StatusCode, Refusal> {
    let site = own_site(&controller, &peer, &site)?;
    let request: ReportsRequest = read(body)?;
    controller.reports(site, request.session, request.batch, request.reports).map_err(|_| unregistered())?;
    Ok(StatusCode::NO_CONTENT)
}

#[utoipa::path(get, path = "/v1/topology", responses((status = 200, body = TopologyView)))]
async fn topology(State(controller): State<Controller>) -> Json<TopologyView> {
    let t = controller.topology();
    let sites = t.site_ids().map(|id| SiteView {
        id: id.0,
        name: t.site(id).name.clone(),
        up: controller.is_up(id),
        latitude_deg: t.site(id).place.map(|p| p.latitude_deg),
        longitude_deg: t.site(id).place.map(|p| p.longitude_deg),
    });
    let links = t.link_ids().map(|id| {
        let (link, status) = (t.link(id), controller.link(id));
        LinkView {
            id: id.0,
            from: t.site(link.from).name.clone(),
            to: t.site(link.to).name.clone(),
            capacity_bps: status.declared.as_bps(),
            carried_bps: status.carried.map(|carried| carried.rate.as_bps()),
            is_limit: status.carried.is_some_and(|carried| carried.is_limit),
            planned_bps: Some(status.planned.as_bps()),
            delay_s: link.properties.delay.as_secs_f64(),
            cost: link.properties.cost,
        }
    });
    Json(TopologyView { name: t.name().to_owned(), sites: sites.collect(), links: links.collect() })
}

/// Converts a request's names to ids.
pub(crate) fn request(t: &Topology, r: SubmitRequest) -> Result<TransferRequest, Refusal> {
    let bad = |e: &dyn std::fmt::Display| Refusal(StatusCode::BAD_REQUEST, e.to_string());
    let site = |name: &str| t.find_site(name).map_err(|e| bad(&e));
    let links = |name: &LinkName| -> Result<Vec<LinkId>, Refusal> {
        let (from, to) = (site(&name.from)?, site(&name.to)?);
        let found: Vec<_> = t.links_out(from).filter(|l| t.link(*l).to == to).collect();
        if found.is_empty() {
            return Err(bad(&format!("no link from `{}` to `{}` in this topology", name.from, name.to)));
        }
        Ok(found)
    };
    let hop = |h: HopRequest| HopSettings {
        stripes: h.stripes,
        congestion_control: h.congestion_control,
        priority: h.priority,
    };
    let mut avoid_links = Vec::new();
    for name in &r.avoid_links {
        avoid_links.extend(links(name)?);
    }
    let mut hop_overrides = Vec::new();
    for o in r.hop_overrides {
        let settings = hop(o.hop);
        hop_overrides
            .extend(links(&o.link)?.into_iter().map(|link| HopOverride { link, hop: settings.clone() }));
    }
    Ok(TransferRequest {
        source: site(&r.source)?,
        source_path: r.source_path,
        destinations: r
            .destinations
            .into_iter()
            .map(|d| Ok(Destination { site: site(&d.site)?, path: d.path }))
            .collect::<Result<_, Refusal>>()?,
        avoid_sites: r.avoid_sites.iter().map(|s| site(s)).collect::<Result<_, _>>()?,
        avoid_links,
        scheme: r.scheme,
        hop: hop(r.hop),
        hop_overrides,
        bandwidth_limit: r.bandwidth_limit,
        symbol_bytes: r.symbol_bytes,
        buffer_packets: r.buffer_packets,
        on_corrupt: r.on_corrupt,
        fill: r.fill,
        submitter: Submitter::Operator,
        replace: r.replace,
        rules: r.rules,
    })
}

fn may_manage(controller: &Controller, peer: &PeerIdentity, source: SiteId) -> Result<(), Refusal> {
    let own = peer.role == Role::Site && controller.topology().site(source).name == peer.name;
    if peer.role == Role::Operator || own {
        return Ok(());
    }
    let reason = format!("{} `{}` may not manage transfers of another site", peer.role.word(), peer.name);
    Err(Refusal(StatusCode::FORBIDDEN, reason))
}

#[utoipa::path(post, path = "/v1/transfers", request_body = SubmitRequest,
    responses((status = 201, body = SubmitReply), (status = 200, body = SubmitReply, description = "one that is under way does this already"),
        (status = 400, body = ErrorBody), (status = 403, body = ErrorBody),
        (status = 409, body = ErrorBody, description = "one that is under way does this by other settings"), (status = 429, body = ErrorBody),
        (status = 503, body = ErrorBody, description = "the store cannot be written: nothing was begun")))]
async fn submit(
    State(controller): State<Controller>,
    Extension(peer): Extension<PeerIdentity>,
    body: Result<Bytes, BytesRejection>,
) -> Result<(StatusCode, Json<SubmitReply>), Refusal> {
    let (request, attach) = asked(&controller, &peer, body)?;
    let submitted = if attach {
        controller.submit_or_attach(request)
    } else {
        controller.submit(request).map(SubmitResult::New)
    };
    match submitted {
        Ok(SubmitResult::New(id)) => {
            Ok((StatusCode::CREATED, Json(SubmitReply { id: id.0, attached: false })))
        }
        Ok(SubmitResult::Attached(id)) => {
            Ok((StatusCode::OK, Json(SubmitReply { id: id.0, attached: true })))
        }
        Err(error) => Err(refused(&error)),
    }
}

/// Parses a transfer request and checks the peer's rights. Returns the request and whether to
/// attach to an equal active transfer.
fn asked(
    controller: &Controller,
    peer: &PeerIdentity,
    body: Result<Bytes, BytesRejection>,
) -> Result<(TransferRequest, bool), Refusal> {
    if let Some(length) = body.as_ref().ok().map(Bytes::len).filter(|n| *n > SUBMIT_BYTES_MAX) {
        let reason = format!("a request of {length} bytes: must have at most {SUBMIT_BYTES_MAX}");
        return Err(Refusal(StatusCode::PAYLOAD_TOO_LARGE, reason));
    }
    let asked: SubmitRequest = read(body)?;
    let attach = asked.attach;
    let mut request = request(controller.topology(), asked)?;
    may_manage(controller, peer, request.source)?;
    if peer.role == Role::Site {
        request.submitter = Submitter::Site(request.source);
    }
    Ok((request, attach))
}

fn refused(error: &SubmitRefusal) -> Refusal {
    let status = match error {
        SubmitRefusal::NotDurable(_) => StatusCode::SERVICE_UNAVAILABLE,
        SubmitRefusal::Refused(SubmitError::RunsOtherwise { .. }) => StatusCode::CONFLICT,
        SubmitRefusal::Refused(error) if error.is_passing() => StatusCode::TOO_MANY_REQUESTS,
        _ => StatusCode::BAD_REQUEST,
    };
    Refusal(status, error.to_string())
}

#[utoipa::path(post, path = "/v1/source", request_body = SubmitRequest,
    responses((status = 200, body = SourceReply, description = "the source would send it; no transfer was begun"),
        (status = 400, body = ErrorBody), (status = 403, body = ErrorBody),
        (status = 422, body = ErrorBody, description = "the source would not, and why"), (status = 429, body = ErrorBody),
        (status = 503, body = ErrorBody, description = "the store cannot be written")))]
async fn source(
    State(controller): State<Controller>,
    Extension(peer): Extension<PeerIdentity>,
    body: Result<Bytes, BytesRejection>,
) -> Reply<SourceReply> {
    let (request, _) = asked(&controller, &peer, body)?;
    let answer = controller.ask_source(request).await.map_err(|e| refused(&e))?;
    let length_bytes = answer.map_err(|reason| Refusal(StatusCode::UNPROCESSABLE_ENTITY, reason))?;
    Ok(Json(SourceReply { length_bytes }))
}

/// Truncates a line to the part that the peer may read.
fn readable(peer: &PeerIdentity, line: String) -> String {
    if peer.role == Role::Operator { line } else { without_connecting(&line).to_owned() }
}

fn readable_verdict(peer: &PeerIdentity, mut verdict: Verdict) -> Verdict {
    if let Some(reason) = verdict.reason_mut() {
        *reason = readable(peer, std::mem::take(reason));
    }
    verdict
}

fn readable_event(peer: &PeerIdentity, view: &mut EventView) {
    match &mut view.event.kind {
        EventKind::Stopped { reason, .. }
        | EventKind::Postponed { reason, .. }
        | EventKind::Waiting { reason } => {
            *reason = readable(peer, std::mem::take(reason));
        }
        EventKind::Verdict { verdict, .. } => *verdict = readable_verdict(peer, verdict.clone()),
        _ => {}
    }
}

fn view(controller: &Controller, peer: &PeerIdentity, s: TransferStatus) -> TransferView {
    let name = |site: SiteId| controller.topology().site(site).name.clone();
    let times = controller.times(s.id);
    TransferView {
        id: s.id.0,
        phase: s.phase,
        outcome: s.outcome,
        exit_code: s.outcome.map(|o| o.exit_code()),
        source: name(s.request.source),
        source_path: s.request.source_path,
        scheme_asked: s.request.scheme,
        scheme: s.scheme,
        hop: HopRequest {
            stripes: s.request.hop.stripes,
            congestion_control: s.request.hop.congestion_control,
            priority: s.request.hop.priority,
        },
        rates: RatesView {
            limit_bps: s.request.bandwidth_limit.map(BitRate::as_bps),
            planned_bps: s.planned_bps,
            bound_bps: s.bound_bps,
        },
        attempts: s.attempts,
        length_bytes: s.length_bytes,
        hash: s.hash,
        planned_with: s.planned_with.iter().map(|t| t.0).collect(),
        corrupt: s.corrupt,
        suspects: s.suspects.into_iter().map(name).collect(),
        congestion_controls: s.congestion_controls,
        last_trouble: s.last_trouble.map(|line| readable(peer, line)),
        began_unix_ms: times.began_unix_ms,
        ended_unix_ms: times.ended_unix_ms,
        destinations: s
            .destinations
            .into_iter()
            .map(|d| DestinationView {
                site: name(d.site),
                path: d.path,
                verified_bytes: d.verified_bytes,
                moved_bytes: d.moved_bytes,
                rate_bps: d.rate_bps,
                postponed: d.postponed,
                away: d.away.map(|line| readable(peer, line)),
                entries: d.entries,
                // A site must not see the paths of other sites.
                left: if peer.role == Role::Operator { d.left } else { Vec::new() },
                comparison: d.comparison.filter(|_| peer.role == Role::Operator),
                verdict: d.verdict.map(|verdict| readable_verdict(peer, verdict)),
            })
            .collect(),
    }
}

/// Returns true if the peer may see a transfer: operators see all, a site sees transfers with
/// itself as source or destination.
fn may_look(controller: &Controller, peer: &PeerIdentity, request: &TransferRequest) -> bool {
    let is_own = |site| controller.topology().site(site).name == peer.name;
    match peer.role {
        Role::Operator => true,
        Role::Site => is_own(request.source) || request.destinations.iter().any(|d| is_own(d.site)),
        Role::Controller => false,
    }
}

/// Finds a transfer that the peer may see. Hidden transfers are reported as missing.
fn seen(controller: &Controller, peer: &PeerIdentity, id: u64) -> Result<TransferStatus, Refusal> {
    let status = controller.status(TransferId(id)).filter(|s| may_look(controller, peer, &s.request));
    status.ok_or_else(|| no_transfer(peer, id))
}

#[derive(serde::Deserialize)]
struct TransfersQuery {
    #[serde(default)]
    after: u64,
}

#[utoipa::path(get, path = "/v1/transfers",
    params(("after" = Option<u64>, Query, description = "id of the last transfer that was read; those after it, as many as fit one reply")),
    responses((status = 200, body = TransfersView)))]
async fn transfers(
    State(controller): State<Controller>,
    Extension(peer): Extension<PeerIdentity>,
    Query(query): Query<TransfersQuery>,
) -> Json<TransfersView> {
    let mut page = TransfersView { transfers: Vec::new(), more: false };
    let (mut last, mut bytes) = (TransferId(query.after), 0);
    while let Some(status) = controller.status_after(last) {
        if bytes >= PAGE_BYTES {
            page.more = true;
            break;
        }
        last = status.id;
        if !may_look(&controller, &peer, &status.request) {
            continue;
        }
        // Texts and lists, each byte up to twice in JSON; numbers and field names add the
        // constants.
        bytes += 2 * status.request.bytes() + 512 * (1 + status.destinations.len());
        page.transfers.push(view(&controller, &peer, status));
    }
    Json(page)
}

#[utoipa::path(get, path = "/v1/transfers/{id}", params(("id" = u64, Path)),
    responses((status = 200, body = TransferView), (status = 404, body = ErrorBody)))]
async fn transfer(
    State(controller): State<Controller>,
    Extension(peer): Extension<PeerIdentity>,
    Path(id): Path<u64>,
) -> Reply<TransferView> {
    let status = seen(&controller, &peer, id)?;
    Ok(Json(view(&controller, &peer, status)))
}

/// Selects a plan of a transfer.
#[derive(Deserialize)]
struct PlanQuery {
    #[serde(default)]
    widest: bool,
}

#[utoipa::path(get, path = "/v1/transfers/{id}/plan",
    params(("id" = u64, Path), ("widest" = Option<bool>, Query, description = "that of the attempt that served the most destinations")),
    responses((status = 200, body = Object, description = "the plan of the present or last attempt"), (status = 404, body = ErrorBody)))]
async fn plan(
    State(controller): State<Controller>,
    Extension(peer): Extension<PeerIdentity>,
    Path(id): Path<u64>,
    Query(which): Query<PlanQuery>,
) -> Result<Response, Refusal> {
    seen(&controller, &peer, id)?;
    let id_of = TransferId(id);
    let plan = if which.widest { controller.widest_plan(id_of) } else { controller.plan(id_of) };
    Ok(match plan {
        Some(plan) => Json(plan).into_response(),
        // A normal answer rather than an error: a watcher polls until there is a plan.
        None => {
            let error = format!("no plan of a transfer {id} yet");
            (StatusCode::NOT_FOUND, Json(ErrorBody { error })).into_response()
        }
    })
}

#[utoipa::path(delete, path = "/v1/transfers/{id}", params(("id" = u64, Path)),
    responses((status = 204), (status = 403, body = ErrorBody), (status = 404, body = ErrorBody), (status = 409, body = ErrorBody, description = "it is over"),
        (status = 503, body = ErrorBody, description = "the store cannot be written: it stops as soon as that can")))]
async fn cancel(
    State(controller): State<Controller>,
    Extension(peer): Extension<PeerIdentity>,
    Path(id): Path<u64>,
) -> Result<StatusCode, Refusal> {
    let status = seen(&controller, &peer, id)?;
    may_manage(&controller, &peer, status.request.source)?;
    match controller.cancel(TransferId(id)) {
        Ok(true) => Ok(StatusCode::NO_CONTENT),
        Ok(false) => Err(Refusal(StatusCode::CONFLICT, format!("transfer {id} is over already"))),
        Err(error) => Err(Refusal(StatusCode::SERVICE_UNAVAILABLE, format!("transfer {id}: {error}"))),
    }
}

/// State of one watcher's stream.
struct Watcher {
    controller: Controller,
    peer: PeerIdentity,
    id: TransferId,
    next: u64,
    pending: VecDeque<SseEvent>,
    changes: tokio::sync::watch::Receiver<u64>,
    over: bool,
}

impl Watcher {
    fn status(&self) -> Option<SseEvent> {
        let status = self.controller.status(self.id)?;
        SseEvent::default().event("status").json_data(view(&self.controller, &self.peer, status)).ok()
    }

    async fn next(mut self) -> Option<(Result<SseEvent, Infallible>, Self)> {
        loop {
            if let Some(event) = self.pending.pop_front() {
                return Some((Ok(event), self));
            }
            if self.over {
                return None;
            }
            self.changes.borrow_and_update();
            let (events, over) = self.controller.events_from(self.id, self.next);
            for (number, mut event) in events {
                self.next = number + 1;
                readable_event(&self.peer, &mut event);
                if let Ok(sse) = SseEvent::default().event("event").id(number.to_string()).json_data(&event) {
                    self.pending.push_back(sse);
                }
            }
            if !self.pending.is_empty() || over {
                self.pending.extend(self.status());
                self.over = over;
                continue;
            }
            if self.changes.changed().await.is_err() {
                return None;
            }
        }
    }
}

#[utoipa::path(get, path = "/v1/transfers/{id}/events",
    params(("id" = u64, Path), ("last-event-id" = Option<u64>, Header, description = "go on after this event")),
    responses((status = 200, content_type = "text/event-stream", body = String,
        description = "events `event` (an EventView each) and, after each batch, `status` (a TransferView); ends when the transfer is over"),
        (status = 404, body = ErrorBody)))]
async fn events(
    State(controller): State<Controller>,
    Extension(peer): Extension<PeerIdentity>,
    Path(id): Path<u64>,
    headers: HeaderMap,
) -> Result<Sse<impl Stream<Item = Result<SseEvent, Infallible>>>, Refusal> {
    let transfer = TransferId(id);
    seen(&controller, &peer, id)?;
    let last = headers.get("last-event-id").and_then(|v| v.to_str().ok()).and_then(|v| v.parse::<u64>().ok());
    let changes = controller.watch_events();
    let next = last.map_or(0, |l| l.saturating_add(1));
    let mut watcher =
        Watcher { controller, peer, id: transfer, next, pending: VecDeque::new(), changes, over: false };
    watcher.pending.extend(watcher.status());
    Ok(Sse::new(unfold(watcher, Watcher::next)).keep_alive(KeepAlive::default()))
}

#[utoipa::path(get, path = "/healthz", responses((status = 200, body = HealthView), (status = 503, body = HealthView)))]
async fn healthz(State(controller): State<Controller>) -> (StatusCode, Json<HealthView>) {
    HealthView::reply(controller.trouble())
}

#[utoipa::path(get, path = "/metrics", responses((status = 200, content_type = "text/plain", body = String), (status = 403, body = ErrorBody)))]
async fn metrics(
    State(controller): State<Controller>,
    Extension(peer): Extension<PeerIdentity>,
) -> Result<Response, Refusal> {
    anabranch_http::metrics::reply(&peer, || controller.metrics())
}
