//! BBR over a link with a queue.

use super::*;
use crate::bbr::{Bbr, Phase};
use anabranch_endpoint::Message;
use std::collections::VecDeque;

/// A link at a rate, with a queue and random loss before it; acknowledgements come back after the delay.
struct Path {
    now: Instant,
    ends: [Connection; 2],
    rate: BitRate,
    delay: Duration,
    queue_bytes: u64,
    loss_ppm: u32,
    random: RandomStream,
    /// When the link is free again.
    free_at: Instant,
    there: VecDeque<(Instant, Segment)>,
    back: VecDeque<(Instant, Segment)>,
    received: u64,
    /// Data that has left: when, and how much; with the rate at which the model had it paced, in bytes a second.
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

    /// Runs for some time, or until nothing is left to happen.
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

    /// The share of the link that arrives in some time from now on.
    fn goodput_share(&mut self, time: Duration) -> f64 {
        let before = self.received;
        self.run(time);
        // 1,000 of 1,040 bytes are data.
        (self.received - before) as f64 * 8.32 / time.as_secs_f64() / self.rate.as_bps() as f64
    }
}

/// The share of 100 Mbit/s, 20 ms away, that arrives.
fn share(config: &Config, bdps: f64, loss_ppm: u32) -> f64 {
    let mut path = Path::new(config, 100, 20, bdps, loss_ppm);
    path.ends[0].write(1 << 40);
    path.run(Duration::from_secs(1));
    path.goodput_share(Duration::from_secs(6))
}

#[test]
fn a_long_flow_fills_a_link_whose_queue_is_short_or_long() {
    for bdps in [0.5, 1.0, 4.0] {
        let share = share(&with_bbr(), bdps, 0);
        assert!(share > 0.95, "a queue of {bdps} BDP: {share}");
    }
}

/// Between probes, 62 round trips apart here, each round trip with a loss costs as much of the rate as is lost, and a hundredth that
/// pacing leaves free: so 1 % lost costs a sixth of the rate.
#[test]
fn random_loss_takes_a_part_of_it_where_newreno_keeps_little() {
    for (loss_ppm, least, most) in [(1_000, 0.9, 0.2), (10_000, 0.8, 0.05)] {
        let bbr = share(&with_bbr(), 1.0, loss_ppm);
        let newreno = share(&Config { control: Control::NewReno, ..with_bbr() }, 1.0, loss_ppm);
        assert!(bbr > least && newreno < most, "{loss_ppm} ppm: {bbr}, NewReno {newreno}");
    }
}

#[test]
fn what_leaves_is_paced_at_the_models_rate_in_quanta() {
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
            // A quantum is a millisecond's.
            let most = pacing * (time.as_secs_f64() + 1e-3);
            assert!(bytes as f64 <= most, "{bytes} bytes in {time:?} at {pacing}: at most {most}");
        }
        // Phase::Up sends a quarter faster than what arrives.
        assert!(pacing < 1.26 * path.rate.as_bps() as f64 / 8.0, "{pacing}");
    }
    assert!(together >= 10_000, "segments leave together: {together}");
}

#[test]
fn while_the_peer_is_silent_only_timers_send_and_then_it_goes_on() {
    let mut path = Path::new(&with_bbr(), 100, 20, 1.0, 0);
    path.ends[0].write(1 << 40);
    path.run(Duration::from_secs(2));
    path.loss_ppm = 1_000_000;
    // What was acknowledged lets the window go on; its probe comes two round trips later.
    path.run(Duration::from_ms(50));
    path.sent.clear();
    path.run(Duration::from_secs(10));
    let timeouts = path.ends[0].counters().timeouts;
    assert_eq!((timeouts, path.sent.len()), (5, 6), "a probe, and a segment for each timeout");
    path.loss_ppm = 0;
    // The next timeout comes up to 6.4 s later.
    path.run(Duration::from_secs(7));
    let share = path.goodput_share(Duration::from_secs(2));
    assert!(share > 0.9, "{share}");
}

#[test]
fn a_sender_with_little_to_say_keeps_its_rate_and_wakes_nobody() {
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
fn it_needs_loss_detection_by_time_and_refuses_marks() {
    let refused = |config: Config| config.check().expect_err("it cannot do that").to_string();
    assert_eq!(
        refused(Config { rack: false, ..with_bbr() }),
        "control bbr: goes by when each segment left, so set rack = true"
    );
    assert_eq!(
        refused(Config { ecn: true, ..with_bbr() }),
        "control bbr: has no answer to ECN marks, so set ecn = false"
    );
}
