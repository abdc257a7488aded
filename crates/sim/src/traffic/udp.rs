//! Datagrams at a constant rate, at random, or in bursts.

use super::{Opening, World};
use crate::end::{End, UdpSink};
use anabranch_fabric::HostsCx;
use anabranch_transport::{Pattern, UdpSource};
use anabranch_units::{BitRate, Instant};

/// One source and its sink, before they begin.
#[derive(Clone, Debug)]
pub struct UdpFlow {
    /// The host that sends.
    pub src: u16,
    /// The host that receives.
    pub dst: u16,
    /// Bits on the wire in a second.
    pub rate: BitRate,
    /// Bytes of a datagram on the wire.
    pub size_bytes: u32,
    /// When it sends.
    pub pattern: Pattern,
}

/// The job.
#[derive(Debug)]
pub struct Udp {
    flows: Vec<UdpFlow>,
    priority: u8,
    pub(super) start: Instant,
    stop: Option<Instant>,
    has_begun: bool,
    is_over: bool,
}

impl Udp {
    /// Sources that begin at `start` and stop at `stop`, if there is one.
    pub const fn new(flows: Vec<UdpFlow>, priority: u8, start: Instant, stop: Option<Instant>) -> Self {
        Self { flows, priority, start, stop, has_begun: false, is_over: false }
    }

    pub(super) const fn is_done(&self) -> bool {
        self.is_over
    }

    pub(super) fn on_timer(&mut self, world: &mut World, cx: &mut HostsCx<'_, End>, job: u16) {
        if std::mem::replace(&mut self.has_begun, true) {
            self.is_over = true;
            return;
        }
        for flow in &self.flows {
            let UdpFlow { src, dst, .. } = *flow;
            let opening = Opening { job, priority: self.priority, src, dst, size: None, doors: [None; 2] };
            let (_, sender, receiver) = world.enter(cx, &opening);
            let pattern = flow.pattern.clone();
            let source = UdpSource::new(receiver, flow.rate, flow.size_bytes, pattern, cx.now(), self.stop)
                .expect("a scenario's rates and sizes are checked before it runs");
            cx.place(receiver, End::UdpSink(UdpSink::default()));
            cx.place(sender, End::UdpSource(Box::new(source)));
        }
        if let Some(stop) = self.stop {
            cx.arm(stop, job.into());
        }
    }
}
