//! The rates of simultaneous plans if every TCP flow takes its fair share of links.
//!
//! Leaves out: losses due to protocols. Read [`share_flows`].

use super::{Input, Mode, Plan};
use anabranch_units::BitRate;
use std::borrow::Borrow;

/// Flows that must advance in lock step, and the transfer's gain per additional bit per second on
/// each of these flows.
pub(super) struct Bundle {
    pub plan: usize,
    pub group: usize,
    /// Number of flows on each link.
    pub load: Vec<u32>,
    pub streams: f64,
    /// Rate limit of the bundle's source; infinite without a limit.
    ceiling: f64,
    rate: f64,
}

/// Rates of plans whose flows share the links max-min fairly, flow by flow, as TCP connections do.
///
/// Flows that are coded together advance in lock step (CodedBulk section 3.2), and so do the flows
/// of one tree, because each hop passes the data on. The trees and paths of a routed group do not
/// wait for each other, because every chunk is sent on one that has room. A stream does not exceed
/// its rate limit ([`Plan::stream_ceilings`]). A plan is as fast as its slowest group. Filling
/// flows are not counted.
/// Differs: from [`super::share_links`], which slows all flows of a plan by the same factor and is
/// fair to plans, not to flows.
/// Panics: if a plan uses a link without an entry in `capacities`.
pub fn share_flows<P: Borrow<Plan>>(capacities: &[u64], plans: &[P]) -> Vec<BitRate> {
    share_flows_under(capacities, plans, &vec![None; plans.len()])
}

/// Computes the rates as [`share_flows`] does, with a rate limit for some sources (one entry for
/// each plan).
pub fn share_flows_under<P: Borrow<Plan>>(
    capacities: &[u64],
    plans: &[P],
    ceilings: &[Option<BitRate>],
) -> Vec<BitRate> {
    let plans: Vec<&Plan> = plans.iter().map(P::borrow).collect();
    let mut bundles: Vec<Bundle> =
        plans.iter().enumerate().flat_map(|(index, plan)| bundles(index, plan, capacities.len())).collect();
    let mut active: Vec<usize> = (0..bundles.len()).collect();
    while !active.is_empty() {
        let grow = |l: usize| {
            let used: f64 = bundles.iter().map(|b| b.rate * f64::from(b.load[l])).sum();
            let by: u32 = active.iter().map(|b| bundles[*b].load[l]).sum();
            let room = (capacities[l] as f64 - used).max(0.0);
            if by > 0 { room / f64::from(by) } else { f64::INFINITY }
        };
        let growth: Vec<f64> = (0..capacities.len()).map(grow).collect();
        // Remaining growth of the flows of a group, and the group.
        let below = |b: usize| {
            let same = |o: &&Bundle| (o.plan, o.group) == (bundles[b].plan, bundles[b].group);
            let room = ceilings[bundles[b].plan].map_or(f64::INFINITY, |c| c.as_bps() as f64)
                - bundles.iter().filter(same).map(|o| o.rate * o.streams).sum::<f64>();
            let by: f64 = active.iter().map(|o| &bundles[*o]).filter(same).map(|o| o.streams).sum();
            room.max(0.0) / by
        };
        let room = |b: usize| below(b).min((bundles[b].ceiling - bundles[b].rate).max(0.0));
        let rooms: Vec<f64> = active.iter().map(|b| room(*b)).collect();
        let step = growth.iter().chain(&rooms).copied().fold(f64::INFINITY, f64::min);
        if step.is_infinite() {
            break;
        }
        active.iter().for_each(|b| bundles[*b].rate += step);
        // The tightest link always stops a flow, so the loop ends; the factor covers the rounding
        // of sums.
        let tight = |b: usize| {
            growth.iter().zip(&bundles[b].load).any(|(g, n)| *n > 0 && *g <= step * (1.0 + 1e-9) + 1e-9)
        };
        let full: Vec<usize> = active
            .iter()
            .zip(&rooms)
            .filter(|(b, room)| tight(**b) || **room <= step * (1.0 + 1e-9) + 1e-9)
            .map(|(b, _)| *b)
            .collect();
        active.retain(|b| !full.contains(b));
    }
    let rate_of = |index: usize, group: usize| -> f64 {
        let of_group = bundles.iter().filter(|b| (b.plan, b.group) == (index, group));
        of_group.map(|b| b.rate * b.streams).sum()
    };
    let slowest = |(index, plan): (usize, &&Plan)| {
        let bulk = plan.groups.iter().enumerate().filter(|(_, g)| g.fills.is_none());
        let rates = bulk.map(|(group, _)| rate_of(index, group));
        BitRate::bps(rates.fold(f64::INFINITY, f64::min) as u64)
    };
    plans.iter().enumerate().map(slowest).collect()
}

/// The bundles of the plan with number `index`.
pub(super) fn bundles(index: usize, plan: &Plan, links: usize) -> Vec<Bundle> {
    let mut all = Vec::new();
    // Index of each group's first bundle.
    let first: Vec<usize> = plan
        .groups
        .iter()
        .enumerate()
        .map(|(group, g)| {
            let at = all.len();
            let (count, streams) = match g.mode {
                _ if g.fills.is_some() => (0, 0.0),
                Mode::Coded => (1, f64::from(g.streams)),
                Mode::Routed => (g.streams, 1.0),
            };
            let ceilings = plan.stream_ceilings(group);
            for stream in 0..count {
                let held = ceilings.get(usize::from(stream)).copied().flatten();
                let ceiling = held.map_or(f64::INFINITY, |rate| rate.as_bps() as f64);
                all.push(Bundle { plan: index, group, load: vec![0; links], streams, ceiling, rate: 0.0 });
            }
            at
        })
        .collect();
    for flow in plan.flows.iter().filter(|f| !plan.fills(f)) {
        let group = usize::from(flow.group);
        let stream = match plan.groups[group].mode {
            Mode::Coded => 0,
            Mode::Routed => stream_of(plan, flow),
        };
        all[first[group] + stream].load[flow.link.index()] += 1;
    }
    all
}

/// The stream that a routed flow carries.
pub(super) fn stream_of(plan: &Plan, flow: &super::Flow) -> usize {
    let mut flow = flow;
    loop {
        match flow.terms[0].input {
            Input::Stream(stream) => return usize::from(stream),
            Input::Flow(before) => flow = &plan.flows[before.index()],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::share_flows;
    use crate::plan::{Plan, Planner, Request, Scheme};
    use anabranch_graph::{LinkProperties, Topology};
    use anabranch_units::{BitRate, Duration, SiteId};

    fn topology(cables: &[(u16, u16)]) -> Topology {
        let mut topology = Topology::new("test");
        for name in 0..=cables.iter().map(|(a, b)| *a.max(b)).max().expect("a cable") {
            topology.add_site(name.to_string(), None).expect("a new name");
        }
        for (a, b) in cables {
            let properties = LinkProperties::new(BitRate::mbps(12), Duration::ZERO);
            topology.add_link(SiteId(*a), SiteId(*b), properties).expect("two sites");
        }
        topology
    }

    fn plan(topology: &Topology, scheme: Scheme, source: u16, to: &[u16]) -> Plan {
        let to: Vec<SiteId> = to.iter().map(|d| SiteId(*d)).collect();
        let request = Request::new(topology, SiteId(source), to);
        Planner::new(request).expect("reachable").plan(scheme).expect("a plan").plan
    }

    const BUTTERFLY: [(u16, u16); 9] =
        [(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (1, 5), (4, 5), (2, 6), (4, 6)];

    #[test]
    fn single_plan_reaches_its_planned_rate() {
        let topology = topology(&BUTTERFLY);
        let plan = plan(&topology, Scheme::Coded, 0, &[5, 6]);
        assert_eq!(share_flows(&[12_000_000; 9], &[plan]), [BitRate::mbps(24)]);
    }

    #[test]
    fn coded_flows_advance_in_step_and_paths_independently() {
        // The second path to 3 is half as wide. Two paths use the whole capacity of both, a code
        // uses twice the smaller one.
        let topology = topology(&[(0, 1), (1, 3), (0, 2), (2, 3)]);
        let capacities = [12_000_000, 12_000_000, 12_000_000, 6_000_000];
        let rate = |scheme| share_flows(&capacities, &[plan(&topology, scheme, 0, &[3])]);
        assert_eq!(rate(Scheme::MultiPath), [BitRate::mbps(18)]);
        assert_eq!(rate(Scheme::Coded), [BitRate::mbps(12)]);
    }

    #[test]
    fn flows_on_one_link_get_equal_shares() {
        let topology = topology(&[(0, 1), (1, 2)]);
        let plans =
            [plan(&topology, Scheme::SinglePath, 0, &[2]), plan(&topology, Scheme::SinglePath, 1, &[2])];
        assert_eq!(share_flows(&[12_000_000; 2], &plans), [BitRate::mbps(6), BitRate::mbps(6)]);
        // The first plan is limited to 2 Mbit/s on another link, so the second takes the rest.
        assert_eq!(share_flows(&[2_000_000, 12_000_000], &plans), [BitRate::mbps(2), BitRate::mbps(10)]);
    }
}
