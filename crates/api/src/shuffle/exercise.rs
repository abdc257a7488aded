//! What the fuzz target and its corpus's test do with requests to the coordinator.
//!
//! Leaves out: HTTP's own syntax and TLS, which are libraries'.

use super::service::{CoordinatorService, CoordinatorServiceConfig};
use crate::exercise::requests;
use anabranch_net::keys::{Role, System};
use anabranch_net::tls::PeerIdentity;
use anabranch_shuffle::ChasePlus;

/// Takes each line for a request of the agent of host `a`, as in `POST /v1/hosts/a/leave {"session":1}`, or, after a `!`, of an
/// operator. Decides after each. True if none was refused.
#[doc(hidden)]
pub fn exercise(bytes: &[u8]) -> bool {
    let config = CoordinatorServiceConfig::new(|| Box::new(ChasePlus::default()), "");
    let service = CoordinatorService::open_in_memory(config).expect("memory can be written");
    let peer = |role, name: &str| PeerIdentity { system: System::Shuffle, role, name: name.to_owned() };
    let peers = [peer(Role::Site, "a"), peer(Role::Operator, "operator")];
    requests(&super::http::router(service.clone()), peers, bytes, || {
        service.decide_once();
        assert!(service.hosts().iter().all(|host| host.name == "a"), "an agent has spoken for another");
    })
}
