//! REPS: values of packets that arrived unmarked are reused once each. A new value is drawn if no
//! such value is left.
//!
//! Source: Bonato and others, *REPS: Recycled Entropy Packet Spraying for Adaptive Load Balancing
//! and Failure Mitigation* (2024), Algorithms 1 and 2: the last eight values, and no new values for
//! a while after a loss (*freezing*). Choices: freezing lasts for 100 us, or eight arrivals,
//! whichever is later; the packets of the first window use new values.

use super::{PacketFate, Spreader};
use anabranch_units::{Duration, Instant, RandomStream};
use std::collections::VecDeque;

/// Maximum number of values remembered.
const VALUES_MAX: usize = 8;
const FREEZING: Duration = Duration::from_us(100);

/// Values that arrived unmarked, oldest first.
#[derive(Debug)]
pub(super) struct Reps {
    random: RandomStream,
    /// Values not reused yet.
    fresh: VecDeque<u16>,
    /// Values already reused, for use while frozen.
    used: VecDeque<u16>,
    frozen_until: Option<Instant>,
}

impl Reps {
    pub(super) const fn new(random: RandomStream) -> Self {
        Self { random, fresh: VecDeque::new(), used: VecDeque::new(), frozen_until: None }
    }
    /// Returns a value known to be good; `None` if a new one must be drawn.
    pub(super) fn recycled(&mut self, now: Instant) -> Option<u16> {
        if self.frozen_until.is_some_and(|until| now >= until) {
            self.frozen_until = None;
        }
        let value = match self.fresh.pop_front() {
            Some(value) => value,
            None => self.frozen_until.and_then(|_| self.used.pop_front())?,
        };
        if self.used.len() == VALUES_MAX {
            self.used.pop_front();
        }
        self.used.push_back(value);
        Some(value)
    }
}

impl Spreader for Reps {
    fn choose(&mut self, now: Instant, _: usize) -> u16 {
        self.recycled(now).unwrap_or_else(|| self.random.next_u64() as u16)
    }
    fn handle_fate(&mut self, now: Instant, value: u16, fate: PacketFate) {
        match fate {
            PacketFate::Came => {
                if self.fresh.len() == VALUES_MAX {
                    self.fresh.pop_front();
                }
                self.fresh.push_back(value);
            }
            PacketFate::Marked => {}
            PacketFate::Late => {
                self.used.retain(|used| *used != value);
                self.fresh.retain(|fresh| *fresh != value);
                self.frozen_until = Some(now + FREEZING);
            }
        }
    }
}
