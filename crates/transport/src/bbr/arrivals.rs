//! The receiver's part of BBR: counts of received and lost packets.
//!
//! The sender needs counts only. Its model uses the record of the last sent packet among those
//! received, and the number of packets that arrived with it. If a report is lost, its counts are
//! included in the next report. A gap counts as lost once three later packets have arrived (RFC
//! 9002 section 6.1.1, kPacketThreshold). A packet that arrives even later undoes its loss.
//!
//! Leaves out: acknowledgements by ranges, as TCP has them.

use std::collections::VecDeque;
use std::ops::Range;

/// Number of later packets after whose arrival a missing packet counts as lost.
const LATE: u64 = 3;
/// Maximum number of recorded gaps. Beyond it the packets of the oldest gap count as lost at once.
const GAPS_MAX: usize = 1_024;

/// Counts of received and lost packets.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct ArrivalCounts {
    /// One more than the highest sequence number received.
    pub next: u64,
    /// Number of packets received. The sum with `lost` is at most `next`.
    pub received: u64,
    /// Number of packets counted as lost.
    pub lost: u64,
    /// Number of runs of consecutive packets counted as lost.
    pub runs: u64,
}

/// Counts the packets of one stream.
#[derive(Clone, Debug, Default)]
pub struct Arrivals {
    counts: ArrivalCounts,
    /// Missing numbers below `next` that do not count as lost yet. Each gap is stored with the
    /// number of packets received before it opened.
    gaps: VecDeque<(Range<u64>, u64)>,
}

impl Arrivals {
    /// Counts so far.
    pub const fn counts(&self) -> ArrivalCounts {
        self.counts
    }

    /// Records a packet. The same packet must not be recorded twice.
    pub fn handle_packet(&mut self, sequence: u64) {
        let counts = &mut self.counts;
        if sequence >= counts.next {
            if sequence > counts.next {
                self.gaps.push_back((counts.next..sequence, counts.received));
            }
            counts.next = sequence + 1;
        } else if !Self::fill(&mut self.gaps, sequence) {
            if counts.lost == 0 {
                // The packet was never counted as missing, so it is ignored.
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

    /// Removes a number from its gap. Returns false if no gap contains the number.
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
    fn gap_becomes_loss_after_three_packets_unless_late() {
        let mut arrivals = Arrivals::default();
        for sequence in [0, 2, 3] {
            arrivals.handle_packet(sequence);
        }
        assert_eq!(arrivals.counts(), ArrivalCounts { next: 4, received: 3, lost: 0, runs: 0 });
        arrivals.handle_packet(4);
        assert_eq!(arrivals.counts(), ArrivalCounts { next: 5, received: 4, lost: 1, runs: 1 });
        arrivals.handle_packet(1);
        assert_eq!(arrivals.counts(), ArrivalCounts { next: 5, received: 5, lost: 0, runs: 1 });
    }

    proptest! {
        #[test]
        fn numbers_below_next_are_received_lost_or_gaps(
            came in proptest::collection::vec((any::<bool>(), 0u64..4), 1..300),
        ) {
            // Packets are up to three positions late, and some of them are lost.
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
