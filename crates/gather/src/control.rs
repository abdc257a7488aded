//! Control messages on a TLS stream.

use anabranch_endpoint::DecodeError;
use anabranch_gather_proto::msg::{CONTROL_BYTES_MAX, Control, SHORT_MESSAGE_BYTES_MAX};
use anabranch_net::cause::cause;
use anabranch_units::text::printable;
use std::future::poll_fn;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Bytes that wait to be written, above which a server reads nothing more: what it reads may be a question. A client reads
/// always, so that the two never wait for each other.
const WAITING_MAX: usize = 256 << 10;
/// Bytes that are read at once, at least.
const READ_BYTES: usize = 16 << 10;

/// Reads messages one by one, and writes some; holds one message and what came with it, and what is not written yet.
pub struct Reader<R> {
    io: R,
    buffer: Vec<u8>,
    /// Where the next message begins in it.
    at: usize,
    /// The longest message that may come.
    limit: usize,
    /// What comes may be questions.
    answers: bool,
    waiting: Vec<u8>,
    /// Bytes of it that are written.
    written: usize,
    /// Some of what was written may not have left.
    is_unflushed: bool,
    /// Since when nothing of what waits was taken.
    stuck_since: Instant,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// A reader at the beginning of a message of a client.
    pub fn new(io: R) -> Self {
        Self {
            io,
            buffer: Vec::new(),
            at: 0,
            limit: CONTROL_BYTES_MAX,
            answers: true,
            waiting: Vec::new(),
            written: 0,
            is_unflushed: false,
            stuck_since: Instant::now(),
        }
    }
    /// A reader at the beginning of a message of a server, whose messages may be longer.
    pub fn of_server(io: R) -> Self {
        Self { limit: SHORT_MESSAGE_BYTES_MAX, answers: false, ..Self::new(io) }
    }
    /// The stream.
    pub const fn get_ref(&self) -> &R {
        &self.io
    }
    /// The next message, if it has come already.
    ///
    /// Errors: bytes that are no message (`InvalidData`).
    pub fn next_here(&mut self) -> io::Result<Option<Control>> {
        let found = Control::decode_framed_within(&self.buffer[self.at..], self.limit);
        let found = found.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        Ok(found.map(|(message, length)| {
            self.at += length;
            message
        }))
    }
    /// The next message; none once the other end has closed the stream. What has come of it is kept if this is dropped.
    ///
    /// Errors: the stream's; bytes that are no message (`InvalidData`).
    pub async fn next(&mut self) -> io::Result<Option<Control>> {
        loop {
            if let Some(message) = self.next_here()? {
                return Ok(Some(message));
            }
            self.make_room();
            if self.io.read_buf(&mut self.buffer).await? == 0 {
                return Ok(None);
            }
        }
    }

    fn make_room(&mut self) {
        self.buffer.drain(..std::mem::take(&mut self.at));
        self.buffer.reserve(READ_BYTES);
    }
}

impl<R: AsyncRead + AsyncWrite + Unpin> Reader<R> {
    /// Writes messages, all at once.
    ///
    /// Errors: the stream's.
    pub async fn write(&mut self, messages: impl IntoIterator<Item = Control>) -> io::Result<()> {
        self.queue(messages);
        poll_fn(|cx| self.poll_write(cx)).await
    }

    /// Has messages written by [`Reader::exchange`].
    pub fn queue(&mut self, messages: impl IntoIterator<Item = Control>) {
        if self.waiting.is_empty() {
            self.stuck_since = Instant::now();
        }
        messages.into_iter().for_each(|message| message.encode_framed(&mut self.waiting));
    }

    /// Whether little enough waits to be written that more may be asked and answered.
    pub const fn has_room(&self) -> bool {
        self.waiting.len() - self.written <= WAITING_MAX
    }

    /// Since when the other end has taken nothing of what waits to be written; none where nothing waits.
    pub fn stuck_since(&self) -> Option<Instant> {
        (!self.waiting.is_empty()).then_some(self.stuck_since)
    }

    /// As [`Reader::next`], while what waits is written; where too much of that waits, a server reads nothing before some is
    /// written.
    /// May be dropped and begun again.
    ///
    /// Errors: the stream's; bytes that are no message (`InvalidData`).
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
            if std::task::ready!(read)? == 0 {
                return Poll::Ready(Ok(None));
            }
        }
    }

    /// Ready once nothing waits.
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
    /// Says that nothing more is written, and drops what still comes: until the other end closes the stream, but no more than so
    /// much, and no longer than so long.
    ///
    /// Errors: the stream's.
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

/// Whether the other end closed the connection, or is not there any more.
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

/// The version of the protocol that the other end speaks, where that is why it was not understood.
pub fn other_version(error: &io::Error) -> Option<u8> {
    match error.get_ref()?.downcast_ref::<DecodeError>()? {
        DecodeError::UnknownVersion(version) => Some(*version),
        _ => None,
    }
}

/// Why a connection that stood is over, as it is said of the other end: "went away", or what it did. No library's words.
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
        // TLS's, of bytes that were changed on the way.
        (Kind::InvalidData, _) => "sent bytes that do not fit the session's keys".to_owned(),
        _ => printable(&cause(error)).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Issue #19: an end that only wrote while the other one only wrote, too, would have waited for ever.
    #[tokio::test]
    async fn two_ends_that_say_much_to_each_other_both_hear_all() {
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
    async fn only_servers_say_long_messages() {
        let content = vec![7; anabranch_gather_proto::msg::SHORT_BYTES_MAX];
        let (hash, bytes) = (Some([1; 32]), content.len() as u64);
        let found = anabranch_gather_proto::msg::Found { bytes, mode: 0, modified_ns: 0, hash };
        let short = Control::Short { object: "x".into(), found, content: content.into() };
        let (mut said, mut of_client) = (Vec::new(), Reader::new(tokio::io::empty()));
        short.encode_framed(&mut said);
        let mut of_server = Reader::of_server(&said[..]);
        assert_eq!(of_server.next().await.expect("it may be so long"), Some(short));
        of_client.buffer = said;
        assert!(of_client.next_here().is_err());
    }

    /// #17: users read "peer closed connection without sending TLS close_notify" where a server had gone away.
    #[test]
    fn the_end_of_a_connection_is_said_in_our_words() {
        let eof = "peer closed connection without sending TLS close_notify: https://docs.rs/rustls";
        assert_eq!(farewell(&io::Error::new(io::ErrorKind::UnexpectedEof, eof)), "went away");
        let version = io::Error::new(io::ErrorKind::InvalidData, DecodeError::UnknownVersion(1));
        assert!(farewell(&version).starts_with("speaks version 1"));
        let text =
            io::Error::new(io::ErrorKind::InvalidData, "received corrupt message of type InvalidContentType");
        assert!(!farewell(&text).contains("InvalidContentType"));
    }
}
