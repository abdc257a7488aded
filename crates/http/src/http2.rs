//! One HTTP/2 connection of a public server, with limits on its streams.
//!
//! A request over HTTP/1.1 occupies a connection's slot until its answer is read. A request over
//! HTTP/2 occupies the slot of its *stream*. Streams of all connections share one table
//! ([`StreamSlots`]), which drops streams by the rule of `net::admission`: a newer stream displaces
//! the oldest stream of the address with the most streams. A client that reads no bytes of a body
//! loses the stream, and a client that keeps cancelling streams loses the connection.
//!
//! Source: RFC 9113, sections 5.1.2, 6.9 and 10.5. Leaves out: server push, CONNECT, priorities.
//! Read [`Streams`] first, then [`connection`].

use crate::http1::WriteTimeoutStream;
use anabranch_net::admission::HalfOpenTable;
use axum::body::HttpBody;
use axum::http::Response;
use bytes::{Buf, Bytes};
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::rt::Executor;
use hyper::server::conn::http2::{Builder, Connection};
use hyper::service::HttpService;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;

/// Maximum number of concurrent streams of a connection. A player needs few; a cache shares one
/// connection among its viewers.
pub(crate) const STREAMS_MAX: u32 = 64;
/// Maximum number of streams that a client may cancel within a second, as viewers behind a cache do
/// who leave a channel at the same time. An attack by cancelled streams (CVE-2023-44487) cancels
/// thousands.
pub(crate) const CANCELLED_PER_S_MAX: u32 = 100;
/// Maximum bytes of an answer in one frame; these bytes stay in memory if the client does not read
/// on.
const PIECE_BYTES_MAX: usize = 16 << 10;
/// Maximum bytes of an answer in the connection's send buffer.
const SEND_BYTES_MAX: usize = 64 << 10;
/// Receive window of a stream: bytes that a publisher may send ahead. A listener that reads no
/// bodies buffers none.
const STREAM_WINDOW_BYTES: u32 = 256 << 10;
/// Receive window of a connection, for all its streams.
const CONNECTION_WINDOW_BYTES: u32 = 512 << 10;
/// Silence after which the server sends a ping.
const PING_AFTER: Duration = Duration::from_secs(20);
/// Time limit of the client's answer to a ping.
const PING_TIME: Duration = Duration::from_secs(10);

tokio::task_local! {
    /// The stream of the running task.
    static STREAM: Arc<Stream>;
}

/// Slots for the streams of all connections of a server.
#[derive(Clone)]
pub(crate) struct StreamSlots(Arc<Mutex<HalfOpenTable<Arc<Stream>>>>);

impl StreamSlots {
    /// Creates slots for at most `streams_max` streams.
    pub(crate) fn new(streams_max: usize) -> Self {
        Self(Arc::new(Mutex::new(HalfOpenTable::new(streams_max))))
    }
}

/// One request and its answer.
#[derive(Default)]
struct Stream {
    /// Notified when the stream is dropped for a newer one.
    dropped: Notify,
    /// Number of times the body was polled.
    polls: AtomicUsize,
    /// State of the stream's [`Body`]: [`WAITS`], [`BLOCKED`] or [`DONE`].
    phase: AtomicU32,
}

/// The answer has not begun, or its next bytes are not available yet.
const WAITS: u32 = 0;
/// The client has yet to read the last bytes of the body.
const BLOCKED: u32 = 1;
/// The answer is complete.
const DONE: u32 = 2;

/// Streams of one connection.
pub(crate) struct Streams {
    places: StreamSlots,
    from: IpAddr,
    write_time: Duration,
    open: AtomicUsize,
    /// Notified when the last open stream ends.
    idle: Notify,
    /// Start of the current second, and number of streams cancelled in it.
    cancelled: Mutex<Option<(Instant, u32)>>,
    /// Notified when the client has cancelled too many streams in a second.
    abused: Notify,
}

impl Streams {
    pub(crate) fn new(places: &StreamSlots, from: IpAddr, write_time: Duration) -> Arc<Self> {
        Arc::new(Self {
            places: places.clone(),
            from,
            write_time,
            open: AtomicUsize::new(0),
            idle: Notify::new(),
            cancelled: Mutex::new(None),
            abused: Notify::new(),
        })
    }

    /// Returns false once no stream has been open for `time`, and true once the client has
    /// cancelled too many streams.
    pub(crate) async fn until_idle(&self, time: Duration) -> bool {
        let idle = async {
            loop {
                let ended = self.idle.notified();
                tokio::pin!(ended);
                ended.as_mut().enable();
                if self.open.load(Relaxed) == 0 {
                    return tokio::time::sleep(time).await;
                }
                ended.await;
            }
        };
        tokio::select! {
            () = idle => false,
            () = self.abused.notified() => true,
        }
    }

    fn note_cancelled(&self) {
        let now = Instant::now();
        let mut cancelled = self.cancelled.lock().unwrap_or_else(PoisonError::into_inner);
        let fresh = cancelled.filter(|(since, _)| now - *since < Duration::from_secs(1));
        let (since, count) = fresh.unwrap_or((now, 0));
        *cancelled = Some((since, count + 1));
        if count + 1 > CANCELLED_PER_S_MAX {
            self.abused.notify_one();
        }
    }
}

/// A stream's slot, released on drop.
struct StreamSlot {
    streams: Arc<Streams>,
    stream: Arc<Stream>,
    number: anabranch_net::admission::Number,
}

impl StreamSlot {
    fn new(streams: Arc<Streams>) -> Self {
        let stream = Arc::new(Stream::default());
        streams.open.fetch_add(1, Relaxed);
        let (number, dropped) = {
            let mut table = streams.places.0.lock().unwrap_or_else(PoisonError::into_inner);
            table.arrive(streams.from, Arc::clone(&stream))
        };
        if let Some(dropped) = dropped {
            dropped.dropped.notify_one();
        }
        Self { streams, stream, number }
    }
}

impl Drop for StreamSlot {
    fn drop(&mut self) {
        self.streams.places.0.lock().unwrap_or_else(PoisonError::into_inner).leave(self.number);
        if self.streams.open.fetch_sub(1, Relaxed) == 1 {
            self.streams.idle.notify_waiters();
        }
        if self.stream.phase.load(Relaxed) != DONE {
            self.streams.note_cancelled();
        }
    }
}

/// Runs each stream of a connection as one task.
#[derive(Clone)]
pub(crate) struct StreamExecutor(Arc<Streams>);

impl<F> Executor<F> for StreamExecutor
where
    F: Future<Output = ()> + Send + 'static,
{
    fn execute(&self, future: F) {
        let place = StreamSlot::new(Arc::clone(&self.0));
        tokio::spawn(async move {
            let (stream, write_time) = (Arc::clone(&place.stream), place.streams.write_time);
            let blocked = async {
                loop {
                    let before = stream.polls.load(Relaxed);
                    tokio::time::sleep(write_time).await;
                    if stream.phase.load(Relaxed) == BLOCKED && stream.polls.load(Relaxed) == before {
                        return;
                    }
                }
            };
            tokio::select! {
                biased;
                () = STREAM.scope(Arc::clone(&stream), future) => {}
                () = stream.dropped.notified() => {}
                () = blocked => {}
            }
        });
    }
}

/// A body in pieces of at most [`PIECE_BYTES_MAX`], which records whether its stream waits for the
/// client.
pub(crate) struct Body<B> {
    body: Pin<Box<B>>,
    /// Bytes not yet handed over.
    rest: Bytes,
    stream: Option<Arc<Stream>>,
}

impl<B> Body<B> {
    fn note(&self, phase: u32) {
        if let Some(stream) = &self.stream {
            stream.polls.fetch_add(1, Relaxed);
            stream.phase.store(phase, Relaxed);
        }
    }
}

impl<B: HttpBody> HttpBody for Body<B>
where
    B::Data: Send,
{
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        self.note(WAITS);
        while self.rest.is_empty() {
            match ready!(self.body.as_mut().poll_frame(cx)) {
                Some(Ok(frame)) => {
                    // Answers of this server have no trailers.
                    if let Ok(mut data) = frame.into_data() {
                        self.rest = data.copy_to_bytes(data.remaining());
                    }
                }
                Some(Err(error)) => return Poll::Ready(Some(Err(error))),
                None => {
                    self.note(DONE);
                    return Poll::Ready(None);
                }
            }
        }
        self.note(BLOCKED);
        let length = self.rest.len().min(PIECE_BYTES_MAX);
        let mut piece = self.rest.split_to(length);
        if self.rest.is_empty() {
            // The client may read the piece late; a copy does not keep the whole object in memory.
            piece = Bytes::copy_from_slice(&piece);
        }
        Poll::Ready(Some(Ok(Frame::data(piece))))
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }

    fn is_end_stream(&self) -> bool {
        // After the first piece only `poll_frame` reports the end, because it records that the
        // stream is done.
        let is_over = self.rest.is_empty() && self.body.is_end_stream();
        let is_begin = self.stream.as_ref().is_none_or(|stream| stream.polls.load(Relaxed) == 0);
        if is_over && is_begin {
            self.note(DONE);
        }
        is_over && is_begin
    }
}

/// Wraps an answer's body, so that the running stream's state is recorded.
pub(crate) fn watched<B: HttpBody>(response: Response<B>) -> Response<Body<B>> {
    let stream = STREAM.try_with(Arc::clone).ok();
    response.map(|body| Body { body: Box::pin(body), rest: Bytes::new(), stream })
}

/// Serves a connection's requests with `service`. A request's head has at most `head_bytes_max`
/// bytes.
pub(crate) fn connection<S, T, B>(
    stream: T,
    service: S,
    head_bytes_max: usize,
    streams: Arc<Streams>,
) -> Connection<TokioIo<WriteTimeoutStream<T>>, S, StreamExecutor>
where
    S: HttpService<Incoming, ResBody = Body<B>>,
    S::Future: Send + 'static,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    B: HttpBody + Send + 'static,
    B::Data: Send,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    T: AsyncRead + AsyncWrite + Unpin,
{
    let write_time = streams.write_time;
    Builder::new(StreamExecutor(streams))
        .timer(TokioTimer::new())
        .max_concurrent_streams(STREAMS_MAX)
        .max_pending_accept_reset_streams(CANCELLED_PER_S_MAX as usize)
        .max_header_list_size(u32::try_from(head_bytes_max).unwrap_or(u32::MAX))
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .max_send_buf_size(SEND_BYTES_MAX)
        .keep_alive_interval(PING_AFTER)
        .keep_alive_timeout(PING_TIME)
        .serve_connection(TokioIo::new(WriteTimeoutStream::new(stream, write_time)), service)
}

#[cfg(test)]
mod tests;
