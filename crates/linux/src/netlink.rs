//! Requests to the kernel over netlink(7), and its responses.
//!
//! Source: RFC 3549, section 2; the kernel's Documentation/userspace-api/netlink/intro.rst. The
//! netlink-packet crates encode and decode messages. This module has their socket, which belongs to
//! the network namespace of the thread that opens it. Leaves out: multicast groups and
//! notifications. Read [`Netlink`] and [`NetlinkError`].

use std::io;
use std::os::fd::OwnedFd;

use netlink_packet_core::{
    DecodeError, ErrorMessage, NLM_F_ACK, NLM_F_ACK_TLVS, NLM_F_CAPPED, NLM_F_DUMP, NLM_F_REQUEST,
    NetlinkDeserializable, NetlinkHeader, NetlinkMessage, NetlinkPayload, NetlinkSerializable, NlasIterator,
};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send};

use crate::socket_options;

/// Buffer size for one datagram: the kernel's dumps have at most 32 KiB each.
const BUFFER_BYTES: usize = 64 << 10;
/// Maximum number of requests in one datagram: their acknowledgements must fit together in the
/// socket's default buffer of some 200 KiB.
const BATCH_MAX: usize = 64;

/// Length of a `struct nlmsghdr`.
const HEADER_BYTES: usize = 16;
/// Attribute of an acknowledgement that holds the kernel's reason as text (`enum nlmsgerr_attrs`,
/// `NLMSGERR_ATTR_MSG`).
const REASON: u16 = 1;

/// Reason why a request failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum NetlinkError {
    /// The kernel refused the request.
    Refused {
        /// The error number.
        error: io::Error,
        /// The kernel's explanation (its "extended acknowledgement"); `None` if it gives none.
        reason: Option<String>,
    },
    /// The socket failed.
    Socket(io::Error),
    /// The response is malformed.
    Malformed(DecodeError),
}

impl NetlinkError {
    /// The error number; `None` for a malformed response.
    pub fn raw_os_error(&self) -> Option<i32> {
        match self {
            Self::Refused { error, .. } | Self::Socket(error) => error.raw_os_error(),
            Self::Malformed(_) => None,
        }
    }

    /// The error kind that belongs to the error number.
    pub fn kind(&self) -> io::ErrorKind {
        match self {
            Self::Refused { error, .. } | Self::Socket(error) => error.kind(),
            Self::Malformed(_) => io::ErrorKind::InvalidData,
        }
    }
}

impl std::fmt::Display for NetlinkError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Refused { error, reason: Some(reason) } => write!(f, "{error}: {reason}"),
            Self::Refused { error, reason: None } | Self::Socket(error) => error.fmt(f),
            Self::Malformed(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for NetlinkError {}

impl From<NetlinkError> for io::Error {
    /// Converts the error. The error number is lost if the kernel gave a reason, because an
    /// [`io::Error`] cannot hold both; the kind is always kept.
    fn from(error: NetlinkError) -> Self {
        match error {
            NetlinkError::Refused { error, reason: None } | NetlinkError::Socket(error) => error,
            other => Self::new(other.kind(), other),
        }
    }
}

/// The result of a request.
pub type Result<T> = std::result::Result<T, NetlinkError>;

/// A netlink socket.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace. `None` selects rtnetlink(7), whose
    /// protocol number is 0.
    ///
    /// Errors: the system's.
    pub fn open(protocol: Option<Protocol>) -> Result<Self> {
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol)
                .map_err(|error| NetlinkError::Socket(error.into()))?;
        // Kernels before 4.12 report only error numbers.
        let _ = socket_options::explain_errors(&socket);
        Ok(Self { socket, sequence: 0, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Makes the kernel apply the filters in dump requests (netlink(7), `NETLINK_GET_STRICT_CHK`).
    ///
    /// Errors: the system's; kernels before 4.20 lack the option and list all entries.
    pub fn filter_dumps(&self) -> io::Result<()> {
        socket_options::filter_dumps(&self.socket)
    }

    /// Requests a list, and calls `each` with every entry that can be decoded.
    ///
    /// Errors: the kernel's refusal; the system's.
    pub fn dump<M>(&mut self, request: M, mut each: impl FnMut(M)) -> Result<()>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        let first = self.send([(request, NLM_F_DUMP)])?;
        loop {
            for (header, payload) in self.receive()? {
                match payload {
                    _ if header.sequence_number != first => {}
                    Ok(NetlinkPayload::InnerMessage(message)) => each(message),
                    Ok(NetlinkPayload::Done(done)) => return verdict(done.code, &done.extended_ack),
                    Ok(NetlinkPayload::Error(error)) => return acknowledged(&header, &error),
                    Ok(NetlinkPayload::Overrun(_)) => {
                        return Err(NetlinkError::Socket(io::Error::from_raw_os_error(libc::ENOBUFS)));
                    }
                    // The entry is skipped, because no caller can use an undecodable entry.
                    Ok(_) | Err(_) => {}
                }
            }
        }
    }

    /// Requests a single object.
    ///
    /// Errors: the kernel's refusal; the system's.
    pub fn ask<M>(&mut self, request: M) -> Result<M>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        let first = self.send([(request, 0)])?;
        loop {
            for (header, payload) in self.receive()? {
                if header.sequence_number != first {
                    continue;
                }
                match payload {
                    Ok(NetlinkPayload::InnerMessage(message)) => return Ok(message),
                    Ok(NetlinkPayload::Error(error)) => acknowledged(&header, &error)?,
                    Ok(_) => {}
                    Err(error) => return Err(NetlinkError::Malformed(error)),
                }
            }
        }
    }

    /// Requests one change. `flags` are added to `NLM_F_REQUEST` and `NLM_F_ACK`.
    ///
    /// Errors: the kernel's refusal; the system's.
    pub fn change<M>(&mut self, request: M, flags: u16) -> Result<()>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        self.change_all(vec![(request, flags)])?.pop().expect("one verdict for one request")
    }

    /// Requests changes in this order, and returns the kernel's result of each. Flags are as in
    /// [`Netlink::change`].
    ///
    /// Errors: the socket's.
    pub fn change_all<M>(&mut self, requests: Vec<(M, u16)>) -> Result<Vec<Result<()>>>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        let mut verdicts = Vec::with_capacity(requests.len());
        let mut requests = requests.into_iter().peekable();
        while requests.peek().is_some() {
            let batch: Vec<_> =
                requests.by_ref().take(BATCH_MAX).map(|(m, flags)| (m, flags | NLM_F_ACK)).collect();
            let wanted = verdicts.len() + batch.len();
            let first = self.send(batch)?;
            let mut next = first;
            while verdicts.len() < wanted {
                for (header, payload) in self.receive::<M>()? {
                    if let Ok(NetlinkPayload::Error(error)) = payload
                        && header.sequence_number == next
                    {
                        verdicts.push(acknowledged(&header, &error));
                        next = next.wrapping_add(1);
                    }
                }
            }
        }
        Ok(verdicts)
    }

    /// Sends the requests in one datagram, and returns the sequence number of the first request.
    fn send<M: NetlinkSerializable>(&mut self, requests: impl IntoIterator<Item = (M, u16)>) -> Result<u32> {
        let first = self.sequence.wrapping_add(1);
        let mut datagram = Vec::new();
        for (request, flags) in requests {
            self.sequence = self.sequence.wrapping_add(1);
            let mut header = NetlinkHeader::default();
            header.flags = NLM_F_REQUEST | flags;
            header.sequence_number = self.sequence;
            let mut message = NetlinkMessage::new(header, NetlinkPayload::InnerMessage(request));
            message.finalize();
            let at = datagram.len();
            datagram.resize(at + message.buffer_len().next_multiple_of(4), 0);
            message.serialize(&mut datagram[at..]);
        }
        send(&self.socket, &datagram, SendFlags::empty())
            .map_err(|error| NetlinkError::Socket(error.into()))?;
        Ok(first)
    }

    fn receive<M: NetlinkDeserializable>(&mut self) -> Result<Vec<Answer<M>>> {
        let received = loop {
            match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty()) {
                Ok((received, _)) => break received,
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(NetlinkError::Socket(error.into())),
            }
        };
        decode(&self.buffer[..received])
    }
}

/// One message of a datagram: its header, and its contents or the decoding error.
type Answer<M> = (NetlinkHeader, std::result::Result<NetlinkPayload<M>, DecodeError>);

/// Splits a datagram into its messages.
///
/// Errors: lengths that exceed the datagram.
fn decode<M: NetlinkDeserializable>(datagram: &[u8]) -> Result<Vec<Answer<M>>> {
    let mut rest = datagram;
    let mut messages = Vec::new();
    while !rest.is_empty() {
        let length = rest.first_chunk().map(|b| u32::from_ne_bytes(*b) as usize);
        let Some(length) = length.filter(|n| (HEADER_BYTES..=rest.len()).contains(n)) else {
            return Err(NetlinkError::Malformed("a message's length exceeds its datagram".into()));
        };
        let (message, _) = rest.split_at(length);
        messages.push(match NetlinkMessage::deserialize(message) {
            Ok(message) => {
                let (header, payload) = message.into_parts();
                (header, Ok(payload))
            }
            Err(error) => {
                let mut header = NetlinkHeader::default();
                header.sequence_number =
                    u32::from_ne_bytes([message[8], message[9], message[10], message[11]]);
                (header, Err(error))
            }
        });
        rest = &rest[length.next_multiple_of(4).min(rest.len())..];
    }
    Ok(messages)
}

/// Converts an acknowledgement to a result. Its attributes follow the request's header, or the
/// whole request if the acknowledgement is not capped.
fn acknowledged(header: &NetlinkHeader, message: &ErrorMessage) -> Result<()> {
    let request = &message.header;
    let request_bytes = match request.first_chunk() {
        Some(length) if message.code.is_some() && header.flags & NLM_F_CAPPED == 0 => {
            (u32::from_ne_bytes(*length) as usize).next_multiple_of(4)
        }
        _ => HEADER_BYTES,
    };
    let has_attributes = header.flags & NLM_F_ACK_TLVS != 0;
    let attributes = request.get(request_bytes..).filter(|_| has_attributes).unwrap_or_default();
    verdict(message.raw_code(), attributes)
}

/// Converts a negated error number and its attributes to a result.
fn verdict(code: i32, attributes: &[u8]) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    let text = NlasIterator::new(attributes).map_while(std::result::Result::ok);
    let text = text.into_iter().find(|attribute| attribute.kind() == REASON);
    let reason = text.map(|text| String::from_utf8_lossy(text.value()).trim_end_matches('\0').to_owned());
    Err(NetlinkError::Refused {
        error: io::Error::from_raw_os_error(code.saturating_neg()),
        reason: reason.filter(|reason| !reason.is_empty()),
    })
}

/// Exercise for the fuzz target: decodes a datagram as a socket does, and calls `each` with its
/// messages. Returns true if the messages' lengths are valid.
pub(crate) fn exercise<M: NetlinkDeserializable>(datagram: &[u8], mut each: impl FnMut(M)) -> bool {
    let answers = decode::<M>(datagram);
    let is_well_formed = answers.is_ok();
    for (header, payload) in answers.into_iter().flatten() {
        match payload {
            Ok(NetlinkPayload::Error(error)) => drop(acknowledged(&header, &error)),
            Ok(NetlinkPayload::Done(done)) => drop(verdict(done.code, &done.extended_ack)),
            Ok(NetlinkPayload::InnerMessage(message)) => each(message),
            _ => {}
        }
    }
    is_well_formed
}

#[cfg(test)]
mod tests;
