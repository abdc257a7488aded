//! An origin, nodes and viewers for tests.

use anabranch_http::origin::Origin;
use anabranch_live::{Node, NodeConfig, RelayCounts};
use axum::Router;
use axum::body::{Body, Bytes};
use axum::extract::{Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::runtime::Runtime;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;

/// Number of parts of the object that every origin serves at every path.
pub const PARTS: usize = 6;
const PART_BYTES: usize = 10_000;

pub fn object() -> Bytes {
    (0..PARTS * PART_BYTES).map(|at| (at * 7 + at / 256) as u8).collect()
}

/// An origin on a separate runtime, so that a test can kill it with all its connections.
pub struct TestOrigin {
    pub url: String,
    /// Each permit lets the origin send one part, for any request.
    pub parts: Arc<Semaphore>,
    pub requests: Arc<AtomicUsize>,
    /// `Range` of the last request, and targets of all requests.
    pub seen: Arc<Mutex<RequestLog>>,
    runtime: Option<Runtime>,
}

#[derive(Default)]
pub struct RequestLog {
    pub range: Option<String>,
    pub targets: Vec<String>,
}

#[derive(Clone)]
struct OriginState {
    parts: Arc<Semaphore>,
    requests: Arc<AtomicUsize>,
    seen: Arc<Mutex<RequestLog>>,
    cache_control: &'static str,
}

impl TestOrigin {
    pub fn start(cache_control: &'static str) -> Self {
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .expect("a thread starts");
        let parts = Arc::new(Semaphore::new(0));
        let serving = OriginState {
            parts: Arc::clone(&parts),
            requests: Arc::default(),
            seen: Arc::default(),
            cache_control,
        };
        let (requests, seen) = (Arc::clone(&serving.requests), Arc::clone(&serving.seen));
        let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("loopback");
        listener.set_nonblocking(true).expect("a setting of sockets");
        let url = format!("http://{}", listener.local_addr().expect("bound"));
        runtime.spawn(async move {
            let listener = tokio::net::TcpListener::from_std(listener).expect("it does not block");
            axum::serve(listener, Router::new().fallback(serve).with_state(serving)).await
        });
        Self { url, parts, requests, seen, runtime: Some(runtime) }
    }

    pub fn requests(&self) -> usize {
        self.requests.load(SeqCst)
    }

    /// Kills the origin and closes all its connections.
    pub fn kill(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Drop for TestOrigin {
    fn drop(&mut self) {
        self.kill();
    }
}

async fn serve(State(serving): State<OriginState>, request: Request) -> Response {
    let target = request.uri().to_string();
    if target == "/health" {
        return StatusCode::NO_CONTENT.into_response();
    }
    serving.requests.fetch_add(1, SeqCst);
    let range = request.headers().get(header::RANGE);
    let range = range.map(|value| value.to_str().expect("digits").to_owned());
    let from = range.as_deref().map_or(0, |range| {
        range.trim_start_matches("bytes=").trim_end_matches('-').parse::<usize>().expect("digits")
    });
    {
        let mut seen = serving.seen.lock().expect("no test panics here");
        seen.range = range;
        seen.targets.push(target);
    }
    let object = object();
    // The head of a playlist waits for its first part, like a blocking reload.
    if serving.cache_control == "no-cache" {
        serving.parts.acquire().await.expect("never closed").forget();
    }
    let (parts, length) = (serving.parts, object.len());
    let body = futures_util::stream::unfold(from, move |at| {
        let (parts, object) = (Arc::clone(&parts), object.clone());
        async move {
            if at == object.len() {
                return None;
            }
            parts.acquire().await.expect("never closed").forget();
            let end = (at / PART_BYTES + 1) * PART_BYTES;
            Some((Ok::<_, std::io::Error>(object.slice(at..end)), end))
        }
    });
    let mut response = Response::new(Body::from_stream(body));
    let headers = response.headers_mut();
    let mut set = |name, value: &str| headers.insert(name, value.parse().expect("a header's value"));
    set(header::CACHE_CONTROL, serving.cache_control);
    set(header::CONTENT_TYPE, "video/mp4");
    set(header::ETAG, "\"one\"");
    if from > 0 {
        set(header::CONTENT_RANGE, &format!("bytes {from}-{}/{length}", length - 1));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}

/// A running node. Dropping it ends the node.
pub struct TestNode {
    pub url: String,
    pub counts: Box<dyn Fn() -> RelayCounts + Send + Sync>,
    task: JoinHandle<()>,
}

impl TestNode {
    pub fn start(name: &str, parents: &[&str]) -> Self {
        let mut config = NodeConfig::new(name, ([127, 0, 0, 1], 0).into());
        config.parents = parents.iter().map(|url| (*url).to_owned()).collect();
        Self::start_with(config)
    }

    pub fn start_with(config: NodeConfig) -> Self {
        Self::run(Node::bind(config).expect("loopback"))
    }

    pub fn run(node: Node) -> Self {
        let url = format!("http://{}", node.local_addr().expect("bound"));
        let counts = Box::new(node.counter());
        let task = tokio::spawn(async move { match node.run().await {} });
        Self { url, counts, task }
    }

    /// Waits until the counts satisfy a condition.
    pub async fn until(&self, wanted: impl Fn(&RelayCounts) -> bool) {
        while !wanted(&(self.counts)()) {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }
}

impl Drop for TestNode {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A viewer that reads its answer in two steps.
pub struct Viewer {
    reply: anabranch_http::origin::Reply,
    pub read: Vec<u8>,
}

impl Viewer {
    pub async fn ask(url: &str, target: &str) -> Self {
        let origin = Origin::new(url).expect("a node's URL");
        let reply = origin.get(target, &HeaderMap::new()).await.expect("an answer");
        assert_eq!(reply.status(), StatusCode::OK);
        Self { reply, read: Vec::new() }
    }

    pub async fn read_parts(&mut self, parts: usize) {
        while self.read.len() < parts * PART_BYTES {
            let bytes = self.reply.bytes().await.expect("no break").expect("more to come");
            self.read.extend_from_slice(&bytes);
        }
    }

    pub async fn read_all(&mut self) {
        self.read_parts(PARTS).await;
        assert_eq!(self.reply.bytes().await.expect("no break"), None);
        assert!(self.read == object(), "other bytes than the origin's");
    }
}
