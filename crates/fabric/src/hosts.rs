//! Hosts: protocol machines at the edge of a fabric, and the user of these machines.
//!
//! A [`Hosts`] is a [`Node`] in which all hosts of a network stand: it carries messages between [`Endpoint`]s as packets,
//! keeps their deadlines, and hands their events to a [`User`] (a workload, a system). Machines know each other by
//! [`PeerId`], which here is an index into one arena, so that an arriving packet finds its machine without a search.
//!
//! A deadline that only moves later pushes no event: the event that stands goes off, finds that nothing is due, and is set
//! anew. Between machines and network may stand a [`Layer`]. Leaves out: the meaning of messages. Read [`Hosts`] and [`User`] first.

use std::collections::VecDeque;

use anabranch_endpoint::{Endpoint, Message as _, PeerId, Transmit};
use anabranch_units::{ByteCount, Duration, Instant, RandomStream};

use crate::EventQueue;
use crate::fabric::{Node, NodeCx};
use crate::layer::{Envelope, Layer, LayerCx, LayerWork, Layered};
use crate::packet::{Flag, PacketMeta};
use crate::target::Target;

/// The user of the machines of a [`Hosts`]: opens them, gives them work, and hears their events.
pub trait User {
    /// The machines.
    type End: Endpoint;
    /// The machine `end` reports something.
    fn on_event(
        &mut self,
        cx: &mut HostsCx<'_, Self::End>,
        end: PeerId,
        event: <Self::End as Endpoint>::Event,
    );
    /// A timer that this user armed goes off.
    fn on_timer(&mut self, cx: &mut HostsCx<'_, Self::End>, token: u32);
}

/// A place for a machine. Its host and flow stay known after the machine is gone, until another takes the place.
struct Place<E: Endpoint> {
    host: u16,
    priority: u8,
    is_touched: bool,
    flow: u32,
    /// Where its packets go.
    door: Target,
    /// What its flow has to send in all, where that was said.
    flow_size: Option<ByteCount>,
    /// When the event that counts goes off; others that were armed before are stale.
    armed_at: Option<Instant>,
    endpoint: Option<E>,
    /// Messages whose time has not come (pacing), and those behind them.
    held: VecDeque<Transmit<E::Msg>>,
}

/// The machines by id, with free places.
struct Ends<E: Endpoint> {
    places: Vec<Place<E>>,
    free: Vec<PeerId>,
    /// Where each host's packets go, by host.
    doors: Vec<Target>,
    /// Machines that were given work and not polled since.
    touched: Vec<PeerId>,
}

impl<E: Endpoint> Ends<E> {
    fn touch(&mut self, id: PeerId) {
        if !std::mem::replace(&mut self.places[id.index()].is_touched, true) {
            self.touched.push(id);
        }
    }
}

/// The actions of a user while it handles an event.
pub struct HostsCx<'a, E: Endpoint> {
    now: Instant,
    ends: &'a mut Ends<E>,
    timers: &'a mut Vec<(Instant, u32)>,
}

impl<E: Endpoint> HostsCx<'_, E> {
    /// The fabric's time.
    pub const fn now(&self) -> Instant {
        self.now
    }
    /// Makes a place for a machine on `host`, so that others can name it before it is there. Its packets belong to `flow` and
    /// have `priority`; a packet of another flow that comes is a stray, for an earlier machine of this place.
    pub fn reserve(&mut self, host: u16, flow: u32, priority: u8) -> PeerId {
        self.reserve_via(self.ends.doors[usize::from(host)], host, flow, priority)
    }
    /// The same for a machine whose packets leave by a way of their own: `door` is the port of one of its host's links.
    pub fn reserve_via(&mut self, door: Target, host: u16, flow: u32, priority: u8) -> PeerId {
        let place = Place {
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
    /// Says what a flow has to send in all, for a layer that wants to know: of the place of either end.
    pub fn note_flow_size(&mut self, id: PeerId, size: Option<ByteCount>) {
        self.ends.places[id.index()].flow_size = size;
    }
    /// Puts a machine at a place that was reserved.
    pub fn place(&mut self, id: PeerId, endpoint: E) {
        self.ends.places[id.index()].endpoint = Some(endpoint);
        self.ends.touch(id);
    }
    /// Takes a machine away, whatever it was doing, and returns it; none if it was gone.
    pub fn remove(&mut self, id: PeerId) -> Option<E> {
        let place = &mut self.ends.places[id.index()];
        let endpoint = place.endpoint.take()?;
        place.held.clear();
        self.ends.free.push(id);
        Some(endpoint)
    }
    /// A machine, to read; none if it was removed.
    pub fn end(&self, id: PeerId) -> Option<&E> {
        self.ends.places.get(id.index())?.endpoint.as_ref()
    }
    /// A machine, to give it work; it is polled afterwards. None if it was removed.
    pub fn end_mut(&mut self, id: PeerId) -> Option<&mut E> {
        self.ends.touch(id);
        self.ends.places[id.index()].endpoint.as_mut()
    }
    /// The flow of a machine.
    ///
    /// Panics: if there never was one of this id.
    pub fn flow(&self, id: PeerId) -> u32 {
        self.ends.places[id.index()].flow
    }
    /// Asks for `on_timer(token)` at `at`, which is not before now.
    ///
    /// Panics: in a debug build, for a token of 2^31 or more.
    pub fn arm(&mut self, at: Instant, token: u32) {
        debug_assert!(token < USER, "the highest bit of a token says whose it is");
        self.timers.push((at, token));
    }
}

/// Says of a token that it is the user's.
const USER: u32 = 1 << 31;
/// Says of a token that it is the layer's.
const LAYER: u32 = 1 << 30;

/// All hosts of a network, as one node of its fabric. Switches name hosts by `dst`; every host's packets are delivered to
/// this node.
pub struct Hosts<U: User> {
    ends: Ends<U::End>,
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
    /// Hosts without machines. The packets that host `h` sends go to `doors[h]`, its port or its site's switch, unless a
    /// machine has a way of its own.
    pub const fn new(doors: Vec<Target>, user: U) -> Self {
        let ends = Ends { places: Vec::new(), free: Vec::new(), doors, touched: Vec::new() };
        Self { ends, user, timers: Vec::new(), strays: 0, jitter: None, layer: None, work: LayerWork::new() }
    }
    /// The same hosts with a layer between their machines and the network.
    #[must_use]
    pub fn with_layer(mut self, layer: Option<BoxedLayer<U>>) -> Self {
        self.layer = layer;
        self
    }
    /// What their layer has counted, by name; nothing without one.
    pub fn layer_figures(&self) -> Vec<(&'static str, f64)> {
        self.layer.as_ref().map(|layer| layer.figures()).unwrap_or_default()
    }
    /// The same hosts, which take a random time up to `max` to send each packet, in order.
    ///
    /// Without it, flows that are clocked by one bottleneck keep in step to the picosecond, and a full queue may then refuse
    /// one of them every time. A random time up to that of one packet at the bottleneck ends that.
    /// Source: Floyd and Jacobson, *On traffic phase effects in packet-switched gateways* (1992), section 5.
    pub fn with_jitter(mut self, max: Duration, random: RandomStream) -> Self {
        self.jitter = (max > Duration::ZERO).then_some((max, random));
        self
    }
    /// The user of the machines.
    pub const fn user(&self) -> &U {
        &self.user
    }
    /// A machine, to read; none if it was removed.
    pub fn end(&self, id: PeerId) -> Option<&U::End> {
        self.ends.places.get(id.index())?.endpoint.as_ref()
    }
    /// How many machines there are.
    pub fn len(&self) -> usize {
        self.ends.places.len() - self.ends.free.len()
    }
    /// True without a machine.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// Packets that came for a machine that was gone.
    pub const fn strays(&self) -> u64 {
        self.strays
    }
    /// The token for a fabric's `arm` with which the user's `on_timer` gets `token`; a run's first events are made so.
    pub const fn user_token(token: u32) -> u32 {
        token | USER
    }

    /// Polls `id`, then whoever was given work meanwhile, until nothing is left to do at this instant.
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

    /// Apart, so that packets without a layer are not moved for it.
    #[inline(never)]
    fn send_layered<Q: EventQueue>(
        &mut self,
        cx: &mut NodeCx<'_, Body<U>, Q>,
        meta: PacketMeta,
        body: Body<U>,
    ) {
        let flow_size = self.ends.places[body.from.index()].flow_size;
        let packet = Layered { meta, envelope: body, flow_size };
        self.in_layer(cx, |layer, cx| layer.handle_leaving(cx, packet));
    }

    #[inline(never)]
    fn take_layered<Q: EventQueue>(
        &mut self,
        cx: &mut NodeCx<'_, Body<U>, Q>,
        meta: PacketMeta,
        body: Body<U>,
    ) {
        let packet = Layered { meta, envelope: body, flow_size: None };
        self.in_layer(cx, |layer, cx| layer.handle_arrived(cx, packet));
        self.deliver(cx);
    }

    /// Has the layer, if there is one, do something, and sends what it sends. What it delivers stays in its work.
    fn in_layer<Q: EventQueue>(
        &mut self,
        cx: &mut NodeCx<'_, Body<U>, Q>,
        act: impl FnOnce(&mut BoxedLayer<U>, &mut LayerCx<'_, <U::End as Endpoint>::Msg>),
    ) {
        let Some(layer) = &mut self.layer else { return };
        act(layer, &mut LayerCx { now: cx.now(), work: &mut self.work });
        for Layered { meta, envelope, .. } in self.work.leaving.drain(..) {
            // What was held may outlive its machine, whose place another host's may have by now.
            let place = self.ends.places.get(envelope.from.index()).filter(|place| place.host == meta.src);
            let door = place.map_or(self.ends.doors[usize::from(meta.src)], |place| place.door);
            cx.send(door, meta, envelope);
        }
        for (at, token) in self.work.timers.drain(..) {
            cx.arm(at, token | LAYER);
        }
    }

    /// Gives machines what the layer has delivered.
    fn deliver<Q: EventQueue>(&mut self, cx: &mut NodeCx<'_, Body<U>, Q>) {
        // What a machine sends while it takes a packet passes the layer, which delivers nothing then.
        let mut arrived = std::mem::take(&mut self.work.arrived);
        for Layered { meta, envelope, .. } in arrived.drain(..) {
            self.take(cx, meta, envelope);
        }
        debug_assert!(self.work.arrived.is_empty(), "a layer delivers only what has come");
        self.work.arrived = arrived;
    }

    /// Gives a packet to its machine.
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

/// What a packet of these hosts carries.
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
