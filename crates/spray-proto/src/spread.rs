//! How long to wait for a packet that others have overtaken: as long as the slowest way is slower than the one that they took.
//!
//! A packet's *excess* is by how much longer it took than the fastest from the same host. By two clocks all delays are off by the same
//! time, which does not show in it. Short flows are over before much is known of one host, so excesses of packets from all hosts
//! count together. Read [`Spread`] first.

use anabranch_units::{Duration, Instant};

/// Over which time the longest excess, and the least delay, are taken; two such windows count.
const WINDOW: Duration = Duration::from_ms(50);
/// Packets by which excesses are known.
const PACKETS_MIN: u32 = 32;
/// Waiting for less would take a packet that comes right behind for a lost one.
const HOLD_MIN: Duration = Duration::from_us(20);

/// The last two windows of a value of which one in each counts.
#[derive(Copy, Clone, Debug, Default)]
struct Windows<T> {
    now: Option<T>,
    before: Option<T>,
    since: Instant,
}

impl<T: Copy> Windows<T> {
    /// Takes a value in; what counts of both windows by `better`.
    fn push(&mut self, now: Instant, value: T, better: impl Fn(T, T) -> T) -> T {
        let age = now.saturating_since(self.since);
        if age >= WINDOW {
            self.before = self.now.take().filter(|_| age < WINDOW + WINDOW);
            self.since = now;
        }
        let best = self.now.map_or(value, |known| better(known, value));
        self.now = Some(best);
        self.before.map_or(best, |before| better(before, best))
    }
}

/// The least delay of packets from one host, in picoseconds by two clocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Least(Windows<i128>);

/// Excesses of packets from all hosts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Spread {
    longest: Windows<u64>,
    packets: u32,
}

impl Spread {
    /// Takes in a packet, and says how long those that were sent before it may still be on their way: at most `hold_max`, and that where
    /// excesses are not known.
    pub(crate) fn sample(
        &mut self,
        least: &mut Least,
        (sent_at, now): (Instant, Instant),
        hold_max: Duration,
    ) -> Duration {
        let delay = (now.as_ps() as i128).wrapping_sub(sent_at.as_ps() as i128);
        let fastest = least.0.push(now, delay, i128::min);
        let excess = u64::try_from(delay.saturating_sub(fastest).max(0)).unwrap_or(u64::MAX);
        if now.saturating_since(self.longest.since) >= WINDOW + WINDOW {
            self.packets = 0;
        }
        let longest = self.longest.push(now, excess, u64::max);
        self.packets = self.packets.saturating_add(1);
        if self.packets < PACKETS_MIN {
            return hold_max;
        }
        let left = longest.saturating_add(longest / 4).saturating_sub(excess);
        Duration::from_ps(left).max(HOLD_MIN).min(hold_max)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_by_the_fastest_way_waits_for_the_slowest_and_a_quarter() {
        let (mut spread, mut least) = (Spread::default(), Least::default());
        let hold_max = Duration::from_ms(4);
        let at = |us| Instant::ZERO + Duration::from_us(us);
        let mut hold = |least: &mut Least, sent, came| spread.sample(least, (at(sent), at(came)), hold_max);
        assert_eq!(hold(&mut least, 1_000, 1_100), hold_max, "nothing is known");
        for n in 0..100 {
            let delay = if n % 7 == 1 { 900 } else { 100 };
            hold(&mut least, 2_000 + n, 2_000 + n + delay);
        }
        assert_eq!(hold(&mut least, 5_000, 5_100), Duration::from_us(1_000));
        assert_eq!(hold(&mut least, 5_000, 5_900), Duration::from_us(200));
        // Another host, by another clock: what is known of the first one counts.
        let mut other = Least::default();
        assert_eq!(hold(&mut other, 9_000_000, 6_000), Duration::from_us(1_000));
        assert_eq!(hold(&mut other, 9_000_000, 6_700), Duration::from_us(300));
        // What was long ago says nothing.
        assert_eq!(hold(&mut least, 500_000, 500_100), hold_max);
    }
}
