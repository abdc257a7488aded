//! What the fuzz target and its corpus's test do with requests to the coordinator.
//!
//! Leaves out: HTTP's own syntax and TLS, which are libraries'.

use super::service::{CoordinatorService, CoordinatorServiceConfig};
use anabranch_net::keys::{Role, System};
use anabranch_net::tls::PeerIdentity;
use anabranch_shuffle::ChasePlus;
use axum::body::Body;
use axum::extract::Extension;
use axum::http::{Method, Request, Uri};
use futures_util::FutureExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use std::sync::LazyLock;
use tokio::runtime::{Builder, Runtime};

/// The most requests of one input.
const REQUESTS_MAX: usize = 64;

/// Its clock stands: a request that waits for something is given up.
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().expect("a runtime"));

/// Takes each line for a request of the agent of host `a`, as in `POST /v1/hosts/a/leave {"session":1}`, or, after a `!`, of an
/// operator. Decides after each. True if none was refused.
#[doc(hidden)]
pub fn exercise(bytes: &[u8]) -> bool {
    let _entered = RUNTIME.enter();
    let config = CoordinatorServiceConfig::new(|| Box::new(ChasePlus::default()), "");
    let service = CoordinatorService::open_in_memory(config).expect("memory can be written");
    let routes = [(Role::Site, "a"), (Role::Operator, "operator")].map(|(role, name)| {
        let peer = PeerIdentity { system: System::Shuffle, role, name: name.to_owned() };
        TowerToHyperService::new(super::http::router(service.clone()).layer(Extension(peer)))
    });
    let mut is_any_refused = false;
    for line in bytes.split(|byte| *byte == b'\n').take(REQUESTS_MAX) {
        let (peer, line) = match line {
            [b'!', line @ ..] => (1, line),
            line => (0, line),
        };
        let mut words = line.splitn(3, |byte| *byte == b' ');
        let mut word = || words.next().unwrap_or_default();
        let (method, uri, body) = (word(), word(), word());
        let (Ok(method), Ok(uri)) = (Method::from_bytes(method), Uri::try_from(uri)) else { return false };
        let mut request = Request::new(Body::from(body.to_vec()));
        (*request.method_mut(), *request.uri_mut()) = (method, uri);
        if let Some(response) = routes[peer].call(request).now_or_never() {
            let status = response.unwrap_or_else(|never| match never {}).status();
            assert_ne!(status.as_u16(), 500);
            is_any_refused |= !status.is_success();
        }
        service.decide_once();
        assert!(service.hosts().iter().all(|host| host.name == "a"), "an agent has spoken for another");
    }
    !is_any_refused
}
