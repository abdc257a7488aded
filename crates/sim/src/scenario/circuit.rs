//! A hybrid switch of circuits and packets: the table `[circuit]`.
//!
//! ```toml
//! [network]
//! topology = "leaf-spine"
//! tors = 8
//! spines = 1
//! hosts = 16
//! rate = "10 Gbit/s"
//! uplink_rate = "1 Tbit/s"
//! uplink_delay = "0 s"
//! [circuit]
//! switch = "spine0"
//! day = "180 us"
//! night = "20 us"
//! ```
//!
//! Leaves out: the switch itself ([`anabranch_fabric::CircuitSwitch`]), and the schedulers (which
//! systems have). Read [`CircuitSpec`] first.

use super::read::InvalidSetting;
use anabranch_fabric::{
    CircuitSettings, Matching, PacketNetwork, PortError, PortSettings, QueueLimits, Resize, Timetable, shifts,
};
use anabranch_units::{BitRate, ByteCount, Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum number of racks of a hybrid switch, which keeps a queue for each pair of racks.
const RACKS_MAX: usize = 1024;

/// A switch whose links lead to racks, which circuits connect in turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CircuitSpec {
    /// Name of the switch in the topology. Its links, in their order, lead to racks 0, 1 and so on.
    pub switch: String,
    /// Time for which a matching is connected.
    #[serde(default = "day")]
    pub day: Duration,
    /// Time before each day in which no circuit is up.
    #[serde(default = "night")]
    pub night: Duration,
    /// Circuits that are dark in a night.
    #[serde(default)]
    pub dark: Dark,
    /// Days that a scheduler decides for each week, instead of equal days that repeat. `day` is
    /// then the minimum length of a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleSpec>,
    /// Matchings in turns: each number k connects rack i to rack i + k, modulo the number of racks.
    /// By default all numbers in order, so that each pair has one day in a period.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shifts: Option<Vec<u16>>,
    /// Matchings in turns, in place of `shifts`: entry i of a matching is the rack to which rack i
    /// sends. A rack without a circuit has its own number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matchings: Option<Vec<Vec<u16>>>,
    /// Rate of a circuit.
    #[serde(default = "circuit_rate")]
    pub rate: BitRate,
    /// Delay of a circuit.
    #[serde(default = "circuit_delay")]
    pub delay: Duration,
    /// Rate of each rack's link to the packet network, and of the link back. `packet = false`
    /// removes the packet network.
    #[serde(default = "packet_rate")]
    pub packet_rate: BitRate,
    /// Delay of each link to and from the packet network.
    #[serde(default = "packet_delay")]
    pub packet_delay: Duration,
    /// True if there is a packet network next to the circuits.
    #[serde(default = "yes")]
    pub packet: bool,
    /// Maximum number of packets queued per pair of racks (s).
    #[serde(default = "queue_packets")]
    pub queue_packets: u32,
    /// Maximum bytes queued per pair of racks, if limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<ByteCount>,
    /// Queue length in packets from which arriving packets are marked (ECN).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark_packets: Option<u32>,
    /// Queue limits that follow the schedule. By default the limit is constant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<ResizeSpec>,
    /// Maximum size of packets that bypass the switch, without queue and delay. By default no
    /// packet bypasses the switch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub around: Option<ByteCount>,
    /// Time before a circuit from which acknowledgements of its flows are marked, until the circuit
    /// ends. With 0 s they are marked only while the circuit is up. By default no packet is marked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark_ahead: Option<Duration>,
}

/// Circuits that are dark in a night.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Dark {
    /// All circuits.
    #[default]
    All,
    /// Circuits that move. A circuit of both days beside the night stays up.
    Moving,
}

/// A larger queue limit for a pair of racks whose circuit is up or near.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeSpec {
    /// Maximum number of packets queued in that time (b).
    pub packets: u32,
    /// Time before a circuit from which the larger limit applies (tau).
    pub ahead: Duration,
    /// True if a queue whose limit shrinks drops the packets beyond the limit.
    #[serde(default)]
    pub drops: bool,
}

/// Circuits that follow demand: the loop of estimate, schedule and switch (the thesis, §2.2.2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    /// Name of the scheduler, from the system's list.
    pub scheduler: String,
    /// Source of the demand estimate.
    #[serde(default)]
    pub demand: DemandSource,
    /// Demand of a pair in bytes from which the pair counts as large.
    #[serde(default = "threshold")]
    pub threshold: ByteCount,
    /// Total time of all days and nights of a week.
    #[serde(default = "window")]
    pub window: Duration,
    /// Time from an estimate to the beginning of the week that is based on it.
    #[serde(default = "decision")]
    pub decision: Duration,
}

/// Source of the estimate of demand between racks.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DemandSource {
    /// Bytes in the switch's queues.
    #[default]
    Queues,
    /// Bytes announced by flows, less the bytes forwarded by the switch (ADUs, §2.5.2).
    Announced,
}

/// Threshold of Etalon.
const fn threshold() -> ByteCount {
    ByteCount::new(1_000_000)
}
/// Length of a week in the thesis (§2.2.2).
const fn window() -> Duration {
    Duration::from_ms(2)
}
/// Decision time. The thesis gives 0.1 to 1 ms for Eclipse (§2.5.1).
const fn decision() -> Duration {
    Duration::from_us(100)
}

const fn day() -> Duration {
    Duration::from_us(180)
}
const fn night() -> Duration {
    Duration::from_us(20)
}
const fn circuit_rate() -> BitRate {
    BitRate::gbps(80)
}
const fn circuit_delay() -> Duration {
    Duration::from_us(30)
}
const fn packet_rate() -> BitRate {
    BitRate::gbps(10)
}
const fn packet_delay() -> Duration {
    Duration::from_us(5)
}
const fn yes() -> bool {
    true
}
const fn queue_packets() -> u32 {
    16
}

impl CircuitSpec {
    pub(super) fn check(&self) -> Result<(), InvalidSetting> {
        let wrong = |field: &str, message: String| InvalidSetting::new(format!("circuit.{field}"), message);
        if self.day < self.night || self.day == Duration::ZERO {
            let message =
                format!("{}: must be above zero and no shorter than the night, {}", self.day, self.night);
            return Err(wrong("day", message));
        }
        if self.night == Duration::ZERO {
            return Err(wrong("night", "0 s: must be above zero".to_owned()));
        }
        super::check::time("circuit.day", self.day)?;
        super::check::time("circuit.delay", self.delay)?;
        if self.day < self.night + self.delay {
            let need = self.night + self.delay;
            let message = format!("{}: must be at least a night and the circuit's delay, {need}", self.day);
            return Err(wrong("day", message));
        }
        if self.matchings.is_some() && (self.shifts.is_some() || self.schedule.is_some()) {
            let message = "stated beside `shifts` or `schedule`: leave one out";
            return Err(wrong("matchings", message.to_owned()));
        }
        if self.dark == Dark::Moving && self.schedule.is_some() {
            let message = "moving: all circuits are dark in nights of a `schedule`: leave one out";
            return Err(wrong("dark", message.to_owned()));
        }
        super::check::time("circuit.mark_ahead", self.mark_ahead.unwrap_or(Duration::ZERO))?;
        for (rate, delay, names) in [
            (self.rate, self.delay, ["rate", "delay"]),
            (self.packet_rate, self.packet_delay, ["packet_rate", "packet_delay"]),
        ] {
            PortSettings::new(rate, delay, ByteCount::ZERO).check().map_err(|error| match error {
                PortError::RateTooLow { .. } => wrong(names[0], error.to_string()),
                _ => wrong(names[1], error.to_string()),
            })?;
        }
        if let Some(schedule) = &self.schedule {
            let (window, decision) = (schedule.window, schedule.decision);
            if window < self.night + self.day {
                let need = self.night + self.day;
                let message = format!("{window}: must hold a night and the shortest day, {need}");
                return Err(wrong("schedule.window", message));
            }
            super::check::time("circuit.schedule.window", window)?;
            super::check::time("circuit.schedule.decision", decision)?;
            if decision == Duration::ZERO {
                return Err(wrong("schedule.decision", "0 s: must be above zero".to_owned()));
            }
            if !self.packet {
                let message = "false: a schedule that follows demand needs the packet network".to_owned();
                return Err(wrong("packet", message));
            }
        }
        if self.around == Some(ByteCount::ZERO) {
            let message = "0 B: must be at least 1 B, or left out";
            return Err(wrong("around", message.to_owned()));
        }
        if self.queue_packets == 0 {
            return Err(wrong("queue_packets", "0: must be at least 1".to_owned()));
        }
        let Some(ResizeSpec { packets, ahead, .. }) = self.resize else { return Ok(()) };
        if packets < self.queue_packets {
            let message = format!("{packets}: must be at least queue_packets, {}", self.queue_packets);
            return Err(wrong("resize.packets", message));
        }
        super::check::time("circuit.resize.ahead", ahead)
    }

    /// Returns the settings of a switch with `racks` racks, for packets of at most `packet`.
    ///
    /// Errors: the setting and one line, for an unsupported number of racks, a shift that connects
    /// racks to themselves, or a queue that cannot hold a packet.
    pub(crate) fn settings(
        &self,
        racks: usize,
        packet: ByteCount,
    ) -> Result<CircuitSettings, (&'static str, String)> {
        if !(2..=RACKS_MAX).contains(&racks) {
            let switch = &self.switch;
            let message =
                format!("{racks} links at `{switch}`: a hybrid switch joins 2 to {RACKS_MAX} racks");
            return Err(("circuit.switch", message));
        }
        let ports = racks as u16;
        if let Some(queue) = self.queue.filter(|queue| *queue < packet) {
            let message = format!("{queue}: must hold the largest packet, {packet}");
            return Err(("circuit.queue", message));
        }
        let stated = self.matchings.as_ref().map(|matchings| checked(matchings, ports)).transpose()?;
        let by = self.shifts.clone().unwrap_or_else(|| (1..ports).collect());
        if let Some(shift) = by.iter().find(|shift| !(1..ports).contains(shift)) {
            let message = format!("{shift}: must be 1 to {}, as the switch has {ports} racks", ports - 1);
            return Err(("circuit.shifts", message));
        }
        if by.is_empty() {
            return Err(("circuit.shifts", "empty: must have at least 1 number".to_owned()));
        }
        let timetable = match (&self.schedule, stated) {
            // The run installs the first scheduled week before its first event.
            (Some(schedule), _) => Timetable::new(vec![(schedule.window, Matching::new())]),
            (None, Some(matchings)) => {
                let slots =
                    matchings.into_iter().flat_map(|m| [(self.night, Matching::new()), (self.day, m)]);
                Timetable::new(slots.collect())
            }
            (None, None) => shifts(ports, by, self.day, self.night),
        };
        let timetable = timetable.expect("days, nights and weeks were checked");
        let timetable = if self.dark == Dark::Moving { with_kept(&timetable) } else { timetable };
        Ok(CircuitSettings {
            circuit_rate: self.rate,
            circuit_delay: self.delay,
            packet: self.packet.then_some(PacketNetwork { rate: self.packet_rate, delay: self.packet_delay }),
            queue: QueueLimits {
                packets_max: self.queue_packets,
                bytes_max: self.queue,
                mark_packets: self.mark_packets,
            },
            resize: self.resize.map(|ResizeSpec { packets, ahead, drops }| Resize {
                packets_max: packets,
                ahead,
                drops_excess: drops,
            }),
            mark_ahead: self.mark_ahead,
            timetable,
            around: self.around,
        })
    }
}

/// Returns a timetable of nights and days in turns with the circuits that stay up in a night: those
/// of the days before and after it.
fn with_kept(timetable: &Timetable<Matching>) -> Timetable<Matching> {
    let mut slots: Vec<_> = timetable.slots().map(|(length, matching)| (length, matching.clone())).collect();
    let count = slots.len();
    for night in (0..count).step_by(2) {
        let (before, after) = (&slots[(night + count - 1) % count].1, &slots[night + 1].1);
        let kept = before.iter().zip(after).map(|(before, after)| after.filter(|_| before == after));
        slots[night].1 = kept.collect();
    }
    Timetable::new(slots).expect("the lengths are those of a timetable")
}

/// Returns matchings as a switch of `ports` racks takes them.
///
/// Errors: the setting and one line, for no matching, another number of racks, a rack that the
/// switch lacks, or two circuits into one rack.
fn checked(matchings: &[Vec<u16>], ports: u16) -> Result<Vec<Matching>, (&'static str, String)> {
    let wrong = |message: String| Err(("circuit.matchings", message));
    if matchings.is_empty() {
        return wrong("empty: must have at least 1 matching".to_owned());
    }
    for (number, matching) in matchings.iter().enumerate() {
        let count = matching.len();
        if count != usize::from(ports) {
            return wrong(format!("matching {number}: {count} racks: must be {ports}, as the switch has"));
        }
        let mut senders = vec![None; count];
        for (from, to) in matching.iter().enumerate() {
            let Some(sender) = senders.get_mut(usize::from(*to)) else {
                return wrong(format!("matching {number}: rack {to}: must be 0 to {}", ports - 1));
            };
            // A rack that names itself has no circuit.
            if from == usize::from(*to) {
                continue;
            }
            if let Some(other) = sender.replace(from) {
                return wrong(format!("matching {number}: racks {other} and {from} both lead to rack {to}"));
            }
        }
    }
    let circuit = |(from, to): (usize, &u16)| Some(*to).filter(|to| usize::from(*to) != from);
    Ok(matchings.iter().map(|matching| matching.iter().enumerate().map(circuit).collect()).collect())
}
