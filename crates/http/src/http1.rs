//! One HTTP/1.1 connection of a server, with time limits for its peer.
//!
//! Leaves out: admission and TLS (`server`, `plain`). Read [`connection`] first.

use crate::answer::BODY_BYTES_MAX;
use anabranch_units::ByteCount;
use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::http::StatusCode;
use hyper::body::Incoming;
use hyper::server::conn::http1::{Builder, Connection};
use hyper::service::HttpService;
use hyper_util::rt::{TokioIo, TokioTimer};
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, ReadBuf, copy, sink};
use tokio::time::{Sleep, sleep, timeout};

/// Time for which a peer may continue to send after the last answer.
const LINGER: Duration = Duration::from_secs(2);
/// Maximum bytes that a peer may send after the last answer.
const LINGER_BYTES_MAX: u64 = 4 * BODY_BYTES_MAX as u64;

/// Limits of a connection's buffers and times.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bounds {
    /// Maximum bytes of a request's head, and of requests that are read ahead.
    pub(crate) head_bytes_max: usize,
    /// Time limit of a request's head, from the start of the connection or the last answer.
    pub(crate) head_time: Duration,
    /// Time in which a peer must read some bytes of an answer.
    pub(crate) write_time: Duration,
}

/// Serves a connection's requests with `service`. Each read of data sets `has_read`.
pub(crate) fn connection<S, T, B>(
    stream: T,
    service: S,
    bounds: Bounds,
    has_read: Arc<AtomicBool>,
) -> Connection<TokioIo<WriteTimeoutStream<T>>, S>
where
    S: HttpService<Incoming, ResBody = B>,
    B: HttpBody + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    S::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
    T: AsyncRead + AsyncWrite + Unpin,
{
    Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(bounds.head_time)
        .max_buf_size(bounds.head_bytes_max)
        .serve_connection(
            TokioIo::new(WriteTimeoutStream {
                has_read,
                ..WriteTimeoutStream::new(stream, bounds.write_time)
            }),
            service,
        )
}

/// Half-closes the connection, and reads for a while what the peer still sends. Closing a
/// connection with unread bytes resets it. The peer may then lose the last answer, such as the
/// reason for refusing a large body (RFC 9112, section 9.6).
pub(crate) async fn close(mut stream: impl AsyncRead + AsyncWrite + Unpin) {
    let linger = async {
        stream.shutdown().await?;
        copy(&mut stream.take(LINGER_BYTES_MAX), &mut sink()).await
    };
    // The connection ends here, with or without an error.
    let _ = timeout(LINGER, linger).await;
}

/// Reads a request's body of at most `bytes_max` bytes, within `time`.
///
/// Errors: status and reason of the refusal.
pub(crate) async fn body(
    body: Body,
    bytes_max: usize,
    time: Duration,
) -> Result<Bytes, (StatusCode, String)> {
    match timeout(time, to_bytes(body, bytes_max)).await {
        Ok(Ok(body)) => Ok(body),
        Ok(Err(error)) => {
            let most = ByteCount::new(bytes_max as u64);
            Err((StatusCode::PAYLOAD_TOO_LARGE, format!("body: {error}: at most {most}")))
        }
        Err(_) => {
            let line = format!("body: not here within {} s", time.as_secs_f64());
            Err((StatusCode::REQUEST_TIMEOUT, line))
        }
    }
}

/// A stream with a time limit on writes: a write that waits for longer than `time` fails
/// (`TimedOut`).
pub(crate) struct WriteTimeoutStream<T> {
    stream: T,
    time: Duration,
    /// End of the current wait; `None` while no write waits.
    ends: Option<Pin<Box<Sleep>>>,
    /// Set by each read that returns bytes.
    has_read: Arc<AtomicBool>,
}

impl<T> WriteTimeoutStream<T> {
    pub(crate) fn new(stream: T, time: Duration) -> Self {
        Self { stream, time, ends: None, has_read: Arc::default() }
    }

    pub(crate) fn into_inner(self) -> T {
        self.stream
    }

    /// Returns the result of a write, or an error if it has waited for too long.
    fn in_time<V>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<V>>) -> Poll<io::Result<V>> {
        if written.is_ready() {
            self.ends = None;
            return written;
        }
        let time = self.time;
        ready!(self.ends.get_or_insert_with(|| Box::pin(sleep(time))).as_mut().poll(cx));
        let line = format!("the peer reads none of its answers for {} s", time.as_secs_f64());
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, line)))
    }
}

impl<T: AsyncRead + Unpin> AsyncRead for WriteTimeoutStream<T> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        if buffer.filled().len() > before {
            self.has_read.store(true, Relaxed);
        }
        read
    }
}

impl<T: AsyncWrite + Unpin> AsyncWrite for WriteTimeoutStream<T> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.in_time(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.in_time(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        self.in_time(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let closed = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.in_time(cx, closed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    /// #48: a client that kept sending requests and read no answer kept its connection for ever.
    #[tokio::test]
    async fn write_times_out_if_the_peer_does_not_read() {
        let (near, _far) = tokio::io::duplex(100);
        let mut near = WriteTimeoutStream::new(near, Duration::from_millis(10));
        let error = near.write_all(&[0; 1_000]).await.expect_err("the pipe is full");
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
    }

    #[tokio::test]
    async fn each_wait_of_a_slow_reader_is_limited_separately() {
        let (near, mut far) = tokio::io::duplex(100);
        let mut near = WriteTimeoutStream::new(near, Duration::from_secs(60));
        let mut cx = Context::from_waker(Waker::noop());
        for _ in 0..3 {
            near.write_all(&[0; 100]).await.expect("there is room");
            assert!(Pin::new(&mut near).poll_write(&mut cx, &[0]).is_pending());
            assert!(near.ends.is_some());
            far.read_exact(&mut [0; 100]).await.expect("it is open");
            assert!(Pin::new(&mut near).poll_flush(&mut cx).is_ready());
            assert!(near.ends.is_none());
        }
    }
}
