//! Search for prices that give a high bound: ascent on refined intervals, and splits into cases
//! where a single set of prices does not suffice.

use super::Effort;
use super::prices::{PriceEvaluation, Prices, Scratch, Window};
use super::work::CoflowWork;

/// Number of intervals of the first prices.
const INTERVALS_FIRST: u32 = 32;
/// Maximum number of intervals after splits.
const INTERVALS_MAX: usize = 4096;
/// Divisor of the number of steps for a case, because the prices of a case start near their
/// optimum.
const STEPS_WHOLE: u32 = 3;
/// Change of a price in the first step, in seconds per second. Later changes are smaller.
const STEP: f64 = 0.05;
/// Decay of the means of slopes and of squared slopes (Kingma and Ba, *Adam*, ICLR 2015, section
/// 2).
const MEAN: f64 = 0.9;
const SQUARE: f64 = 0.99;
/// Minimum assumed magnitude of a slope.
const SLOPE_LEAST: f64 = 1e-3;

/// Prices, and the bound that they prove.
#[derive(Clone, Debug)]
pub struct Proof {
    pub prices: Prices,
    pub total_s: f64,
    /// Mean and variance of each coflow's completion in the second half of the steps. A high
    /// variance means that no single completion is best.
    pub completes_s: Vec<(f64, f64)>,
}

/// Improves prices in `steps` steps of ascent: the price of a link rises if the demand for time
/// exceeds the available time, and falls otherwise. Returns the best prices found.
pub fn ascend(works: &[CoflowWork], windows: &[Window], mut prices: Prices, steps: u32) -> Proof {
    let (links, intervals) = (prices.links(), prices.intervals());
    let (mut value, mut scratch) = (PriceEvaluation::default(), Scratch::default());
    let mut means = vec![vec![(0.0f64, 0.0f64); intervals]; links];
    let (mut mean_left, mut square_left) = (1.0, 1.0);
    let mut best = Proof { prices: prices.clone(), total_s: f64::NEG_INFINITY, completes_s: Vec::new() };
    let mut sums = vec![(0.0, 0.0); works.len()];
    for step in 0..=steps {
        prices.evaluate(works, windows, &mut scratch, &mut value);
        if value.total_s > best.total_s {
            best.total_s = value.total_s;
            best.prices.clone_from(&prices);
        }
        if step >= steps / 2 {
            for (sum, at_s) in sums.iter_mut().zip(&value.completes_s) {
                *sum = (sum.0 + at_s, sum.1 + at_s * at_s);
            }
        }
        let far = STEP * f64::from(steps - step) / f64::from(steps.max(1));
        (mean_left, square_left) = (mean_left * MEAN, square_left * SQUARE);
        let (mean_part, square_part) = (1.0 - mean_left, 1.0 - square_left);
        for (link, (means, busy_s)) in means.iter_mut().zip(&value.busy_s).enumerate() {
            for (at, ((mean, square), busy_s)) in means.iter_mut().zip(busy_s).enumerate() {
                let slope = busy_s / prices.length_s(at) - 1.0;
                *mean += (1.0 - MEAN) * (slope - *mean);
                *square += (1.0 - SQUARE) * (slope * slope - *square);
                let size = (*square / square_part).sqrt() + SLOPE_LEAST;
                let price = &mut prices.of_link_mut(link)[at];
                *price = (*price + far * (*mean / mean_part) / size).max(0.0);
            }
        }
    }
    let late = f64::from(steps - steps / 2 + 1);
    let spread = |(sum, squares): (f64, f64)| (sum / late, squares / late - (sum / late) * (sum / late));
    best.completes_s = sums.into_iter().map(spread).collect();
    best
}

/// Returns new starts of intervals: the middles of the intervals over which prices vary most, and
/// the arrivals and earliest completions of the longest coflows. Each of the two kinds adds at most
/// a quarter of the number of intervals.
fn splits(works: &[CoflowWork], prices: &Prices) -> Vec<f64> {
    let middle = |at: usize| prices.starts_s[at] + prices.length_s(at) / 2.0;
    let varies =
        (0..).zip(prices.variations()).map(|(at, varies)| (varies * prices.length_s(at), middle(at)));
    let mut longest = vec![(0.0f64, 0.0f64); prices.intervals()];
    for work in works {
        for at_s in [work.arrived_s, work.alone_s] {
            let (at, alone_s) = (prices.interval(at_s), work.alone_s - work.arrived_s);
            if prices.starts_s[at] < at_s
                && longest.get(at).is_some_and(|(longest_s, _)| *longest_s < alone_s)
            {
                longest[at] = (alone_s, at_s);
            }
        }
    }
    let mut all = Vec::new();
    for mut gains in [varies.collect(), longest] {
        gains.retain(|(gain, _)| *gain > 0.0);
        gains.sort_by(|a, b| b.0.total_cmp(&a.0));
        all.extend(gains.into_iter().take(prices.intervals().div_ceil(4)).map(|(_, at_s)| at_s));
    }
    all
}

/// Returns windows without a restriction.
pub fn windows(works: &[CoflowWork]) -> Vec<Window> {
    works.iter().map(|work| (work.alone_s, f64::INFINITY)).collect()
}

/// Finds prices, starting at 0, on intervals that are split repeatedly.
pub fn prove(works: &[CoflowWork], links: usize, effort: Effort) -> Proof {
    let windows = windows(works);
    let mut busy_s = vec![0.0; links];
    works.iter().flat_map(|work| &work.loads).for_each(|load| busy_s[load.link.0 as usize] += load.busy_s);
    let last_s = works.iter().map(|work| work.alone_s).fold(0.0, f64::max);
    let end_s = last_s + busy_s.into_iter().fold(0.0, f64::max);
    let mut proof =
        ascend(works, &windows, Prices::zero(links, INTERVALS_FIRST, end_s.max(1e-9)), effort.steps);
    for _ in 0..effort.splits {
        let prices = proof.prices.split(splits(works, &proof.prices));
        if prices.intervals() > INTERVALS_MAX {
            break;
        }
        proof = ascend(works, &windows, prices, effort.steps);
    }
    proof
}

/// Assumed windows of completions, and the bound under this assumption.
struct Case {
    windows: Vec<Window>,
    proof: Proof,
}

/// Returns a lower bound over all cases, in seconds. The case with the lowest bound is split into
/// two cases repeatedly.
///
/// A coflow completes either by an instant or after it, so a bound that holds in both cases is a
/// bound. A case is split at the mean completion of the coflow with the highest variance: the
/// prices of this coflow are between two schedules whose average is not a schedule. Source: branch
/// and bound (Land and Doig, *Econometrica* 28, 1960), applied to completion times instead of
/// variables.
pub fn branch(works: &[CoflowWork], proof: Proof, effort: Effort) -> f64 {
    let mut cases = vec![Case { windows: windows(works), proof }];
    let total_s = |case: &Case| case.proof.total_s;
    for _ in 0..effort.branches {
        let least = (0..cases.len()).min_by(|a, b| total_s(&cases[*a]).total_cmp(&total_s(&cases[*b])));
        let case = cases.swap_remove(least.expect("a case becomes two, never none"));
        let spread = &case.proof.completes_s;
        let most = (0..works.len()).max_by(|a, b| spread[*a].1.total_cmp(&spread[*b].1));
        let two = most.and_then(|on| {
            let ((from_s, to_s), (at_s, _)) = (case.windows[on], spread[on]);
            (from_s < at_s && at_s < to_s).then_some((on, [(from_s, at_s), (at_s, to_s)]))
        });
        let Some((on, two)) = two else {
            cases.push(case);
            break;
        };
        for window in two {
            let mut windows = case.windows.clone();
            windows[on] = window;
            let steps = effort.steps.div_ceil(STEPS_WHOLE);
            let mut proof = ascend(works, &windows, case.proof.prices.clone(), steps);
            // The bound of the unsplit case also holds in each of the two cases.
            proof.total_s = proof.total_s.max(case.proof.total_s);
            cases.push(Case { windows, proof });
        }
    }
    cases.iter().map(total_s).fold(f64::INFINITY, f64::min)
}
