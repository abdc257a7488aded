//! Settings of a host's layer.
//!
//! Read [`Config`] first.

use crate::memory::MEMORY_MIN;
use crate::packet::UNIT_MAX;
use anabranch_units::{BitRate, ByteCount, Duration};
use std::fmt;

/// Settings of a [`Host`](crate::Host).
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Size from which a flow counts as long.
    pub long: ByteCount,
    /// True if flows state their size; otherwise a flow is short until it has sent `long` bytes.
    pub knows_sizes: bool,
    /// True if packets of short flows get parities, and are delivered in order.
    pub codes: bool,
    /// Number of packets in a unit.
    pub unit: UnitSize,
    /// Number of parities of a unit.
    pub parities: Parities,
    /// Rate of the narrowest link on the path.
    pub rate: BitRate,
    /// Maximum time to wait for a packet that later packets have overtaken.
    pub hold_max: Duration,
    /// Maximum time that an echo waits for a datagram in the reverse direction. The default is the
    /// paper's period over which round trips are averaged.
    pub say_within: Duration,
    /// Variation of round trips without a cause in the network. A packet whose extra delay is below
    /// this variation does not count as blocked.
    pub jitter: Duration,
    /// Maximum number of a flow's packets held behind a gap; one more packet gives up the first
    /// gap.
    pub held_max: usize,
    /// True if packets of long flows are delivered in order, too, without parities: for hosts that
    /// send them over several paths.
    pub orders_long: bool,
    /// True if all packets are numbered, and so their arrivals are echoed: for hosts that choose
    /// paths.
    pub numbers_all: bool,
    /// True if overdue packets of short flows are sent again: for hosts that choose paths, because
    /// another path may be better.
    pub repeats: bool,
    /// Maximum bytes held for one peer. State of silent flows then expires by a timer rather than
    /// when the next flow begins. `None` bounds only the numbers of flows and packets: for
    /// simulators, whose hosts trust each other.
    pub memory: Option<ByteCount>,
}

/// Number of packets in a unit.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum UnitSize {
    /// Optimum of equation 4 among units with few parities
    /// ([`PathModel::frugal_unit`](crate::model::PathModel::frugal_unit)).
    Best,
    /// The packets of a whole window.
    Window,
    /// A fixed number of packets.
    Fixed(u8),
}

/// Number of parities of a unit.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Parities {
    /// Mean number of blocked packets.
    Blocking,
    /// A fixed number of parities.
    Fixed(u8),
}

impl Config {
    /// Returns the settings of an agent, real or simulated: flow sizes are unknown, hosts choose
    /// paths, and a long flow uses several paths. A real agent also sets [`Config::say_within`] and
    /// [`Config::jitter`] to its machine's delays.
    pub fn of_agent() -> Self {
        Self {
            knows_sizes: false,
            // Queues of real networks are longer than the paper's.
            hold_max: Duration::from_ms(50),
            held_max: AGENT_HELD_MAX,
            orders_long: true,
            numbers_all: true,
            repeats: true,
            ..Self::default()
        }
    }
}

/// Maximum number of a flow's packets that an agent holds: a long flow's packets in flight at 1
/// Gbit/s within the longest hold.
pub const AGENT_HELD_MAX: usize = 4_096;

impl Default for Config {
    fn default() -> Self {
        Self {
            long: ByteCount::new(100_000),
            knows_sizes: true,
            codes: true,
            unit: UnitSize::Best,
            parities: Parities::Blocking,
            rate: BitRate::gbps(1),
            hold_max: Duration::from_ms(4),
            say_within: Duration::from_us(200),
            jitter: Duration::ZERO,
            held_max: 512,
            orders_long: false,
            numbers_all: false,
            repeats: false,
            memory: None,
        }
    }
}

/// A setting out of range.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// Number of packets in a unit: zero, or too many.
    Unit(u8),
    /// Number of parities: too many.
    Parities(u8),
    /// Rate of a link: zero.
    Rate(BitRate),
    /// Maximum hold of a packet: too long.
    Hold(Duration),
    /// Memory of a peer: too little.
    Memory(ByteCount),
}

/// Maximum hold that can be set: after a second TCP has retransmitted the missing data.
const HOLD_LIMIT: Duration = Duration::from_secs(1);

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unit(packets) => write!(f, "unit of {packets} packets: must be 1 to {UNIT_MAX}"),
            Self::Parities(count) => write!(f, "{count} parities: must be 0 to {UNIT_MAX}"),
            Self::Rate(rate) => write!(f, "rate {rate}: must be above 0"),
            Self::Hold(hold) => write!(f, "hold of {hold}: must be at most {HOLD_LIMIT}"),
            Self::Memory(memory) => write!(f, "memory of {memory}: must be at least {MEMORY_MIN}"),
        }
    }
}
impl std::error::Error for ConfigError {}

impl ConfigError {
    /// Name of the setting.
    pub const fn setting(&self) -> &'static str {
        match self {
            Self::Unit(_) => "unit",
            Self::Parities(_) => "parities",
            Self::Rate(_) => "rate",
            Self::Hold(_) => "hold_max",
            Self::Memory(_) => "memory",
        }
    }
}

impl Config {
    /// Validates the settings.
    ///
    /// Errors: the first setting out of range.
    pub fn check(&self) -> Result<(), ConfigError> {
        match self.unit {
            UnitSize::Fixed(packets) if !(1..=UNIT_MAX).contains(&usize::from(packets)) => {
                return Err(ConfigError::Unit(packets));
            }
            _ => {}
        }
        match self.parities {
            Parities::Fixed(count) if usize::from(count) > UNIT_MAX => {
                return Err(ConfigError::Parities(count));
            }
            _ => {}
        }
        if self.rate.as_bps() == 0 {
            return Err(ConfigError::Rate(self.rate));
        }
        if self.hold_max > HOLD_LIMIT {
            return Err(ConfigError::Hold(self.hold_max));
        }
        if let Some(memory) = self.memory.filter(|memory| *memory < MEMORY_MIN) {
            return Err(ConfigError::Memory(memory));
        }
        Ok(())
    }
}
