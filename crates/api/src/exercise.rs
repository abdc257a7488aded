//! What fuzz targets and their corpora's tests do with requests to the controller, and with its replies to clients.
//!
//! Leaves out: HTTP's own syntax and TLS, which are libraries'.

use crate::answer::ErrorBody;
use crate::client::read_block;
use crate::controller::{Controller, ControllerConfig};
use crate::http::{request, router};
use crate::wire::{
    CommandsReply, DestinationRequest, RegisterReply, RegisterRequest, ReportsRequest, SourceReply,
    SubmitReply, SubmitRequest, TopologyView, TransferView, TransfersView,
};
use anabranch_graph::builtin::builtin;
use anabranch_net::keys::{Role, System};
use anabranch_net::tls::PeerIdentity;
use anabranch_replicate::coordinator::{Coordinator, CoordinatorConfig, DefaultPlanner};
use anabranch_replicate::plan::Plan;
use anabranch_units::{BitRate, Instant, SiteId};
use axum::Router;
use axum::body::Body;
use axum::extract::Extension;
use axum::http::{HeaderValue, Method, Request, Uri};
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use std::sync::LazyLock;
use tokio::runtime::{Builder, Runtime};

/// The most requests of one input.
const REQUESTS_MAX: usize = 64;
/// The most of a reply that is read: event streams go on.
const FRAMES_MAX: usize = 64;

/// Its clock stands: a request that waits for something is given up.
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().expect("a runtime"));

/// Takes each line for a request, as in `POST /v1/hosts/a/leave {"session":1}`: of the first of `peers`, or after so many `!`
/// of another. A body that begins with `#` is the header `last-event-id` instead. `after` is called after each. True if none
/// was refused.
///
/// Panics: where the service does, or says that the fault is its own (500).
pub(crate) fn requests<const N: usize>(
    routes: &Router,
    peers: [PeerIdentity; N],
    bytes: &[u8],
    mut after: impl FnMut(),
) -> bool {
    let _entered = RUNTIME.enter();
    let routes = peers.map(|peer| TowerToHyperService::new(routes.clone().layer(Extension(peer))));
    let mut is_any_refused = false;
    for line in bytes.split(|byte| *byte == b'\n').take(REQUESTS_MAX) {
        let other = line.iter().take_while(|byte| **byte == b'!').count();
        let mut words = line[other..].splitn(3, |byte| *byte == b' ');
        let mut word = || words.next().unwrap_or_default();
        let (method, uri, body) = (word(), word(), word());
        let (Ok(method), Ok(uri)) = (Method::from_bytes(method), Uri::try_from(uri)) else { return false };
        let (last, body) = match body {
            [b'#', rest @ ..] => (Some(rest), &[][..]),
            body => (None, body),
        };
        let mut request = Request::new(Body::from(body.to_vec()));
        (*request.method_mut(), *request.uri_mut()) = (method, uri);
        if let Some(last) = last.and_then(|last| HeaderValue::from_bytes(last).ok()) {
            request.headers_mut().insert("last-event-id", last);
        }
        if let Some(response) = routes[other % N].call(request).now_or_never() {
            let response = response.unwrap_or_else(|never| match never {});
            assert_ne!(response.status().as_u16(), 500);
            is_any_refused |= !response.status().is_success();
            let mut body = response.into_body();
            let read = async {
                for _ in 0..FRAMES_MAX {
                    if body.frame().await.is_none() {
                        break;
                    }
                }
            };
            // A stream that waits for the next event is left.
            let _ = read.now_or_never();
        }
        after();
    }
    !is_any_refused
}

/// Takes lines for requests of site `s` of a butterfly, of an operator (`!`) and of site `t1` (`!!`).
///
/// Panics: where the controller does.
#[doc(hidden)]
pub fn exercise_http(bytes: &[u8]) -> bool {
    let Ok(topology) = builtin("butterfly", BitRate::mbps(10)) else { return false };
    let config = ControllerConfig::new(topology, DefaultPlanner, "");
    let controller = Controller::open_in_memory(config).expect("memory can be written");
    let peer = |role, name: &str| PeerIdentity { system: System::Replicate, role, name: name.to_owned() };
    let peers = [peer(Role::Site, "s"), peer(Role::Operator, "operator"), peer(Role::Site, "t1")];
    requests(&router(controller), peers, bytes, || {})
}

/// Reads `bytes` as each of a controller's replies, and as a stream of events. True if one of them reads.
#[doc(hidden)]
pub fn exercise_replies(bytes: &[u8]) -> bool {
    fn reads<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> bool {
        serde_json::from_slice::<T>(bytes).is_ok()
    }
    let replies = [
        reads::<RegisterReply>,
        reads::<CommandsReply>,
        reads::<SubmitReply>,
        reads::<SourceReply>,
        reads::<TransferView>,
        reads::<TransfersView>,
        reads::<TopologyView>,
        reads::<ErrorBody>,
        reads::<Plan>,
    ];
    if replies.iter().any(|reads| reads(bytes)) {
        return true;
    }
    let text = String::from_utf8_lossy(bytes);
    let mut blocks = text.split_inclusive("\n\n").filter(|block| block.ends_with("\n\n"));
    let first = blocks.next().map(read_block);
    matches!(first, Some(Ok((_, Some(_))))) && blocks.all(|block| read_block(block).is_ok())
}

/// Reads `bytes` as each of the three kinds and gives them to a coordinator with one transfer under way. True if they were
/// taken.
#[doc(hidden)]
pub fn exercise(bytes: &[u8]) -> bool {
    let Ok(topology) = builtin("butterfly", BitRate::mbps(10)) else { return false };
    let now = Instant::ZERO;
    let mut coordinator =
        Coordinator::new(CoordinatorConfig::default(), topology.clone(), DefaultPlanner, now);
    let d = vec![DestinationRequest { site: "t1".into(), path: "f".into() }];
    for site in topology.site_ids() {
        let addresses = topology.links_in(site).map(|l| (l, "127.0.0.1:1".to_owned()));
        coordinator.handle_site_up(now, site, 1, addresses);
    }
    let first = request(&topology, SubmitRequest::new("s", "f", d)).ok();
    first.map(|r| coordinator.submit(now, r));
    let first = SiteId(0);
    if let Ok(r) = serde_json::from_slice::<SubmitRequest>(bytes) {
        return request(&topology, r).is_ok_and(|r| coordinator.submit(now, r).is_ok());
    }
    if let Ok(r) = serde_json::from_slice::<ReportsRequest>(bytes) {
        r.reports.into_iter().for_each(|report| coordinator.handle_report(now, first, report));
        return true;
    }
    let Ok(r) = serde_json::from_slice::<RegisterRequest>(bytes) else { return false };
    coordinator.handle_site_up(now, first, r.session, r.addresses.into_iter().map(|a| (a.link, a.address)));
    true
}
