//! Datagrams at a constant rate, at random, or in bursts.

use super::{PendingFlow, TrafficState};
use crate::end::{End, UdpSink};
use anabranch_endpoint::PeerId;
use anabranch_fabric::HostsCx;
use anabranch_transport::{Pattern, UdpSource};
use anabranch_units::{BitRate, Duration, Instant, Seed};
use serde::{Deserialize, Serialize};

/// A source and its sink before they are created, with all parameters needed to send the same
/// datagrams outside the simulator.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct UdpFlow {
    /// Sending host.
    pub src: u16,
    /// Receiving host.
    pub dst: u16,
    /// Rate on the wire.
    pub rate: BitRate,
    /// Length of a datagram on the wire in bytes.
    pub size_bytes: u32,
    /// Sending pattern.
    pub sending: SendPattern,
    /// Seed of the run.
    pub seed: Seed,
    /// Number of the flow's random stream.
    pub stream: u64,
}

/// Sending pattern: a [`Pattern`] without its random stream.
#[derive(Copy, Clone, Debug, Serialize, Deserialize)]
pub enum SendPattern {
    /// At a constant rate, without pauses.
    Constant,
    /// Batches of datagrams, as a Poisson process.
    Random {
        /// Number of datagrams that leave back to back.
        batch: u32,
    },
    /// Bursts and pauses in turns.
    OnOff {
        /// Mean length of a burst.
        on: Duration,
        /// Mean length of a pause.
        off: Duration,
    },
}

impl UdpFlow {
    /// Creates the machine that sends this flow to `peer`, from `start` until `stop`. Returns
    /// `None` for an impossible rate or size.
    pub fn source(&self, peer: PeerId, start: Instant, stop: Option<Instant>) -> Option<UdpSource> {
        let random = self.seed.stream("udp", self.stream);
        let pattern = match self.sending {
            SendPattern::Constant => Pattern::Constant,
            SendPattern::Random { batch } => Pattern::Poisson { batch, random },
            SendPattern::OnOff { on, off } => Pattern::OnOff { on, off, random },
        };
        UdpSource::new(peer, self.rate, self.size_bytes, pattern, start, stop)
    }
}

/// The job of a `udp` workload.
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
    /// Creates sources that start at `start` and stop at `stop`, if given.
    pub const fn new(flows: Vec<UdpFlow>, priority: u8, start: Instant, stop: Option<Instant>) -> Self {
        Self { flows, priority, start, stop, has_begun: false, is_over: false }
    }

    pub(crate) fn into_flows(self) -> Vec<UdpFlow> {
        self.flows
    }
    pub(super) const fn is_done(&self) -> bool {
        self.is_over
    }

    pub(super) fn on_timer(&mut self, world: &mut TrafficState, cx: &mut HostsCx<'_, End>, job: u16) {
        if std::mem::replace(&mut self.has_begun, true) {
            self.is_over = true;
            return;
        }
        for flow in &self.flows {
            let UdpFlow { src, dst, .. } = *flow;
            let (priority, size, to_send, doors) = (self.priority, None, None, [None; 2]);
            let opening = PendingFlow { job, priority, src, dst, size, to_send, doors };
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
