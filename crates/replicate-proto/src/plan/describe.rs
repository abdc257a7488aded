//! Description of a plan: each site's work, rates, bytes.
//!
//! Source: CodedBulk Figure 2 for the four functions. Read [`SiteWork`] first.

use super::{FlowId, Input, Plan, Term};
use anabranch_graph::Topology;
use anabranch_units::{BitRate, ByteCount, LinkId, SiteId};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The function by which a site makes a flow (Figure 2).
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SiteFunction {
    /// One input to one output.
    Forward,
    /// One input to several outputs, which may include the site's own file.
    Mirror,
    /// A sum of inputs to one output.
    CodeAndForward,
    /// A sum of inputs to several outputs.
    CodeAndMirror,
}

impl std::fmt::Display for SiteFunction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Forward => "forward",
            Self::Mirror => "mirror",
            Self::CodeAndForward => "code-and-forward",
            Self::CodeAndMirror => "code-and-mirror",
        })
    }
}

/// A sum that a site computes and sends.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteWork {
    /// The site.
    pub site: SiteId,
    /// The function.
    pub function: SiteFunction,
    /// The terms of the sum.
    pub terms: Vec<Term>,
    /// The flows that carry the sum.
    pub flows: Vec<FlowId>,
    /// Whether the site is a destination and uses the same input itself.
    pub kept: bool,
    /// The sum as text, for example `f3 + 7*f5'` (`s` streams, `f` flows, `'` the previous
    /// generation).
    pub sum: String,
    /// Whether the sum belongs to a group that fills another group.
    pub fills: bool,
}

/// A sum as text, for example `f3 + 7*f5'`.
pub fn sum_text(terms: &[Term]) -> String {
    let term = |t: &Term| {
        let factor = if t.coefficient == 1 { String::new() } else { format!("{}*", t.coefficient) };
        let delay = if t.delayed { "'" } else { "" };
        match t.input {
            Input::Stream(s) => format!("{factor}s{s}{delay}"),
            Input::Flow(f) => format!("{factor}f{}{delay}", f.0),
        }
    };
    terms.iter().map(term).collect::<Vec<_>>().join(" + ")
}

impl Plan {
    /// The sums that every site computes, with the flows that carry them, by site.
    ///
    /// Panics: if the plan does not belong to this topology.
    pub fn works(&self, topology: &Topology) -> Vec<SiteWork> {
        let mut made: BTreeMap<(SiteId, u16, String), Vec<FlowId>> = BTreeMap::new();
        for (i, flow) in self.flows.iter().enumerate() {
            let key = (topology.link(flow.link).from, flow.group, sum_text(&flow.terms));
            made.entry(key).or_default().push(FlowId(i as u32));
        }
        let mut works = Vec::new();
        for ((site, group, sum), flows) in made {
            let flow = &self.flows[flows[0].index()];
            let sinks = &self.groups[usize::from(group)].sinks;
            let own = sinks.iter().find(|s| s.site == site);
            let kept = match (flow.terms.as_slice(), own) {
                ([Term { input: Input::Flow(f), .. }], Some(sink)) => sink.inputs.contains(f),
                _ => false,
            };
            let several = flows.len() + usize::from(kept) > 1;
            let function = match (flow.is_coded(), several) {
                (false, false) => SiteFunction::Forward,
                (false, true) => SiteFunction::Mirror,
                (true, false) => SiteFunction::CodeAndForward,
                (true, true) => SiteFunction::CodeAndMirror,
            };
            let fills = self.fills(flow);
            works.push(SiteWork { site, function, terms: flow.terms.clone(), flows, kept, sum, fills });
        }
        works
    }

    /// The sites that code, with their sums.
    pub fn coding_sites(&self, topology: &Topology) -> Vec<SiteWork> {
        let codes =
            |w: &SiteWork| matches!(w.function, SiteFunction::CodeAndForward | SiteFunction::CodeAndMirror);
        self.works(topology).into_iter().filter(codes).collect()
    }

    /// The groups that fill: the destinations of each group and the links of each of its trees.
    pub fn fill_trees(&self) -> Vec<(Vec<SiteId>, Vec<Vec<LinkId>>)> {
        let fill = self.groups.iter().enumerate().filter(|(_, g)| g.fills.is_some());
        let trees = fill.map(|(number, group)| {
            let mut trees = vec![Vec::new(); usize::from(group.streams)];
            for flow in self.flows.iter().filter(|f| usize::from(f.group) == number) {
                trees[super::sharing::stream_of(self, flow)].push(flow.link);
            }
            (group.sinks.iter().map(|s| s.site).collect(), trees)
        });
        trees.collect()
    }

    /// The predicted rate of each destination, ascending by site.
    pub fn rates(&self) -> Vec<(SiteId, BitRate)> {
        let mut rates: Vec<(SiteId, BitRate)> = self
            .groups
            .iter()
            .filter(|g| g.fills.is_none())
            .flat_map(|g| {
                let rate = if self.store_and_forward { self.rate } else { self.unit * g.units() };
                g.sinks.iter().map(move |s| (s.site, rate))
            })
            .collect();
        rates.sort_unstable();
        rates
    }

    /// Bytes of a file of `length` on each link that the plan uses, without headers and filling
    /// flows; rounded up.
    ///
    /// Differs: routed streams are counted according to their weights, while in reality each takes
    /// as many chunks as it has room for.
    pub fn bytes_per_link(&self, length: ByteCount) -> BTreeMap<LinkId, ByteCount> {
        let mut bytes: BTreeMap<LinkId, ByteCount> = BTreeMap::new();
        let flows = self.flows.iter().zip(self.flow_units()).filter(|(f, _)| !self.fills(f));
        for (flow, units) in flows {
            let all = u128::from(self.groups[usize::from(flow.group)].units());
            let carried = (u128::from(length.as_u64()) * u128::from(units)).div_ceil(all);
            *bytes.entry(flow.link).or_default() += ByteCount::new(carried as u64);
        }
        bytes
    }
}
