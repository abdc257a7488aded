//! Datagrams at a constant rate, at random, or in bursts.

use super::{Opening, World};
use crate::end::{End, UdpSink};
use anabranch_endpoint::PeerId;
use anabranch_fabric::HostsCx;
use anabranch_transport::{Pattern, UdpSource};
use anabranch_units::{BitRate, Duration, Instant, Seed};
use serde::{Deserialize, Serialize};

/// One source and its sink, before they begin: all that a program elsewhere needs to send the same.
#[derive(Clone, Debug, Serialize, Deserialize)]
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
    pub sending: Sending,
    /// Of the run.
    pub seed: Seed,
    /// Which of the run's random streams for UDP is this flow's.
    pub stream: u64,
}

/// When a source sends: see [`Pattern`], without what draws it.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub enum Sending {
    /// Without a pause.
    Constant,
    /// As a Poisson process of batches.
    Random {
        /// Datagrams that leave back to back.
        batch: u32,
    },
    /// In turns.
    OnOff {
        /// Mean length of a burst.
        on: Duration,
        /// Mean length of a pause.
        off: Duration,
    },
}

impl UdpFlow {
    /// The machine that sends it, to `peer`, from `start` until `stop`. `None` for a rate or size that no source can have.
    pub fn source(&self, peer: PeerId, start: Instant, stop: Option<Instant>) -> Option<UdpSource> {
        let random = self.seed.stream("udp", self.stream);
        let pattern = match self.sending {
            Sending::Constant => Pattern::Constant,
            Sending::Random { batch } => Pattern::Poisson { batch, random },
            Sending::OnOff { on, off } => Pattern::OnOff { on, off, random },
        };
        UdpSource::new(peer, self.rate, self.size_bytes, pattern, start, stop)
    }
}

/// The job.
#[derive(Debug)]
pub struct Udp {
    flows: Vec<UdpFlow>,
    priority: u8,
    pub(super) start: Instant,
    pub(super) stop: Option<Instant>,
    has_begun: bool,
    is_over: bool,
}

impl Udp {
    /// Sources that begin at `start` and stop at `stop`, if there is one.
    pub const fn new(flows: Vec<UdpFlow>, priority: u8, start: Instant, stop: Option<Instant>) -> Self {
        Self { flows, priority, start, stop, has_begun: false, is_over: false }
    }

    pub(crate) fn into_flows(self) -> Vec<UdpFlow> {
        self.flows
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
            let (priority, size, to_send, doors) = (self.priority, None, None, [None; 2]);
            let opening = Opening { job, priority, src, dst, size, to_send, doors };
            let (_, sender, receiver) = world.enter(cx, &opening);
            let source = flow
                .source(receiver, cx.now(), self.stop)
                .expect("a scenario's rates and sizes are checked before it runs");
            cx.place(receiver, End::UdpSink(UdpSink::default()));
            cx.place(sender, End::UdpSource(Box::new(source)));
        }
        if let Some(stop) = self.stop {
            cx.arm(stop, job.into());
        }
    }
}
