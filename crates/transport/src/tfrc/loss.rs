//! The loss event rate: the inverse of the mean length of the last intervals between loss events,
//! in which recent intervals weigh more.
//!
//! Source: RFC 5348 section 5.

/// Weights of the intervals, the most recent first (section 5.4, n = 8).
const WEIGHTS: [f64; 8] = [1.0, 1.0, 1.0, 1.0, 0.8, 0.6, 0.4, 0.2];

/// Intervals between loss events, in packets.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LossIntervals {
    /// Lengths of the closed intervals, the most recent first; at most eight.
    closed: Vec<f64>,
    /// Start of the open interval: the sequence number of the first loss of the last event.
    began: Option<u64>,
}

impl LossIntervals {
    /// Whether no loss event has occurred.
    pub fn is_empty(&self) -> bool {
        self.began.is_none()
    }

    /// Begins a loss event with the loss of `sequence`. `first` returns the length of the interval
    /// before the first event.
    ///
    /// Source: section 5.3; for the first event section 6.3.1.
    pub(crate) fn begin(&mut self, sequence: u64, first: impl FnOnce() -> f64) {
        let length = match self.began {
            Some(began) => (sequence - began) as f64,
            None => first(),
        };
        self.closed.insert(0, length);
        self.closed.truncate(WEIGHTS.len());
        self.began = Some(sequence);
    }

    /// Length of the oldest recorded interval.
    #[cfg(test)]
    pub(super) fn oldest(&self) -> f64 {
        self.closed.last().copied().unwrap_or(0.0)
    }

    /// The loss event rate; 0 without a loss. `next` is one more than the highest sequence number
    /// received.
    ///
    /// Source: section 5.4. The open interval counts only if it lengthens the mean.
    pub fn rate(&self, next: u64) -> f64 {
        let Some(began) = self.began else { return 0.0 };
        let open = next.saturating_sub(began) as f64;
        let weighted = |intervals: &mut dyn Iterator<Item = f64>| -> f64 {
            intervals.zip(WEIGHTS).map(|(interval, weight)| interval * weight).sum()
        };
        let with_open =
            weighted(&mut std::iter::once(open).chain(self.closed.iter().copied()).take(self.closed.len()));
        let without = weighted(&mut self.closed.iter().copied());
        let weights: f64 = WEIGHTS[..self.closed.len()].iter().sum();
        let mean = with_open.max(without) / weights;
        (1.0 / mean.max(1.0)).min(1.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Intervals of these lengths, the oldest first, and the sequence number at which the next
    /// interval begins.
    fn intervals(lengths: &[u64]) -> (LossIntervals, u64) {
        let mut all = LossIntervals::default();
        let mut at = 0;
        for (index, length) in lengths.iter().enumerate() {
            at += length;
            all.begin(at, || if index == 0 { *length as f64 } else { 0.0 });
        }
        (all, at)
    }

    #[test]
    fn equal_intervals_give_their_rate() {
        let (all, at) = intervals(&[100; 8]);
        assert!((all.rate(at) - 0.01).abs() < 1e-12);
        assert!((all.rate(at + 100) - 0.01).abs() < 1e-12, "as long as the others, it changes nothing");
        // (200 + 3 * 100 + 0.8 * 100 + 0.6 * 100 + 0.4 * 100 + 0.2 * 100) / 6 = 700 / 6.
        assert!((all.rate(at + 200) - 6.0 / 700.0).abs() < 1e-12);
    }

    #[test]
    fn eight_intervals_count_the_last_four_fully() {
        let (all, at) = intervals(&[5_000, 10, 10, 10, 10, 20, 20, 20, 20]);
        // The sum is 4 * 20 + (0.8 + 0.6 + 0.4 + 0.2) * 10 = 100, and the sum of the weights is 6.
        assert!((all.rate(at) - 6.0 / 100.0).abs() < 1e-12);
    }

    #[test]
    fn rate_is_zero_without_loss_and_at_most_one() {
        assert_eq!(LossIntervals::default().rate(1_000), 0.0);
        let (all, at) = intervals(&[1, 1]);
        assert_eq!(all.rate(at), 1.0);
    }
}
