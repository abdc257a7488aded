//! Rates of a plan's flows and streams.
//!
//! A stream of a routed group has a whole number of units, its weight. TCP gives the flows of a
//! link equal shares, so a light stream next to a heavier one would exceed its rate. The source
//! therefore limits the light stream. The heaviest stream on each of its links needs no limit,
//! because the limits of the lighter streams leave it at least its rate.
//!
//! Read [`Plan::flow_units`] and [`Plan::stream_ceilings`].

use super::{Group, Input, Plan};
use anabranch_units::{BitRate, LinkId};
use std::collections::BTreeMap;

/// Minimum rate limit of a stream. A chunk would take hours at a lower limit.
pub(crate) const CEILING_MIN: BitRate = BitRate::bps(1_000);

impl Group {
    /// Number of units of a stream.
    pub fn weight(&self, stream: u16) -> u64 {
        self.weights.get(usize::from(stream)).map_or(1, |weight| u64::from(*weight))
    }

    /// Number of units of all streams together.
    pub fn units(&self) -> u64 {
        match self.weights.as_slice() {
            [] => self.streams.into(),
            weights => weights.iter().map(|weight| u64::from(*weight)).sum(),
        }
    }
}

impl Plan {
    /// Number of units of each flow, by flow. A flow of a cycle, which no valid plan has, counts as
    /// one unit.
    pub fn flow_units(&self) -> Vec<u64> {
        let mut units = vec![1; self.flows.len()];
        if self.groups.iter().all(|g| g.weights.is_empty()) {
            return units;
        }
        for id in self.order().unwrap_or_default() {
            let flow = &self.flows[id.index()];
            units[id.index()] = match flow.terms[0].input {
                Input::Stream(stream) => self.groups[usize::from(flow.group)].weight(stream),
                Input::Flow(before) => units[before.index()],
            };
        }
        units
    }

    /// Number of units on each link that the plan uses, without filling flows.
    pub fn link_units(&self) -> BTreeMap<LinkId, u64> {
        let mut on_link = BTreeMap::new();
        let flows = self.flows.iter().zip(self.flow_units()).filter(|(flow, _)| !self.fills(flow));
        flows.for_each(|(flow, units)| *on_link.entry(flow.link).or_default() += units);
        on_link
    }

    /// Maximum rate of each stream of a group, by stream: `None` for a stream that is the heaviest
    /// on each of its links. Empty if no stream has a limit.
    pub fn stream_ceilings(&self, group: usize) -> Vec<Option<BitRate>> {
        let of = &self.groups[group];
        if of.weights.is_empty() {
            return Vec::new();
        }
        let units = self.flow_units();
        let flows = || self.flows.iter().zip(&units).filter(|(flow, _)| !self.fills(flow));
        let mut heaviest: BTreeMap<LinkId, u64> = BTreeMap::new();
        for (flow, units) in flows() {
            let most = heaviest.entry(flow.link).or_default();
            *most = (*most).max(*units);
        }
        let mut ceilings = vec![None; usize::from(of.streams)];
        for (flow, units) in flows().filter(|(flow, _)| usize::from(flow.group) == group) {
            if *units < heaviest[&flow.link] {
                ceilings[super::sharing::stream_of(self, flow)] = Some((self.unit * *units).max(CEILING_MIN));
            }
        }
        if ceilings.iter().all(Option::is_none) { Vec::new() } else { ceilings }
    }
}
