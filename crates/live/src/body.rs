//! Bodies of answers, and other common parts of the answers of nodes and sources.
//!
//! Read [`Body`] first.

use axum::body::HttpBody;
use axum::http::StatusCode;
use bytes::Bytes;
use hyper::Response;
use hyper::body::{Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Time after which a refused client may retry, in seconds.
pub(crate) const RETRY_AFTER_S: u64 = 1;
/// Maximum number of bytes of an answer that the kernel buffers for a client: several parts of 200
/// ms.
pub(crate) const UNSENT_BYTES_MAX: u32 = 256 << 10;

/// Source of a resource's bytes as they become available.
pub(crate) trait Pieces: Unpin {
    /// The next bytes; `None` at the end.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>>;
}

/// Body of an answer.
pub(crate) enum Body<P> {
    /// A resource that is sent piece by piece.
    Resource {
        pieces: P,
        /// Number of bytes not yet sent. `None` if the length is unknown.
        left: Option<u64>,
    },
    /// A text; `None` once it is sent.
    Text(Option<Bytes>),
}

/// Creates an answer with a text as its body.
pub(crate) fn text<P>(status: StatusCode, text: impl Into<Bytes>) -> Response<Body<P>> {
    let text = Some(text.into()).filter(|text| !text.is_empty());
    let mut response = Response::new(Body::Text(text));
    *response.status_mut() = status;
    response
}

impl<P: Pieces> HttpBody for Body<P> {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let (pieces, left) = match self.get_mut() {
            Self::Text(text) => return Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Resource { left: Some(0), .. } => return Poll::Ready(None),
            Self::Resource { pieces, left } => (pieces, left),
        };
        let piece = ready!(pieces.poll_piece(cx));
        if let (Some(Ok(bytes)), Some(left)) = (&piece, left) {
            *left = left.saturating_sub(bytes.len() as u64);
        }
        Poll::Ready(piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, Self::Resource { left: Some(0), .. } | Self::Text(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            Self::Resource { left, .. } => left.map_or_else(SizeHint::default, SizeHint::with_exact),
            Self::Text(text) => SizeHint::with_exact(text.as_ref().map_or(0, |text| text.len() as u64)),
        }
    }
}
