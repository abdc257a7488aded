//! The task of one upstream request.

use crate::shared::Shared;
use anabranch_http::origin::{Origin, Reply};
use anabranch_live_proto::relay::{FetchRequest, Flow, Head, Hop};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use bytes::Bytes;
use std::io;
use std::sync::Arc;
use tokio::sync::Notify;

/// `CDN-Loop` (RFC 8586).
pub(crate) const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");

/// Turns of the scheduler that a leg grants its connection to hand over what it has read.
const GATHER_TURNS: u32 = 3;

/// Asks `parent` and reports what it answers, until the end or until the relay has enough.
pub(crate) async fn run(
    shared: Arc<Shared>,
    hop: Hop,
    parent: Origin,
    request: FetchRequest,
    goes_on: Arc<Notify>,
) {
    let leg = request.leg;
    if let Err(error) = forward(&shared, &parent, &request, &goes_on).await {
        tracing::debug!("{} from {}: {error}", request.key, parent.authority());
        shared.route.failed(hop);
        shared.with(|relay, now| relay.handle_broken(now, leg));
    }
    shared.forget(leg);
}

async fn forward(
    shared: &Arc<Shared>,
    parent: &Origin,
    request: &FetchRequest,
    goes_on: &Notify,
) -> io::Result<()> {
    let leg = request.leg;
    let headers = headers(request).map_err(io::Error::other)?;
    let mut reply = parent.get(&request.key.to_string(), &headers).await?;
    let mut head = Some(head(&reply));
    loop {
        let mut arrived = Arrived::default();
        // A head is passed on even if no byte of the body is there.
        arrived.gather(&mut reply, head.is_some()).await;
        let Arrived { pieces, end } = arrived;
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
            (Flow::Pause, None) => goes_on.notified().await,
            (Flow::Continue, None) => {}
        }
    }
    // Without a wait in between: the relay may have cancelled this task as the object is whole.
    reply.finish();
    Ok(())
}

/// Parts of an answer that arrived together: the relay hears of them in one call, so that each
/// viewer wakes and writes once.
#[derive(Default)]
struct Arrived {
    pieces: Vec<Bytes>,
    /// How the body ended. `None` while it goes on.
    end: Option<io::Result<()>>,
}

impl Arrived {
    /// Waits for some bytes, then takes all that the connection has read by then.
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
