//! Capacities of links: the evidence of an attempt, and the measured rates that it uses.
//!
//! Leaves out: the measurement ([`crate::coordinator::links`]).

use super::{Context, Phase, Transfer};
use crate::control::{FlowArrival, Priority};
use crate::coordinator::{BitRate, Duration, EventKind, FlowId, LinkId, Run, SiteId};
use crate::plan::{Plan, share_flows_under};
use anabranch_units::ByteCount;
use std::collections::{BTreeMap, BTreeSet};

/// Part of a link's capacity from which on a plan fills the link.
const FULL: f64 = 0.9;
/// Shortest time of an attempt whose flows are padded: a measurement takes about three seconds.
const PADDED_MIN: Duration = Duration::from_secs(5);
/// The padding of one flow is at most the file divided by this.
const PADDING_DIVISOR: u64 = 4;

impl Transfer {
    /// A site has reported the arrival of its flows.
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

    /// Plans use other capacities of some links from now on.
    pub(in crate::coordinator) fn handle_capacities(&mut self, cx: &mut Context<'_>) {
        let Some(r) = self.running() else { return };
        let capacities: Vec<u64> =
            cx.topology.links().iter().map(|l| l.properties.capacity.as_bps()).collect();
        let rates = share_flows_under(&capacities, &[&r.plan], &[r.ceiling]);
        let expected = rates.first().copied().unwrap_or(BitRate::bps(0));
        let news = wrong_links(cx, &r.plan);
        let known = r.wrong_links.clone();
        if let Phase::Installing { attempt: r, .. } | Phase::Running(r) = &mut self.phase {
            r.expected = expected.min(r.plan.rate);
            r.wrong_links.clone_from(&news);
        }
        self.announce(cx, news.difference(&known).copied());
    }

    /// Announces links that are declared with a wrong capacity.
    pub(super) fn announce(&self, cx: &mut Context<'_>, links: impl IntoIterator<Item = LinkId>) {
        for id in links {
            let (link, status) = (cx.topology.link(id), cx.links.status(id));
            let (from, to) = (link.from, link.to);
            let (declared, carried) = (status.declared, status.planned);
            let is_limit = status.carried.is_some_and(|carried| carried.is_limit);
            self.event(cx, EventKind::WrongCapacity { from, to, declared, carried, is_limit });
        }
    }

    /// Padding of each flow of a plan that is to show its link's capacity, in bytes.
    ///
    /// These are the heaviest flows on unmeasured links which the plan fills, and whose flows are
    /// all paced. Other flows show their links' capacities themselves.
    pub(super) fn padding(&self, cx: &Context<'_>, plan: &Plan, length: u64) -> BTreeMap<FlowId, u64> {
        let time = plan.rate.transmit_time(ByteCount::new(length));
        if self.request.bandwidth_limit.is_some() || plan.store_and_forward || time < PADDED_MIN {
            return BTreeMap::new();
        }
        let (units, on_link) = (plan.flow_units(), plan.link_units());
        let is_wanted = |link: &LinkId| {
            let load = plan.unit.as_bps() as f64 * on_link.get(link).copied().unwrap_or(0) as f64;
            let capacity = cx.topology.link(*link).properties.capacity.as_bps() as f64;
            load >= FULL * capacity
                && !cx.links.is_measured(*link)
                && self.hop(*link).priority != Priority::Fill
        };
        let heaviest = |link: LinkId| {
            let flows = plan.flows.iter().enumerate().filter(|(_, f)| f.link == link && !plan.fills(f));
            flows.max_by_key(|(index, _)| units[*index]).map(|(index, _)| FlowId(index as u32))
        };
        let links = plan.paced_links().into_iter().filter(is_wanted);
        links.filter_map(heaviest).map(|flow| (flow, length / PADDING_DIVISOR)).collect()
    }
}

/// The links of a plan whose declared capacity is wrong.
pub(super) fn wrong_links(cx: &Context<'_>, plan: &Plan) -> BTreeSet<LinkId> {
    plan.flows.iter().map(|f| f.link).filter(|l| cx.links.status(*l).is_wrong()).collect()
}
