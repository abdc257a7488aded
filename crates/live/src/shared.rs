//! The relay machine behind a lock, a task for each upstream request, and a task for deadlines.

use crate::parents::Route;
use anabranch_http::origin::{Origin, Reply};
use anabranch_live_proto::relay::{Action, FetchRequest, Flow, Head, Hop, LegId, ReadStep, Relay, ViewerId};
use anabranch_units::{Duration, Instant};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

/// Name of the `CDN-Loop` header (RFC 8586).
pub(crate) const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");

/// Number of times that a leg yields to its connection's task to collect the bytes it has read.
const GATHER_TURNS: u32 = 3;

/// State shared by all tasks of a node.
pub(crate) struct Shared {
    inner: Mutex<Inner>,
    /// Zero of the machine's time.
    epoch: tokio::time::Instant,
    /// Notified when the next deadline becomes earlier.
    earlier: Notify,
    pub(crate) route: Arc<dyn Route>,
    /// Parents, indexed by [`Hop`].
    pub(crate) parents: Vec<Origin>,
}

struct Inner {
    relay: Relay,
    /// Wakers of viewers, indexed by [`ViewerId::index`].
    wakers: Vec<Option<Waker>>,
    legs: BTreeMap<LegId, LegTask>,
    /// Deadline until which the timer task sleeps.
    sleeps_until: Option<Instant>,
}

struct LegTask {
    task: AbortHandle,
    /// Notified when a paused leg must resume.
    goes_on: Arc<Notify>,
}

impl Shared {
    pub(crate) fn new(relay: Relay, route: Arc<dyn Route>, parents: Vec<Origin>) -> Arc<Self> {
        let inner = Inner { relay, wakers: Vec::new(), legs: BTreeMap::new(), sleeps_until: None };
        Arc::new(Self {
            inner: Mutex::new(inner),
            epoch: tokio::time::Instant::now(),
            earlier: Notify::new(),
            route,
            parents,
        })
    }

    fn now(&self) -> Instant {
        Instant::from_std(self.epoch.elapsed())
    }

    /// Calls the machine, then performs its actions.
    pub(crate) fn with<T>(self: &Arc<Self>, call: impl FnOnce(&mut Relay, Instant) -> T) -> T {
        self.with_inner(|inner, now| call(&mut inner.relay, now))
    }

    /// Calls `call` with the lock held, then performs the machine's actions, wakes viewers, and
    /// updates the timer.
    fn with_inner<T>(self: &Arc<Self>, call: impl FnOnce(&mut Inner, Instant) -> T) -> T {
        let mut guard = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        let inner = &mut *guard;
        let now = self.now();
        let result = call(inner, now);
        while let Some(action) = inner.relay.poll_action() {
            self.act(inner, now, action);
        }
        let mut woken = Vec::new();
        while let Some(viewer) = inner.relay.poll_ready() {
            woken.extend(inner.wakers.get_mut(viewer.index()).and_then(Option::take));
        }
        let next = inner.relay.poll_timeout();
        let is_earlier = next.is_some_and(|next| inner.sleeps_until.is_none_or(|until| next < until));
        if is_earlier {
            inner.sleeps_until = next;
        }
        drop(guard);
        if is_earlier {
            self.earlier.notify_one();
        }
        for waker in woken {
            waker.wake();
        }
        result
    }

    fn act(self: &Arc<Self>, inner: &mut Inner, now: Instant, action: Action) {
        match action {
            Action::Fetch(request) => self.fetch(inner, now, request),
            Action::Cancel(leg) => {
                if let Some(leg) = inner.legs.remove(&leg) {
                    leg.task.abort();
                }
            }
            Action::Continue(leg) => {
                if let Some(leg) = inner.legs.get(&leg) {
                    leg.goes_on.notify_one();
                }
            }
            Action::Suspect(hop, key) => self.route.suspect(&key, hop),
            Action::Differs(hop, key) => self.route.differs(&key, hop),
        }
    }

    fn fetch(self: &Arc<Self>, inner: &mut Inner, now: Instant, request: FetchRequest) {
        let leg = request.leg;
        let tried = inner.relay.tried(leg);
        let next = self.route.next_hop(&request.key, tried);
        let waiting = next.is_none().then(|| self.route.wait(&request.key, tried));
        if let Some(hop) = next {
            inner.relay.handle_hop(now, leg, Some(hop));
        }
        let goes_on = Arc::new(Notify::new());
        let (shared, notify) = (Arc::clone(self), Arc::clone(&goes_on));
        let task = tokio::spawn(async move {
            let hop = match waiting {
                None => next,
                Some(waiting) => {
                    let hop = waiting.await;
                    shared.with(|relay, now| relay.handle_hop(now, leg, hop));
                    hop
                }
            };
            match hop {
                Some(hop) => run_leg(shared, hop, request, notify).await,
                None => shared.forget(leg),
            }
        });
        inner.legs.insert(leg, LegTask { task: task.abort_handle(), goes_on });
    }

    /// Removes the finished task of a leg.
    fn forget(&self, leg: LegId) {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner).legs.remove(&leg);
    }

    /// Polls the next item of a viewer's answer.
    pub(crate) fn poll_read(self: &Arc<Self>, cx: &mut Context<'_>, viewer: ViewerId) -> Poll<ReadStep> {
        self.with_inner(|inner, now| {
            let read = inner.relay.handle_read(now, viewer);
            if read != ReadStep::Pending {
                return Poll::Ready(read);
            }
            if inner.wakers.len() <= viewer.index() {
                inner.wakers.resize(viewer.index() + 1, None);
            }
            match &mut inner.wakers[viewer.index()] {
                Some(waker) => waker.clone_from(cx.waker()),
                none => *none = Some(cx.waker().clone()),
            }
            Poll::Pending
        })
    }

    /// Ends a viewer's request.
    pub(crate) fn leave(self: &Arc<Self>, viewer: ViewerId) {
        self.with(|relay, now| relay.handle_leave(now, viewer));
    }

    /// Runs the machine's deadlines. Never returns.
    pub(crate) async fn run_timer(self: Arc<Self>) {
        loop {
            let next = {
                let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
                inner.sleeps_until = inner.relay.poll_timeout();
                inner.sleeps_until
            };
            match next {
                None => self.earlier.notified().await,
                Some(at) => {
                    let at =
                        self.epoch + std::time::Duration::from_nanos((at + Duration::from_ps(999)).as_ns());
                    tokio::select! {
                        () = tokio::time::sleep_until(at) => {
                            self.with(|relay, now| relay.handle_timeout(now));
                        }
                        () = self.earlier.notified() => {}
                    }
                }
            }
        }
    }
}

/// Sends a request to `parent` and passes the answer to the relay, until the end or until the relay
/// stops the leg.
async fn run_leg(shared: Arc<Shared>, hop: Hop, request: FetchRequest, goes_on: Arc<Notify>) {
    let leg = request.leg;
    let parent = shared.route.origin(hop).unwrap_or_else(|| shared.parents[hop.0 as usize].clone());
    if let Err(error) = forward(&shared, (hop, &parent), &request, &goes_on).await {
        tracing::debug!("{} from {}: {error}", request.key, parent.authority());
        shared.route.failed(&request.key, hop);
        shared.with(|relay, now| relay.handle_broken(now, leg));
    }
    shared.forget(leg);
}

async fn forward(
    shared: &Arc<Shared>,
    (hop, parent): (Hop, &Origin),
    request: &FetchRequest,
    goes_on: &Notify,
) -> io::Result<()> {
    let leg = request.leg;
    let headers = headers(request).map_err(io::Error::other)?;
    let mut reply = parent.get(&request.key.to_string(), &headers).await?;
    let mut meter = None;
    if reply.status().is_success() {
        shared.route.delivered(&request.key, hop);
        // The parent sends a length only if it has the whole object.
        let is_ready = reply.headers().contains_key(header::CONTENT_LENGTH);
        meter = shared.route.meter(&request.key, hop, is_ready);
    }
    let mut head = Some(head(&reply));
    loop {
        let mut arrived = ArrivedParts::default();
        // The head is passed on even if no byte of the body has arrived.
        arrived.gather(&mut reply, head.is_some()).await;
        let ArrivedParts { pieces, end } = arrived;
        if let Some(meter) = &meter {
            meter.note(pieces.iter().map(|piece| piece.len() as u64).sum());
        }
        let is_ended = matches!(end, Some(Ok(())));
        let flow = shared.with(|relay, now| {
            let mut flow = head.take().map_or(Flow::Continue, |head| relay.handle_head(now, leg, head));
            for bytes in pieces {
                if flow != Flow::Stop {
                    flow = relay.handle_bytes(now, leg, bytes);
                }
            }
            if is_ended && flow != Flow::Stop {
                relay.handle_end(now, leg);
            }
            flow
        });
        match (flow, end) {
            (Flow::Stop, _) | (_, Some(Ok(()))) => break,
            (_, Some(Err(error))) => return Err(error),
            (Flow::Pause, None) => {
                // From here on the viewers limit the transfer, so it is not measured.
                meter = None;
                goes_on.notified().await;
            }
            (Flow::Continue, None) => {}
        }
    }
    // There must be no await between `handle_end` and `finish`: once the object is complete, the
    // relay may cancel the task.
    reply.finish();
    Ok(())
}

/// Pieces of an answer that arrived together. The relay gets them in one call, so that each viewer
/// wakes and writes once.
#[derive(Default)]
struct ArrivedParts {
    pieces: Vec<Bytes>,
    /// Result at the end of the body. `None` while the body continues.
    end: Option<io::Result<()>>,
}

impl ArrivedParts {
    /// Waits for bytes, then takes all bytes that the connection has read so far.
    async fn gather(&mut self, reply: &mut Reply, may_be_empty: bool) {
        if !may_be_empty {
            let next = reply.bytes().await;
            self.take(next);
        }
        for _ in 0..GATHER_TURNS {
            // The connection's task hands over one piece at a time.
            tokio::task::yield_now().await;
            while self.end.is_none() {
                let next = tokio::select! {
                    biased;
                    next = reply.bytes() => next,
                    () = std::future::ready(()) => break,
                };
                self.take(next);
            }
        }
    }

    fn take(&mut self, next: io::Result<Option<Bytes>>) {
        match next {
            Ok(Some(bytes)) => self.pieces.push(bytes),
            Ok(None) => self.end = Some(Ok(())),
            Err(error) => self.end = Some(Err(error)),
        }
    }
}

fn headers(request: &FetchRequest) -> Result<HeaderMap, header::InvalidHeaderValue> {
    let mut headers = HeaderMap::new();
    headers.insert(CDN_LOOP, HeaderValue::from_str(&request.passed)?);
    if let Some(resume) = &request.resume {
        headers.insert(header::RANGE, HeaderValue::from_str(&format!("bytes={}-", resume.from))?);
        headers.insert(header::IF_RANGE, HeaderValue::from_str(&resume.etag)?);
    }
    Ok(headers)
}

fn head(reply: &Reply) -> Head {
    let mut head = Head::new(reply.status().as_u16());
    for (name, value) in reply.headers() {
        if let Ok(value) = value.to_str() {
            head.read_header(name.as_str(), value);
        }
    }
    head
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_live_proto::relay::{JoinRequest, Key, QueryRule, RelayConfig};
    use anabranch_units::ByteCount;

    struct OneParent;

    impl Route for OneParent {
        fn next_hop(&self, _key: &Key, tried: &[Hop]) -> Option<Hop> {
            tried.is_empty().then_some(Hop(0))
        }
        fn suspect(&self, _key: &Key, _hop: Hop) {}
        fn failed(&self, _key: &Key, _hop: Hop) {}
    }

    /// The timer task once did not sleep for the deadline of a leg that a viewer's read had
    /// resumed.
    #[tokio::test]
    async fn read_that_resumes_a_leg_sets_the_timer() {
        let object_bytes_max = ByteCount::new(1_000);
        let config = RelayConfig { object_bytes_max, ..RelayConfig::default() };
        let relay = Relay::new(config).expect("a good configuration");
        let parent = Origin::new("http://127.0.0.1:9").expect("a URL");
        let shared = Shared::new(relay, Arc::new(OneParent), vec![parent]);
        let key = Key::read("/ch/long.mp4", QueryRule::Remove).expect("a good target");
        let request = JoinRequest { key, range: None, if_range: None, passed: "own".to_owned() };
        let viewer = shared.with(|relay, now| relay.handle_join(now, request)).expect("there is room");
        let lock = || shared.inner.lock().expect("no panic");
        // The test passes in the parent's answer, and stops the leg's task.
        let leg = *lock().legs.keys().next().expect("one leg");
        lock().legs[&leg].task.abort();
        let flow = shared.with(|relay, now| {
            let _ = relay.handle_head(now, leg, Head::new(200));
            relay.handle_bytes(now, leg, Bytes::from(vec![0; 600]))
        });
        assert_eq!(flow, Flow::Pause);
        // A paused leg has no deadline.
        shared.with(|relay, now| relay.handle_timeout(now + Duration::from_secs(20)));
        assert_eq!(lock().relay.poll_timeout(), None);
        lock().sleeps_until = None;
        let mut cx = Context::from_waker(Waker::noop());
        assert!(matches!(shared.poll_read(&mut cx, viewer), Poll::Ready(ReadStep::Head(_))));
        assert!(matches!(shared.poll_read(&mut cx, viewer), Poll::Ready(ReadStep::Bytes(_))));
        let deadline = lock().relay.poll_timeout();
        assert!(deadline.is_some());
        assert_eq!(lock().sleeps_until, deadline);
    }
}
