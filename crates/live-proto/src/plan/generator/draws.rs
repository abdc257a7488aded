//! Random draws from distributions.

use anabranch_units::RandomStream;

/// Items that are drawn with probabilities proportional to their weights.
pub(super) struct WeightedItems {
    /// Cumulative sum of the weights, including each item's.
    cumulative: Vec<f64>,
}

impl WeightedItems {
    pub(super) fn new(weights: impl IntoIterator<Item = f64>) -> Self {
        let mut sum = 0.0;
        let cumulative = weights.into_iter().map(|weight| {
            sum += weight;
            sum
        });
        Self { cumulative: cumulative.collect() }
    }
    fn total(&self) -> f64 {
        self.cumulative.last().copied().unwrap_or(0.0)
    }
    /// Draws one item.
    pub(super) fn draw(&self, stream: &mut RandomStream) -> usize {
        let at = stream.unit_f64() * self.total();
        self.cumulative.partition_point(|&sum| sum <= at).min(self.cumulative.len().saturating_sub(1))
    }
    /// Makes `count` draws by systematic sampling: each item's count differs from its expected
    /// count by less than one.
    pub(super) fn spread(&self, count: u64, stream: &mut RandomStream) -> Vec<u64> {
        let offset = stream.unit_f64();
        let scale = count as f64 / self.total();
        let mut before = 0;
        let last = self.cumulative.len().saturating_sub(1);
        let counts = self.cumulative.iter().enumerate().map(|(item, sum)| {
            let upto = if item == last { count } else { ((sum * scale + offset) as u64).min(count) };
            let here = upto - before;
            before = upto;
            here
        });
        counts.collect()
    }
}

/// Draws a normally distributed number. It is a sum of twelve uniform numbers (Irwin and Hall), so
/// that all platforms agree.
pub(super) fn normal(mean: f64, deviation: f64, stream: &mut RandomStream) -> f64 {
    let sum: f64 = (0..12).map(|_| stream.unit_f64()).sum();
    mean + deviation * (sum - 6.0)
}

/// Finds the root of a monotonic `f` between `low` and `high` by bisection.
pub(super) fn root(mut low: f64, mut high: f64, f: impl Fn(f64) -> f64) -> f64 {
    let rises = f(high) > f(low);
    for _ in 0..60 {
        let middle = 0.5 * (low + high);
        if (f(middle) > 0.0) == rises {
            high = middle;
        } else {
            low = middle;
        }
    }
    0.5 * (low + high)
}
