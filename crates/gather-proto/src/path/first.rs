//! A path's first flight: how much of it a queue probably had no room for, before a gap in what comes shows that.
//!
//! A flight that is far too long for a slow way loses its end, and nothing comes behind that end. The client sees the gap when the last
//! packets of the queue come, and sums that are sent for it come a round trip later: the way stands idle meanwhile. But the first
//! packets show how fast the way is. If its queue holds one product of rate and round trip, as is usual, the way holds two, and what the flight
//! had beyond that is lost. As many sums as keep the way busy for a round trip leave then unasked, if nothing else is left to be sent.
//! Behind a longer queue they are of no use: at most half as many as the flight's packets beyond the first product.
//!
//! Differs: TCP and QUIC wait for the gap, or probe with a packet or two (RFC 8985 section 7). The rate from the spacing of what comes is that
//! of packet trains (Dovrolis and others, *What Do Packet Dispersion Techniques Measure?*, 2001).
//!
//! Leaves out: which sums leave (`sender`), and what is known to be lost ([`super::News`]). Read [`FirstFlight::overflow`] first.

use anabranch_units::{Duration, Instant};

/// A rate shows once so many packets have come behind the first.
const SHOWN_PACKETS: u64 = 4;
/// A way and its queue together hold so many products of rate and round trip.
const HELD_PRODUCTS: f64 = 2.0;

/// What left before anything was heard, and what came of it.
#[derive(Copy, Clone, Debug, Default)]
pub(super) struct FirstFlight {
    /// Bytes of it.
    bytes: u64,
    /// Bytes that have come or are known to be lost.
    known: u64,
    /// When the first news came and the last, and bytes that came in the time between.
    heard: Option<(Instant, Instant)>,
    came: u64,
    /// Bytes of sums that have left unasked, of all pulls.
    unasked: u64,
}

impl FirstFlight {
    /// A packet leaves.
    pub(super) const fn note_sent(&mut self, bytes: u64) {
        if self.heard.is_none() {
            self.bytes += bytes;
        }
    }

    /// It was a sum that nobody has asked for.
    pub(super) const fn note_unasked(&mut self, bytes: u64) {
        self.unasked += bytes;
    }

    /// So much has come, and is known to be lost.
    pub(super) fn note_news(&mut self, now: Instant, delivered_bytes: u64, lost_bytes: u64) {
        if self.known >= self.bytes {
            return;
        }
        self.known += delivered_bytes + lost_bytes;
        self.came += if self.heard.is_some() { delivered_bytes } else { 0 };
        self.heard = Some((self.heard.map_or(now, |(first, _)| first), now));
    }

    /// Bytes that are probably lost, not known to be and not made up for, as many as the way carries in a round trip of `rtt` at most.
    pub(super) fn overflow(&self, packet_bytes: u64, rtt: Duration) -> u64 {
        let Some((first, last)) = self.heard else { return 0 };
        if self.came < SHOWN_PACKETS * packet_bytes || self.known >= self.bytes {
            return 0;
        }
        let time = last.saturating_since(first).as_secs_f64();
        let product = self.came as f64 / time.max(1e-9) * rtt.as_secs_f64();
        let held = HELD_PRODUCTS * product;
        // Where more has come the queue is longer.
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

    /// A flight of so many packets of which one comes each `gap`, up to so many; the most that was taken for lost, in packets.
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

    /// #19: 64 KiB over 10 Mbit/s and 20 ms stood for 17 ms, until the client had seen that half of the first flight was lost.
    #[test]
    fn a_flight_that_a_slow_way_cannot_hold_is_made_up_for_before_that_is_seen() {
        // 10 Mbit/s hold 17 packets in 20 ms, and as many in a queue: of 48 those beyond 34 are lost.
        assert_eq!(most(48, Duration::from_us(1_200), 10), 14);
        // 5 Mbit/s: what more is lost than comes in a round trip can be asked for meanwhile.
        assert_eq!(most(48, Duration::from_us(2_400), 10), 8);
    }

    #[test]
    fn a_flight_that_fits_is_not_made_up_for() {
        for us in [12, 120, 800] {
            assert_eq!(most(48, Duration::from_us(us), 48), 0, "a packet each {us} us");
        }
        assert_eq!(most(10, Duration::from_us(1_200), 10), 0);
    }

    #[test]
    fn it_is_over_once_all_of_it_is_accounted_for() {
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
    fn behind_a_longer_queue_nothing_seems_lost_once_that_is_seen() {
        let mut first = FirstFlight::default();
        (0..48).for_each(|_| first.note_sent(PACKET));
        for came in 0..40 {
            first.note_news(Instant::ZERO + Duration::from_us(20_000 + 1_200 * came), PACKET, 0);
        }
        assert_eq!(first.overflow(PACKET, RTT), 0);
    }

    proptest! {
        #[test]
        fn no_more_than_a_third_of_a_flight_is_sent_for_nothing(packets in 1u64..200, gap_us in 1u64..100_000) {
            prop_assert!(most(packets, Duration::from_us(gap_us), packets) <= packets / 3);
        }
    }
}
