//! The other end's part where it counts: how many packets have come, and how many are lost.
//!
//! Counts are enough for the sender, as the model asks what the packet that was sent last of those that came found, and how many came
//! with it; and a count that gets lost is in the next one. A gap is a loss once three packets came behind it (RFC 9002 section
//! 6.1.1, kPacketThreshold); a packet that comes later still takes that back.
//!
//! Leaves out: acknowledgements by ranges, which TCP has.

use std::collections::VecDeque;
use std::ops::Range;

/// Packets with higher numbers after which one that has not come is lost.
const LATE: u64 = 3;
/// Gaps that are kept: beyond, the oldest count as lost at once.
const GAPS_MAX: usize = 1_024;

/// How many packets came, and were lost.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Behind the highest number that has come.
    pub next: u64,
    /// Packets that have come; with those that are lost at most `next`.
    pub received: u64,
    /// Packets that count as lost.
    pub lost: u64,
    /// Runs of packets that counted as lost.
    pub runs: u64,
}

/// Counts the packets of one stream.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    counts: Counts,
    /// Numbers below `next` that have not come and are not lost yet, and how many had come when they were passed.
    gaps: VecDeque<(Range<u64>, u64)>,
}

impl Arrivals {
    /// What has come so far.
    pub const fn counts(&self) -> Counts {
        self.counts
    }

    /// A packet has come. The same one must not come twice.
    pub fn handle_packet(&mut self, sequence: u64) {
        let counts = &mut self.counts;
        if sequence >= counts.next {
            if sequence > counts.next {
                self.gaps.push_back((counts.next..sequence, counts.received));
            }
            counts.next = sequence + 1;
        } else if !Self::fill(&mut self.gaps, sequence) {
            if counts.lost == 0 {
                // It never was missing.
                return;
            }
            counts.lost -= 1;
        }
        counts.received += 1;
        while let Some((gap, before)) = self.gaps.front()
            && (counts.received - before >= LATE || self.gaps.len() > GAPS_MAX)
        {
            counts.lost += gap.end - gap.start;
            counts.runs += 1;
            self.gaps.pop_front();
        }
    }

    /// Takes a number out of the gap that it is in.
    fn fill(gaps: &mut VecDeque<(Range<u64>, u64)>, sequence: u64) -> bool {
        let Some(at) = gaps.iter().position(|(gap, _)| gap.contains(&sequence)) else { return false };
        let (gap, before) = gaps[at].clone();
        gaps.remove(at);
        if sequence + 1 < gap.end {
            gaps.insert(at, (sequence + 1..gap.end, before));
        }
        if gap.start < sequence {
            gaps.insert(at, (gap.start..sequence, before));
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn three_later_packets_make_a_gap_a_loss_and_a_late_one_takes_it_back() {
        let mut arrivals = Arrivals::default();
        for sequence in [0, 2, 3] {
            arrivals.handle_packet(sequence);
        }
        assert_eq!(arrivals.counts(), Counts { next: 4, received: 3, lost: 0, runs: 0 });
        arrivals.handle_packet(4);
        assert_eq!(arrivals.counts(), Counts { next: 5, received: 4, lost: 1, runs: 1 });
        arrivals.handle_packet(1);
        assert_eq!(arrivals.counts(), Counts { next: 5, received: 5, lost: 0, runs: 1 });
    }

    proptest! {
        #[test]
        fn every_number_below_the_next_has_come_is_lost_or_is_a_gap(
            came in proptest::collection::vec((any::<bool>(), 0u64..4), 1..300),
        ) {
            // Packets that come up to three places late, some of them never.
            let mut order: Vec<(u64, u64)> =
                came.iter().enumerate().filter(|(_, (comes, _))| *comes).map(|(i, (_, late))| (i as u64 + late, i as u64)).collect();
            order.sort_unstable();
            let mut arrivals = Arrivals::default();
            for (n, (_, sequence)) in order.iter().enumerate() {
                arrivals.handle_packet(*sequence);
                let counts = arrivals.counts();
                let gaps: u64 = arrivals.gaps.iter().map(|(gap, _)| gap.end - gap.start).sum();
                prop_assert_eq!(counts.received, n as u64 + 1);
                prop_assert_eq!(counts.received + counts.lost + gaps, counts.next);
            }
        }
    }
}
