//! Control messages on a TLS stream.

use anabranch_endpoint::DecodeError;
use anabranch_gather_proto::msg::{CONTROL_BYTES_MAX, Control};
use anabranch_units::text::printable;
use std::io;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Reads messages one by one, and writes some; holds one message and what came with it.
pub struct Reader<R> {
    io: R,
    buffer: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// A reader at the beginning of a message.
    pub const fn new(io: R) -> Self {
        Self { io, buffer: Vec::new() }
    }
    /// The stream.
    pub const fn get_ref(&self) -> &R {
        &self.io
    }
    /// The next message; none once the other end has closed the stream. What has come of it is kept if this is dropped.
    ///
    /// Errors: the stream's; bytes that are no message (`InvalidData`).
    pub async fn next(&mut self) -> io::Result<Option<Control>> {
        loop {
            let found = Control::decode_framed(&self.buffer);
            if let Some((message, length)) =
                found.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?
            {
                self.buffer.drain(..length);
                return Ok(Some(message));
            }
            let mut chunk = [0; CONTROL_BYTES_MAX + 2];
            match self.io.read(&mut chunk).await? {
                0 => return Ok(None),
                n => self.buffer.extend_from_slice(&chunk[..n]),
            }
        }
    }
}

impl<R: AsyncWrite + Unpin> Reader<R> {
    /// Writes messages, all at once.
    ///
    /// Errors: the stream's.
    pub async fn write(&mut self, messages: impl IntoIterator<Item = Control>) -> io::Result<()> {
        let mut bytes = Vec::new();
        messages.into_iter().for_each(|message| message.encode_framed(&mut bytes));
        if !bytes.is_empty() {
            self.io.write_all(&bytes).await?;
            self.io.flush().await?;
        }
        Ok(())
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

/// Why a connection that stood is over, as it is said of the other end: "went away", or what it did. No library's words.
pub fn farewell(error: &io::Error) -> String {
    use io::ErrorKind as Kind;
    if let Some(refused) = anabranch_net::tls::refusal(error) {
        return refused;
    }
    let decode = error.get_ref().and_then(|inner| inner.downcast_ref::<DecodeError>());
    match (error.kind(), decode) {
        (_, Some(DecodeError::UnknownVersion(version))) => {
            format!("speaks version {version} of the protocol, another one: use one release at both ends")
        }
        (_, Some(_)) => "sent a message that this version does not know".to_owned(),
        (
            Kind::UnexpectedEof
            | Kind::ConnectionReset
            | Kind::ConnectionAborted
            | Kind::BrokenPipe
            | Kind::NotConnected,
            _,
        ) => "went away".to_owned(),
        (Kind::TimedOut, _) => "does not answer any more".to_owned(),
        // TLS's, of bytes that were changed on the way.
        (Kind::InvalidData, _) => "sent bytes that do not fit the session's keys".to_owned(),
        _ => printable(&error.to_string()).into_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
