//! Interface of rate allocators.

use crate::active::ActiveFlows; // tidy-allow: circle, a trait and its argument
use crate::network::FlowId;
use anabranch_units::Instant;

/// Events since the last decision.
#[derive(Clone, Debug, Default)]
pub struct Event {
    /// Ids of new flows, in the order of arrival.
    pub arrived: Vec<FlowId>,
    /// Ids of flows whose volume has increased, and the increase in bits.
    pub grown: Vec<(FlowId, f64)>,
    /// Ids of removed flows. They stay valid for this decision.
    pub completed: Vec<FlowId>,
}

/// An allocator sets the rates of flows after every arrival, growth or completion of a flow. It
/// knows the active flows, but no future flows.
///
/// The sum of the rates on a link must not exceed the link's rate, apart from rounding; otherwise
/// [`ActiveFlows::decide`] fails.
pub trait Allocator {
    /// Sets rates with [`ActiveFlows::set_bps`]. A flow keeps its rate until the allocator changes
    /// it; a new flow has rate 0.
    fn allocate(&mut self, event: &Event, active: &mut ActiveFlows);

    /// Returns the time at which the allocator wants to decide again if no event happens before.
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
