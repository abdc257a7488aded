//! One rendition of a channel: its packager or importer behind a lock, and the waiting requests.
//!
//! Read [`Channel`].

use crate::body::Pieces;
use anabranch_live_proto::origin::{
    Answer, Importer, Name, PackageError, Packager, PackagerConfig, Predecessor, Rendition, RequestId,
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

/// Maximum number of publishers of a channel whose begin and end are logged, in each
/// [`PUBLISHERS_TIME`]. An encoder that restarts, and a spare one, stay below it.
const PUBLISHERS_LOGGED_MAX: u32 = 4;
/// Period of [`PUBLISHERS_LOGGED_MAX`].
const PUBLISHERS_TIME: Duration = Duration::from_secs(10);

/// Names of channel and rendition, as in `/CHANNEL/RENDITION/index.m3u8`.
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

/// A rendition that is or was published or pulled.
pub(super) struct Channel {
    pub path: ChannelPath,
    /// Whether the rendition is pulled from an origin, so that publishers are refused.
    pub is_pulled: bool,
    state: Mutex<State>,
    /// Notified by requests for a paused pulled rendition.
    pub asked: Notify,
    /// Held while a publisher's file is uploaded, so that files do not interleave.
    pub files: QueueMutex<()>,
}

/// Source of a rendition's media.
enum Input {
    Published(Box<Packager>),
    Pulled(Box<Importer>),
}

impl Input {
    fn rendition(&mut self) -> &mut Rendition {
        match self {
            Self::Published(packager) => packager.rendition(),
            Self::Pulled(importer) => importer.rendition(),
        }
    }
}

struct State {
    input: Input,
    /// Requests without their last answer. The queue of a request holds at most one segment.
    requests: BTreeMap<RequestId, UnboundedSender<Answer>>,
    next_request: u64,
    /// The connected publisher.
    publisher: Option<Publisher>,
    next_publisher: u64,
    /// Number of publishers in the log since [`Self::logged_since`].
    publishers_logged: u32,
    logged_since: Instant,
    /// Time at which the last byte arrived.
    last_byte_at: Instant,
    is_ended: bool,
    /// Time of the last request. `None` before the first.
    last_request_at: Option<Instant>,
    /// Whether media have arrived since the import started or last paused.
    is_fresh: bool,
}

struct Publisher {
    number: u64,
    /// Notified when another publisher replaces this publisher.
    replaced: Arc<Notify>,
}

/// The right of one publisher to write a channel.
pub(super) struct PublisherTurn {
    pub number: u64,
    pub replaced: Arc<Notify>,
}

/// A request. Dropping it cancels the request.
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
            state.input.rendition().handle_cancel(self.id);
        });
    }
}

impl Channel {
    /// Creates a published channel without media.
    ///
    /// Errors: a setting out of its range.
    pub fn new(path: ChannelPath, now: Instant, config: PackagerConfig) -> Result<Arc<Self>, PackageError> {
        let packager = Box::new(Packager::new(config)?);
        Ok(Self::with_input(path, now, Input::Published(packager)))
    }

    /// Creates a pulled channel without media.
    pub fn pulled(path: ChannelPath, now: Instant, importer: Importer) -> Arc<Self> {
        Self::with_input(path, now, Input::Pulled(Box::new(importer)))
    }

    fn with_input(path: ChannelPath, now: Instant, input: Input) -> Arc<Self> {
        let is_pulled = matches!(input, Input::Pulled(_));
        let state = State {
            input,
            requests: BTreeMap::new(),
            next_request: 0,
            publisher: None,
            next_publisher: 0,
            publishers_logged: 0,
            logged_since: now,
            last_byte_at: now,
            is_ended: false,
            last_request_at: None,
            is_fresh: false,
        };
        let (state, files, asked) = (Mutex::new(state), QueueMutex::new(()), Notify::new());
        Arc::new(Self { path, is_pulled, state, asked, files })
    }

    /// Calls the packager or importer, then forwards its answers.
    fn with<T>(&self, call: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let result = call(&mut state);
        while let Some((id, answer)) = state.input.rendition().poll_answer() {
            let is_last = matches!(answer, Answer::End | Answer::Aborted);
            if let Some(to) = state.requests.get(&id) {
                // A client that has disconnected cancels its request itself.
                let _ = to.send(answer);
            }
            if is_last {
                state.requests.remove(&id);
            }
        }
        result
    }

    /// Requests a resource.
    pub fn request(self: &Arc<Self>, now: Instant, name: Name, directives: DeliveryDirectives) -> Request {
        let (to, answers) = unbounded_channel();
        let id = self.with(|state| {
            let id = RequestId(state.next_request);
            state.next_request += 1;
            state.requests.insert(id, to);
            state.last_request_at = Some(now);
            state.input.rendition().handle_request(now, id, name, directives);
            id
        });
        self.asked.notify_one();
        Request { channel: Arc::clone(self), id, answers }
    }

    /// Wakes a paused pulled rendition.
    pub fn ask(&self, now: Instant) {
        self.with(|state| state.last_request_at = Some(now));
        self.asked.notify_one();
    }

    /// Whether to log the begin and end of a publisher: at most [`PUBLISHERS_LOGGED_MAX`] in each
    /// [`PUBLISHERS_TIME`].
    pub fn logs_publisher(&self, now: Instant) -> bool {
        self.with(|state| {
            if now.saturating_since(state.logged_since) >= PUBLISHERS_TIME {
                (state.logged_since, state.publishers_logged) = (now, 0);
            }
            let has_room = state.publishers_logged < PUBLISHERS_LOGGED_MAX;
            state.publishers_logged += u32::from(has_room);
            has_room
        })
    }

    /// Begins the turn of a publisher, and ends the turn of the previous publisher.
    pub fn begin_turn(&self) -> PublisherTurn {
        self.with(|state| {
            let number = state.next_publisher;
            state.next_publisher += 1;
            let replaced = Arc::new(Notify::new());
            let before = state.publisher.replace(Publisher { number, replaced: Arc::clone(&replaced) });
            if let Some(before) = before {
                before.replaced.notify_one();
            }
            if let Input::Published(packager) = &mut state.input {
                packager.handle_body();
            }
            PublisherTurn { number, replaced }
        })
    }

    /// Ends a publisher's turn, unless another publisher has replaced it.
    pub fn end_turn(&self, number: u64) {
        self.with(|state| {
            state.publisher.take_if(|publisher| publisher.number == number);
        });
    }

    /// Takes bytes of the publisher with this number. Bytes of replaced publishers are ignored.
    ///
    /// Errors: [`PackageError`]; the publisher's connection must be closed.
    pub fn publish(&self, now: Instant, number: u64, bytes: &[u8]) -> Result<(), PackageError> {
        self.with(|state| {
            if state.publisher.as_ref().is_none_or(|publisher| publisher.number != number) {
                return Ok(());
            }
            state.last_byte_at = now;
            match &mut state.input {
                Input::Published(packager) => packager.handle_bytes(now, bytes),
                Input::Pulled(_) => Ok(()),
            }
        })
    }

    /// Calls the importer of a pulled rendition.
    pub fn import<T>(&self, call: impl FnOnce(&mut Importer) -> T) -> T {
        self.with(|state| {
            let Input::Pulled(importer) = &mut state.input else {
                unreachable!("only pulled renditions have an import");
            };
            let result = call(importer);
            state.is_ended = importer.is_ended();
            result
        })
    }

    /// Replaces the importer by one whose numbers continue the old numbers. Waiting requests fail.
    pub fn renew(&self, importer: Importer) {
        self.with(|state| {
            state.requests.clear();
            state.input = Input::Pulled(Box::new(importer));
            (state.is_ended, state.is_fresh) = (false, false);
        });
    }

    /// Records that media have arrived.
    pub fn refresh(&self) {
        self.with(|state| state.is_fresh = true);
    }

    /// Whether media have arrived since the import started or last paused.
    pub fn is_fresh(&self) -> bool {
        self.with(|state| state.is_fresh)
    }

    /// Whether the import must pause, because no request arrived for `idle`. The window then counts
    /// as stale.
    pub fn rests(&self, now: Instant, idle: Duration) -> bool {
        self.with(|state| {
            let is_idle = state.last_request_at.is_none_or(|at| now.saturating_since(at) >= idle);
            let rests = is_idle && state.requests.is_empty();
            state.is_fresh &= !rests;
            rests
        })
    }

    /// Refuses requests that have waited too long. Ends the stream after `silence` without a
    /// publisher. Returns whether the stream has just ended.
    pub fn handle_timeout(&self, now: Instant, silence: Duration) -> bool {
        self.with(|state| {
            state.input.rendition().handle_timeout(now);
            let Input::Published(packager) = &mut state.input else { return false };
            let is_silent = now.saturating_since(state.last_byte_at) >= silence;
            let ends = state.publisher.is_none() && is_silent && !state.is_ended;
            if ends {
                state.is_ended = true;
                packager.handle_end(now);
            }
            ends
        })
    }

    pub fn is_ended(&self) -> bool {
        self.with(|state| state.is_ended)
    }

    /// Last numbers of the stream, from which the next stream continues.
    pub fn predecessor(&self) -> Option<Predecessor> {
        self.with(|state| state.input.rendition().predecessor())
    }

    /// Peak segment bit rate so far. `None` until complete segments last half the target together.
    pub fn peak_rate(&self) -> Option<BitRate> {
        self.with(|state| state.input.rendition().peak_rate())
    }

    /// Codecs and picture size of the newest segments, as far as known.
    pub fn codecs(&self) -> CodecInfo {
        self.with(|state| state.input.rendition().codecs().cloned().unwrap_or_default())
    }
}
