//! Exercises of requests to a service, of etcd's answers and of proxies' headers, for fuzz targets
//! and tests of their corpora. Also an exercise of damaged stores, for tests.
//!
//! Leaves out: the syntax of HTTP and TLS, which libraries implement.

use crate::lease::{StoredValue, is_etcd_answer};
use crate::plain::{Proxies, read_header};
use crate::store::StoreError;
use anabranch_net::tls::PeerIdentity;
use anabranch_units::{RandomStream, Seed};
use axum::Router;
use axum::body::Body;
use axum::extract::Extension;
use axum::http::{HeaderMap, HeaderName, HeaderValue, Method, Request, Uri};
use futures_util::FutureExt as _;
use http_body_util::BodyExt as _;
use hyper::service::Service as _;
use hyper_util::service::TowerToHyperService;
use std::path::Path;
use std::sync::LazyLock;
use tokio::runtime::{Builder, Runtime};

/// Maximum number of requests in one input.
const REQUESTS_MAX: usize = 64;
/// Maximum number of frames of a reply that are read, because event streams do not end.
const FRAMES_MAX: usize = 64;

/// Runtime with a timer that is never driven: a request that waits is given up.
static RUNTIME: LazyLock<Runtime> =
    LazyLock::new(|| Builder::new_current_thread().enable_time().build().expect("a runtime"));

/// Handles each line as a request of the first of `peers`, as in `POST /v1/hosts/a/leave
/// {"session":1}`; each leading `!` selects the next peer. A body that begins with `#` is the
/// header `last-event-id` instead. Calls `after` after each request. Returns true if no request was
/// refused.
///
/// Panics: if the service panics, or reports an internal error (500).
pub fn requests<const N: usize>(
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
            // A stream that waits for the next event is not read further.
            let _ = read.now_or_never();
        }
        after();
    }
    !is_any_refused
}

/// Applies random damage to a file's bytes: a truncation, or 1 to 8 overwritten bytes.
fn damage(bytes: &[u8], random: &mut RandomStream) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    if random.below(8) == 0 {
        bytes.truncate(random.below(bytes.len() as u64) as usize);
        return bytes;
    }
    for _ in 0..=random.below(8) {
        // Most of the file is unused; the used part is in its first pages.
        let within = if random.below(4) == 0 { bytes.len() } else { bytes.len().min(64 << 10) };
        bytes[random.below(within as u64) as usize] = random.next_u64() as u8;
    }
    bytes
}

/// Creates a store at `path` by `open`, and reopens it after each of 30 random damages. The store
/// must open, or be refused in one line.
///
/// `ANABRANCH_DAMAGES` sets another number of damages. Panics: if a store does neither, or if
/// hardly any damage is refused.
pub fn damages(path: &Path, open: impl Fn(&Path) -> Result<(), StoreError>) {
    let count = std::env::var("ANABRANCH_DAMAGES").ok().and_then(|count| count.parse().ok()).unwrap_or(30);
    let (mut refused, mut panicked) = (0, 0);
    open(path).expect("a new store");
    let whole = std::fs::read(path).expect("it was written");
    let mut random = Seed::new(17).stream("damages", 0);
    for number in 0..count {
        std::fs::write(path, damage(&whole, &mut random)).expect("a file of the test");
        if let Err(error) = open(path) {
            let said = error.to_string();
            assert!(said.starts_with("store /") && said.lines().count() == 1, "{number}: {said}");
            refused += 1;
            panicked += u32::from(said.contains("it contradicts itself"));
        }
    }
    println!("{count} damages: {refused} refused, of them {panicked} where the database panicked");
    assert!(refused > count / 10, "{refused} of {count}");
}

/// A value without content.
#[derive(serde::Serialize, serde::Deserialize)]
struct Example {}

impl StoredValue for Example {
    const FORMAT: &'static str = "example 1";
    fn round(&self) -> u64 {
        0
    }
}

/// Handles bytes as an answer of etcd about the lead and the stored value. Returns true if both are
/// readable.
pub fn exercise_etcd(bytes: &[u8]) -> bool {
    is_etcd_answer::<Example>(bytes)
}

/// Handles bytes as the start of a connection from a proxy at 10.0.0.1: the PROXY protocol, or
/// lines of headers, as in `x-forwarded-for: 203.0.113.9`. Returns true if a client's address was
/// read.
///
/// Panics: if the client of a header is a proxy.
pub fn exercise_proxies(mut bytes: &[u8]) -> bool {
    if bytes.starts_with(b"PROXY") || bytes.starts_with(b"\r\n\r\n") {
        let read = read_header(&mut bytes).now_or_never().expect("no byte is waited for");
        return read.is_ok_and(|client| client.is_some());
    }
    let proxies: Proxies = "10.0.0.0/8".parse().expect("a prefix");
    let mut headers = HeaderMap::new();
    for line in bytes.split(|byte| *byte == b'\n').take(REQUESTS_MAX) {
        let Some(colon) = line.iter().position(|byte| *byte == b':') else { continue };
        let (name, value) =
            (HeaderName::from_bytes(&line[..colon]), HeaderValue::from_bytes(&line[colon + 1..]));
        if let (Ok(name), Ok(value)) = (name, value) {
            headers.append(name, value);
        }
    }
    let proxy = [10, 0, 0, 1].into();
    let client = proxies.client(proxy, &headers);
    assert!(client == proxy || !proxies.contains(client), "{client}");
    client != proxy
}

#[cfg(test)]
mod tests {
    use anabranch_testing::replay;

    #[test]
    fn corpus_inputs_are_accepted_or_refused_as_named() {
        assert!(replay("http_etcd", super::exercise_etcd) >= 4);
        assert!(replay("http_proxies", super::exercise_proxies) >= 8);
    }
}
