//! Presto: each 64 KiB cell of a flow takes the next path.
//!
//! Source: He and others, *Presto: Edge-based Load Balancing for Fast Datacenter Networks* (2015),
//! section 3. In the paper the sending host cuts flows into cells and labels each cell with a path,
//! in turns. Here the host numbers the cells (`entropy`), and the first switch takes its paths in
//! turns by that number. Switches above it, in networks with more layers, choose by a hash of flow
//! and cell. Leaves out: cutting of flows by hosts, and restoring order (`spray-proto`).

use super::PolicyInput;
use super::ecmp::Ecmp;
use anabranch_units::RandomStream;

/// State of the policy: the hash of flows.
#[derive(Clone, Debug)]
pub struct Presto {
    hash: Ecmp,
}

impl Presto {
    pub(super) fn drawn(stream: &dyn Fn(&str) -> RandomStream) -> Self {
        Self { hash: Ecmp::drawn(stream) }
    }

    #[inline]
    pub(super) fn choose(&self, view: &PolicyInput<'_>) -> u32 {
        if view.meta.hops > 1 {
            return self.hash.choose(view);
        }
        // Each flow starts at a different path.
        (self.hash.of_flow(view) + u32::from(view.meta.entropy)) % view.count()
    }
}
