//! Random draws for worlds: distributions, and scores by distance.
//!
//! Leaves out: the order of draws (`generator`). Read [`Draws`] first.

use anabranch_units::{RandomStream, Seed};

/// Draws from other distributions than the uniform one.
pub(crate) struct Draws(pub(crate) RandomStream);

impl Draws {
    /// Draws from the normal distribution with mean 0 and deviation 1.
    pub(crate) fn normal(&mut self) -> f64 {
        // Box-Muller transform; `a` is never zero, because zero has no logarithm.
        let (a, b) = (1.0 - self.0.unit_f64(), self.0.unit_f64());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
    /// Draws an index; `sums` has the cumulative sums of the indices' weights.
    pub(crate) fn weighted(&mut self, sums: &[f64]) -> usize {
        let at = self.0.unit_f64() * sums.last().copied().unwrap_or(1.0);
        sums.partition_point(|sum| *sum <= at).min(sums.len() - 1)
    }
}

/// Round trip to a cluster at distance 0, in ms.
const NEAR_MS: f64 = 8.0;
/// Distance in km for each further millisecond of round trip.
const KM_PER_MS: f64 = 60.0;
/// Standard deviation of a score's logarithm.
const SCATTER: f64 = 0.25;

/// Scores of clusters at these distances from a place: round trips in ms, each with a random
/// factor.
pub(crate) fn scores(distances_km: impl Iterator<Item = f64>, draw: u64, seed: Seed) -> Vec<f64> {
    let mut noise = Draws(seed.stream("scores", draw));
    let score = |distance: f64| (NEAR_MS + distance / KM_PER_MS) * (SCATTER * noise.normal()).exp();
    distances_km.map(score).collect()
}
