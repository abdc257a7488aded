//! Viewer counts reported by other brokers to the leader, bounded in messages and in bytes.
//!
//! Leaves out: this broker's own counts (`broker_proto::counting`). Read [`CountedParts`].

use anabranch_broker_proto::broker::PlaceDemand;
use anabranch_broker_proto::counting;
use anabranch_units::Instant;
use std::collections::BTreeMap;

/// Maximum number of count messages kept, each a part of one broker's counts.
pub const COUNTED_MAX: usize = 64;
/// Maximum total bytes of the count messages kept. Untrusted players choose the names of places, so
/// their lengths must be bounded.
pub const COUNTED_BYTES_MAX: usize = 128 << 20;

/// Counts from one message of another broker, valid until `until`.
struct CountedPart {
    gathered: Vec<PlaceDemand>,
    bytes: usize,
    until: Instant,
}

/// Unexpired messages, by broker and part.
#[derive(Default)]
pub(super) struct CountedParts(BTreeMap<(u64, u32), CountedPart>);

impl CountedParts {
    /// Stores a part until `until`, replacing an earlier part with the same number. Returns false
    /// if the limits leave no room.
    pub(super) fn note(
        &mut self,
        now: Instant,
        of: (u64, u32),
        gathered: Vec<PlaceDemand>,
        until: Instant,
    ) -> bool {
        self.0.retain(|_, part| part.until > now);
        self.0.remove(&of);
        let bytes = counting::bytes(&gathered);
        let held: usize = self.0.values().map(|part| part.bytes).sum();
        let has_room = self.0.len() < COUNTED_MAX && held + bytes <= COUNTED_BYTES_MAX;
        if has_room {
            self.0.insert(of, CountedPart { gathered, bytes, until });
        }
        has_room
    }

    /// Returns the sum of `own` and all unexpired parts.
    pub(super) fn with(&mut self, now: Instant, own: Vec<PlaceDemand>) -> Vec<PlaceDemand> {
        self.0.retain(|_, part| part.until > now);
        if self.0.is_empty() {
            return own;
        }
        let others = self.0.values().flat_map(|part| part.gathered.iter().cloned());
        counting::together(own.into_iter().chain(others))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_broker_proto::messages::Clients;
    use anabranch_units::Duration;

    fn places(count: usize) -> Vec<PlaceDemand> {
        let clients = vec![Clients { bitrate_bps: 1_000_000, sessions: 1 }];
        let place = |n: usize| PlaceDemand {
            location: format!("{n:0>128}"),
            isp: "x".into(),
            clients: clients.clone(),
        };
        (0..count).map(place).collect()
    }

    /// #48: the number of parts was bounded, but each part could have 32 MiB.
    #[test]
    fn counts_of_other_brokers_are_limited_in_bytes() {
        let (now, until) = (Instant::ZERO, Instant::ZERO + Duration::from_secs(30));
        let mut counted = CountedParts::default();
        let all = places(20_000);
        let fit = COUNTED_BYTES_MAX / counting::bytes(&all);
        assert!(fit < COUNTED_MAX, "{fit}");
        for broker in 0..fit as u64 {
            assert!(counted.note(now, (broker, 0), all.clone(), until));
        }
        assert!(!counted.note(now, (99, 0), all.clone(), until), "the budget is used up");
        assert!(counted.note(now, (0, 0), all.clone(), until), "a newer one takes the old one's place");
        assert_eq!(counted.with(now, Vec::new()).len(), 20_000);
        assert!(counted.note(until, (99, 0), all, until + Duration::from_secs(1)), "the others hold no more");
        assert!(counted.with(until + Duration::from_secs(1), Vec::new()).is_empty());
    }

    #[test]
    fn counted_parts_beyond_the_limit_are_refused() {
        let (now, until) = (Instant::ZERO, Instant::ZERO + Duration::from_secs(30));
        let mut counted = CountedParts::default();
        let kept = (0..100).filter(|broker| counted.note(now, (*broker, 0), places(1), until)).count();
        assert_eq!(kept, COUNTED_MAX);
    }
}
