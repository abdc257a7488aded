//! What decides how fast flows are.

use crate::network::{Flow, FlowId, Network};
use anabranch_units::Instant;

/// What has happened since rates were set last.
#[derive(Copy, Clone, Debug)]
pub struct Event<'a> {
    /// Flows that have arrived, in their order.
    pub arrived: &'a [FlowId],
    /// Flows that have completed, in their order.
    pub completed: &'a [FlowId],
}

/// The flows that are active, as an allocator sees them: nothing of what is to come.
#[derive(Copy, Clone, Debug)]
pub struct Active<'a> {
    /// Where they are.
    pub network: &'a Network,
    pub(crate) flows: &'a [Flow],
    pub(crate) remaining_bits: &'a [f64],
    /// Active flows, in the order in which they arrived.
    pub ids: &'a [FlowId],
}

impl<'a> Active<'a> {
    /// A flow.
    ///
    /// Panics: for one that is not there.
    pub fn flow(&self, id: FlowId) -> &'a Flow {
        &self.flows[id.0 as usize]
    }
    /// What a flow has still to move, in bits; 0 of one that is complete.
    pub fn remaining_bits(&self, id: FlowId) -> f64 {
        self.remaining_bits[id.0 as usize]
    }
}

/// Where an allocator writes what it decides: 0 for a flow that it does not mention.
#[derive(Debug)]
pub struct Rates<'a> {
    pub(crate) bps: &'a mut [f64],
}

impl Rates<'_> {
    /// Sets an active flow's rate, in bits a second.
    pub fn set(&mut self, id: FlowId, bps: f64) {
        self.bps[id.0 as usize] = bps;
    }
    /// Adds to what an active flow was given in this decision, in bits a second.
    pub fn add(&mut self, id: FlowId, bps: f64) {
        self.bps[id.0 as usize] += bps;
    }
}

/// Sets the rates of flows whenever one arrives or completes.
///
/// The sum over a link's flows must not be above its rate, but for what rounding adds; [`crate::run`] refuses what is.
pub trait Allocator {
    /// Sets the rate of every active flow.
    fn allocate(&mut self, now: Instant, event: Event<'_>, active: Active<'_>, rates: &mut Rates<'_>);
}
