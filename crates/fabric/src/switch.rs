//! A switch that forwards by destination. It has no queue: those are its output ports'.

use crate::EventQueue;
use crate::element::{Cx, Element, Target};
use crate::packet::{Drop, PacketId};

/// Forwards every packet to the target that its table names for `dst`, with no delay.
#[derive(Clone, Debug)]
pub struct Switch {
    next: Vec<Option<Target>>,
}

impl Switch {
    /// A switch with the given table by destination. Destinations beyond its end have no route.
    pub const fn new(next: Vec<Option<Target>>) -> Self {
        Self { next }
    }
}

impl Element for Switch {
    #[inline]
    fn on_packet<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId) {
        let dst = usize::from(cx.meta(p).dst);
        match self.next.get(dst) {
            Some(&Some(to)) => cx.forward(to, p),
            _ => cx.drop(p, Drop::NoRoute),
        }
    }
    fn on_timer<Q: EventQueue>(&mut self, _: &mut Cx<'_, Q>, _: u32) {
        unreachable!("a switch arms no timer")
    }
}
