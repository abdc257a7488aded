//! Days, weeks and rates of a hybrid switch, as the sites observe them by the machine's clock.
//!
//! The fabric computes the intended arrival of every packet; a site gets each packet when the
//! emulator hands it over. So a day is measured from the first to the last packet that a site
//! received by a circuit, and includes the emulator's lateness. The hops of a packet show its
//! network: a circuit is one link, the packet network two.
//!
//! Source: Mukerjee, *Eliminating Adverse Control Plane Interactions* (CMU-CS-18-106, 2018),
//! §2.3.5. Read [`CircuitFigures`] first.

use crate::{CircuitMark, EmuError, ScheduleFigures, Switching, route};
use anabranch_fabric::{CircuitCounters, CircuitSettings, CircuitSwitch, PacketMeta};
use anabranch_graph::Topology;
use anabranch_sim::circuits::CircuitSchedule;
use anabranch_units::{ByteCount, Duration, Instant, LinkId, SiteId};
use serde::Serialize;

/// Means and standard deviations over the circuits of all pairs, in emulated time. A figure is
/// `None` without values.
///
/// A day lasts from the start of its first packet's transmission to the arrival of its last packet.
/// So a measured day equals the switch's day only if packets are queued all day.
#[derive(Copy, Clone, Debug, Default, PartialEq, Serialize)]
pub struct CircuitFigures {
    /// Bytes sent by circuits since the start.
    pub circuit_bytes: u64,
    /// Bytes sent by the packet network since the start.
    pub packet_network_bytes: u64,
    /// Number of measured days, each with at least two packets.
    pub days: u64,
    /// Mean length of a day, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day_us_mean: Option<f64>,
    /// Standard deviation of a day's length, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub day_us_sd: Option<f64>,
    /// Mean time in microseconds between the starts of a pair's day in two consecutive weeks.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub week_us_mean: Option<f64>,
    /// Standard deviation of a week's length, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub week_us_sd: Option<f64>,
    /// Mean rate of a circuit during its day, in Gbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit_gbps_mean: Option<f64>,
    /// Standard deviation of the circuits' rates, in Gbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub circuit_gbps_sd: Option<f64>,
    /// Mean rate of the packet network to a rack, in Gbit/s. Averaged over windows of a day and its
    /// night, or of a week if circuits follow demand.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_gbps_mean: Option<f64>,
    /// Standard deviation of the packet network's rate, in Gbit/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub packet_gbps_sd: Option<f64>,
    /// Figures of the weeks of circuits that follow demand; their days are not measured. `None` for
    /// a fixed timetable.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleFigures>,
}

/// Options of a hybrid switch in place of a site's switch. Its ports are the site's links, in the
/// same order.
#[derive(Clone, Debug)]
pub struct CircuitOptions {
    /// The site whose switch is replaced.
    pub site: SiteId,
    /// Networks, queues and timetable of the switch.
    pub settings: CircuitSettings,
    /// Form in which hosts see the marks of [`CircuitSettings::mark_ahead`].
    pub mark: CircuitMark,
    /// Weeks that follow demand, in place of the settings' timetable. `None` keeps that timetable.
    pub schedule: Option<CircuitSchedule>,
}

/// The hybrid switch, and the observer of its packets.
pub(crate) struct Circuits {
    pub site: SiteId,
    pub switch: CircuitSwitch,
    pub mark: CircuitMark,
    pub observer: CircuitObserver,
    /// Weeks that follow demand, and the rack of each site.
    pub schedule: Option<(CircuitSchedule, Vec<Option<u16>>)>,
}

impl Circuits {
    /// Creates the hybrid switch at a site, whose ports are the site's links.
    pub(crate) fn at(
        topology: &Topology,
        switching: &[Switching],
        CircuitOptions { site, settings, mark, schedule }: CircuitOptions,
    ) -> Result<Self, EmuError> {
        let links: Vec<LinkId> = topology.links_out(site).collect();
        let next = |from: SiteId, to: SiteId| switching[from.index()].next[to.index()].first().copied();
        let rack = |to| links.iter().position(|own| Some(*own) == next(site, to)).map(|rack| rack as u16);
        let rack_of: Vec<Option<u16>> = topology.site_ids().map(rack).collect();
        // A dead end or a loop counts as the number of sites, at most 255.
        let links_between = |from: SiteId, to: SiteId| {
            let way = std::iter::successors(next(from, to), |link| next(topology.link(*link).to, to));
            way.take(topology.sites().len()).count().min(u8::MAX.into()) as u8
        };
        let pairs = topology.site_ids().flat_map(|from| topology.site_ids().map(move |to| (from, to)));
        let links_between = pairs.map(|(from, to)| links_between(from, to)).collect();
        let outputs = links.iter().map(|link| route::port(*link)).collect();
        let switch =
            CircuitSwitch::new(rack_of.clone(), outputs, settings.clone()).map_err(EmuError::Circuit)?;
        let schedule = schedule.map(|schedule| (schedule, rack_of.clone()));
        let observer = CircuitObserver::new(&settings, rack_of, links.len(), links_between);
        Ok(Self { site, switch, mark, observer, schedule })
    }
}

/// Running mean and standard deviation; the values are not stored.
#[derive(Copy, Clone, Debug, Default)]
struct RunningStats {
    count: u64,
    mean: f64,
    squares: f64,
}

impl RunningStats {
    /// Records one value.
    ///
    /// Source: Welford, Technometrics 4 (1962), as in Knuth, *The Art of Computer Programming*,
    /// vol. 2, section 4.2.2.
    fn record(&mut self, value: f64) {
        self.count += 1;
        let apart = value - self.mean;
        self.mean += apart / self.count as f64;
        self.squares += apart * (value - self.mean);
    }
    /// Records `count` values of zero at once.
    ///
    /// Source: Chan et al., *Updating formulae and a pairwise algorithm for computing sample
    /// variances* (1979), equation 2.1, for a second sample whose mean and deviation are zero.
    fn record_zeros(&mut self, count: u64) {
        if count == 0 {
            return;
        }
        let before_share = self.count as f64 / (self.count + count) as f64;
        self.squares += self.mean * self.mean * count as f64 * before_share;
        self.mean *= before_share;
        self.count += count;
    }
    fn mean(&self) -> Option<f64> {
        (self.count > 0).then_some(self.mean)
    }
    fn sd(&self) -> Option<f64> {
        (self.count > 1).then(|| (self.squares / (self.count - 1) as f64).sqrt())
    }
}

/// Bytes sent by circuit in one day of a pair.
#[derive(Copy, Clone, Debug)]
struct Day {
    week: u64,
    first_at: Instant,
    last_at: Instant,
    bytes: u64,
    first_bytes: u32,
    /// False for a slot's first day, which may have started before the measurement.
    is_whole: bool,
}

/// A slot of the timetable in which a pair has its circuit.
#[derive(Clone, Debug)]
struct DaySlot {
    /// Start within the week.
    begin: Duration,
    /// The slot's latest day. `None` before its first packet.
    day: Option<Day>,
}

/// Bytes to one rack over the packet network, in windows of equal length.
#[derive(Copy, Clone, Debug, Default)]
struct Downlink {
    /// Number of the current window. `None` before the first packet.
    window: Option<u64>,
    bytes: u64,
    /// False for the first window, which may have started before the measurement.
    is_whole: bool,
}

/// Observer of the packets that the sites of a hybrid switch receive.
#[derive(Debug)]
pub(crate) struct CircuitObserver {
    settings: CircuitSettings,
    /// Rack of each site. `None` for a switch.
    rack_of: Vec<Option<u16>>,
    racks: usize,
    /// Number of links from site to site outside the hybrid switch, at `source * sites +
    /// destination`.
    links: Vec<u8>,
    /// Days of each pair of racks, at `source * racks + destination`.
    pairs: Vec<Vec<DaySlot>>,
    downlinks: Vec<Downlink>,
    window: Duration,
    days: RunningStats,
    weeks: RunningStats,
    circuit_gbps: RunningStats,
    packet_gbps: RunningStats,
}

impl CircuitObserver {
    pub(crate) fn new(
        settings: &CircuitSettings,
        rack_of: Vec<Option<u16>>,
        racks: usize,
        links: Vec<u8>,
    ) -> Self {
        let mut pairs = vec![Vec::new(); racks * racks];
        let (mut begin, mut slots_with_circuits) = (Duration::ZERO, 0);
        for (length, matching) in settings.timetable.slots() {
            for (source, destination) in matching.iter().enumerate() {
                let Some(destination) = destination else { continue };
                pairs[source * racks + usize::from(*destination)].push(DaySlot { begin, day: None });
            }
            slots_with_circuits += u64::from(matching.iter().any(Option::is_some));
            begin += length;
        }
        let window = Duration::from_ps(begin.as_ps() / slots_with_circuits.max(1));
        let (days, weeks, circuit_gbps, packet_gbps) = Default::default();
        let downlinks = vec![Downlink::default(); racks];
        let settings = settings.clone();
        Self {
            settings,
            rack_of,
            racks,
            links,
            pairs,
            downlinks,
            window,
            days,
            weeks,
            circuit_gbps,
            packet_gbps,
        }
    }

    /// Records a packet that its site received at `now`, and should have received at `meant`. The
    /// difference is the emulator's lateness.
    pub(crate) fn handle(&mut self, now: Instant, meant: Instant, meta: &PacketMeta) {
        let sites = self.rack_of.len();
        let rack = |site: u16| self.rack_of.get(usize::from(site)).copied().flatten().map(usize::from);
        let (Some(source), Some(destination)) = (rack(meta.src), rack(meta.dst)) else { return };
        let links = self.links[usize::from(meta.src) * sites + usize::from(meta.dst)];
        match meta.hops.saturating_sub(links) {
            1 => self.by_circuit(now, meant, source * self.racks + destination, meta.size_bytes),
            2 => self.by_packet_network(now, destination, meta.size_bytes),
            _ => {}
        }
    }

    fn by_circuit(&mut self, now: Instant, meant: Instant, pair: usize, bytes: u32) {
        let period = self.settings.timetable.period();
        let entered_ps = meant.saturating_since(Instant::ZERO + self.settings.circuit_delay).as_ps();
        let (week, into) = (entered_ps / period.as_ps(), Duration::from_ps(entered_ps % period.as_ps()));
        let slots = &mut self.pairs[pair];
        let found = slots.iter().rposition(|slot| slot.begin <= into);
        // The last packets of a week's last day may arrive in the next week.
        let Some((index, week)) =
            found.map(|index| (index, week)).or_else(|| slots.len().checked_sub(1).zip(week.checked_sub(1)))
        else {
            return;
        };
        let slot = &mut slots[index];
        if let Some(day) = slot.day.as_mut().filter(|day| day.week == week) {
            (day.last_at, day.bytes) = (now, day.bytes + u64::from(bytes));
            return;
        }
        let is_whole = slot.day.is_some();
        let first_bytes = bytes;
        let day = Day { week, first_at: now, last_at: now, bytes: bytes.into(), first_bytes, is_whole };
        let Some(before) = slot.day.replace(day).filter(|before| before.is_whole) else { return };
        if before.week + 1 == week {
            self.weeks.record(us(now.saturating_since(before.first_at)));
        }
        self.close(&before);
    }

    fn close(&mut self, day: &Day) {
        if day.last_at <= day.first_at {
            return;
        }
        let first = self.settings.circuit_rate.transmit_time(ByteCount::new(day.first_bytes.into()));
        let length_us = us(day.last_at.saturating_since(day.first_at) + first);
        self.days.record(length_us);
        self.circuit_gbps.record(day.bytes as f64 * 8.0 / length_us / 1e3);
    }

    fn by_packet_network(&mut self, now: Instant, rack: usize, bytes: u32) {
        let window = (now.as_ps() / u128::from(self.window.as_ps())) as u64;
        let downlink = &mut self.downlinks[rack];
        if downlink.window == Some(window) {
            downlink.bytes += u64::from(bytes);
            return;
        }
        if downlink.is_whole {
            self.packet_gbps.record(downlink.bytes as f64 * 8.0 / us(self.window) / 1e3);
        }
        let idle = downlink.window.map_or(0, |before| window.saturating_sub(before + 1));
        self.packet_gbps.record_zeros(idle);
        *downlink =
            Downlink { window: Some(window), bytes: bytes.into(), is_whole: downlink.window.is_some() };
    }

    /// Returns the figures since the start or the last call, and resets them; `schedule` is
    /// included.
    pub(crate) fn take(
        &mut self,
        counters: CircuitCounters,
        schedule: Option<ScheduleFigures>,
    ) -> CircuitFigures {
        let figures = CircuitFigures {
            circuit_bytes: counters.circuit_bytes,
            packet_network_bytes: counters.packet_bytes,
            days: self.days.count,
            day_us_mean: self.days.mean(),
            day_us_sd: self.days.sd(),
            week_us_mean: self.weeks.mean(),
            week_us_sd: self.weeks.sd(),
            circuit_gbps_mean: self.circuit_gbps.mean(),
            circuit_gbps_sd: self.circuit_gbps.sd(),
            packet_gbps_mean: self.packet_gbps.mean(),
            packet_gbps_sd: self.packet_gbps.sd(),
            schedule,
        };
        for slot in self.pairs.iter_mut().flatten() {
            slot.day = None;
        }
        self.downlinks.fill(Downlink::default());
        (self.days, self.weeks, self.circuit_gbps, self.packet_gbps) = Default::default();
        figures
    }
}

fn us(time: Duration) -> f64 {
    time.as_ps() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_fabric::{PacketNetwork, QueueLimits, shifts};
    use anabranch_units::BitRate;
    use proptest::prelude::*;

    const DAY: Duration = Duration::from_us(180);
    const WEEK: Duration = Duration::from_us(600);

    /// An observer of four racks with one site each, whose sites are two links apart outside the
    /// switch.
    fn observer() -> CircuitObserver {
        let settings = CircuitSettings {
            circuit_rate: BitRate::gbps(80),
            circuit_delay: Duration::from_us(30),
            packet: Some(PacketNetwork { rate: BitRate::gbps(10), delay: Duration::from_us(5) }),
            queue: QueueLimits { packets_max: 16, bytes_max: None, mark_packets: None },
            resize: None,
            mark_ahead: None,
            timetable: shifts(4, 1..4, DAY, Duration::from_us(20)).expect("days and nights have a length"),
            around: None,
        };
        CircuitObserver::new(&settings, (0..4).map(Some).collect(), 4, vec![2; 16])
    }

    fn packet(destination: u16, hops: u8) -> PacketMeta {
        let mut meta = PacketMeta::new(0, destination, 9_000);
        meta.hops = hops;
        meta
    }

    /// Figures after four weeks of a full circuit to rack 3 in the week's last day. Each packet is
    /// late by `late` of its number.
    fn filled(late: impl Fn(u64) -> Duration) -> CircuitFigures {
        let mut observer = observer();
        for week in 0..4 {
            let begin = Instant::ZERO + WEEK * week + Duration::from_us(420);
            for number in 1..=200 {
                let meant = begin + Duration::from_ns(900) * number + Duration::from_us(30);
                observer.handle(meant + late(number), meant, &packet(3, 3));
            }
        }
        // The next week's first packet starts another day, which ends the fourth.
        let meant = Instant::ZERO + WEEK * 4 + Duration::from_us(452);
        observer.handle(meant, meant, &packet(3, 3));
        observer.take(CircuitCounters::default(), None)
    }

    #[test]
    fn full_punctual_days_have_the_lengths_in_the_timetable() {
        let figures = filled(|_| Duration::ZERO);
        assert_eq!(figures.days, 3);
        let close = |value: Option<f64>, to: f64| value.is_some_and(|value| (value - to).abs() < 1e-6);
        assert!(close(figures.day_us_mean, 180.0) && close(figures.circuit_gbps_mean, 80.0), "{figures:?}");
        assert!(close(figures.day_us_sd, 0.0) && close(figures.circuit_gbps_sd, 0.0), "{figures:?}");
    }

    #[test]
    fn late_last_packets_make_days_longer() {
        let figures = filled(|number| Duration::from_us(if number == 200 { 9 } else { 0 }));
        let day = figures.day_us_mean.expect("three days");
        assert!((day - 189.0).abs() < 1e-6, "{day}");
        assert!(figures.circuit_gbps_mean.is_some_and(|gbps| gbps < 80.0));
    }

    proptest! {
        #[test]
        fn record_zeros_equals_repeated_zero_records(
            values in prop::collection::vec(0.0f64..100.0, 0..20), count in 0u64..500, next in 0.0f64..100.0
        ) {
            let (mut at_once, mut single) = (RunningStats::default(), RunningStats::default());
            for value in values {
                at_once.record(value);
                single.record(value);
            }
            at_once.record_zeros(count);
            (0..count).for_each(|_| single.record(0.0));
            at_once.record(next);
            single.record(next);
            prop_assert_eq!(at_once.count, single.count);
            let is_near = |a: Option<f64>, b: Option<f64>| match (a, b) {
                (Some(a), Some(b)) => (a - b).abs() <= 1e-9 * (1.0 + b),
                (a, b) => a == b,
            };
            prop_assert!(is_near(at_once.mean(), single.mean()), "{at_once:?} {single:?}");
            prop_assert!(is_near(at_once.sd(), single.sd()), "{at_once:?} {single:?}");
        }
    }

    #[test]
    fn long_idle_time_is_counted_in_one_step() {
        let mut observer = observer();
        let late = Instant::ZERO + observer.window * (1 << 32);
        for at in [Instant::ZERO, late] {
            observer.handle(at, at, &packet(2, 4));
        }
        assert_eq!(observer.packet_gbps.count, (1 << 32) - 1);
    }

    #[test]
    fn packet_network_is_recognised_by_its_hops() {
        let mut observer = observer();
        // A packet every 7.2 us fills 10 Gbit/s.
        for number in 0..200 {
            let at = Instant::ZERO + Duration::from_ns(7_200) * number;
            observer.handle(at, at, &packet(2, 4));
            observer.handle(at, at, &packet(2, 2));
        }
        let figures = observer.take(CircuitCounters::default(), None);
        let gbps = figures.packet_gbps_mean.expect("some windows of 200 us");
        assert!((9.7..=10.3).contains(&gbps) && figures.days == 0, "{figures:?}");
    }
}
