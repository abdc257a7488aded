//! Draws for worlds: the distributions that they need, and scores by distance.
//!
//! Leaves out: what is drawn when (`generator`). Read [`Draws`] first.

use anabranch_units::{RandomStream, Seed};

/// Draws beside even ones.
pub(crate) struct Draws(pub(crate) RandomStream);

impl Draws {
    /// Of the normal distribution with mean 0 and deviation 1.
    pub(crate) fn normal(&mut self) -> f64 {
        // Box and Muller; the logarithm of zero is nothing.
        let (a, b) = (1.0 - self.0.unit_f64(), self.0.unit_f64());
        (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
    }
    /// The number of one of these, by their sums up to each.
    pub(crate) fn weighted(&mut self, sums: &[f64]) -> usize {
        let at = self.0.unit_f64() * sums.last().copied().unwrap_or(1.0);
        sums.partition_point(|sum| *sum <= at).min(sums.len() - 1)
    }
}

/// What a round trip takes beside the way, and km that it goes in a millisecond, there and back.
const NEAR_MS: f64 = 8.0;
const KM_PER_MS: f64 = 60.0;
/// The deviation of a score's logarithm.
const SCATTER: f64 = 0.25;

/// Scores for clients of a place of clusters that are so far away: round trips in ms, each with a factor by chance.
pub(crate) fn scores(distances_km: impl Iterator<Item = f64>, draw: u64, seed: Seed) -> Vec<f64> {
    let mut noise = Draws(seed.stream("scores", draw));
    let score = |distance: f64| (NEAR_MS + distance / KM_PER_MS) * (SCATTER * noise.normal()).exp();
    distances_km.map(score).collect()
}
