//! Rates in the making: what allocators that set all of them at once write in, before any flow's rate changes.

use crate::active::{Active, ROUNDING};
use crate::network::{FlowId, LinkId};

/// A rate for every active flow, and what that leaves of each link.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    links: Vec<Link>,
    /// By flow.
    bps: Vec<f64>,
}

#[derive(Clone, Debug)]
struct Link {
    rate_bps: f64,
    left_bps: f64,
    /// What the flows at hand have to move over it.
    bits: f64,
}

impl Plan {
    /// Begins: no flow has a rate.
    pub fn begin(&mut self, active: &Active) {
        let link = |id| {
            let rate_bps = active.rate_bps(LinkId(id));
            Link { rate_bps, left_bps: rate_bps, bits: 0.0 }
        };
        self.links.clear();
        self.links.extend((0..active.network().links() as u32).map(link));
        self.bps.clear();
        self.bps.resize(active.ids_end(), 0.0);
    }

    /// A flow's rate so far, in bits a second.
    pub fn bps(&self, id: FlowId) -> f64 {
        self.bps[id.0 as usize]
    }
    /// What is left of a link, in bits a second; 0 where rounding may have left it.
    pub fn left_bps(&self, link: LinkId) -> f64 {
        let link = &self.links[link.0 as usize];
        if link.left_bps > link.rate_bps * ROUNDING { link.left_bps } else { 0.0 }
    }
    /// What all links of a flow's route have left, in bits a second.
    pub fn most_bps(&self, active: &Active, id: FlowId) -> f64 {
        active.route(id).map(|link| self.left_bps(link)).fold(f64::INFINITY, f64::min)
    }

    /// Gives a flow more, which its links must have left; or takes back from it.
    pub fn give(&mut self, active: &Active, id: FlowId, bps: f64) {
        self.bps[id.0 as usize] += bps;
        active.route(id).for_each(|link| self.links[link.0 as usize].left_bps -= bps);
    }
    /// Gives these flows, one after the other, all that their links have left.
    pub fn fill<'a>(&mut self, active: &Active, flows: impl IntoIterator<Item = &'a FlowId>) {
        for id in flows {
            let most_bps = self.most_bps(active, *id);
            if most_bps > 0.0 {
                self.give(active, *id, most_bps);
            }
        }
    }

    /// The time in which these flows could be complete together with all of their links, in seconds.
    pub fn alone_s(&mut self, active: &Active, flows: &[FlowId]) -> f64 {
        self.together_s(active, flows, |link| link.rate_bps)
    }
    /// The time in which these flows could be complete together with what their links have left, in seconds; infinite where
    /// one has nothing.
    pub fn left_s(&mut self, active: &Active, flows: &[FlowId]) -> f64 {
        let left = |link: &Link| if link.left_bps > link.rate_bps * ROUNDING { link.left_bps } else { 0.0 };
        self.together_s(active, flows, left)
    }
    fn together_s(&mut self, active: &Active, flows: &[FlowId], bps: impl Fn(&Link) -> f64) -> f64 {
        for id in flows {
            let bits = active.remaining_bits(*id);
            active.route(*id).for_each(|link| self.links[link.0 as usize].bits += bits);
        }
        let mut longest_s = 0.0f64;
        for link in flows.iter().flat_map(|id| active.route(*id)) {
            let link = &mut self.links[link.0 as usize];
            if link.bits > 0.0 {
                longest_s = longest_s.max(std::mem::take(&mut link.bits) / bps(link));
            }
        }
        longest_s
    }

    /// Sets the rates of all active flows.
    pub fn set(&self, active: &mut Active) {
        for place in 0..active.ids().len() {
            let id = active.ids()[place];
            active.set_bps(id, self.bps(id));
        }
    }
}
