//! Installs a plan: checks whether it is usable now, and sends each site its program.
//!
//! Leaves out: the making of the plan, and the programs themselves ([`crate::program`]).

use super::capacities::wrong_links;
use super::{ByteRange, Context, Phase, RunningAttempt, SinkState, Target, Transfer};
use crate::control::Attempt;
use crate::coordinator::joint_planning::ceiling;
use crate::coordinator::{
    BitRate, Command, Duration, EventKind, FlowId, HopSettings, LinkId, Plan, Run, SiteId, SiteProgram,
    TransferId, ranges,
};
use crate::plan::{Input, Mode};
use crate::program::{self, AttemptFacts};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

impl Transfer {
    pub(super) fn install(&mut self, cx: &mut Context<'_>, plan: Plan, length: u64, with: &[TransferId]) {
        let run = Run { transfer: self.id, attempt: Attempt(self.attempts) };
        // With the head, a destination learns which bytes it has in other files. Destinations that
        // wait for their turn get the head later, and delay no other destination.
        self.head.goes_first = plan.destinations.iter().any(|site| self.head.lacking.contains(site));
        if self.head.goes_first {
            self.head.class = None;
        }
        let ceiling = ceiling(&plan, !with.is_empty());
        let programs = self.programs(cx, &plan, run, length, ceiling);
        let wrong_links = wrong_links(cx, &plan);
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
                let sink = SinkState {
                    base_bytes: ranges::bytes(&d.have),
                    missing_bytes: ranges::bytes(&self.lacked(d, length)),
                    verified_bytes: 0,
                    samples: VecDeque::from([(cx.now, 0)]),
                    stalled: 0.0,
                    held: Duration::ZERO,
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
        self.announce(cx, wrong_links.iter().copied());
        for (site, program) in programs {
            self.informed.insert(site);
            cx.command(site, Command::Install { program: Box::new(program) });
        }
        let attempt = Box::new(RunningAttempt {
            run,
            expected: plan.destinations.iter().map(|site| (*site, plan.rate)).collect(),
            plan,
            ceiling,
            wrong_links,
            participants,
            needed: needed.clone(),
            sinks,
            flows: BTreeMap::new(),
            source_done: false,
            begun: cx.now,
            active_at: cx.now,
            looked_at: cx.now,
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
        let destination = |site: SiteId| self.destinations.iter().find(|d| d.site == site);
        let held = ceiling.map(|rate| program::source_rate(plan, rate));
        let attempted = AttemptFacts {
            run,
            length,
            snapshot: self.hash.filter(|_| self.request.is_directory()),
            source_path: &self.request.source_path,
            path: &|site| {
                destination(site).expect("usable() refuses a sink that is no destination").path.clone()
            },
            missing: &|site| {
                let destination = destination(site).expect("usable() refuses a sink that is no destination");
                self.lacked(destination, length)
            },
            symbol_bytes: self.request.symbol_bytes,
            buffer_packets: self.request.buffer_packets,
            bandwidth_limit: self.request.bandwidth_limit.into_iter().chain(held).min(),
            submitter: self.request.submitter,
            hop: &|link| self.hop(link).clone(),
            address: &|site, link| {
                let address = cx.sites[site.index()].addresses.get(&link);
                address.expect("usable() refuses a link without address").clone()
            },
        };
        let mut programs = program::programs(cx.topology, plan, &attempted);
        let served = self.destinations.iter().filter(|d| plan.destinations.contains(&d.site));
        let left_bytes = served.map(|d| ranges::bytes(&self.lacked(d, length))).max().unwrap_or(0);
        let padding = self.padding(cx, plan, left_bytes);
        for outgoing in programs.values_mut().flat_map(|p| &mut p.outgoing) {
            outgoing.padding_bytes = padding.get(&outgoing.flow).copied().unwrap_or(0);
        }
        programs
    }

    /// Ranges of the current attempt that a destination lacks.
    pub(super) fn lacked(&self, destination: &Target, length: u64) -> Vec<ByteRange> {
        match (self.head.bytes, &self.head.class) {
            (Some(head), _) if self.head.goes_first => destination.missing(head.min(length)),
            (_, Some(class)) => ranges::common(&destination.missing(length), &class.ranges),
            _ => destination.missing(length),
        }
    }

    pub(super) fn hop(&self, link: LinkId) -> &HopSettings {
        self.request.hop_overrides.iter().find(|h| h.link == link).map_or(&self.request.hop, |h| &h.hop)
    }
}

/// Whether a site does more in an attempt than relay filling flows.
fn does_bulk(p: &SiteProgram) -> bool {
    let groups = p.incoming.iter().map(|i| i.group).chain(p.outgoing.iter().map(|o| o.group));
    let mut groups = groups.chain(p.sinks.iter().map(|s| s.group));
    p.source_path.is_some() || groups.any(|g| p.groups[usize::from(g)].fills.is_none())
}

/// Whether a plan can be turned into programs now.
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
                return Err(format!("flow {i} has an input that does not exist"));
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
