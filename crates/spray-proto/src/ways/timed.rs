//! Reuse of values whose packets are about as fast as the mean; a slower value is replaced by one
//! of the fastest.
//!
//! REPS with round trips in place of marks. A mark tells that a queue is long. A round trip tells
//! how much longer a path is than the other paths, even if all queues are short or unmarked. A
//! dropped value is replaced by a value that was clearly faster than the mean. New values are rare
//! while good values are known, because a new value may take a slow or dead path.
//!
//! Choices, tuned on the setting `permutation-nscc` of `experiments/spray`: "about as fast" is up
//! to 1.3 times the mean of the last eight or so round trips; "clearly faster" is below 0.8 of the
//! mean. Nine replacements of ten reuse a clearly faster value, the tenth draws a new one.

use super::{PacketFate, Spreader};
use anabranch_units::{Duration, Instant, RandomStream};
use std::collections::VecDeque;

/// Maximum round trip of a reused value, in hundredths of the mean.
const AGAIN: u64 = 130;
/// Maximum round trip of the fastest values, in hundredths of the mean.
const QUICK: u64 = 80;
/// Share of dropped values that are replaced by one of the fastest, in percent.
const REPLACED: u64 = 90;
/// Inverse weight of a round trip in the moving average.
const WEIGHT: u64 = 8;
/// Maximum number of values remembered of each kind.
const VALUES_MAX: usize = 64;

/// Values that arrived, oldest first.
#[derive(Debug)]
pub(super) struct Timed {
    random: RandomStream,
    /// Values to reuse once each.
    fresh: VecDeque<u16>,
    /// The fastest values.
    quick: VecDeque<u16>,
    mean_ps: Option<u64>,
    last_ps: u64,
}

impl Timed {
    pub(super) const fn new(random: RandomStream) -> Self {
        Self { random, fresh: VecDeque::new(), quick: VecDeque::new(), mean_ps: None, last_ps: 0 }
    }

    /// Returns true if the last round trip was at most this many hundredths of the mean.
    fn is_within(&self, hundredths: u64) -> bool {
        self.mean_ps.is_some_and(|mean| self.last_ps * 100 <= mean * hundredths)
    }
}

fn remember(values: &mut VecDeque<u16>, value: u16) {
    if values.len() == VALUES_MAX {
        values.pop_front();
    }
    values.push_back(value);
}

impl Spreader for Timed {
    fn choose(&mut self, _: Instant, _: usize) -> u16 {
        if let Some(value) = self.fresh.pop_front() {
            return value;
        }
        if !self.quick.is_empty() && self.random.below(100) < REPLACED {
            let at = self.random.below(self.quick.len() as u64) as usize;
            return self.quick.swap_remove_back(at).unwrap_or_default();
        }
        self.random.next_u64() as u16
    }

    fn choose_again(&mut self, now: Instant, in_flight: usize) -> u16 {
        self.quick.back().copied().unwrap_or_else(|| self.choose(now, in_flight))
    }

    fn handle_round_trip(&mut self, _: Instant, _: u16, rtt: Duration) {
        self.last_ps = rtt.as_ps();
        let toward = |mean: u64| mean - mean / WEIGHT + self.last_ps / WEIGHT;
        self.mean_ps = Some(self.mean_ps.map_or(self.last_ps, toward));
    }

    fn handle_fate(&mut self, _: Instant, value: u16, fate: PacketFate) {
        match fate {
            PacketFate::Came | PacketFate::Marked => {
                if self.is_within(QUICK) {
                    remember(&mut self.quick, value);
                }
                if self.is_within(AGAIN) {
                    remember(&mut self.fresh, value);
                }
            }
            PacketFate::Late => {
                self.fresh.retain(|fresh| *fresh != value);
                self.quick.retain(|quick| *quick != value);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::Flight;
    use super::*;
    use anabranch_units::Seed;

    /// Sends packets, ten in flight at a time. `rtt_us` returns the round trip of a value, or
    /// `None` for a lost packet. Returns the value of each packet.
    fn run(packets: u64, rtt_us: impl Fn(u16) -> Option<u64>) -> Vec<u16> {
        let mut flight = Flight::new(Box::new(Timed::new(Seed::new(1).stream("ways", 0))));
        let (mut echoes, mut values) = (Vec::<(u64, u32)>::new(), Vec::new());
        for n in 0..packets {
            let now = n * 10;
            echoes.sort_unstable();
            while let Some((due, number)) = echoes.first().copied().filter(|(due, _)| *due <= now) {
                flight.handle_echo(Instant::from_us(due), number, Duration::ZERO, false);
                echoes.remove(0);
            }
            let (number, value) = flight.handle_leaving(Instant::from_us(now), false);
            values.push(value);
            echoes.extend(rtt_us(value).map(|rtt| (now + rtt, number)));
        }
        values
    }
    /// Counts the bad values among the last thousand.
    fn bad(values: &[u16], is_bad: impl Fn(u16) -> bool) -> usize {
        values[values.len() - 1_000..].iter().filter(|value| is_bad(**value)).count()
    }

    #[test]
    fn slow_and_dead_paths_are_left_without_marks() {
        let is_bad = |value: u16| value.is_multiple_of(2);
        let good = |value: u16| if value % 4 == 1 { 60 } else { 100 };
        for slow in [Some(200), None] {
            let values = run(4_000, |value| if is_bad(value) { slow } else { Some(good(value)) });
            let (first, last) =
                (values[..10].iter().filter(|value| is_bad(**value)).count(), bad(&values, is_bad));
            assert!(first > 0 && last <= 2, "{slow:?}: {first} of 10, then {last} of 1,000");
        }
    }

    #[test]
    fn equal_paths_are_reused_and_new_paths_are_rare() {
        let values = run(2_000, |_| Some(100));
        let distinct = |part: &[u16]| part.iter().collect::<std::collections::BTreeSet<_>>().len();
        assert!(distinct(&values[1_000..]) <= 11, "{}", distinct(&values[1_000..]));
    }

    #[test]
    fn retransmission_takes_the_fastest_known_path() {
        let mut timed = Timed::new(Seed::new(1).stream("ways", 0));
        for (value, us) in [(7, 100), (8, 100), (9, 40), (10, 100)] {
            timed.handle_round_trip(Instant::ZERO, value, Duration::from_us(us));
            timed.handle_fate(Instant::ZERO, value, PacketFate::Came);
        }
        assert_eq!((timed.choose_again(Instant::ZERO, 4), timed.choose(Instant::ZERO, 4)), (9, 7));
        timed.handle_fate(Instant::ZERO, 9, PacketFate::Late);
        assert_eq!((0..3).map(|_| timed.choose(Instant::ZERO, 4)).filter(|value| *value == 9).count(), 0);
    }
}
