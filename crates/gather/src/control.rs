//! Control messages on a TLS stream.

use anabranch_endpoint::DecodeError;
use anabranch_gather_proto::msg::{CONTROL_BYTES_MAX, Control, SHORT_MESSAGE_BYTES_MAX};
use anabranch_net::cause::cause;
use anabranch_units::text::printable;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Number of unwritten bytes above which a server stops reading, because input may consist of
/// requests. A client always reads, so the two ends never wait for each other.
const WAITING_MAX: usize = 256 << 10;
/// Minimum size of the read buffer, in bytes.
const READ_BYTES: usize = 16 << 10;

/// Reads and writes control messages. Buffers partly read messages and unwritten bytes.
pub struct Reader<R> {
    io: R,
    buffer: Vec<u8>,
    /// Start of the next message in `buffer`.
    at: usize,
    /// Number of bytes received so far.
    received: Arc<AtomicU64>,
    /// Maximum length of an incoming message in bytes.
    limit: usize,
    /// Whether incoming messages may be requests whose answers add to the output.
    answers: bool,
    waiting: Vec<u8>,
    /// Number of bytes of `waiting` that were written.
    written: usize,
    /// Whether written bytes may not have been flushed yet.
    is_unflushed: bool,
    /// Time since which the peer has accepted none of the waiting bytes.
    stuck_since: Instant,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// Creates a reader of a client's messages.
    pub fn new(io: R) -> Self {
        Self {
            io,
            buffer: Vec::new(),
            at: 0,
            received: Arc::default(),
            limit: CONTROL_BYTES_MAX,
            answers: true,
            waiting: Vec::new(),
            written: 0,
            is_unflushed: false,
            stuck_since: Instant::now(),
        }
    }
    /// Creates a reader of a server's messages, which may be longer.
    pub fn of_server(io: R) -> Self {
        Self { limit: SHORT_MESSAGE_BYTES_MAX, answers: false, ..Self::new(io) }
    }
    /// The underlying stream.
    pub const fn get_ref(&self) -> &R {
        &self.io
    }
    /// Counter of the bytes received so far, including bytes of incomplete messages.
    pub fn received(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.received)
    }
    /// The next message, if it has been received completely.
    ///
    /// Errors: malformed bytes (`InvalidData`).
    pub fn next_here(&mut self) -> io::Result<Option<Control>> {
        let found = Control::decode_framed_within(&self.buffer[self.at..], self.limit);
        let found = found.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        Ok(found.map(|(message, length)| {
            self.at += length;
            message
        }))
    }
    /// The next message; `None` after the end of the stream. Cancel safe: bytes of a partial
    /// message are kept.
    ///
    /// Errors: errors of the stream; malformed bytes (`InvalidData`).
    pub async fn next(&mut self) -> io::Result<Option<Control>> {
        loop {
            if let Some(message) = self.next_here()? {
                return Ok(Some(message));
            }
            self.make_room();
            match self.io.read_buf(&mut self.buffer).await? {
                0 => return Ok(None),
                some => self.received.fetch_add(some as u64, Relaxed),
            };
        }
    }

    fn make_room(&mut self) {
        self.buffer.drain(..std::mem::take(&mut self.at));
        self.buffer.reserve(READ_BYTES);
    }
}

impl<R: AsyncRead + AsyncWrite + Unpin> Reader<R> {
    /// Writes messages together, and all bytes queued before.
    ///
    /// Errors: errors of the stream.
    pub async fn write(&mut self, messages: impl IntoIterator<Item = Control>) -> io::Result<()> {
        self.queue(messages);
        poll_fn(|cx| self.poll_write(cx)).await
    }

    /// Queues messages for [`Reader::exchange`], which writes them.
    pub fn queue(&mut self, messages: impl IntoIterator<Item = Control>) {
        if self.waiting.is_empty() {
            self.stuck_since = Instant::now();
        }
        messages.into_iter().for_each(|message| message.encode_framed(&mut self.waiting));
    }

    /// Writes as many of the queued bytes as the stream accepts at once.
    ///
    /// Errors: errors of the stream.
    pub async fn write_some(&mut self) -> io::Result<()> {
        poll_fn(|cx| match self.poll_write(cx) {
            Poll::Ready(Err(error)) => Poll::Ready(Err(error)),
            _ => Poll::Ready(Ok(())),
        })
        .await
    }

    /// Whether the unwritten bytes are few enough to accept further requests.
    pub const fn has_room(&self) -> bool {
        self.waiting.len() - self.written <= WAITING_MAX
    }

    /// Time since which the peer has accepted none of the waiting bytes; `None` if no bytes wait.
    pub fn stuck_since(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.stuck_since)
    }

    /// As [`Reader::next`], but writes queued messages in the meantime. A server with more than
    /// `WAITING_MAX` unwritten bytes reads nothing. Cancel safe.
    ///
    /// Errors: errors of the stream; malformed bytes (`InvalidData`).
    pub async fn exchange(&mut self) -> io::Result<Option<Control>> {
        poll_fn(|cx| self.poll_exchange(cx)).await
    }

    fn poll_exchange(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Control>>> {
        if let Poll::Ready(result) = self.poll_write(cx) {
            result?;
        }
        if self.answers && !self.has_room() {
            return Poll::Pending;
        }
        loop {
            if let Some(message) = self.next_here()? {
                return Poll::Ready(Ok(Some(message)));
            }
            self.make_room();
            let read = std::pin::pin!(self.io.read_buf(&mut self.buffer)).poll(cx);
            match std::task::ready!(read)? {
                0 => return Poll::Ready(Ok(None)),
                some => self.received.fetch_add(some as u64, Relaxed),
            };
        }
    }

    /// Writes queued bytes; ready once every queued byte is written.
    fn poll_write(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.written < self.waiting.len() {
            let some = Pin::new(&mut self.io).poll_write(cx, &self.waiting[self.written..]);
            let some = std::task::ready!(some)?;
            if some == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.written += some;
            (self.stuck_since, self.is_unflushed) = (Instant::now(), true);
        }
        self.waiting.clear();
        self.written = 0;
        if self.is_unflushed {
            std::task::ready!(Pin::new(&mut self.io).poll_flush(cx))?;
            self.is_unflushed = false;
        }
        Poll::Ready(Ok(()))
    }
}

impl<R: AsyncRead + AsyncWrite + Unpin> Reader<R> {
    /// Closes the stream for writing, and discards input until the peer closes the stream, for at
    /// most `bytes_max` bytes and `time`.
    ///
    /// Errors: errors of the stream.
    pub async fn drain(&mut self, bytes_max: usize, time: Duration) -> io::Result<()> {
        self.io.shutdown().await?;
        let mut left = bytes_max;
        let mut chunk = [0; CONTROL_BYTES_MAX];
        let all = async {
            while left > 0 {
                match self.io.read(&mut chunk).await? {
                    0 => break,
                    n => left = left.saturating_sub(n),
                }
            }
            Ok(())
        };
        tokio::time::timeout(time, all).await.unwrap_or(Ok(()))
    }
}

/// Whether the error means that the peer closed the connection or is unreachable.
pub fn is_away(error: &io::Error) -> bool {
    use io::ErrorKind as Kind;
    matches!(
        error.kind(),
        Kind::UnexpectedEof
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::BrokenPipe
            | Kind::NotConnected
    )
}

/// The peer's protocol version, if another version is the cause of the error.
pub fn other_version(error: &io::Error) -> Option<u8> {
    match error.get_ref()?.downcast_ref::<DecodeError>()? {
        DecodeError::UnknownVersion(version) => Some(*version),
        _ => None,
    }
}

/// The reason why an established connection ended, as the peer's action, such as "went away",
/// without library jargon.
pub fn farewell(error: &io::Error) -> String {
    use io::ErrorKind as Kind;
    if let Some(refused) = anabranch_net::tls::refusal(error) {
        return refused;
    }
    if let Some(version) = other_version(error) {
        return format!(
            "speaks version {version} of the protocol, another one: use one release at both ends"
        );
    }
    let decode = error.get_ref().and_then(|inner| inner.downcast_ref::<DecodeError>());
    match (error.kind(), decode) {
        (_, Some(_)) => "sent a message that this version does not know".to_owned(),
        _ if is_away(error) => "went away".to_owned(),
        (Kind::TimedOut, _) => "does not answer any more".to_owned(),
        // A TLS error: bytes were changed in transit.
        (Kind::InvalidData, _) => "sent bytes that do not fit the session's keys".to_owned(),
        _ => printable(&cause(error)).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue #19: two ends that only wrote would have waited for each other forever.
    #[tokio::test]
    async fn two_writing_ends_receive_all_messages() {
        let (a, b) = tokio::io::duplex(1_000);
        let message =
            |number: usize| Control::Hashing { object: "x".repeat(900), hashed_bytes: number as u64 };
        let count = 2 * WAITING_MAX / 900;
        let talk = |mut reader: Reader<tokio::io::DuplexStream>| async move {
            reader.queue((0..count).map(message));
            assert!(!reader.has_room() && reader.stuck_since().is_some());
            for number in 0..count {
                assert_eq!(reader.exchange().await.expect("it stands"), Some(message(number)));
            }
            reader.write([]).await.expect("it stands");
            assert!(reader.has_room() && reader.stuck_since().is_none());
            reader
        };
        let both = async { tokio::join!(talk(Reader::new(a)), talk(Reader::of_server(b))) };
        let ended = tokio::time::timeout(std::time::Duration::from_secs(60), both).await;
        assert!(ended.is_ok(), "neither waits for the other");
    }

    #[tokio::test]
    async fn only_servers_may_send_long_messages() {
        let content = vec![7; anabranch_gather_proto::msg::SHORT_BYTES_MAX];
        let (hash, bytes) = (Some([1; 32]), content.len() as u64);
        let found = anabranch_gather_proto::msg::ObjectDescription { bytes, mode: 0, modified_ns: 0, hash };
        let short = Control::Short { object: "x".into(), found, content: content.into() };
        let (mut said, mut of_client) = (Vec::new(), Reader::new(tokio::io::empty()));
        short.encode_framed(&mut said);
        let mut of_server = Reader::of_server(&said[..]);
        assert_eq!(of_server.next().await.expect("it may be so long"), Some(short));
        of_client.buffer = said;
        assert!(of_client.next_here().is_err());
    }

    /// Issue #17: when a server had gone away, users read "peer closed connection without sending
    /// TLS close_notify".
    #[test]
    fn end_of_a_connection_is_reported_without_library_jargon() {
        let eof = "peer closed connection without sending TLS close_notify: https://docs.rs/rustls";
        assert_eq!(farewell(&io::Error::new(io::ErrorKind::UnexpectedEof, eof)), "went away");
        let version = io::Error::new(io::ErrorKind::InvalidData, DecodeError::UnknownVersion(1));
        assert!(farewell(&version).starts_with("speaks version 1"));
        let text =
            io::Error::new(io::ErrorKind::InvalidData, "received corrupt message of type InvalidContentType");
        assert!(!farewell(&text).contains("InvalidContentType"));
    }
}
