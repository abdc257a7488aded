//! A rotor: a circuit switch that connects its inputs and outputs by matchings in turns, with a
//! guard interval in which all circuits are dark.
//!
//! A packet waits in the queue of its input and output until their circuit is up. An input sends a
//! packet only if it ends within the day. The element shows how an element follows a [`Timetable`]
//! and how a switch arms timers.
//!
//! Source: Mellette and others, *RotorNet* (SIGCOMM 2017), section 3: matchings that do not depend
//! on demand. Leaves out: a packet network beside the circuits, two-hop routes, queues that change
//! their size, wires (its outputs are ports or hosts). Read [`Rotor`] first.

use crate::EventQueue;
use crate::element::{Cx, Element};
use crate::packet::{Drop, Fifo, PacketId};
use crate::port::{PortError, RATE_MIN};
use crate::target::Target;
use crate::timetable::{Timetable, TimetableError};
use anabranch_units::{BitRate, Duration, RunInstant, Serialiser};

/// The output that each input is connected to; an input beyond the end, or with `None`, is dark.
pub type Matching = Vec<Option<u16>>;

/// Settings of a rotor.
#[derive(Clone, Debug)]
pub struct RotorSettings {
    /// Rate of each circuit; at least [`RATE_MIN`].
    pub rate: BitRate,
    /// Most packets that wait in the queue of one input and output. The packet being sent has left
    /// its queue.
    pub queue_packets_max: u32,
    /// The matchings in turns. A guard interval is an empty matching.
    pub timetable: Timetable<Matching>,
}

impl RotorSettings {
    /// The settings of a rotor of `ports` that connects each two of them for `day` in each period,
    /// after a guard interval of `night`: in turn k, input i is connected to output (i + k + 1) mod
    /// `ports`.
    ///
    /// Errors: fewer than two ports, a day or night without length.
    pub fn strobe(
        ports: u16,
        (day, night): (Duration, Duration),
        rate: BitRate,
        queue_packets_max: u32,
    ) -> Result<Self, TimetableError> {
        let matching = |turn| (0..ports).map(|input| Some((input + turn) % ports)).collect();
        let slots = (1..ports).flat_map(|turn| [(night, Matching::new()), (day, matching(turn))]);
        Ok(Self { rate, queue_packets_max, timetable: Timetable::new(slots.collect())? })
    }
}

/// Why settings are no rotor's.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum RotorError {
    /// A slot connects an output that is not there, or one output twice.
    NoMatching {
        /// The slot's index.
        slot: usize,
        /// The output.
        output: u16,
    },
    /// The rate is below [`RATE_MIN`].
    Rate(PortError),
}

impl std::fmt::Display for RotorError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NoMatching { slot, output } => {
                write!(f, "slot {slot}, output {output}: must be one of the outputs, and connected once")
            }
            Self::Rate(error) => error.fmt(f),
        }
    }
}
impl std::error::Error for RotorError {}

/// Refuses a slot that connects an output that is not there, or one output twice.
pub(crate) fn check(matching: &Matching, slot: usize, ports: usize) -> Result<(), RotorError> {
    let mut is_connected = vec![false; ports];
    for (input, output) in matching.iter().enumerate() {
        let Some(output) = *output else { continue };
        let place = is_connected.get_mut(usize::from(output)).filter(|_| input < ports);
        if place.is_none_or(|place| std::mem::replace(place, true)) {
            return Err(RotorError::NoMatching { slot, output });
        }
    }
    Ok(())
}

/// Token of the timer for the end of a slot.
const SLOT: u32 = 0;
/// Token of the timer for the end of the first input's transmission; the other inputs' follow.
const SENT: u32 = 1;

/// A packet on its way through a circuit.
#[derive(Copy, Clone, Debug)]
struct Sending {
    packet: PacketId,
    output: u16,
    done_at: RunInstant,
}

/// A circuit switch that follows a timetable of matchings.
#[derive(Debug)]
pub struct Rotor {
    settings: RotorSettings,
    serialiser: Serialiser,
    /// The port of each host, by the host's number; `None` for a host without a route.
    port_of: Vec<Option<u16>>,
    /// The targets behind the outputs.
    outputs: Vec<Target>,
    /// The longest day of each input and output, zero without one; in the order of `queues`.
    day_max: Vec<Duration>,
    /// The queue of each input and output, at `input * outputs + output`.
    queues: Vec<Fifo>,
    /// Packets in all queues.
    waiting: u64,
    /// The transmission of each input.
    sending: Vec<Option<Sending>>,
    /// When the timer for the end of a slot is due. `None` while no timer is armed.
    slot_ends_at: Option<RunInstant>,
}

impl Rotor {
    /// A rotor with as many inputs as `outputs`. `port_of` has the input of a packet's `src` and
    /// the output of its `dst`; a packet of a host without a port is dropped.
    ///
    /// Errors: a rate below [`RATE_MIN`], a slot that is no matching of these ports.
    pub fn new(
        port_of: Vec<Option<u16>>,
        outputs: Vec<Target>,
        settings: RotorSettings,
    ) -> Result<Self, RotorError> {
        let ports = outputs.len();
        let rate = settings.rate;
        let serialiser = rate.serialiser().filter(|_| rate >= RATE_MIN);
        let serialiser = serialiser.ok_or(RotorError::Rate(PortError::RateTooLow { rate }))?;
        let mut day_max = vec![Duration::ZERO; ports * ports];
        for (slot, (length, matching)) in settings.timetable.slots().enumerate() {
            check(matching, slot, ports)?;
            for (input, output) in matching.iter().enumerate() {
                let Some(output) = *output else { continue };
                let day = &mut day_max[input * ports + usize::from(output)];
                *day = length.max(*day);
            }
        }
        Ok(Self {
            settings,
            serialiser,
            port_of,
            day_max,
            queues: vec![Fifo::default(); ports * ports],
            waiting: 0,
            sending: vec![None; ports],
            slot_ends_at: None,
            outputs,
        })
    }

    /// A time before which no packet leaves. `None` if the rotor holds no packet.
    pub(crate) fn next_departure(&self) -> Option<RunInstant> {
        self.sending.iter().flatten().map(|sending| sending.done_at).chain(self.slot_ends_at).min()
    }

    /// Begins to send the first packet whose circuit is up, if `input` is idle and the packet ends
    /// within the day.
    fn start<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, input: usize) {
        let slot = self.settings.timetable.at(cx.now());
        let Some(output) = slot.state.get(input).copied().flatten() else { return };
        let queue = &mut self.queues[input * self.outputs.len() + usize::from(output)];
        let Some(packet) = queue.first().filter(|_| self.sending[input].is_none()) else { return };
        let done_at = cx.now() + self.serialiser.time(cx.meta(packet).size_bytes);
        if done_at > slot.ends_at {
            return;
        }
        queue.pop(cx.all_meta());
        self.waiting -= 1;
        self.sending[input] = Some(Sending { packet, output, done_at });
        cx.arm(done_at, SENT + input as u32);
    }

    /// Arms the timer for the end of the slot while packets wait.
    fn await_slot<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>) {
        if self.waiting > 0 && self.slot_ends_at.is_none() {
            let ends_at = self.settings.timetable.at(cx.now()).ends_at;
            self.slot_ends_at = Some(ends_at);
            cx.arm(ends_at, SLOT);
        }
    }
}

impl Element for Rotor {
    fn on_packet<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, p: PacketId) {
        let &mut crate::PacketMeta { src, dst, size_bytes, .. } = cx.meta(p);
        let port = |host: u16| {
            let port = self.port_of.get(usize::from(host)).copied().flatten().map(usize::from);
            port.filter(|port| *port < self.outputs.len())
        };
        let (Some(input), Some(output)) = (port(src), port(dst)) else { return cx.drop(p, Drop::NoRoute) };
        let place = input * self.outputs.len() + output;
        // A packet that fits in no day of its circuit would wait without end.
        if self.day_max[place] < self.serialiser.time(size_bytes) {
            return cx.drop(p, Drop::NoRoute);
        }
        let queue = &mut self.queues[place];
        if queue.packets() >= self.settings.queue_packets_max {
            return cx.drop(p, Drop::QueueFull);
        }
        queue.push(cx.all_meta(), p);
        self.waiting += 1;
        self.start(cx, input);
        self.await_slot(cx);
    }

    fn on_timer<Q: EventQueue>(&mut self, cx: &mut Cx<'_, Q>, token: u32) {
        if token == SLOT {
            self.slot_ends_at = None;
            for input in 0..self.outputs.len() {
                self.start(cx, input);
            }
        } else {
            let input = (token - SENT) as usize;
            let sent = self.sending[input].take().expect("SENT is armed only while the input sends");
            cx.forward(self.outputs[usize::from(sent.output)], sent.packet);
            self.start(cx, input);
        }
        self.await_slot(cx);
    }
}
