//! The ways from one host to another, where hosts choose them: packets of short flows by the quickest, a long flow by one of its own.
//!
//! Source: CAPS, Algorithm 1, at a host: a long flow keeps to one way while short flows are under way, and takes several while none is.
//! Differs: the paper's switches know no more of a way than its port; here a way that is crowded or dead is left for others ([`Least`]), within
//! two round trips, and a long flow looks for another when nothing comes by its own.
//! Leaves out: which packets are which (`host`). Read [`Chooser`] first.

use super::least::Least;
use super::{Flight, Spreader as _};
use crate::datagram::Body;
use crate::host::Leaving;
use anabranch_units::{BitRate, ByteCount, Duration, Instant, RandomStream};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The most ways to one host.
pub const WAYS_MAX: u16 = 128;
/// Short flows are under way for so long after their last packet, or for four round trips: the paper's period of sampling.
const SHORT_ON: Duration = Duration::from_us(500);
/// Round trips of programs differ by so much for no reason in the network: they wait for a processor, and what came waits to be said.
const JITTER: Duration = Duration::from_ms(1);
/// A packet's length, with which the time on a link is reckoned.
const PACKET: ByteCount = ByteCount::new(1_500);
/// The most long flows whose ways are remembered, and for how long after their last packet. More are spread as short ones are.
const PINS_MAX: usize = 4_096;
const PIN_SILENCE: Duration = Duration::from_secs(2);
/// How many ways a long flow looks at.
const PIN_DRAWN: usize = 8;

/// What leaves.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Going {
    /// A packet of a short flow.
    Short,
    /// A packet of this long flow.
    Long(u32),
    /// What belongs to no flow, or only acknowledges.
    Other,
    /// What finds out how the way is that [`Chooser::poll_probe`] has named.
    Probe,
    /// What answers a host that hears nothing: by any way, as those that seem good may be dead.
    Answer,
}

impl Going {
    /// What a host's datagram is.
    pub const fn of<P>(leaving: &Leaving<P>) -> Self {
        match (&leaving.datagram.body, leaving.is_data, leaving.is_short) {
            (Body::Probe, ..) => Self::Probe,
            (Body::Bare, ..) if leaving.is_answer => Self::Answer,
            (_, false, _) => Self::Other,
            (_, true, true) => Self::Short,
            (_, true, false) => Self::Long(leaving.datagram.flow),
        }
    }
}

/// Why a way was left.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WhyLeft {
    /// A packet did not come.
    Late,
    /// Packets took much longer than by the fastest way, or were marked.
    Crowded,
}

/// How a way fares.
#[derive(Clone, Debug, PartialEq)]
pub struct WayReport {
    /// Packets that came, and of these those that were marked.
    pub came: u64,
    /// See above.
    pub marked: u64,
    /// Packets that had not come when they should have.
    pub late: u64,
    /// Smoothed, once known.
    pub rtt: Option<Duration>,
    /// Why it is not taken now, if it is not.
    pub left: Option<WhyLeft>,
    /// How many long flows keep to it.
    pub long_flows: u32,
}

#[derive(Copy, Clone, Debug)]
struct Pin {
    way: u16,
    last_at: Instant,
}

/// The ways to one host.
#[derive(Debug)]
pub struct Chooser {
    flight: Flight<Least>,
    pins: BTreeMap<u32, Pin>,
    /// Long flows on each way.
    busy: Vec<u32>,
    short_at: Option<Instant>,
    /// Which way is to be tried next.
    probing: Option<u16>,
    swept_at: Instant,
    /// Long flows that have changed their way because nothing came by it.
    moved: u64,
}

impl Chooser {
    /// So many ways, from 0 on, whose narrowest link has this rate.
    ///
    /// Panics: none, or more than [`WAYS_MAX`].
    pub fn new(random: RandomStream, ways: u16, rate: BitRate) -> Self {
        assert!((1..=WAYS_MAX).contains(&ways), "{ways} ways: must be 1 to {WAYS_MAX}");
        let least = Least::with_ways(random, ways.into(), rate.transmit_time(PACKET), JITTER);
        Self {
            flight: Flight::new(Box::new(least)).with_jitter(JITTER),
            pins: BTreeMap::new(),
            busy: vec![0; ways.into()],
            short_at: None,
            probing: None,
            swept_at: Instant::ZERO,
            moved: 0,
        }
    }

    /// Whether a short flow is under way.
    pub fn is_short_on(&self, now: Instant) -> bool {
        let on = self.flight.smoothed().map_or(SHORT_ON, |rtt| (rtt * 4).max(SHORT_ON));
        self.short_at.is_some_and(|at| now.saturating_since(at) < on)
    }

    /// A packet leaves that will be told of when it has come: its number, and its way.
    pub fn handle_leaving(&mut self, now: Instant, going: Going) -> (u32, u16) {
        let is_probe = going == Going::Probe && self.probing.is_some();
        let way = self.choose(now, going);
        (self.flight.handle_leaving_by(now, way, is_probe), way)
    }

    /// When to call [`Chooser::handle_timeout`] next: a packet will be late.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        self.flight.late_at()
    }

    /// Finds out which packets are late, though nothing leaves and nothing comes. [`Chooser::poll_probe`] is to be asked then.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.flight.judge(now);
    }

    /// Whether a way is to be tried: then a packet has to leave as [`Going::Probe`], and this is to be asked again. Also says whether nothing is
    /// heard at all, so that the other host has to answer by any way.
    pub fn poll_probe(&mut self, now: Instant) -> Option<bool> {
        self.probing = self.flight.spreader_mut().probe(now);
        self.probing.map(|_| self.flight.spreader().is_dark())
    }

    /// The way of a packet of which nothing will be told.
    pub fn choose(&mut self, now: Instant, going: Going) -> u16 {
        self.flight.judge(now);
        match going {
            Going::Short => self.short_at = Some(now),
            Going::Long(flow) if self.is_short_on(now) => {
                if let Some(way) = self.pinned(now, flow) {
                    return way;
                }
            }
            Going::Probe => {
                if let Some(way) = self.probing.take() {
                    return way;
                }
            }
            Going::Answer => return self.flight.spreader_mut().any(),
            Going::Long(_) | Going::Other => {}
        }
        self.flight.spreader_mut().choose(now, 0)
    }

    /// The packet of this number has come, `ago` before the other end said so.
    pub fn handle_echo(&mut self, now: Instant, number: u32, ago: Duration, is_marked: bool) {
        self.flight.handle_echo(now, number, ago, is_marked);
    }

    /// The way of a long flow; none where there are too many of them.
    fn pinned(&mut self, now: Instant, flow: u32) -> Option<u16> {
        self.sweep(now);
        let before = self.pins.get(&flow).map(|pin| pin.way);
        let way = match before.filter(|way| !self.flight.spreader().is_hopeless(now, *way)) {
            Some(way) => way,
            None if before.is_none() && self.pins.len() >= PINS_MAX => return None,
            None => {
                let busy = &self.busy;
                let way = self.flight.spreader_mut().quickest(now, PIN_DRAWN, |way| busy[usize::from(way)]);
                if let Some(before) = before {
                    self.moved += 1;
                    self.busy[usize::from(before)] -= 1;
                }
                self.busy[usize::from(way)] += 1;
                way
            }
        };
        self.pins.insert(flow, Pin { way, last_at: now });
        Some(way)
    }

    fn sweep(&mut self, now: Instant) {
        if now.saturating_since(self.swept_at) < PIN_SILENCE {
            return;
        }
        self.swept_at = now;
        let busy = &mut self.busy;
        self.pins.retain(|_, pin| {
            let stays = now.saturating_since(pin.last_at) < PIN_SILENCE;
            busy[usize::from(pin.way)] -= u32::from(!stays);
            stays
        });
    }

    /// The smoothed round trip over all ways, and the fastest, once known.
    pub fn round_trips(&self) -> (Option<Duration>, Option<Duration>) {
        (self.flight.smoothed(), self.flight.spreader().base())
    }
    /// How often a long flow has changed its way because nothing came by it.
    pub const fn moved(&self) -> u64 {
        self.moved
    }

    /// How each way fares.
    pub fn report(&self, now: Instant) -> Vec<WayReport> {
        let least = self.flight.spreader();
        let report = |value: u16| {
            let way = least.way(value)?;
            let left = if least.is_failing(value) {
                Some(WhyLeft::Late)
            } else {
                least.is_crowded(now, value).then_some(WhyLeft::Crowded)
            };
            let long_flows = self.busy[usize::from(value)];
            Some(WayReport {
                came: way.came,
                marked: way.marked,
                late: way.late,
                rtt: way.rtt,
                left,
                long_flows,
            })
        };
        (0..least.count() as u16).filter_map(report).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_units::Seed;
    use std::collections::{BTreeSet, VecDeque};

    fn at(us: u64) -> Instant {
        Instant::ZERO + Duration::from_us(us)
    }
    fn chooser(ways: u16) -> Chooser {
        Chooser::new(Seed::new(1).stream("ways", 0), ways, BitRate::gbps(1))
    }

    #[test]
    fn a_long_flow_keeps_to_one_way_while_a_short_one_is_under_way_and_takes_many_when_none_is() {
        let mut chooser = chooser(16);
        let mut ways = |from: u64, is_short: bool| -> BTreeSet<u16> {
            (0..200)
                .map(|n| {
                    let now = at(from + n * 100);
                    if is_short {
                        chooser.choose(now, Going::Short);
                    }
                    chooser.choose(now, Going::Long(7))
                })
                .collect()
        };
        assert!(ways(0, false).len() > 8);
        assert_eq!(ways(20_000, true).len(), 1);
        assert!(ways(50_000, false).len() > 8);
    }

    #[test]
    fn long_flows_keep_out_of_each_others_way() {
        let mut chooser = chooser(16);
        chooser.choose(at(0), Going::Short);
        let ways: BTreeSet<u16> = (0..4).map(|flow| chooser.choose(at(1), Going::Long(flow))).collect();
        assert_eq!(ways.len(), 4);
        assert_eq!(chooser.report(at(2)).iter().map(|way| way.long_flows).sum::<u32>(), 4);
        // Those that are gone for long are forgotten.
        chooser.choose(at(10_000_000), Going::Short);
        chooser.choose(at(10_000_000), Going::Long(9));
        assert_eq!(chooser.report(at(2)).iter().map(|way| way.long_flows).sum::<u32>(), 1);
    }

    /// Packets of one short and one long flow; from some moment on nothing comes by the long flow's way.
    #[test]
    fn a_dead_way_is_left_within_two_round_trips() {
        let mut chooser = chooser(8);
        let (mut dead, mut dead_at, mut last_at) = (None, 0, 0);
        let mut echoes: VecDeque<(u64, u32)> = VecDeque::new();
        for n in 0..20_000 {
            let now = n * 20;
            while let Some((due, number)) = echoes.front().copied().filter(|(due, _)| *due <= now) {
                chooser.handle_echo(at(due), number, Duration::ZERO, false);
                echoes.pop_front();
            }
            let going = if n % 2 == 0 { Going::Short } else { Going::Long(1) };
            let (number, way) = chooser.handle_leaving(at(now), going);
            if n == 10_001 {
                (dead, dead_at) = (Some(way), now);
            }
            if dead == Some(way) {
                // Once in a while it is tried again.
                last_at = if now < dead_at + 20_000 { now } else { last_at };
            } else {
                echoes.push_back((now + 500, number));
            }
        }
        assert!(dead.is_some() && last_at - dead_at <= 1_550, "left after {} us", last_at - dead_at);
        assert_eq!(chooser.moved(), 1);
        let report = chooser.report(at(400_000));
        let late: u64 = report.iter().map(|way| way.late).sum();
        assert!((1..100).contains(&late), "{late}");
    }
    /// All ways that were taken die at once, and then nothing leaves but now and again: by those that are dead no more goes than by others.
    #[test]
    fn what_leaves_after_a_pause_knows_which_ways_have_died() {
        let mut chooser = chooser(8);
        let mut round = |now: u64, alive: std::ops::Range<u16>| {
            let (number, way) = chooser.handle_leaving(at(now), Going::Short);
            if alive.contains(&way) {
                chooser.handle_echo(at(now + 500), number, Duration::ZERO, false);
            }
        };
        for n in 0..1_000 {
            round(n * 1_000, 0..4);
        }
        for _ in 0..40 {
            round(1_000_000, 0..0);
        }
        let ways = (0..100).filter(|_| chooser.choose(at(1_500_000), Going::Other) >= 4).count();
        assert!(ways > 25, "{ways} of 100 by ways that may be alive");
    }
}
