//! Varys: the transfer with the shortest bottleneck first, each flow just in time for it, and what is left to whoever is next.
//!
//! Source: Chowdhury, Zhong and Stoica, *Efficient Coflow Scheduling with Varys* (SIGCOMM 2014), section 5: SEBF (smallest
//! effective bottleneck first) orders, MADD (minimum allocation for desired duration) sets rates, backfilling gives away what
//! that leaves. It knows the volumes of flows that have arrived, and of no others.
//! Differs: backfilling is greedy in the same order, flow by flow; Varys's own divides it among flows of a port.

use crate::allocator::{Active, Allocator, Event, Rates};
use crate::network::{FlowId, LinkId, TransferId};
use anabranch_units::Instant;
use std::collections::BTreeMap;

/// Smallest effective bottleneck first.
#[derive(Clone, Debug, Default)]
pub struct Varys {
    /// By link: what is left of its rate, and what the transfer at hand has to move over it.
    left_bps: Vec<f64>,
    bits: Vec<f64>,
}

impl Varys {
    /// The time in which a transfer could be complete if each link had so much left for it; infinite over one that has none.
    fn bottleneck_s(
        &mut self,
        active: &Active<'_>,
        flows: &[FlowId],
        left_bps: impl Fn(&Self, LinkId) -> f64,
    ) -> f64 {
        let routes =
            || flows.iter().flat_map(|id| active.flow(*id).route.iter().map(move |link| (*id, *link)));
        routes().for_each(|(_, link)| self.bits[link.0 as usize] = 0.0);
        routes().for_each(|(id, link)| self.bits[link.0 as usize] += active.remaining_bits(id));
        let times = routes().map(|(_, link)| self.bits[link.0 as usize] / left_bps(self, link));
        times.fold(0.0, f64::max)
    }

    /// Adds to a flow's rate, and takes it from its links.
    fn give(&mut self, active: &Active<'_>, id: FlowId, bps: f64, given: &mut BTreeMap<FlowId, f64>) {
        *given.entry(id).or_default() += bps;
        for link in &active.flow(id).route {
            let left = &mut self.left_bps[link.0 as usize];
            *left = (*left - bps).max(0.0);
        }
    }
}

impl Allocator for Varys {
    /// Cost: a few walks along the routes of all active flows, and a sort of their transfers.
    fn allocate(&mut self, _: Instant, _: Event<'_>, active: Active<'_>, rates: &mut Rates<'_>) {
        let links = active.network.links();
        let rate_bps = |link: LinkId| active.network.rate(link).as_bps() as f64;
        self.left_bps = (0..links as u32).map(|link| rate_bps(LinkId(link))).collect();
        self.bits.resize(links, 0.0);
        let mut transfers: BTreeMap<TransferId, Vec<FlowId>> = BTreeMap::new();
        for id in active.ids {
            transfers.entry(active.flow(*id).transfer).or_default().push(*id);
        }
        let mut order: Vec<(f64, Vec<FlowId>)> = Vec::new();
        for flows in transfers.into_values() {
            order.push((self.bottleneck_s(&active, &flows, |_, link| rate_bps(link)), flows));
        }
        // Equal ones stay in the order of their names.
        order.sort_by(|a, b| a.0.total_cmp(&b.0));
        let mut given = BTreeMap::new();
        for (_, flows) in &order {
            let time_s = self.bottleneck_s(&active, flows, |this, link| this.left_bps[link.0 as usize]);
            if time_s.is_finite() {
                flows
                    .iter()
                    .for_each(|id| self.give(&active, *id, active.remaining_bits(*id) / time_s, &mut given));
            }
        }
        for id in order.iter().flat_map(|(_, flows)| flows) {
            let route = active.flow(*id).route.iter();
            let most = route.map(|link| self.left_bps[link.0 as usize]).fold(f64::INFINITY, f64::min);
            self.give(&active, *id, most, &mut given);
        }
        given.into_iter().for_each(|(id, bps)| rates.set(id, bps));
    }
}
