//! Max-min fair rates: what ideal transports that share every link evenly would reach.
//!
//! Source: progressive filling (Bertsekas and Gallager, *Data Networks*, section 6.5.2). A flow's rate is the most that it can
//! be without making a slower one slower: some link of it is full, and no flow there is faster.

use crate::allocator::{Active, Allocator, Event, Rates};
use crate::network::LinkId;
use anabranch_units::Instant;
use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// Max-min fairness among flows, whatever transfer they are of.
#[derive(Clone, Debug, Default)]
pub struct MaxMin {
    /// By link: what is left of its rate, and the flows that have none yet.
    links: Vec<Filling>,
}

#[derive(Clone, Debug, Default)]
struct Filling {
    left_bps: f64,
    /// Places in the list of active flows.
    flows: Vec<u32>,
    unset: u32,
}

/// A link's even share; shares are not negative, so that their bits are ordered as they are.
fn share_bits(link: &Filling) -> u64 {
    (link.left_bps.max(0.0) / f64::from(link.unset)).to_bits()
}

impl Allocator for MaxMin {
    /// Cost: the links of all active flows, and for each link that is full a look at a heap.
    fn allocate(&mut self, _: Instant, _: Event<'_>, active: Active<'_>, rates: &mut Rates<'_>) {
        let Self { links } = self;
        links.resize_with(active.network.links(), Filling::default);
        links.iter_mut().for_each(|link| link.flows.clear());
        for (at, id) in active.ids.iter().enumerate() {
            for link in &active.flow(*id).route {
                links[link.0 as usize].flows.push(at as u32);
            }
        }
        let mut heap = BinaryHeap::new();
        for (at, link) in links.iter_mut().enumerate().filter(|(_, link)| !link.flows.is_empty()) {
            link.left_bps = active.network.rate(LinkId(at as u32)).as_bps() as f64;
            link.unset = link.flows.len() as u32;
            heap.push(Reverse((share_bits(link), at as u32)));
        }
        let mut is_set = vec![false; active.ids.len()];
        while let Some(Reverse((bits, at))) = heap.pop() {
            let link = &links[at as usize];
            if link.unset == 0 {
                continue;
            }
            // Shares only grow as flows with less are set: what was put there earlier may be too little.
            let now = share_bits(link);
            if now > bits {
                heap.push(Reverse((now, at)));
                continue;
            }
            let share = f64::from_bits(bits);
            let flows = std::mem::take(&mut links[at as usize].flows);
            for place in
                flows.iter().copied().filter(|place| !std::mem::replace(&mut is_set[*place as usize], true))
            {
                let id = active.ids[place as usize];
                rates.set(id, share);
                for link in &active.flow(id).route {
                    let link = &mut links[link.0 as usize];
                    link.left_bps -= share;
                    link.unset -= 1;
                }
            }
            links[at as usize].flows = flows;
        }
    }
}
