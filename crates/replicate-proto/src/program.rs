//! The sites' programs of one attempt, made from a plan.
//!
//! Leaves out: whether the plan is usable now (`coordinator`), and the execution of a program at a
//! site (`site`).

use crate::control::{
    GroupProgram, HopSettings, IncomingSpec, OutgoingSpec, Priority, Run, SinkProgram, SiteProgram, Submitter,
};
use crate::plan::{Flow, FlowId, Input, Plan};
use anabranch_graph::Topology;
use anabranch_pieces::{ByteRange, FileHash, RangeSet};
use anabranch_units::{BitRate, LinkId, SiteId};
use std::collections::BTreeMap;

/// Facts of an attempt for its sites, in addition to the plan.
pub struct AttemptFacts<'a> {
    /// The attempt.
    pub run: Run,
    /// Length of the file in bytes.
    pub length: u64,
    /// Of a directory: id of the snapshot.
    pub snapshot: Option<FileHash>,
    /// The file at the source.
    pub source_path: &'a str,
    /// The file at a destination.
    pub path: &'a dyn Fn(SiteId) -> String,
    /// The ranges that a destination lacks.
    pub missing: &'a dyn Fn(SiteId) -> Vec<ByteRange>,
    /// Length of a symbol in bytes.
    pub symbol_bytes: u32,
    /// Capacity of each virtual buffer in packets.
    pub buffer_packets: u16,
    /// Maximum rate of the source.
    pub bandwidth_limit: Option<BitRate>,
    /// The submitter of the transfer.
    pub submitter: Submitter,
    /// Settings of a link's hop. Filling flows always have one connection and the lowest priority.
    pub hop: &'a dyn Fn(LinkId) -> HopSettings,
    /// Address at which a site listens for data on a link.
    pub address: &'a dyn Fn(SiteId, LinkId) -> String,
}

/// The program of each site of `plan` in the attempt. The source has a program even if it does
/// nothing.
///
/// Panics: if the plan uses a link that `topology` does not have.
pub fn programs(
    topology: &Topology,
    plan: &Plan,
    attempted: &AttemptFacts<'_>,
) -> BTreeMap<SiteId, SiteProgram> {
    let AttemptFacts { run, length, .. } = *attempted;
    let groups: Vec<GroupProgram> =
        (0..plan.groups.len()).map(|index| group_program(plan, index, attempted)).collect();
    let blank = |site: SiteId| SiteProgram {
        run,
        site,
        length,
        snapshot: attempted.snapshot,
        symbol_bytes: attempted.symbol_bytes,
        buffer_packets: attempted.buffer_packets,
        groups: groups.clone(),
        source_path: (site == plan.source).then(|| attempted.source_path.to_owned()),
        incoming: Vec::new(),
        outgoing: Vec::new(),
        sinks: Vec::new(),
        store_and_forward: plan.store_and_forward,
        bandwidth_limit: attempted.bandwidth_limit,
        submitter: attempted.submitter,
    };
    let name = |site: SiteId| topology.site(site).name.clone();
    let mut programs = BTreeMap::from([(plan.source, blank(plan.source))]);
    for (index, flow) in plan.flows.iter().enumerate() {
        let (id, link) = (FlowId(index as u32), topology.link(flow.link));
        let mut hop = (attempted.hop)(flow.link);
        if plan.fills(flow) {
            hop = HopSettings { stripes: 1, priority: Priority::Fill, ..hop };
        }
        programs.entry(link.to).or_insert_with(|| blank(link.to)).incoming.push(IncomingSpec {
            flow: id,
            group: flow.group,
            from: link.from,
            from_name: name(link.from),
            link: flow.link,
            stripes: hop.stripes,
        });
        programs.entry(link.from).or_insert_with(|| blank(link.from)).outgoing.push(OutgoingSpec {
            flow: id,
            group: flow.group,
            to: link.to,
            to_name: name(link.to),
            link: flow.link,
            address: (attempted.address)(link.to, flow.link),
            terms: flow.terms.clone(),
            hop,
            padding_bytes: 0,
        });
    }
    for (index, group) in plan.groups.iter().enumerate() {
        for sink in &group.sinks {
            programs.entry(sink.site).or_insert_with(|| blank(sink.site)).sinks.push(SinkProgram {
                group: index as u16,
                inputs: sink.inputs.clone(),
                decode: sink.decode.clone(),
                path: (attempted.path)(sink.site),
            });
        }
    }
    programs
}

fn group_program(plan: &Plan, index: usize, attempted: &AttemptFacts<'_>) -> GroupProgram {
    let group = &plan.groups[index];
    // If a term is delayed, a symbol sums several generations. With at least one generation of
    // zeros, all symbols are equally long.
    let is_delayed = |f: &Flow| usize::from(f.group) == index && f.terms.iter().any(|t| t.delayed);
    // A filling group carries the same data as the filled group.
    let of = group.fills.map_or(group, |f| &plan.groups[usize::from(f)]);
    let wanted = RangeSet::from_ranges(of.sinks.iter().flat_map(|s| (attempted.missing)(s.site)));
    let fillers = || plan.groups.iter().filter(|f| f.fills == Some(index as u16));
    let filled = |site: SiteId| fillers().any(|f| f.sinks.iter().any(|s| s.site == site));
    let lookaheads = group.sinks.iter().filter_map(|s| s.decode.as_ref()).map(|d| d.lookahead);
    GroupProgram {
        streams: group.streams,
        ceilings: plan.stream_ceilings(index),
        mode: group.mode,
        work: wanted.ranges().to_vec(),
        flush: lookaheads.max().unwrap_or(0).max(u16::from(plan.flows.iter().any(is_delayed))),
        fills: group.fills,
        filled: !group.sinks.is_empty() && group.sinks.iter().all(|s| filled(s.site)),
    }
}

/// Rate of the source's output in a plan of one group, all copies together, while the file is sent
/// at `rate`.
pub fn source_rate(plan: &Plan, rate: BitRate) -> BitRate {
    let mut bulk = plan.groups.iter().filter(|g| g.fills.is_none());
    let (Some(group), None) = (bulk.next(), bulk.next()) else { return rate };
    let streams = |f: &Flow| f.terms.iter().filter(|t| matches!(t.input, Input::Stream(_))).count() as u64;
    let sent = plan.flows.iter().filter(|f| !plan.fills(f)).map(streams).sum::<u64>();
    BitRate::bps(rate.as_bps() * sent / u64::from(group.streams))
}
