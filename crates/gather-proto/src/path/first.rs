//! A path's first flight: an estimate of its losses at a full queue, before a gap in the arrivals
//! reveals them.
//!
//! A flight that is far too long for a slow path loses its end, and no packet follows that end. The
//! client detects the gap only when the queue's last packets arrive. Sums sent in response arrive a
//! round trip later, and the path is idle until then. But the first packets show the path's rate.
//! If the queue holds one bandwidth-delay product, as is usual, path and queue together hold two
//! products, and the part of the flight beyond that is lost. If nothing else is left to send, sums
//! then leave unrequested, enough to keep the path busy for a round trip. If the queue is longer,
//! these sums are useless. Their number is at most half of the flight's packets beyond the first
//! product.
//!
//! Differs: TCP and QUIC wait for the gap, or probe with a packet or two (RFC 8985 section 7). The
//! estimate of a rate from the spacing of arrivals is known from packet trains (Dovrolis and
//! others, *What Do Packet Dispersion Techniques Measure?*, 2001).
//!
//! Leaves out: the choice of sums (`sender`), and known losses ([`super::ReportDelta`]). Read
//! [`FirstFlight::overflow`] first.

use anabranch_units::{Duration, Instant};

/// Number of packets after the first from whose arrivals the rate is estimated.
const SHOWN_PACKETS: u64 = 4;
/// Number of bandwidth-delay products that a path and its queue hold together.
const HELD_PRODUCTS: f64 = 2.0;

/// The packets sent before the first feedback, and their arrivals.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct FirstFlight {
    /// Number of bytes in the flight.
    bytes: u64,
    /// Number of bytes acknowledged or known to be lost.
    known: u64,
    /// Times of the first and the last report.
    heard: Option<(Instant, Instant)>,
    /// Number of bytes that arrived between the first and the last report.
    came: u64,
    /// Number of bytes in unrequested sums of all pulls.
    unasked: u64,
}

impl FirstFlight {
    /// Records a sent packet of `bytes` bytes.
    pub(super) const fn note_sent(&mut self, bytes: u64) {
        if self.heard.is_none() {
            self.bytes += bytes;
        }
    }

    /// Records that a sent packet of `bytes` bytes was an unrequested sum.
    pub(super) const fn note_unasked(&mut self, bytes: u64) {
        self.unasked += bytes;
    }

    /// Records newly acknowledged and newly lost bytes.
    pub(super) fn note_news(&mut self, now: Instant, delivered_bytes: u64, lost_bytes: u64) {
        if self.known >= self.bytes {
            return;
        }
        self.known += delivered_bytes + lost_bytes;
        self.came += if self.heard.is_some() { delivered_bytes } else { 0 };
        self.heard = Some((self.heard.map_or(now, |(first, _)| first), now));
    }

    /// Number of bytes that are probably lost, not yet reported as lost, and not yet replaced. At
    /// most the bytes that the path carries in a round trip `rtt`.
    pub(super) fn overflow(&self, packet_bytes: u64, rtt: Duration) -> u64 {
        let Some((first, last)) = self.heard else { return 0 };
        if self.came < SHOWN_PACKETS * packet_bytes || self.known >= self.bytes {
            return 0;
        }
        let time = last.saturating_since(first).as_secs_f64();
        let product = self.came as f64 / time.max(1e-9) * rtt.as_secs_f64();
        let held = HELD_PRODUCTS * product;
        // If more bytes than `held` are known, the queue is longer than assumed.
        let beyond = if self.known as f64 > held { 0.0 } else { self.bytes as f64 - held };
        (beyond.clamp(0.0, product) as u64).saturating_sub(self.unasked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const PACKET: u64 = 1_500;
    const RTT: Duration = Duration::from_ms(20);

    /// Sends a flight of `packets` packets; the first `come` packets arrive at an interval of
    /// `gap`. Returns the maximum estimate of lost packets.
    fn most(packets: u64, gap: Duration, come: u64) -> u64 {
        let mut first = FirstFlight::default();
        (0..packets).for_each(|_| first.note_sent(PACKET));
        let mut now = Instant::ZERO + RTT;
        let mut most = 0;
        for _ in 0..come {
            first.note_news(now, PACKET, 0);
            first.note_sent(PACKET);
            most = most.max(first.overflow(PACKET, RTT) / PACKET);
            now += gap;
        }
        most
    }

    /// Issue #19: 64 KiB over 10 Mbit/s and 20 ms stalled for 17 ms, until the client had detected
    /// the loss of half of the first flight.
    #[test]
    fn overlong_flight_on_a_slow_path_is_repaired_early() {
        // A path of 10 Mbit/s and 20 ms holds 17 packets, and its queue as many. Of 48 packets,
        // those beyond 34 are lost.
        assert_eq!(most(48, Duration::from_us(1_200), 10), 14);
        // At 5 Mbit/s a round trip holds 8 packets. Later losses can be requested in the meantime.
        assert_eq!(most(48, Duration::from_us(2_400), 10), 8);
    }

    #[test]
    fn flight_that_fits_the_path_causes_no_repair() {
        for us in [12, 120, 800] {
            assert_eq!(most(48, Duration::from_us(us), 48), 0, "a packet each {us} us");
        }
        assert_eq!(most(10, Duration::from_us(1_200), 10), 0);
    }

    #[test]
    fn estimate_ends_once_all_packets_are_accounted_for() {
        let mut first = FirstFlight::default();
        (0..48).for_each(|_| first.note_sent(PACKET));
        let at = |ms: u64| Instant::ZERO + Duration::from_ms(ms);
        first.note_news(at(20), PACKET, 0);
        assert_eq!(first.overflow(PACKET, RTT), 0, "nothing shows a rate");
        first.note_news(at(21), PACKET, 0);
        assert_eq!(first.overflow(PACKET, RTT), 0, "nor does the time of one packet");
        first.note_news(at(32), 9 * PACKET, 0);
        assert!(first.overflow(PACKET, RTT) > 0);
        first.note_news(at(45), 10 * PACKET, 27 * PACKET);
        assert_eq!(first.overflow(PACKET, RTT), 0);
    }

    #[test]
    fn growing_queue_is_not_taken_for_loss() {
        let mut first = FirstFlight::default();
        (0..48).for_each(|_| first.note_sent(PACKET));
        for came in 0..40 {
            first.note_news(Instant::ZERO + Duration::from_us(20_000 + 1_200 * came), PACKET, 0);
        }
        assert_eq!(first.overflow(PACKET, RTT), 0);
    }

    proptest! {
        #[test]
        fn repair_wastes_at_most_a_third_of_a_flight(packets in 1u64..200, gap_us in 1u64..100_000) {
            prop_assert!(most(packets, Duration::from_us(gap_us), packets) <= packets / 3);
        }
    }
}
