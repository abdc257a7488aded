//! A host to which a fuzzer, or a test, says anything that could come from another, at any time.
//!
//! Bytes are read as a list of datagrams, each behind a byte for the time before it and one for its length. What the host holds must stay within
//! its bounds, in packets and in bytes, and nothing may be handed over that did not come or could not be made of it. In the end every peer is silent
//! and nothing may be held.

use crate::Config;
use crate::datagram::Datagram;
use crate::datagram::FlowId;
use crate::host::{Host, Outgoing};
use crate::memory::MEMORY_MIN;
use anabranch_endpoint::{Bytes, Wire as _};
use anabranch_units::{ByteCount, Duration, Instant};

/// Steps that one list may take, so that it ends soon.
const STEPS_MAX: usize = 400;
/// The most packets that a datagram can set free beside those that are held: those that its parities bring back, and itself.
const FREED_MAX: usize = 1_500;

/// Peers that say something.
const PEERS: u32 = 3;
/// Time after which nothing is held for a peer that has fallen silent.
const SILENCE: Duration = Duration::from_secs(5);

/// Says them all, to a host as simulated and to an agent's. True if one of them was a datagram.
///
/// Panics: where the host does, or holds more than it may.
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
                    Outgoing { packet, payload_bytes, is_acknowledgement, is_end, flow_size: None };
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

#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    #[test]
    fn corpus_replays() {
        assert!(super::replay::replay("spray_datagrams", super::exercise) >= 4);
        assert!(super::replay::replay("spray_control", crate::control::exercise) >= 6);
    }

    proptest! {
        #[test]
        fn any_bytes_leave_a_host_within_its_bounds(bytes in prop::collection::vec(any::<u8>(), 0..2_000)) {
            super::exercise(&bytes);
        }
    }
}
