//! Exercises of requests to the controller, and of its replies, for fuzz targets and their
//! corpora's tests.
//!
//! Leaves out: the syntax of HTTP and TLS, which libraries parse.

use crate::client::read_block;
use crate::controller::{Controller, ControllerConfig};
use crate::http::{request, router};
use crate::wire::{
    CommandsReply, DestinationRequest, RegisterReply, RegisterRequest, ReportsRequest, SourceReply,
    SubmitReply, SubmitRequest, TopologyView, TransferView, TransfersView,
};
use anabranch_graph::builtin::builtin;
use anabranch_http::answer::ErrorBody;
use anabranch_http::exercise::requests;
use anabranch_net::keys::Role;
use anabranch_net::tls::PeerIdentity;
use anabranch_replicate_proto::coordinator::{Coordinator, CoordinatorConfig, DefaultPlanner};
use anabranch_replicate_proto::plan::Plan;
use anabranch_units::{BitRate, Instant, SiteId};

/// Sends each line of `bytes` as a request to the controller of a butterfly. A line is from site
/// `s`, from an operator (prefix `!`) or from site `t1` (prefix `!!`).
///
/// Panics: if the controller panics.
#[doc(hidden)]
pub fn exercise_http(bytes: &[u8]) -> bool {
    let Ok(topology) = builtin("butterfly", BitRate::mbps(10)) else { return false };
    let config = ControllerConfig::new(topology, DefaultPlanner, "");
    let controller = Controller::open_in_memory(config).expect("memory can be written");
    let peer = |role, name: &str| PeerIdentity { system: crate::SYSTEM, role, name: name.to_owned() };
    let peers = [peer(Role::Site, "s"), peer(Role::Operator, "operator"), peer(Role::Site, "t1")];
    requests(&router(controller), peers, bytes, || {})
}

/// Parses `bytes` as each of a controller's replies, and as a stream of events. Returns true if one
/// is valid.
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

/// Parses `bytes` as a submission, a batch of reports or a registration, and passes the result to a
/// coordinator with one active transfer. Returns true if the coordinator accepted it.
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
