//! Tests of the estimator in virtual time, on a link that several streams of parts share.

use super::*;
use proptest::prelude::*;

const STEP: Duration = Duration::from_ms(10);
/// Duration of a part.
const PART: Duration = Duration::from_ms(200);

/// Bytes transferred at a rate in a time.
fn bytes(rate: BitRate, time: Duration) -> u64 {
    (u128::from(rate.as_bps()) * u128::from(time.as_ns()) / 8_000_000_000) as u64
}

/// Streams that fetch each part once it is complete, over a link that divides its rate equally.
struct Link {
    now: Instant,
    rate: BitRate,
    estimator: CapacityEstimator,
    streams: Vec<Stream>,
    transfers: u64,
}

struct Stream {
    bitrate: BitRate,
    /// Time at which the next part is complete.
    next_at: Instant,
    /// Number of complete parts that are not yet fetched.
    parts: u64,
    /// Transfer in progress: number and remaining bytes.
    under_way: Option<(u64, u64)>,
}

impl Link {
    fn new(declared: BitRate, bitrates: &[BitRate]) -> Self {
        let stream = |(number, bitrate): (u64, &BitRate)| {
            let next_at = Instant::ZERO + Duration::from_ms(number * 37 % 200);
            Stream { bitrate: *bitrate, next_at, parts: 0, under_way: None }
        };
        let streams = (0..).zip(bitrates).map(stream).collect();
        let estimator = CapacityEstimator::new(declared);
        Self { now: Instant::ZERO, rate: declared, estimator, streams, transfers: 0 }
    }

    /// Ends all streams after the first `count`.
    fn keep(&mut self, count: usize) {
        let ended = self.streams.drain(count.min(self.streams.len())..);
        for (transfer, _) in ended.filter_map(|stream| stream.under_way) {
            self.estimator.handle_end(self.now, transfer);
        }
    }

    fn run(&mut self, time: Duration, mut look: impl FnMut(&CapacityEstimator)) {
        let end = self.now + time;
        while self.now < end {
            self.now += STEP;
            let busy = self.streams.iter().filter(|stream| stream.under_way.is_some()).count() as u64;
            let share = bytes(self.rate, STEP) / busy.max(1);
            for stream in &mut self.streams {
                if stream.next_at <= self.now {
                    stream.next_at += PART;
                    // A playlist lists at most 40 parts, the last 8 s.
                    stream.parts = (stream.parts + 1).min(40);
                }
                if let Some((transfer, left)) = &mut stream.under_way {
                    let arrived = share.min(*left);
                    *left -= arrived;
                    self.estimator.handle_bytes(*transfer, ByteCount::new(arrived));
                    if *left == 0 {
                        self.estimator.handle_end(self.now, *transfer);
                        stream.under_way = None;
                    }
                }
                if stream.under_way.is_none() && stream.parts > 0 {
                    stream.parts -= 1;
                    self.transfers += 1;
                    self.estimator.handle_start(self.now, self.transfers, stream.bitrate);
                    stream.under_way = Some((self.transfers, bytes(stream.bitrate, PART)));
                }
            }
            while self.estimator.poll_timeout().is_some_and(|at| at <= self.now) {
                self.estimator.handle_timeout(self.now);
            }
            look(&self.estimator);
        }
    }
}

fn streams() -> impl Strategy<Value = Vec<BitRate>> {
    let kbps = prop_oneof![Just(200u64), Just(600), Just(1_400)];
    prop::collection::vec(kbps.prop_map(|kbps| BitRate::bps(1_000 * kbps)), 1..30)
}

fn load(streams: &[BitRate]) -> u64 {
    streams.iter().map(|bitrate| bitrate.as_bps()).sum()
}

proptest! {
    #[test]
    fn estimate_falls_within_six_seconds_after_degradation(streams in streams(), percent in 20..85u64) {
        let declared = BitRate::bps(load(&streams) * 5 / 4);
        let mut link = Link::new(declared, &streams);
        link.run(Duration::from_secs(5), |_| ());
        prop_assert_eq!(link.estimator.estimate(), None, "the streams fit");
        // The rate is below what the streams need.
        link.rate = BitRate::bps(load(&streams) * percent / 100);
        link.run(Duration::from_secs(6), |_| ());
        let estimate = link.estimator.estimate().expect("measured").as_bps();
        let rate = link.rate.as_bps();
        prop_assert!(estimate * 100 <= rate * 115, "{estimate} of {rate}");
        prop_assert!(estimate * 100 >= rate * 80, "{estimate} of {rate}");
    }

    #[test]
    fn application_limited_link_keeps_its_estimate(streams in streams(), percent in 130..1_000u64) {
        let mut link = Link::new(BitRate::bps(load(&streams) * percent / 100), &streams);
        let mut fell = false;
        link.run(Duration::from_secs(20), |estimator| fell |= estimator.estimate().is_some());
        prop_assert!(!fell, "{:?}", link.estimator.estimate());
    }

    #[test]
    fn estimate_never_exceeds_the_declared_capacity(
        declared in prop_oneof![Just(0u64), 1..10_000_000u64, Just(u64::MAX)],
        steps in prop::collection::vec((0..5u8, 0..6u64, any::<u64>()), 0..200),
    ) {
        let mut estimator = CapacityEstimator::new(BitRate::bps(declared));
        let (mut now, mut declared) = (Instant::ZERO, declared);
        for (kind, transfer, number) in steps {
            match kind {
                0 => estimator.handle_start(now, transfer, BitRate::bps(number)),
                1 => estimator.handle_bytes(transfer, ByteCount::new(number % 10_000_000)),
                2 => estimator.handle_end(now, transfer),
                3 if number % 50 == 0 => {
                    declared = number;
                    estimator.redeclare(BitRate::bps(declared));
                }
                _ => {
                    now += Duration::from_ms(number % 400);
                    estimator.handle_timeout(now);
                }
            }
            let estimate = estimator.estimate().unwrap_or(BitRate::bps(0));
            prop_assert!(estimate.as_bps() <= declared);
            prop_assert!(estimator.transfers.len() <= TRANSFERS_MAX);
            prop_assert!(estimator.limited.len() <= 4, "a window takes a second");
        }
    }
}

#[test]
fn healed_link_regains_its_declared_capacity() {
    let streams = [BitRate::mbps(1); 8];
    let declared = BitRate::mbps(10);
    let mut link = Link::new(declared, &streams);
    link.rate = BitRate::mbps(3);
    link.run(Duration::from_secs(10), |_| ());
    assert!(link.estimator.estimate() <= Some(BitRate::bps(3_400_000)), "{:?}", link.estimator.estimate());
    link.rate = declared;
    link.keep(2);
    link.run(Duration::from_secs(60), |_| ());
    assert_eq!(link.estimator.estimate(), Some(declared));
    assert_eq!(link.estimator.poll_timeout().filter(|at| *at > link.now + TICK), None, "no trial is due");
}

#[test]
fn windows_of_a_limited_parent_are_discarded() {
    let declared = BitRate::mbps(10);
    let mut link = Link::new(declared, &[BitRate::mbps(1); 8]);
    link.rate = BitRate::mbps(3);
    link.estimator.handle_parent_limited(true);
    link.run(Duration::from_secs(10), |_| ());
    assert_eq!(link.estimator.estimate(), None);
    assert!(link.estimator.is_limiting(link.now), "its own children hear of the narrow link above");
    link.estimator.handle_parent_limited(false);
    link.run(Duration::from_secs(5), |_| ());
    let estimate = link.estimator.estimate().expect("measured").as_bps();
    assert!((2_700_000..=3_300_000).contains(&estimate), "{estimate}");
    link.keep(1);
    link.run(Duration::from_secs(3), |_| ());
    assert!(!link.estimator.is_limiting(link.now));
}

#[test]
fn failed_trials_back_off() {
    let streams = [BitRate::mbps(1); 8];
    let mut link = Link::new(BitRate::mbps(10), &streams);
    link.rate = BitRate::mbps(4);
    link.run(Duration::from_secs(10), |_| ());
    // The number of streams follows the estimate: they need four fifths of the estimated rate.
    let (mut trials, mut before) = (0, None);
    for _ in 0..600 {
        let estimate = link.estimator.estimate().expect("measured").as_bps();
        trials += u32::from(before.is_some_and(|before| estimate > before + before / 8));
        before = Some(estimate);
        let count = (estimate / 1_250_000) as usize;
        link.keep(count);
        while link.streams.len() < count {
            let (now, bitrate) = (link.now, BitRate::mbps(1));
            link.streams.push(Stream { bitrate, next_at: now, parts: 0, under_way: None });
        }
        link.run(Duration::from_secs(1), |_| ());
    }
    assert!((2..=24).contains(&trials), "{trials} steps upwards in ten minutes");
}
