//! Exercises of requests to the coordinator, for the fuzz target and the test of its corpus.
//!
//! Leaves out: the syntax of HTTP and TLS, which libraries parse.

use crate::service::{CoordinatorService, CoordinatorServiceConfig};
use crate::wire::LimitsReply;
use anabranch_http::PeerAddress;
use anabranch_http::exercise::requests;
use anabranch_net::keys::Role;
use anabranch_net::tls::PeerIdentity;
use anabranch_shuffle_proto::ChasePlus;
use anabranch_shuffle_proto::announced_flows::{AnnouncedFlows, ListedConnection};
use anabranch_shuffle_proto::control::{FlowKey, Limit};
use anabranch_units::BitRate;
use axum::extract::Extension;

/// Parses the bytes as a coordinator's answer to a request for limits, and applies the limits.
/// Returns true if the answer is valid.
#[doc(hidden)]
pub fn exercise_limits(bytes: &[u8]) -> bool {
    let Ok(LimitsReply { limits }) = serde_json::from_slice(bytes) else { return false };
    let mut book = AnnouncedFlows::default();
    let [local, remote] = [([10, 0, 0, 1], 1).into(), ([10, 0, 0, 2], 7_000).into()];
    let flow = FlowKey { local, remote };
    let state = ListedConnection {
        flow,
        cookie: 1,
        user: 0,
        may_send: true,
        acked_bytes: 0,
        written_bytes: 60_000,
        limit: None,
    };
    book.announce(&state, "a", 60_000).expect("there is room");
    for Limit { flow, rate_bps } in limits {
        book.limit(flow, rate_bps.map(BitRate::bps));
        // The agent makes the same calls for each limit.
        let _ = (book.socket(flow), book.soonest_end());
    }
    book.observe(&[ListedConnection { acked_bytes: 10, ..state }], |_| None);
    true
}

/// Handles each line as a request of the agent of host `a`, as in `POST /v1/hosts/a/leave
/// {"session":1}`, or, after a `!`, as a request of an operator. Makes a decision after each line.
/// Returns true if no request was refused.
#[doc(hidden)]
pub fn exercise(bytes: &[u8]) -> bool {
    let mut config = CoordinatorServiceConfig::new(|| Box::new(ChasePlus::default()), "");
    config.are_addresses_trusted = true;
    let service = CoordinatorService::without_history(config);
    let peer = |role, name: &str| PeerIdentity { system: crate::SYSTEM, role, name: name.to_owned() };
    let peers = [peer(Role::Site, "a"), peer(Role::Operator, "operator")];
    let router = crate::http::router(service.clone()).layer(Extension(PeerAddress([10, 0, 0, 9].into())));
    requests(&router, peers, bytes, || {
        service.decide_once();
        assert!(service.hosts().iter().all(|host| host.name == "a"), "an agent has spoken for another");
    })
}
