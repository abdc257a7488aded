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
    /// Time before each day in which circuits are dark.
    #[serde(default)]
    pub night: NightSpec,
    /// Days that a scheduler decides for each week, instead of equal days that repeat. `day` is
    /// then the minimum length of a day.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleSpec>,
    /// Matchings in turns, as `shifts` or as `matchings`. By default all shifts in order, so that
    /// each pair has one day in a period.
    #[serde(default, alias = "matchings", skip_serializing_if = "Option::is_none")]
    pub shifts: Option<Turns>,
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

/// Matchings of days in turns.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Turns {
    /// Each number k connects rack i to rack i + k, modulo the number of racks.
    Shifts(Vec<u16>),
    /// Entry i of a matching is the rack to which rack i sends. A rack without a circuit has its
    /// own number.
    Matchings(Vec<Vec<u16>>),
}

/// The night before a day.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum NightSpec {
    /// Length of a night in which all circuits are dark.
    Length(Duration),
    /// Length of a night, and its dark circuits.
    Part(PartialNight),
}

/// A night with a choice of dark circuits.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct PartialNight {
    /// Its length.
    pub length: Duration,
    /// Circuits that are dark.
    pub dark: Dark,
}

impl NightSpec {
    /// Length of the night.
    pub fn length(self) -> Duration {
        match self {
            Self::Length(length) | Self::Part(PartialNight { length, .. }) => length,
        }
    }

    /// Circuits that are dark in the night.
    pub fn dark(self) -> Dark {
        match self {
            Self::Length(_) => Dark::All,
            Self::Part(night) => night.dark,
        }
    }
}

impl Default for NightSpec {
    fn default() -> Self {
        Self::Length(Duration::from_us(20))
    }
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
        let night = self.night.length();
        if self.day < night || self.day == Duration::ZERO {
            let message = format!("{}: must be above zero and no shorter than the night, {night}", self.day);
            return Err(wrong("day", message));
        }
        if night == Duration::ZERO {
            return Err(wrong("night", "0 s: must be above zero".to_owned()));
        }
        super::check::time("circuit.day", self.day)?;
        super::check::time("circuit.delay", self.delay)?;
        if self.day < night + self.delay {
            let need = night + self.delay;
            let message = format!("{}: must be at least a night and the circuit's delay, {need}", self.day);
            return Err(wrong("day", message));
        }
        if matches!(self.shifts, Some(Turns::Matchings(_))) && self.schedule.is_some() {
            return Err(wrong("matchings", "stated beside `schedule`: leave one out".to_owned()));
        }
        if self.night.dark() == Dark::Moving && self.schedule.is_some() {
            let message = "moving: all circuits are dark in nights of a `schedule`: leave one out";
            return Err(wrong("night.dark", message.to_owned()));
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
            if window < night + self.day {
                let need = night + self.day;
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
        let timetable = match (&self.schedule, &self.shifts) {
            // The run installs the first scheduled week before its first event.
            (Some(schedule), turns) => {
                shifts_of(turns.as_ref(), ports)?;
                Timetable::new(vec![(schedule.window, Matching::new())])
            }
            (None, Some(Turns::Matchings(matchings))) => {
                let slots = checked(matchings, ports)?
                    .into_iter()
                    .flat_map(|matching| [(self.night.length(), Matching::new()), (self.day, matching)]);
                Timetable::new(slots.collect())
            }
            (None, turns) => shifts(ports, shifts_of(turns.as_ref(), ports)?, self.day, self.night.length()),
        };
        let timetable = timetable.expect("days, nights and weeks were checked");
        let timetable = if self.night.dark() == Dark::Moving { with_kept(&timetable) } else { timetable };
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

/// Returns the shifts of a switch with `ports` racks; all of them if none are stated.
///
/// Errors: the setting and one line, for a shift that connects racks to themselves, or none.
fn shifts_of(turns: Option<&Turns>, ports: u16) -> Result<Vec<u16>, (&'static str, String)> {
    let Some(Turns::Shifts(by)) = turns else { return Ok((1..ports).collect()) };
    if let Some(shift) = by.iter().find(|shift| !(1..ports).contains(shift)) {
        let message = format!("{shift}: must be 1 to {}, as the switch has {ports} racks", ports - 1);
        return Err(("circuit.shifts", message));
    }
    if by.is_empty() {
        return Err(("circuit.shifts", "empty: must have at least 1 number or matching".to_owned()));
    }
    Ok(by.clone())
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
/// Errors: the setting and one line, for another number of racks, a rack that the
/// switch lacks, or two circuits into one rack.
fn checked(matchings: &[Vec<u16>], ports: u16) -> Result<Vec<Matching>, (&'static str, String)> {
    let wrong = |message: String| Err(("circuit.matchings", message));
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
