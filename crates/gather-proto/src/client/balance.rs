//! How much each of several servers brings of a piece that all of them hold, so that all end together: how long a pull is, and what
//! is taken from a server that others overtake.
//!
//! Leaves out: which pieces there are and who holds them (`client`), rates on the last hop (`hop`).

use super::{Client, PullId, ServerId, State};
use crate::msg::Control;
use anabranch_codes::Symbol;
use anabranch_units::{Duration, Instant};
use std::collections::VecDeque;
use std::ops::Range;

/// The most bytes of a pull: its packets must have numbers.
const PULL_BYTES_MAX: u64 = 1 << 38;
/// The fewest bytes of a pull of what several hold, where more are missing; portions end at multiples of it.
const PORTION_MIN: u64 = 256 << 10;
/// How long the fastest server is to have work for with the shortest portion.
const PORTION_TIME_S: f64 = 0.5;
/// How often it is looked for servers that others would overtake, and how old a pull must be for that.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// What will have come within this is left alone.
const SOON_S: f64 = 2.0;
/// A server crawls that is slower than an idle one by this factor: it is not asked for that piece again.
const CRAWL_SHARE: f64 = 0.25;

/// Takes from what is missing what one pull asks for: a range, where there is one holder; of what several hold half of each
/// one's share. The fastest of them brought `rate_bytes_per_s`; where that is known no portion takes it less than
/// [`PORTION_TIME_S`], else none is shorter than the share, but no more than `least` is asked for on that account.
///
/// Long pulls spare requests and rates that are found anew, short ones at the end let all servers end together.
/// Source: guided self-scheduling (Polychronopoulos and Kuck, IEEE Transactions on Computers 1987), with half the share.
pub(super) fn portion(
    missing: &mut VecDeque<Range<u64>>,
    holders: usize,
    rate_bytes_per_s: Option<f64>,
    least: u64,
) -> Range<u64> {
    let left: u64 = missing.iter().map(|range| range.end - range.start).sum();
    let first = missing.front_mut().expect("a piece that is queued lacks something");
    let end = if holders > 1 {
        let share = left / holders as u64;
        let shortest = rate_bytes_per_s.map_or(share, |rate| (rate * PORTION_TIME_S) as u64).min(least);
        let length = (share / 2).max(shortest).clamp(PORTION_MIN, PULL_BYTES_MAX);
        first.start.saturating_add(length).checked_next_multiple_of(PORTION_MIN).unwrap_or(u64::MAX)
    } else {
        first.start.saturating_add(PULL_BYTES_MAX)
    };
    if end >= first.end {
        return missing.pop_front().expect("it was there");
    }
    let range = first.start..end;
    first.start = end;
    range
}

impl<S: Symbol> Client<S> {
    /// Takes pulls from servers that will not end soon, where an idle one holds the same: nothing else waits to be asked for
    /// then. What is missing is portioned anew; one that crawls, or of whose pull nothing has come, gets none of it
    /// while another one is left.
    pub(super) fn overtake(&mut self, now: Instant) {
        if self.look_at.is_none_or(|at| at > now) {
            self.look_at.get_or_insert(now + LOOK_EVERY);
            return;
        }
        self.look_at = Some(now + LOOK_EVERY);
        if !self.queue.is_empty() {
            return;
        }
        let is_idle = |server: &ServerId| {
            let state = &self.servers[server.0 as usize];
            state.is_connected && state.pulls == 0
        };
        let mut idle: Vec<ServerId> = (0..self.servers.len() as u32).map(ServerId).filter(is_idle).collect();
        let mut late: Vec<(f64, PullId, f64)> = Vec::new();
        for (id, pull) in &self.pulls {
            let State::Receiving(receiver) = &pull.state else { continue };
            let age = now.saturating_since(pull.asked_at);
            let (all, came) = (receiver.layout().bytes(), receiver.complete_bytes());
            let rate = came as f64 / age.as_secs_f64();
            let lasts = (all - came) as f64 / rate;
            if age >= LOOK_EVERY && all > came && lasts > SOON_S {
                late.push((lasts, *id, rate));
            }
        }
        // What would last longest is taken first.
        late.sort_by(|a, b| b.0.total_cmp(&a.0));
        let mut has_taken = false;
        for (_, id, rate) in late {
            let pull = &self.pulls[&id];
            let (server, holders) = (pull.server, self.left(pull.piece));
            let rate_of = |server: ServerId| self.servers[server.0 as usize].rate_bytes_per_s;
            // One that has shown nothing yet may be as fast.
            let helps = |server: &ServerId| {
                holders.contains(server) && rate_of(*server).is_none_or(|other| other > rate)
            };
            let Some(at) = idle.iter().position(helps) else { continue };
            let other = idle.remove(at);
            let is_silent =
                matches!(&pull.state, State::Receiving(receiver) if receiver.heard_at().is_none());
            self.control.push_back((server, Control::Stop { pull: id }));
            let crawls_beside = rate_of(other).filter(|other| rate < CRAWL_SHARE * other);
            let mbps = |bytes_per_s: f64| bytes_per_s * 8.0 / 1e6;
            if is_silent {
                self.set_aside(id, format!("it sent nothing for {} s", LOOK_EVERY.as_secs_f64()));
            } else if let Some(other) = crawls_beside {
                let reason =
                    format!("it crawls: {:.1} Mbit/s where another brought {:.1}", mbps(rate), mbps(other));
                self.set_aside(id, reason);
            } else {
                self.servers[server.0 as usize].brought(rate);
                self.take_back(id);
                self.regrant(false);
            }
            has_taken = true;
        }
        if has_taken {
            self.schedule(now);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{PORTION_MIN, portion};
    use proptest::prelude::*;
    use std::collections::VecDeque;

    proptest! {
        #[test]
        fn portions_are_all_that_is_missing_once_and_in_order(
            lengths in proptest::collection::vec((0u64..1 << 20, 1u64..1 << 24), 1..6), holders in 1usize..5, least in 1u64..1 << 22,
            rate in proptest::option::of(0.0..1e8),
        ) {
            let mut missing = VecDeque::new();
            let mut at = 0;
            for (gap, length) in lengths {
                missing.push_back(at + gap..at + gap + length);
                at += gap + length;
            }
            let all = missing.clone();
            let mut taken: Vec<std::ops::Range<u64>> = Vec::new();
            while !missing.is_empty() {
                let left: u64 = missing.iter().map(|range| range.end - range.start).sum();
                let range = portion(&mut missing, holders, rate, least);
                let share = if holders == 1 { left } else { (left / (2 * holders as u64)).max(least) + 2 * PORTION_MIN };
                prop_assert!(!range.is_empty() && range.end - range.start <= share);
                match taken.last_mut() {
                    Some(last) if last.end == range.start && !all.iter().any(|r| r.start == range.start) => {
                        prop_assert!(holders > 1 && range.start.is_multiple_of(PORTION_MIN));
                        last.end = range.end;
                    }
                    _ => taken.push(range),
                }
            }
            prop_assert_eq!(VecDeque::from(taken), all);
        }
    }
}
