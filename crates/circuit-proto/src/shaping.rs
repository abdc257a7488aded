//! Shaping of demand before a scheduler, and of its days afterwards, as in Etalon around Solstice.
//!
//! An estimate of demand is not a suitable input for a scheduler. Small entries belong on the
//! packet network. Estimates from shallow queues are far below the capacity of a week, and
//! announced demand is far above it. [`schedule`] performs all steps.
//!
//! Source: the Etalon switch, `solstice.cc` and `sols.c` of its repository (Mukerjee, 2018), for
//! the steps and their order; the thesis, §2.2.2, for the week that the days fill. Leaves out: the
//! estimates (`ledger`, queues of the switch).

use crate::sums::Sums;
use crate::{Day, Demand, Matching, Schedule, Scheduler, Timing};
use anabranch_units::ByteCount;

/// Settings of the shaping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shaping {
    /// Minimum size of a large entry.
    pub threshold: ByteCount,
    /// True to drop entries below the threshold even if no entry is large. Set for announced
    /// demand: a sum of small flows is left to the packet network.
    pub always_drops_small: bool,
}

impl Shaping {
    /// Etalon's threshold: 1,000,000 bytes, and 8,000 in its HDFS runs.
    pub const THRESHOLD: ByteCount = ByteCount::new(1_000_000);
}

/// Computes a schedule of exactly one week for `demand`: shaped by [`shape`], planned by
/// `scheduler`, and stretched to the week.
///
/// The days are stretched by equal times, so that days and nights fill the week. Without demand the
/// schedule is one dark day, for any scheduler.
/// Source: Etalon's steps (a) to (c) in [`shape`], then QuickStuff and BigSlice, then the fit to
/// the week.
/// Differs: times are in picoseconds; Etalon rounds to microseconds. No day is dropped or
/// shortened, because our schedulers never exceed the week.
/// Panics: if `timing` does not pass [`Timing::check`].
pub fn schedule(
    scheduler: &mut dyn Scheduler,
    demand: &Demand,
    timing: &Timing,
    shaping: &Shaping,
) -> Schedule {
    let demand = shape(demand, timing, shaping);
    let mut schedule = Schedule::default();
    if demand.total() > ByteCount::ZERO {
        schedule = scheduler.schedule(&demand, timing);
    }
    if schedule.days.is_empty() {
        let matching = Matching::of_ports(vec![None; demand.racks()]);
        schedule.days.push(Day { matching, length: timing.day_min });
    }
    schedule.stretch(timing);
    schedule
}

/// Shapes demand so that a week can carry it: small entries are dropped, small sums scaled up,
/// large sums cut.
///
/// - (a) If an entry reaches the threshold, or if [`Shaping::always_drops_small`] is set, entries
///   below the threshold become zero.
/// - (b) If the largest row or column sum is below the bytes of half a week of circuit, all entries
///   are scaled so that it equals these bytes. The reason is that queues show few of the bytes that
///   TCP would send.
/// - (c) Entries are filled at equal speed until each has its demand, or its row or column has the
///   bytes of a week.
///
/// The result has at most the week's bytes in each row and column. If (b) does not apply, no entry
/// grows.
/// Cost: O(k racks^2) for k rounds of step (c), at most one for each entry, row and column.
pub fn shape(demand: &Demand, timing: &Timing, shaping: &Shaping) -> Demand {
    let racks = demand.racks();
    let mut entries = demand.entries().to_vec();
    let threshold = shaping.threshold.as_u64();
    if shaping.always_drops_small || entries.iter().any(|bytes| *bytes >= threshold) {
        entries.iter_mut().filter(|bytes| **bytes < threshold).for_each(|bytes| *bytes = 0);
    }
    let week = timing.carried(timing.week).as_u64();
    scale_up(racks, &mut entries, week / 2);
    let filled = fill(racks, &entries, week);
    Demand::from_entries(racks, filled).expect("rows within a week's bytes have a sum of 64 bits")
}

/// Scales all entries so that the largest row or column sum becomes `least`, if it is smaller;
/// rounds down.
fn scale_up(racks: usize, entries: &mut [u64], least: u64) {
    let largest = Sums::of(racks, entries.iter().map(|bytes| u128::from(*bytes))).largest();
    if largest == 0 || largest >= u128::from(least) {
        return;
    }
    for bytes in entries {
        let scaled = u128::from(*bytes) * u128::from(least) / largest;
        *bytes =
            u64::try_from(scaled).expect("an entry is at most the largest sum, and becomes at most `least`");
    }
}

/// Max-min fair shares of `entries` if each row and each column has `budget` bytes.
///
/// A row or column with fewer bytes left than open entries counts as full, because bytes are not
/// split.
fn fill(racks: usize, entries: &[u64], budget: u64) -> Vec<u64> {
    let mut filled = vec![0; entries.len()];
    let mut open: Vec<usize> = (0..entries.len()).filter(|pair| entries[*pair] > 0).collect();
    let (mut rows, mut columns) = (vec![budget; racks], vec![budget; racks]);
    while !open.is_empty() {
        let (mut in_row, mut in_column) = (vec![0u64; racks], vec![0u64; racks]);
        for pair in &open {
            in_row[pair / racks] += 1;
            in_column[pair % racks] += 1;
        }
        let share = |pair: &usize| {
            let (row, column) = (pair / racks, pair % racks);
            (rows[row] / in_row[row]).min(columns[column] / in_column[column])
        };
        open.retain(|pair| share(pair) > 0);
        // The counts still include entries that were closed above, so the step may be too small,
        // but never too large.
        let step = open.iter().map(|pair| share(pair).min(entries[*pair] - filled[*pair])).min().unwrap_or(0);
        for pair in &open {
            filled[*pair] += step;
            rows[pair / racks] -= step;
            columns[pair % racks] -= step;
        }
        open.retain(|pair| filled[*pair] < entries[*pair]);
    }
    filled
}

#[cfg(test)]
mod tests;
