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
//! Leaves out: the switch itself ([`anabranch_fabric::CircuitSwitch`]), the schedulers (a
//! system's). Read [`CircuitSpec`] first.

use super::read::InvalidSetting;
use anabranch_fabric::{
    CircuitSettings, Matching, PacketNetwork, PortError, PortSettings, QueueLimits, Resize, Timetable, shifts,
};
use anabranch_units::{BitRate, ByteCount, Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum racks of a hybrid switch, which keeps a queue for each pair.
const RACKS_MAX: usize = 1024;

/// A switch whose links lead to racks, joined by circuits in turns.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CircuitSpec {
    /// Name of the switch in the topology. Its links, in their order, lead to racks 0, 1 and so on.
    pub switch: String,
    /// Time for which a matching stands.
    #[serde(default = "day")]
    pub day: Duration,
    /// Time before each day in which all circuits are dark.
    #[serde(default = "night")]
    pub night: Duration,
    /// Days decided week by week by a scheduler, instead of equal days without end. `day` is then
    /// the minimum.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub schedule: Option<ScheduleSpec>,
    /// Matchings in turns: each joins rack i to the rack that follows by this number. By default
    /// all numbers in order, so that each pair has one day (a strobe).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shifts: Option<Vec<u16>>,
    /// Rate of a circuit.
    #[serde(default = "circuit_rate")]
    pub rate: BitRate,
    /// Delay of a circuit.
    #[serde(default = "circuit_delay")]
    pub delay: Duration,
    /// Rate of each rack's link to the packet network and back. `packet = false` leaves circuits
    /// only.
    #[serde(default = "packet_rate")]
    pub packet_rate: BitRate,
    /// Delay of each of these links.
    #[serde(default = "packet_delay")]
    pub packet_delay: Duration,
    /// Whether there is a packet network next to the circuits.
    #[serde(default = "yes")]
    pub packet: bool,
    /// Maximum packets queued per pair of racks (s).
    #[serde(default = "queue_packets")]
    pub queue_packets: u32,
    /// Maximum bytes queued per pair, if limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue: Option<ByteCount>,
    /// Queue length in packets from which arriving packets are marked (ECN).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark_packets: Option<u32>,
    /// Queue sizes that follow the schedule. By default the size is constant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub resize: Option<ResizeSpec>,
    /// Maximum size of packets that bypass the switch, without queue and delay. By default no
    /// packet does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub around: Option<ByteCount>,
    /// Time before a circuit from which acknowledgements of its flows are marked, until it ends: 0
    /// s marks only while it is up. By default no packet is marked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark_ahead: Option<Duration>,
}

/// A larger queue for a pair whose circuit is up or near.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ResizeSpec {
    /// Maximum packets queued in that time (b).
    pub packets: u32,
    /// Time before a circuit from which the larger queue holds (tau).
    pub ahead: Duration,
    /// Whether a queue that shrinks drops the packets beyond its size.
    #[serde(default)]
    pub drops: bool,
}

/// Circuits that follow demand: the loop of estimate, schedule and switch (the thesis, §2.2.2).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct ScheduleSpec {
    /// Name of the scheduler: a system has the list.
    pub scheduler: String,
    /// Estimate of demand.
    #[serde(default)]
    pub demand: DemandSource,
    /// Demand of a pair in bytes from which it counts as large.
    #[serde(default = "threshold")]
    pub threshold: ByteCount,
    /// Total time of all days and nights of a week.
    #[serde(default = "window")]
    pub window: Duration,
    /// Time from an estimate to the beginning of its week.
    #[serde(default = "decision")]
    pub decision: Duration,
}

/// Estimate of demand between racks.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DemandSource {
    /// Bytes in the switch's queues.
    #[default]
    Queues,
    /// Bytes announced by flows, less the bytes forwarded by the switch (ADUs, §2.5.2).
    Announced,
}

/// Etalon's threshold.
const fn threshold() -> ByteCount {
    ByteCount::new(1_000_000)
}
/// The thesis's week (§2.2.2).
const fn window() -> Duration {
    Duration::from_ms(2)
}
/// The thesis's order of magnitude for Eclipse is 0.1 to 1 ms (§2.5.1).
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

    /// Settings of a switch with `racks` racks, for packets of at most `packet`.
    ///
    /// Errors: the setting and one line: an unsupported number of racks, a shift that joins racks
    /// to themselves, or a queue that holds no packet.
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
        let by = self.shifts.clone().unwrap_or_else(|| (1..ports).collect());
        if let Some(shift) = by.iter().find(|shift| !(1..ports).contains(shift)) {
            let message = format!("{shift}: must be 1 to {}, as the switch has {ports} racks", ports - 1);
            return Err(("circuit.shifts", message));
        }
        if by.is_empty() {
            return Err(("circuit.shifts", "empty: must have at least 1 number".to_owned()));
        }
        let timetable = match &self.schedule {
            // The run installs its first week before its first event.
            Some(schedule) => Timetable::new(vec![(schedule.window, Matching::new())]),
            None => shifts(ports, by, self.day, self.night),
        };
        let timetable = timetable.expect("days, nights and weeks were checked");
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
