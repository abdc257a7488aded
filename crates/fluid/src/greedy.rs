//! Greedy allocation in an order: each flow gets the maximum rate that better flows leave. Flows
//! that are not affected by a change are not visited.
//!
//! On each link of its route, a flow can use the rate left by better flows. When a flow's rate
//! changes, only worse flows on its links are visited again, the best flow first. A flow that gets
//! a link displaces a worse flow, whose other link becomes free for further flows, and so on down
//! the order. Of flows with the same route, only the best flow can have a rate, because it fills
//! one of the route's links. Waiting is therefore organised by route, not by flow.

use crate::active::{ActiveFlows, ROUNDING};
use crate::allocator::Event;
use crate::network::{FlowId, LinkId};
use smallvec::SmallVec;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

/// Position of a flow in the order: a key, and the flow's id to order equal keys.
type OrderKey = (u64, FlowId);

/// Greedy rates in an order, kept between decisions.
#[derive(Clone, Debug, Default)]
pub(crate) struct GreedyRates {
    links: Vec<Link>,
    /// All routes of flows so far.
    routes: Vec<Route>,
    /// Index in `routes` of each route, by the links of the route.
    route_of: BTreeMap<SmallVec<[LinkId; 2]>, u32>,
    flows: Vec<RankedFlow>,
    /// Links with several served flows, whose positions may swap while they progress.
    shared: BTreeSet<LinkId>,
    /// Positions to visit, the best position first.
    queue: BinaryHeap<Reverse<OrderKey>>,
    decision: u64,
}

#[derive(Clone, Debug, Default)]
struct Link {
    /// Served flows and their rates. The position dates from the start of service, and may have
    /// improved since.
    served: SmallVec<[(OrderKey, f64); 2]>,
    routes: Vec<u32>,
}

#[derive(Clone, Debug)]
struct Route {
    links: SmallVec<[LinkId; 2]>,
    /// Best position among the waiting flows, cached because it is read often.
    best: Option<OrderKey>,
    /// Waiting flows, the worst flow first.
    waiting: Vec<OrderKey>,
}

#[derive(Copy, Clone, Debug, Default)]
struct RankedFlow {
    route: u32,
    /// Key of the flow while it waits.
    key: u64,
    is_served: bool,
    looked_in: u64,
}

impl GreedyRates {
    /// Updates rates after events. `key` returns a flow's key; a lower key is better. The key may
    /// decrease while the flow is served. Apart from that, it changes only when the flow grows or
    /// at a call of [`GreedyRates::restart`].
    ///
    /// Cost: for each flow whose rate changes, the routes that use its links.
    pub fn allocate(
        &mut self,
        event: &Event,
        active: &mut ActiveFlows,
        key: impl Fn(&ActiveFlows, FlowId) -> u64,
    ) {
        self.begin(active);
        for id in &event.arrived {
            self.arrive(active, *id, key(active, *id));
        }
        // A flow may have arrived or grown and then completed since the last decision.
        let gone: BTreeSet<FlowId> = event.completed.iter().copied().collect();
        for id in &event.completed {
            if self.flows[id.0 as usize].is_served {
                self.stop(active, *id);
            } else {
                self.unwait(*id);
            }
        }
        for (id, _) in event.grown.iter().filter(|(id, _)| !gone.contains(id)) {
            if self.flows[id.0 as usize].is_served {
                self.queue.push(Reverse((key(active, *id), *id)));
                self.stop(active, *id);
                active.set_bps(*id, 0.0);
            } else {
                self.unwait(*id);
            }
            self.wait(*id, key(active, *id));
        }
        let changed = event.grown.iter().map(|(id, _)| id).chain(&event.completed);
        let mut freed: Vec<LinkId> = changed.flat_map(|id| active.route(*id)).collect();
        freed.sort_unstable();
        freed.dedup();
        for link in freed {
            self.look_after(active, link, None, &key);
        }
        for id in &event.arrived {
            let RankedFlow { route, key, .. } = self.flows[id.0 as usize];
            if self.routes[route as usize].best == Some((key, *id)) {
                self.queue.push(Reverse((key, *id)));
            }
        }
        for link in &self.shared {
            let served = &self.links[link.0 as usize].served;
            self.queue.extend(served.iter().map(|((_, id), _)| Reverse((key(active, *id), *id))));
        }
        self.settle(active, key);
    }

    /// Sets the rates of all flows in a new order.
    ///
    /// Cost: all active flows.
    pub fn restart(&mut self, active: &mut ActiveFlows, key: impl Fn(&ActiveFlows, FlowId) -> u64) {
        self.begin(active);
        self.links.iter_mut().for_each(|link| link.served.clear());
        self.routes.iter_mut().for_each(|route| (route.best, _) = (None, route.waiting.clear()));
        self.shared.clear();
        for place in 0..active.ids().len() {
            let id = active.ids()[place];
            active.set_bps(id, 0.0);
            self.arrive(active, id, key(active, id));
        }
        self.queue.extend(self.routes.iter().filter_map(|route| route.best).map(Reverse));
        self.settle(active, key);
    }

    fn begin(&mut self, active: &ActiveFlows) {
        self.decision += 1;
        self.links.resize_with(active.network().links(), Link::default);
        self.flows.resize(active.ids_end(), RankedFlow::default());
    }

    fn arrive(&mut self, active: &ActiveFlows, id: FlowId, key: u64) {
        let Self { links, routes, route_of, flows, .. } = self;
        let on: SmallVec<[LinkId; 2]> = active.route(id).collect();
        let route = *route_of.entry(on).or_insert_with_key(|on| {
            on.iter().for_each(|link| links[link.0 as usize].routes.push(routes.len() as u32));
            routes.push(Route { links: on.clone(), best: None, waiting: Vec::new() });
            routes.len() as u32 - 1
        });
        flows[id.0 as usize] = RankedFlow { route, key, is_served: false, looked_in: 0 };
        self.wait(id, key);
    }

    fn wait(&mut self, id: FlowId, key: u64) {
        let state = &mut self.flows[id.0 as usize];
        state.key = key;
        let Route { best, waiting, .. } = &mut self.routes[state.route as usize];
        let at = waiting.partition_point(|place| *place > (key, id));
        waiting.insert(at, (key, id));
        *best = waiting.last().copied();
    }
    fn unwait(&mut self, id: FlowId) {
        let RankedFlow { route, key, .. } = self.flows[id.0 as usize];
        let Route { best, waiting, .. } = &mut self.routes[route as usize];
        let at = waiting.partition_point(|place| *place > (key, id));
        assert_eq!(waiting.get(at), Some(&(key, id)), "a flow that has no rate waits");
        waiting.remove(at);
        *best = waiting.last().copied();
    }

    /// Records the rate of a flow.
    fn serve(&mut self, active: &ActiveFlows, (key, id): OrderKey, bps: f64) {
        self.flows[id.0 as usize].is_served = true;
        for link in active.route(id) {
            let served = &mut self.links[link.0 as usize].served;
            served.retain(|((_, other), _)| *other != id);
            served.push(((key, id), bps));
            if served.len() == 2 {
                self.shared.insert(link);
            }
        }
    }
    fn stop(&mut self, active: &ActiveFlows, id: FlowId) {
        self.flows[id.0 as usize].is_served = false;
        for link in active.route(id) {
            let served = &mut self.links[link.0 as usize].served;
            served.retain(|((_, other), _)| *other != id);
            if served.len() == 1 {
                self.shared.remove(&link);
            }
        }
    }

    /// Schedules visits of flows on a link that may get a different rate now. `after` restricts the
    /// visits to flows with a worse position.
    fn look_after(
        &mut self,
        active: &ActiveFlows,
        link: LinkId,
        after: Option<OrderKey>,
        key: &impl Fn(&ActiveFlows, FlowId) -> u64,
    ) {
        let mut queue = std::mem::take(&mut self.queue);
        let Link { served, routes } = &self.links[link.0 as usize];
        let served = served.iter().map(|((_, id), _)| (key(active, *id), *id));
        // A flow to which better flows leave no rate is visited when the rate of a better flow
        // decreases.
        let waiting = routes.iter().filter_map(|route| {
            let Route { links, best, .. } = &self.routes[*route as usize];
            let best = best.filter(|_| *best > after)?;
            (self.most_bps(active, links, best, key) > 0.0).then_some(best)
        });
        let served = served.filter(|place| Some(*place) > after);
        queue.extend(served.chain(waiting).map(Reverse));
        self.queue = queue;
    }

    /// Returns the rate on these links that is left by flows better than `place`.
    fn most_bps(
        &self,
        active: &ActiveFlows,
        links: &[LinkId],
        place: OrderKey,
        key: &impl Fn(&ActiveFlows, FlowId) -> u64,
    ) -> f64 {
        let left = |link: &LinkId| {
            let served = self.links[link.0 as usize].served.iter();
            let is_better = |was: &OrderKey| *was < place || (key(active, was.1), was.1) < place;
            let better = served.filter(|(was, _)| is_better(was));
            let rate_bps = active.rate_bps(*link);
            let left_bps = rate_bps - better.map(|(_, bps)| bps).sum::<f64>();
            if left_bps > rate_bps * ROUNDING { left_bps } else { 0.0 }
        };
        links.iter().map(left).fold(f64::INFINITY, f64::min)
    }

    /// Visits flows, the best flow first, until no rate changes.
    fn settle(&mut self, active: &mut ActiveFlows, key: impl Fn(&ActiveFlows, FlowId) -> u64) {
        while let Some(Reverse(place)) = self.queue.pop() {
            let (now, id) = place;
            let state = &mut self.flows[id.0 as usize];
            if std::mem::replace(&mut state.looked_in, self.decision) == self.decision {
                continue;
            }
            let (route, was_served) = (state.route, state.is_served);
            let bps = self.most_bps(active, &self.routes[route as usize].links, place, &key);
            let was_bps = if was_served { active.bps(id) } else { 0.0 };
            if bps == was_bps {
                continue;
            }
            if !was_served {
                self.unwait(id);
            }
            if bps > 0.0 {
                self.serve(active, place, bps);
            } else {
                self.stop(active, id);
                self.wait(id, now);
            }
            active.set_bps(id, bps);
            for at in 0..self.routes[route as usize].links.len() {
                let link = self.routes[route as usize].links[at];
                if bps < was_bps {
                    self.look_after(active, link, Some(place), &key);
                } else {
                    // Flows without a rate on this link cannot get more.
                    let served = self.links[link.0 as usize].served.iter();
                    let worse =
                        served.map(|((_, id), _)| (key(active, *id), *id)).filter(|other| *other > place);
                    self.queue.extend(worse.map(Reverse));
                }
            }
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::Allocator;
    use crate::plan::Plan;

    /// Compares each decision with a full sort and greedy fill of all flows.
    pub(crate) struct GreedyCheck<A, K> {
        pub inner: A,
        /// Returns the key of a flow.
        pub key: K,
    }

    impl<A: Allocator, K: Fn(&A, &ActiveFlows, FlowId) -> u64> Allocator for GreedyCheck<A, K> {
        fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
            self.inner.allocate(event, active);
            let mut order: Vec<OrderKey> =
                active.ids().iter().map(|id| ((self.key)(&self.inner, active, *id), *id)).collect();
            order.sort_unstable();
            let mut plan = Plan::default();
            plan.begin(active);
            plan.fill(active, order.iter().map(|(_, id)| id));
            for id in active.ids() {
                let most_bps = active.route(*id).map(|link| active.rate_bps(link)).fold(0.0, f64::max);
                let (bps, plain_bps) = (active.bps(*id), plan.bps(*id));
                let is_same = (bps - plain_bps).abs() <= 1e-6 * most_bps;
                assert!(is_same, "flow {}: {bps} b/s, {plain_bps} where all are sorted", id.0);
            }
        }
    }
}
