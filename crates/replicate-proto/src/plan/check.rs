//! Checks a plan: its invariants, and that random data sent through the plan arrives unchanged.
//!
//! Independent of the making of plans. Read [`Plan::check`] first.

use super::{DecodeMap, FlowId, Group, Input, Mode, Plan, Sink, field};
use anabranch_graph::Topology;
use anabranch_units::{BitRate, LinkId, Seed, SiteId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A fault of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CheckError {
    /// A flow, group, link or site that does not exist.
    Unknown {
        /// Kind of the missing item.
        what: &'static str,
        /// Number of the missing item.
        id: u32,
    },
    /// A link carries more than its capacity.
    Overload {
        /// The link.
        link: LinkId,
        /// Rate that the plan's flows need.
        need: BitRate,
        /// Capacity of the link.
        capacity: BitRate,
    },
    /// A term of a flow is invalid.
    BadTerm {
        /// The flow.
        flow: FlowId,
        /// The fault.
        why: &'static str,
    },
    /// Flows without delay depend on each other in a cycle.
    Circle,
    /// A destination is served by no group, or by several.
    Served {
        /// The destination.
        site: SiteId,
        /// Number of groups.
        groups: usize,
    },
    /// A group cannot fill the group that it names.
    BadFill {
        /// The group.
        group: u16,
        /// The fault.
        why: &'static str,
    },
    /// A group's streams cannot have these weights.
    BadWeights {
        /// The group.
        group: u16,
        /// The fault.
        why: &'static str,
    },
    /// A sink's inputs or its decoding do not match its group.
    BadSink {
        /// The destination.
        site: SiteId,
        /// The fault.
        why: &'static str,
    },
    /// The rate is not the sum over the groups, or is above the min-cut.
    BadRate {
        /// Rate in the plan.
        rate: BitRate,
        /// Maximum rate.
        most: BitRate,
    },
    /// The data at a destination differs from the sent data.
    Garbled {
        /// The destination.
        site: SiteId,
        /// The first wrong generation.
        generation: u32,
    },
}

impl std::fmt::Display for CheckError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Unknown { what, id } => write!(f, "plan names {what} {id}, which does not exist"),
            Self::Overload { link, need, capacity } => {
                write!(f, "plan puts {need} on link {link}, which has {capacity}")
            }
            Self::BadTerm { flow, why } => write!(f, "flow {}: {why}", flow.0),
            Self::Circle => write!(f, "flows without delay wait for each other in a circle"),
            Self::Served { site, groups } => {
                write!(f, "destination {site} is served by {groups} groups, not by one")
            }
            Self::BadFill { group, why } => write!(f, "group {group} fills another, but {why}"),
            Self::BadWeights { group, why } => write!(f, "group {group} has weights, but {why}"),
            Self::BadSink { site, why } => write!(f, "sink at site {site}: {why}"),
            Self::BadRate { rate, most } => write!(f, "plan promises {rate}, its flows deliver {most}"),
            Self::Garbled { site, generation } => {
                write!(f, "destination {site} does not get back generation {generation}")
            }
        }
    }
}
impl std::error::Error for CheckError {}

/// Counts of a check.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CheckCounts {
    /// Number of destinations that decoded everything.
    pub sinks: usize,
    /// Number of generations sent, including the zeros that flush the code.
    pub generations: u32,
    /// Maximum lookahead of a sink.
    pub lookahead: u16,
}

/// Eight random bytes for each stream and generation: a wrong decoder passes with probability 2^-64
/// per symbol.
type Symbol = [u8; 8];
/// Generations of data in a check, in addition to the generations that fill and flush the code.
const GENERATIONS: u32 = 6;

impl Plan {
    /// Checks all invariants, and that every destination decodes the sent data, generation by
    /// generation.
    ///
    /// Errors: the first broken invariant; see [`CheckError`].
    pub fn check(&self, topology: &Topology) -> Result<CheckCounts, CheckError> {
        let capacities: Vec<BitRate> = topology.links().iter().map(|l| l.properties.capacity).collect();
        self.check_within(topology, &capacities)
    }

    /// Checks as [`Plan::check`] does, with the remaining capacity of each link when the plan was
    /// made.
    pub fn check_within(
        &self,
        topology: &Topology,
        capacities: &[BitRate],
    ) -> Result<CheckCounts, CheckError> {
        self.check_sites(topology)?;
        self.check_flows(topology)?;
        self.check_weights()?;
        let order = self.order().ok_or(CheckError::Circle)?;
        for (link, units) in self.link_units() {
            let (need, capacity) = (self.unit * units, capacities[link.index()]);
            if need > capacity {
                return Err(CheckError::Overload { link, need, capacity });
            }
        }
        let bulk = self.groups.iter().filter(|g| g.fills.is_none());
        let most = (self.unit * bulk.map(Group::units).min().unwrap_or(0)).min(self.bound);
        if self.rate > most || self.rate < most && !self.store_and_forward {
            return Err(CheckError::BadRate { rate: self.rate, most });
        }
        self.check_sinks(topology)?;
        self.check_decoding(&order)
    }

    fn check_sites(&self, topology: &Topology) -> Result<(), CheckError> {
        for site in self.destinations.iter().chain([&self.source]) {
            if site.index() >= topology.sites().len() {
                return Err(CheckError::Unknown { what: "site", id: site.0.into() });
            }
        }
        for site in &self.destinations {
            let serves = |g: &&Group| g.sinks.iter().any(|s| s.site == *site);
            let groups = self.groups.iter().filter(|g| g.fills.is_none()).filter(serves).count();
            if groups != 1 || *site == self.source {
                return Err(CheckError::Served { site: *site, groups });
            }
        }
        self.check_fill()
    }

    fn check_weights(&self) -> Result<(), CheckError> {
        for (number, group) in self.groups.iter().enumerate().filter(|(_, g)| !g.weights.is_empty()) {
            let bad = |why: &'static str| CheckError::BadWeights { group: number as u16, why };
            if group.mode == Mode::Coded || group.fills.is_some() {
                return Err(bad("is coded or fills another"));
            }
            if group.weights.len() != usize::from(group.streams) || group.weights.contains(&0) {
                return Err(bad("has other than one weight of at least 1 for each stream"));
            }
        }
        Ok(())
    }

    fn check_fill(&self) -> Result<(), CheckError> {
        let mut filled = BTreeSet::new();
        for (number, group) in self.groups.iter().enumerate() {
            let Some(other) = group.fills else { continue };
            let bad = |why: &'static str| CheckError::BadFill { group: number as u16, why };
            let Some(other) = self.groups.get(usize::from(other)) else {
                return Err(CheckError::Unknown { what: "group", id: other.into() });
            };
            if other.fills.is_some() {
                return Err(bad("that one fills, too"));
            }
            if group.mode != Mode::Routed {
                return Err(bad("is coded"));
            }
            for sink in &group.sinks {
                if !other.sinks.iter().any(|s| s.site == sink.site) {
                    return Err(bad("serves a destination that the other does not"));
                }
                if !filled.insert(sink.site) {
                    return Err(bad("serves a destination that is filled already"));
                }
            }
        }
        Ok(())
    }

    fn check_flows(&self, topology: &Topology) -> Result<(), CheckError> {
        for (i, flow) in self.flows.iter().enumerate() {
            let bad = |why: &'static str| CheckError::BadTerm { flow: FlowId(i as u32), why };
            if flow.link.index() >= topology.links().len() {
                return Err(CheckError::Unknown { what: "link", id: flow.link.0 });
            }
            let group = self
                .groups
                .get(usize::from(flow.group))
                .ok_or(CheckError::Unknown { what: "group", id: flow.group.into() })?;
            let from = topology.link(flow.link).from;
            if flow.terms.is_empty() {
                return Err(bad("carries nothing"));
            }
            if group.mode == Mode::Routed && flow.is_coded() {
                return Err(bad("is coded in a routed group"));
            }
            for term in &flow.terms {
                if term.coefficient == 0 {
                    return Err(bad("has a term with coefficient 0"));
                }
                match term.input {
                    Input::Stream(_) if from != self.source => {
                        return Err(bad("takes a stream away from the source"));
                    }
                    Input::Stream(_) if term.delayed => return Err(bad("delays a stream")),
                    Input::Stream(s) if s >= group.streams => {
                        return Err(bad("takes a stream that its group lacks"));
                    }
                    Input::Stream(_) => {}
                    Input::Flow(f) => {
                        let Some(input) = self.flows.get(f.index()) else {
                            return Err(CheckError::Unknown { what: "flow", id: f.0 });
                        };
                        if input.group != flow.group {
                            return Err(bad("takes a flow of another group"));
                        }
                        if topology.link(input.link).to != from {
                            return Err(bad("takes a flow that ends elsewhere"));
                        }
                    }
                }
            }
        }
        Ok(())
    }

    fn check_sinks(&self, topology: &Topology) -> Result<(), CheckError> {
        for (g, group) in self.groups.iter().enumerate() {
            for sink in &group.sinks {
                let bad = |why: &'static str| CheckError::BadSink { site: sink.site, why };
                if !self.destinations.contains(&sink.site) {
                    return Err(bad("is at no destination"));
                }
                if sink.inputs.len() != usize::from(group.streams) {
                    return Err(bad("takes in another number of flows than there are streams"));
                }
                for f in &sink.inputs {
                    let Some(flow) = self.flows.get(f.index()) else {
                        return Err(CheckError::Unknown { what: "flow", id: f.0 });
                    };
                    if usize::from(flow.group) != g || topology.link(flow.link).to != sink.site {
                        return Err(bad("takes in a flow of another group or site"));
                    }
                }
                if sink.decode.is_some() != (group.mode == Mode::Coded) {
                    return Err(bad("decodes a routed group, or does not decode a coded one"));
                }
                if let Some(decode) = &sink.decode {
                    let (h, n) = (usize::from(group.streams), usize::from(decode.state));
                    let width = h * (usize::from(decode.lookahead) + 1) + n;
                    let fits = |m: &Vec<Vec<u8>>, rows: usize, columns: usize| {
                        m.len() == rows && m.iter().all(|r| r.len() == columns)
                    };
                    if !fits(&decode.output, h, width) || !fits(&decode.next, n, n + h) {
                        return Err(bad("has matrices of the wrong size"));
                    }
                }
            }
        }
        Ok(())
    }

    /// An order of the flows in which each flow follows its inputs without delay; `None` if there
    /// is a cycle.
    pub fn order(&self) -> Option<Vec<FlowId>> {
        let mut waits = vec![0usize; self.flows.len()];
        let mut after: Vec<Vec<usize>> = vec![Vec::new(); self.flows.len()];
        for (i, flow) in self.flows.iter().enumerate() {
            for term in flow.terms.iter().filter(|t| !t.delayed) {
                if let Input::Flow(f) = term.input {
                    waits[i] += 1;
                    after[f.index()].push(i);
                }
            }
        }
        let mut order: Vec<usize> = (0..waits.len()).filter(|i| waits[*i] == 0).collect();
        let mut next = 0;
        while next < order.len() {
            for i in &after[order[next]] {
                waits[*i] -= 1;
                if waits[*i] == 0 {
                    order.push(*i);
                }
            }
            next += 1;
        }
        (order.len() == self.flows.len()).then(|| order.into_iter().map(|i| FlowId(i as u32)).collect())
    }

    fn check_decoding(&self, order: &[FlowId]) -> Result<CheckCounts, CheckError> {
        let lookahead = self.lookahead();
        let data = GENERATIONS + u32::from(lookahead);
        let total = data + u32::from(lookahead);
        let mut draws = Seed::new(0).stream("replicate-check", 0);
        // sent[group][generation][stream]; the last generations are zeros that flush the code.
        let sent: Vec<Vec<Vec<Symbol>>> = self
            .groups
            .iter()
            .map(|g| {
                let symbol = |generation: u32, draw: u64| {
                    if generation < data { draw.to_le_bytes() } else { Symbol::default() }
                };
                (0..total).map(|n| (0..g.streams).map(|_| symbol(n, draws.next_u64())).collect()).collect()
            })
            .collect();
        // carried[generation][flow]
        let mut carried: Vec<Vec<Symbol>> = Vec::new();
        for generation in 0..total as usize {
            let mut now = vec![Symbol::default(); self.flows.len()];
            for id in order {
                let flow = &self.flows[id.index()];
                let mut sum = Symbol::default();
                for term in &flow.terms {
                    let input = match term.input {
                        Input::Stream(s) => sent[usize::from(flow.group)][generation][usize::from(s)],
                        Input::Flow(f) if !term.delayed => now[f.index()],
                        Input::Flow(f) if generation > 0 => carried[generation - 1][f.index()],
                        Input::Flow(_) => Symbol::default(),
                    };
                    field::add_scaled(&mut sum, term.coefficient, &input);
                }
                now[id.index()] = sum;
            }
            carried.push(now);
        }
        for (group, sent) in self.groups.iter().zip(&sent) {
            for sink in &group.sinks {
                let received =
                    |g: usize| -> Vec<Symbol> { sink.inputs.iter().map(|f| carried[g][f.index()]).collect() };
                let wrong = first_wrong(sink, &received, &sent[..data as usize]);
                if let Some(generation) = wrong {
                    return Err(CheckError::Garbled { site: sink.site, generation: generation as u32 });
                }
            }
        }
        let sinks = self.destinations.len();
        Ok(CheckCounts { sinks, generations: total, lookahead })
    }
}

/// The first generation that the sink does not decode from the received data.
fn first_wrong(sink: &Sink, received: &dyn Fn(usize) -> Vec<Symbol>, sent: &[Vec<Symbol>]) -> Option<usize> {
    let mut state: Vec<Symbol> = vec![Symbol::default(); sink.decode.as_ref().map_or(0, |d| d.state.into())];
    (0..sent.len()).find(|g| {
        let got = match &sink.decode {
            None => received(*g),
            Some(decode) => decode_one(decode, &|later| received(g + later), &mut state),
        };
        got != sent[*g]
    })
}

/// Decodes generation `g` from the inputs' generations `g` to `g + lookahead`, as in [`DecodeMap`];
/// advances the state.
fn decode_one(
    decode: &DecodeMap,
    received: &dyn Fn(usize) -> Vec<Symbol>,
    state: &mut Vec<Symbol>,
) -> Vec<Symbol> {
    let sum = |row: &[u8], symbols: &[Symbol]| {
        let mut sum = Symbol::default();
        row.iter().zip(symbols).for_each(|(c, s)| field::add_scaled(&mut sum, *c, s));
        sum
    };
    let mut inputs: Vec<Symbol> = (0..=usize::from(decode.lookahead)).flat_map(received).collect();
    inputs.extend(state.iter());
    let output: Vec<Symbol> = decode.output.iter().map(|row| sum(row, &inputs)).collect();
    let known: Vec<Symbol> = state.iter().chain(&output).copied().collect();
    *state = decode.next.iter().map(|row| sum(row, &known)).collect();
    output
}
