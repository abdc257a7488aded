//! A layer between the machines of all hosts and the network: it sees each packet that leaves and each that comes, and may label, hold,
//! add and drop some. Neither machines nor the network know that it is there.
//!
//! Read [`Layer`] and [`LayerCx`] first. Leaves out: who asks it ([`Hosts`](crate::Hosts)).

use crate::packet::PacketMeta;
use anabranch_endpoint::PeerId;
use anabranch_units::{ByteCount, Instant};
use std::any::Any;
use std::sync::Arc;

/// What a layer writes on a packet, for itself at the other end.
pub type Label = Arc<dyn Any + Send + Sync>;

/// A message on its way, with the machines at both ends.
#[derive(Clone, Debug)]
pub struct Envelope<M> {
    /// The sender.
    pub from: PeerId,
    /// The receiver.
    pub to: PeerId,
    /// The message.
    pub msg: M,
    /// What the hosts' layer has written on it.
    pub label: Option<Label>,
}

/// A packet between a host's machines and its network.
#[derive(Clone, Debug)]
pub struct Layered<M> {
    /// What the network sees of it. The layer may change it; a packet is of `meta.flow`, from host `meta.src` to host `meta.dst`.
    pub meta: PacketMeta,
    /// What it carries.
    pub envelope: Envelope<M>,
    /// What its flow has to send in all, where the sending machine's user has said so. Known where it leaves; none where it comes.
    pub flow_size: Option<ByteCount>,
}

/// The layer of all hosts of a run.
pub trait Layer<M>: Send {
    /// A machine sends a packet: the layer hands it on with [`LayerCx::send`], now or later, or does not.
    fn handle_leaving(&mut self, cx: &mut LayerCx<'_, M>, packet: Layered<M>);
    /// A packet has come: the layer gives it to its machine with [`LayerCx::deliver`], now or later, or does not.
    fn handle_arrived(&mut self, cx: &mut LayerCx<'_, M>, packet: Layered<M>);
    /// A timer that the layer armed goes off.
    fn handle_timeout(&mut self, cx: &mut LayerCx<'_, M>, token: u32);
    /// What it has counted so far, by name, with the unit in it.
    fn figures(&self) -> Vec<(&'static str, f64)> {
        Vec::new()
    }
}

/// The actions of a layer.
pub struct LayerCx<'a, M> {
    pub(crate) now: Instant,
    pub(crate) work: &'a mut LayerWork<M>,
}

/// What a layer has asked for.
pub(crate) struct LayerWork<M> {
    pub(crate) leaving: Vec<Layered<M>>,
    pub(crate) arrived: Vec<Layered<M>>,
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
    /// Sends a packet from the host of its envelope's sender, after those before it.
    pub fn send(&mut self, packet: Layered<M>) {
        self.work.leaving.push(packet);
    }
    /// Gives a packet to the machine that its envelope is for, after those before it. Dropped and counted if that is gone.
    pub fn deliver(&mut self, packet: Layered<M>) {
        self.work.arrived.push(packet);
    }
    /// Asks for `handle_timeout(token)` at `at`, which is not before now.
    ///
    /// Panics: in a debug build, for a token of 2^30 or more.
    pub fn arm(&mut self, at: Instant, token: u32) {
        debug_assert!(token < 1 << 30, "the highest bits of a token say whose it is");
        self.work.timers.push((at, token));
    }
}
