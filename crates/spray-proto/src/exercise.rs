//! An exercise that feeds a host any sequence of datagrams that a peer could send, at any time.
//!
//! The input is a list of datagrams, each preceded by a byte for the time before it and a byte for
//! its length. The host's memory must stay within its bounds, in packets and in bytes. Every
//! delivered packet must have arrived, or be recoverable from packets that arrived. At the end
//! every peer falls silent, and the host must hold nothing.

use crate::Config;
use crate::datagram::Datagram;
use crate::datagram::FlowId;
use crate::host::{Host, OutgoingPacket};
use crate::memory::MEMORY_MIN;
use crate::packet::{Coder, Packet as _, UNIT_MAX};
use crate::segment::{CE, Segment, mark};
use anabranch_endpoint::{Bytes, WireMessage as _};
use anabranch_units::{ByteCount, Duration, Instant};

/// Maximum number of datagrams in one list, to bound the running time.
const STEPS_MAX: usize = 400;
/// Maximum number of packets, besides held packets, that one datagram can release: its own packet,
/// and the packets that its parities recover.
const FREED_MAX: usize = 1_500;

/// Number of peers that send.
const PEERS: u32 = 3;
/// Time after which a host holds nothing for a silent peer.
const SILENCE: Duration = Duration::from_secs(5);

/// Feeds all datagrams to a simulated host and to an agent's host. Returns true if at least one
/// datagram was valid.
///
/// Panics: if the host panics, or exceeds its bounds.
pub fn exercise(bytes: &[u8]) -> bool {
    let bounded = Config { memory: Some(MEMORY_MIN), ..Config::of_agent() };
    let all = [Config::default(), bounded].map(|config| exercise_host(bytes, config));
    assert_eq!(all[0], all[1], "what is a datagram is one for both");
    all[0]
}

fn exercise_host(bytes: &[u8], config: Config) -> bool {
    let (freed_max, memory) = (config.held_max + FREED_MAX, config.memory);
    let mut host = Host::<Bytes>::new(config).expect("these can be");
    let (mut now, mut left, mut is_any) = (Instant::ZERO, bytes, false);
    for _ in 0..STEPS_MAX {
        let [wait, length, rest @ ..] = left else { break };
        let (datagram, rest) = rest.split_at(rest.len().min(usize::from(*length)));
        left = rest;
        now += Duration::from_us(u64::from(*wait).pow(2));
        if host.poll_timeout().is_some_and(|due| due <= now) {
            host.handle_timeout(now);
            assert!(host.poll_timeout().is_none_or(|due| due > now), "what is due has been done");
        }
        match Datagram::decode(datagram) {
            Ok(datagram) => {
                is_any = true;
                host.handle_datagram(now, u32::from(*wait) % PEERS, datagram, (100, *wait % 2 == 0));
            }
            Err(_) => {
                let packet = Bytes::copy_from_slice(datagram);
                let id = FlowId { peer: u32::from(*wait) % PEERS, flow: u32::from(*length) % 4 };
                let (payload_bytes, is_acknowledgement) = (packet.len() as u32, packet.is_empty());
                let is_end = *wait == 9;
                let outgoing =
                    OutgoingPacket { packet, payload_bytes, is_acknowledgement, is_end, flow_size: None };
                host.handle_packet(now, id, outgoing);
            }
        }
        while host.poll_leaving().is_some() {}
        let freed = std::iter::from_fn(|| host.poll_arrived()).count();
        assert!(freed <= freed_max, "{freed} packets were held");
        for peer in 0..PEERS {
            let (held, flows) = (host.held(peer), host.flows_held(peer));
            assert!(memory.is_none_or(|memory| held <= memory), "{held} are held for peer {peer}");
            assert_eq!(flows, host.recounted(peer), "the count of held bytes is right");
        }
    }
    let silent_until = now + SILENCE;
    while let Some(due) = host.poll_timeout().filter(|due| *due <= silent_until) {
        host.handle_timeout(due);
        assert!(host.poll_timeout().is_none_or(|next| next > due), "what is due has been done");
        while host.poll_leaving().is_some() {}
    }
    let held = (0..PEERS).map(|peer| host.held(peer)).max();
    assert!(memory.is_none() || held == Some(ByteCount::ZERO), "{held:?} are held of a silent peer");
    is_any
}

/// Recovers a unit of a peer's packets as an agent does, then parses and marks each packet. The
/// first byte selects the peer's own parities or correct ones, and the second byte the lost
/// packets. Then each packet follows two bytes with its length. Returns true if any received or
/// recovered packet is TCP.
///
/// Panics: if marking changes more than the mark, or correct parities recover a wrong packet.
pub fn exercise_segments(bytes: &[u8]) -> bool {
    let [kind, lost, left @ ..] = bytes else { return false };
    let (mut left, mut packets) = (left, Vec::new());
    while let [high, low, rest @ ..] = left
        && packets.len() < UNIT_MAX
    {
        let length = usize::from(u16::from_be_bytes([*high, *low])).min(rest.len());
        let (packet, rest) = rest.split_at(length);
        packets.push(Bytes::copy_from_slice(packet));
        left = rest;
    }
    let is_lost = |at: usize| lost >> (at % 8) & 1 == 1;
    let count = (0..packets.len()).filter(|at| is_lost(*at)).count();
    let mut coder = Coder::default();
    let (unit, parities) = if kind % 2 == 0 {
        (packets.clone(), Bytes::parities(&mut coder, &packets, count))
    } else {
        let unit = packets.len() - count.min(packets.len() / 2);
        (packets[..unit].to_vec(), packets[unit..].to_vec())
    };
    let there = |(at, packet): (usize, &Bytes)| (!is_lost(at)).then(|| packet.clone());
    let there: Vec<Option<Bytes>> = unit.iter().enumerate().map(there).collect();
    let parities: Vec<(u8, Bytes)> = (0..).zip(parities).collect();
    let back = Bytes::recover(&mut coder, &there, &parities);
    if kind % 2 == 0 && count > 0 {
        let lost = unit.iter().enumerate().filter(|(at, _)| is_lost(*at)).map(|(_, packet)| packet.clone());
        assert_eq!(back, Some(lost.collect()), "what was lost comes back");
    }
    let all = there.into_iter().flatten().chain(back.into_iter().flatten());
    all.fold(false, |is_any, packet| is_any | exercise_segment(&packet))
}

/// Parses and marks one packet. Returns true if it is a packet of TCP.
fn exercise_segment(packet: &[u8]) -> bool {
    let segment = Segment::of(packet);
    let mut marked = packet.to_vec();
    let is_marked = mark(&mut marked);
    assert!(is_marked || marked == packet, "what takes no mark stays");
    let expected =
        segment.map(|segment| Segment { ecn: if is_marked { CE } else { segment.ecn }, ..segment });
    assert_eq!(Segment::of(&marked), expected, "a mark is no other change");
    assert!(segment.is_none_or(|segment| is_marked == (segment.ecn != 0)), "all that take marks are marked");
    if segment.is_some() && packet[0] >> 4 == 4 {
        let is_right = |packet: &[u8]| checksum(&packet[..usize::from(packet[0] & 0xf) * 4]) == 0;
        assert!(!is_right(packet) || is_right(&marked), "a right checksum stays right");
    }
    segment.is_some()
}

/// Checksum of a header (RFC 1071); 0 for a header with a correct checksum.
fn checksum(header: &[u8]) -> u16 {
    let words =
        header.chunks(2).map(|word| u32::from(word[0]) << 8 | word.get(1).map_or(0, |low| u32::from(*low)));
    let sum: u32 = words.sum();
    let sum = (sum & 0xffff) + (sum >> 16);
    !(((sum & 0xffff) + (sum >> 16)) as u16)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn fuzz_corpora_are_accepted_unless_named_bad() {
        assert!(anabranch_testing::replay("spray_datagrams", super::exercise) >= 4);
        assert!(anabranch_testing::replay("spray_control", crate::control::exercise) >= 6);
        assert!(anabranch_testing::replay("spray_segments", super::exercise_segments) >= 8);
    }

    proptest! {
        #[test]
        fn memory_bounds_hold_for_random_datagrams(bytes in prop::collection::vec(any::<u8>(), 0..2_000)) {
            super::exercise(&bytes);
        }

        #[test]
        fn random_packets_are_recovered_and_marked(bytes in prop::collection::vec(any::<u8>(), 0..2_000)) {
            super::exercise_segments(&bytes);
        }
    }
}
