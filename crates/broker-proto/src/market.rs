//! A market: clusters, places of viewers, and groups of interchangeable viewers.
//!
//! Read [`Market`] first.

use crate::limits::{BITRATE_MAX, CAPACITY_MAX};
use anabranch_units::BitRate;
use std::fmt;

/// Maximum weighted cost or score of a market. It exceeds every product of the limits of costs,
/// scores and weights.
pub const COST_MAX: f64 = 1e30;

/// A group of servers of a content network.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Cluster {
    /// Total rate that the cluster may send.
    pub capacity: BitRate,
    /// Cost of serving one Mbit/s, weighted to the unit of [`Candidate::score`].
    pub cost_per_mbps: f64,
}

/// A cluster from which viewers in a place may be served.
#[derive(Copy, Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Number of the cluster.
    pub cluster: u32,
    /// Weighted score of serving a viewer of the place (w_p times the thesis's performance; lower
    /// is better).
    pub score: f64,
}

/// Interchangeable viewers of one place and one bitrate.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Number of the place.
    pub place: u32,
    /// Bitrate of each viewer.
    pub bitrate: BitRate,
    /// Number of viewers.
    pub sessions: u32,
}

/// Input of the optimiser: the thesis's Figure 3.10, with viewers in groups.
///
/// Differs: a viewer may go unserved, at [`Market::unserved_cost`]; the thesis has no answer if
/// capacities do not suffice.
#[derive(Clone, Debug)]
pub struct Market {
    clusters: Vec<Cluster>,
    /// Candidates of all places, place by place.
    candidates: Vec<Candidate>,
    /// Index of each place's first candidate, and at the end the number of all candidates.
    starts: Vec<u32>,
    groups: Vec<Group>,
    unserved_cost: f64,
}

/// Error of an invalid market.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum MarketError {
    /// A cost or a score is negative, above `COST_MAX`, or not a number.
    NotACost {
        /// Kind of the item.
        what: &'static str,
        /// Number of the item.
        number: usize,
        /// The refused value.
        value: f64,
    },
    /// A capacity or a bitrate is above its limit.
    TooMuch {
        /// Kind of the item.
        what: &'static str,
        /// Number of the item.
        number: usize,
        /// The refused value.
        value: BitRate,
        /// The limit.
        most: BitRate,
    },
    /// A candidate names an unknown cluster, or a group an unknown place.
    Unknown {
        /// Kind of the item.
        what: &'static str,
        /// Number of the item.
        number: usize,
        /// Number of the unknown cluster or place.
        named: u32,
        /// Number of clusters or places.
        count: usize,
    },
    /// A group has bitrate 0, or no viewers.
    Empty {
        /// Number of the group.
        group: usize,
    },
}

impl fmt::Display for MarketError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NotACost { what, number, value } => {
                write!(f, "{what} {number}: {value}: must be a number from 0 to 10^30")
            }
            Self::TooMuch { what, number, value, most } => {
                let (bps, most_bps) = (value.as_bps(), most.as_bps());
                write!(f, "{what} {number}: {bps} bit/s: must be at most {most_bps}")
            }
            Self::Unknown { what, number, named, count } => {
                write!(f, "{what} {number}: names {named}: there are {count}, from 0 on")
            }
            Self::Empty { group } => {
                write!(f, "group {group}: must have a bitrate above 0 and at least one session")
            }
        }
    }
}
impl std::error::Error for MarketError {}

impl Market {
    /// Creates a market of clusters, of places with their candidates, and of groups.
    ///
    /// Errors: see [`MarketError`].
    pub fn new(
        clusters: Vec<Cluster>,
        places: &[Vec<Candidate>],
        groups: Vec<Group>,
    ) -> Result<Self, MarketError> {
        let mut starts = vec![0];
        starts.extend(places.iter().scan(0, |end, of| {
            *end += of.len() as u32;
            Some(*end)
        }));
        Self::of_list(clusters, places.concat(), starts, groups)
    }

    /// Creates a market from the candidates of all places, place by place; `starts` has the start
    /// index of each place, and the end of the last one.
    ///
    /// Errors: see [`MarketError`].
    pub(crate) fn of_list(
        clusters: Vec<Cluster>,
        candidates: Vec<Candidate>,
        starts: Vec<u32>,
        groups: Vec<Group>,
    ) -> Result<Self, MarketError> {
        let mut market = Self { clusters, candidates, starts, groups, unserved_cost: 0.0 };
        market.check()?;
        // A cost above any viewer's cost: a viewer goes unserved only while none of its candidates
        // has capacity left. Moving other viewers could still free capacity, but finding such moves
        // is as hard as bin packing.
        let dearest = market
            .groups
            .iter()
            .flat_map(|group| market.candidates_of(group.place).iter().map(|one| market.cost(group, one)));
        market.unserved_cost = 2.0 * dearest.fold(1.0, f64::max);
        Ok(market)
    }

    fn check(&self) -> Result<(), MarketError> {
        let cost = |what, number, value: f64| {
            if (0.0..=COST_MAX).contains(&value) {
                Ok(())
            } else {
                Err(MarketError::NotACost { what, number, value })
            }
        };
        let rate = |what, number, value: BitRate, most| {
            if value <= most { Ok(()) } else { Err(MarketError::TooMuch { what, number, value, most }) }
        };
        let known = |what, number, named: u32, count: usize| {
            if (named as usize) < count {
                Ok(())
            } else {
                Err(MarketError::Unknown { what, number, named, count })
            }
        };
        for (number, cluster) in self.clusters.iter().enumerate() {
            cost("cluster", number, cluster.cost_per_mbps)?;
            rate("cluster", number, cluster.capacity, CAPACITY_MAX)?;
        }
        let places = self.starts.len() - 1;
        for number in 0..places {
            for candidate in self.candidates_of(number as u32) {
                cost("place", number, candidate.score)?;
                known("place", number, candidate.cluster, self.clusters.len())?;
            }
        }
        for (number, group) in self.groups.iter().enumerate() {
            known("group", number, group.place, places)?;
            if group.bitrate.as_bps() == 0 || group.sessions == 0 {
                return Err(MarketError::Empty { group: number });
            }
            rate("group", number, group.bitrate, BITRATE_MAX)?;
        }
        Ok(())
    }

    /// Sets the cost of an unserved viewer.
    #[must_use]
    pub const fn with_unserved_cost(mut self, cost: f64) -> Self {
        self.unserved_cost = cost;
        self
    }

    /// The clusters.
    pub fn clusters(&self) -> &[Cluster] {
        &self.clusters
    }
    /// The groups.
    pub fn groups(&self) -> &[Group] {
        &self.groups
    }
    /// Clusters that may serve viewers in a place.
    pub fn candidates_of(&self, place: u32) -> &[Candidate] {
        let at = |place: usize| self.starts[place] as usize;
        &self.candidates[at(place as usize)..at(place as usize + 1)]
    }
    /// Cost of an unserved viewer.
    pub const fn unserved_cost(&self) -> f64 {
        self.unserved_cost
    }
    /// Cost of serving a viewer of a group from a candidate.
    pub fn cost(&self, group: &Group, candidate: &Candidate) -> f64 {
        candidate.score + self.clusters[candidate.cluster as usize].cost_per_mbps * mbps(group.bitrate)
    }
}

/// Converts a rate to Mbit/s.
pub(crate) fn mbps(rate: BitRate) -> f64 {
    rate.as_bps() as f64 / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn invalid_market_is_refused_with_one_line() {
        let cluster = Cluster { capacity: BitRate::mbps(1), cost_per_mbps: 1.0 };
        let group = Group { place: 0, bitrate: BitRate::mbps(1), sessions: 1 };
        let places = [vec![Candidate { cluster: 0, score: 1.0 }]];
        let said = |clusters: Vec<Cluster>, places: &[Vec<Candidate>], groups| {
            Market::new(clusters, places, groups).expect_err("it is wrong").to_string()
        };
        let bad = Cluster { cost_per_mbps: f64::NAN, ..cluster };
        assert_eq!(
            said(vec![cluster, bad], &places, vec![group]),
            "cluster 1: NaN: must be a number from 0 to 10^30"
        );
        let of_two = [vec![Candidate { cluster: 2, score: 1.0 }]];
        assert_eq!(said(vec![cluster; 2], &of_two, vec![group]), "place 0: names 2: there are 2, from 0 on");
        let nobody = Group { sessions: 0, ..group };
        assert_eq!(
            said(vec![cluster], &places, vec![group, nobody]),
            "group 1: must have a bitrate above 0 and at least one session"
        );
        let market = Market::new(vec![cluster], &places, vec![group]).expect("it can be");
        assert_eq!((market.cost(&group, &places[0][0]), market.unserved_cost()), (2.0, 4.0));
    }
}
