//! Common start of a pull from many servers. BBR keeps at least four packets per server in flight
//! from the first round trip on. With 32 servers that exceeds the capacity of the path and a short
//! queue, and a fourth of the packets of short objects was dropped before the client could react.
//! Therefore all servers begin as one. The client grants all servers together the initial window of
//! a single sender, and doubles the grant whenever nearly all of it arrives. If less arrives, the
//! link is full, and `link` divides its rate. Once the grant covers the servers' minimum windows,
//! or the link is fast, each server finds its rate alone.
//!
//! Source: slow start (RFC 5681 section 3.1), for all servers together and by grants. Differs: a
//! grant is a rate, so a server may have less than one packet in flight; a full link is detected by
//! the arriving rate, not by a loss. Leaves out: the link's rate after the start (`link`), and each
//! server's share (`hop`). Read [`Start`] first.

use super::came::{LOSS_FLOOD, Servers, Totals};
use crate::path::{FIRST_PACKETS, FIRST_PACKETS_ALL, FIRST_PACKETS_MIN, first_bytes_all, gap};
use anabranch_units::{Duration, Instant};

/// Servers begin as one if the sum of their minimum windows is at least this multiple of one
/// sender's initial window.
const TIMES: f64 = 4.0;
/// Rate at which each server can continue alone, in bytes per second. At higher rates processors
/// cannot pace the packets of many servers one by one, and delayed packets look like a full link.
const FAST_BYTES_PER_S: f64 = 1e9 / 8.0;
/// Minimum round-trip time in calculations; shorter times cannot be measured exactly.
const RTT_MIN: Duration = Duration::from_us(100);
/// Share of the responding servers that must have begun before a measurement starts.
const BEGUN_SHARE: f64 = 0.8;
/// Ratio of the arriving to the granted rate above which a process must have been delayed. The
/// measurement then restarts.
const WAITED_TIMES: f64 = 1.25;
/// Minimum number of packets in a measurement.
const LEAST_PACKETS: u64 = 16;
/// Share of the sent rate whose arrival shows that the link is not full. The measurement takes at
/// least a `MORE_RTT_PART`-th of a round trip, and the time of `MORE_PACKETS` packets but at most
/// `MORE_AFTER`.
const ARRIVES_SHARE: f64 = 0.8;
const MORE_RTT_PART: u64 = 4;
const MORE_PACKETS: u64 = 64;
const MORE_AFTER: Duration = Duration::from_ms(2);
/// Minimum time, in addition to a round trip, before a low arriving rate shows a full link, because
/// a process may have been delayed. `FULL_AFTER` applies to a doubled grant, `FULL_AFTER_FIRST` to
/// the first grant.
const FULL_AFTER: Duration = Duration::from_ms(5);
const FULL_AFTER_FIRST: Duration = Duration::from_ms(20);
/// Minimum rate of a full link relative to a grant that was twice the arriving rate. The factor
/// also applies to the first grant, if few packets were lost and servers may only have been slow.
const FULL_PART: f64 = ARRIVES_SHARE / 2.0;
/// Minimum rate of a full link relative to the grant at a high loss rate, where the earlier
/// arriving rate may have been a burst.
const FULL_PART_FLOOD: f64 = FULL_PART / 2.0;

/// Conclusion from the arriving packets.
#[derive(Copy, Clone, Debug, PartialEq)]
pub(super) enum StartConclusion {
    /// No conclusion yet.
    Nothing,
    /// The grant changed.
    Changed,
    /// Each server can find its rate alone.
    Enough,
    /// The link is full; its rate in bytes per second.
    Full(f64),
}

/// State of a common start of many servers.
#[derive(Clone, Debug)]
pub(super) struct Start {
    /// Number of servers.
    servers: usize,
    /// Size of the servers' packets in bytes.
    packet_bytes: f64,
    /// First total grant, in datagram bytes per second. The next fields are the current total
    /// grant, and the grant from which each server can continue alone.
    first_bytes_per_s: f64,
    bytes_per_s: f64,
    enough_bytes_per_s: f64,
    /// Start of the measurements of this grant.
    measures_from: Instant,
    /// First measurement of this grant: its time, its totals, and the number of responding servers.
    began: Option<(Instant, Totals, usize)>,
    /// Whether the grant stays fixed until all servers have connected, because not all of it
    /// arrived.
    is_held: bool,
}

impl Start {
    /// Begins a common start of `servers` servers with packets of `packet_bytes`. `rtt` is the
    /// round-trip time to the farthest server, and `carried_bytes_per_s` the rate that arrived
    /// before. Returns `None` if the servers need not begin as one, or if no round-trip time is
    /// known.
    pub(super) fn new(
        now: Instant,
        servers: usize,
        rtt: Duration,
        packet_bytes: f64,
        carried_bytes_per_s: f64,
    ) -> Option<Self> {
        let packets = servers as u64 * FIRST_PACKETS_MIN;
        let least = packets as f64 * packet_bytes;
        let flight = (FIRST_PACKETS as f64 * packet_bytes).max(first_bytes_all(Some(rtt)) as f64);
        let rtt_s = rtt.max(RTT_MIN).as_secs_f64();
        let bytes_per_s = carried_bytes_per_s.max(flight / rtt_s);
        let enough_bytes_per_s = (least / rtt_s).min(FAST_BYTES_PER_S);
        let is_much = packets > FIRST_PACKETS_ALL && bytes_per_s * TIMES <= enough_bytes_per_s;
        (is_much && rtt > Duration::ZERO).then_some(Self {
            servers,
            packet_bytes,
            first_bytes_per_s: bytes_per_s,
            bytes_per_s,
            enough_bytes_per_s,
            measures_from: now,
            began: None,
            is_held: false,
        })
    }

    /// Total rate allowed to all servers, in datagram bytes per second.
    pub(super) const fn allowed_bytes_per_s(&self) -> f64 {
        self.bytes_per_s
    }

    /// Handles the totals of the servers at `now`.
    pub(super) fn observe(&mut self, now: Instant, totals: Totals, servers: Servers) -> StartConclusion {
        if now < self.measures_from {
            return StartConclusion::Nothing;
        }
        let (from, before, begun) = *self.began.get_or_insert((now, totals, servers.heard));
        if begun == 0 || (begun as f64) < BEGUN_SHARE * servers.heard as f64 {
            self.began = Some((now, totals, servers.heard));
            return StartConclusion::Nothing;
        }
        let (time, rtt) = (now.saturating_since(from), servers.rtt);
        let packets = totals.packets.saturating_sub(before.packets);
        if packets < LEAST_PACKETS {
            return StartConclusion::Nothing;
        }
        let came = totals.bytes.saturating_sub(before.bytes) as f64 / time.as_secs_f64().max(1e-9);
        let sent = self.bytes_per_s * (begun as f64 / servers.asked.max(1) as f64).min(1.0);
        // Connecting servers keep processors busy, so the arriving rate is weak evidence.
        let is_early = servers.awaits && servers.heard < self.servers;
        if came > WAITED_TIMES * self.bytes_per_s {
            self.began = None;
            return StartConclusion::Nothing;
        }
        let more_after = gap(MORE_PACKETS * self.packet_bytes as u64, self.bytes_per_s).min(MORE_AFTER);
        let more_after = more_after.max(Duration::from_ps(rtt.as_ps() / MORE_RTT_PART));
        if came >= ARRIVES_SHARE * sent && time >= more_after {
            if self.is_held && is_early {
                self.began = None;
                return StartConclusion::Nothing;
            }
            self.is_held = false;
            self.grant(now, self.bytes_per_s * 2.0, rtt);
            return if self.bytes_per_s < self.enough_bytes_per_s {
                StartConclusion::Changed
            } else {
                StartConclusion::Enough
            };
        }
        let is_first = self.bytes_per_s <= self.first_bytes_per_s;
        let full_after = if is_first { FULL_AFTER_FIRST } else { FULL_AFTER };
        if time < full_after.max(rtt) {
            return StartConclusion::Nothing;
        }
        let lost = totals.lost.saturating_sub(before.lost);
        let is_flood = lost as f64 > LOSS_FLOOD * (lost + packets) as f64;
        let least = match (is_first, is_flood) {
            (true, true) => 0.0,
            (false, true) => FULL_PART_FLOOD * self.bytes_per_s,
            (_, false) => FULL_PART * self.bytes_per_s,
        };
        let carries = came.clamp(least, self.bytes_per_s);
        if !is_early || is_flood {
            return StartConclusion::Full(carries);
        }
        self.is_held = true;
        self.grant(now, carries.max(self.first_bytes_per_s), rtt);
        StartConclusion::Changed
    }

    fn grant(&mut self, now: Instant, bytes_per_s: f64, rtt: Duration) {
        (self.bytes_per_s, self.measures_from, self.began) = (bytes_per_s, now + rtt, None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::VecDeque;

    const PACKET: f64 = 1_450.0;
    const TICK: Duration = Duration::from_us(50);

    /// A link behind a queue. The servers send at their granted rate after half a round trip, and
    /// their packets arrive after the other half.
    struct Link {
        start: Start,
        now: Instant,
        capacity: f64,
        queue_max: f64,
        queue: f64,
        rtt: Duration,
        /// Number of servers asked.
        asked: usize,
        /// Number of servers from which packets have arrived.
        heard: usize,
        /// Bytes sent in each tick of the first half of the round trip.
        to_link: VecDeque<f64>,
        /// Bytes arrived and lost in each tick of the second half of the round trip.
        from_link: VecDeque<(f64, f64)>,
        came: (f64, f64),
        /// Bytes read by the client.
        read: f64,
        /// Maximum number of bytes that the client reads at a time.
        read_max: f64,
        lost_bytes: f64,
        most_granted: f64,
    }

    impl Link {
        fn new(capacity: f64, queue_max: f64, rtt: Duration, servers: usize) -> Option<Self> {
            let start = Start::new(Instant::ZERO, servers, rtt, PACKET, 0.0)?;
            let half = (rtt.as_ps() / TICK.as_ps() / 2).max(1) as usize;
            Some(Self {
                most_granted: start.allowed_bytes_per_s(),
                start,
                now: Instant::ZERO,
                capacity,
                queue_max,
                queue: 0.0,
                rtt,
                asked: servers,
                heard: servers,
                to_link: std::iter::repeat_n(0.0, half).collect(),
                from_link: std::iter::repeat_n((0.0, 0.0), half).collect(),
                came: (0.0, 0.0),
                read: 0.0,
                read_max: f64::INFINITY,
                lost_bytes: 0.0,
            })
        }
        /// Runs the link for a tick in which the given share of servers sends.
        fn pass(&mut self, share: f64) {
            self.now += TICK;
            self.to_link.push_back(share * self.start.allowed_bytes_per_s() * TICK.as_secs_f64());
            let sent = self.queue + self.to_link.pop_front().unwrap_or(0.0);
            let carried = sent.min(self.capacity * TICK.as_secs_f64());
            self.queue = (sent - carried).min(self.queue_max);
            let lost = sent - carried - self.queue;
            self.lost_bytes += lost;
            self.from_link.push_back((carried, lost));
            let (came, lost) = self.from_link.pop_front().unwrap_or_default();
            self.came = (self.came.0 + came, self.came.1 + lost);
        }
        /// The client's conclusion from the arrivals. `awaits` is whether further servers may still
        /// connect.
        fn look(&mut self, awaits: bool) -> StartConclusion {
            let count = |bytes: f64| (bytes / PACKET) as u64;
            self.read = self.came.0.min(self.read + self.read_max);
            let (packets, lost) = (count(self.read), count(self.came.1));
            let totals = Totals { bytes: packets * PACKET as u64, packets, queued: 0, lost };
            let heard = if packets == 0 { 0 } else { self.heard };
            let servers = Servers { asked: self.asked, heard, awaits, rtt: self.rtt };
            let said = self.start.observe(self.now, totals, servers);
            if said == StartConclusion::Changed {
                self.most_granted = self.most_granted.max(self.start.allowed_bytes_per_s());
            }
            said
        }
        /// Runs until the start ends; `None` if it does not end within a second.
        fn ends(&mut self) -> Option<StartConclusion> {
            let end = self.now + Duration::from_secs(1);
            while self.now < end {
                self.pass(1.0);
                match self.look(false) {
                    StartConclusion::Nothing | StartConclusion::Changed => {}
                    said => return Some(said),
                }
            }
            None
        }
    }

    #[test]
    fn few_or_distant_servers_begin_alone() {
        let begins =
            |servers, ms| Start::new(Instant::ZERO, servers, Duration::from_ms(ms), PACKET, 0.0).is_some();
        assert_eq!([begins(1, 1), begins(16, 1), begins(17, 1), begins(32, 1)], [false, false, true, true]);
        // Four packets from each of 32 servers per 100 ms are less than 20 Mbit/s.
        assert_eq!([begins(32, 20), begins(32, 100), begins(100, 100)], [false, false, true]);
        // On one machine or between neighbours, ten packets per round trip exceed 1 Gbit/s.
        assert!(Start::new(Instant::ZERO, 32, Duration::from_us(100), PACKET, 0.0).is_none());
        // If the minimum rate has already arrived, no common start is needed.
        assert!(Start::new(Instant::ZERO, 32, Duration::from_ms(1), PACKET, 1e8).is_none());
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn start_finds_the_link_rate_with_little_loss(
            digits in 5.0f64..10.0, queue_packets in 8.0f64..500.0, rtt_us in 100u64..8_000, servers in 17usize..200,
        ) {
            let (capacity, rtt) = (10f64.powf(digits), Duration::from_us(rtt_us));
            let Some(mut link) = Link::new(capacity, queue_packets * PACKET, rtt, servers) else { return Ok(()) };
            let first = link.start.allowed_bytes_per_s();
            let enough = link.start.enough_bytes_per_s;
            let said = link.ends();
            let found = match said {
                Some(StartConclusion::Full(found)) => found,
                Some(StartConclusion::Enough) => enough,
                _ => return Err(TestCaseError::fail(format!("{said:?}"))),
            };
            let deep = if link.most_granted > first { 0.0 } else { FULL_PART * first };
            if said == Some(StartConclusion::Enough) {
                prop_assert!(capacity > ARRIVES_SHARE * enough / 2.0, "{capacity} B/s are not enough, {enough}");
            } else {
                // A doubled grant fills the interval of its measurement, and the queue lengthens
                // that interval.
                prop_assert!(found > 0.3 * capacity, "{found} of {capacity} B/s");
                prop_assert!(found < (1.3 * capacity).max(deep * 1.001), "{found} of {capacity} B/s");
            }
            // Except for the first flight, the grant is at most twice a rate that arrived to 80 %.
            // Packets count whole: with the minimum number of packets, the first packet may have
            // arrived almost entirely before the measurement.
            let most_times = 2.0 / ARRIVES_SHARE * LEAST_PACKETS as f64 / (LEAST_PACKETS - 1) as f64;
            prop_assert!(link.most_granted <= first.max(most_times * capacity), "{}", link.most_granted);
            let too_much = link.most_granted - capacity;
            let time = if link.most_granted > first { FULL_AFTER } else { FULL_AFTER_FIRST };
            let time = time.max(Duration::from_ps((LEAST_PACKETS as f64 * PACKET / capacity * 1e12) as u64));
            let most = too_much * (time.max(rtt) + rtt * 2 + TICK * 2).as_secs_f64();
            // The queue may have filled a little under the previous grant.
            prop_assert!(link.lost_bytes <= 1.3 * most.max(0.0) + 4.0 * PACKET, "{} lost, {most}", link.lost_bytes);
        }
    }

    /// A burst had raised the grant to eight times the link's rate, and three times that rate was
    /// tested for 90 ms.
    #[test]
    fn excessive_grant_yields_link_rate_within_factor_two() {
        let mut link = Link::new(1.25e7, 64_000.0, Duration::from_ms(1), 32).expect("they begin as one");
        link.start.grant(link.now, 8.0 * link.capacity, link.rtt);
        let Some(StartConclusion::Full(found)) = link.ends() else { panic!("it is full") };
        assert!((0.9..2.0).contains(&(found / link.capacity)), "{found}");
    }

    /// A client paused its reading, and took the rate of its later reads for a faster link.
    #[test]
    fn paused_reading_does_not_raise_the_link_estimate() {
        for stall_ms in [1, 3, 10, 30] {
            let mut link = Link::new(1.25e7, 64_000.0, Duration::from_ms(1), 32).expect("they begin as one");
            link.read_max = 4.0 * PACKET;
            // The client pauses its reading for half of the time.
            let every = Duration::from_ms(2 * stall_ms).as_ps();
            let said = loop {
                link.pass(1.0);
                if link.now.saturating_since(Instant::ZERO).as_ps() % every < every / 2 {
                    continue;
                }
                match link.look(false) {
                    StartConclusion::Nothing | StartConclusion::Changed => {}
                    said => break said,
                }
                assert!(link.now < Instant::ZERO + Duration::from_secs(1), "{stall_ms} ms: it does not end");
            };
            let StartConclusion::Full(found) = said else { panic!("{stall_ms} ms: {said:?}") };
            assert!((0.3..1.3).contains(&(found / 1.25e7)), "{stall_ms} ms: {found}");
            assert!(link.most_granted < 2.6 * 1.25e7, "{stall_ms} ms: {}", link.most_granted);
        }
    }

    /// A link without arrivals was estimated at 0, and 32 servers stalled for five seconds. With
    /// few arrivals the estimate was too low.
    #[test]
    fn missing_arrivals_yield_no_conclusion() {
        let mut link = Link::new(1.25e7, 64_000.0, Duration::from_ms(1), 32).expect("they begin as one");
        link.heard = 2;
        for at in 0..40_000 {
            // One or two packets from each of two servers, and then none.
            link.pass(if at < 200 { 0.02 } else { 0.0 });
            assert_eq!(link.look(false), StartConclusion::Nothing);
        }
        assert!(link.came.0 > PACKET, "some have come");
        assert!(
            matches!(link.ends(), Some(StartConclusion::Full(found)) if (0.3..1.1).contains(&(found / 1.25e7)))
        );
    }

    /// Packets of a server that begins later are not evidence of a faster link.
    #[test]
    fn late_servers_do_not_raise_the_link_estimate() {
        let mut link = Link::new(1e7, 640_000.0, Duration::from_ms(1), 32).expect("they begin as one");
        let first = link.start.allowed_bytes_per_s();
        for at in 0..320 {
            link.heard = if at < 160 { 1 } else { 32 };
            link.pass(link.heard as f64 / 32.0);
            assert!(matches!(link.look(false), StartConclusion::Nothing | StartConclusion::Changed));
        }
        assert!(matches!(link.ends(), Some(StartConclusion::Full(_))));
        assert!(link.most_granted <= first, "two thirds arrive of {first} B/s, not of {}", link.most_granted);
    }

    /// While servers connect, processors have no time for packets, and the low arriving rate was
    /// taken for the link's rate.
    #[test]
    fn arrivals_during_connects_do_not_lower_the_grant() {
        // Two of three packets wait for a processor.
        let mut link = Link::new(1.25e8, 64_000.0, Duration::from_ms(1), 32).expect("they begin as one");
        let first = link.start.allowed_bytes_per_s();
        link.heard = 16;
        for _ in 0..4_000 {
            link.pass(0.3);
            assert!(matches!(link.look(true), StartConclusion::Nothing | StartConclusion::Changed));
            assert!(link.start.allowed_bytes_per_s() >= first);
        }
        // After this measurement the grant does not grow until all servers have connected.
        for _ in 0..4_000 {
            link.pass(1.0);
            assert_eq!(link.look(true), StartConclusion::Nothing);
        }
        assert!(matches!(link.ends(), Some(StartConclusion::Enough | StartConclusion::Full(5e7..))));
        // A link that is slower than the first flight, and loses packets of the flight.
        let mut link = Link::new(1.25e6, 15_000.0, Duration::from_ms(1), 32).expect("they begin as one");
        link.heard = 16;
        let said = loop {
            link.pass(1.0);
            match link.look(true) {
                StartConclusion::Nothing | StartConclusion::Changed => {}
                said => break said,
            }
            assert!(link.now < Instant::ZERO + Duration::from_ms(200), "it is not seen");
        };
        assert!(matches!(said, StartConclusion::Full(found) if found < 1.3 * 1.25e6), "{said:?}");
    }
}
