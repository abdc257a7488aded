//! Control messages on a TLS stream.

use anabranch_gather::msg::{CONTROL_BYTES_MAX, Control};
use std::io;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};

/// Reads messages one by one; holds one message and what came with it.
pub struct Reader<R> {
    io: R,
    buffer: Vec<u8>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    /// A reader at the beginning of a message.
    pub const fn new(io: R) -> Self {
        Self { io, buffer: Vec::new() }
    }
    /// The stream, if nothing beyond the last message has been read.
    pub fn into_inner(self) -> Option<R> {
        self.buffer.is_empty().then_some(self.io)
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

/// Writes messages, all at once.
///
/// Errors: the stream's.
pub async fn write<W: AsyncWrite + Unpin>(
    io: &mut W,
    messages: impl IntoIterator<Item = Control>,
) -> io::Result<()> {
    let mut bytes = Vec::new();
    messages.into_iter().for_each(|message| message.encode_framed(&mut bytes));
    if !bytes.is_empty() {
        io.write_all(&bytes).await?;
        io.flush().await?;
    }
    Ok(())
}
