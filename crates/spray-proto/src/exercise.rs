//! A host to which a fuzzer, or a test, says anything that could come from another, at any time.
//!
//! Bytes are read as a list of datagrams, each behind a byte for the time before it and one for its length. What the host holds must stay within
//! its bounds, and nothing may be handed over that did not come or could not be made of it.

use crate::Config;
use crate::datagram::Datagram;
use crate::datagram::FlowId;
use crate::host::{Host, Outgoing};
use anabranch_endpoint::{Bytes, Wire as _};
use anabranch_units::{Duration, Instant};

/// Steps that one list may take, so that it ends soon.
const STEPS_MAX: usize = 400;
/// The most packets that a datagram can set free beside those that are held: those that its parities bring back, and itself.
const FREED_MAX: usize = 1_500;

/// Says them all, to a host as simulated and to an agent's. True if one of them was a datagram.
///
/// Panics: where the host does, or holds more than it may.
pub fn exercise(bytes: &[u8]) -> bool {
    let all = [Config::default(), Config::of_agent()].map(|config| exercise_host(bytes, config));
    assert_eq!(all[0], all[1], "what is a datagram is one for both");
    all[0]
}

fn exercise_host(bytes: &[u8], config: Config) -> bool {
    let freed_max = config.held_max + FREED_MAX;
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
                host.handle_datagram(now, u32::from(*wait) % 3, datagram, (100, *wait % 2 == 0));
            }
            Err(_) => {
                let packet = Bytes::copy_from_slice(datagram);
                let id = FlowId { peer: u32::from(*wait) % 3, flow: u32::from(*length) % 4 };
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
    }
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
