//! One type for every kind of element, so that the hot loop dispatches by `match`.
//!
//! Read [`AnyElement`]; `element.rs` has the trait.

use crate::element::{Cx, Element};
use crate::packet::PacketId;
use crate::{CircuitSwitch, EventQueue, FifoPort, Port, Switch};

/// Every kind of element.
#[derive(Debug)]
pub enum AnyElement {
    /// The common port of large networks, which the hot loop uses. See [`FifoPort`].
    Fifo(FifoPort),
    /// The port with priorities and changeable settings. See [`Port`].
    Port(Box<Port>),
    /// A packet switch. See [`Switch`].
    Switch(Switch),
    /// A hybrid switch with circuits. See [`CircuitSwitch`].
    Circuit(Box<CircuitSwitch>),
}

const _: () = assert!(size_of::<AnyElement>() <= 144, "a port is, and the hot loop walks along them");

impl Element for AnyElement {
    #[inline]
    fn on_packet<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId) {
        match self {
            Self::Fifo(e) => e.on_packet(cx, p),
            Self::Port(e) => e.on_packet(cx, p),
            Self::Circuit(e) => e.on_packet(cx, p),
            Self::Switch(_) => unreachable!("the fabric shows switches their neighbours' queues"),
        }
    }
    #[inline]
    fn on_timer<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, token: u32) {
        match self {
            Self::Fifo(e) => e.on_timer(cx, token),
            Self::Port(e) => e.on_timer(cx, token),
            Self::Circuit(e) => e.on_timer(cx, token),
            Self::Switch(_) => unreachable!("a packet switch forwards at once and arms no timer"),
        }
    }
}
