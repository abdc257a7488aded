//! Properties of a TCP packet that the layer needs: its flow, its data bytes, and whether it is a
//! pure acknowledgement.
//!
//! Headers are parsed by `etherparse`. Leaves out: packets of other protocols, which pass
//! unchanged. Read [`Segment::of`].

use anabranch_sim::scenario::splitmix64;
use etherparse::{NetSlice, SlicedPacket, TransportSlice};
use std::net::IpAddr;

/// A packet of TCP over IPv4 or IPv6.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Segment {
    /// Hash that is equal for both directions of a connection. Connections with equal hashes are
    /// coded and ordered together, which costs some delay but is correct.
    pub flow: u32,
    /// Bytes of data.
    pub payload_bytes: u32,
    /// True for a pure acknowledgement.
    pub is_acknowledgement: bool,
    /// True if the stream ends with this packet.
    pub is_end: bool,
    /// Source address.
    pub source: IpAddr,
    /// Destination address.
    pub destination: IpAddr,
    /// True if the IP header has options (IPv4) or extension headers (IPv6). An agent refuses such
    /// packets.
    pub has_options: bool,
    /// ECN field of the IP header (RFC 3168): the lowest two bits of the traffic class.
    pub ecn: u8,
}

/// ECN codepoint for congestion experienced.
pub(crate) const CE: u8 = 0b11;

/// Sets the congestion mark of a packet, as a tunnel's end does for a marked outer packet (RFC
/// 6040, section 4.2). Returns false if the transport is not ECN-capable: the packet must then be
/// dropped.
pub fn mark(packet: &mut [u8]) -> bool {
    let [first, second, ..] = packet else { return false };
    if *first >> 4 == 6 {
        // The traffic class spans two bytes; its ECN bits are in the upper half of the second byte.
        let ecn = *second >> 4 & CE;
        *second |= if ecn == 0 { 0 } else { CE << 4 };
        return ecn != 0;
    }
    let ecn = *second & CE;
    if ecn == 0 || packet.len() < 20 {
        return false;
    }
    // Updates the header checksum by RFC 1624, equation 3, for the word that begins with the first
    // byte.
    let before = u16::from_be_bytes([packet[0], packet[1]]);
    packet[1] |= CE;
    let after = u16::from_be_bytes([packet[0], packet[1]]);
    let sum = u16::from_be_bytes([packet[10], packet[11]]);
    let new = u32::from(!sum) + u32::from(!before) + u32::from(after);
    let new = (new & 0xffff) + (new >> 16);
    let new = !(((new & 0xffff) + (new >> 16)) as u16);
    packet[10..12].copy_from_slice(&new.to_be_bytes());
    true
}

impl Segment {
    /// Parses a packet from its IP header on. Returns `None` if it is not TCP, is a fragment, or is
    /// truncated.
    pub fn of(packet: &[u8]) -> Option<Self> {
        let sliced = SlicedPacket::from_ip(packet).ok()?;
        let Some(TransportSlice::Tcp(tcp)) = sliced.transport else { return None };
        let (source, destination, ecn, has_options): (IpAddr, IpAddr, u8, bool) = match sliced.net? {
            NetSlice::Ipv4(ip) => {
                let header = ip.header();
                let has_options = !header.options().is_empty() || !ip.extensions().is_empty();
                let (from, to) = (header.source_addr().into(), header.destination_addr().into());
                (from, to, header.ecn().value(), has_options)
            }
            NetSlice::Ipv6(ip) => {
                let header = ip.header();
                let (from, to) = (header.source_addr().into(), header.destination_addr().into());
                (from, to, header.traffic_class() & CE, !ip.extensions().is_empty())
            }
            NetSlice::Arp(_) => return None,
        };
        let wide = |address: IpAddr| match address {
            IpAddr::V4(address) => u128::from(address.to_bits()),
            IpAddr::V6(address) => address.to_bits(),
        };
        let mut ends = [wide(source), wide(destination)]
            .into_iter()
            .zip([tcp.source_port(), tcp.destination_port()])
            .collect::<Vec<(u128, u16)>>();
        ends.sort_unstable();
        let payload_bytes = tcp.payload().len() as u32;
        let is_end = tcp.fin();
        Some(Self {
            flow: hash(&ends),
            payload_bytes,
            is_acknowledgement: payload_bytes == 0 && !tcp.syn() && !is_end && !tcp.rst(),
            is_end,
            source,
            destination,
            has_options,
            ecn,
        })
    }
}

/// Hashes the addresses and ports with splitmix64.
fn hash(ends: &[(u128, u16)]) -> u32 {
    let words = ends.iter().flat_map(|(at, port)| [(at >> 64) as u64, *at as u64, u64::from(*port)]);
    (words.fold(0, |state, word| splitmix64(state ^ word)) >> 32) as u32
}

#[cfg(test)]
mod tests {
    use super::*;
    use etherparse::PacketBuilder;
    use proptest::prelude::*;

    fn v4(ports: (u16, u16), reverse: bool, payload: &[u8], fin: bool) -> Vec<u8> {
        let (a, b) = ([10, 0, 0, 1], [10, 0, 0, 2]);
        let builder = if reverse {
            PacketBuilder::ipv4(b, a, 64).tcp(ports.1, ports.0, 5, 1_000)
        } else {
            PacketBuilder::ipv4(a, b, 64).tcp(ports.0, ports.1, 5, 1_000)
        };
        let builder = builder.ack(7);
        let builder = if fin { builder.fin() } else { builder };
        let mut packet = Vec::new();
        builder.write(&mut packet, payload).expect("a vector takes it");
        packet
    }

    #[test]
    fn both_directions_share_a_flow_number() {
        let seen = |packet: &[u8]| Segment::of(packet).expect("it is TCP");
        let data = seen(&v4((80, 4_000), false, b"hello", false));
        let back = seen(&v4((80, 4_000), true, b"", false));
        assert_eq!(data.flow, back.flow);
        assert_eq!((data.payload_bytes, data.is_acknowledgement), (5, false));
        assert_eq!((back.payload_bytes, back.is_acknowledgement), (0, true));
        assert_ne!(seen(&v4((80, 4_001), false, b"", false)).flow, data.flow);
        let end = seen(&v4((80, 4_000), false, b"", true));
        assert!(end.is_end && !end.is_acknowledgement);
        let mut packet = Vec::new();
        PacketBuilder::ipv6([1; 16], [2; 16], 64)
            .tcp(80, 4_000, 5, 1_000)
            .syn()
            .write(&mut packet, &[])
            .expect("room");
        assert!(!seen(&packet).is_acknowledgement);
    }

    #[test]
    fn marking_sets_ce_and_keeps_the_checksum_valid() {
        for (ecn, is_taken) in [(0, false), (1, true), (2, true), (3, true)] {
            let mut packet = v4((80, 4_000), false, b"hello", false);
            let mut header = etherparse::Ipv4Header::from_slice(&packet).expect("it is one").0;
            header.ecn = etherparse::IpEcn::try_new(ecn).expect("two bits");
            header.header_checksum = header.calc_header_checksum();
            packet[..20].copy_from_slice(&header.to_bytes());
            assert_eq!(Segment::of(&packet).map(|segment| segment.ecn), Some(ecn));
            assert_eq!(mark(&mut packet), is_taken);
            let marked = etherparse::Ipv4Header::from_slice(&packet).expect("it is one").0;
            assert_eq!(marked.ecn.value(), if is_taken { 3 } else { 0 });
            assert_eq!(marked.header_checksum, marked.calc_header_checksum());
            let mut six = Vec::new();
            let ip = etherparse::Ipv6Header { traffic_class: 0x54 | ecn, ..Default::default() };
            PacketBuilder::ip(etherparse::IpHeaders::Ipv6(ip, Default::default()))
                .tcp(80, 4_000, 5, 1_000)
                .write(&mut six, b"x")
                .expect("room");
            assert_eq!(Segment::of(&six).map(|segment| segment.ecn), Some(ecn));
            if mark(&mut six) {
                assert_eq!(Segment::of(&six).map(|segment| segment.ecn), Some(3));
            } else {
                assert_eq!(ecn, 0);
            }
        }
        assert!(!mark(&mut []) && !mark(&mut [0x45, 2, 3]));
    }

    /// #48: packets with a source route were passed to the kernel.
    #[test]
    fn options_and_extension_headers_are_detected() {
        let plain = v4((80, 4_000), false, b"hello", false);
        assert_eq!(Segment::of(&plain).map(|segment| segment.has_options), Some(false));
        // A loose source route over one host, and the end of the options.
        let route = [131, 7, 4, 10, 0, 0, 9, 0];
        let mut header = etherparse::Ipv4Header::from_slice(&plain).expect("it is one").0;
        header.options = route.into();
        header.total_len += 8;
        header.header_checksum = header.calc_header_checksum();
        let routed = [&header.to_bytes()[..], &plain[20..]].concat();
        assert_eq!(Segment::of(&routed).map(|segment| segment.has_options), Some(true));
        let mut six = Vec::new();
        let ip = etherparse::IpHeaders::Ipv6(etherparse::Ipv6Header::default(), Default::default());
        PacketBuilder::ip(ip).tcp(80, 4_000, 5, 1_000).write(&mut six, b"x").expect("room");
        assert_eq!(Segment::of(&six).map(|segment| segment.has_options), Some(false));
        // Eight bytes of destination options before TCP, all padding.
        let tcp = std::mem::replace(&mut six[6], 60);
        six[5] += 8;
        six.splice(40..40, [tcp, 0, 1, 4, 0, 0, 0, 0]);
        assert_eq!(Segment::of(&six).map(|segment| segment.has_options), Some(true));
    }

    #[test]
    fn packets_other_than_tcp_are_not_parsed() {
        let mut packet = Vec::new();
        PacketBuilder::ipv4([1; 4], [2; 4], 64).udp(1, 2).write(&mut packet, b"x").expect("room");
        assert_eq!(Segment::of(&packet), None);
        let whole = v4((1, 2), false, b"hello", false);
        assert_eq!(Segment::of(&whole[..whole.len() - 1]), None, "it is not whole");
        assert_eq!(Segment::of(&[]), None);
    }

    proptest! {
        #[test]
        fn parser_never_panics_on_random_bytes(bytes in prop::collection::vec(any::<u8>(), 0..100)) {
            let _ = Segment::of(&bytes);
        }
    }
}
