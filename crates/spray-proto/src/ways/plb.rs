//! PLB: a flow changes its path after several round trips with at least half of the packets marked,
//! or after a timeout.
//!
//! Source: Qureshi and others, *PLB: congestion signals are simple and effective for network load
//! balancing* (2022), as in Linux since 6.2 (`tcp_plb.c`), with its defaults. A round is congested
//! with half of its packets marked. A change takes 12 congested rounds, or 3 with nothing in
//! flight. Differs: a round is counted from the packets sent here, where Linux uses TCP's rounds.
//! The path also changes on every timeout (PRR), after which marks are ignored for 60 to 120 s.

use super::prr::Prr;
use super::{PacketFate, Spreader};
use anabranch_units::{Duration, Instant, RandomStream};

/// Defaults of `tcp_plb_rehash_rounds` and `tcp_plb_idle_rehash_rounds`.
const ROUNDS: u32 = 12;
const ROUNDS_IDLE: u32 = 3;
/// Default of `tcp_plb_suspend_rto_sec`.
const SUSPENDED: Duration = Duration::from_secs(60);

/// Current path of a flow, and its congestion state.
#[derive(Debug)]
pub(super) struct Plb {
    way: Prr,
    random: RandomStream,
    /// Acknowledged and marked packets of the current round, and the round's size.
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
        // A round ends once as many packets have arrived as were in flight at its start.
        if self.round.0 == 0 {
            self.round_packets = in_flight.max(1) as u32;
        }
        self.way.value()
    }
    fn handle_fate(&mut self, _: Instant, value: u16, fate: PacketFate) {
        if value != self.way.value() || fate == PacketFate::Late {
            return;
        }
        self.round.0 += 1;
        self.round.1 += u32::from(fate == PacketFate::Marked);
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
