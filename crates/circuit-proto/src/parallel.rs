//! All demand over several parallel switches, in the minimum time.
//!
//! A host has one port at each switch. To change a circuit, its two ports are dark for a night; the
//! other circuits of the switch continue. Two switches may join the same pair at the same time. All
//! demand must be served, each byte over a circuit from its source to its destination. The time
//! until the last byte is the *makespan*.
//!
//! Source of the problem: Spectra (arXiv 2603.07373, 2026; only its abstract was read).
//! [`spectra_like`] follows it: the minimum number of matchings, balanced over the switches; each
//! switch is dark as a whole in its nights. Differs: [`plan`] lets each pair of ports reconfigure
//! alone, cuts long entries, and keeps the best of a few cuts.
//!
//! Entry points: [`plan`] makes a [`Plan`] from [`Switches`] and a [`Demand`]; [`makespan_min`] is
//! a proven lower bound. Leaves out: relays (`job`), and circuits from earlier plans: each first
//! circuit needs a night.

pub(crate) mod decompose;
pub(crate) mod level;

use crate::Demand;
use crate::sums::Sums;
use crate::timing::{carried, sending_ps};
use anabranch_units::{BitRate, ByteCount, Duration};
use decompose::{Layer, decompose, longest_first, wrap};
use std::fmt;

/// Maximum number of parallel switches.
pub const SWITCHES_MAX: usize = 64;

/// Maximum length of a night.
pub const NIGHT_MAX: Duration = Duration::from_secs(3_600);

/// Maximum makespan, in picoseconds: 53 days.
pub(crate) const LONGEST_PS: u64 = 1 << 62;

/// Divisors of the longest entry that [`plan`] tries as cuts.
const CUTS: [u64; 6] = [1, 2, 3, 4, 8, 16];

/// Divisor of the bound: a plan that exceeds the bound by at most this part, half a percent, ends
/// the search. Finer cuts could improve the makespan by less, and each costs another plan.
const BOUND_PART: u64 = 200;

/// Maximum number of matrix entries that a cut after the first may visit: some tenths of a second.
const WORK_MAX: u64 = 200_000_000;

/// Parallel circuit switches, each with one port for each host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switches {
    /// Number of switches.
    pub count: usize,
    /// Rate of one circuit.
    pub rate: BitRate,
    /// Time for which two ports are dark before their circuit carries bytes.
    pub night: Duration,
}

/// Reason why settings of parallel switches are refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ParallelError {
    /// Number of switches outside 1 to [`SWITCHES_MAX`].
    Count(usize),
    /// A rate of zero.
    NoRate,
    /// A night of zero, or longer than [`NIGHT_MAX`].
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
    /// Errors: demand whose times and nights may exceed 53 days.
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

/// One circuit for a span of time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Circuit {
    /// Number of the switch, from 0.
    pub switch: usize,
    /// Sending host.
    pub source: usize,
    /// Receiving host.
    pub destination: usize,
    /// Time of the first bit, after the night.
    pub start: Duration,
    /// Time of the last bit.
    pub end: Duration,
}

/// The circuits of all switches: by switch, and by start within a switch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// Circuits, by switch and start.
    pub circuits: Vec<Circuit>,
}

/// Reason why a plan is refused: the switches cannot run it, or it does not serve all demand.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PlanError {
    /// A circuit on a switch or between hosts that do not exist.
    NoSuchPort(Circuit),
    /// A circuit that starts before the night of its ports has ended.
    Early {
        /// The circuit.
        circuit: Circuit,
        /// Earliest start.
        earliest: Duration,
    },
    /// A pair whose circuits are too short in total.
    Unserved {
        /// Sending host.
        source: usize,
        /// Receiving host.
        destination: usize,
        /// Time that the pair still needs.
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

    /// Bytes of `demand` that the circuits carry until `until`: for each pair its time at `rate`,
    /// at most its demand.
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
    /// Errors: a port that does not exist, a night that is too short, or demand that is not served.
    /// Panics: if the demand exceeds the limits of [`plan`].
    pub fn check(&self, demand: &Demand, switches: &Switches) -> Result<(), PlanError> {
        let racks = demand.racks();
        let mut left = switches.times(demand).expect("demand that was planned");
        // For each sending and each receiving port: the end of its last circuit, and that circuit's
        // other port.
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

/// A part of one pair's demand, assigned to a switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Piece {
    pub source: usize,
    pub destination: usize,
    /// Time on the circuit, in picoseconds.
    pub length: u64,
}

/// The pieces of each switch, in order.
pub(crate) type PieceOrders = Vec<Vec<Piece>>;

/// Starts each piece as soon as its two ports are free and have reconfigured.
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
/// Entries longer than a cut are divided. The parts are split into the minimum number of matchings,
/// which is the number of parts at the busiest port. The matchings are assigned to the switches,
/// one switch after the other or the longest matching first. Parts of the circuits that end last
/// are then moved to switches whose ports are free earlier. The best of a few cuts is returned; a
/// plan within half a percent of the bound ends the search.
///
/// Errors: settings out of range, or demand that may take longer than 53 days.
/// Cost: O(cuts * racks^2 * parts of the busiest port); in large networks only the first cuts are
/// tried.
pub fn plan(demand: &Demand, switches: &Switches) -> Result<Plan, ParallelError> {
    switches.check()?;
    let times = switches.times(demand)?;
    Ok(timed(demand.racks(), switches.night.as_ps(), &orders(demand.racks(), &times, switches)))
}

/// The orders of pieces from which [`plan`] computes its times.
pub(crate) fn orders(racks: usize, times: &[u64], switches: &Switches) -> PieceOrders {
    let night = switches.night.as_ps();
    let longest = times.iter().copied().max().unwrap_or(0);
    let mut best: Option<(u64, PieceOrders)> = None;
    let bound = makespan_min_ps(racks, times, switches);
    for cut in CUTS.map(|cut| longest.div_ceil(cut)).into_iter().filter(|cut| *cut > 0) {
        // If the nights of the parts alone exceed the best plan's makespan, this cut cannot be
        // better.
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

/// Number of parts at the busiest port if no part is longer than `cut`.
fn parts_max(racks: usize, times: &[u64], cut: u64) -> u64 {
    Sums::of(racks, times.iter().map(|time| time.div_ceil(cut))).largest()
}

/// A plan similar to Spectra's. The minimum number of matchings is assigned, the longest first, to
/// the switch with the least load; then parts of a matching move from the fullest switch to the
/// emptiest. A switch reconfigures as a whole.
///
/// Differs: the matchings are ours, with the cuts of [`plan`]; the paper refines their lengths by a
/// method that its abstract does not describe.
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

/// Circuits of a switch that reconfigures as a whole: all pieces of a layer start together.
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

/// Lower bound of the makespan of any plan without relays.
///
/// In a makespan of T no circuit lasts longer than T minus one night. So a pair that needs d
/// seconds needs at least d / (T - night) circuits, rounded up. The s ports of one host need the
/// seconds of all its pairs, and a night for each circuit; they have at most s T. One port of the
/// host also has its share of the nights, rounded up, which must fit in T. The bound is the
/// smallest T for which both conditions hold at each host, for sending and for receiving.
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
    // A host that fits in a makespan also fits in every longer one, so the search for the next host
    // starts at the bound so far.
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
