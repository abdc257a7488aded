//! Max-min fair rates, which ideal transports with evenly shared links would reach.
//!
//! Source: progressive filling (Bertsekas and Gallager, *Data Networks*, section 6.5.2). A flow's
//! rate is the maximum that does not slow down a slower flow: some link of its route is full, and
//! no flow on this link is faster. Flows with the same route have the same rate, so routes are
//! filled instead of flows.

use crate::active::ActiveFlows;
use crate::allocator::{Allocator, Event};
use crate::network::{FlowId, LinkId};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

/// Max-min fairness among flows, regardless of coflows.
#[derive(Clone, Debug, Default)]
pub struct MaxMin {
    links: Vec<LinkFill>,
    /// All routes of flows so far.
    routes: Vec<Route>,
    /// Index in `routes` of each route, by the links of the route.
    route_of: BTreeMap<SmallVec<[LinkId; 2]>, u32>,
    /// Index of the flow's route, and the flow's position in the route's list; by flow.
    places: Vec<(u32, u32)>,
    decision: u64,
}

#[derive(Clone, Debug, Default)]
struct LinkFill {
    /// Unused rate, and the number of flows without a rate.
    left_bps: f64,
    unset: u32,
    routes: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Route {
    links: SmallVec<[LinkId; 2]>,
    flows: Vec<FlowId>,
    share_bps: f64,
    /// Decision in which the share was set.
    set_in: u64,
}

/// Returns the even share of a link's unused rate. Shares are not negative, so they sort like their
/// bits.
fn share_bits(link: &LinkFill) -> u64 {
    (link.left_bps.max(0.0) / f64::from(link.unset)).to_bits()
}

impl MaxMin {
    fn keep_routes(&mut self, event: &Event, active: &mut ActiveFlows) {
        let Self { links, routes, route_of, places, .. } = self;
        links.resize_with(active.network().links(), LinkFill::default);
        places.resize(active.ids_end(), (0, 0));
        // A flow may have arrived and completed since the last decision.
        for id in &event.arrived {
            let on: SmallVec<[LinkId; 2]> = active.route(*id).collect();
            let at = *route_of.entry(on).or_insert_with_key(|on| {
                on.iter().for_each(|link| links[link.0 as usize].routes.push(routes.len() as u32));
                routes.push(Route { links: on.clone(), flows: Vec::new(), share_bps: 0.0, set_in: 0 });
                routes.len() as u32 - 1
            });
            let route = &mut routes[at as usize];
            places[id.0 as usize] = (at, route.flows.len() as u32);
            route.flows.push(*id);
            if active.is_active(*id) {
                active.set_bps(*id, route.share_bps);
            }
        }
        for id in &event.completed {
            let (at, place) = places[id.0 as usize];
            let flows = &mut routes[at as usize].flows;
            flows.swap_remove(place as usize);
            if let Some(moved) = flows.get(place as usize) {
                places[moved.0 as usize].1 = place;
            }
        }
    }
}

impl Allocator for MaxMin {
    /// Cost: the links of all active flows' routes, the flows whose rates change, and a heap
    /// operation per full link.
    fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
        self.keep_routes(event, active);
        let Self { links, routes, decision, .. } = self;
        *decision += 1;
        for (at, link) in links.iter_mut().enumerate() {
            let id = LinkId(at as u32);
            (link.left_bps, link.unset) = (active.rate_bps(id), active.flows_on(id).len() as u32);
        }
        let used = (0..).zip(&*links).filter(|(_, link)| link.unset > 0);
        let mut heap: BinaryHeap<Reverse<(u64, u32)>> =
            used.map(|(at, link)| Reverse((share_bits(link), at))).collect();
        while let Some(Reverse((bits, at))) = heap.pop() {
            let link = &mut links[at as usize];
            if link.unset == 0 {
                continue;
            }
            // The share of a link only grows while flows with smaller shares get their rates, so
            // the share of an earlier heap entry may be too low.
            let now = share_bits(link);
            if now > bits {
                heap.push(Reverse((now, at)));
                continue;
            }
            let share_bps = f64::from_bits(bits);
            let through = std::mem::take(&mut link.routes);
            for route in &through {
                let route = &mut routes[*route as usize];
                if route.flows.is_empty() || std::mem::replace(&mut route.set_in, *decision) == *decision {
                    continue;
                }
                let flows = route.flows.len() as u32;
                for link in &route.links {
                    let link = &mut links[link.0 as usize];
                    link.left_bps -= share_bps * f64::from(flows);
                    link.unset -= flows;
                }
                if std::mem::replace(&mut route.share_bps, share_bps) != share_bps {
                    route.flows.iter().for_each(|id| active.set_bps(*id, share_bps));
                }
            }
            links[at as usize].routes = through;
        }
    }
}
