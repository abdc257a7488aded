//! A market as text: the optimisation of a round (the thesis's Figure 3.10), for other solvers and
//! processes.
//!
//! Leaves out: answers. Read [`Program`] first.

use crate::market::{COST_MAX, Candidate, Cluster, Group, Market, MarketError};
use anabranch_units::BitRate;
use serde::de::{DeserializeSeed, Deserializer, SeqAccess, Visitor};
use serde::{Deserialize, Serialize, Serializer};
use std::fmt;

/// A market's numbers, for JSON.
///
/// A reader must parse scores and costs exactly to get the same market (feature `float_roundtrip`
/// of `serde_json`).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    /// Cost of an unserved client.
    unserved_cost: f64,
    /// Capacity in bits per second and cost per Mbit/s of each cluster.
    clusters: Vec<(u64, f64)>,
    /// Numbers and scores of each place's clusters.
    places: CandidateLists,
    /// Place, bitrate in bits per second and number of clients of each group.
    groups: Vec<(u32, u64, u32)>,
}

impl From<&Market> for Program {
    /// Places after the last place with clients are left out.
    fn from(market: &Market) -> Self {
        let mut places = CandidateLists::default();
        for place in 0..market.groups().iter().map(|group| group.place + 1).max().unwrap_or(0) {
            places.candidates.extend(market.candidates_of(place).iter().map(|one| (one.cluster, one.score)));
            places.ends.push(places.candidates.len() as u32);
        }
        let groups = market.groups().iter().map(|one| (one.place, one.bitrate.as_bps(), one.sessions));
        Self {
            unserved_cost: market.unserved_cost(),
            clusters: market
                .clusters()
                .iter()
                .map(|one| (one.capacity.as_bps(), one.cost_per_mbps))
                .collect(),
            places,
            groups: groups.collect(),
        }
    }
}

impl TryFrom<Program> for Market {
    type Error = MarketError;

    /// Errors: as [`Market::new`], and an invalid cost of unserved clients.
    fn try_from(program: Program) -> Result<Self, MarketError> {
        let value = program.unserved_cost;
        if !(0.0..=COST_MAX).contains(&value) {
            return Err(MarketError::NotACost { what: "unserved_cost", number: 0, value });
        }
        let cluster = |(bps, cost_per_mbps)| Cluster { capacity: BitRate::bps(bps), cost_per_mbps };
        let candidate = |(cluster, score)| Candidate { cluster, score };
        let group = |(place, bps, sessions)| Group { place, bitrate: BitRate::bps(bps), sessions };
        let CandidateLists { candidates, ends } = program.places;
        let market = Self::of_list(
            program.clusters.into_iter().map(cluster).collect(),
            candidates.into_iter().map(candidate).collect(),
            [0].into_iter().chain(ends).collect(),
            program.groups.into_iter().map(group).collect(),
        );
        Ok(market?.with_unserved_cost(value))
    }
}

/// Candidates of all places, place by place, and the end of each place. In the text each place is a
/// list. These lists make up most of a market, so they are read without a copy.
#[derive(Clone, Debug, Default, PartialEq)]
struct CandidateLists {
    candidates: Vec<(u32, f64)>,
    ends: Vec<u32>,
}

impl Serialize for CandidateLists {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let starts = [0].iter().chain(&self.ends);
        let place = |(start, end): (&u32, &u32)| &self.candidates[*start as usize..*end as usize];
        serializer.collect_seq(starts.zip(&self.ends).map(place))
    }
}

impl<'de> Deserialize<'de> for CandidateLists {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_seq(CandidateListsVisitor)
    }
}

/// Deserializes all places.
struct CandidateListsVisitor;

impl<'de> Visitor<'de> for CandidateListsVisitor {
    type Value = CandidateLists;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a list of candidates for each place")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<CandidateLists, A::Error> {
        let mut places = CandidateLists::default();
        while seq.next_element_seed(CandidatesVisitor(&mut places.candidates))?.is_some() {
            places.ends.push(places.candidates.len() as u32);
        }
        Ok(places)
    }
}

/// Deserializes one place's candidates, and appends them.
struct CandidatesVisitor<'a>(&'a mut Vec<(u32, f64)>);

impl<'de> DeserializeSeed<'de> for CandidatesVisitor<'_> {
    type Value = ();

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<(), D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for CandidatesVisitor<'_> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("clusters' numbers and scores")
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<(), A::Error> {
        while let Some(candidate) = seq.next_element()? {
            self.0.push(candidate);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Optimiser;

    fn market() -> Market {
        let cluster = |mbps, cost_per_mbps| Cluster { capacity: BitRate::mbps(mbps), cost_per_mbps };
        let candidate = |cluster, score| Candidate { cluster, score };
        let group =
            |place, kbps: u64, sessions| Group { place, bitrate: BitRate::bps(1_000 * kbps), sessions };
        let places = [
            vec![candidate(0, 3.5), candidate(1, 0.125)],
            vec![],
            vec![candidate(1, 7.25)],
            vec![candidate(0, 1.0)],
        ];
        let groups = vec![group(0, 400, 3), group(2, 2_500, 2), group(1, 1_000, 1)];
        Market::new(vec![cluster(3, 1.5), cluster(4, 0.1)], &places, groups).expect("a good market")
    }

    #[test]
    fn market_survives_conversion_to_text_and_back() {
        let market = market().with_unserved_cost(40.0);
        let text = serde_json::to_string(&Program::from(&market)).expect("numbers have text");
        let read: Program = serde_json::from_str(&text).expect("it was written just now");
        assert_eq!(read, Program::from(&market));
        assert_eq!(read.places.ends, [2, 2, 3], "nobody is in the last place");
        assert!(text.contains(r#""places":[[[0,3.5],[1,0.125]],[],[[1,7.25]]]"#), "{text}");
        let read = Market::try_from(read).expect("it was a market");
        assert_eq!(read.unserved_cost(), 40.0);
        let search = |market: &Market| Optimiser::default().optimise(market, None);
        assert_eq!(search(&read), search(&market));
    }

    #[test]
    fn invalid_program_is_refused_as_a_market() {
        let refused = |change: &dyn Fn(&mut Program)| {
            let mut program = Program::from(&market());
            change(&mut program);
            Market::try_from(program).expect_err("it is wrong").to_string()
        };
        let place = refused(&|program| program.groups[0].0 = 9);
        assert_eq!(place, "group 0: names 9: there are 3, from 0 on");
        let cost = refused(&|program| program.unserved_cost = -1.0);
        assert_eq!(cost, "unserved_cost 0: -1: must be a number from 0 to 10^30");
    }
}
