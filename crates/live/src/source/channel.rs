//! One rendition of a channel: its packager behind a lock, with the requests that wait for it.
//!
//! Read [`Channel`].

use crate::body::Pieces;
use anabranch_live_proto::origin::{
    Answer, Name, PackageError, Packager, PackagerConfig, Predecessor, RequestId,
};
use anabranch_media::cmaf::CodecInfo;
use anabranch_media::hls::DeliveryDirectives;
use anabranch_units::{BitRate, Duration, Instant};
use bytes::Bytes;
use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::sync::{Mutex as QueueMutex, Notify};

/// Channel and rendition, as in `/CHANNEL/RENDITION/index.m3u8`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ChannelPath {
    pub channel: String,
    pub rendition: String,
}

impl fmt::Display for ChannelPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.channel, self.rendition)
    }
}

/// A rendition that is published, or was.
pub(super) struct Channel {
    pub path: ChannelPath,
    state: Mutex<State>,
    /// Uploaded files of one publisher, one after the other.
    pub files: QueueMutex<()>,
}

struct State {
    packager: Packager,
    /// Requests without their last answer. A request's queue holds one segment at most.
    requests: BTreeMap<RequestId, UnboundedSender<Answer>>,
    next_request: u64,
    /// The publisher that is connected.
    publisher: Option<Publisher>,
    next_publisher: u64,
    /// When the last byte came.
    last_byte_at: Instant,
    is_ended: bool,
}

struct Publisher {
    number: u64,
    /// Rung when another publisher takes its place.
    replaced: Arc<Notify>,
}

/// A publisher's turn at a channel.
pub(super) struct Turn {
    pub number: u64,
    pub replaced: Arc<Notify>,
}

/// A request, cancelled when it is dropped.
pub(super) struct Request {
    channel: Arc<Channel>,
    id: RequestId,
    pub answers: UnboundedReceiver<Answer>,
}

impl Pieces for Request {
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Option<io::Result<Bytes>>> {
        Poll::Ready(match ready!(self.answers.poll_recv(cx)) {
            Some(Answer::Data(bytes)) => Some(Ok(Bytes::from_owner(bytes))),
            Some(Answer::End) => None,
            Some(Answer::Head(_) | Answer::Aborted) | None => {
                Some(Err(io::Error::other("the stream was cut short")))
            }
        })
    }
}

impl Drop for Request {
    fn drop(&mut self) {
        self.channel.with(|state| {
            state.requests.remove(&self.id);
            state.packager.rendition().handle_cancel(self.id);
        });
    }
}

impl Channel {
    /// A channel without media.
    ///
    /// Errors: a setting out of its range.
    pub fn new(path: ChannelPath, now: Instant, config: PackagerConfig) -> Result<Arc<Self>, PackageError> {
        let state = State {
            packager: Packager::new(config)?,
            requests: BTreeMap::new(),
            next_request: 0,
            publisher: None,
            next_publisher: 0,
            last_byte_at: now,
            is_ended: false,
        };
        Ok(Arc::new(Self { path, state: Mutex::new(state), files: QueueMutex::new(()) }))
    }

    /// One call of the packager, and its answers.
    fn with<T>(&self, call: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = call(&mut state);
        while let Some((id, answer)) = state.packager.rendition().poll_answer() {
            let is_last = matches!(answer, Answer::End | Answer::Aborted);
            if let Some(to) = state.requests.get(&id) {
                // A client that is gone cancels its request.
                let _ = to.send(answer);
            }
            if is_last {
                state.requests.remove(&id);
            }
        }
        result
    }

    /// Asks for a resource.
    pub fn request(self: &Arc<Self>, now: Instant, name: Name, directives: DeliveryDirectives) -> Request {
        let (to, answers) = unbounded_channel();
        let id = self.with(|state| {
            let id = RequestId(state.next_request);
            state.next_request += 1;
            state.requests.insert(id, to);
            state.packager.rendition().handle_request(now, id, name, directives);
            id
        });
        Request { channel: Arc::clone(self), id, answers }
    }

    /// Begins the turn of a publisher, which ends the one before.
    pub fn begin_turn(&self) -> Turn {
        self.with(|state| {
            let number = state.next_publisher;
            state.next_publisher += 1;
            let replaced = Arc::new(Notify::new());
            let before = state.publisher.replace(Publisher { number, replaced: Arc::clone(&replaced) });
            if let Some(before) = before {
                before.replaced.notify_one();
            }
            state.packager.handle_body();
            Turn { number, replaced }
        })
    }

    /// Ends a publisher's turn, if it still has it.
    pub fn end_turn(&self, number: u64) {
        self.with(|state| {
            state.publisher.take_if(|publisher| publisher.number == number);
        });
    }

    /// Takes bytes of the publisher with this number. Bytes of a replaced publisher are ignored.
    ///
    /// Errors: [`PackageError`]; the publisher's connection must be closed.
    pub fn publish(&self, now: Instant, number: u64, bytes: &[u8]) -> Result<(), PackageError> {
        self.with(|state| {
            if state.publisher.as_ref().is_none_or(|publisher| publisher.number != number) {
                return Ok(());
            }
            state.last_byte_at = now;
            state.packager.handle_bytes(now, bytes)
        })
    }

    /// Refuses requests that have waited too long, and ends the stream after `silence` without a
    /// publisher. Returns whether the stream ends now.
    pub fn handle_timeout(&self, now: Instant, silence: Duration) -> bool {
        self.with(|state| {
            state.packager.rendition().handle_timeout(now);
            let is_silent = now.saturating_since(state.last_byte_at) >= silence;
            let ends = state.publisher.is_none() && is_silent && !state.is_ended;
            if ends {
                state.is_ended = true;
                state.packager.handle_end(now);
            }
            ends
        })
    }

    pub fn is_ended(&self) -> bool {
        self.with(|state| state.is_ended)
    }

    /// Numbers from which the next stream continues.
    pub fn predecessor(&self) -> Option<Predecessor> {
        self.with(|state| state.packager.rendition().predecessor())
    }

    /// Peak segment bit rate so far. `None` before the first whole segment.
    pub fn peak_rate(&self) -> Option<BitRate> {
        self.with(|state| state.packager.rendition().peak_rate())
    }

    /// Codecs and picture size of the newest segments, as far as they are known.
    pub fn codecs(&self) -> CodecInfo {
        self.with(|state| state.packager.rendition().codecs().cloned().unwrap_or_default())
    }
}
