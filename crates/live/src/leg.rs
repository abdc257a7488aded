//! The task of one upstream request.

use crate::shared::Shared;
use anabranch_http::origin::{Origin, Reply};
use anabranch_live_proto::relay::{FetchRequest, Flow, Head, Hop};
use axum::http::{HeaderMap, HeaderName, HeaderValue, header};
use std::io;
use std::sync::Arc;
use tokio::sync::Notify;

/// `CDN-Loop` (RFC 8586).
pub(crate) const CDN_LOOP: HeaderName = HeaderName::from_static("cdn-loop");

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
    let mut flow = shared.with(|relay, now| relay.handle_head(now, leg, head(&reply)));
    loop {
        match flow {
            Flow::Continue => {}
            Flow::Pause => goes_on.notified().await,
            Flow::Stop => break,
        }
        let Some(bytes) = reply.bytes().await? else {
            shared.with(|relay, now| relay.handle_end(now, leg));
            break;
        };
        flow = shared.with(|relay, now| relay.handle_bytes(now, leg, bytes));
    }
    // Without a wait in between: the relay may have cancelled this task as the object is whole.
    reply.finish();
    Ok(())
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
