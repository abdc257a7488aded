//! Finds the site that corrupted a generation by comparing digests of the same symbols from both
//! ends of every flow.
//!
//! The source knows the symbol that every flow should carry. Of a routed group it sent the chunk
//! itself; of a coded group it has the generation's data and receives every flow's global coding
//! vector (Jaggi and others 2005, section II). A site is named if all its inputs arrived correct
//! and it sent a wrong symbol. TCP under TLS does not deliver flipped bits, so a difference between
//! a sender's digest and its receiver's counts against the sender.
//!
//! Leaves out: codes with delayed terms, whose flows carry sums over many generations. Read
//! [`vectors`] and [`suspects`] first.

use crate::control::{FlowDigest, FlowSide, FlowVector};
use crate::plan::{FlowId, Input, Mode, Plan};
use anabranch_graph::Topology;
use anabranch_units::SiteId;
use std::collections::{BTreeMap, BTreeSet};

/// Product in GF(2^8), polynomial 0x11D. Only for the few coefficients of a plan.
fn product(mut a: u8, mut b: u8) -> u8 {
    let mut sum = 0;
    while b != 0 {
        if b & 1 != 0 {
            sum ^= a;
        }
        a = (a << 1) ^ if a & 0x80 != 0 { 0x1D } else { 0 };
        b >>= 1;
    }
    sum
}

/// Global coding vectors of all flows of `group`. Empty if a term is delayed or the flows cannot be
/// computed from the streams.
pub(super) fn vectors(plan: &Plan, group: u16) -> Vec<FlowVector> {
    let streams = usize::from(plan.groups[usize::from(group)].streams);
    let mut known: BTreeMap<FlowId, Vec<u8>> = BTreeMap::new();
    let flows: Vec<FlowId> =
        (0..plan.flows.len() as u32).map(FlowId).filter(|f| plan.flows[f.index()].group == group).collect();
    // Flows may be listed before their inputs, so the pass is repeated until it finds no further
    // vector.
    loop {
        let before = known.len();
        for &flow in &flows {
            let terms = &plan.flows[flow.index()].terms;
            if known.contains_key(&flow) || terms.iter().any(|t| t.delayed) {
                continue;
            }
            let mut sum = vec![0u8; streams];
            let mut complete = true;
            for term in terms {
                match term.input {
                    Input::Stream(s) => sum[usize::from(s)] ^= term.coefficient,
                    Input::Flow(input) => match known.get(&input) {
                        Some(vector) => {
                            sum.iter_mut().zip(vector).for_each(|(s, &v)| *s ^= product(term.coefficient, v))
                        }
                        None => complete = false,
                    },
                }
            }
            if complete {
                known.insert(flow, sum);
            }
        }
        if known.len() == flows.len() {
            return known.into_iter().map(|(flow, coefficients)| FlowVector { flow, coefficients }).collect();
        }
        if known.len() == before {
            return Vec::new();
        }
    }
}

/// Sites that, according to the digests, sent wrong data, ascending. A sink (`complainant`) that
/// received only correct inputs and still decoded wrong data is named itself.
pub(super) fn suspects(
    plan: &Plan,
    topology: &Topology,
    group: u16,
    complainant: SiteId,
    digests: &BTreeMap<SiteId, Vec<FlowDigest>>,
) -> Vec<SiteId> {
    let first = |f: FlowId| topology.link(plan.flows[f.index()].link).from;
    let last = |f: FlowId| topology.link(plan.flows[f.index()].link).to;
    // A site may report only its own flows, and only the source may report expected digests.
    let mut seen: BTreeMap<(FlowId, FlowSide), u64> = BTreeMap::new();
    for (&site, list) in digests {
        for d in list.iter().filter(|d| d.flow.index() < plan.flows.len()) {
            let speaker = match d.side {
                FlowSide::Expected => plan.source,
                FlowSide::Sent => first(d.flow),
                FlowSide::Received => last(d.flow),
            };
            if site == speaker && plan.flows[d.flow.index()].group == group {
                seen.insert((d.flow, d.side), d.digest);
            }
        }
    }
    let routed = plan.groups[usize::from(group)].mode == Mode::Routed;
    let expected = |flow: FlowId| -> Option<u64> {
        if !routed {
            return seen.get(&(flow, FlowSide::Expected)).copied();
        }
        // A routed flow carries the same data as the first flow of its tree. The bound ends the
        // loop if a malformed plan has a cycle.
        let mut at = flow;
        for _ in 0..=plan.flows.len() {
            match plan.flows[at.index()].terms.first()?.input {
                Input::Flow(input) => at = input,
                Input::Stream(_) => return seen.get(&(at, FlowSide::Sent)).copied(),
            }
        }
        None
    };
    // Whether the data was correct at that end of the flow; `None` without a digest to compare.
    let right = |flow: FlowId, side: FlowSide| Some(expected(flow)? == *seen.get(&(flow, side))?);

    let mut named = BTreeSet::new();
    for (index, flow) in plan.flows.iter().enumerate().filter(|(_, f)| f.group == group) {
        let id = FlowId(index as u32);
        let wrong = right(id, FlowSide::Sent) == Some(false) || right(id, FlowSide::Received) == Some(false);
        let inputs_right = flow.terms.iter().all(|t| match t.input {
            Input::Stream(_) => true,
            Input::Flow(input) => right(input, FlowSide::Received) == Some(true),
        });
        if wrong && inputs_right {
            named.insert(first(id));
        }
    }
    if named.is_empty() {
        let sink = plan.groups[usize::from(group)].sinks.iter().find(|s| s.site == complainant);
        let mut known =
            sink.into_iter().flat_map(|s| &s.inputs).filter_map(|&f| right(f, FlowSide::Received)).peekable();
        let all =
            sink.is_some_and(|s| routed || s.inputs.iter().all(|&f| right(f, FlowSide::Received).is_some()));
        if all && known.peek().is_some() && known.all(|r| r) {
            named.insert(complainant);
        }
    }
    named.into_iter().collect()
}
