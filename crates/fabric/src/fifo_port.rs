//! An output port for links with one priority. It computes departures on arrival, so that a packet
//! needs only one event per hop.
//!
//! This port is the one-event counterpart of [`Port`](crate::Port). Both agree packet by packet
//! (tests compare them), except for simultaneous events: here a transmission that ends now has
//! ended before a packet that arrives now. Leaves out: priorities (all packets leave in the order
//! of arrival), shared buffers, settings that change. Read [`FifoPort`] first.

use anabranch_units::{ByteCount, Duration, RandomStream, RunInstant, Serialiser};

use crate::EventQueue;
use crate::element::{Cx, Element};
use crate::packet::{Drop, DropCounts, Fifo, Flag, PacketId, PacketMeta};
use crate::port::{PortCounters, PortError, PortSettings, WaitSum, WireErrors};
use crate::target::Target;

/// An output port with one drop-tail queue, a serialiser, and a wire with delay and random losses
/// and bit errors.
#[derive(Debug)]
pub struct FifoPort {
    /// All accepted packets that have not arrived yet: on the wire, being sent, and queued.
    held: Fifo,
    /// First queued packet as of the last check. Earlier packets have begun transmission. Since the
    /// check, this packet and later packets may have begun, too.
    waiting: Option<PacketId>,
    waiting_packets: u32,
    waiting_bytes: u64,
    /// End of the last packet's transmission.
    free_at: RunInstant,
    serialiser: Serialiser,
    delay: Duration,
    /// Backlog, the new packet included, below which no limit can be exceeded, so that no exact
    /// check is needed.
    easy: Duration,
    peer: Target,
    has_chance: bool,
    up: bool,
    taken_packets: u64,
    taken_bytes: u64,
    wait_sum: WaitSum,
    wait_max: Duration,
    cold: Box<ColdState>,
}
const _: () = assert!(size_of::<FifoPort>() <= 144);

/// Fields that few packets access.
#[derive(Debug)]
struct ColdState {
    settings: PortSettings,
    chance: WireErrors,
    drops: DropCounts,
    /// Number of packets and bytes lost on the wire.
    lost: (u64, u64),
    /// Bytes of refused packets.
    refused_bytes: u64,
    marked_packets: u64,
}

impl FifoPort {
    /// Creates a port whose packets arrive at `peer`. `random` decides random losses and bit
    /// errors.
    ///
    /// Errors: settings that a port cannot have.
    pub fn new(peer: Target, settings: PortSettings, random: RandomStream) -> Result<Self, PortError> {
        let serialiser = settings.serialiser()?;
        let limit = settings.mark_bytes.map_or(settings.queue_bytes_max, |m| m.min(settings.queue_bytes_max));
        let easy = match settings.queue_packets_max {
            Some(_) => Duration::ZERO,
            None => serialiser.time(u32::try_from(limit.as_u64()).unwrap_or(u32::MAX)),
        };
        let chance = WireErrors::new(random, &settings);
        Ok(Self {
            held: Fifo::default(),
            waiting: None,
            waiting_packets: 0,
            waiting_bytes: 0,
            free_at: RunInstant::ZERO,
            serialiser,
            delay: settings.delay,
            easy,
            peer,
            has_chance: settings.loss_ppm > 0 || settings.bit_errors_ppt > 0,
            up: settings.up,
            taken_packets: 0,
            taken_bytes: 0,
            wait_sum: WaitSum::default(),
            wait_max: Duration::ZERO,
            cold: Box::new(ColdState {
                settings,
                chance,
                drops: DropCounts::default(),
                lost: (0, 0),
                refused_bytes: 0,
                marked_packets: 0,
            }),
        })
    }

    /// The port's settings.
    pub const fn settings(&self) -> &PortSettings {
        &self.cold.settings
    }

    /// Packets queued, being sent, and on the wire.
    pub const fn packets_held(&self) -> u64 {
        self.held.packets() as u64
    }

    /// Returns the number of packets and bytes queued at `now`, without the packet being sent.
    /// Cost: a check of every queued packet.
    pub(crate) fn queue(&self, meta: &[PacketMeta], now: RunInstant) -> (u32, ByteCount) {
        let (mut first, mut packets, mut bytes) = (self.waiting, self.waiting_packets, self.waiting_bytes);
        while let Some(p) = first.filter(|p| self.begins(meta, *p) <= now) {
            (packets, bytes) = (packets - 1, bytes - u64::from(meta[p.index()].size_bytes));
            first = self.held.behind(meta, p);
        }
        (packets, ByteCount::new(bytes))
    }

    /// Returns the counters as of `now`. Cost: a check of every queued packet.
    pub(crate) fn counters(&self, meta: &[PacketMeta], now: RunInstant) -> PortCounters {
        let cold = &self.cold;
        let (waiting_packets, waiting_bytes) = self.queue(meta, now);
        let (lost_packets, lost_bytes) = cold.lost;
        let (mut not_sent, mut not_sent_bytes) = (u64::from(waiting_packets), waiting_bytes.as_u64());
        if self.free_at > now {
            let sending = self.sending(meta, now).expect("the serialiser is busy with a packet");
            not_sent += 1;
            not_sent_bytes += u64::from(meta[sending.index()].size_bytes);
        }
        let refused = cold.drops.of(Drop::QueueFull) + cold.drops.of(Drop::LinkDown);
        PortCounters {
            offered_packets: self.taken_packets + refused,
            offered_bytes: self.taken_bytes + cold.refused_bytes,
            sent_packets: self.taken_packets - not_sent,
            sent_bytes: self.taken_bytes - not_sent_bytes,
            arrived_packets: self.taken_packets - self.packets_held() - lost_packets,
            arrived_bytes: self.taken_bytes - self.held.bytes() - lost_bytes,
            drops: cold.drops,
            marked_packets: cold.marked_packets,
            wait_sum: self.wait_sum,
            wait_max: self.wait_max,
        }
    }

    /// Returns the arrival time of the first packet on the wire.
    pub(crate) fn next_arrival(&self, meta: &[PacketMeta]) -> Option<RunInstant> {
        self.held.first().map(|p| meta[p.index()].due)
    }

    /// Returns the packet being sent at `now`.
    fn sending(&self, meta: &[PacketMeta], now: RunInstant) -> Option<PacketId> {
        let mut p = self.held.first();
        while let Some(gone) = p.filter(|p| meta[p.index()].due - self.delay <= now) {
            p = self.held.behind(meta, gone);
        }
        p
    }

    /// Returns the time at which the transmission of `p` begins. The packet leaves one transmission
    /// time later, and arrives one wire delay after that.
    #[inline]
    fn begins(&self, meta: &[PacketMeta], p: PacketId) -> RunInstant {
        let meta = &meta[p.index()];
        meta.due - self.delay - self.serialiser.time(meta.size_bytes)
    }

    /// Updates the record of the packets that are still queued.
    #[inline]
    fn settle(&mut self, meta: &[PacketMeta], now: RunInstant) {
        while let Some(p) = self.waiting.filter(|p| self.begins(meta, *p) <= now) {
            self.pass(meta, p);
        }
    }

    /// Records that the transmission of `p`, the first queued packet, has begun.
    #[inline]
    fn pass(&mut self, meta: &[PacketMeta], p: PacketId) {
        self.waiting_packets -= 1;
        self.waiting_bytes -= u64::from(meta[p.index()].size_bytes);
        self.waiting = self.held.behind(meta, p);
    }

    #[cold]
    fn refuse<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId, reason: Drop) {
        self.cold.refused_bytes += u64::from(cx.meta(p).size_bytes);
        self.cold.drops.count(reason);
        cx.drop(p, reason);
    }

    /// Checks exactly whether there is room for `p`. Returns true if there is; marks the packet if
    /// required.
    fn has_room<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId) -> bool {
        let now = cx.now();
        self.settle(cx.all_meta(), now);
        let meta = cx.meta(p);
        let settings = &self.cold.settings;
        // A packet that arrives while the serialiser is free never waits.
        if self.free_at <= now {
            return true;
        }
        if self.waiting_bytes + u64::from(meta.size_bytes) > settings.queue_bytes_max.as_u64()
            || settings.queue_packets_max.is_some_and(|max| self.waiting_packets >= max)
        {
            return false;
        }
        if meta.has(Flag::Ect) && settings.mark_bytes.is_some_and(|mark| self.waiting_bytes > mark.as_u64()) {
            meta.set(Flag::Ce, true);
            self.cold.marked_packets += 1;
        }
        true
    }
}

impl Element for FifoPort {
    #[inline]
    fn on_packet<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId) {
        let now = cx.now();
        if !self.up {
            return self.refuse(cx, p, Drop::LinkDown);
        }
        let size_bytes = cx.meta(p).size_bytes;
        let time = self.serialiser.time(size_bytes);
        let wait = self.free_at.saturating_since(now);
        // The time of each held packet was rounded down by up to a picosecond.
        let slack = Duration::from_ps(u64::from(self.held.packets()) + 1);
        if wait + time + slack >= self.easy && !self.has_room(cx, p) {
            return self.refuse(cx, p, Drop::QueueFull);
        }
        self.free_at = now + wait + time;
        let due = self.free_at + self.delay;
        cx.meta(p).due = due;
        if self.held.packets() == 0 {
            cx.arm(due, 0);
        }
        self.held.push(cx.all_meta(), p);
        self.taken_packets += 1;
        self.taken_bytes += u64::from(size_bytes);
        self.waiting.get_or_insert(p);
        self.waiting_packets += 1;
        self.waiting_bytes += u64::from(size_bytes);
        self.wait_sum.add(wait);
        self.wait_max = self.wait_max.max(wait);
    }

    #[inline]
    fn on_timer<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, _: u32) {
        if self.waiting.is_some() && self.waiting == self.held.first() {
            let p = self.waiting.expect("it was looked at just now");
            self.pass(cx.all_meta(), p);
        }
        let p = self.held.pop(cx.all_meta()).expect("a timer is armed only while a packet is held");
        if let Some(next) = self.held.first() {
            let due = cx.meta(next).due;
            cx.arm(due, 0);
        }
        let size_bytes = cx.meta(p).size_bytes;
        if self.has_chance
            && let Some(reason) = self.cold.chance.draw(size_bytes)
        {
            self.cold.lost.0 += 1;
            self.cold.lost.1 += u64::from(size_bytes);
            self.cold.drops.count(reason);
            return cx.drop(p, reason);
        }
        let meta = cx.meta(p);
        meta.hops = meta.hops.saturating_add(1);
        cx.forward(self.peer, p);
    }
}
