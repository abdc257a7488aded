//! An output port: queues, a serialiser and the wire behind it.
//!
//! This is the plain port with two events a hop (end of transmission, end of the wire). Its one-event twin for links
//! with a single priority may come later; this one stays as the reference (STYLE 33). Read [`Port`] first.

use anabranch_units::{BitRate, ByteCount, Duration, Instant, RandomStream, Serialiser};

use crate::EventQueue;
use crate::element::{Cx, Element, Target};
use crate::packet::{Drop, DropCounts, Fifo, PRIORITIES, PacketId};

/// The slowest rate of a port. Below it, a byte's time leaves the 32.32 fixed point of [`Serialiser`].
pub const RATE_MIN: BitRate = BitRate::bps(2_000);

/// What a port and its wire are like. All of it may change at run time.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PortSettings {
    /// Bits that leave in a second; at least [`RATE_MIN`].
    pub rate: BitRate,
    /// Time on the wire, after the last bit has left.
    pub delay: Duration,
    /// Packets that the wire loses by chance, parts per million; at most 1,000,000.
    pub loss_ppm: u32,
    /// Most bytes that wait *in each priority's queue*. The packet being sent has left its queue.
    pub queue_bytes_max: ByteCount,
    /// Whether the link works.
    pub up: bool,
}

/// Why settings cannot be a port's.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PortError {
    /// The rate is below [`RATE_MIN`].
    RateTooLow {
        /// The rate asked for.
        rate: BitRate,
    },
    /// The loss is above one.
    LossTooHigh {
        /// The loss asked for, in parts per million.
        loss_ppm: u32,
    },
}

impl std::fmt::Display for PortError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::RateTooLow { rate } => write!(f, "link rate {rate}: must be at least {RATE_MIN}"),
            Self::LossTooHigh { loss_ppm } => {
                write!(f, "link loss {loss_ppm} ppm: must be at most 1000000 ppm")
            }
        }
    }
}
impl std::error::Error for PortError {}

impl PortSettings {
    /// A working link without loss.
    pub const fn new(rate: BitRate, delay: Duration, queue_bytes_max: ByteCount) -> Self {
        Self { rate, delay, loss_ppm: 0, queue_bytes_max, up: true }
    }

    /// Whether a port can have these settings.
    ///
    /// Errors: see [`PortError`].
    pub fn check(&self) -> Result<(), PortError> {
        self.serialiser().map(|_| ())
    }

    fn serialiser(&self) -> Result<Serialiser, PortError> {
        if self.loss_ppm > 1_000_000 {
            return Err(PortError::LossTooHigh { loss_ppm: self.loss_ppm });
        }
        match self.rate.serialiser() {
            Some(serialiser) if self.rate >= RATE_MIN => Ok(serialiser),
            _ => Err(PortError::RateTooLow { rate: self.rate }),
        }
    }
}

/// What has passed a port since it was made.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct PortCounters {
    /// Packets that came to the port.
    pub offered_packets: u64,
    /// Bytes that came to the port.
    pub offered_bytes: u64,
    /// Packets sent to the end, also those that the wire then lost.
    pub sent_packets: u64,
    /// Bytes of the packets sent to the end.
    pub sent_bytes: u64,
    /// Packets that came off the wire at its far end.
    pub arrived_packets: u64,
    /// Bytes of the packets that came off the wire.
    pub arrived_bytes: u64,
    /// Packets dropped here, by reason.
    pub drops: DropCounts,
}

/// An output port: a drop-tail queue per priority, a serialiser that sends the head of the first queue that holds a
/// packet and never interrupts it, and a wire that delays and, by chance, loses.
///
/// A link that goes down drops what waits and what is being sent ([`Drop::LinkDown`]), and whatever comes until it is
/// up again; packets already on the wire arrive. A new rate also holds for the rest of the packet being sent. A shorter
/// delay never lets a packet overtake one that is on the wire.
#[derive(Debug)]
pub struct Port {
    peer: Target,
    settings: PortSettings,
    serialiser: Serialiser,
    loss: RandomStream,
    queues: [Fifo; PRIORITIES],
    sending: Option<Sending>,
    /// Tells the running transmission's timer from one that was overtaken by a change.
    generation: u32,
    wire: Fifo,
    wire_due_first: Option<Instant>,
    wire_due_last: Instant,
    counters: PortCounters,
}

#[derive(Copy, Clone, Debug)]
struct Sending {
    packet: PacketId,
    time: Duration,
    done_at: Instant,
}

/// Token of the timer for when the first packet on the wire arrives.
const ARRIVE: u32 = 0;
/// Low bit of the tokens for when the packet being sent has left; the rest is the generation.
const SENT: u32 = 1;

impl Port {
    /// A port whose packets arrive at `peer`. `loss` decides which packets the wire loses.
    ///
    /// Errors: settings that no port can have.
    pub fn new(peer: Target, settings: PortSettings, loss: RandomStream) -> Result<Self, PortError> {
        Ok(Self {
            peer,
            settings,
            serialiser: settings.serialiser()?,
            loss,
            queues: [Fifo::default(); PRIORITIES],
            sending: None,
            generation: 0,
            wire: Fifo::default(),
            wire_due_first: None,
            wire_due_last: Instant::ZERO,
            counters: PortCounters::default(),
        })
    }

    /// What the port is like now.
    pub const fn settings(&self) -> &PortSettings {
        &self.settings
    }
    /// What has passed so far.
    pub const fn counters(&self) -> &PortCounters {
        &self.counters
    }
    /// Bytes that wait now, in all queues, without the packet being sent.
    pub fn queue_bytes(&self) -> ByteCount {
        ByteCount::new(self.queues.iter().map(Fifo::bytes).sum())
    }
    /// Packets in the queues, being sent, and on the wire.
    pub fn packets_held(&self) -> u64 {
        let waiting: u64 = self.queues.iter().map(|q| u64::from(q.packets())).sum();
        waiting + u64::from(self.sending.is_some()) + u64::from(self.wire.packets())
    }

    /// Changes what the port is like, from now on.
    ///
    /// Errors: settings that no port can have; nothing changes then.
    pub fn handle_settings<Q: EventQueue>(
        &mut self,
        cx: &mut Cx<'_, Q>,
        settings: PortSettings,
    ) -> Result<(), PortError> {
        self.serialiser = settings.serialiser()?;
        let rate_before = self.settings.rate;
        self.settings = settings;
        if !settings.up {
            self.generation = self.generation.wrapping_add(1);
            if let Some(sending) = self.sending.take() {
                self.drop(cx, sending.packet, Drop::LinkDown);
            }
            while let Some(p) = self.pop_first(cx) {
                self.drop(cx, p, Drop::LinkDown);
            }
        } else if let (Some(sending), true) = (self.sending, settings.rate != rate_before) {
            // The share of the packet that is left takes its share of the packet's time at the new rate.
            let time = self.serialiser.time(cx.meta(sending.packet).size_bytes);
            let left = u128::from((sending.done_at - cx.now()).as_ps()) * u128::from(time.as_ps())
                / u128::from(sending.time.as_ps().max(1));
            let left = Duration::from_ps(u64::try_from(left).expect("less than the packet's whole time"));
            self.transmit(cx, sending.packet, time, left);
        }
        Ok(())
    }

    /// When the first packet comes off the wire: the first on it or, if it is empty, the one being sent.
    pub(crate) fn next_arrival(&self) -> Option<Instant> {
        let sent = self.sending.map(|s| (s.done_at + self.settings.delay).max(self.wire_due_last));
        self.wire_due_first.or(sent)
    }

    #[inline]
    fn drop<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId, reason: Drop) {
        self.counters.drops.count(reason);
        cx.drop(p, reason);
    }

    #[inline]
    fn pop_first<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>) -> Option<PacketId> {
        self.queues.iter_mut().find_map(|queue| queue.pop(cx.all_meta()))
    }

    /// Occupies the serialiser with `p` for the time `left`, of `time` for the whole packet.
    #[inline]
    fn transmit<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId, time: Duration, left: Duration) {
        self.generation = self.generation.wrapping_add(1);
        let done_at = cx.now() + left;
        self.sending = Some(Sending { packet: p, time, done_at });
        cx.arm(done_at, self.generation << 1 | SENT);
    }

    #[inline]
    fn transmit_whole<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId) {
        let time = self.serialiser.time(cx.meta(p).size_bytes);
        self.transmit(cx, p, time, time);
    }

    #[inline]
    fn on_sent<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>) {
        let p = self
            .sending
            .take()
            .expect("this generation's timer is armed only while a packet is being sent")
            .packet;
        self.counters.sent_packets += 1;
        self.counters.sent_bytes += u64::from(cx.meta(p).size_bytes);
        if self.settings.loss_ppm > 0 && self.loss.chance_ppm(self.settings.loss_ppm) {
            self.drop(cx, p, Drop::Loss);
        } else {
            let due = (cx.now() + self.settings.delay).max(self.wire_due_last);
            self.wire_due_last = due;
            cx.meta(p).due = due;
            if self.wire_due_first.is_none() {
                self.wire_due_first = Some(due);
                cx.arm(due, ARRIVE);
            }
            self.wire.push(cx.all_meta(), p);
        }
        if let Some(next) = self.pop_first(cx) {
            self.transmit_whole(cx, next);
        }
    }

    #[inline]
    fn on_arrive<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>) {
        let p = self.wire.pop(cx.all_meta()).expect("ARRIVE is armed only while the wire holds a packet");
        self.wire_due_first = self.wire.first().map(|next| cx.meta(next).due);
        if let Some(due) = self.wire_due_first {
            cx.arm(due, ARRIVE);
        }
        let meta = cx.meta(p);
        meta.hops = meta.hops.saturating_add(1);
        self.counters.arrived_packets += 1;
        self.counters.arrived_bytes += u64::from(meta.size_bytes);
        cx.forward(self.peer, p);
    }
}

impl Element for Port {
    #[inline]
    fn on_packet<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId) {
        let &mut crate::PacketMeta { size_bytes, priority, .. } = cx.meta(p);
        self.counters.offered_packets += 1;
        self.counters.offered_bytes += u64::from(size_bytes);
        if !self.settings.up {
            return self.drop(cx, p, Drop::LinkDown);
        }
        if self.sending.is_none() {
            return self.transmit_whole(cx, p);
        }
        let queue = &mut self.queues[usize::from(priority).min(PRIORITIES - 1)];
        if queue.bytes() + u64::from(size_bytes) > self.settings.queue_bytes_max.as_u64() {
            return self.drop(cx, p, Drop::QueueFull);
        }
        queue.push(cx.all_meta(), p);
    }

    #[inline]
    fn on_timer<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, token: u32) {
        if token == ARRIVE {
            self.on_arrive(cx);
        } else if token == self.generation << 1 | SENT {
            self.on_sent(cx);
        }
    }
}
