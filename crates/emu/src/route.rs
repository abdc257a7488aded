//! Addresses of sites and links, and the first hop of each packet.
//!
//! Hosts are routed hop by hop over the path of least delay. The address of a link belongs to its
//! far end; the near end reaches the address over exactly that link. Read [`Routes`] first.

use std::net::Ipv4Addr;

use anabranch_fabric::{Flag, PacketMeta, Target};
use anabranch_graph::Topology;
use anabranch_units::{LinkId, SiteId};

/// Prefix length of the network that contains all addresses.
pub(crate) const PREFIX: u8 = 16;
/// Offset of the first link address in the network.
const LINK_OFFSET: u32 = 0x8000;
/// Maximum number of sites of an emulation: each takes three file descriptors, and a process may
/// usually open 1,024.
pub const SITES_MAX: usize = 300;
/// Maximum number of directed links of an emulation: their addresses are the upper half of the
/// network, without its last address.
pub const LINKS_MAX: usize = 0x7ffe;

/// Addresses of sites and links, and next hops by site.
#[derive(Clone, Debug)]
pub(crate) struct Routes {
    base: u32,
    sites: usize,
    links: Vec<LinkEnds>,
}

#[derive(Copy, Clone, Debug)]
struct LinkEnds {
    from: SiteId,
    to: SiteId,
    opposite: Option<LinkId>,
}

/// The link on which each site sends towards `to`: the first link of the path of least delay. Ties
/// are broken by the fewest hops, then by the lowest link id. `None` for `to` itself and for sites
/// that cannot reach it.
pub(crate) fn next_hops(topology: &Topology, to: SiteId) -> Vec<Option<LinkId>> {
    let sites = topology.sites().len();
    let mut best: Vec<Option<(u64, u32)>> = vec![None; sites];
    let mut next = vec![None; sites];
    let mut done = vec![false; sites];
    best[to.index()] = Some((0, 0));
    // With few sites, a linear scan for the nearest is simpler than a heap, and as fast.
    while let Some((v, cost)) = (0..sites)
        .filter(|&v| !done[v])
        .filter_map(|v| best[v].map(|cost| (v, cost)))
        .min_by_key(|&(v, cost)| (cost, v))
    {
        done[v] = true;
        for l in topology.links_in(SiteId(v as u16)) {
            let link = topology.link(l);
            let candidate = (cost.0.saturating_add(link.properties.delay.as_ps()), cost.1 + 1);
            let known = &mut best[link.from.index()];
            if !done[link.from.index()] && known.is_none_or(|known| candidate < known) {
                *known = Some(candidate);
                next[link.from.index()] = Some(l);
            }
        }
    }
    next
}

impl Routes {
    pub(crate) fn new(topology: &Topology, base: Ipv4Addr) -> Self {
        let ends = |(link, opposite): (&anabranch_graph::Link, _)| LinkEnds {
            from: link.from,
            to: link.to,
            opposite,
        };
        Self {
            base: u32::from(base),
            sites: topology.sites().len(),
            links: topology.links().iter().zip(topology.opposites()).map(ends).collect(),
        }
    }

    pub(crate) fn site_address(&self, site: SiteId) -> Ipv4Addr {
        Ipv4Addr::from(self.base + 1 + u32::from(site.0))
    }

    pub(crate) fn link_address(&self, link: LinkId) -> Ipv4Addr {
        Ipv4Addr::from(self.base + LINK_OFFSET + link.0)
    }

    pub(crate) fn link_ids(&self) -> impl Iterator<Item = LinkId> + use<> {
        (0..self.links.len() as u32).map(LinkId)
    }

    pub(crate) fn links_into(&self, site: SiteId) -> impl Iterator<Item = LinkId> + '_ {
        self.link_ids().filter(move |l| self.links[l.index()].to == site)
    }

    fn link_of(&self, address: u32) -> Option<LinkId> {
        let offset = address.checked_sub(self.base)?.checked_sub(LINK_OFFSET)?;
        (offset < self.links.len() as u32).then_some(LinkId(offset))
    }

    fn site_of(&self, address: u32) -> Option<SiteId> {
        let offset = address.checked_sub(self.base)?.checked_sub(1)?;
        (offset < self.sites as u32).then_some(SiteId(offset as u16))
    }

    /// Returns the element at which a packet from `site` enters the fabric, and the packet's
    /// metadata. A packet to a foreign address enters at the site's switch with an unknown
    /// destination; the switch drops and counts it.
    pub(crate) fn ingress(&self, site: SiteId, packet: &[u8]) -> (Target, PacketMeta) {
        let size = packet.len() as u32;
        let switch = switch(site, self.links.len());
        let unknown = (switch, PacketMeta::new(site.0, u16::MAX, size));
        let Some(header) = Ipv4Header::parse(packet) else { return unknown };
        let (first, to) = if let Some(link) = self.link_of(header.dst) {
            let ends = self.links[link.index()];
            (if ends.from == site { port(link) } else { switch }, ends.to)
        } else if let Some(to) = self.site_of(header.dst) {
            // A response from the address of a link returns over the same cable.
            let back = self
                .link_of(header.src)
                .map(|l| self.links[l.index()])
                .filter(|ends| ends.to == site && ends.from == to)
                .and_then(|ends| ends.opposite);
            (back.map_or(switch, port), to)
        } else {
            return unknown;
        };
        let mut meta =
            PacketMeta::new(site.0, to.0, size).with_priority(priority(header.dscp)).with_flow(header.ports);
        meta.set(Flag::Ect, header.ecn != 0);
        meta.set(Flag::Ce, header.ecn == CE);
        (first, meta)
    }
}

/// Target of the port of `link` in the fabric: ports come first, by link, then switches, by site.
pub(crate) fn port(link: LinkId) -> Target {
    Target::element(link.0)
}

/// Target of the switch of `site` in the fabric of a topology with `links` links.
pub(crate) fn switch(site: SiteId, links: usize) -> Target {
    Target::element(links as u32 + u32::from(site.0))
}

/// Strict priority by DSCP (RFC 2474): 40 and above (CS5, EF, CS6, CS7) are first; 1 (LE, RFC 8622)
/// and 8 (CS1) are last.
pub(crate) fn priority(dscp: u8) -> u8 {
    match dscp {
        40.. => 0,
        1 | 8 => 2,
        _ => 1,
    }
}

/// ECN field for "congestion experienced" (RFC 3168, section 5). A packet with the field 0 must not
/// be marked.
const CE: u8 = 3;

/// Sets "congestion experienced" in an IPv4 header, and updates the header's checksum.
pub(crate) fn mark_ce(packet: &mut [u8]) {
    let Some(header) = packet.first_chunk_mut::<20>() else { return };
    let after = [header[0], header[1] | CE];
    amend(header, 0, after, 10);
}

/// Form in which hosts see that a packet travelled against a circuit.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum CircuitMark {
    /// ECE in the TCP header (RFC 9293, section 3.1): for connections without ECN.
    Ece,
    /// A code point of differentiated services, below 64.
    Dscp(u8),
}

/// ECE among the flags of TCP; then the offsets of flags and checksum in the TCP header.
const ECE: u8 = 0x40;
const TCP_FLAGS: usize = 12;
const TCP_CHECKSUM: usize = 16;
const TCP_HEADER_BYTES: usize = 20;
/// Protocol number of TCP in the IPv4 header.
const TCP: u8 = 6;

/// Marks a packet that travelled against a circuit, and updates the checksum of the marked header.
/// With ECE, only TCP packets are marked.
pub(crate) fn mark_circuit(packet: &mut [u8], mark: CircuitMark) {
    let Some(header) = packet.first_chunk_mut::<20>().filter(|header| header[0] >> 4 == 4) else { return };
    match mark {
        CircuitMark::Dscp(dscp) => {
            let after = [header[0], dscp << 2 | header[1] & CE];
            amend(header, 0, after, 10);
        }
        CircuitMark::Ece => {
            let is_first = u16::from_be_bytes([header[6], header[7]]) & 0x1fff == 0;
            let start = usize::from(header[0] & 15) * 4;
            let is_tcp = header[9] == TCP && is_first;
            let Some(tcp) = packet.get_mut(start..).filter(|tcp| is_tcp && tcp.len() >= TCP_HEADER_BYTES)
            else {
                return;
            };
            let after = [tcp[TCP_FLAGS], tcp[TCP_FLAGS + 1] | ECE];
            amend(tcp, TCP_FLAGS, after, TCP_CHECKSUM);
        }
    }
}

/// Changes a word of a header and updates the header's checksum (RFC 1624, equation 3). Both
/// offsets must be even.
fn amend(header: &mut [u8], at: usize, after: [u8; 2], checksum_at: usize) {
    let word = |header: &[u8], at: usize| u16::from_be_bytes([header[at], header[at + 1]]);
    let (before, checksum) = (word(header, at), word(header, checksum_at));
    header[at..at + 2].copy_from_slice(&after);
    let mut sum = u32::from(!checksum) + u32::from(!before) + u32::from(u16::from_be_bytes(after));
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    header[checksum_at..checksum_at + 2].copy_from_slice(&(!(sum as u16)).to_be_bytes());
}

struct Ipv4Header {
    dscp: u8,
    ecn: u8,
    src: u32,
    dst: u32,
    /// Source and destination port of TCP and UDP, which identify a flow together with the
    /// addresses. 0 for other protocols and for all fragments, because only the first fragment has
    /// ports.
    ports: u32,
}

impl Ipv4Header {
    /// Parses the needed header fields (RFC 791, section 3.1). `None` if the packet is not IPv4 or
    /// is truncated.
    fn parse(packet: &[u8]) -> Option<Self> {
        let header: &[u8; 20] = packet.first_chunk()?;
        let word = |i: usize| u32::from_be_bytes([header[i], header[i + 1], header[i + 2], header[i + 3]]);
        let is_whole = word(4) & 0x3fff == 0;
        let has_ports = is_whole && [6, 17].contains(&header[9]);
        let ports = packet.get(usize::from(header[0] & 15) * 4..).and_then(|rest| rest.first_chunk());
        let ports = ports.filter(|_| has_ports).map_or(0, |ports| u32::from_be_bytes(*ports));
        let (dscp, ecn) = (header[1] >> 2, header[1] & CE);
        (header[0] >> 4 == 4).then(|| Self { dscp, ecn, src: word(12), dst: word(16), ports })
    }
}

/// Exercise for the fuzz target and its corpus's test: handles a packet that a program writes to
/// its site's device. The first byte selects the site, the rest is the packet. Returns true if the
/// packet's destination is an address of the network.
///
/// Panics: if a packet enters the fabric at a missing element, or a mark makes a header's checksum
/// wrong.
/// checksum.
#[doc(hidden)]
pub fn exercise(bytes: &[u8]) -> bool {
    let [site, packet @ ..] = bytes else { return false };
    let topology =
        anabranch_graph::builtin::builtin("butterfly", anabranch_units::BitRate::mbps(10)).expect("built in");
    let routes = Routes::new(&topology, Ipv4Addr::new(10, 77, 0, 0));
    let site = SiteId(u16::from(*site) % topology.sites().len() as u16);
    let (first, meta) = routes.ingress(site, packet);
    assert_eq!(u64::from(meta.size_bytes), packet.len() as u64);
    let is_own_link = |link| first == port(link) && topology.link(link).from == site;
    assert!(first == switch(site, topology.links().len()) || topology.link_ids().any(is_own_link));
    let is_known = meta.dst != u16::MAX;
    assert!(!is_known || usize::from(meta.dst) < topology.sites().len());
    let sum = |packet: &[u8]| {
        let words =
            packet[..20].chunks_exact(2).map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])));
        let sum = words.sum::<u32>();
        (sum & 0xffff) + (sum >> 16)
    };
    if packet.len() >= 20 && sum(packet) == 0xffff {
        let mut marked = packet.to_vec();
        mark_ce(&mut marked);
        assert_eq!(sum(&marked), 0xffff);
        mark_circuit(&mut marked, CircuitMark::Dscp(1));
        assert_eq!(sum(&marked), 0xffff);
    }
    let mut marked = packet.to_vec();
    mark_circuit(&mut marked, CircuitMark::Ece);
    assert_eq!(marked.len(), packet.len());
    is_known
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_graph::LinkProperties;
    use anabranch_units::{BitRate, Duration};
    use proptest::prelude::*;

    /// A triangle where a to c is slow directly (10 ms) and fast through b (2 ms), with a second
    /// cable a to b.
    fn triangle() -> (Topology, Routes) {
        let mut t = Topology::new("triangle");
        for name in ["a", "b", "c"] {
            t.add_site(name, None).expect("names differ");
        }
        for (u, v, ms) in [(0, 1, 1), (1, 2, 1), (0, 2, 10), (0, 1, 5)] {
            let properties = LinkProperties::new(BitRate::mbps(10), Duration::from_ms(ms));
            t.add_cable(SiteId(u), SiteId(v), properties).expect("a good cable");
        }
        let routes = Routes::new(&t, Ipv4Addr::new(10, 77, 0, 0));
        (t, routes)
    }

    fn packet(src: Ipv4Addr, dst: Ipv4Addr, dscp: u8) -> Vec<u8> {
        let mut bytes = vec![0; 28];
        bytes[0] = 0x45;
        bytes[1] = dscp << 2;
        bytes[12..16].copy_from_slice(&src.octets());
        bytes[16..20].copy_from_slice(&dst.octets());
        bytes
    }

    #[test]
    fn hosts_are_reached_over_the_least_delay() {
        let (t, _) = triangle();
        assert_eq!(next_hops(&t, SiteId(2)), [Some(LinkId(0)), Some(LinkId(2)), None]);
        assert_eq!(next_hops(&t, SiteId(0)), [None, Some(LinkId(1)), Some(LinkId(3))]);
    }

    #[test]
    fn unreachable_site_has_no_next_hop() {
        let mut t = Topology::new("apart");
        let (a, b) = (t.add_site("a", None).expect("new"), t.add_site("b", None).expect("new"));
        assert_eq!(next_hops(&t, a), [None, None]);
        t.add_link(a, b, LinkProperties::new(BitRate::mbps(1), Duration::ZERO)).expect("good");
        assert_eq!(next_hops(&t, a), [None, None]);
        assert_eq!(next_hops(&t, b), [Some(LinkId(0)), None]);
    }

    #[test]
    fn link_address_pins_the_link_in_both_directions() {
        let (_, routes) = triangle();
        let (a, b, c) = (SiteId(0), SiteId(1), SiteId(2));
        let host = |s| routes.site_address(s);
        // Link 6 is the second cable from a to b; link 7 is its opposite direction.
        let pinned = routes.link_address(LinkId(6));
        let (to, meta) = routes.ingress(a, &packet(host(a), pinned, 0));
        assert_eq!((to, meta.dst), (port(LinkId(6)), b.0));
        assert_eq!(routes.ingress(b, &packet(pinned, host(a), 0)).0, port(LinkId(7)));
        // Other sites route the address like any address of b.
        assert_eq!(routes.ingress(c, &packet(host(c), pinned, 0)).0, switch(c, 8));
        assert_eq!(routes.ingress(b, &packet(pinned, host(c), 0)).0, switch(b, 8));
    }

    #[test]
    fn priorities_follow_the_dscp() {
        for (dscp, expected) in [(46, 0), (48, 0), (56, 0), (40, 0), (39, 1), (0, 1), (10, 1), (1, 2), (8, 2)]
        {
            assert_eq!(priority(dscp), expected, "dscp {dscp}");
        }
    }

    /// The one's complement sum of a whole header is all ones (RFC 791, section 3.1).
    fn has_good_checksum(packet: &[u8]) -> bool {
        let words = packet[..20].chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
        let sum: u32 = words.sum();
        (sum & 0xffff) + (sum >> 16) == 0xffff
    }

    proptest! {
        #[test]
        fn ecn_mark_keeps_the_checksum_valid(mut bytes in prop::array::uniform20(any::<u8>())) {
            bytes[10..12].fill(0);
            let sum: u32 = bytes.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
            let sum = (sum & 0xffff) + (sum >> 16);
            bytes[10..12].copy_from_slice(&(!((sum & 0xffff) as u16 + (sum >> 16) as u16)).to_be_bytes());
            prop_assume!(has_good_checksum(&bytes));
            let before = bytes;
            mark_ce(&mut bytes);
            prop_assert!(has_good_checksum(&bytes));
            prop_assert_eq!(bytes[1], before[1] | CE);
            prop_assert_eq!((&bytes[2..10], &bytes[12..]), (&before[2..10], &before[12..]));
        }
    }

    proptest! {
        #[test]
        fn circuit_mark_keeps_checksums_valid(
            dscp in 1u8..64,
            options in 0usize..=10,
            mut tcp in prop::array::uniform20(any::<u8>()),
            protocol in prop::sample::select(vec![6u8, 17]),
        ) {
            let mut bytes = vec![0; 20 + 4 * options];
            (bytes[0], bytes[1], bytes[9]) = (0x45 + options as u8, 2, protocol);
            let ones = |bytes: &[u8]| {
                let sum: u32 = bytes.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]]))).sum();
                (sum & 0xffff) + (sum >> 16)
            };
            let sum = ones(&bytes[..20]) as u16;
            bytes[10..12].copy_from_slice(&(!sum).to_be_bytes());
            tcp[16..18].fill(0);
            let sum = ones(&tcp);
            tcp[16..18].copy_from_slice(&(!((sum & 0xffff) + (sum >> 16)) as u16).to_be_bytes());
            prop_assume!(ones(&tcp) == 0xffff);
            bytes.extend(tcp);
            let before = bytes.clone();
            mark_circuit(&mut bytes, CircuitMark::Dscp(dscp));
            prop_assert!(has_good_checksum(&bytes));
            prop_assert_eq!((bytes[1], &bytes[12..]), (dscp << 2 | 2, &before[12..]));
            let mut bytes = before.clone();
            mark_circuit(&mut bytes, CircuitMark::Ece);
            let (header, marked) = bytes.split_at(20 + 4 * options);
            prop_assert_eq!(header, &before[..header.len()]);
            if protocol == 17 {
                prop_assert_eq!(marked, &tcp);
            } else {
                prop_assert_eq!((ones(marked), marked[13]), (0xffff, tcp[13] | ECE));
            }
        }
    }

    #[test]
    fn flows_are_identified_by_ports_except_in_fragments() {
        let (_, routes) = triangle();
        let (a, b) = (routes.site_address(SiteId(0)), routes.site_address(SiteId(1)));
        let mut tcp = packet(a, b, 0);
        tcp[9] = 6;
        tcp[20..24].copy_from_slice(&[1, 2, 3, 4]);
        assert_eq!(routes.ingress(SiteId(0), &tcp).1.flow, 0x0102_0304);
        for (at, value) in [(6, 0x20), (7, 1), (9, 1)] {
            let mut other = tcp.clone();
            other[at] = value;
            assert_eq!(routes.ingress(SiteId(0), &other).1.flow, 0, "byte {at}");
        }
        // The header length exceeds the packet.
        tcp[0] = 0x4f;
        assert_eq!(routes.ingress(SiteId(0), &tcp).1.flow, 0);
    }

    #[test]
    fn marking_follows_the_ecn_field() {
        let (_, routes) = triangle();
        for (ecn, expected) in
            [(0, (false, false)), (1, (true, false)), (2, (true, false)), (3, (true, true))]
        {
            let mut bytes = packet(routes.site_address(SiteId(0)), routes.site_address(SiteId(1)), 46);
            bytes[1] |= ecn;
            let (_, meta) = routes.ingress(SiteId(0), &bytes);
            assert_eq!((meta.has(Flag::Ect), meta.has(Flag::Ce)), expected, "{ecn}");
            assert_eq!(meta.priority, 0);
        }
    }

    #[test]
    fn packet_to_foreign_address_has_no_destination() {
        let (_, routes) = triangle();
        let a = SiteId(0);
        let from = routes.site_address(a);
        for dst in [[10, 77, 0, 4], [10, 77, 128, 8], [10, 77, 255, 255], [10, 76, 0, 1], [10, 77, 0, 0]] {
            assert_eq!(routes.ingress(a, &packet(from, dst.into(), 0)).1.dst, u16::MAX, "{dst:?}");
        }
        let mut six = packet(from, routes.site_address(SiteId(1)), 0);
        six[0] = 0x60;
        assert_eq!(routes.ingress(a, &six).1.dst, u16::MAX);
    }

    proptest! {
        #[test]
        fn random_bytes_never_make_ingress_panic(bytes in prop::collection::vec(any::<u8>(), 0..64), site in 0u16..3) {
            let (_, routes) = triangle();
            let (_, meta) = routes.ingress(SiteId(site), &bytes);
            prop_assert_eq!(meta.size_bytes as usize, bytes.len());
        }
    }
}
