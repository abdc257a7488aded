//! What the broker thinks of a network: whether what it says comes true.
//!
//! A network that bids nonsense, or does not keep what it bids, is believed less: its bids count as worse than they say, and its capacities as less. It
//! costs nobody else anything, and comes back as it does better. Source: section 3.6.3, *Fraud*: a reputation, and bids at lower
//! priority. Read [`Standing`] first.

/// How much the newest thing that is known of a network counts beside all before.
const NEWEST: f64 = 0.25;
/// A capacity is believed to this part at least, so that a network can show that it does better.
const TRUST_LEAST: f64 = 0.05;
/// How much of the way to full trust a round goes in which all was delivered.
const TRUST_BACK: f64 = 0.05;
/// What scores may count at the most, beside what they say.
const BIAS_MOST: f64 = 10.0;

/// What is thought of a network.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Standing {
    /// The share of its bids that made sense, the newest rounds counting most: 1 at first.
    pub reputation: f64,
    /// What its capacities are multiplied by: 1 at first.
    pub capacity_trust: f64,
    /// What its scores are multiplied by, as clients measure others: 1 at first, and at least.
    pub score_bias: f64,
    /// Rounds in which it did not bid in time, all together.
    pub missed: u64,
}

impl Default for Standing {
    fn default() -> Self {
        Self { reputation: 1.0, capacity_trust: 1.0, score_bias: 1.0, missed: 0 }
    }
}

impl Standing {
    /// Whether it can have come about: what a store says may be anything.
    pub fn is_possible(&self) -> bool {
        (0.0..=1.0).contains(&self.reputation)
            && (TRUST_LEAST..=1.0).contains(&self.capacity_trust)
            && (1.0..=BIAS_MOST).contains(&self.score_bias)
    }

    /// By how much worse its scores count than they say.
    pub fn score_factor(&self) -> f64 {
        self.score_bias * (2.0 - self.reputation)
    }

    /// Of its bids in a round this share made sense.
    pub(super) fn note_bids(&mut self, share: f64) {
        self.reputation += NEWEST * (share - self.reputation);
    }

    /// It was called and has not bid in time. Its clients go to others: that is all.
    pub(super) const fn note_missed(&mut self) {
        self.missed += 1;
    }

    /// Clients measured so many times the score that it had bid.
    pub(super) fn note_score(&mut self, ratio: f64) {
        let bias = self.score_bias + NEWEST * (ratio - self.score_bias);
        self.score_bias = bias.clamp(1.0, BIAS_MOST);
    }

    /// A cluster has sent this share of what it was given, which was what it had bid, as far as that was believed.
    pub(super) fn note_delivered(&mut self, share: f64) {
        self.capacity_trust = if share < 1.0 {
            (self.capacity_trust * share).max(TRUST_LEAST)
        } else {
            self.capacity_trust + TRUST_BACK * (1.0 - self.capacity_trust)
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_that_has_kept_its_word_is_believed() {
        let mut standing = Standing::default();
        for _ in 0..100 {
            standing.note_bids(1.0);
            standing.note_score(0.9);
            standing.note_delivered(1.0);
        }
        assert_eq!(standing, Standing::default());
        assert_eq!(standing.score_factor(), 1.0);
    }

    #[test]
    fn who_bids_nonsense_counts_as_worse_and_comes_back() {
        let mut standing = Standing::default();
        (0..10).for_each(|_| standing.note_bids(0.0));
        assert!((1.9..2.0).contains(&standing.score_factor()), "{standing:?}");
        (0..20).for_each(|_| standing.note_bids(1.0));
        assert!(standing.score_factor() < 1.01, "{standing:?}");
    }

    #[test]
    fn a_capacity_that_was_not_there_is_not_believed_again_at_once() {
        let mut standing = Standing::default();
        standing.note_delivered(0.5);
        assert_eq!(standing.capacity_trust, 0.5);
        (0..10).for_each(|_| standing.note_delivered(1.0));
        assert!((0.6..0.8).contains(&standing.capacity_trust), "{standing:?}");
        (0..100).for_each(|_| standing.note_delivered(0.0));
        assert_eq!(standing.capacity_trust, TRUST_LEAST);
    }
}
