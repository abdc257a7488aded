//! Hold time for an overtaken packet: the delay difference between the slowest path and the
//! overtaking packet's path.
//!
//! A packet's *excess* is its delay beyond the fastest packet from the same host. The offset
//! between two clocks shifts all delays equally, so it cancels out. Short flows end before one host
//! has many samples, so excesses of packets from all hosts count together. Read [`ExcessWindows`]
//! first.

use anabranch_units::{Duration, Instant};

/// Length of a window for the longest excess and the least delay. The current and the previous
/// window count.
const WINDOW: Duration = Duration::from_ms(50);
/// Minimum number of packets from which the longest excess is used.
const PACKETS_MIN: u32 = 32;
/// Minimum hold. A shorter one would treat a packet that follows immediately as lost.
const HOLD_MIN: Duration = Duration::from_us(20);

/// Extreme values of the current and the previous window.
#[derive(Copy, Clone, Debug, Default)]
struct Windows<T> {
    now: Option<T>,
    before: Option<T>,
    since: Instant,
}

impl<T: Copy> Windows<T> {
    /// Records a value. Returns the extreme of both windows by `better`.
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

/// Least delay of packets from one host in picoseconds, including the offset between the two
/// clocks.
#[derive(Clone, Debug, Default)]
pub(crate) struct Least(Windows<i128>);

/// Excesses of packets from all hosts.
#[derive(Clone, Debug, Default)]
pub(crate) struct ExcessWindows {
    longest: Windows<u64>,
    packets: u32,
}

impl ExcessWindows {
    /// Records a packet. Returns how long earlier packets may still be in flight, at most
    /// `hold_max`. Returns `hold_max` while too few excesses are known.
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
    fn hold_covers_the_slowest_path_plus_a_quarter() {
        let (mut spread, mut least) = (ExcessWindows::default(), Least::default());
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
        // The second host has another clock offset, and uses the excesses of the first host's
        // packets.
        let mut other = Least::default();
        assert_eq!(hold(&mut other, 9_000_000, 6_000), Duration::from_us(1_000));
        assert_eq!(hold(&mut other, 9_000_000, 6_700), Duration::from_us(300));
        // Old observations do not count.
        assert_eq!(hold(&mut least, 500_000, 500_100), hold_max);
    }
}
