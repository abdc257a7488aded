//! A layer between the machines of all hosts and the network. The layer receives each departing and
//! each arriving packet, and may label, hold, add and drop packets. Neither the machines nor the
//! network depend on the layer.
//!
//! Read [`Layer`] and [`LayerCx`] first. Leaves out: the code that calls a layer
//! ([`Hosts`](crate::Hosts)).

use crate::packet::PacketMeta;
use anabranch_endpoint::PeerId;
use anabranch_units::{ByteCount, Instant};
use std::any::Any;
use std::sync::Arc;

/// A layer's label on a packet, which the layer reads when the packet arrives.
pub type Label = Arc<dyn Any + Send + Sync>;

/// A message in flight, with the ids of the machines at both ends.
#[derive(Clone, Debug)]
pub struct Envelope<M> {
    /// The sender.
    pub from: PeerId,
    /// The receiver.
    pub to: PeerId,
    /// The message.
    pub msg: M,
    /// Label that the hosts' layer has set.
    pub label: Option<Label>,
}

/// A packet between a host's machines and its network.
#[derive(Clone, Debug)]
pub struct LayeredPacket<M> {
    /// Metadata that the network uses, and that the layer may change. The packet belongs to flow
    /// `meta.flow`, from host `meta.src` to host `meta.dst`.
    pub meta: PacketMeta,
    /// The message.
    pub envelope: Envelope<M>,
    /// Total bytes of the packet's flow, if the sending machine's user has announced them. `None`
    /// for an arriving packet.
    pub flow_size: Option<ByteCount>,
}

/// The layer of all hosts of a run.
pub trait Layer<M>: Send {
    /// Handles a packet that a machine sends. The layer sends the packet with [`LayerCx::send`],
    /// now or later, or drops it.
    fn handle_leaving(&mut self, cx: &mut LayerCx<'_, M>, packet: LayeredPacket<M>);
    /// Handles a packet that has arrived. The layer passes the packet to its machine with
    /// [`LayerCx::deliver`], now or later, or drops it.
    fn handle_arrived(&mut self, cx: &mut LayerCx<'_, M>, packet: LayeredPacket<M>);
    /// Handles an expired timer of the layer.
    fn handle_timeout(&mut self, cx: &mut LayerCx<'_, M>, token: u32);
    /// Counters so far, by name, with the unit in the name.
    fn figures(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }
}

/// The actions of a layer.
pub struct LayerCx<'a, M> {
    pub(crate) now: Instant,
    pub(crate) work: &'a mut LayerWork<M>,
}

/// Actions that a layer has requested.
pub(crate) struct LayerWork<M> {
    pub(crate) leaving: Vec<LayeredPacket<M>>,
    pub(crate) arrived: Vec<LayeredPacket<M>>,
    pub(crate) timers: Vec<(Instant, u32)>,
}

impl<M> LayerWork<M> {
    pub(crate) const fn new() -> Self {
        Self { leaving: Vec::new(), arrived: Vec::new(), timers: Vec::new() }
    }
}

impl<M> LayerCx<'_, M> {
    /// The fabric's time.
    pub const fn now(&self) -> Instant {
        self.now
    }
    /// Sends a packet from the host of the envelope's sender, after packets that were sent earlier.
    pub fn send(&mut self, packet: LayeredPacket<M>) {
        self.work.leaving.push(packet);
    }
    /// Delivers a packet to the machine of its envelope, after packets that were delivered earlier.
    /// If the machine was removed, the packet is dropped and counted.
    pub fn deliver(&mut self, packet: LayeredPacket<M>) {
        self.work.arrived.push(packet);
    }
    /// Schedules `handle_timeout(token)` at `at`, which must not be in the past.
    ///
    /// Panics: in a debug build, if the token is 2^30 or more.
    pub fn arm(&mut self, at: Instant, token: u32) {
        debug_assert!(token < 1 << 30, "the highest bits of a token say whose it is");
        self.work.timers.push((at, token));
    }
}
