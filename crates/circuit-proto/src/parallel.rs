//! All demand over several switches that stand side by side, in the least time.
//!
//! A host has one port at each switch. To join other ports, a circuit's two ports are dark for a night; the other
//! circuits of the switch carry on. Two switches may join the same pair at the same time. All demand must be served, each byte
//! by a circuit from its source to its destination; the time until the last byte is the *makespan*.
//!
//! Source of the problem: Spectra (arXiv 2603.07373, 2026; only its abstract was read). [`spectra_like`] follows it:
//! matchings of least number, balanced over the switches, each switch dark as a whole in its nights.
//! Differs: [`plan`] lets each port pair turn alone, cuts long entries, and keeps the best of a few cuts.
//!
//! Entry points: [`Switches`] and a [`Demand`] go into [`plan`]; [`makespan_min`] is the certified bound. Leaves out: relays
//! (`job`), and circuits that stand from before: each first circuit pays its night.

pub(crate) mod decompose;
pub(crate) mod level;

use crate::Demand;
use crate::sums::Sums;
use crate::timing::{carried, sending_ps};
use anabranch_units::{BitRate, ByteCount, Duration};
use decompose::{Layer, decompose, longest_first, wrap};
use std::fmt;

/// Most parallel switches.
pub const SWITCHES_MAX: usize = 64;

/// Longest night.
pub const NIGHT_MAX: Duration = Duration::from_secs(3_600);

/// Longest makespan that is counted, in picoseconds: 53 days.
pub(crate) const LONGEST_PS: u64 = 1 << 62;

/// Cuts of the longest entry that [`plan`] tries.
const CUTS: [u64; 6] = [1, 2, 3, 4, 8, 16];

/// Part of the bound by which a plan may exceed it to end the search: half a percent. Finer cuts
/// come nearer by less than that, and each costs another plan.
const BOUND_PART: u64 = 200;

/// Most entries of matrices that one cut beyond the first may visit: some tenths of a second.
const WORK_MAX: u64 = 200_000_000;

/// Parallel circuit switches, each with one port for each host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Number of switches.
    pub count: usize,
    /// Rate of one circuit.
    pub rate: BitRate,
    /// Time for which two ports are dark before their circuit stands.
    pub night: Duration,
}

/// A mistake in the settings of parallel switches.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParallelError {
    /// Number of switches outside 1 to [`SWITCHES_MAX`].
    Count(usize),
    /// A rate of zero.
    NoRate,
    /// Night of zero, or longer than [`NIGHT_MAX`].
    Night(Duration),
    /// Demand that may take longer than 53 days.
    Long,
}

impl fmt::Display for ParallelError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Count(count) => write!(f, "switches {count}: must be 1 to {SWITCHES_MAX}"),
            Self::NoRate => write!(f, "rate 0 bit/s: a circuit carries at least 1 bit/s"),
            Self::Night(night) => {
                write!(f, "night {night}: must be more than 0 and at most {NIGHT_MAX}")
            }
            Self::Long => {
                write!(
                    f,
                    "demand: may take longer than 53 days: lower bytes or iterations, or raise the rate"
                )
            }
        }
    }
}

impl std::error::Error for ParallelError {}

impl Switches {
    /// Refuses settings that no schedule can follow.
    ///
    /// Errors: a number of switches, a rate or a night out of range.
    pub fn check(&self) -> Result<(), ParallelError> {
        if !(1..=SWITCHES_MAX).contains(&self.count) {
            return Err(ParallelError::Count(self.count));
        }
        if self.rate.as_bps() == 0 {
            return Err(ParallelError::NoRate);
        }
        if self.night == Duration::ZERO || self.night > NIGHT_MAX {
            return Err(ParallelError::Night(self.night));
        }
        Ok(())
    }

    /// Time that each pair of `demand` needs on one circuit, in picoseconds, rounded up.
    ///
    /// Errors: times and nights that may exceed 53 days.
    pub(crate) fn times(&self, demand: &Demand) -> Result<Vec<u64>, ParallelError> {
        let racks = demand.racks();
        let time = |bytes: u64| sending_ps(self.rate, bytes);
        let nights = u128::from(self.night.as_ps()) * 32 * racks as u128;
        if time(demand.total().as_u64()) + nights > u128::from(LONGEST_PS) {
            return Err(ParallelError::Long);
        }
        let pair = |bytes: &u64| u64::try_from(time(*bytes)).expect("at most the sum of all");
        Ok(demand.entries().iter().map(pair).collect())
    }
}

/// One use of a circuit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circuit {
    /// Number of the switch, from 0.
    pub switch: usize,
    /// Sending host.
    pub source: usize,
    /// Receiving host.
    pub destination: usize,
    /// First bit, after the night.
    pub start: Duration,
    /// Last bit.
    pub end: Duration,
}

/// The circuits of all switches: by switch, and by start within a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Circuits in order.
    pub circuits: Vec<Circuit>,
}

/// A plan that the switches cannot run, or that leaves demand behind.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// A circuit on a switch or between hosts that the network lacks.
    NoSuchPort(Circuit),
    /// A circuit that starts before its ports have turned.
    Early {
        /// The circuit.
        circuit: Circuit,
        /// Earliest start.
        earliest: Duration,
    },
    /// A pair whose circuits are too short.
    Unserved {
        /// Sending host.
        source: usize,
        /// Receiving host.
        destination: usize,
        /// Time that it lacks.
        missing: Duration,
    },
}

impl fmt::Display for PlanError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let circuit =
            |c: &Circuit| format!("circuit {} -> {} of switch {}", c.source, c.destination, c.switch);
        match self {
            Self::NoSuchPort(c) => write!(f, "{}: the network lacks one of its ports", circuit(c)),
            Self::Early { circuit: c, earliest } => {
                write!(f, "{}: starts at {}, its ports have turned at {earliest}", circuit(c), c.start)
            }
            Self::Unserved { source, destination, missing } => {
                write!(f, "{source} -> {destination}: its circuits are {missing} too short")
            }
        }
    }
}

impl std::error::Error for PlanError {}

impl Plan {
    /// Time of the last bit.
    pub fn makespan(&self) -> Duration {
        self.circuits.iter().map(|circuit| circuit.end).max().unwrap_or(Duration::ZERO)
    }

    /// Bytes of `demand` that the circuits carry until `until`: each pair's time at `rate`, at most
    /// its demand.
    pub fn served(&self, demand: &Demand, rate: BitRate, until: Duration) -> ByteCount {
        let racks = demand.racks();
        let mut times = vec![Duration::ZERO; racks * racks];
        for circuit in &self.circuits {
            let time_ps = circuit.end.min(until).as_ps().saturating_sub(circuit.start.as_ps());
            times[circuit.source * racks + circuit.destination] += Duration::from_ps(time_ps);
        }
        let served = |(time, bytes): (&Duration, &u64)| carried(rate, *time).min(ByteCount::new(*bytes));
        times.iter().zip(demand.entries()).map(served).sum()
    }

    /// Refuses a plan that `switches` cannot run, or that does not serve all of `demand`.
    ///
    /// Errors: a port that does not exist, a night that is too short, or demand left behind.
    /// Panics: if the demand exceeds what [`plan`] takes.
    pub fn check(&self, demand: &Demand, switches: &Switches) -> Result<(), PlanError> {
        let racks = demand.racks();
        let mut left = switches.times(demand).expect("demand that was planned");
        // Of each sending and each receiving port: the end of its last circuit, and that circuit's other port.
        let mut ports = vec![(Duration::ZERO, None); switches.count * racks * 2];
        let mut order: Vec<&Circuit> = self.circuits.iter().collect();
        order.sort_by_key(|circuit| (circuit.start, circuit.end));
        for circuit in order {
            let Circuit { switch, source, destination, start, end } = *circuit;
            let misses = switch >= switches.count || source >= racks || destination >= racks;
            if misses || source == destination {
                return Err(PlanError::NoSuchPort(*circuit));
            }
            let at = [
                (switch * 2 * racks + source, destination),
                (switch * 2 * racks + racks + destination, source),
            ];
            let stands = at.iter().all(|(port, other)| ports[*port].1 == Some(*other));
            let free = at.iter().map(|(port, _)| ports[*port].0).max().unwrap_or(Duration::ZERO);
            let earliest = if stands { free } else { free + switches.night };
            if start < earliest || end < start {
                return Err(PlanError::Early { circuit: *circuit, earliest });
            }
            for (port, other) in at {
                ports[port] = (end, Some(other));
            }
            let time = &mut left[source * racks + destination];
            *time = time.saturating_sub(end.as_ps() - start.as_ps());
        }
        match left.iter().position(|time| *time > 0) {
            Some(pair) => Err(PlanError::Unserved {
                source: pair / racks,
                destination: pair % racks,
                missing: Duration::from_ps(left[pair]),
            }),
            None => Ok(()),
        }
    }
}

/// A part of one pair's demand, as a switch has it in its order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub source: usize,
    pub destination: usize,
    /// Time on the circuit, in picoseconds.
    pub length: u64,
}

/// The pieces of each switch in their order.
pub(crate) type PieceOrders = Vec<Vec<Piece>>;

/// Starts each piece as soon as its two ports are free and have turned.
pub(crate) fn timed(racks: usize, night: u64, orders: &PieceOrders) -> Plan {
    let mut circuits = Vec::with_capacity(orders.iter().map(Vec::len).sum());
    for (switch, order) in orders.iter().enumerate() {
        let mut senders = vec![(0u64, None); racks];
        let mut receivers = vec![(0u64, None); racks];
        let first = circuits.len();
        for Piece { source, destination, length } in order.iter().copied().filter(|piece| piece.length > 0) {
            let (sender, receiver) = (senders[source], receivers[destination]);
            let stands = sender.1 == Some(destination) && receiver.1 == Some(source);
            let start = sender.0.max(receiver.0) + if stands { 0 } else { night };
            let end = start + length;
            senders[source] = (end, Some(destination));
            receivers[destination] = (end, Some(source));
            circuits.push(Circuit {
                switch,
                source,
                destination,
                start: Duration::from_ps(start),
                end: Duration::from_ps(end),
            });
        }
        circuits[first..].sort_by_key(|circuit| (circuit.start, circuit.source));
    }
    Plan { circuits }
}

/// Makespan of [`timed`], in picoseconds.
fn makespan_ps(racks: usize, night: u64, orders: &PieceOrders) -> u64 {
    timed(racks, night, orders).makespan().as_ps()
}

/// A plan that serves all of `demand`.
///
/// Entries longer than a cut are divided, the parts are split into as few matchings as the busiest
/// port has parts, and the matchings are laid on the switches, one after the other or the longest
/// first. Parts of the circuits that end last then move to switches whose ports are free earlier.
/// The best of a few cuts stands; a plan within half a percent of the bound ends the search.
///
/// Errors: settings out of range, or demand that may take longer than 53 days.
/// Cost: O(cuts * racks^2 * parts of the busiest port); of large networks only the first cuts are tried.
pub fn plan(demand: &Demand, switches: &Switches) -> Result<Plan, ParallelError> {
    switches.check()?;
    let times = switches.times(demand)?;
    Ok(timed(demand.racks(), switches.night.as_ps(), &orders(demand.racks(), &times, switches)))
}

/// The orders that [`plan`] times.
pub(crate) fn orders(racks: usize, times: &[u64], switches: &Switches) -> PieceOrders {
    let night = switches.night.as_ps();
    let longest = times.iter().copied().max().unwrap_or(0);
    let mut best: Option<(u64, PieceOrders)> = None;
    let bound = makespan_min_ps(racks, times, switches);
    for cut in CUTS.map(|cut| longest.div_ceil(cut)).into_iter().filter(|cut| *cut > 0) {
        // More parts than the best plan has time to turn for cannot make a better one.
        let parts = parts_max(racks, times, cut);
        let fewest = parts.div_ceil(switches.count as u64);
        let is_dear = parts.saturating_mul((racks * racks) as u64) > WORK_MAX;
        let is_vain =
            |(makespan, _): &(u64, PieceOrders)| is_dear || fewest.saturating_mul(night) >= *makespan;
        if best.as_ref().is_some_and(is_vain) {
            break;
        }
        let layers = decompose(racks, times, cut);
        for orders in [wrap(&layers, switches), longest_first(racks, &layers, switches)] {
            let orders = level::level(racks, night, orders, &|_, _| true);
            let makespan = makespan_ps(racks, night, &orders);
            if best.as_ref().is_none_or(|(least, _)| makespan < *least) {
                best = Some((makespan, orders));
            }
        }
        if best.as_ref().is_some_and(|(makespan, _)| *makespan <= bound + bound / BOUND_PART) {
            break;
        }
    }
    best.map_or_else(|| vec![Vec::new(); switches.count], |(_, orders)| orders)
}

/// Parts of the busiest port if no part is longer than `cut`.
fn parts_max(racks: usize, times: &[u64], cut: u64) -> u64 {
    Sums::of(racks, times.iter().map(|time| time.div_ceil(cut))).largest()
}

/// A plan in the way of Spectra: as few matchings as the busiest port has parts, the longest first to the switch with the
/// least load, then parts of a matching moved from the fullest switch to the emptiest. A switch turns as a whole.
///
/// Differs: the matchings are ours, with the cuts of [`plan`]; the paper refines their lengths by a method not read here.
///
/// Errors: settings out of range, or demand that may take longer than 53 days.
/// Source: arXiv 2603.07373, abstract only.
pub fn spectra_like(demand: &Demand, switches: &Switches) -> Result<Plan, ParallelError> {
    switches.check()?;
    let times = switches.times(demand)?;
    let (racks, night) = (demand.racks(), switches.night.as_ps());
    let longest = times.iter().copied().max().unwrap_or(0);
    let mut best = vec![(u64::MAX, Vec::new()); switches.count];
    for cut in CUTS.map(|cut| longest.div_ceil(cut).max(1)) {
        let mut on = vec![(0u64, Vec::<Layer>::new()); switches.count];
        for layer in decompose(racks, &times, cut) {
            let (load, held) = on.iter_mut().min_by_key(|(load, _)| *load).expect("a switch at least");
            *load += layer.length() + night;
            held.push(layer);
        }
        decompose::equalise(&mut on, night);
        let fullest = |on: &[(u64, Vec<Layer>)]| on.iter().map(|(load, _)| *load).max();
        if fullest(&on) < fullest(&best) {
            best = on;
        }
    }
    Ok(Plan {
        circuits: best.iter().enumerate().flat_map(|(switch, on)| as_days(switch, &on.1, night)).collect(),
    })
}

/// Circuits of a switch that turns as a whole: all pieces of a layer start together.
fn as_days(switch: usize, layers: &[Layer], night: u64) -> Vec<Circuit> {
    let mut circuits = Vec::new();
    let mut at = 0;
    for layer in layers {
        at += night;
        circuits.extend(layer.pieces.iter().map(|piece| Circuit {
            switch,
            source: piece.source,
            destination: piece.destination,
            start: Duration::from_ps(at),
            end: Duration::from_ps(at + piece.length),
        }));
        at += layer.length();
    }
    circuits
}

/// A time that no plan without relays undercuts.
///
/// In a makespan of T no circuit lasts longer than T less one night. So a pair of d seconds needs at least
/// d / (T - night) circuits, rounded up, and the s ports of one host need its seconds and a night for each such circuit: at
/// most s T. The least T for which this holds at each host, sending and receiving, is the bound; with it, one port
/// of a host has its share of the nights, rounded up.
///
/// Errors: settings out of range, or demand that may take longer than 53 days.
pub fn makespan_min(demand: &Demand, switches: &Switches) -> Result<Duration, ParallelError> {
    switches.check()?;
    let times = switches.times(demand)?;
    Ok(Duration::from_ps(makespan_min_ps(demand.racks(), &times, switches)))
}

pub(crate) fn makespan_min_ps(racks: usize, times: &[u64], switches: &Switches) -> u64 {
    let night = switches.night.as_ps();
    let count = switches.count as u64;
    let mut lines: Vec<Vec<u64>> = Vec::with_capacity(2 * racks);
    for at in 0..racks {
        let row = times[at * racks..][..racks].iter().copied();
        let column = (0..racks).map(|other| times[other * racks + at]);
        lines.push(row.filter(|time| *time > 0).collect());
        lines.push(column.filter(|time| *time > 0).collect());
    }
    let fits = |line: &Vec<u64>, makespan: u64| {
        if line.is_empty() {
            return true;
        }
        let Some(longest) = makespan.checked_sub(night).filter(|longest| *longest > 0) else { return false };
        let nights: u64 = line.iter().map(|time| time.div_ceil(longest)).sum();
        let busy = u128::from(line.iter().sum::<u64>()) + u128::from(nights) * u128::from(night);
        busy <= u128::from(makespan) * u128::from(count)
            && nights.div_ceil(count).saturating_mul(night) <= makespan
    };
    // Lines that fit a makespan fit each longer one, so that the bound of one line is where the next line starts.
    let mut bound = 0;
    for line in &lines {
        if fits(line, bound) {
            continue;
        }
        let (mut low, mut high) = (bound, LONGEST_PS);
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if fits(line, middle) {
                high = middle;
            } else {
                low = middle;
            }
        }
        bound = high;
    }
    bound
}

#[cfg(test)]
mod tests;
