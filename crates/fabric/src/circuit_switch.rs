//! A hybrid switch: virtual output queues, which an optical circuit switch and a packet switch
//! drain in turns.
//!
//! Racks are ports, and each pair of racks has one queue. The packet network takes packets from all
//! queues of a source in turns, and has an inner queue of few packets for each pair. A circuit
//! takes packets from its pair's queue alone, at a higher rate, for a day. The packet path of a
//! pair is off during its day and in the night before the day, so that packets of one flow stay in
//! order when the day begins. When the day ends, a packet can overtake earlier packets whose
//! circuit has a longer delay.
//!
//! Without a packet network the switch is a rotor (Mellette et al., *RotorNet*, SIGCOMM 2017,
//! section 3), without its two-hop traffic.
//!
//! Source: Mukerjee, *Eliminating Adverse Control Plane Interactions* (CMU-CS-18-106, 2018), §2.3.2
//! (queues and links), §2.4.2 (sizes that follow the schedule) and §2.4.4 (marks that announce a
//! circuit). Differs: a full queue inside the packet network holds packets back in the pair's
//! queue, where the original program takes them and pushes them back. A packet enters a circuit
//! only if its last bit leaves before the night.
//!
//! Leaves out: the choice of the next timetable ([`CircuitSwitch::handle_timetable`] applies it).
//! Read [`CircuitSwitch`] and [`CircuitSettings`] first.

use crate::EventQueue;
use crate::element::{Cx, Element};
use crate::latency::{CircuitLatency, LatencyMeter, Network};
use crate::packet::{Drop, Fifo, Flag, PacketId, PacketMeta};
use crate::port::{PortError, RATE_MIN};
use crate::target::Target;
use crate::timetable::{Replaceable, Timetable, TimetableError};
use anabranch_units::{BitRate, ByteCount, Duration, RunInstant, Serialiser};

/// Settings of a hybrid switch.
#[derive(Clone, Debug)]
pub struct CircuitSettings {
    /// Rate of each circuit; at least [`RATE_MIN`].
    pub circuit_rate: BitRate,
    /// Delay of a circuit, after the last bit has entered it.
    pub circuit_delay: Duration,
    /// Packet network next to the circuits. With `None`, packets use only their circuits, as in
    /// RotorNet.
    pub packet: Option<PacketNetwork>,
    /// Limits of a pair's queue.
    pub queue: QueueLimits,
    /// Larger limits for a pair whose circuit is up or near. `None` for constant limits.
    pub resize: Option<Resize>,
    /// Time before a circuit from which packets in the opposite direction are marked
    /// ([`Flag::Circuit`]), until the circuit ends (§2.4.4). With `None`, no packets are marked.
    ///
    /// Differs: the thesis marks acknowledgements while the circuit is up. As here, the original
    /// program marks every packet, from a configurable time before the circuit.
    pub mark_ahead: Option<Duration>,
    /// Matchings in turns. A night is a slot in which the ports that change are not connected.
    pub timetable: Timetable<Matching>,
    /// Maximum size of packets that bypass the switch without queue and delay, as in a separate
    /// network for acknowledgements. With `None`, all packets pass through the switch.
    pub around: Option<ByteCount>,
}

/// The packet network of a hybrid switch.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PacketNetwork {
    /// Rate of each rack's link to the packet network, and of the link back; at least [`RATE_MIN`].
    pub rate: BitRate,
    /// Delay of each of these links. The packet network forwards a packet when its first bit
    /// arrives.
    pub delay: Duration,
}

/// Output to which each input is connected. An input with `None`, or beyond the vector's end, is
/// not connected.
pub type Matching = Vec<Option<u16>>;

/// Returns the timetable of matchings by shifts, each for `day` after a night of `night`. A shift
/// by k connects input i to output (i + k) mod `ports`. All shifts from 1 to `ports` - 1 together
/// connect each pair of ports once in a period.
///
/// Errors: no shift, or a day or night of length zero.
pub fn shifts(
    ports: u16,
    by: impl IntoIterator<Item = u16>,
    day: Duration,
    night: Duration,
) -> Result<Timetable<Matching>, TimetableError> {
    let output = |input: u16, shift: u16| ((u32::from(input) + u32::from(shift)) % u32::from(ports)) as u16;
    let matching = |shift| (0..ports).map(|input| Some(output(input, shift))).collect();
    let slots = by.into_iter().flat_map(|shift| [(night, Matching::new()), (day, matching(shift))]);
    Timetable::new(slots.collect())
}

/// Reason why settings are invalid for a hybrid switch.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum CircuitError {
    /// A slot connects an output that does not exist, or one output twice.
    NoMatching {
        /// Index of the slot.
        slot: usize,
        /// Number of the output.
        output: u16,
    },
    /// A rate below [`RATE_MIN`].
    Rate(PortError),
}

impl std::fmt::Display for CircuitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoMatching { slot, output } => {
                write!(f, "slot {slot}, output {output}: must be one of the outputs, and connected once")
            }
            Self::Rate(error) => error.fmt(f),
        }
    }
}
impl std::error::Error for CircuitError {}

/// Returns an error if a slot connects an output that does not exist, or one output twice.
fn check(matching: &Matching, slot: usize, ports: usize) -> Result<(), CircuitError> {
    let mut is_connected = vec![false; ports];
    for (input, output) in matching.iter().enumerate() {
        let Some(output) = *output else { continue };
        let place = is_connected.get_mut(usize::from(output)).filter(|_| input < ports);
        if place.is_none_or(|place| std::mem::replace(place, true)) {
            return Err(CircuitError::NoMatching { slot, output });
        }
    }
    Ok(())
}

/// Returns an error if a slot of a timetable is not a matching of `ports` ports.
fn check_all(timetable: &Timetable<Matching>, ports: usize) -> Result<(), CircuitError> {
    timetable.slots().enumerate().try_for_each(|(slot, (_, matching))| check(matching, slot, ports))
}

/// Adds the days of a timetable to its pairs, which must have no days before.
fn lay_out(pairs: &mut [Pair], ports: usize, timetable: &Timetable<Matching>) {
    let mut begin = Duration::ZERO;
    for (length, matching) in timetable.slots() {
        for (input, output) in matching.iter().enumerate() {
            let Some(output) = output else { continue };
            let pair = &mut pairs[input * ports + usize::from(*output)];
            pair.day_max = pair.day_max.max(length);
            pair.days.push((begin, begin + length));
        }
        begin += length;
    }
}

/// Limits of a queue.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Maximum number of waiting packets.
    pub packets_max: u32,
    /// Maximum bytes of waiting packets. `None` for no limit.
    pub bytes_max: Option<ByteCount>,
    /// Number of packets in the queue from which an arriving packet is marked (ECN), if it is
    /// ECN-capable. With `None`, no packets are marked.
    pub mark_packets: Option<u32>,
}

/// Queue limits that follow the schedule: resize(s, b, tau) of §2.4.2, where s is
/// [`CircuitSettings::queue`].
///
/// The threshold for marks grows in proportion to the limit.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Resize {
    /// Maximum number of waiting packets while the circuit is up or near (b).
    pub packets_max: u32,
    /// Time before the circuit from which the larger limit applies (tau).
    pub ahead: Duration,
    /// True if a queue whose limit shrinks drops the packets beyond the limit, from its tail, as
    /// the original program does. Otherwise the queue keeps them.
    pub drops_excess: bool,
}

/// Number of bytes that have left a hybrid switch through each network.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct CircuitCounters {
    /// Bytes that entered a circuit.
    pub circuit_bytes: u64,
    /// Bytes that entered a rack's link back from the packet network.
    pub packet_bytes: u64,
}

/// Maximum number of packets of one pair inside the packet network, on its link and in its queue.
const INSIDE_MAX: u8 = 3;

/// Timers, each with the number of a port. The value is the upper half of the token.
#[derive(Copy, Clone)]
enum Timer {
    /// When the next slot begins.
    Slot,
    /// When a rack's link to the packet network becomes idle.
    UplinkIdle,
    /// When the first bit of a packet reaches the packet network.
    UplinkArrival,
    /// When a rack's link from the packet network becomes idle.
    DownlinkIdle,
    /// When a packet has left the packet network.
    DownlinkArrival,
    /// When a rack's circuit becomes idle.
    CircuitIdle,
    /// When a packet has left its circuit.
    CircuitArrival,
}

impl Timer {
    const fn token(self, port: usize) -> u32 {
        (self as u32) << 16 | port as u32
    }
}

/// One pair of racks.
#[derive(Clone, Debug, Default)]
struct Pair {
    /// Packets that wait for either network.
    queue: Fifo,
    /// Packets that wait in the inner queue of the packet network.
    inside: Fifo,
    /// Number of packets on the link to the packet network or in `inside`.
    inside_packets: u8,
    /// Longest day of the pair's circuit; zero without a circuit.
    day_max: Duration,
    /// Beginning and end of each day of the pair's circuit within the period, in order.
    days: Vec<(Duration, Duration)>,
}

/// A link, and the wire behind it.
#[derive(Clone, Debug, Default)]
struct Link {
    idle_at: RunInstant,
    /// Packets on the wire, each with the time at which the packet leaves the wire.
    wire: Fifo,
    /// Number of the port from which the round-robin search continues when the link is next idle.
    turn: usize,
}

/// A hybrid switch that follows a timetable of matchings.
///
/// A circuit counts as one link of a packet's path, and the packet network as two
/// ([`PacketMeta::hops`]).
#[derive(Debug)]
pub struct CircuitSwitch {
    settings: CircuitSettings,
    /// Timetable in force. The first one is the timetable of the settings.
    timetable: Replaceable<Matching>,
    circuit_serialiser: Serialiser,
    packet_serialiser: Option<Serialiser>,
    /// Port of each host, by the host's number. `None` for a host without a port.
    port_of: Vec<Option<u16>>,
    /// Target behind each port.
    outputs: Vec<Target>,
    /// Pairs of ports, at index `source * ports + destination`.
    pairs: Vec<Pair>,
    uplinks: Vec<Link>,
    downlinks: Vec<Link>,
    circuits: Vec<Link>,
    /// Number of packets in the queues of all pairs.
    waiting: u64,
    /// Time of the timer for the end of the current slot. `None` while the timer is not armed.
    slot_ends_at: Option<RunInstant>,
    counters: CircuitCounters,
    latencies: LatencyMeter,
}

impl CircuitSwitch {
    /// Creates a switch with as many ports as `outputs`. `port_of` has the port of a packet's `src`
    /// and `dst`. A packet of a host without a port is dropped.
    ///
    /// Errors: a rate below [`RATE_MIN`], a slot that is not a matching of these ports.
    pub fn new(
        port_of: Vec<Option<u16>>,
        outputs: Vec<Target>,
        settings: CircuitSettings,
    ) -> Result<Self, CircuitError> {
        let ports = outputs.len();
        let serialiser = |rate: BitRate| {
            let serialiser = rate.serialiser().filter(|_| rate >= RATE_MIN);
            serialiser.ok_or(CircuitError::Rate(PortError::RateTooLow { rate }))
        };
        let circuit_serialiser = serialiser(settings.circuit_rate)?;
        let packet_serialiser = settings.packet.map(|network| serialiser(network.rate)).transpose()?;
        let mut pairs = vec![Pair::default(); ports * ports];
        check_all(&settings.timetable, ports)?;
        lay_out(&mut pairs, ports, &settings.timetable);
        Ok(Self {
            timetable: Replaceable::new(settings.timetable.clone()),
            settings,
            circuit_serialiser,
            packet_serialiser,
            port_of,
            pairs,
            uplinks: vec![Link::default(); ports],
            downlinks: vec![Link::default(); ports],
            circuits: vec![Link::default(); ports],
            waiting: 0,
            slot_ends_at: None,
            counters: CircuitCounters::default(),
            latencies: LatencyMeter::default(),
            outputs,
        })
    }

    /// Number of bytes that have left through each network.
    pub const fn counters(&self) -> CircuitCounters {
        self.counters
    }

    /// Latency of the data packets that have left through each network.
    pub const fn latency(&self) -> &CircuitLatency {
        self.latencies.latency()
    }

    /// Number of packets that wait in the queue from one port to another.
    pub fn queue_packets(&self, source: usize, destination: usize) -> u32 {
        self.pairs[source * self.outputs.len() + destination].queue.packets()
    }

    /// Number of bytes that wait in the queue from one port to another.
    pub fn queue_bytes(&self, source: usize, destination: usize) -> ByteCount {
        ByteCount::new(self.pairs[source * self.outputs.len() + destination].queue.bytes())
    }

    /// Number of ports.
    pub fn ports(&self) -> usize {
        self.outputs.len()
    }

    /// Schedules `timetable` to replace the current one at the first period that begins at `from`
    /// or later, or at once if that time is `now`. Until then, queue limits look ahead in the
    /// current timetable as if it repeated without end.
    ///
    /// Errors: a slot that is not a matching of these ports; the current timetable then stays.
    pub(crate) fn handle_timetable(
        &mut self,
        now: RunInstant,
        timetable: Timetable<Matching>,
        from: RunInstant,
    ) -> Result<(), CircuitError> {
        check_all(&timetable, self.outputs.len())?;
        self.turn(now);
        self.timetable.replace(now.max(from), timetable);
        self.turn(now);
        Ok(())
    }

    /// Puts the next timetable into force if its first period has begun.
    fn turn(&mut self, now: RunInstant) {
        if !self.timetable.turn(now) {
            return;
        }
        for pair in &mut self.pairs {
            pair.days.clear();
            pair.day_max = Duration::ZERO;
        }
        lay_out(&mut self.pairs, self.outputs.len(), self.timetable.current());
    }

    /// Returns the time of the first armed timer, before which no packet leaves. `None` if the
    /// switch holds no packet.
    pub(crate) fn next_departure(&self, meta: &[PacketMeta], now: RunInstant) -> Option<RunInstant> {
        let links = || self.uplinks.iter().chain(&self.downlinks).chain(&self.circuits);
        let arrivals = links().filter_map(|link| link.wire.first()).map(|p| meta[p.index()].due);
        let idle = links().map(|link| link.idle_at).filter(|at| *at > now);
        arrivals.chain(idle).chain(self.slot_ends_at).min()
    }

    /// Returns the limit of the pair's queue at `now` in packets, and the number of packets from
    /// which an arriving packet is marked.
    fn limits(&self, pair: &Pair, now: RunInstant) -> (u32, Option<u32>) {
        let QueueLimits { packets_max, mark_packets, .. } = self.settings.queue;
        let Some(resize) = self.settings.resize.filter(|resize| self.is_near(pair, now, resize.ahead)) else {
            return (packets_max, mark_packets);
        };
        let scaled = |mark: u32| {
            let mark = u64::from(mark) * u64::from(resize.packets_max) / u64::from(packets_max.max(1));
            u32::try_from(mark).unwrap_or(u32::MAX)
        };
        (resize.packets_max, mark_packets.map(scaled))
    }

    /// Returns true if the pair's circuit is up, or will be up within `ahead`.
    fn is_near(&self, pair: &Pair, now: RunInstant, ahead: Duration) -> bool {
        let period = self.timetable.current().period();
        let into = self.timetable.time_in_period(now);
        let next = pair.days.iter().find(|(_, end)| into < *end).or_else(|| pair.days.first());
        next.is_some_and(|(begin, end)| {
            let begin = if into < *end { *begin } else { *begin + period };
            begin <= into + ahead
        })
    }

    /// Returns true if the pair's packets may take the packet network: not in the pair's day, and
    /// not in the night before that day.
    fn has_packet_path(&self, now: RunInstant, source: usize, destination: usize) -> bool {
        let slot = self.timetable.at(now);
        let joins = |matching: &Matching| matching.get(source).copied().flatten();
        let destination = Some(destination as u16);
        let is_dark = joins(slot.state).is_none();
        joins(slot.state) != destination && !(is_dark && joins(slot.next) == destination)
    }

    /// Sends the next packet of `source` to the packet network, if the rack's link is idle.
    fn start_uplink<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, source: usize) {
        let (Some(serialiser), Some(network)) = (self.packet_serialiser, self.settings.packet) else {
            return;
        };
        let ports = self.outputs.len();
        if self.uplinks[source].idle_at > cx.now() {
            return;
        }
        let turn = self.uplinks[source].turn;
        let found = (turn..ports).chain(0..turn).find(|destination| {
            let pair = &self.pairs[source * ports + destination];
            pair.queue.packets() > 0
                && pair.inside_packets < INSIDE_MAX
                && self.has_packet_path(cx.now(), source, *destination)
        });
        let Some(destination) = found else { return };
        let pair = &mut self.pairs[source * ports + destination];
        let p = pair.queue.pop(cx.all_meta()).expect("the queue was looked at");
        pair.inside_packets += 1;
        self.waiting -= 1;
        let time = serialiser.time(cx.meta(p).size_bytes);
        let due = cx.now() + network.delay;
        let link = &mut self.uplinks[source];
        link.turn = destination + 1;
        link.idle_at = cx.now() + time;
        cx.arm(link.idle_at, Timer::UplinkIdle.token(source));
        Self::put_on_wire(cx, link, p, due, Timer::UplinkArrival.token(source));
    }

    /// Sends the next packet from inside the packet network to `destination`, if the rack's link is
    /// idle.
    fn start_downlink<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, destination: usize) {
        let (Some(serialiser), Some(network)) = (self.packet_serialiser, self.settings.packet) else {
            return;
        };
        let ports = self.outputs.len();
        if self.downlinks[destination].idle_at > cx.now() {
            return;
        }
        let turn = self.downlinks[destination].turn;
        let mut sources = (turn..ports).chain(0..turn);
        let found = sources.find(|source| self.pairs[source * ports + destination].inside.packets() > 0);
        let Some(source) = found else { return };
        let pair = &mut self.pairs[source * ports + destination];
        let p = pair.inside.pop(cx.all_meta()).expect("the queue was looked at");
        pair.inside_packets -= 1;
        let size = cx.meta(p).size_bytes;
        self.counters.packet_bytes += u64::from(size);
        let link = &mut self.downlinks[destination];
        link.turn = source + 1;
        link.idle_at = cx.now() + serialiser.time(size);
        let due = link.idle_at + network.delay;
        cx.arm(link.idle_at, Timer::DownlinkIdle.token(destination));
        Self::put_on_wire(cx, link, p, due, Timer::DownlinkArrival.token(destination));
        self.start_uplink(cx, source);
    }

    /// Sends the next packet of `source` into its circuit, if a circuit is up and the transmission
    /// ends before the night.
    fn start_circuit<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, source: usize) {
        let slot = self.timetable.at(cx.now());
        let Some(destination) = slot.state.get(source).copied().flatten() else { return };
        if self.circuits[source].idle_at > cx.now() {
            return;
        }
        let pair = &mut self.pairs[source * self.outputs.len() + usize::from(destination)];
        let Some(p) = pair.queue.first() else { return };
        let size = cx.meta(p).size_bytes;
        let idle_at = cx.now() + self.circuit_serialiser.time(size);
        if idle_at > slot.ends_at {
            return;
        }
        pair.queue.pop(cx.all_meta());
        self.waiting -= 1;
        self.counters.circuit_bytes += u64::from(size);
        let link = &mut self.circuits[source];
        link.idle_at = idle_at;
        cx.arm(idle_at, Timer::CircuitIdle.token(source));
        let due = idle_at + self.settings.circuit_delay;
        Self::put_on_wire(cx, link, p, due, Timer::CircuitArrival.token(source));
    }

    fn put_on_wire<Q: EventQueue>(
        cx: &mut Cx<'_, Q>,
        link: &mut Link,
        p: PacketId,
        due: RunInstant,
        token: u32,
    ) {
        let meta = cx.meta(p);
        meta.due = due;
        meta.hops = meta.hops.saturating_add(1);
        if link.wire.first().is_none() {
            cx.arm(due, token);
        }
        link.wire.push(cx.all_meta(), p);
    }

    /// Removes the packet that has left a wire, and arms the timer for the next packet.
    fn take_off_wire<Q: EventQueue>(cx: &mut Cx<'_, Q>, link: &mut Link, token: u32) -> PacketId {
        let p = link.wire.pop(cx.all_meta()).expect("an arrival is armed only while the wire holds a packet");
        if let Some(next) = link.wire.first() {
            let due = cx.meta(next).due;
            cx.arm(due, token);
        }
        p
    }

    /// Drops the packets beyond the limit of each queue whose limit has shrunk, if the settings say
    /// so.
    fn drop_excess<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>) {
        if self.settings.resize.is_none_or(|resize| !resize.drops_excess) {
            return;
        }
        for place in 0..self.pairs.len() {
            let (packets_max, _) = self.limits(&self.pairs[place], cx.now());
            let queue = &mut self.pairs[place].queue;
            if queue.packets() <= packets_max {
                continue;
            }
            let mut kept = Fifo::default();
            while let Some(p) = queue.pop(cx.all_meta()) {
                if kept.packets() < packets_max {
                    kept.push(cx.all_meta(), p);
                } else {
                    self.waiting -= 1;
                    cx.drop(p, Drop::QueueFull);
                }
            }
            *queue = kept;
        }
    }

    /// Passes a packet that has left its last wire to `destination`.
    fn leave<Q: EventQueue>(
        &mut self,
        cx: &mut Cx<'_, Q>,
        p: PacketId,
        destination: usize,
        network: Network,
    ) {
        let &mut PacketMeta { src, size_bytes, .. } = cx.meta(p);
        self.latencies.handle_departure(cx.now(), p.index(), size_bytes, network);
        if let Some(source) = self.port(src) {
            self.mark(cx, p, source, destination);
        }
        cx.forward(self.outputs[destination], p);
    }

    /// Marks a packet that leaves in the opposite direction of a circuit that is up or near.
    fn mark<Q: EventQueue>(&self, cx: &mut Cx<'_, Q>, p: PacketId, source: usize, destination: usize) {
        let Some(ahead) = self.settings.mark_ahead else { return };
        let opposite = &self.pairs[destination * self.outputs.len() + source];
        if self.is_near(opposite, cx.now(), ahead) {
            cx.meta(p).set(Flag::Circuit, true);
        }
    }

    /// Arms the timer for the end of the slot if packets wait.
    fn await_slot<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>) {
        if self.waiting > 0 && self.slot_ends_at.is_none() {
            let ends_at = self.timetable.at(cx.now()).ends_at;
            self.slot_ends_at = Some(ends_at);
            cx.arm(ends_at, Timer::Slot.token(0));
        }
    }

    fn port(&self, host: u16) -> Option<usize> {
        let port = self.port_of.get(usize::from(host)).copied().flatten().map(usize::from);
        port.filter(|port| *port < self.outputs.len())
    }
}

impl Element for CircuitSwitch {
    fn on_packet<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId) {
        self.turn(cx.now());
        let &mut PacketMeta { src, dst, size_bytes, .. } = cx.meta(p);
        let (Some(source), Some(destination)) = (self.port(src), self.port(dst)) else {
            return cx.drop(p, Drop::NoRoute);
        };
        let goes_around = self.settings.around.is_some_and(|most| u64::from(size_bytes) <= most.as_u64());
        if source == destination || goes_around {
            self.mark(cx, p, source, destination);
            return cx.forward(self.outputs[destination], p);
        }
        let place = source * self.outputs.len() + destination;
        let pair = &self.pairs[place];
        // A packet that needs longer than any day of its circuit would wait forever.
        if self.settings.packet.is_none() && pair.day_max < self.circuit_serialiser.time(size_bytes) {
            return cx.drop(p, Drop::NoRoute);
        }
        let (packets_max, mark_packets) = self.limits(pair, cx.now());
        let bytes = pair.queue.bytes() + u64::from(size_bytes);
        let bytes_max = self.settings.queue.bytes_max;
        if pair.queue.packets() >= packets_max || bytes_max.is_some_and(|max| bytes > max.as_u64()) {
            return cx.drop(p, Drop::QueueFull);
        }
        let is_marked = mark_packets.is_some_and(|mark| pair.queue.packets() >= mark);
        let meta = cx.meta(p);
        if is_marked && meta.has(Flag::Ect) {
            meta.set(Flag::Ce, true);
        }
        self.latencies.handle_arrival(cx.now(), p.index());
        self.pairs[place].queue.push(cx.all_meta(), p);
        self.waiting += 1;
        self.start_circuit(cx, source);
        self.start_uplink(cx, source);
        self.await_slot(cx);
    }

    fn on_timer<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, token: u32) {
        self.turn(cx.now());
        let port = (token & 0xffff) as usize;
        match token >> 16 {
            timer if timer == Timer::Slot as u32 => {
                self.slot_ends_at = None;
                self.drop_excess(cx);
                for source in 0..self.outputs.len() {
                    self.start_circuit(cx, source);
                    self.start_uplink(cx, source);
                }
            }
            timer if timer == Timer::UplinkIdle as u32 => self.start_uplink(cx, port),
            timer if timer == Timer::UplinkArrival as u32 => {
                let p = Self::take_off_wire(cx, &mut self.uplinks[port], token);
                let dst = cx.meta(p).dst;
                let destination = self.port(dst).expect("packets without a port are dropped on arrival");
                self.pairs[port * self.outputs.len() + destination].inside.push(cx.all_meta(), p);
                self.start_downlink(cx, destination);
            }
            timer if timer == Timer::DownlinkIdle as u32 => self.start_downlink(cx, port),
            timer if timer == Timer::DownlinkArrival as u32 => {
                let p = Self::take_off_wire(cx, &mut self.downlinks[port], token);
                self.leave(cx, p, port, Network::Packet);
            }
            timer if timer == Timer::CircuitIdle as u32 => self.start_circuit(cx, port),
            _ => {
                let p = Self::take_off_wire(cx, &mut self.circuits[port], token);
                let dst = cx.meta(p).dst;
                let destination = self.port(dst).expect("packets without a port are dropped on arrival");
                self.leave(cx, p, destination, Network::Circuit);
            }
        }
        self.await_slot(cx);
    }
}
