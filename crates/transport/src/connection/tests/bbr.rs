//! BBR over a link with a queue.

use super::*;
use crate::bbr::{Bbr, Phase, SendRecord};
use crate::rack::{Rack, SenderView};
use crate::ranges::Ranges;
use anabranch_endpoint::Message;
use std::collections::VecDeque;

/// A link at a rate, with a queue and random loss before it. Acknowledgements arrive at the sender
/// after the delay.
struct Path {
    now: Instant,
    ends: [Connection; 2],
    rate: BitRate,
    delay: Duration,
    queue_bytes: u64,
    loss_ppm: u32,
    random: RandomStream,
    /// Time at which the link is free again.
    free_at: Instant,
    there: VecDeque<(Instant, Segment)>,
    back: VecDeque<(Instant, Segment)>,
    received: u64,
    /// Data sent: time and length, each with the model's pacing rate in bytes per second.
    sent: Vec<(Instant, u64, f64)>,
    phases: Vec<Phase>,
}

fn with_bbr() -> Config {
    Config { control: Control::Bbr, receive_buffer: ByteCount::mib(64), ..by_time() }
}

impl Path {
    fn new(config: &Config, mbps: u64, rtt_ms: u64, bdps: f64, loss_ppm: u32) -> Self {
        let delay = Duration::from_us(500 * rtt_ms);
        Self {
            now: Instant::ZERO,
            ends: [
                Connection::connect(config, B).expect("good settings"),
                Connection::listen(config, A).expect("good settings"),
            ],
            rate: BitRate::mbps(mbps),
            delay,
            queue_bytes: (bdps * (mbps * rtt_ms * 125) as f64) as u64,
            loss_ppm,
            random: Seed::new(5).stream("path", 0),
            free_at: Instant::ZERO,
            there: VecDeque::new(),
            back: VecDeque::new(),
            received: 0,
            sent: Vec::new(),
            phases: Vec::new(),
        }
    }

    fn bbr(&mut self) -> Option<&Bbr> {
        self.ends[0].send.bbr()
    }

    fn leave(&mut self, segment: Segment) {
        let time = self.rate.transmit_time(ByteCount::new(u64::from(segment.wire_len())));
        let room = self.rate.transmit_time(ByteCount::new(self.queue_bytes));
        let waits = self.free_at.saturating_since(self.now);
        if self.random.chance_ppm(self.loss_ppm) || waits + time > room {
            return;
        }
        self.free_at = self.free_at.max(self.now) + time;
        self.there.push_back((self.free_at + self.delay, segment));
    }

    fn drain(&mut self) {
        while let Some(transmit) = self.ends[0].poll_transmit(self.now) {
            if transmit.msg.len > 0 {
                let pacing = self.bbr().map_or(0.0, Bbr::pacing_bytes_per_s);
                self.sent.push((self.now, transmit.msg.len.into(), pacing));
            }
            self.leave(transmit.msg);
        }
        while let Some(transmit) = self.ends[1].poll_transmit(self.now) {
            self.back.push_back((self.now + self.delay, transmit.msg));
        }
        while let Some(event) = self.ends[1].poll_event() {
            if let Event::Received { bytes } = event {
                self.received += bytes;
            }
        }
        while self.ends[0].poll_event().is_some() {}
        let phase = self.bbr().map(Bbr::phase);
        self.phases.extend(phase.filter(|phase| self.phases.last() != Some(phase)));
    }

    /// Runs for `time`, or until no event is left.
    fn run(&mut self, time: Duration) {
        let until = self.now + time;
        loop {
            self.drain();
            let arrivals = [&self.there, &self.back].map(|wire| wire.front().map(|(at, _)| *at));
            let timeouts = [0, 1].map(|end| self.ends[end].poll_timeout());
            let Some(next) = arrivals.into_iter().chain(timeouts).flatten().min().filter(|at| *at <= until)
            else {
                self.now = until;
                return;
            };
            assert!(next >= self.now, "time never goes back");
            self.now = next;
            for (to, wire) in [(1, &mut self.there), (0, &mut self.back)] {
                while wire.front().is_some_and(|(at, _)| *at <= next) {
                    let (_, segment) = wire.pop_front().expect("it was looked at");
                    self.ends[to].handle_message(next, PeerId(1 - to as u32), segment);
                }
            }
            for end in &mut self.ends {
                if end.poll_timeout().is_some_and(|at| at <= next) {
                    end.handle_timeout(next);
                }
            }
        }
    }

    /// Share of the link's rate that is delivered in the next `time`.
    fn goodput_share(&mut self, time: Duration) -> f64 {
        let before = self.received;
        self.run(time);
        // Of 1,040 bytes on the link, 1,000 are data.
        (self.received - before) as f64 * 8.32 / time.as_secs_f64() / self.rate.as_bps() as f64
    }
}

/// Share of the link's rate that is delivered over 100 Mbit/s and 20 ms.
fn share(config: &Config, bdps: f64, loss_ppm: u32) -> f64 {
    let mut path = Path::new(config, 100, 20, bdps, loss_ppm);
    path.ends[0].write(1 << 40);
    path.run(Duration::from_secs(1));
    path.goodput_share(Duration::from_secs(6))
}

#[test]
fn long_flow_fills_a_link_with_any_queue() {
    for bdps in [0.5, 1.0, 4.0] {
        let share = share(&with_bbr(), bdps, 0);
        assert!(share > 0.95, "a queue of {bdps} BDP: {share}");
    }
}

/// Between probes, which are 62 round trips apart here, each round trip with a loss reduces the
/// rate by the lost share, and by the hundredth that pacing leaves free. 1 % loss thus costs a
/// sixth of the rate.
#[test]
fn bbr_tolerates_random_loss_at_which_newreno_collapses() {
    for (loss_ppm, least, most) in [(1_000, 0.9, 0.2), (10_000, 0.8, 0.05)] {
        let bbr = share(&with_bbr(), 1.0, loss_ppm);
        let newreno = share(&Config { control: Control::NewReno, ..with_bbr() }, 1.0, loss_ppm);
        assert!(bbr > least && newreno < most, "{loss_ppm} ppm: {bbr}, NewReno {newreno}");
    }
}

#[test]
fn data_is_paced_in_quanta_at_the_model_rate() {
    let mut path = Path::new(&with_bbr(), 100, 20, 4.0, 1_000);
    path.ends[0].write(1 << 40);
    path.run(Duration::from_secs(1));
    path.sent.clear();
    path.run(Duration::from_secs(2));
    assert!([Phase::Cruise, Phase::Up, Phase::Down].iter().all(|phase| path.phases.contains(phase)));
    let mut together = 0;
    for (first, (from, ..)) in path.sent.iter().enumerate() {
        let (mut bytes, mut pacing) = (0, 0.0f64);
        for (at, len, rate) in &path.sent[first..] {
            let time = at.saturating_since(*from);
            if time > Duration::from_ms(10) {
                break;
            }
            (bytes, pacing) = (bytes + len, pacing.max(*rate));
            together = together.max(if time == Duration::ZERO { bytes } else { 0 });
            // A quantum is the data of one millisecond.
            let most = pacing * (time.as_secs_f64() + 1e-3);
            assert!(bytes as f64 <= most, "{bytes} bytes in {time:?} at {pacing}: at most {most}");
        }
        // Phase::Up sends a quarter faster than the arriving rate.
        assert!(pacing < 1.26 * path.rate.as_bps() as f64 / 8.0, "{pacing}");
    }
    assert!(together >= 10_000, "segments leave together: {together}");
}

#[test]
fn only_timers_send_while_the_peer_is_silent() {
    let mut path = Path::new(&with_bbr(), 100, 20, 1.0, 0);
    path.ends[0].write(1 << 40);
    path.run(Duration::from_secs(2));
    path.loss_ppm = 1_000_000;
    // The last acknowledgements keep the window open; the loss probe follows two round trips later.
    path.run(Duration::from_ms(50));
    path.sent.clear();
    path.run(Duration::from_secs(10));
    let timeouts = path.ends[0].counters().timeouts;
    assert_eq!((timeouts, path.sent.len()), (5, 6), "a probe, and a segment for each timeout");
    path.loss_ppm = 0;
    // The next timeout is up to 6.4 s later.
    path.run(Duration::from_secs(7));
    let share = path.goodput_share(Duration::from_secs(2));
    assert!(share > 0.9, "{share}");
}

#[test]
fn app_limited_sender_keeps_its_rate_without_wakeups() {
    let mut path = Path::new(&with_bbr(), 100, 20, 1.0, 0);
    path.ends[0].write(1 << 20);
    path.run(Duration::from_secs(2));
    assert_eq!((path.received, path.ends[0].poll_timeout()), (1 << 20, None));
    let rate = path.bbr().map(Bbr::rate_bytes_per_s);
    for _ in 0..100 {
        path.ends[0].write(10_000);
        path.run(Duration::from_ms(100));
    }
    assert_eq!(path.received, (1 << 20) + 1_000_000);
    assert_eq!(path.bbr().map(Bbr::rate_bytes_per_s), rate, "what arrives says nothing of the path");
}

#[test]
fn bbr_requires_rack_and_refuses_ecn() {
    let refused = |config: Config| config.check().expect_err("it cannot do that").to_string();
    assert_eq!(
        refused(Config { rack: false, ..with_bbr() }),
        "control bbr: goes by when each segment left, so set rack = true"
    );
    assert_eq!(
        refused(Config { ecn: true, ..with_bbr() }),
        "control bbr: has no answer to ECN marks, so set ecn = false"
    );
    assert_eq!(
        refused(Config { ecn: true, ..with_first_version() }),
        "control bbr1: has no answer to ECN marks, so set ecn = false"
    );
}

#[test]
fn whole_window_leaves_at_the_model_rate_after_idle() {
    let mut path = Path::new(&with_bbr(), 100, 20, 1.0, 0);
    path.ends[0].write(10 << 20);
    path.run(Duration::from_secs(5));
    path.sent.clear();
    path.ends[0].write(1 << 20);
    path.run(Duration::from_ms(15));
    assert!(path.sent.len() > 150, "125 kB take ten milliseconds: {}", path.sent.len());
}

fn with_first_version() -> Config {
    Config { control: Control::Bbr1, ..with_bbr() }
}

#[test]
fn version_1_fills_a_link_despite_losses() {
    for (bdps, loss_ppm, least) in [(0.5, 0, 0.93), (4.0, 0, 0.95), (1.0, 10_000, 0.9), (1.0, 100_000, 0.75)]
    {
        let share = share(&with_first_version(), bdps, loss_ppm);
        assert!(share > least, "a queue of {bdps} BDP, {loss_ppm} ppm: {share}");
    }
}

#[test]
fn version_1_keeps_queue_short_and_probes_min_rtt() {
    let mut path = Path::new(&with_first_version(), 20, 40, 8.0, 0);
    path.ends[0].write(1 << 40);
    let (mut quiet, mut most) = (vec![], 0);
    for tenth in 0..350u32 {
        path.sent.clear();
        path.run(Duration::from_ms(100));
        // During the probe for the minimum round-trip time, four segments leave per window, in two
        // and a half round trips.
        if path.sent.len() <= 12 {
            quiet.push(tenth);
        }
        if tenth > 20 {
            most = most.max(path.there.iter().map(|(_, segment)| u64::from(segment.len)).sum::<u64>());
        }
    }
    let begins: Vec<u32> =
        quiet.iter().copied().filter(|tenth| !quiet.contains(&tenth.wrapping_sub(1))).collect();
    assert!((3..=4).contains(&begins.len()), "{quiet:?}");
    assert!(begins.windows(2).all(|two| (98..=106).contains(&(two[1] - two[0]))), "{begins:?}");
    // Half of the product of 100,000 bytes is in flight towards the receiver. A probe adds a
    // quarter, and a quantum.
    assert!((50_000..110_000).contains(&most), "{most} bytes on their way");
}

/// A policer has no queue: it drops the excess over its rate at once.
#[test]
fn version_1_holds_the_rate_of_a_policer() {
    let mut path = Path::new(&with_first_version(), 100, 20, 1.0, 0);
    path.ends[0].write(1 << 40);
    path.run(Duration::from_secs(2));
    path.rate = BitRate::mbps(10);
    path.queue_bytes = 4_000;
    path.run(Duration::from_ms(500));
    path.sent.clear();
    let arrived = path.received;
    path.run(Duration::from_ms(500));
    let sent: u64 = path.sent.iter().map(|(_, bytes, _)| bytes).sum();
    let lost = 1.0 - (path.received - arrived) as f64 / sent as f64;
    assert!(path.ends[0].send.bbr1().is_some_and(|model| model.is_policed()), "{lost} lost");
    assert!(lost < 0.1, "{lost} lost");
}

#[test]
fn version_1_recovers_from_silence_and_idle() {
    let mut path = Path::new(&with_first_version(), 50, 20, 1.0, 0);
    path.ends[0].write(1 << 40);
    path.run(Duration::from_secs(2));
    path.loss_ppm = 1_000_000;
    path.run(Duration::from_secs(2));
    path.loss_ppm = 0;
    path.run(Duration::from_secs(3));
    let share = path.goodput_share(Duration::from_secs(2));
    assert!(share > 0.9, "{share}");
    // An application-limited sender keeps the model's rate.
    let mut path = Path::new(&with_first_version(), 50, 20, 1.0, 0);
    path.ends[0].write(10 << 20);
    path.run(Duration::from_secs(5));
    path.sent.clear();
    path.ends[0].write(1 << 20);
    path.run(Duration::from_ms(15));
    assert!(path.sent.len() > 60, "62 kB take ten milliseconds: {}", path.sent.len());
}

/// Loss detection with six segments of 1,000 bytes in flight, sent together, and the model's
/// records of them.
fn six_segments() -> (Rack, Vec<SendRecord>) {
    let mut path = Path::new(&with_bbr(), 100, 20, 1.0, 0);
    path.ends[0].write(1);
    path.run(Duration::from_secs(1));
    let mut bbr = path.bbr().expect("it has sent").clone();
    let mut rack = Rack::new(Duration::ZERO, 1);
    let sent: Vec<SendRecord> =
        (0..6).map(|n| bbr.handle_sent(Instant::ZERO, 1_000, 1_000 * (n + 1))).collect();
    for (start, model) in (0..).step_by(1_000).zip(&sent) {
        rack.note_sent(Instant::ZERO, (start, start + 1_000), false, Some(*model));
    }
    (rack, sent)
}

#[test]
fn ack_samples_the_last_newly_acknowledged_segment() {
    let (mut rack, sent) = six_segments();
    let (at, mut sacked) = (Instant::ZERO + Duration::from_ms(20), Ranges::default());
    let mut acknowledge = |ack: u64, block: Option<(u64, u64)>| {
        let newest = rack.handle_ack(at, ack, None, block.into_iter(), &sacked);
        block.into_iter().for_each(|(start, end)| sacked.insert(start, end));
        newest
    };
    assert_eq!(acknowledge(0, Some((2_000, 3_000))), Some(sent[2]));
    assert_eq!(acknowledge(0, Some((2_000, 5_000))), Some(sent[4]));
    assert_eq!(acknowledge(0, Some((1_000, 5_000))), Some(sent[1]));
    assert_eq!(acknowledge(5_000, None), Some(sent[0]), "the others were acknowledged before");
    assert_eq!(acknowledge(6_000, None), Some(sent[5]));
}

#[test]
fn adjacent_lost_segments_form_one_run() {
    let (mut rack, sent) = six_segments();
    let (at, mut sacked) = (Instant::ZERO + Duration::from_ms(20), Ranges::default());
    for (start, end) in [(3_000, 4_000), (5_000, 6_000)] {
        rack.handle_ack(at, 0, None, [(start, end)].into_iter(), &sacked);
        sacked.insert(start, end);
    }
    let view =
        SenderView { sacked: &sacked, srtt: None, is_repairing: true, dup_bytes: 2_001, is_tail: false };
    assert!(rack.detect(at + Duration::from_ms(20), &view) > 0);
    let found: Vec<_> = rack.take_found().map(|found| (found.sent, found.bytes, found.begins_run)).collect();
    let lost = |segment: usize, begins_run| (sent[segment], 1_000, begins_run);
    assert_eq!(found, [lost(0, true), lost(1, false), lost(2, false), lost(4, true)]);
}

/// The first two segments of six are missing, and the other four have arrived.
#[test]
fn wide_reordering_window_halves_once_all_data_is_sent() {
    let (at, ms) = (Instant::ZERO + Duration::from_ms(20), Duration::from_ms);
    // The minimum round trip is 20 ms, so a quarter of it is 5 ms.
    for (mult, is_tail, window_ms) in [(1, false, 0), (8, false, 40), (8, true, 20), (2, true, 5)] {
        let mut rack = Rack::new(Duration::ZERO, mult);
        for start in (0..6_000).step_by(1_000) {
            rack.note_sent(Instant::ZERO, (start, start + 1_000), false, None);
        }
        let mut sacked = Ranges::default();
        rack.handle_ack(at, 0, None, [(2_000, 6_000)].into_iter(), &sacked);
        sacked.insert(2_000, 6_000);
        assert_eq!(rack.sample(), Some(ms(20)));
        let view = SenderView {
            sacked: &sacked,
            srtt: Some(ms(10)),
            is_repairing: false,
            dup_bytes: 2_001,
            is_tail,
        };
        let due = at + ms(window_ms);
        if window_ms > 0 {
            assert_eq!(rack.detect(due - Duration::from_us(1), &view), 0, "{mult} {is_tail}");
            assert_eq!(rack.timer(), Some(due));
        }
        assert_eq!(rack.detect(due, &view), 2_000, "{mult} {is_tail}");
    }
}
