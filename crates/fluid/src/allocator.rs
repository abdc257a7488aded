//! Allocators, which set the rates of flows.

use crate::active::Active; // tidy-allow: circle, a trait and its argument
use crate::network::FlowId;
use anabranch_units::Instant;

/// What has happened since rates were set last.
#[derive(Clone, Debug, Default)]
pub struct Event {
    /// Flows that have arrived, in their order.
    pub arrived: Vec<FlowId>,
    /// Flows that have more to move than they had, and how much more, in bits.
    pub grown: Vec<(FlowId, f64)>,
    /// Flows that are no longer there. Their names still mean them for this decision.
    pub completed: Vec<FlowId>,
}

/// Sets the rates of flows whenever one arrives, grows or completes. It sees the flows that are active, and nothing of what is
/// to come.
///
/// The sum over a link's flows must not be above its rate, but for what rounding adds; [`Active::decide`] refuses what is.
pub trait Allocator {
    /// Sets rates by [`Active::set_bps`]. A flow keeps its rate until it gets another; one that has just arrived has none.
    fn allocate(&mut self, event: &Event, active: &mut Active);

    /// When it wants to set rates again though nothing has happened.
    fn next_decision(&self, active: &Active) -> Option<Instant> {
        let _ = active;
        None
    }
}

impl<A: Allocator + ?Sized> Allocator for Box<A> {
    fn allocate(&mut self, event: &Event, active: &mut Active) {
        (**self).allocate(event, active);
    }
    fn next_decision(&self, active: &Active) -> Option<Instant> {
        (**self).next_decision(active)
    }
}
