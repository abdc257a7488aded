//! The TCP flows of this host, with the kernel's statistics of each flow.
//!
//! The statistics are requested over netlink (sock_diag(7), `INET_DIAG`), in the network namespace
//! in which the [`FlowReader`] was created. The listing is not atomic: a flow that opens or closes
//! meanwhile may be missing. A flow's sent bytes come from `struct tcp_info` (tcp(7), `TCP_INFO`;
//! fields in the kernel's include/uapi/linux/tcp.h), which has grown over time. Fields that the
//! running kernel lacks are `None`.
//!
//! Leaves out: sockets in TIME-WAIT, protocols other than TCP. Read [`FlowReader::list`] and
//! [`FlowState`].

use std::collections::BTreeSet;
use std::io;
use std::net::{IpAddr, SocketAddr, SocketAddrV6};

use anabranch_units::{BitRate, ByteCount, Duration, FlowKey};
use netlink_packet_sock_diag::SockDiagMessage;
use netlink_packet_sock_diag::inet::nlas::Nla;
use netlink_packet_sock_diag::inet::{ExtensionFlags, InetRequest, InetResponse, SocketId, StateFlags};

use crate::Connection;
use crate::netlink::Netlink;

/// The kernel's statistics of one flow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlowState {
    /// Addresses and ports of the flow.
    pub flow: FlowKey,
    /// True if the program may still send (states ESTABLISHED and CLOSE-WAIT of RFC 9293, section
    /// 3.3.2); false if the connection is closing.
    pub may_send: bool,
    /// The user who created the socket.
    pub uid: u32,
    /// Congestion control by the kernel's name.
    pub congestion_control: Option<String>,
    /// Smoothed round-trip time; `None` before the first sample.
    pub rtt: Option<Duration>,
    /// Bytes sent, retransmissions included (since kernel 4.19).
    pub bytes_sent: Option<ByteCount>,
    /// Bytes of retransmissions, included in `bytes_sent` (since kernel 4.19).
    pub bytes_retransmitted: Option<ByteCount>,
    /// Bytes that the other end has acknowledged. SYN and FIN may count one byte each.
    pub bytes_acked: Option<ByteCount>,
    /// Bytes that the program has written and the kernel has not sent yet.
    pub bytes_not_sent: Option<ByteCount>,
    /// Rate at which the kernel currently paces packets; `None` if it does not pace.
    pub pacing_rate: Option<BitRate>,
    /// Maximum pacing rate (`SO_MAX_PACING_RATE`); `None` without a limit.
    pub pacing_limit: Option<BitRate>,
    /// Inode of the socket, as shown in `/proc/PID/fd`.
    pub inode: u32,
    cookie: u64,
}

impl FlowState {
    /// Cookie of the socket (`SO_COOKIE`), unique since boot.
    pub const fn cookie(&self) -> u64 {
        self.cookie
    }

    /// This connection, as distinguished from other connections with the same addresses.
    pub const fn connection(&self) -> Connection {
        Connection { flow: self.flow, cookie: Some(self.cookie) }
    }
}

/// A listing of flows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing {
    /// The flows, sorted by addresses and ports.
    pub flows: Vec<FlowState>,
    /// Number of flows beyond the requested maximum.
    pub left_out: usize,
}

/// Reads the statistics of this host's flows.
#[derive(Debug)]
pub struct FlowReader {
    netlink: Netlink,
}

impl FlowReader {
    /// Creates a reader for the network namespace of this thread.
    ///
    /// Errors: the system's, if the kernel lacks sock_diag or refuses the request.
    pub fn new() -> io::Result<Self> {
        Ok(Self { netlink: Netlink::open(Some(rustix::net::netlink::SOCK_DIAG))? })
    }

    /// Lists TCP flows, at most `max`.
    ///
    /// Errors: the system's.
    /// Cost: one pass over the kernel's table of connections for each of IPv4 and IPv6.
    pub fn list(&mut self, max: usize) -> io::Result<Listing> {
        self.list_with(max, |_| false)
    }

    /// Lists all TCP flows for which `always` returns true, and at most `max` other flows.
    ///
    /// Errors and cost: see [`FlowReader::list`].
    pub fn list_with(&mut self, max: usize, always: impl Fn(FlowKey) -> bool) -> io::Result<Listing> {
        let mut room = max;
        let mut listing = Listing::default();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let request = request(family as u8, connected(), SocketId::new_v4());
            self.netlink.dump(request, |answer| {
                let Some(state) = state(answer) else { return };
                if always(state.flow) {
                    listing.flows.push(state);
                } else if room > 0 {
                    room -= 1;
                    listing.flows.push(state);
                } else {
                    listing.left_out += 1;
                }
            })?;
        }
        listing.flows.sort_by_key(|state| state.flow);
        Ok(listing)
    }

    /// Addresses and ports on which programs of this host listen for TCP connections.
    ///
    /// Errors: the system's.
    /// Cost: one pass over the kernel's table of listening sockets for each of IPv4 and IPv6.
    pub fn listeners(&mut self) -> io::Result<BTreeSet<SocketAddr>> {
        let mut listeners = BTreeSet::new();
        for family in [libc::AF_INET, libc::AF_INET6] {
            let request = request(family as u8, StateFlags::LISTEN, SocketId::new_v4());
            self.netlink.dump(request, |answer| {
                if let SockDiagMessage::InetResponse(response) = answer {
                    let id = &response.header.socket_id;
                    listeners.insert(SocketAddr::new(id.source_address, id.source_port));
                }
            })?;
        }
        Ok(listeners)
    }

    /// Returns one flow; `None` if it does not exist.
    ///
    /// Errors: the system's.
    /// Cost: one lookup in the kernel's hash table.
    pub fn find(&mut self, flow: FlowKey) -> io::Result<Option<FlowState>> {
        let flow = flow.canonical();
        let FlowKey { local, remote } = flow;
        let (family, mut id) = match local {
            SocketAddr::V4(_) => (libc::AF_INET, SocketId::new_v4()),
            SocketAddr::V6(v6) => {
                let mut id = SocketId::new_v6();
                id.interface_id = v6.scope_id();
                (libc::AF_INET6, id)
            }
        };
        (id.source_address, id.source_port) = (local.ip(), local.port());
        (id.destination_address, id.destination_port) = (remote.ip(), remote.port());
        // All ones match any cookie (INET_DIAG_NOCOOKIE).
        id.cookie = [0xff; 8];
        match self.netlink.ask(request(family as u8, connected(), id)) {
            // Without a connection, the kernel returns a socket that listens on the local address.
            Ok(answer) => Ok(state(answer).filter(|state| state.flow == flow)),
            Err(error) if error.raw_os_error() == Some(libc::ENOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }
}

/// Exercise for the fuzz target: reads a response.
pub(crate) fn exercise(answer: SockDiagMessage) {
    let _ = state(answer);
}

/// States in which a connection may send, or has sent.
fn connected() -> StateFlags {
    StateFlags::ESTABLISHED
        | StateFlags::FIN_WAIT1
        | StateFlags::FIN_WAIT2
        | StateFlags::CLOSE_WAIT
        | StateFlags::LAST_ACK
        | StateFlags::CLOSING
}

fn request(family: u8, states: StateFlags, socket_id: SocketId) -> SockDiagMessage {
    SockDiagMessage::InetRequest(InetRequest {
        family,
        protocol: libc::IPPROTO_TCP as u8,
        extensions: ExtensionFlags::INFO | ExtensionFlags::CONG,
        states,
        socket_id,
    })
}

fn state(answer: SockDiagMessage) -> Option<FlowState> {
    let SockDiagMessage::InetResponse(response) = answer else { return None };
    let InetResponse { header, nlas } = *response;
    let bit = 1u32.checked_shl(header.state.into()).unwrap_or(0);
    if !connected().contains(StateFlags::from_bits_retain(bit)) {
        return None;
    }
    let id = &header.socket_id;
    let address = |ip, port| match ip {
        IpAddr::V4(_) => SocketAddr::new(ip, port),
        IpAddr::V6(ip) => SocketAddrV6::new(ip, port, 0, id.interface_id).into(),
    };
    let flow = FlowKey::new(
        address(id.source_address, id.source_port),
        address(id.destination_address, id.destination_port),
    );
    let info =
        nlas.iter().find_map(|nla| if let Nla::TcpInfo(bytes) = nla { Some(&bytes[..]) } else { None });
    let info = TcpInfo(info.unwrap_or_default());
    let congestion_control = nlas.iter().find_map(|nla| match nla {
        Nla::Congestion(name) => Some(name.clone()),
        _ => None,
    });
    Some(FlowState {
        flow,
        may_send: (StateFlags::ESTABLISHED | StateFlags::CLOSE_WAIT).bits() & bit != 0,
        uid: header.uid,
        congestion_control,
        rtt: info.u32(RTT_US).filter(|us| *us > 0).map(|us| Duration::from_us(us.into())),
        bytes_sent: info.u64(BYTES_SENT).map(ByteCount::new),
        bytes_retransmitted: info.u64(BYTES_RETRANS).map(ByteCount::new),
        bytes_acked: info.u64(BYTES_ACKED).map(ByteCount::new),
        bytes_not_sent: info.u32(NOTSENT_BYTES).map(|n| ByteCount::new(n.into())),
        pacing_rate: info.rate(PACING_RATE),
        pacing_limit: info.rate(MAX_PACING_RATE),
        inode: header.inode,
        cookie: u64::from_ne_bytes(id.cookie),
    })
}

// Offsets of fields in `struct tcp_info`; times are in microseconds, rates in bytes per second.
const RTT_US: usize = 68;
const PACING_RATE: usize = 104;
const MAX_PACING_RATE: usize = 112;
const BYTES_ACKED: usize = 120;
const NOTSENT_BYTES: usize = 144;
const BYTES_SENT: usize = 200;
const BYTES_RETRANS: usize = 208;

/// The bytes of `struct tcp_info` that this kernel has returned.
struct TcpInfo<'a>(&'a [u8]);

impl TcpInfo<'_> {
    fn u32(&self, at: usize) -> Option<u32> {
        self.0.get(at..)?.first_chunk().map(|bytes| u32::from_ne_bytes(*bytes))
    }
    fn u64(&self, at: usize) -> Option<u64> {
        self.0.get(at..)?.first_chunk().map(|bytes| u64::from_ne_bytes(*bytes))
    }
    /// Reads a rate; all ones mean no limit.
    fn rate(&self, at: usize) -> Option<BitRate> {
        self.u64(at).filter(|bytes| *bytes != u64::MAX).map(|bytes| BitRate::bps(bytes.saturating_mul(8)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use netlink_packet_core::ParseableParametrized;
    use proptest::prelude::*;

    #[test]
    fn tcp_info_fields_missing_in_older_kernels_are_none() {
        let mut bytes = vec![0; BYTES_SENT];
        bytes[BYTES_ACKED] = 7;
        bytes[MAX_PACING_RATE..][..8].fill(0xff);
        let info = TcpInfo(&bytes);
        assert_eq!((info.u64(BYTES_ACKED), info.u64(BYTES_SENT)), (Some(7), None));
        assert_eq!((info.rate(MAX_PACING_RATE), info.rate(PACING_RATE)), (None, Some(BitRate::bps(0))));
    }

    proptest! {
        #[test]
        fn sock_diag_responses_of_random_bytes_never_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), v6: bool) {
            let mut bytes = bytes;
            if let Some(first) = bytes.first_mut() {
                *first = if v6 { libc::AF_INET6 } else { libc::AF_INET } as u8;
            }
            if let Ok(answer) = SockDiagMessage::parse_with_param(&bytes, 20) {
                let _ = state(answer);
            }
        }
    }
}
