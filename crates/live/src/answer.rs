//! The answer to one viewer.

use crate::shared::Shared;
use anabranch_live_proto::relay::{Answer, Failure, JoinError, JoinRequest, Read, ViewerId};
use axum::body::{Body, HttpBody};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use axum::response::{IntoResponse as _, Response};
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

/// Seconds after which a viewer that was refused may ask again.
const RETRY_AFTER_S: u64 = 1;

/// A viewer's place in the relay, given back when it is dropped.
struct Viewer {
    shared: Arc<Shared>,
    id: ViewerId,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.shared.leave(self.id);
    }
}

/// The bytes of an answer as the relay has them.
struct AnswerBody {
    viewer: Viewer,
    /// Bytes not yet read. `None` if the length is unknown.
    left: Option<u64>,
}

/// Joins an object and answers once its head is there.
pub(crate) async fn answer(shared: &Arc<Shared>, request: JoinRequest, is_head_only: bool) -> Response {
    let joined = shared.with(|relay, now| relay.handle_join(now, request));
    let viewer = match joined {
        Ok(id) => Viewer { shared: Arc::clone(shared), id },
        Err(error) => return refused(&error),
    };
    match poll_fn(|cx| shared.poll_read(cx, viewer.id)).await {
        Read::Head(answer) => respond(viewer, &answer, is_head_only),
        Read::Failed(failure) => failed(failure),
        Read::Pending | Read::Bytes(_) | Read::End | Read::Broken(_) => {
            unreachable!("a viewer's first news is its head or a failure")
        }
    }
}

fn respond(viewer: Viewer, answer: &Answer, is_head_only: bool) -> Response {
    let left = answer.length;
    let mut response =
        Response::new(if is_head_only { Body::empty() } else { Body::new(AnswerBody { viewer, left }) });
    let headers = response.headers_mut();
    pass_on(headers, answer);
    if let (true, Some(length)) = (is_head_only, left) {
        headers.insert(header::CONTENT_LENGTH, HeaderValue::from(length));
    }
    if let Some((first, total)) = answer.range {
        let last = first + left.unwrap_or(total - first) - 1;
        let range = format!("bytes {first}-{last}/{total}");
        headers.insert(header::CONTENT_RANGE, HeaderValue::from_str(&range).expect("it is made of digits"));
        *response.status_mut() = StatusCode::PARTIAL_CONTENT;
    }
    response
}

fn pass_on(headers: &mut HeaderMap, answer: &Answer) {
    for (name, value) in &answer.head.headers {
        if let Ok(value) = HeaderValue::from_str(value) {
            headers.append(*name, value);
        }
    }
    headers.insert(header::AGE, HeaderValue::from(answer.age.as_ps() / 1_000_000_000_000));
    headers.insert(header::ACCEPT_RANGES, HeaderValue::from_static("bytes"));
}

fn refused(error: &JoinError) -> Response {
    let retry = [(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S))];
    (StatusCode::SERVICE_UNAVAILABLE, retry, format!("{error}\n")).into_response()
}

fn failed(failure: Failure) -> Response {
    let status = match failure {
        Failure::Status(status @ 400..=499) => {
            StatusCode::from_u16(status).expect("three digits are a status")
        }
        Failure::OutOfRange(_) => StatusCode::RANGE_NOT_SATISFIABLE,
        Failure::NoMemory => StatusCode::SERVICE_UNAVAILABLE,
        Failure::Silent => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_GATEWAY,
    };
    let mut response = (status, format!("{failure}\n")).into_response();
    let headers = response.headers_mut();
    // The relay itself holds a failure for a moment; caches in front must not hold it longer.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Failure::OutOfRange(length) = failure {
        let range = format!("bytes */{length}");
        headers.insert(header::CONTENT_RANGE, HeaderValue::from_str(&range).expect("it is made of digits"));
    }
    response
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let this = self.get_mut();
        if this.left == Some(0) {
            return Poll::Ready(None);
        }
        let Poll::Ready(read) = this.viewer.shared.poll_read(cx, this.viewer.id) else {
            return Poll::Pending;
        };
        Poll::Ready(match read {
            Read::Bytes(bytes) => {
                if let Some(left) = &mut this.left {
                    *left = left.saturating_sub(bytes.len() as u64);
                }
                Some(Ok(Frame::data(bytes)))
            }
            Read::End => None,
            Read::Broken(failure) | Read::Failed(failure) => Some(Err(io::Error::other(failure))),
            Read::Pending | Read::Head(_) => unreachable!("a head comes once, before the body"),
        })
    }

    fn is_end_stream(&self) -> bool {
        self.left == Some(0)
    }

    fn size_hint(&self) -> SizeHint {
        self.left.map_or_else(SizeHint::default, SizeHint::with_exact)
    }
}
