//! The fabric: elements, nodes, packets and events together, and the loop that runs them.
//!
//! Read [`Fabric`] and [`Node`] first.

use anabranch_units::{ByteCount, Instant, RunInstant};

use crate::any::AnyElement;
use crate::buffer::SharedBuffer;
use crate::circuit_switch::{CircuitError, Matching};
use crate::element::{Cx, Element};
use crate::packet::{DropCounts, PacketId, PacketMeta, Packets};
use crate::port::{Port, PortCounters, PortError, PortSettings};
use crate::target::Target;
use crate::timetable::Timetable;
use crate::{CircuitSwitch, Event, EventQueue, QuadHeap};

/// The actions of a node while it handles a packet or a timer.
pub struct NodeCx<'a, B, Q> {
    now: RunInstant,
    me: Target,
    packets: &'a mut Packets<B>,
    events: &'a mut Q,
    ready: &'a mut Vec<(Target, PacketId)>,
    totals: &'a mut Totals,
}

impl<B, Q: EventQueue> NodeCx<'_, B, Q> {
    /// Returns the fabric's time.
    #[inline]
    pub fn now(&self) -> Instant {
        self.now.into()
    }
    /// Sends a new packet into the fabric at `to`, usually the port of this node's first link.
    #[inline]
    pub fn send(&mut self, to: Target, meta: PacketMeta, body: B) {
        self.totals.injected += 1;
        let p = self.packets.add(meta, body);
        self.ready.push((to, p));
    }
    /// Schedules `on_timer(token)` of this node at `at`, which must not be in the past.
    #[inline]
    pub fn arm(&mut self, at: Instant, token: u32) {
        let at = RunInstant::from(at);
        debug_assert!(at >= self.now, "a timer cannot go off in the past");
        self.events.push(Event { at, target: self.me, token });
    }
}

/// A host at the edge of the fabric. A system with several kinds of hosts uses an enum of them.
pub trait Node {
    /// Body of the node's packets, which elements do not see. Bodies are copied only at tapped
    /// ports.
    type Body: Clone;
    /// Handles a packet that has arrived, and becomes its owner.
    fn on_packet<Q: EventQueue>(
        &mut self,
        cx: &mut NodeCx<'_, Self::Body, Q>,
        meta: PacketMeta,
        body: Self::Body,
    );
    /// Handles an expired timer of this node.
    fn on_timer<Q: EventQueue>(&mut self, cx: &mut NodeCx<'_, Self::Body, Q>, token: u32);
}

/// Counters of the whole fabric. `injected = delivered + drops + in flight` always holds.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of packets injected from outside or by a node.
    pub injected: u64,
    /// Number of packets that reached a node.
    pub delivered: u64,
    /// Number of packets dropped, by reason.
    pub drops: DropCounts,
    /// Number of processed events.
    pub events: u64,
}

/// A network of elements with nodes at its edge, and all packets in flight between them.
///
/// ```
/// use anabranch_fabric::*;
/// use anabranch_units::*;
///
/// #[derive(Default)]
/// struct Sink(Vec<(Instant, &'static str)>);
/// impl Node for Sink {
///     type Body = &'static str;
///     fn on_packet<Q: EventQueue>(&mut self, cx: &mut NodeCx<'_, Self::Body, Q>, _: PacketMeta, body: Self::Body) {
///         self.0.push((cx.now(), body));
///     }
///     fn on_timer<Q: EventQueue>(&mut self, _: &mut NodeCx<'_, Self::Body, Q>, _: u32) {}
/// }
///
/// let settings = PortSettings::new(BitRate::gbps(1), Duration::from_us(100), ByteCount::kib(64));
/// let port = Port::new(Target::node(0), settings, Seed::new(1).stream("loss", 0)).expect("a rate of at least 2 kbit/s");
/// let mut fabric: Fabric<Sink> = Fabric::new(vec![AnyElement::Port(Box::new(port))], vec![Sink::default()]);
/// fabric.inject(Instant::from_us(5), Target::element(0), PacketMeta::new(0, 0, 1500), "hello");
/// fabric.advance(Instant::MAX);
/// // 12 us to serialise 1,500 bytes at 1 Gbit/s, and 100 us on the wire.
/// assert_eq!(fabric.nodes()[0].0, [(Instant::from_us(5 + 12 + 100), "hello")]);
/// ```
pub struct Fabric<N: Node, Q = QuadHeap> {
    now: RunInstant,
    elements: Vec<AnyElement>,
    nodes: Vec<N>,
    packets: Packets<N::Body>,
    events: Q,
    /// Packets passed on within the current event, in order. Empty between events.
    ready: Vec<(Target, PacketId)>,
    /// Packets dropped within the current event. Empty between events.
    dropped: Vec<PacketId>,
    buffers: Vec<SharedBuffer>,
    totals: Totals,
    hash: u64,
    /// Ports whose packets are copied when they leave the wire, and the copies.
    taps: Vec<Target>,
    tapped: Vec<TappedPacket<N::Body>>,
}

/// A packet that left the wire of a tapped port.
#[derive(Clone, Debug)]
pub struct TappedPacket<B> {
    /// Time at which the packet left the wire.
    pub at: Instant,
    /// The port in front of the wire.
    pub port: Target,
    /// Metadata of the packet, as elements see it.
    pub meta: PacketMeta,
    /// Body of the packet.
    pub body: B,
}

impl<N: Node, Q: EventQueue> Fabric<N, Q> {
    /// Creates a fabric of these elements and nodes, without packets, at [`Instant::ZERO`].
    pub fn new(elements: Vec<AnyElement>, nodes: Vec<N>) -> Self {
        Self {
            now: RunInstant::ZERO,
            elements,
            nodes,
            packets: Packets::new(),
            events: Q::default(),
            ready: Vec::new(),
            dropped: Vec::new(),
            buffers: Vec::new(),
            totals: Totals::default(),
            hash: 0,
            taps: Vec::new(),
            tapped: Vec::new(),
        }
    }

    /// Returns the same fabric with these shared buffers. A port's buffer number is an index into
    /// them.
    pub fn with_buffers(mut self, buffers: Vec<SharedBuffer>) -> Self {
        self.buffers = buffers;
        self
    }

    /// Copies the packets that leave the wire of `port` from now on. [`Fabric::take_tapped`]
    /// returns the copies.
    pub fn tap(&mut self, port: Target) {
        self.taps.push(port);
    }
    /// Returns the copied packets of tapped ports since the last call, in the order of arrival.
    pub fn take_tapped(&mut self) -> Vec<TappedPacket<N::Body>> {
        std::mem::take(&mut self.tapped)
    }

    /// The time up to which the fabric has run.
    pub fn now(&self) -> Instant {
        self.now.into()
    }
    /// The nodes by index.
    pub fn nodes(&self) -> &[N] {
        &self.nodes
    }
    /// The nodes by index, for changes between runs.
    pub fn nodes_mut(&mut self) -> &mut [N] {
        &mut self.nodes
    }
    /// Counters of the whole fabric.
    pub const fn totals(&self) -> &Totals {
        &self.totals
    }
    /// Number of packets that were injected, and neither delivered nor dropped.
    pub fn in_flight(&self) -> u64 {
        self.packets.live() as u64
    }
    /// Time of the next event; `None` if the fabric waits for packets from outside.
    pub fn next_deadline(&self) -> Option<Instant> {
        self.events.next_at().map(Instant::from)
    }
    /// Earliest time at which a packet may leave a wire, whatever is injected in the meantime. It
    /// is at most the next arrival, and at least [`Fabric::next_deadline`]. `None` if no packet is
    /// in flight.
    ///
    /// A driver under a real clock may sleep until then. Earlier events (ends of transmissions)
    /// have no visible effect, and can be processed later as of their due times. Timers of nodes
    /// are not considered. Cost: a check of every element.
    pub fn next_arrival(&self) -> Option<Instant> {
        let port = |element: &AnyElement| match element {
            AnyElement::Fifo(port) => port.next_arrival(self.packets.meta()),
            AnyElement::Port(port) => port.next_arrival(),
            AnyElement::Circuit(switch) => switch.next_departure(self.packets.meta(), self.now),
            AnyElement::Switch(_) => None,
        };
        self.elements.iter().filter_map(port).min().map(Instant::from)
    }
    /// Mean share of paths without short flows, over all samples with short flows at all switches.
    /// `None` if no switch measures it ([`Caps`](crate::switch::caps::Caps)), or no switch had a
    /// sample.
    pub fn unused_ways_share(&self) -> Option<f64> {
        let unused = self.elements.iter().filter_map(|element| match element {
            AnyElement::Switch(switch) => switch.unused(),
            AnyElement::Fifo(_) | AnyElement::Port(_) | AnyElement::Circuit(_) => None,
        });
        let (samples, sum) = unused.fold((0, 0.0), |(n, sum), one| (n + one.samples, sum + one.share_sum));
        (samples > 0).then(|| sum / samples as f64)
    }
    /// The hybrid switch at `target`; `None` if the element is of another kind.
    pub fn circuit_switch(&self, target: Target) -> Option<&CircuitSwitch> {
        match self.elements.get(target.index()).filter(|_| !target.is_node())? {
            AnyElement::Circuit(switch) => Some(switch),
            _ => None,
        }
    }
    /// The counters of the port at `target`, of either kind; `None` if the element is not a port.
    pub fn port_counters(&self, target: Target) -> Option<PortCounters> {
        match self.elements.get(target.index()).filter(|_| !target.is_node())? {
            AnyElement::Fifo(port) => Some(port.counters(self.packets.meta(), self.now)),
            AnyElement::Port(port) => Some(*port.counters()),
            AnyElement::Switch(_) | AnyElement::Circuit(_) => None,
        }
    }
    /// Number of packets and bytes queued at the port at `target`, of either kind, without the
    /// packet being sent.
    pub fn queue(&self, target: Target) -> Option<(u32, ByteCount)> {
        let element = self.elements.get(target.index()).filter(|_| !target.is_node())?;
        queue(element, self.packets.meta(), self.now)
    }
    /// Hash over every event so far: due time, target and token. Equal runs have equal hashes.
    pub const fn event_hash(&self) -> u64 {
        self.hash
    }
    /// The two-event port at `target`, if there is one.
    pub fn port(&self, target: Target) -> Option<&Port> {
        match self.elements.get(target.index()) {
            Some(AnyElement::Port(port)) if !target.is_node() => Some(port),
            _ => None,
        }
    }

    /// Schedules `on_timer(token)` of `target` at `at`. Used for the first events of a run.
    ///
    /// Panics: in a debug build, if `at` is before the fabric's time.
    pub fn arm(&mut self, target: Target, at: Instant, token: u32) {
        let at = RunInstant::from(at);
        debug_assert!(at >= self.now, "a timer cannot go off in the past");
        self.events.push(Event { at, target, token });
    }

    /// Injects a packet from outside at `now`, after processing the events that are due until then.
    ///
    /// Panics: in a debug build, if `now` is before the fabric's time.
    pub fn inject(&mut self, now: Instant, to: Target, meta: PacketMeta, body: N::Body) -> PacketId {
        self.advance(now);
        self.totals.injected += 1;
        let p = self.packets.add(meta, body);
        self.ready.push((to, p));
        self.drain();
        p
    }

    /// Changes the settings of the port at `target` at `now`, after processing the events that are
    /// due until then.
    ///
    /// Errors: settings that a port cannot have; the current settings then stay.
    /// Panics: if there is no port at `target`.
    pub fn handle_port_settings(
        &mut self,
        now: Instant,
        target: Target,
        settings: PortSettings,
    ) -> Result<(), PortError> {
        self.advance(now);
        let (elements, mut cx) = self.element_cx(target);
        let AnyElement::Port(port) = &mut elements[target.index()] else {
            panic!("{target:?} is not a port");
        };
        let result = port.handle_settings(&mut cx, settings);
        self.drain();
        result
    }

    /// Schedules `timetable` to replace the current timetable of the hybrid switch at `target`, at
    /// the first of its periods that begins at `from` or later, or at once if that time is `now`.
    /// All events that are due until `now` are processed before.
    ///
    /// Errors: a slot that is not a matching of its ports; the current timetable then stays.
    /// Panics: if there is no hybrid switch at `target`.
    pub fn handle_timetable(
        &mut self,
        now: Instant,
        target: Target,
        timetable: Timetable<Matching>,
        from: Instant,
    ) -> Result<(), CircuitError> {
        self.advance(now);
        match self.elements.get_mut(target.index()).filter(|_| !target.is_node()) {
            Some(AnyElement::Circuit(switch)) => switch.handle_timetable(now.into(), timetable, from.into()),
            _ => panic!("{target:?} is not a hybrid switch"),
        }
    }

    /// Processes every event that is due at or before `until`. Returns the number of processed
    /// events.
    ///
    /// Panics: in a debug build, if `until` is before the fabric's time.
    pub fn advance(&mut self, until: Instant) -> u64 {
        let before = self.totals.events;
        while !self.advance_some(until, u64::MAX) {}
        self.totals.events - before
    }

    /// Advances like [`Fabric::advance`], but processes at most `events_max` events. Returns true
    /// if no event due by `until` is left. Otherwise the fabric's time is the time of the last
    /// event.
    pub fn advance_some(&mut self, until: Instant, events_max: u64) -> bool {
        let until = RunInstant::from(until);
        debug_assert!(until >= self.now, "time never goes back");
        let mut events = 0;
        while events < events_max {
            let Some(event) = self.events.pop_due(until) else {
                self.totals.events += events;
                // In a run without an end time, the fabric's time stays at the last event.
                if until != RunInstant::MAX {
                    self.now = until;
                }
                return true;
            };
            self.now = event.at;
            events += 1;
            let event_bits =
                event.at.as_ps() ^ u64::from(event.target.raw()).rotate_left(40) ^ u64::from(event.token);
            self.hash = (self.hash.rotate_left(5) ^ event_bits).wrapping_mul(0x517c_c1b7_2722_0a95);
            if event.target.is_node() {
                let (nodes, mut cx) = self.node_cx(event.target);
                nodes[event.target.index()].on_timer(&mut cx, event.token);
            } else {
                let (elements, mut cx) = self.element_cx(event.target);
                elements[event.target.index()].on_timer(&mut cx, event.token);
                if !self.taps.is_empty() {
                    self.copy_tapped(event.target);
                }
            }
            self.drain();
        }
        self.totals.events += events;
        false
    }

    /// Copies the packet that `port` has just passed on, if the port is tapped.
    #[cold]
    fn copy_tapped(&mut self, port: Target) {
        if self.taps.contains(&port) {
            let copy = |(_, p): &(Target, PacketId)| {
                let (meta, body) = self.packets.both(*p);
                TappedPacket { at: self.now.into(), port, meta: *meta, body: body.clone() }
            };
            self.tapped.extend(self.ready.iter().map(copy));
        }
    }

    #[inline]
    fn drain(&mut self) {
        let mut i = 0;
        while i < self.ready.len() {
            let (to, p) = self.ready[i];
            i += 1;
            if to.is_node() {
                let (meta, body) = self.packets.take(p);
                self.totals.delivered += 1;
                let (nodes, mut cx) = self.node_cx(to);
                nodes[to.index()].on_packet(&mut cx, meta, body);
            } else {
                let (elements, mut cx) = self.element_cx(to);
                let (before, from_me) = elements.split_at_mut(to.index());
                match from_me {
                    [AnyElement::Switch(switch), after @ ..] => {
                        switch.on_packet(&mut cx, p, |at, meta, now| {
                            let after_it = || after.get(at.index() - before.len() - 1);
                            let port = before.get(at.index()).or_else(after_it).filter(|_| !at.is_node());
                            port.and_then(|port| queue(port, meta, now))
                                .map_or(ByteCount::ZERO, |(_, bytes)| bytes)
                        });
                    }
                    [element, ..] => element.on_packet(&mut cx, p),
                    [] => unreachable!("packets are sent to elements that are there"),
                }
            }
        }
        self.ready.clear();
        while let Some(p) = self.dropped.pop() {
            self.packets.take(p);
        }
    }

    #[inline]
    fn element_cx(&mut self, me: Target) -> (&mut [AnyElement], Cx<'_, Q>) {
        let cx = Cx {
            now: self.now,
            me,
            meta: self.packets.meta_mut(),
            events: &mut self.events,
            ready: &mut self.ready,
            dropped: &mut self.dropped,
            drops: &mut self.totals.drops,
            buffers: &mut self.buffers,
        };
        (&mut self.elements, cx)
    }

    #[inline]
    fn node_cx(&mut self, me: Target) -> (&mut [N], NodeCx<'_, N::Body, Q>) {
        let cx = NodeCx {
            now: self.now,
            me,
            packets: &mut self.packets,
            events: &mut self.events,
            ready: &mut self.ready,
            totals: &mut self.totals,
        };
        (&mut self.nodes, cx)
    }
}

/// Returns the number of packets and bytes queued at an element at `now`, without the packet being
/// sent. Returns `None` at a switch.
fn queue(element: &AnyElement, meta: &[PacketMeta], now: RunInstant) -> Option<(u32, ByteCount)> {
    match element {
        AnyElement::Fifo(port) => Some(port.queue(meta, now)),
        AnyElement::Port(port) => Some((port.queue_packets(), port.queue_bytes())),
        AnyElement::Switch(_) | AnyElement::Circuit(_) => None,
    }
}
