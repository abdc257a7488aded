//! Hosts: protocol machines at the edge of a fabric, and the user of these machines.
//!
//! A [`Hosts`] is a [`Node`] for all hosts of a network. It carries messages between [`Endpoint`]s
//! as packets, keeps their deadlines, and passes their events to a [`User`] (a workload, a system).
//! Machines are identified by [`PeerId`], an index into one arena, so that an arriving packet finds
//! its machine without a search.
//!
//! A deadline that moves later adds no event: the existing event expires before the deadline, and
//! the timer is then set again. A [`Layer`] may be inserted between machines and network. Leaves
//! out: the meaning of messages. Read [`Hosts`] and [`User`] first.

use std::collections::VecDeque;

use anabranch_endpoint::{Endpoint, Message as _, PeerId, Transmit};
use anabranch_units::{ByteCount, Duration, Instant, RandomStream};

use crate::EventQueue;
use crate::fabric::{Node, NodeCx};
use crate::layer::{Envelope, Layer, LayerCx, LayerWork, LayeredPacket};
use crate::packet::{Flag, PacketMeta};
use crate::target::Target;

/// The user of the machines of a [`Hosts`]: it opens machines, gives them work, and handles their
/// events.
pub trait User {
    /// Type of the machines.
    type End: Endpoint;
    /// Handles an event of machine `end`.
    fn on_event(
        &mut self,
        cx: &mut HostsCx<'_, Self::End>,
        end: PeerId,
        event: <Self::End as Endpoint>::Event,
    );
    /// Handles an expired timer of this user.
    fn on_timer(&mut self, cx: &mut HostsCx<'_, Self::End>, token: u32);
}

/// A slot for a machine. The slot's host and flow stay known after the machine is removed, until
/// the slot is reused.
struct EndpointSlot<E: Endpoint> {
    host: u16,
    priority: u8,
    is_touched: bool,
    flow: u32,
    /// First element that the machine's packets enter.
    door: Target,
    /// Total bytes of the machine's flow, if announced.
    flow_size: Option<ByteCount>,
    /// Time of the valid timer event. Events that were armed before are stale.
    armed_at: Option<Instant>,
    endpoint: Option<E>,
    /// Messages that pacing delays, and the messages behind them.
    held: VecDeque<Transmit<E::Msg>>,
}

/// The machines by id, with free slots.
struct Endpoints<E: Endpoint> {
    places: Vec<EndpointSlot<E>>,
    free: Vec<PeerId>,
    /// First element that the packets of each host enter, by host.
    doors: Vec<Target>,
    /// Machines that have received work since they were last polled.
    touched: Vec<PeerId>,
}

impl<E: Endpoint> Endpoints<E> {
    fn touch(&mut self, id: PeerId) {
        if !std::mem::replace(&mut self.places[id.index()].is_touched, true) {
            self.touched.push(id);
        }
    }
}

/// The actions of a user while it handles an event.
pub struct HostsCx<'a, E: Endpoint> {
    now: Instant,
    ends: &'a mut Endpoints<E>,
    timers: &'a mut Vec<(Instant, u32)>,
}

impl<E: Endpoint> HostsCx<'_, E> {
    /// The fabric's time.
    pub const fn now(&self) -> Instant {
        self.now
    }
    /// Reserves a slot for a machine on `host`, so that the machine has an id before it exists. Its
    /// packets belong to `flow` and have `priority`. An arriving packet of another flow belongs to
    /// an earlier machine of the slot, and counts as a stray.
    pub fn reserve(&mut self, host: u16, flow: u32, priority: u8) -> PeerId {
        self.reserve_via(self.ends.doors[usize::from(host)], host, flow, priority)
    }
    /// Reserves a slot for a machine whose packets enter at `door`, the port of one of its host's
    /// links.
    pub fn reserve_via(&mut self, door: Target, host: u16, flow: u32, priority: u8) -> PeerId {
        let place = EndpointSlot {
            host,
            priority,
            is_touched: false,
            flow,
            door,
            flow_size: None,
            armed_at: None,
            endpoint: None,
            held: VecDeque::new(),
        };
        match self.ends.free.pop() {
            Some(id) => {
                self.ends.places[id.index()] = place;
                id
            }
            None => {
                self.ends.places.push(place);
                PeerId(self.ends.places.len() as u32 - 1)
            }
        }
    }
    /// Announces the total bytes of a flow to the layer. `id` is the machine at either end.
    pub fn note_flow_size(&mut self, id: PeerId, size: Option<ByteCount>) {
        self.ends.places[id.index()].flow_size = size;
    }
    /// Puts a machine into a reserved slot.
    pub fn place(&mut self, id: PeerId, endpoint: E) {
        self.ends.places[id.index()].endpoint = Some(endpoint);
        self.ends.touch(id);
    }
    /// Removes and returns a machine; `None` if it was already removed.
    pub fn remove(&mut self, id: PeerId) -> Option<E> {
        let place = &mut self.ends.places[id.index()];
        let endpoint = place.endpoint.take()?;
        place.held.clear();
        self.ends.free.push(id);
        Some(endpoint)
    }
    /// Returns a machine for reading; `None` if it was removed.
    pub fn end(&self, id: PeerId) -> Option<&E> {
        self.ends.places.get(id.index())?.endpoint.as_ref()
    }
    /// Returns a machine, to give it work. The machine is polled afterwards. `None` if it was
    /// removed.
    pub fn end_mut(&mut self, id: PeerId) -> Option<&mut E> {
        self.ends.touch(id);
        self.ends.places[id.index()].endpoint.as_mut()
    }
    /// The flow of a machine.
    ///
    /// Panics: if there never was a machine with this id.
    pub fn flow(&self, id: PeerId) -> u32 {
        self.ends.places[id.index()].flow
    }
    /// Schedules `on_timer(token)` at `at`, which must not be in the past.
    ///
    /// Panics: in a debug build, if the token is 2^31 or more.
    pub fn arm(&mut self, at: Instant, token: u32) {
        debug_assert!(token < USER, "the highest bit of a token says whose it is");
        self.timers.push((at, token));
    }
}

/// Bit that marks the user's tokens.
const USER: u32 = 1 << 31;
/// Bit that marks the layer's tokens.
const LAYER: u32 = 1 << 30;

/// All hosts of a network, as one node of its fabric. Switches identify hosts by `dst`, and the
/// packets of every host are delivered to this node.
pub struct Hosts<U: User> {
    ends: Endpoints<U::End>,
    user: U,
    timers: Vec<(Instant, u32)>,
    strays: u64,
    jitter: Option<(Duration, RandomStream)>,
    layer: Option<BoxedLayer<U>>,
    work: LayerWork<<U::End as Endpoint>::Msg>,
}

/// A layer for the machines of this user.
type BoxedLayer<U> = Box<dyn Layer<<<U as User>::End as Endpoint>::Msg>>;

impl<U: User> Hosts<U> {
    /// Creates hosts without machines. Packets from host `h` enter at `doors[h]`, its port or its
    /// site's switch, unless the machine was reserved with another door.
    pub const fn new(doors: Vec<Target>, user: U) -> Self {
        let ends = Endpoints { places: Vec::new(), free: Vec::new(), doors, touched: Vec::new() };
        Self { ends, user, timers: Vec::new(), strays: 0, jitter: None, layer: None, work: LayerWork::new() }
    }
    /// Returns the same hosts with a layer between their machines and the network.
    #[must_use]
    pub fn with_layer(mut self, layer: Option<BoxedLayer<U>>) -> Self {
        self.layer = layer;
        self
    }
    /// Counters of the layer, by name; empty without a layer.
    pub fn layer_figures(&self) -> Vec<(&'static str, f64)> {
        self.layer.as_ref().map(|layer| layer.figures()).unwrap_or_default()
    }
    /// Returns the same hosts with a random delay of up to `max` before each packet's departure.
    /// The order of packets is kept.
    ///
    /// Without this delay, flows clocked by one bottleneck stay synchronised to the picosecond, and
    /// a full queue may refuse the same flow every time. A random delay of up to a packet's
    /// transmission time at the bottleneck prevents that. Source: Floyd and Jacobson, *On traffic
    /// phase effects in packet-switched gateways* (1992), section 5.
    pub fn with_jitter(mut self, max: Duration, random: RandomStream) -> Self {
        self.jitter = (max > Duration::ZERO).then_some((max, random));
        self
    }
    /// The user of the machines.
    pub const fn user(&self) -> &U {
        &self.user
    }
    /// Returns a machine for reading; `None` if it was removed.
    pub fn end(&self, id: PeerId) -> Option<&U::End> {
        self.ends.places.get(id.index())?.endpoint.as_ref()
    }
    /// Number of machines.
    pub fn len(&self) -> usize {
        self.ends.places.len() - self.ends.free.len()
    }
    /// Returns true if there is no machine.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Number of packets that arrived for a removed machine.
    pub const fn strays(&self) -> u64 {
        self.strays
    }
    /// Returns the token for a fabric's `arm` with which the user's `on_timer` receives `token`.
    /// Used for the first events of a run.
    pub const fn user_token(token: u32) -> u32 {
        token | USER
    }

    /// Polls `id`, then each machine that has received work in the meantime, until no machine has
    /// work at this instant.
    #[inline]
    fn settle<Q: EventQueue>(&mut self, cx: &mut NodeCx<'_, Body<U>, Q>, id: Option<PeerId>) {
        if let Some(id) = id {
            self.poll(cx, id);
        }
        let mut next = 0;
        while let Some(&id) = self.ends.touched.get(next) {
            next += 1;
            self.poll(cx, id);
        }
        self.ends.touched.clear();
        for (at, token) in self.timers.drain(..) {
            cx.arm(at, token | USER);
        }
    }

    #[inline]
    fn poll<Q: EventQueue>(&mut self, cx: &mut NodeCx<'_, Body<U>, Q>, id: PeerId) {
        let now = cx.now();
        self.ends.places[id.index()].is_touched = false;
        self.send_held(cx, id);
        loop {
            let place = &mut self.ends.places[id.index()];
            let Some(mut transmit) = place.endpoint.as_mut().and_then(|e| e.poll_transmit(now)) else {
                break;
            };
            if let Some((max, random)) = &mut self.jitter {
                let at =
                    transmit.not_before.unwrap_or(now) + Duration::from_ps(random.below(max.as_ps() + 1));
                transmit.not_before = Some(at);
            }
            if place.held.is_empty() && transmit.not_before.is_none_or(|at| at <= now) {
                self.send(cx, id, transmit);
            } else {
                place.held.push_back(transmit);
            }
        }
        while let Some(event) = self.ends.places[id.index()].endpoint.as_mut().and_then(Endpoint::poll_event)
        {
            let mut user_cx = HostsCx { now, ends: &mut self.ends, timers: &mut self.timers };
            self.user.on_event(&mut user_cx, id, event);
        }
        let place = &mut self.ends.places[id.index()];
        let deadline = place.endpoint.as_ref().and_then(Endpoint::poll_timeout);
        let paced = place.held.front().and_then(|transmit| transmit.not_before);
        if let Some(due) = deadline.into_iter().chain(paced).min()
            && place.armed_at.is_none_or(|at| due < at)
        {
            let at = due.max(now);
            place.armed_at = Some(at);
            cx.arm(at, id.0);
        }
    }

    fn send_held<Q: EventQueue>(&mut self, cx: &mut NodeCx<'_, Body<U>, Q>, id: PeerId) {
        let now = cx.now();
        while self.ends.places[id.index()]
            .held
            .front()
            .is_some_and(|t| t.not_before.is_none_or(|at| at <= now))
        {
            let transmit = self.ends.places[id.index()].held.pop_front().expect("there is a first one");
            self.send(cx, id, transmit);
        }
    }

    #[inline]
    fn send<Q: EventQueue>(
        &mut self,
        cx: &mut NodeCx<'_, Body<U>, Q>,
        from: PeerId,
        transmit: Transmit<<U::End as Endpoint>::Msg>,
    ) {
        let Transmit { to, msg, .. } = transmit;
        let (here, there) = (&self.ends.places[from.index()], &self.ends.places[to.index()]);
        let mut meta = PacketMeta::new(here.host, there.host, msg.wire_len());
        (meta.flow, meta.priority) = (here.flow, here.priority);
        meta.set(Flag::Ect, msg.is_ect());
        if self.layer.is_none() {
            return cx.send(here.door, meta, Envelope { from, to, msg, label: None });
        }
        self.send_layered(cx, meta, Envelope { from, to, msg, label: None });
    }

    /// Not inlined, so that packets without a layer are not moved for the call.
    #[inline(never)]
    fn send_layered<Q: EventQueue>(
        &mut self,
        cx: &mut NodeCx<'_, Body<U>, Q>,
        meta: PacketMeta,
        body: Body<U>,
    ) {
        let flow_size = self.ends.places[body.from.index()].flow_size;
        let packet = LayeredPacket { meta, envelope: body, flow_size };
        self.in_layer(cx, |layer, cx| layer.handle_leaving(cx, packet));
    }

    #[inline(never)]
    fn take_layered<Q: EventQueue>(
        &mut self,
        cx: &mut NodeCx<'_, Body<U>, Q>,
        meta: PacketMeta,
        body: Body<U>,
    ) {
        let packet = LayeredPacket { meta, envelope: body, flow_size: None };
        self.in_layer(cx, |layer, cx| layer.handle_arrived(cx, packet));
        self.deliver(cx);
    }

    /// Calls the layer, if there is one, and sends its packets. Delivered packets stay in the
    /// layer's work list.
    fn in_layer<Q: EventQueue>(
        &mut self,
        cx: &mut NodeCx<'_, Body<U>, Q>,
        act: impl FnOnce(&mut BoxedLayer<U>, &mut LayerCx<'_, <U::End as Endpoint>::Msg>),
    ) {
        let Some(layer) = &mut self.layer else { return };
        act(layer, &mut LayerCx { now: cx.now(), work: &mut self.work });
        for LayeredPacket { meta, envelope, .. } in self.work.leaving.drain(..) {
            // A held packet may leave after its machine was removed, and the slot may then belong
            // to a machine of another host.
            let place = self.ends.places.get(envelope.from.index()).filter(|place| place.host == meta.src);
            let door = place.map_or(self.ends.doors[usize::from(meta.src)], |place| place.door);
            cx.send(door, meta, envelope);
        }
        for (at, token) in self.work.timers.drain(..) {
            cx.arm(at, token | LAYER);
        }
    }

    /// Passes packets delivered by the layer to machines.
    fn deliver<Q: EventQueue>(&mut self, cx: &mut NodeCx<'_, Body<U>, Q>) {
        // If a machine sends packets while it handles a packet, its packets pass the layer, which
        // does not deliver packets during that call.
        let mut arrived = std::mem::take(&mut self.work.arrived);
        for LayeredPacket { meta, envelope, .. } in arrived.drain(..) {
            self.take(cx, meta, envelope);
        }
        debug_assert!(self.work.arrived.is_empty(), "a layer delivers only what has come");
        self.work.arrived = arrived;
    }

    /// Passes a packet to its machine.
    #[inline]
    fn take<Q: EventQueue>(&mut self, cx: &mut NodeCx<'_, Body<U>, Q>, meta: PacketMeta, body: Body<U>) {
        let place = &mut self.ends.places[body.to.index()];
        let Some(endpoint) = place.endpoint.as_mut().filter(|_| place.flow == meta.flow) else {
            self.strays += 1;
            return;
        };
        let Envelope { from, to, mut msg, .. } = body;
        if meta.has(Flag::Ce) {
            msg.mark_ce();
        }
        if meta.has(Flag::Circuit) {
            msg.mark_circuit();
        }
        endpoint.handle_message(cx.now(), from, msg);
        self.settle(cx, Some(to));
    }
}

/// Body of the packets of these hosts.
type Body<U> = Envelope<<<U as User>::End as Endpoint>::Msg>;

impl<U: User> Node for Hosts<U> {
    type Body = Body<U>;

    #[inline]
    fn on_packet<Q: EventQueue>(
        &mut self,
        cx: &mut NodeCx<'_, Self::Body, Q>,
        meta: PacketMeta,
        body: Self::Body,
    ) {
        if self.layer.is_none() {
            return self.take(cx, meta, body);
        }
        self.take_layered(cx, meta, body);
    }

    #[inline]
    fn on_timer<Q: EventQueue>(&mut self, cx: &mut NodeCx<'_, Self::Body, Q>, token: u32) {
        let now = cx.now();
        if token & USER != 0 {
            let mut user_cx = HostsCx { now, ends: &mut self.ends, timers: &mut self.timers };
            self.user.on_timer(&mut user_cx, token & !USER);
            return self.settle(cx, None);
        }
        if token & LAYER != 0 {
            self.in_layer(cx, |layer, cx| layer.handle_timeout(cx, token & !LAYER));
            return self.deliver(cx);
        }
        let id = PeerId(token);
        let place = &mut self.ends.places[id.index()];
        if place.armed_at != Some(now) {
            return;
        }
        place.armed_at = None;
        if let Some(endpoint) = place.endpoint.as_mut()
            && endpoint.poll_timeout().is_some_and(|due| due <= now)
        {
            endpoint.handle_timeout(now);
        }
        self.settle(cx, Some(id));
    }
}
