//! A layer between the machines of all hosts and the network. It sees each departing and each
//! arriving packet, and may label, hold, add and drop packets. Neither machines nor network know of
//! it.
//!
//! Read [`Layer`] and [`LayerCx`] first. Leaves out: its caller ([`Hosts`](crate::Hosts)).

use crate::packet::PacketMeta;
use anabranch_endpoint::PeerId;
use anabranch_units::{ByteCount, Instant};
use std::any::Any;
use std::sync::Arc;

/// A layer's label on a packet, for itself at the other end.
pub type Label = Arc<dyn Any + Send + Sync>;

/// A message in flight, with the machines at both ends.
#[derive(Clone, Debug)]
pub struct Envelope<M> {
    /// The sender.
    pub from: PeerId,
    /// The receiver.
    pub to: PeerId,
    /// The message.
    pub msg: M,
    /// Label of the hosts' layer.
    pub label: Option<Label>,
}

/// A packet between a host's machines and its network.
#[derive(Clone, Debug)]
pub struct LayeredPacket<M> {
    /// Metadata seen by the network, which the layer may change. A packet belongs to `meta.flow`,
    /// from host `meta.src` to host `meta.dst`.
    pub meta: PacketMeta,
    /// The message.
    pub envelope: Envelope<M>,
    /// Total bytes of its flow, if announced by the sending machine's user. `None` for an arriving
    /// packet.
    pub flow_size: Option<ByteCount>,
}

/// The layer of all hosts of a run.
pub trait Layer<M>: Send {
    /// Handles a packet sent by a machine: the layer passes it on with [`LayerCx::send`], now or
    /// later, or drops it.
    fn handle_leaving(&mut self, cx: &mut LayerCx<'_, M>, packet: LayeredPacket<M>);
    /// Handles an arrived packet: the layer passes it to its machine with [`LayerCx::deliver`], now
    /// or later, or drops it.
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

/// Requests of a layer.
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
    /// Sends a packet from the host of its envelope's sender, after earlier packets.
    pub fn send(&mut self, packet: LayeredPacket<M>) {
        self.work.leaving.push(packet);
    }
    /// Delivers a packet to the machine of its envelope, after earlier packets. Drops and counts it
    /// if the machine was removed.
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
