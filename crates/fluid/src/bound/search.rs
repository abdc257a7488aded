//! Prices that prove much: found by ascent, on ever finer intervals, and in two cases where one set of prices does not do.

use super::Effort;
use super::prices::{Prices, Scratch, Value, Window};
use super::work::Work;

/// Intervals of the first prices.
const INTERVALS_FIRST: u32 = 32;
/// The most intervals that they are split into.
const INTERVALS_MAX: usize = 4096;
/// How far a price goes in a step at first, in seconds a second; later ones go less far.
const STEP: f64 = 0.05;
/// The decay of the means of slopes and of their squares (Kingma and Ba, *Adam*, ICLR 2015, section 2).
const MEAN: f64 = 0.9;
const SQUARE: f64 = 0.99;
/// What a slope is taken for at least.
const SLOPE_LEAST: f64 = 1e-3;

/// Prices, and what they prove.
#[derive(Clone, Debug)]
pub struct Proof {
    pub prices: Prices,
    pub total_s: f64,
}

/// Climbs from these prices in so many steps. A link whose time more is wanted of than there is becomes dearer, and the other
/// way round; the best prices on the way are kept.
pub fn ascend(works: &[Work], windows: &[Window], mut prices: Prices, steps: u32) -> Proof {
    let (links, intervals) = (prices.links(), prices.intervals());
    let (mut value, mut scratch) = (Value::default(), Scratch::default());
    let mut means = vec![vec![(0.0f64, 0.0f64); intervals]; links];
    let (mut mean_left, mut square_left) = (1.0, 1.0);
    let mut best = Proof { prices: prices.clone(), total_s: f64::NEG_INFINITY };
    for step in 0..=steps {
        prices.evaluate(works, windows, &mut scratch, &mut value);
        if value.total_s > best.total_s {
            best.total_s = value.total_s;
            best.prices.clone_from(&prices);
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
    best
}

/// Where intervals are split in two: those over which prices vary most, in the middle; and those in which a long transfer
/// arrives, or could complete at the soonest, there. A quarter each.
fn splits(works: &[Work], prices: &Prices) -> Vec<f64> {
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

/// Whenever it can be complete.
pub fn windows(works: &[Work]) -> Vec<Window> {
    works.iter().map(|work| (work.alone_s, f64::INFINITY)).collect()
}

/// Prices from none, on intervals that are split again and again.
pub fn prove(works: &[Work], links: usize, effort: Effort) -> Proof {
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
