//! PLB: a flow takes another way when half of its packets or more were marked in each of several round trips, or after a timeout.
//!
//! Source: Qureshi and others, *PLB: congestion signals are simple and effective for network load balancing* (2022), as Linux has it since 6.2
//! (`tcp_plb.c`), with its defaults: a round counts as congested with half of its packets marked; 12 such rounds, or 3 and nothing on its
//! way, are enough. Differs: rounds are those of packets that left here, where Linux takes TCP's, and a way is left on every timeout (PRR),
//! while for 60 to 120 s after one, no mark counts.

use super::prr::Prr;
use super::{Fate, Spreader};
use anabranch_units::{Duration, Instant, RandomStream};

/// `tcp_plb_rehash_rounds`, `tcp_plb_idle_rehash_rounds`.
const ROUNDS: u32 = 12;
const ROUNDS_IDLE: u32 = 3;
/// `tcp_plb_suspend_rto_sec`.
const SUSPENDED: Duration = Duration::from_secs(60);

/// The way that a flow has, and how it fares.
#[derive(Debug)]
pub(super) struct Plb {
    way: Prr,
    random: RandomStream,
    /// Fates of this round, those marked among them, and how many packets it has.
    round: (u32, u32),
    round_packets: u32,
    congested_rounds: u32,
    suspended_until: Instant,
}

impl Plb {
    pub(super) fn new(mut random: RandomStream) -> Self {
        let seed = anabranch_units::Seed::new(random.next_u64());
        let way = Prr::new(random);
        let random = seed.stream("plb", 0);
        Self {
            way,
            random,
            round: (0, 0),
            round_packets: 1,
            congested_rounds: 0,
            suspended_until: Instant::ZERO,
        }
    }
}

impl Spreader for Plb {
    fn choose(&mut self, now: Instant, in_flight: usize) -> u16 {
        let is_enough =
            self.congested_rounds >= ROUNDS || (self.congested_rounds >= ROUNDS_IDLE && in_flight == 0);
        if is_enough && now >= self.suspended_until {
            self.way.redraw();
            self.congested_rounds = 0;
        }
        // A round is over when as many have come as were on their way when it began.
        if self.round.0 == 0 {
            self.round_packets = in_flight.max(1) as u32;
        }
        self.way.value()
    }
    fn handle_fate(&mut self, _: Instant, value: u16, fate: Fate) {
        if value != self.way.value() || fate == Fate::Late {
            return;
        }
        self.round.0 += 1;
        self.round.1 += u32::from(fate == Fate::Marked);
        if self.round.0 >= self.round_packets {
            let is_congested = self.round.1 * 2 >= self.round.0;
            self.congested_rounds = if is_congested { self.congested_rounds + 1 } else { 0 };
            self.round = (0, 0);
        }
    }
    fn handle_timeout(&mut self, now: Instant) {
        self.way.redraw();
        self.congested_rounds = 0;
        let more = Duration::from_ps(self.random.below(SUSPENDED.as_ps()));
        self.suspended_until = now + SUSPENDED + more;
    }
}
