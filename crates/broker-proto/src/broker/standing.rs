//! The broker's trust in a network: how far the network's bids have proved true.
//!
//! A network that bids nonsense, or does not deliver what it bid, loses trust: its scores count as
//! worse than bid, and its capacities as lower. Other networks are unaffected, and trust returns as
//! the network improves. Source: section 3.6.3, *Fraud*: a reputation, and bids at lower priority.
//! Read [`NetworkTrust`] first.

/// Weight of the newest observation of a network.
const NEWEST: f64 = 0.25;
/// Minimum trust in capacities, so that a network can show improvement.
const TRUST_LEAST: f64 = 0.05;
/// Share of the missing trust that a fully delivered round restores.
const TRUST_BACK: f64 = 0.05;
/// Maximum factor on scores.
const BIAS_MOST: f64 = 10.0;

/// Trust in a network.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct NetworkTrust {
    /// Share of valid bids, with more weight on recent rounds; initially 1.
    pub reputation: f64,
    /// Factor on the network's capacities, at most 1; initially 1.
    pub capacity_trust: f64,
    /// Factor on the network's scores, from clients' measurements, at least 1; initially 1.
    pub score_bias: f64,
    /// Total rounds without timely bids.
    pub missed: u64,
}

impl Default for NetworkTrust {
    fn default() -> Self {
        Self { reputation: 1.0, capacity_trust: 1.0, score_bias: 1.0, missed: 0 }
    }
}

impl NetworkTrust {
    /// Returns true if all values are within range; a stored value may be invalid.
    pub fn is_possible(&self) -> bool {
        (0.0..=1.0).contains(&self.reputation)
            && (TRUST_LEAST..=1.0).contains(&self.capacity_trust)
            && (1.0..=BIAS_MOST).contains(&self.score_bias)
    }

    /// Factor by which the network's scores count as worse than bid.
    pub fn score_factor(&self) -> f64 {
        self.score_bias * (2.0 - self.reputation)
    }

    /// Records the share of valid bids in a round.
    pub(super) fn note_bids(&mut self, share: f64) {
        self.reputation += NEWEST * (share - self.reputation);
    }

    /// Records a call without timely bids. Only the count changes.
    pub(super) const fn note_missed(&mut self) {
        self.missed += 1;
    }

    /// Records the ratio of a score measured by clients to the score bid.
    pub(super) fn note_score(&mut self, ratio: f64) {
        let bias = self.score_bias + NEWEST * (ratio - self.score_bias);
        self.score_bias = bias.clamp(1.0, BIAS_MOST);
    }

    /// Records the share of its placed demand that a cluster delivered. The placed demand was at
    /// most the trusted part of the bid capacity.
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
    fn network_that_delivers_its_bids_keeps_full_trust() {
        let mut standing = NetworkTrust::default();
        for _ in 0..100 {
            standing.note_bids(1.0);
            standing.note_score(0.9);
            standing.note_delivered(1.0);
        }
        assert_eq!(standing, NetworkTrust::default());
        assert_eq!(standing.score_factor(), 1.0);
    }

    #[test]
    fn invalid_bids_worsen_scores_until_valid_bids_follow() {
        let mut standing = NetworkTrust::default();
        (0..10).for_each(|_| standing.note_bids(0.0));
        assert!((1.9..2.0).contains(&standing.score_factor()), "{standing:?}");
        (0..20).for_each(|_| standing.note_bids(1.0));
        assert!(standing.score_factor() < 1.01, "{standing:?}");
    }

    #[test]
    fn trust_in_capacity_returns_gradually() {
        let mut standing = NetworkTrust::default();
        standing.note_delivered(0.5);
        assert_eq!(standing.capacity_trust, 0.5);
        (0..10).for_each(|_| standing.note_delivered(1.0));
        assert!((0.6..0.8).contains(&standing.capacity_trust), "{standing:?}");
        (0..100).for_each(|_| standing.note_delivered(0.0));
        assert_eq!(standing.capacity_trust, TRUST_LEAST);
    }
}
