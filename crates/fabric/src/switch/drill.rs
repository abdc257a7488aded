//! DRILL: each packet is sent to the shortest of three queues: two random queues, and the shortest
//! queue found for the last packet.
//!
//! Source: Ghorbani and others, *DRILL: Micro Load Balancing for Low-latency Data Center Networks*
//! (2017), section 3: d = 2 samples and m = 1 remembered. Leaves out: the weights for networks with
//! unequal links (section 3.4), and the receiver's shim that restores order.

use super::PolicyInput;
use super::rps::Rps;
use crate::target::Target;
use anabranch_units::RandomStream;

/// Number of random queues that are compared.
const SAMPLES: u32 = 2;

/// State of the policy: the shortest queue found for the last packet.
#[derive(Clone, Debug)]
pub struct Drill {
    draw: Rps,
    last: Option<Target>,
}

impl Drill {
    pub(super) fn drawn(stream: &dyn Fn(&str) -> RandomStream) -> Self {
        Self { draw: Rps::drawn(stream), last: None }
    }

    #[inline]
    pub(super) fn choose(&mut self, view: &PolicyInput<'_>) -> u32 {
        let ways = view.ways();
        // The remembered queue may not lead to this packet's destination.
        let last = self.last.and_then(|last| ways.iter().position(|way| *way == last));
        let drawn = (0..SAMPLES).map(|_| self.draw.choose(view));
        let all = last.map(|way| way as u32).into_iter().chain(drawn);
        let best = all.min_by_key(|way| view.queue(ways[*way as usize])).expect("two are drawn");
        self.last = Some(ways[best as usize]);
        best
    }
}
