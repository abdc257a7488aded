//! Presto: 64 KiB of a flow after the other, each its own way.
//!
//! Source: He and others, *Presto: Edge-based Load Balancing for Fast Datacenter Networks* (2015), section 3. There the sender's host
//! cuts flows into cells and gives each the label of a way, in turns. Here it gives each a number (`entropy`), and the switch where
//! a flow enters takes its ways in turns by that number; switches above it, in networks of more layers, choose by a hash of flow and cell.
//! Leaves out: how hosts cut flows and hide what comes out of order (`spray-proto`).

use super::View;
use super::ecmp::Ecmp;
use anabranch_units::RandomStream;

/// The policy's state: that of the hash.
#[derive(Clone, Debug)]
pub struct Presto {
    hash: Ecmp,
}

impl Presto {
    pub(super) fn drawn(stream: &dyn Fn(&str) -> RandomStream) -> Self {
        Self { hash: Ecmp::drawn(stream) }
    }

    #[inline]
    pub(super) fn choose(&self, view: &View<'_>) -> u32 {
        if view.meta.hops > 1 {
            return self.hash.choose(view);
        }
        // Each flow begins at a way of its own.
        (self.hash.of_flow(view) + u32::from(view.meta.entropy)) % view.count()
    }
}
