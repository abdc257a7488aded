//! Exercise of requests to the controller for a fuzz target: reports, drains and changes of the
//! network.
//!
//! Leaves out: the inputs (`fuzz/`), and the syntax of HTTP and TLS, which libraries implement.
//! Read [`exercise`].

use super::http::router;
use super::{ControllerConfig, ControllerService};
use crate::description::Description;
use crate::description::exercise::{NETWORK, check};
use anabranch_http::exercise::requests;
use anabranch_net::keys::Role;
use anabranch_net::tls::PeerIdentity;

/// Sends each line of `bytes` as a request to the controller of a network with three nodes. A line
/// is from an operator, from source `s` (prefix `!`) or from edge `e` (prefix `!!`). A change is
/// stored before the next line. Returns true if no request is refused.
///
/// Panics: if the controller panics or reports an internal error, or if a text form of its network
/// differs from the network.
pub fn exercise(bytes: &[u8]) -> bool {
    let description = Description::from_toml(NETWORK).expect("a good description");
    let service = ControllerService::open(ControllerConfig::new(description, None));
    let service = service.expect("memory can be written");
    let peer = |role, name: &str| PeerIdentity { system: crate::SYSTEM, role, name: name.to_owned() };
    let peers = [peer(Role::Operator, "operator"), peer(Role::Site, "s"), peer(Role::Site, "e")];
    requests(&router(service.clone()), peers, bytes, || {
        service.lead_alone().expect("memory can be written");
        check(&service.layout());
    })
}

#[cfg(test)]
mod tests {
    use anabranch_testing::replay;

    #[test]
    fn fuzz_corpus_results_match_the_file_names() {
        assert!(replay("live_http", super::exercise) >= 11);
    }
}
