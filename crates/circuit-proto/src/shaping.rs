//! Shaping of demand before a scheduler, and of its days after it, as Etalon does around Solstice.
//!
//! An estimate of demand is no schedule's input as it stands. Small entries belong on the packet network. Estimates from
//! shallow queues are far below what a week carries, and announced ones far above it. [`schedule`] does all steps.
//!
//! Source: the Etalon switch, `solstice.cc` and `sols.c` of its repository (Mukerjee, 2018), read for the steps and their
//! order; the thesis, §2.2.2, has the week that the days fill. Leaves out: the estimates (`ledger`, queues of the switch).

use crate::sums::Sums;
use crate::{Day, Demand, Matching, Schedule, Scheduler, Timing};
use anabranch_units::ByteCount;

/// Settings of the shaping.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shaping {
    /// Smallest entry that counts as large.
    pub threshold: ByteCount,
    /// Whether entries below the threshold are dropped even if no entry is large. True for announced demand: a sum of
    /// small flows is left to the packet network.
    pub always_drops_small: bool,
}

impl Shaping {
    /// Etalon's threshold: 1,000,000 bytes, and 8,000 in its HDFS runs.
    pub const THRESHOLD: ByteCount = ByteCount::new(1_000_000);
}

/// A schedule of exactly one week for `demand`: shaped by [`shape`], planned by `scheduler`, and stretched to the week.
///
/// The days are stretched by equal times, so that they and their nights last the week. Without demand one dark day lasts
/// the week, whatever the scheduler.
/// Source: Etalon's steps (a) to (c) in [`shape`], then QuickStuff and BigSlice, then the fit to the week.
/// Differs: times are in picoseconds, where Etalon rounds to microseconds. No day is dropped or shortened, as our
/// schedulers never exceed the week.
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

/// Demand that a week can carry: small entries dropped, small sums scaled up, large sums cut.
///
/// - (a) If an entry reaches the threshold, or always where [`Shaping::always_drops_small`] says so, entries below the
///   threshold become zero.
/// - (b) If the largest sum of a row or column is below the bytes of half a week of circuit, all entries grow by the same
///   factor until it reaches them: queues show little of the bytes that TCP would send.
/// - (c) Entries are filled at equal speed until each has its demand, or its row or column has the bytes of a week.
///
/// The result is at most the week's bytes in each row and column. Where (b) does not apply no entry grows.
/// Cost: O(k racks^2) for k rounds of the filling, at most one for each entry, row and column.
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

/// Multiplies all entries so that the largest sum of a row or column is `least`, if it is less; rounds down.
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

/// Max-min fair shares of `entries` where each row and each column has `budget` bytes.
///
/// A row or column that has fewer bytes left than open entries is full: whole bytes are never split.
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
        // The counts include entries that are closed now, so the step can only be too small.
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
