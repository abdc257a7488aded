//! Rates of a plan's flows and streams.
//!
//! A stream of a routed group has a whole number of units, its weight. TCP gives the flows of a
//! link equal shares, so a light stream next to a heavier one would take more than its rate: its
//! source limits it. A stream that is the heaviest on each of its links needs no limit: the limits
//! of the lighter streams leave it at least its rate.
//!
//! Read [`Plan::flow_units`] and [`Plan::stream_ceilings`].

use super::{Flow, Group, Input, Plan};
use anabranch_units::{BitRate, LinkId};
use std::collections::{BTreeMap, BTreeSet};

/// Minimum rate limit of a stream: with a lower one, a chunk would take hours.
pub(crate) const CEILING_MIN: BitRate = BitRate::bps(1_000);

impl Group {
    /// Units of a stream.
    pub fn weight(&self, stream: u16) -> u64 {
        self.weights.get(usize::from(stream)).map_or(1, |weight| u64::from(*weight))
    }

    /// Units of all streams together.
    pub fn units(&self) -> u64 {
        match self.weights.as_slice() {
            [] => self.streams.into(),
            weights => weights.iter().map(|weight| u64::from(*weight)).sum(),
        }
    }
}

impl Plan {
    /// Units of each flow, by flow. A flow of a cycle, which no valid plan has, counts as one unit.
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

    /// Units on each link that the plan uses, without filling flows.
    pub fn link_units(&self) -> BTreeMap<LinkId, u64> {
        let mut on_link = BTreeMap::new();
        let flows = self.flows.iter().zip(self.flow_units()).filter(|(flow, _)| !self.fills(flow));
        flows.for_each(|(flow, units)| *on_link.entry(flow.link).or_default() += units);
        on_link
    }

    /// Links whose flows all have a maximum rate at the source, so that they never show whether the
    /// link could carry more.
    pub fn paced_links(&self) -> BTreeSet<LinkId> {
        let ceilings: Vec<_> = (0..self.groups.len()).map(|group| self.stream_ceilings(group)).collect();
        let is_paced = |flow: &Flow| {
            let of_group = &ceilings[usize::from(flow.group)];
            !of_group.is_empty() && of_group[super::sharing::stream_of(self, flow)].is_some()
        };
        let flows = || self.flows.iter().filter(|flow| !self.fills(flow));
        let mut paced: BTreeSet<LinkId> = flows().map(|flow| flow.link).collect();
        for flow in flows().filter(|flow| !is_paced(flow)) {
            paced.remove(&flow.link);
        }
        paced
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
