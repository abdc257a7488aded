//! Capacities of links: the evidence of an attempt, and the measured rates that it uses.
//!
//! Leaves out: the measurement ([`crate::coordinator::links`]).

use super::{Context, Transfer};
use crate::control::{FlowArrival, Priority};
use crate::coordinator::{BitRate, Duration, EventKind, FlowId, LinkId, Run, SiteId};
use crate::plan::{Plan, Planner, Request, share_flows_under};
use anabranch_graph::CAPACITY_MAX;
use anabranch_units::ByteCount;
use std::collections::{BTreeMap, BTreeSet};

/// Minimum used part of a link's capacity for which the plan fills the link.
const FULL: f64 = 0.9;
/// Shortest time of an attempt whose flows are padded: a measurement takes about three seconds.
const PADDED_MIN: Duration = Duration::from_secs(5);
/// The padding of one flow is at most the attempt's data divided by this.
const PADDING_DIVISOR: u64 = 4;
/// Number of full links, the narrowest, that are examined: each costs a maximum flow to each
/// destination.
const CANDIDATES_MAX: usize = 16;
/// Assumed factor of a capacity that is declared too low.
const WIDER: u64 = 16;
/// Growth of the min-cut that is worth a measurement.
const GAIN_MIN: f64 = 0.1;

impl Transfer {
    /// Handles a site's report of its arriving flows.
    pub(super) fn handle_arrivals(
        &mut self,
        cx: &mut Context<'_>,
        site: SiteId,
        run: Run,
        arrivals: &[FlowArrival],
    ) {
        let Some(r) = self.running().filter(|r| r.run == run) else { return };
        for arrival in arrivals {
            let planned = r.plan.flows.get(arrival.flow.index());
            let own = planned.filter(|f| cx.topology.link(f.link).to == site && !r.plan.fills(f));
            if let Some(flow) = own {
                cx.links.handle_arrived(flow.link, run, cx.now, arrival);
            }
        }
    }

    /// Handles changed capacities of some links: computes the expected rates again, and announces
    /// links whose declared capacity is now known to be wrong.
    pub(in crate::coordinator) fn handle_capacities(&mut self, cx: &mut Context<'_>) {
        let Some(r) = self.running_mut() else { return };
        let planned: Vec<u64> =
            cx.topology.links().iter().map(|link| link.properties.capacity.as_bps()).collect();
        for (site, expected) in &mut r.expected {
            let mut capacities = planned.clone();
            for link in cx.topology.links_in(*site) {
                let declared = cx.links.status(link).declared.as_bps();
                capacities[link.index()] = capacities[link.index()].max(declared);
            }
            let rates = share_flows_under(&capacities, &[&r.plan], &[r.ceiling]);
            *expected = rates.first().copied().unwrap_or(BitRate::bps(0)).min(r.plan.rate);
        }
        let news = wrong_links(cx, &r.plan);
        let known = std::mem::replace(&mut r.wrong_links, news.clone());
        self.announce(cx, news.difference(&known).copied());
    }

    /// Announces links whose declared capacity is wrong.
    pub(super) fn announce(&self, cx: &mut Context<'_>, links: impl IntoIterator<Item = LinkId>) {
        for id in links {
            let (link, status) = (cx.topology.link(id), cx.links.status(id));
            let (from, to) = (link.from, link.to);
            let (declared, carried) = (status.declared, status.planned);
            let is_limit = status.carried.is_some_and(|carried| carried.is_limit);
            self.event(cx, EventKind::WrongCapacity { from, to, declared, carried, is_limit });
        }
    }

    /// Maximum padding in bytes for the flows that must show their link's capacity. The attempt
    /// sends `left_bytes` bytes of data.
    ///
    /// A link qualifies if the plan fills it, it is not measured, and it limits the plan: the
    /// min-cut grows if the link's cable can carry more. Its heaviest flow is padded, because data
    /// alone cannot show the capacity while other links are full, too.
    pub(super) fn padding(&self, cx: &Context<'_>, plan: &Plan, left_bytes: u64) -> BTreeMap<FlowId, u64> {
        let time = plan.rate.transmit_time(ByteCount::new(left_bytes));
        if self.request.bandwidth_limit.is_some() || plan.store_and_forward || time < PADDED_MIN {
            return BTreeMap::new();
        }
        let capacity = |link: &LinkId| cx.topology.link(*link).properties.capacity;
        let is_full = |(link, units): &(LinkId, u64)| {
            let load = plan.unit.as_bps() as f64 * *units as f64;
            load >= FULL * capacity(link).as_bps() as f64
                && !cx.links.is_measured(*link)
                && self.hop(*link).priority != Priority::Fill
        };
        let mut full: Vec<LinkId> =
            plan.link_units().into_iter().filter(is_full).map(|(link, _)| link).collect();
        full.sort_by_key(capacity);
        full.truncate(CANDIDATES_MAX);
        let units = plan.flow_units();
        let heaviest = |link: LinkId| {
            let flows = plan.flows.iter().enumerate().filter(|(_, f)| f.link == link && !plan.fills(f));
            flows.max_by_key(|(index, _)| units[*index]).map(|(index, _)| FlowId(index as u32))
        };
        let opposites = cx.topology.opposites();
        let limits = |link: &LinkId| self.is_limited_by(cx, plan, *link, opposites[link.index()]);
        let flows = full.into_iter().filter(limits).filter_map(heaviest);
        flows.map(|flow| (flow, left_bytes / PADDING_DIVISOR)).collect()
    }

    /// Whether the min-cut of a plan's transfer grows if a link and its opposite have more
    /// capacity.
    fn is_limited_by(&self, cx: &Context<'_>, plan: &Plan, link: LinkId, opposite: Option<LinkId>) -> bool {
        let mut wider: Vec<BitRate> =
            cx.topology.links().iter().map(|link| link.properties.capacity).collect();
        for link in [Some(link), opposite].into_iter().flatten() {
            let capacity = &mut wider[link.index()];
            *capacity = BitRate::bps(capacity.as_bps().saturating_mul(WIDER)).min(CAPACITY_MAX);
        }
        let (avoid_sites, avoid_links) = self.avoided(cx, &plan.destinations);
        let request = Request {
            avoid_sites,
            avoid_links,
            capacities: Some(wider),
            ..Request::new(cx.topology, plan.source, plan.destinations.clone())
        };
        let least = plan.bound.as_bps() as f64 * (1.0 + GAIN_MIN);
        Planner::new(request).is_ok_and(|planner| planner.bound().as_bps() as f64 >= least)
    }
}

/// The hop of a plan to `site` that carries the smallest part of its declared capacity, in words.
pub(super) fn slow_hop(cx: &Context<'_>, plan: &Plan, site: SiteId) -> Option<String> {
    let part = |link: &LinkId| {
        let status = cx.links.status(*link);
        status.planned.as_bps() as f64 / status.declared.as_bps() as f64
    };
    let links = plan.flows.iter().map(|f| f.link).filter(|l| cx.topology.link(*l).to == site);
    let link = links.filter(|l| part(l) < 1.0).min_by(|a, b| part(a).total_cmp(&part(b)))?;
    let (from, status) = (cx.name(cx.topology.link(link).from), cx.links.status(link));
    let (carried, declared) = (status.planned, status.declared);
    Some(format!("link {from} to {}, declared as {declared}, carries {carried}", cx.name(site)))
}

/// The links of a plan whose declared capacity is wrong.
pub(super) fn wrong_links(cx: &Context<'_>, plan: &Plan) -> BTreeSet<LinkId> {
    plan.flows.iter().map(|f| f.link).filter(|l| cx.links.status(*l).is_wrong()).collect()
}
