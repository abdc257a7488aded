//! The answer to one viewer's request.

use crate::body::{Body, Pieces, RETRY_AFTER_S, text};
use crate::shared::Shared;
use anabranch_live_proto::relay::{Answer, Failure, JoinError, JoinRequest, ReadStep, ViewerId};
use axum::http::{HeaderMap, HeaderValue, StatusCode, header};
use bytes::Bytes;
use hyper::Response;
use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

/// A viewer of the relay. Dropping it ends the viewer's request.
pub(crate) struct Viewer {
    shared: Arc<Shared>,
    id: ViewerId,
}

impl Drop for Viewer {
    fn drop(&mut self) {
        self.shared.leave(self.id);
    }
}

pub(crate) type AnswerBody = Body<Viewer>;

impl Pieces for Viewer {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        Poll::Ready(match ready!(self.shared.poll_read(cx, self.id)) {
            ReadStep::Bytes(bytes) => Some(Ok(bytes)),
            ReadStep::End => None,
            ReadStep::Broken(failure) | ReadStep::Failed(failure) => Some(Err(io::Error::other(failure))),
            ReadStep::Pending | ReadStep::Head(_) => unreachable!("a head comes once, before the body"),
        })
    }
}

/// Joins an object, and answers as soon as its headers are available.
pub(crate) async fn answer(
    shared: &Arc<Shared>,
    request: JoinRequest,
    is_head_only: bool,
) -> Response<AnswerBody> {
    let joined = shared.with(|relay, now| relay.handle_join(now, request));
    let viewer = match joined {
        Ok(id) => Viewer { shared: Arc::clone(shared), id },
        Err(error) => return refused(&error),
    };
    match poll_fn(|cx| shared.poll_read(cx, viewer.id)).await {
        ReadStep::Head(answer) => respond(viewer, &answer, is_head_only),
        ReadStep::Failed(failure) => failed(failure),
        ReadStep::Pending | ReadStep::Bytes(_) | ReadStep::End | ReadStep::Broken(_) => {
            unreachable!("a viewer's first news is its head or a failure")
        }
    }
}

fn respond(viewer: Viewer, answer: &Answer, is_head_only: bool) -> Response<AnswerBody> {
    let left = answer.length;
    let body =
        if is_head_only { AnswerBody::Text(None) } else { AnswerBody::Resource { pieces: viewer, left } };
    let mut response = Response::new(body);
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

fn refused(error: &JoinError) -> Response<AnswerBody> {
    let mut response = text(StatusCode::SERVICE_UNAVAILABLE, format!("{error}\n"));
    response.headers_mut().insert(header::RETRY_AFTER, HeaderValue::from(RETRY_AFTER_S));
    response
}

fn failed(failure: Failure) -> Response<AnswerBody> {
    let status = match failure {
        Failure::Status(status @ 400..=499) => {
            StatusCode::from_u16(status).expect("three digits are a status")
        }
        Failure::OutOfRange(_) => StatusCode::RANGE_NOT_SATISFIABLE,
        Failure::NoMemory => StatusCode::SERVICE_UNAVAILABLE,
        Failure::Silent => StatusCode::GATEWAY_TIMEOUT,
        _ => StatusCode::BAD_GATEWAY,
    };
    let mut response = text(status, format!("{failure}\n"));
    let headers = response.headers_mut();
    // The relay itself caches a failure briefly. Caches in front must not keep it any longer.
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    if let Failure::OutOfRange(length) = failure {
        let range = format!("bytes */{length}");
        headers.insert(header::CONTENT_RANGE, HeaderValue::from_str(&range).expect("it is made of digits"));
    }
    response
}
