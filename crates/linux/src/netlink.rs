//! Questions to the kernel over netlink(7), and its answers.
//!
//! Source: RFC 3549, section 2; the kernel's Documentation/userspace-api/netlink/intro.rst. Messages are the netlink-packet
//! crates'; here is the socket under them, made in the network namespace of the calling thread and bound to it for good.
//! Leaves out: multicast groups, and everything that the kernel says unasked. Read [`Netlink`].

use std::io;
use std::os::fd::OwnedFd;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_DUMP, NLM_F_REQUEST, NetlinkDeserializable, NetlinkHeader, NetlinkMessage,
    NetlinkPayload, NetlinkSerializable,
};
use rustix::net::{AddressFamily, Protocol, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send};

use crate::socket_options;

/// Room for one datagram: the kernel's dumps come in at most 32 KiB.
const BUFFER_BYTES: usize = 64 << 10;
/// Most requests in one datagram: their acknowledgements must fit the socket's default buffer of some 200 KiB together.
const BATCH_MAX: usize = 64;

/// A netlink socket.
#[derive(Debug)]
pub struct Netlink {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

impl Netlink {
    /// Opens a socket in the calling thread's network namespace. No protocol is rtnetlink(7), whose number is 0.
    ///
    /// Errors: the system's.
    pub fn open(protocol: Option<Protocol>) -> io::Result<Self> {
        let socket = rustix::net::socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )?;
        Ok(Self { socket, sequence: 0, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Has the kernel read the filters of requests for lists, and list only what they ask for (netlink(7),
    /// `NETLINK_GET_STRICT_CHK`).
    ///
    /// Errors: the system's; kernels before 4.20 do not know it and list everything.
    pub fn filter_dumps(&self) -> io::Result<()> {
        socket_options::filter_dumps(&self.socket)
    }

    /// Asks for a list and hands over each entry that can be read.
    ///
    /// Errors: the kernel's verdict, and the system's.
    pub fn dump<M>(&mut self, request: M, mut each: impl FnMut(M)) -> io::Result<()>
    where
        M: NetlinkSerializable + NetlinkDeserializable,
    {
        let first = self.send([(request, NLM_F_DUMP)])?;
        loop {
            let answers = self.receive()?;
            for (header, payload) in answers {
                match payload {
                    _ if header.sequence_number != first => {}
                    Ok(NetlinkPayload::InnerMessage(message)) => each(message),
                    Ok(NetlinkPayload::Done(_)) => return Ok(()),
                    Ok(NetlinkPayload::Error(error)) => return verdict(error.raw_code()),
                    Ok(NetlinkPayload::Overrun(_)) => {
                        return Err(io::Error::from_raw_os_error(libc::ENOBUFS));
                    }
                    // An entry of a kind that the crates cannot read is no entry of ours.
                    Ok(_) | Err(_) => {}
                }
            }
        }
    }

    /// Asks for one thing.
    ///
    /// Errors: the kernel's verdict, and the system's.
    pub fn ask<M>(&mut self, request: M) -> io::Result<M>
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
                    Ok(NetlinkPayload::Error(error)) => verdict(error.raw_code())?,
                    Ok(_) => {}
                    Err(error) => return Err(io::Error::new(io::ErrorKind::InvalidData, error)),
                }
            }
        }
    }

    /// Has things done, in this order, and returns the kernel's verdict on each. Flags say how, beside `NLM_F_REQUEST`
    /// and `NLM_F_ACK`.
    ///
    /// Errors: the system's, where the kernel cannot be reached.
    pub fn change<M>(&mut self, requests: Vec<(M, u16)>) -> io::Result<Vec<io::Result<()>>>
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
                        verdicts.push(verdict(error.raw_code()));
                        next = next.wrapping_add(1);
                    }
                }
            }
        }
        Ok(verdicts)
    }

    /// Sends requests in one datagram and returns the first one's sequence number.
    fn send<M: NetlinkSerializable>(
        &mut self,
        requests: impl IntoIterator<Item = (M, u16)>,
    ) -> io::Result<u32> {
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
        send(&self.socket, &datagram, SendFlags::empty())?;
        Ok(first)
    }

    /// Receives one datagram: its messages, each with what it holds or why that cannot be read.
    #[expect(clippy::type_complexity, reason = "used here only")]
    fn receive<M: NetlinkDeserializable>(
        &mut self,
    ) -> io::Result<Vec<(NetlinkHeader, Result<NetlinkPayload<M>, netlink_packet_core::DecodeError>)>> {
        let received = loop {
            match recv(&self.socket, self.buffer.as_mut_slice(), RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                other => break other?.0,
            }
        };
        let mut rest = &self.buffer[..received];
        let mut messages = Vec::new();
        while !rest.is_empty() {
            let length = rest.first_chunk().map(|b| u32::from_ne_bytes(*b) as usize);
            let Some(length) = length.filter(|n| (HEADER_BYTES..=rest.len()).contains(n)) else {
                return Err(io::Error::from_raw_os_error(libc::EPROTO));
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
}

/// Of an `nlmsghdr`.
const HEADER_BYTES: usize = 16;

fn verdict(code: i32) -> io::Result<()> {
    if code == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(code.saturating_neg())) }
}
