//! What the fuzz target and its corpus's test do with the body of a request to the controller.
//!
//! Leaves out: HTTP and TLS, which are libraries'.

use crate::http::request;
use crate::wire::{DestinationRequest, RegisterRequest, ReportsRequest, SubmitRequest};
use anabranch_graph::builtin::builtin;
use anabranch_replicate::coordinator::{Coordinator, CoordinatorConfig, DefaultPlanner};
use anabranch_units::{BitRate, Instant, SiteId};

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
