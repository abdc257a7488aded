//! Tests of the estimator against a simulated link with a fixed rate and loss rate.

use super::*;
use proptest::prelude::*;

const RTT: Duration = Duration::from_ms(20);
const PACKET: f64 = 1_500.0;
const TICK: Duration = Duration::from_ms(1);
/// Interval at which the servers' shortfall and the loss bursts change.
const TURN: Duration = Duration::from_ms(25);

/// A link with a capacity in bytes per second and a random loss rate. While no rate is granted, its
/// servers send at most `offered` together. A grant takes effect half a round trip later, and
/// packets sent under it arrive after the other half.
struct Link {
    overflow: OverflowEstimator,
    now: Instant,
    capacity: f64,
    loss: f64,
    offered: f64,
    servers: usize,
    sent: std::collections::VecDeque<f64>,
    came: (f64, f64, f64),
    granted_for: Duration,
    /// Rate of a competing flow, which grows until it halves at high loss, as TCP does; zero
    /// without a competing flow.
    other: f64,
    /// Length and period of stalls on the path. Packets of a stall arrive together at its end.
    stalls: Option<(Duration, Duration)>,
    /// Maximum share of the grant that servers fail to send because they wait for processors.
    lacks: f64,
    /// Whether losses come in bursts: no loss in most intervals of [`TURN`], and five times the
    /// loss rate in every fifth.
    bursts: bool,
    /// Whether servers see a queue.
    queued: bool,
    arrived: Totals,
}

impl Link {
    fn new(capacity: f64, loss: f64, offered: f64, servers: usize) -> Self {
        let sent = std::iter::repeat_n(0.0, (RTT.as_ps() / TICK.as_ps()) as usize).collect();
        let (overflow, now) = (OverflowEstimator::new(), Instant::ZERO);
        Self {
            overflow,
            now,
            capacity,
            loss,
            offered,
            servers,
            sent,
            came: (0.0, 0.0, 0.0),
            granted_for: Duration::ZERO,
            other: 0.0,
            stalls: None,
            lacks: 0.0,
            bursts: false,
            queued: false,
            arrived: Totals::default(),
        }
    }
    /// Runs the link for `time`. Returns the loss rate in that time.
    fn pass(&mut self, time: Duration) -> f64 {
        let before = self.came;
        let end = self.now + time;
        while self.now < end {
            self.now += TICK;
            let allowed = self.overflow.allowed_bytes_per_s();
            self.granted_for += if allowed.is_some() { TICK } else { Duration::ZERO };
            let allowed = allowed.unwrap_or(f64::INFINITY);
            let turn = self.now.saturating_since(Instant::ZERO).as_ps() / TURN.as_ps();
            let loss = match (self.bursts, turn * 7 % 5) {
                (false, _) => self.loss,
                (true, 0) => 5.0 * self.loss,
                (true, _) => 0.0,
            };
            let lacks = self.lacks * (turn * 7 % 13) as f64 / 12.0;
            self.sent.push_back(self.offered.min(allowed * (1.0 - lacks)));
            let sent = self.sent.pop_front().unwrap_or(0.0) * TICK.as_secs_f64();
            let capacity = self.capacity * TICK.as_secs_f64();
            let all = sent + self.other * TICK.as_secs_f64();
            let bytes = sent * (capacity / all.max(1e-9)).min(1.0) * (1.0 - loss);
            let grows = 1.0 + 0.1 * TICK.as_secs_f64() / RTT.as_secs_f64();
            self.other *= if all > 1.3 * capacity { 0.5 } else { grows };
            self.came.0 += bytes;
            self.came.1 += bytes / PACKET;
            self.came.2 += (sent - bytes) / PACKET;
            let (bytes, packets, lost) = self.came;
            let queued = if self.queued { packets as u64 } else { 0 };
            let totals = Totals { bytes: bytes as u64, packets: packets as u64, queued, lost: lost as u64 };
            let is_stalled = |(length, every): (Duration, Duration)| {
                self.now.saturating_since(Instant::ZERO).as_ps() % every.as_ps() < length.as_ps()
            };
            if !self.stalls.is_some_and(is_stalled) {
                self.arrived = totals;
            }
            let servers = Servers { asked: self.servers, heard: self.servers, awaits: false, rtt: RTT };
            self.overflow.observe(self.now, self.arrived, servers);
        }
        let (packets, lost) = (self.came.1 - before.1, self.came.2 - before.2);
        lost / (packets + lost)
    }
    /// Runs the link for `time`. Returns the arriving share of the link's capacity.
    fn used(&mut self, time: Duration) -> f64 {
        let before = self.came.0;
        self.pass(time);
        (self.came.0 - before) / time.as_secs_f64() / self.capacity / (1.0 - self.loss)
    }
}

const SECOND: Duration = Duration::from_secs(1);

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn overflow_ends_and_the_link_stays_full(
        capacity in 1e6f64..1e9, more in 1.1f64..20.0, loss in 0.0f64..0.05, servers in 2usize..100, has_begun: bool,
    ) {
        let mut link = Link::new(capacity, loss, more * capacity, servers);
        link.overflow.has_begun = has_begun;
        link.pass(SECOND * 2);
        prop_assert!(link.overflow.allowed_bytes_per_s().is_some());
        let lost = link.pass(SECOND * 5);
        // Probes cause losses in addition to the path's own.
        prop_assert!(lost < loss + 0.02, "{lost} lost");
        prop_assert!(link.used(SECOND * 5) > 0.95);
    }

    #[test]
    fn random_path_loss_does_not_reduce_the_rate(capacity in 1e6f64..1e9, loss in 0.03f64..0.14, begins in 0.01f64..0.2) {
        let mut link = Link::new(capacity, loss, begins * capacity, 8);
        while link.offered < 0.5 * capacity {
            link.pass(Duration::from_ms(50));
            prop_assert_eq!(link.granted_for, Duration::ZERO, "it still begins");
            link.offered *= 2.0;
        }
        link.offered = 0.9 * capacity;
        link.pass(SECOND * 2);
        prop_assert_eq!(link.overflow.allowed_bytes_per_s(), None);
        // The estimator makes one or two tests. Packets count when they are complete, so a
        // measurement may take one packet longer.
        let packets = (MEASURE_PACKETS + 1) as f64 * PACKET / (0.5 * capacity);
        let packets = Duration::from_ps((packets * 1e12) as u64);
        prop_assert!(link.granted_for <= (RTT * 5 + packets) * 2, "{:?}", link.granted_for);
    }

    #[test]
    fn late_random_loss_is_tested_and_tolerated(capacity in 1e6f64..1e9, loss in 0.08f64..0.14) {
        let mut link = Link::new(capacity, 0.0, 0.5 * capacity, 8);
        link.pass(SECOND);
        link.loss = loss;
        link.pass(SECOND * 4);
        prop_assert!(link.granted_for > Duration::ZERO);
        prop_assert_eq!(link.overflow.allowed_bytes_per_s(), None);
    }

    /// Issue #19: one short measurement while a process waited for a processor halved the rate for
    /// a second, and another measurement doubled it.
    #[test]
    fn short_stalls_change_the_estimate_little(
        capacity in 1e6f64..1e8, servers in 2usize..64, length in 5u64..20, every in 150u64..400, has_begun: bool,
    ) {
        let mut link = Link::new(capacity, 0.0, 5.0 * capacity, servers);
        link.overflow.has_begun = has_begun;
        link.stalls = Some((Duration::from_ms(length), Duration::from_ms(every)));
        link.pass(SECOND * 2);
        let (mut most, mut least) = (0.0_f64, f64::INFINITY);
        let before = (link.came.1, link.came.2);
        for _ in 0..1_000 {
            link.pass(Duration::from_ms(10));
            let rate = link.overflow.rate() / capacity;
            (most, least) = (most.max(rate), least.min(rate));
        }
        let (packets, lost) = (link.came.1 - before.0, link.came.2 - before.1);
        prop_assert!(least > 0.8 && most < 1.3, "{least} to {most} of the link");
        prop_assert!(lost / (packets + lost) < 0.03, "{lost} lost of {packets}");
    }

    #[test]
    fn estimate_follows_the_link_capacity(capacity in 1e6f64..1e8, change in 0.2f64..5.0, has_begun: bool) {
        let mut link = Link::new(capacity, 0.0, 10.0 * capacity, 8);
        link.overflow.has_begun = has_begun;
        link.pass(SECOND * 3);
        link.capacity *= change;
        link.pass(SECOND * 10);
        let used = link.used(SECOND * 5);
        prop_assert!(used > 0.93, "{used} of the link is used");
        let lost = link.pass(SECOND * 5);
        prop_assert!(lost < 0.02, "{lost} lost");
    }
}

/// Issue #19: each probe that overflowed the link raised the estimate by only 2 %, because one
/// measurement may be distorted by a burst. 7 % of the link stayed unused.
#[test]
fn probe_that_overflows_the_link_shows_its_rate() {
    let mut link = Link::new(1e7, 0.0, 2e7, 4);
    link.pass(SECOND);
    link.overflow.rates = [0.9 * link.capacity, 0.0];
    link.overflow.probe_more = PROBE_MORE;
    link.overflow.enter(link.now, PROBE, RTT);
    link.pass(Duration::from_ms(150));
    let used = link.used(Duration::from_ms(150));
    assert!(used > 0.97, "{used}");
}

/// Issue #19: 32 servers on a switch port with 64 KiB of queue had 2 % loss on average, mostly from
/// repeated probes of a full link.
#[test]
fn probes_after_a_joint_start_lose_fewer_packets() {
    let lost = [false, true].map(|has_begun| {
        let mut link = Link::new(1.25e7, 0.0, 3e7, 32);
        link.overflow.has_begun = has_begun;
        link.lacks = 0.15;
        link.pass(SECOND * 2);
        (link.pass(SECOND * 20), link.used(SECOND))
    });
    assert!(lost[1].0 < 0.8 * lost[0].0, "{lost:?}");
    assert!(lost[1].1 > 0.88, "{lost:?}");
}

/// Issue #19: with 32 servers, the rate measured over 20 ms varied between 0.5 and 2 times the
/// link's rate. The client granted the servers the highest measured rate.
#[test]
fn bursty_arrivals_do_not_raise_the_estimate() {
    for (length, every) in [(7, 31), (10, 43), (15, 61), (20, 73)] {
        let mut link = Link::new(1.25e7, 0.0, 3e7, 32);
        link.overflow.has_begun = true;
        link.stalls = Some((Duration::from_ms(length), Duration::from_ms(every)));
        link.pass(SECOND * 2);
        let before = (link.came.1, link.came.2);
        let mut most = 0.0_f64;
        for _ in 0..400 {
            link.pass(Duration::from_ms(50));
            most = most.max(link.overflow.rate() / link.capacity);
        }
        let lost = (link.came.2 - before.1) / (link.came.1 - before.0);
        assert!(most < 1.06, "{length} of {every} ms: {most}");
        assert!(lost < 0.03, "{length} of {every} ms: {lost} lost");
        assert!(link.used(SECOND) > 0.95, "{length} of {every} ms");
    }
}

/// Issue #19: losses at an excessive rate were taken for the path's own, and grants compensated for
/// them.
#[test]
fn transient_loss_is_forgotten() {
    let mut link = Link::new(1.25e7, 0.0, 3e7, 32);
    link.overflow.has_begun = true;
    link.pass(SECOND * 2);
    (link.overflow.path_loss, link.overflow.drained_loss) = (0.12, 0.12);
    link.pass(SECOND * 10);
    assert!(link.overflow.path_loss < 0.01, "{}", link.overflow.path_loss);
    assert!(link.pass(SECOND * 5) < 0.01);
}

/// Issue #19: the divided rate was cut repeatedly, down to a fifth less, because of losses that
/// were the path's own.
#[test]
fn grants_compensate_for_path_loss_that_begins_late() {
    let mut link = Link::new(1.25e7, 0.0, 3e7, 32);
    link.overflow.has_begun = true;
    link.pass(SECOND * 2);
    link.loss = 0.05;
    link.pass(SECOND * 10);
    let used = link.used(SECOND * 20);
    assert!(used > 0.93, "{used}");
}

/// Issue #19: a measurement in which servers had waited ended a probe, and the next probe followed
/// after twice the interval. None of these runs found the link's rate in 20 s. Servers that send a
/// tenth less than their grant still need a long time.
#[test]
fn estimate_finds_the_rate_despite_waiting_servers() {
    let found_soon = (0..12u64).filter(|turn| {
        let mut link = Link::new(1.25e7, 0.0, 3e7, 32);
        link.overflow.has_begun = true;
        link.lacks = 0.2;
        link.pass(SECOND * 2 + Duration::from_ms(25) * *turn);
        link.overflow.rates = [0.7 * link.capacity, 0.0];
        link.overflow.enter(link.now, PROBE, RTT);
        let end = link.now + SECOND * 15;
        while link.overflow.rate() < 0.9 * link.capacity && link.now < end {
            link.pass(TICK);
        }
        link.now < end
    });
    assert!(found_soon.count() >= 8);
}

/// Issue #19: a test above the link's rate had 14 % loss. That was less than half of the earlier
/// loss rate, and grants compensated for it for half a second.
#[test]
fn loss_of_an_overrate_test_is_not_path_loss() {
    let mut link = Link::new(1e7, 0.0, 5e7, 32);
    link.overflow.rates = [1.25 * link.capacity, 0.0];
    link.overflow.enter(link.now, Phase::Test { loss: 0.36, last_loss: 0.36, tests: 0 }, RTT);
    let mut most = 0.0_f64;
    for _ in 0..100 {
        link.pass(Duration::from_ms(5));
        most = most.max(link.overflow.path_loss);
    }
    assert!(most < 0.02, "{most} taken for the path's own");
    assert!(link.pass(SECOND) < 0.02);
}

/// Issue #19: 32 servers with four packets in flight each lost most packets until two round trips
/// had been measured.
#[test]
fn flood_of_many_servers_is_detected_early() {
    for (servers, within) in [(32, Duration::from_ms(15)), (4, Duration::from_ms(45))] {
        let mut link = Link::new(1e7, 0.0, 3e7, servers);
        link.pass(RTT);
        let begun = link.now;
        while link.overflow.allowed_bytes_per_s().is_none() {
            link.pass(TICK);
        }
        let took = link.now.saturating_since(begun);
        assert!(took <= within, "{servers} servers: {took:?}");
        // Servers with more packets in flight adapt by themselves, and are measured for the normal
        // length.
        assert!(servers == 32 || took >= RTT * 2, "{servers} servers: {took:?}");
    }
}

/// Issue #19: the client kept dividing the rate beside a Cubic flow, which had a tenth of its
/// share.
#[test]
fn link_shared_with_another_flow_is_not_divided() {
    let mut link = Link::new(1e7, 0.0, 0.9e7, 3);
    link.other = 0.3e7;
    link.pass(SECOND * 60);
    assert!(link.granted_for < SECOND * 20, "{:?}", link.granted_for);
    // If each server has hardly one packet in flight, no rate control could send less.
    let mut link = Link::new(1e6, 0.0, 0.9e6, 30);
    link.other = 0.3e6;
    link.pass(SECOND * 60);
    assert!(link.granted_for > SECOND * 40, "{:?}", link.granted_for);
}

/// Issue #19: beside four flows of Linux's BBR, the division held three servers to one packet in
/// flight each, because their own control could not send less.
#[test]
fn servers_with_few_packets_have_no_rate_limit() {
    let mut link = Link::new(1e7, 0.0, 2e7, 3);
    link.pass(SECOND * 5);
    assert!(link.overflow.allowed_bytes_per_s().is_some());
    // Competing flows leave each server 1.3 packets in flight, with losses.
    (link.capacity, link.loss, link.offered, link.bursts, link.queued) = (0.3e6, 0.1, 0.5e6, true, true);
    link.pass(SECOND * 5);
    link.granted_for = Duration::ZERO;
    link.pass(SECOND * 30);
    assert!(link.granted_for < SECOND * 15, "{:?}", link.granted_for);
}

/// Issue #19: over a path of 1 ms each burst of losses cut the divided rate, because servers had
/// too few packets in flight for their own congestion control.
#[test]
fn bursty_losses_without_a_queue_keep_the_rate() {
    let bursts = |queued, servers| {
        let mut link = Link::new(1e7, 0.04, 2e7, servers);
        (link.bursts, link.queued) = (true, queued);
        link.overflow.enter(link.now, Phase::Hold { since: link.now }, RTT);
        link.overflow.rates = [1e7, 0.0];
        link.pass(SECOND * 5);
        link.used(SECOND * 10)
    };
    // Some 133 packets arrive per round trip.
    let (calm, beside_others) = (bursts(false, 30), bursts(true, 30));
    assert!(calm > 0.93 && beside_others < 0.85, "{calm} without a queue, {beside_others} with one");
    // Losses do not count as random forever: the estimate follows a drop of the link's rate.
    let mut link = Link::new(1e7, 0.04, 2e7, 30);
    link.bursts = true;
    link.pass(SECOND * 10);
    (link.capacity, link.bursts, link.loss) = (0.3e7, false, 0.0);
    link.pass(SECOND * 3);
    let lost = link.pass(SECOND * 5);
    assert!(lost < 0.03 && link.used(SECOND * 5) > 0.93, "{lost} lost");
}

/// Issue #19: three servers waited for retransmissions after a long start. The rate of that time, a
/// third of 1 Gbit/s, was held for seconds.
#[test]
fn arrivals_during_waits_do_not_measure_the_link() {
    let mut link = Link::new(1e7, 0.0, 0.95e7, 3);
    link.pass(SECOND * 2);
    (link.offered, link.loss) = (0.3e7, 0.1);
    link.pass(Duration::from_ms(200));
    (link.offered, link.loss) = (0.95e7, 0.0);
    link.pass(SECOND);
    assert_eq!(link.granted_for, Duration::ZERO);
    // If the link's rate does fall, it is divided within a second.
    link.capacity = 0.4e7;
    link.pass(SECOND * 2);
    assert!(link.overflow.allowed_bytes_per_s().is_some_and(|rate| rate < 0.6e7));
    assert!(link.granted_for > SECOND, "{:?}", link.granted_for);
}

#[test]
fn single_server_is_not_limited() {
    let mut link = Link::new(1e7, 0.0, 2e7, 1);
    link.pass(SECOND * 2);
    assert_eq!(link.overflow.allowed_bytes_per_s(), None);
}
