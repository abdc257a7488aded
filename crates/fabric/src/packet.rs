//! Packets: their metadata for elements, the arena that holds them, the queues linked through the
//! arena, and the reasons of drops.
//!
//! Metadata and bodies are stored separately, so that the hot loop touches 32 bytes per packet.
//! Read [`PacketMeta`] first.

use anabranch_units::RunInstant;

/// Number of priorities. Priority 0 is sent first.
pub const PRIORITIES: usize = 3;

/// A packet of one fabric, as an index into its [`Packets`]. The index is reused after the packet
/// has left.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PacketId(u32);

impl PacketId {
    #[inline]
    pub(crate) const fn index(self) -> usize {
        self.0 as usize
    }
}

/// Class of a flow, for switches that treat short flows differently.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub enum FlowClass {
    /// The sender has not stated a class.
    #[default]
    Unknown,
    /// Short: delay matters.
    Short,
    /// Long: throughput matters.
    Long,
}

/// The metadata of a packet, which elements see and may change.
///
/// Units: `size_bytes` is the length on the wire, headers included.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PacketMeta {
    /// Arrival time at the end of the current wire. The element that holds the packet may use the
    /// field for other times.
    pub(crate) due: RunInstant,
    /// The next packet in the queue of the element that holds the packet.
    next: Option<NextPacket>,
    /// Number of the packet's flow, for elements that spread flows over paths.
    pub flow: u32,
    /// Size on the wire in bytes, headers included.
    pub size_bytes: u32,
    /// Number of the sending host, as the switches use it.
    pub src: u16,
    /// Number of the destination host, as the switches use it.
    pub dst: u16,
    /// Value that the sender varies to change the path at switches that hash headers: a source
    /// port, a flow label. 0 if unused.
    pub entropy: u16,
    /// Strict priority, 0 first. Values above the last priority count as the last priority.
    pub priority: u8,
    /// Bits of the packet's [`Flag`]s.
    flags: u8,
    /// Number of links passed so far. It stays at 255 once it has reached 255.
    pub hops: u8,
    /// Class of the flow as stated by the sender, similar to a DSCP.
    pub class: FlowClass,
}
const _: () = assert!(size_of::<PacketMeta>() == 32);

/// A property of a packet. The value is its bit in [`PacketMeta`].
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Flag {
    /// Queues may mark the packet (ECN "ECT").
    Ect = 1,
    /// A queue on the packet's path was congested (ECN "CE").
    Ce = 2,
    /// A circuit from the packet's destination to its source is up, or will be up soon.
    Circuit = 4,
}

/// Index of a packet plus one, so that an `Option` of it needs no extra space.
type NextPacket = std::num::NonZeroU32;

impl PacketMeta {
    /// Creates the metadata of a packet of `size_bytes` from `src` to `dst`, with the middle
    /// priority and flow 0.
    pub const fn new(src: u16, dst: u16, size_bytes: u32) -> Self {
        Self {
            due: RunInstant::ZERO,
            next: None,
            flow: 0,
            size_bytes,
            src,
            dst,
            entropy: 0,
            priority: 1,
            flags: 0,
            hops: 0,
            class: FlowClass::Unknown,
        }
    }
    /// Returns true if the packet has `flag`.
    #[inline]
    pub const fn has(&self, flag: Flag) -> bool {
        self.flags & flag as u8 != 0
    }
    /// Sets or clears `flag`.
    #[inline]
    pub const fn set(&mut self, flag: Flag, is_set: bool) {
        self.flags = if is_set { self.flags | flag as u8 } else { self.flags & !(flag as u8) };
    }
    /// Returns the same metadata with another priority.
    pub const fn with_priority(mut self, priority: u8) -> Self {
        self.priority = priority;
        self
    }
    /// Returns the same metadata with another entropy.
    pub const fn with_entropy(mut self, entropy: u16) -> Self {
        self.entropy = entropy;
        self
    }
    /// Returns the same metadata with this flow class.
    pub const fn with_class(mut self, class: FlowClass) -> Self {
        self.class = class;
        self
    }
    /// Returns the same metadata with flow number `flow`.
    pub const fn with_flow(mut self, flow: u32) -> Self {
        self.flow = flow;
        self
    }
}

/// The arena of all packets in a fabric.
#[derive(Debug)]
pub struct Packets<B> {
    meta: Vec<PacketMeta>,
    body: Vec<Option<B>>,
    free: Vec<PacketId>,
}

impl<B> Packets<B> {
    pub(crate) const fn new() -> Self {
        Self { meta: Vec::new(), body: Vec::new(), free: Vec::new() }
    }
    #[inline]
    pub(crate) fn add(&mut self, meta: PacketMeta, body: B) -> PacketId {
        if let Some(p) = self.free.pop() {
            self.meta[p.index()] = meta;
            self.body[p.index()] = Some(body);
            return p;
        }
        let p =
            PacketId(u32::try_from(self.meta.len()).expect("4 G packets would need 128 GiB of meta alone"));
        self.meta.push(meta);
        self.body.push(Some(body));
        p
    }
    /// Removes the packet. Its id may be reused afterwards.
    #[inline]
    pub(crate) fn take(&mut self, p: PacketId) -> (PacketMeta, B) {
        self.free.push(p);
        (self.meta[p.index()], self.body[p.index()].take().expect("a packet is taken out once"))
    }
    /// Returns the metadata and the body of a packet in the fabric.
    pub(crate) fn both(&self, p: PacketId) -> (&PacketMeta, &B) {
        (&self.meta[p.index()], self.body[p.index()].as_ref().expect("it has not been taken out"))
    }
    #[inline]
    pub(crate) fn meta(&self) -> &[PacketMeta] {
        &self.meta
    }
    #[inline]
    pub(crate) fn meta_mut(&mut self) -> &mut [PacketMeta] {
        &mut self.meta
    }
    /// Number of packets in the fabric.
    pub fn live(&self) -> usize {
        self.meta.len() - self.free.len()
    }
}

/// A first-in, first-out queue of packets, linked through their metadata, so that it allocates no
/// memory.
#[derive(Copy, Clone, Debug, Default)]
pub struct Fifo {
    head: Option<NextPacket>,
    tail: Option<NextPacket>,
    packets: u32,
    bytes: u64,
}

impl Fifo {
    /// Appends `p`, which must not be in another queue.
    #[inline]
    pub fn push(&mut self, meta: &mut [PacketMeta], p: PacketId) {
        let link = NextPacket::new(p.0 + 1);
        meta[p.index()].next = None;
        match self.tail {
            None => self.head = link,
            Some(t) => meta[t.get() as usize - 1].next = link,
        }
        self.tail = link;
        self.packets += 1;
        self.bytes += u64::from(meta[p.index()].size_bytes);
    }
    /// Removes and returns the first packet.
    #[inline]
    pub fn pop(&mut self, meta: &[PacketMeta]) -> Option<PacketId> {
        let p = self.first()?;
        self.head = meta[p.index()].next;
        if self.head.is_none() {
            self.tail = None;
        }
        self.packets -= 1;
        self.bytes -= u64::from(meta[p.index()].size_bytes);
        Some(p)
    }
    /// Returns the first packet.
    #[inline]
    pub fn first(&self) -> Option<PacketId> {
        self.head.map(|link| PacketId(link.get() - 1))
    }
    /// Returns the packet behind `p`, which must be in this queue.
    #[inline]
    pub fn behind(&self, meta: &[PacketMeta], p: PacketId) -> Option<PacketId> {
        meta[p.index()].next.map(|link| PacketId(link.get() - 1))
    }
    /// Number of packets in the queue.
    #[inline]
    pub const fn packets(&self) -> u32 {
        self.packets
    }
    /// Number of bytes in the queue.
    #[inline]
    pub const fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Reason why a packet was dropped.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Drop {
    /// The queue had no room.
    QueueFull,
    /// Random loss on the wire.
    Loss,
    /// Random bit error on the wire, so that the checksum failed.
    BitError,
    /// The link was down.
    LinkDown,
    /// No route to the destination.
    NoRoute,
}

impl Drop {
    /// All reasons, in the order of [`DropCounts`].
    pub const ALL: [Self; 5] = [Self::QueueFull, Self::Loss, Self::BitError, Self::LinkDown, Self::NoRoute];

    /// Name of the reason in reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::QueueFull => "queue_full",
            Self::Loss => "loss",
            Self::BitError => "bit_error",
            Self::LinkDown => "link_down",
            Self::NoRoute => "no_route",
        }
    }
}

/// Counts of dropped packets, by reason.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct DropCounts([u64; Drop::ALL.len()]);

impl DropCounts {
    #[inline]
    pub(crate) fn count(&mut self, reason: Drop) {
        self.0[reason as usize] += 1;
    }
    /// Number of packets dropped for `reason`.
    pub const fn of(&self, reason: Drop) -> u64 {
        self.0[reason as usize]
    }
    /// Number of packets dropped for any reason.
    pub fn total(&self) -> u64 {
        self.0.iter().sum()
    }
    /// Returns every reason with its count, in the order of [`Drop::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Drop, u64)> + '_ {
        Drop::ALL.iter().map(|&reason| (reason, self.of(reason)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fifo_returns_packets_in_order_and_counts_them() {
        let mut packets = Packets::new();
        let ids: Vec<_> = (1..=3).map(|n| packets.add(PacketMeta::new(0, 0, n * 10), ())).collect();
        let mut fifo = Fifo::default();
        for &p in &ids {
            fifo.push(packets.meta_mut(), p);
        }
        assert_eq!((fifo.packets(), fifo.bytes()), (3, 60));
        for &p in &ids {
            assert_eq!(fifo.pop(packets.meta_mut()), Some(p));
        }
        assert_eq!((fifo.pop(packets.meta_mut()), fifo.bytes()), (None, 0));
    }

    #[test]
    fn slot_is_reused_after_its_packet_is_removed() {
        let mut packets = Packets::new();
        let a = packets.add(PacketMeta::new(0, 1, 1), "a");
        let b = packets.add(PacketMeta::new(0, 1, 2), "b");
        assert_eq!(packets.take(a).1, "a");
        assert_eq!((packets.live(), packets.add(PacketMeta::new(0, 1, 3), "c")), (1, a));
        assert_eq!(packets.take(b).1, "b");
    }
}
