//! Allocators, which set the rates of flows.

use crate::active::ActiveFlows; // tidy-allow: circle, a trait and its argument
use crate::network::FlowId;
use anabranch_units::Instant;

/// Events since the last decision.
#[derive(Clone, Debug, Default)]
pub struct Event {
    /// New flows, in the order of arrival.
    pub arrived: Vec<FlowId>,
    /// Flows with an increased volume, and the increase in bits.
    pub grown: Vec<(FlowId, f64)>,
    /// Removed flows. Their names stay valid for this decision.
    pub completed: Vec<FlowId>,
}

/// Sets the rates of flows whenever one arrives, grows or completes. It sees the active flows, and
/// no future ones.
///
/// The rates on a link must not exceed the link's rate, apart from rounding; otherwise
/// [`ActiveFlows::decide`] fails.
pub trait Allocator {
    /// Sets rates with [`ActiveFlows::set_bps`]. A flow keeps its rate until the next change; a new
    /// flow has none.
    fn allocate(&mut self, event: &Event, active: &mut ActiveFlows);

    /// Time at which the allocator wants to decide again without an event.
    fn next_decision(&self, active: &ActiveFlows) -> Option<Instant> {
        let _ = active;
        None
    }
}

impl<A: Allocator + ?Sized> Allocator for Box<A> {
    fn allocate(&mut self, event: &Event, active: &mut ActiveFlows) {
        (**self).allocate(event, active);
    }
    fn next_decision(&self, active: &ActiveFlows) -> Option<Instant> {
        (**self).next_decision(active)
    }
}
