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
    /// Active flows, in the order in which they arrived.
    transfers: BTreeMap<TransferId, Vec<FlowId>>,
    links: Vec<Link>,
}

#[derive(Clone, Debug, Default)]
struct Link {
    rate_bps: f64,
    /// What is left of that.
    left_bps: f64,
    /// What the transfer at hand has to move over it.
    bits: f64,
}

/// A transfer whose turn is to be found.
struct Transfer<'a> {
    flows: &'a [FlowId],
    /// The time in which it could be complete if it were alone.
    bottleneck_s: f64,
}

impl Link {
    fn of(links: &mut [Self], id: LinkId) -> &mut Self {
        &mut links[id.0 as usize]
    }
}

/// The time in which these flows could be complete if each link had so much for them; infinite over one that has nothing.
fn bottleneck_s(
    links: &mut [Link],
    active: &Active<'_>,
    flows: &[FlowId],
    bps: impl Fn(&Link) -> f64,
) -> f64 {
    let mut longest_s = 0.0f64;
    for id in flows {
        let bits = active.remaining_bits(*id);
        for link in &active.flow(*id).route {
            let link = Link::of(links, *link);
            link.bits += bits;
            longest_s = longest_s.max(link.bits / bps(link));
        }
    }
    for link in flows.iter().flat_map(|id| &active.flow(*id).route) {
        Link::of(links, *link).bits = 0.0;
    }
    longest_s
}

impl Allocator for Varys {
    /// Cost: a few walks along the routes of all active flows, and a sort of their transfers.
    fn allocate(&mut self, _: Instant, event: Event<'_>, active: Active<'_>, rates: &mut Rates<'_>) {
        let Self { transfers, links } = self;
        links.resize_with(active.network.links(), Link::default);
        for (link, id) in links.iter_mut().zip((0..).map(LinkId)) {
            link.rate_bps = active.network.rate(id).as_bps() as f64;
            link.left_bps = link.rate_bps;
        }
        for id in event.arrived {
            transfers.entry(active.flow(*id).transfer).or_default().push(*id);
        }
        let mut touched: Vec<TransferId> =
            event.completed.iter().map(|id| active.flow(*id).transfer).collect();
        touched.dedup();
        for transfer in touched {
            if let Some(flows) = transfers.get_mut(&transfer) {
                flows.retain(|id| active.remaining_bits(*id) > 0.0);
            }
        }
        transfers.retain(|_, flows| !flows.is_empty());
        let mut order: Vec<Transfer<'_>> = Vec::with_capacity(transfers.len());
        for flows in transfers.values() {
            let bottleneck_s = bottleneck_s(links, &active, flows, |link| link.rate_bps);
            order.push(Transfer { flows, bottleneck_s });
        }
        // Equal ones stay in the order of their names.
        order.sort_by(|a, b| a.bottleneck_s.total_cmp(&b.bottleneck_s));
        let mut give = |links: &mut [Link], id: FlowId, bps: f64| {
            rates.add(id, bps);
            for link in &active.flow(id).route {
                let link = Link::of(links, *link);
                link.left_bps = (link.left_bps - bps).max(0.0);
            }
        };
        for Transfer { flows, .. } in &order {
            let time_s = bottleneck_s(links, &active, flows, |link| link.left_bps);
            if time_s.is_finite() {
                flows.iter().for_each(|id| give(links, *id, active.remaining_bits(*id) / time_s));
            }
        }
        for id in order.iter().flat_map(|transfer| transfer.flows) {
            let route = &active.flow(*id).route;
            let most = route.iter().map(|link| links[link.0 as usize].left_bps).fold(f64::INFINITY, f64::min);
            if most > 0.0 {
                give(links, *id, most);
            }
        }
    }
}
