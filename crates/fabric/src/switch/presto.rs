//! Presto: each cell of 64 KiB of a flow takes the next path.
//!
//! Source: He and others, *Presto: Edge-based Load Balancing for Fast Datacenter Networks* (2015),
//! section 3. There the sender's host cuts flows into cells and labels each with a path, in turns.
//! Here it numbers the cells (`entropy`), and the first switch takes its paths in turns by that
//! number; switches above it, in networks with more layers, choose by a hash of flow and cell.
//! Leaves out: cutting of flows by hosts, and restoring order (`spray-proto`).

use super::PolicyInput;
use super::ecmp::Ecmp;
use anabranch_units::RandomStream;

/// State of the policy: the hash's.
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
