//! Path choice by the sending host: packets of short flows take the fastest path, and a long flow
//! keeps to one path.
//!
//! Source: CAPS, Algorithm 1, applied to a host: a long flow keeps to one path while short flows
//! are active, and uses several paths otherwise. Differs: the paper's switches identify a path by
//! its port only. Here a congested or dead path is avoided within two round trips ([`Least`]), and
//! a long flow changes its path when nothing arrives over it. Leaves out: classification of packets
//! (`host`). Read [`Chooser`] first.

use super::least::Least;
use super::{Flight, Spreader as _};
use crate::datagram::{Body, DARK, Datagram};
use anabranch_units::{BitRate, ByteCount, Duration, Instant, RandomStream};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of paths to one host.
pub const WAYS_MAX: u16 = 128;
/// Minimum time after their last packet for which short flows count as active, the paper's sampling
/// period. The time is four round trips if they are longer.
const SHORT_ON: Duration = Duration::from_us(500);
/// Variation of round trips that the hosts cause: programs wait for a processor, and echoes wait to
/// be sent.
const JITTER: Duration = Duration::from_ms(1);
/// Packet length from which a packet's transmission time on a link is computed.
const PACKET: ByteCount = ByteCount::new(1_500);
/// Maximum number of long flows with an assigned path, and lifetime of an assignment after the
/// flow's last packet. Further long flows are spread like short flows.
const PINS_MAX: usize = 4_096;
const PIN_SILENCE: Duration = Duration::from_secs(2);
/// Number of random paths that a long flow compares to choose its path.
const PIN_DRAWN: usize = 8;

/// Class of an outgoing datagram.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum DatagramClass {
    /// A packet of a short flow.
    Short,
    /// A packet of this long flow.
    Long(u32),
    /// A packet without a flow, or a pure acknowledgement.
    Other,
    /// A probe of the path that [`Chooser::poll_probe`] has named.
    Probe,
    /// An answer to a host that receives nothing. It takes any path, because the seemingly good
    /// paths may be dead.
    Answer,
}

impl DatagramClass {
    /// Returns the class of a datagram. `is_data` is true if it carries data or a parity,
    /// `is_short` if its flow is short.
    pub(crate) const fn of<P>(datagram: &Datagram<P>, is_data: bool, is_short: bool) -> Self {
        match &datagram.body {
            Body::Probe => Self::Probe,
            Body::Bare if datagram.flow == DARK => Self::Answer,
            _ if !is_data => Self::Other,
            _ if is_short => Self::Short,
            _ => Self::Long(datagram.flow),
        }
    }

    /// True if the datagram carries data or a parity.
    pub const fn is_data(self) -> bool {
        matches!(self, Self::Short | Self::Long(_))
    }
}

/// Reason for avoiding a path.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AvoidReason {
    /// A packet was lost.
    Late,
    /// Packets took much longer than over the fastest path, or were marked.
    Crowded,
}

/// Statistics of a path.
#[derive(Clone, Debug, PartialEq)]
pub struct PathReport {
    /// Number of acknowledged packets.
    pub came: u64,
    /// Number of acknowledged packets with a mark.
    pub marked: u64,
    /// Number of packets whose acknowledgement was overdue.
    pub late: u64,
    /// Smoothed round trip, once known.
    pub rtt: Option<Duration>,
    /// Reason why the path is currently avoided, if it is.
    pub left: Option<AvoidReason>,
    /// Number of long flows assigned to the path.
    pub long_flows: u32,
}

#[derive(Copy, Clone, Debug)]
struct Pin {
    way: u16,
    last_at: Instant,
}

/// Paths to one host.
#[derive(Debug)]
pub struct Chooser {
    flight: Flight<Least>,
    pins: BTreeMap<u32, Pin>,
    /// Number of long flows on each path.
    busy: Vec<u32>,
    short_at: Option<Instant>,
    /// Path of the next probe.
    probing: Option<u16>,
    swept_at: Instant,
    /// Number of path changes of long flows because nothing arrived.
    moved: u64,
}

impl Chooser {
    /// Creates the chooser of paths 0 to `ways - 1`. `rate` is the rate of the narrowest link.
    ///
    /// Panics: if `ways` is 0 or above [`WAYS_MAX`].
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

    /// Returns true if a short flow is active.
    pub fn is_short_on(&self, now: Instant) -> bool {
        let on = self.flight.smoothed().map_or(SHORT_ON, |rtt| (rtt * 4).max(SHORT_ON));
        self.short_at.is_some_and(|at| now.saturating_since(at) < on)
    }

    /// Records a packet that leaves and will be echoed. Returns its number and path.
    pub fn handle_leaving(&mut self, now: Instant, class: DatagramClass) -> (u32, u16) {
        let is_probe = class == DatagramClass::Probe && self.probing.is_some();
        let way = self.choose(now, class);
        (self.flight.handle_leaving_by(now, way, is_probe), way)
    }

    /// Time of the next [`Chooser::handle_timeout`], when a packet becomes late.
    pub fn poll_timeout(&mut self) -> Option<Instant> {
        self.flight.late_at()
    }

    /// Finds late packets. [`Chooser::poll_probe`] must be called afterwards.
    pub fn handle_timeout(&mut self, now: Instant) {
        self.flight.judge(now);
    }

    /// Returns `Some` if a path must be probed. The next packet must then leave as
    /// [`DatagramClass::Probe`], and the caller must call this again. The value is true if this
    /// host receives nothing at all, so that the other host must answer over any path.
    pub fn poll_probe(&mut self, now: Instant) -> Option<bool> {
        self.probing = self.flight.spreader_mut().probe(now);
        self.probing.map(|_| self.flight.spreader().is_dark())
    }

    /// Returns the path of a packet that will not be echoed.
    pub fn choose(&mut self, now: Instant, class: DatagramClass) -> u16 {
        self.flight.judge(now);
        match class {
            DatagramClass::Short => self.short_at = Some(now),
            DatagramClass::Long(flow) if self.is_short_on(now) => {
                if let Some(way) = self.pinned(now, flow) {
                    return way;
                }
            }
            DatagramClass::Probe => {
                if let Some(way) = self.probing.take() {
                    return way;
                }
            }
            DatagramClass::Answer => return self.flight.spreader_mut().any(),
            DatagramClass::Long(_) | DatagramClass::Other => {}
        }
        self.flight.spreader_mut().choose(now, 0)
    }

    /// Handles the echo of a packet that arrived `ago` before the echo was sent.
    pub fn handle_echo(&mut self, now: Instant, number: u32, ago: Duration, is_marked: bool) {
        self.flight.handle_echo(now, number, ago, is_marked);
    }

    /// Returns the path of a long flow; `None` if there are too many long flows.
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

    /// Smoothed and fastest round trip over all paths, once known.
    pub fn round_trips(&self) -> (Option<Duration>, Option<Duration>) {
        (self.flight.smoothed(), self.flight.spreader().base())
    }
    /// Number of path changes of long flows because nothing arrived.
    pub const fn moved(&self) -> u64 {
        self.moved
    }

    /// Statistics of each path.
    pub fn report(&self, now: Instant) -> Vec<PathReport> {
        let least = self.flight.spreader();
        let report = |value: u16| {
            let way = least.way(value)?;
            let left = if least.is_failing(value) {
                Some(AvoidReason::Late)
            } else {
                least.is_crowded(now, value).then_some(AvoidReason::Crowded)
            };
            let long_flows = self.busy[usize::from(value)];
            Some(PathReport {
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
    fn long_flow_uses_one_path_beside_short_flows() {
        let mut chooser = chooser(16);
        let mut ways = |from: u64, is_short: bool| -> BTreeSet<u16> {
            (0..200)
                .map(|n| {
                    let now = at(from + n * 100);
                    if is_short {
                        chooser.choose(now, DatagramClass::Short);
                    }
                    chooser.choose(now, DatagramClass::Long(7))
                })
                .collect()
        };
        assert!(ways(0, false).len() > 8);
        assert_eq!(ways(20_000, true).len(), 1);
        assert!(ways(50_000, false).len() > 8);
    }

    #[test]
    fn long_flows_take_different_paths() {
        let mut chooser = chooser(16);
        chooser.choose(at(0), DatagramClass::Short);
        let ways: BTreeSet<u16> =
            (0..4).map(|flow| chooser.choose(at(1), DatagramClass::Long(flow))).collect();
        assert_eq!(ways.len(), 4);
        assert_eq!(chooser.report(at(2)).iter().map(|way| way.long_flows).sum::<u32>(), 4);
        // Flows are forgotten after a long silence.
        chooser.choose(at(10_000_000), DatagramClass::Short);
        chooser.choose(at(10_000_000), DatagramClass::Long(9));
        assert_eq!(chooser.report(at(2)).iter().map(|way| way.long_flows).sum::<u32>(), 1);
    }

    /// Sends packets of one short and one long flow. After 200 ms the long flow's path dies.
    #[test]
    fn long_flow_leaves_dead_path_within_two_round_trips() {
        let mut chooser = chooser(8);
        let (mut dead, mut dead_at, mut last_at) = (None, 0, 0);
        let mut echoes: VecDeque<(u64, u32)> = VecDeque::new();
        for n in 0..20_000 {
            let now = n * 20;
            while let Some((due, number)) = echoes.front().copied().filter(|(due, _)| *due <= now) {
                chooser.handle_echo(at(due), number, Duration::ZERO, false);
                echoes.pop_front();
            }
            let class = if n % 2 == 0 { DatagramClass::Short } else { DatagramClass::Long(1) };
            let (number, way) = chooser.handle_leaving(at(now), class);
            if n == 10_001 {
                (dead, dead_at) = (Some(way), now);
            }
            if dead == Some(way) {
                // A dead path is probed occasionally.
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
    /// All paths in use die at once, and then packets leave rarely. The dead paths get about as
    /// many of these packets as the other paths, and not more.
    #[test]
    fn dead_paths_are_not_preferred_after_a_pause() {
        let mut chooser = chooser(8);
        let mut round = |now: u64, alive: std::ops::Range<u16>| {
            let (number, way) = chooser.handle_leaving(at(now), DatagramClass::Short);
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
        let ways = (0..100).filter(|_| chooser.choose(at(1_500_000), DatagramClass::Other) >= 4).count();
        assert!(ways > 25, "{ways} of 100 by ways that may be alive");
    }
}
