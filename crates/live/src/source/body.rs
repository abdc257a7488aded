//! Bodies of a source's answers.

use super::channel::Request;
use anabranch_live_proto::origin::Answer;
use axum::body::HttpBody;
use bytes::Bytes;
use hyper::body::{Frame, SizeHint};
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

/// Body of an answer.
pub(super) enum SourceBody {
    /// A resource of a channel.
    Resource {
        request: Request,
        /// Bytes not yet read. `None` if the length is unknown.
        left: Option<u64>,
    },
    /// A text, or nothing.
    Text(Option<Bytes>),
}

impl HttpBody for SourceBody {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let (request, left) = match self.get_mut() {
            Self::Text(text) => return Poll::Ready(text.take().map(|text| Ok(Frame::data(text)))),
            Self::Resource { request, left } => (request, left),
        };
        Poll::Ready(match ready!(request.answers.poll_recv(cx)) {
            Some(Answer::Data(bytes)) => {
                if let Some(left) = left {
                    *left = left.saturating_sub(bytes.len() as u64);
                }
                Some(Ok(Frame::data(Bytes::from_owner(bytes))))
            }
            Some(Answer::End) => None,
            Some(Answer::Head(_) | Answer::Aborted) | None => {
                Some(Err(io::Error::other("the stream was cut short")))
            }
        })
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
