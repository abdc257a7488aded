//! From a plan to what each site does: whether the plan can be used here and now, and the sites' programs.
//!
//! Leaves out: how the plan was made.

use super::{Context, Phase, Running, SinkState, Transfer};
use crate::control::{Attempt, ByteRange, GroupProgram, Incoming, Outgoing, SinkProgram};
use crate::coordinator::together::ceiling;
use crate::coordinator::{
    BitRate, Command, EventKind, FlowId, HopSettings, LinkId, Plan, Priority, Run, SiteId, SiteProgram,
    TransferId, ranges,
};
use crate::plan::{Input, Mode};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

impl Transfer {
    pub(super) fn install(&mut self, cx: &mut Context<'_>, plan: Plan, length: u64, with: &[TransferId]) {
        let run = Run { transfer: self.id, attempt: Attempt(self.attempts) };
        let ceiling = ceiling(&plan, !with.is_empty());
        let programs = self.programs(cx, &plan, run, length, ceiling);
        self.planned_with = with.to_vec();
        let participants: BTreeSet<SiteId> = programs.keys().copied().collect();
        let needed: BTreeSet<SiteId> =
            programs.iter().filter(|(_, p)| does_bulk(p)).map(|(s, _)| *s).collect();
        let bulk = plan.groups.iter().filter(|g| g.fills.is_none());
        let served: Vec<SiteId> = bulk.flat_map(|g| &g.sinks).map(|s| s.site).collect();
        let sinks = self
            .destinations
            .iter()
            .filter(|d| served.contains(&d.site))
            .map(|d| {
                let base_bytes = ranges::bytes(&d.have);
                let sink = SinkState {
                    base_bytes,
                    missing_bytes: length - base_bytes,
                    verified_bytes: 0,
                    samples: VecDeque::from([(cx.now, 0)]),
                    stalled: 0.0,
                    slow_since: None,
                    done: false,
                    corrupt: false,
                };
                (d.site, sink)
            })
            .collect();
        self.event(
            cx,
            EventKind::Planned {
                scheme: plan.scheme,
                rate: plan.rate,
                bound: plan.bound,
                destinations: served,
                with: with.to_vec(),
            },
        );
        for (site, program) in programs {
            self.informed.insert(site);
            cx.command(site, Command::Install { program: Box::new(program) });
        }
        let attempt = Box::new(Running {
            run,
            plan,
            ceiling,
            participants,
            needed: needed.clone(),
            sinks,
            flows: BTreeMap::new(),
            source_done: false,
            begun: cx.now,
            active_at: cx.now,
            corrupt: 0,
            audits: 0,
            audit: None,
        });
        self.phase =
            Phase::Installing { attempt, waiting: needed, deadline: cx.now + cx.config.install_timeout };
        self.changed(cx);
    }

    fn programs(
        &self,
        cx: &Context<'_>,
        plan: &Plan,
        run: Run,
        length: u64,
        ceiling: Option<BitRate>,
    ) -> BTreeMap<SiteId, SiteProgram> {
        let have =
            |site: SiteId| self.destinations.iter().find(|d| d.site == site).map_or(&[][..], |d| &d.have);
        let groups: Vec<GroupProgram> = plan
            .groups
            .iter()
            .enumerate()
            .map(|(index, g)| {
                // Where a term is delayed, generations mix: at least one of zeros makes all symbols equally long.
                let delayed = plan
                    .flows
                    .iter()
                    .any(|f| usize::from(f.group) == index && f.terms.iter().any(|t| t.delayed));
                // What fills carries the same as the filled group.
                let of = g.fills.map_or(g, |f| &plan.groups[usize::from(f)]);
                let wanted: Vec<ByteRange> =
                    of.sinks.iter().flat_map(|s| ranges::missing(have(s.site), length)).collect();
                let fillers = || plan.groups.iter().filter(|f| f.fills == Some(index as u16));
                let filled = |site: SiteId| fillers().any(|f| f.sinks.iter().any(|s| s.site == site));
                GroupProgram {
                    streams: g.streams,
                    mode: g.mode,
                    work: ranges::normal(&wanted, length),
                    flush: g
                        .sinks
                        .iter()
                        .filter_map(|s| s.decode.as_ref())
                        .map(|d| d.lookahead)
                        .max()
                        .unwrap_or(0)
                        .max(u16::from(delayed)),
                    fills: g.fills,
                    filled: !g.sinks.is_empty() && g.sinks.iter().all(|s| filled(s.site)),
                }
            })
            .collect();
        let sent = ceiling.map(|rate| source_rate(plan, rate));
        let blank = |site: SiteId| SiteProgram {
            run,
            site,
            length,
            symbol_bytes: self.request.symbol_bytes,
            buffer_packets: self.request.buffer_packets,
            groups: groups.clone(),
            source_path: (site == self.request.source).then(|| self.request.source_path.clone()),
            incoming: Vec::new(),
            outgoing: Vec::new(),
            sinks: Vec::new(),
            store_and_forward: plan.store_and_forward,
            bandwidth_limit: self.request.bandwidth_limit.into_iter().chain(sent).min(),
        };
        let mut programs = BTreeMap::from([(self.request.source, blank(self.request.source))]);
        for (index, flow) in plan.flows.iter().enumerate() {
            let (id, link) = (FlowId(index as u32), cx.topology.link(flow.link));
            let mut hop = self.hop(flow.link).clone();
            if plan.fills(flow) {
                hop = HopSettings { stripes: 1, priority: Priority::Fill, ..hop };
            }
            programs.entry(link.to).or_insert_with(|| blank(link.to)).incoming.push(Incoming {
                flow: id,
                group: flow.group,
                from: link.from,
                from_name: cx.name(link.from).to_owned(),
                link: flow.link,
                stripes: hop.stripes,
            });
            let address = cx.sites[link.to.index()].addresses.get(&flow.link);
            programs.entry(link.from).or_insert_with(|| blank(link.from)).outgoing.push(Outgoing {
                flow: id,
                group: flow.group,
                to: link.to,
                to_name: cx.name(link.to).to_owned(),
                link: flow.link,
                address: address.expect("usable() refuses a link without address").clone(),
                terms: flow.terms.clone(),
                hop,
            });
        }
        for (index, group) in plan.groups.iter().enumerate() {
            for sink in &group.sinks {
                let path = self.destinations.iter().find(|d| d.site == sink.site).map(|d| d.path.clone());
                programs.entry(sink.site).or_insert_with(|| blank(sink.site)).sinks.push(SinkProgram {
                    group: index as u16,
                    inputs: sink.inputs.clone(),
                    decode: sink.decode.clone(),
                    path: path.expect("usable() refuses a sink that is no destination"),
                });
            }
        }
        programs
    }

    fn hop(&self, link: LinkId) -> &HopSettings {
        self.request.hop_overrides.iter().find(|h| h.link == link).map_or(&self.request.hop, |h| &h.hop)
    }
}

/// What the source of a plan of one group sends, as its pace counts it, while the file goes at `rate`: a piece of a routed
/// group once, one of a coded group as often as its symbols leave.
fn source_rate(plan: &Plan, rate: BitRate) -> BitRate {
    let mut bulk = plan.groups.iter().filter(|g| g.fills.is_none());
    let (Some(group), None) = (bulk.next(), bulk.next()) else { return rate };
    match group.mode {
        Mode::Routed => rate,
        Mode::Coded => {
            let streams = |f: &crate::plan::Flow| {
                f.terms.iter().filter(|t| matches!(t.input, Input::Stream(_))).count() as u64
            };
            BitRate::bps(
                rate.as_bps() * plan.flows.iter().filter(|f| !plan.fills(f)).map(streams).sum::<u64>()
                    / u64::from(group.streams),
            )
        }
    }
}

/// Whether a site does more in an attempt than pass on what fills.
fn does_bulk(p: &SiteProgram) -> bool {
    let groups = p.incoming.iter().map(|i| i.group).chain(p.outgoing.iter().map(|o| o.group));
    let mut groups = groups.chain(p.sinks.iter().map(|s| s.group));
    p.source_path.is_some() || groups.any(|g| p.groups[usize::from(g)].fills.is_none())
}

/// Whether a plan can be turned into programs here and now.
pub(super) fn usable(
    plan: &Plan,
    cx: &Context<'_>,
    source: SiteId,
    targets: &[SiteId],
    avoid_sites: &[SiteId],
    avoid_links: &[LinkId],
) -> Result<(), String> {
    if plan.source != source {
        return Err(format!("its source is site {}", plan.source));
    }
    for (i, flow) in plan.flows.iter().enumerate() {
        if flow.link.index() >= cx.topology.links().len() || avoid_links.binary_search(&flow.link).is_ok() {
            return Err(format!("flow {i} uses link {}", flow.link));
        }
        let link = cx.topology.link(flow.link);
        if let Some(site) = [link.from, link.to].iter().find(|s| avoid_sites.binary_search(s).is_ok()) {
            return Err(format!("flow {i} uses site {site}"));
        }
        let Some(group) = plan.groups.get(usize::from(flow.group)) else {
            return Err(format!("flow {i} is of group {}", flow.group));
        };
        let from = link.from;
        for term in &flow.terms {
            let fits = match term.input {
                Input::Stream(s) => s < group.streams && from == source,
                Input::Flow(f) => plan.flows.get(f.index()).is_some_and(|g| {
                    g.link.index() < cx.topology.links().len() && cx.topology.link(g.link).to == from
                }),
            };
            if !fits {
                return Err(format!("flow {i} has an input that is not there"));
            }
        }
    }
    let (mut served, mut filled) = (BTreeSet::new(), BTreeSet::new());
    for (group, sink) in plan.groups.iter().flat_map(|g| g.sinks.iter().map(move |s| (g, s))) {
        let arrives =
            |f: &FlowId| plan.flows.get(f.index()).is_some_and(|g| cx.topology.link(g.link).to == sink.site);
        if !sink.inputs.iter().all(arrives) {
            return Err(format!("site {} takes in a flow that does not arrive there", sink.site));
        }
        let Some(fills) = group.fills else {
            if !targets.contains(&sink.site) || !served.insert(sink.site) {
                return Err(format!("site {} is served twice or for nothing", sink.site));
            }
            continue;
        };
        let other = plan.groups.get(usize::from(fills)).filter(|g| g.fills.is_none());
        let fits = group.mode == Mode::Routed
            && other.is_some_and(|g| g.sinks.iter().any(|s| s.site == sink.site))
            && filled.insert(sink.site);
        if !fits {
            return Err(format!("site {} is filled twice or for nothing", sink.site));
        }
    }
    match targets.iter().find(|t| !served.contains(t)) {
        Some(t) => Err(format!("destination {t} is not served")),
        None => Ok(()),
    }
}
