//! How a host's layer is set up.
//!
//! Read [`Config`] first.

use crate::memory::MEMORY_MIN;
use crate::packet::UNIT_MAX;
use anabranch_units::{BitRate, ByteCount, Duration};
use std::fmt;

/// Settings of a [`Host`](crate::Host).
#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// A flow with this much to send, or more, is long.
    pub long: ByteCount,
    /// Whether flows say what they have to send; else each is short until it has sent so much that it is long.
    pub knows_sizes: bool,
    /// Whether packets of short flows get parities, and are handed over in order.
    pub codes: bool,
    /// How many packets are a unit.
    pub unit: UnitSize,
    /// How many parities a unit has.
    pub parities: Parities,
    /// The rate of the narrowest link on the way.
    pub rate: BitRate,
    /// The longest that a packet is waited for which others have overtaken.
    pub hold_max: Duration,
    /// How long what came may wait for a datagram the other way that says so: the paper's period over which round trips are averaged.
    pub say_within: Duration,
    /// By how much round trips differ for no reason in the network: a packet that took less than this above the usual was not blocked.
    pub jitter: Duration,
    /// The most packets of a flow that are held back for one before them; with one more the first gap is given up.
    pub held_max: usize,
    /// Whether packets of long flows are put in order, too, though they get no parities: for hosts that send them by several ways.
    pub orders_long: bool,
    /// Whether all packets are numbered, so that the other end says of each when it came: for hosts that choose ways.
    pub numbers_all: bool,
    /// Whether packets of short flows that should have come are sent again: for hosts that choose ways, as another one may be better.
    pub repeats: bool,
    /// The most bytes that are held for one peer. State of silent flows then expires by a timer,
    /// and not with the next flow that begins. `None`: only numbers of flows and packets are
    /// bounded, for simulators, whose hosts trust each other.
    pub memory: Option<ByteCount>,
}

/// How many packets are a unit.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum UnitSize {
    /// As many as equation 4 finds the best of units with few parities ([`Ways::frugal_unit`](crate::model::Ways::frugal_unit)).
    Best,
    /// All of a window.
    Window,
    /// So many.
    Fixed(u8),
}

/// How many parities a unit has.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Parities {
    /// As many as are blocked in the mean.
    Blocking,
    /// So many.
    Fixed(u8),
}

impl Config {
    /// What an agent of a real host has, simulated or not: sizes are not known, hosts choose ways, and long flows take several of them. A real
    /// one adds what its machine costs, [`Config::say_within`] and [`Config::jitter`].
    pub fn of_agent() -> Self {
        Self {
            knows_sizes: false,
            // Queues of real networks are longer than those of the paper.
            hold_max: Duration::from_ms(50),
            held_max: AGENT_HELD_MAX,
            orders_long: true,
            numbers_all: true,
            repeats: true,
            ..Self::default()
        }
    }
}

/// The most packets of a flow that an agent holds back: what a long flow has under way at a gigabit a second in the longest hold.
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

/// A setting that no host can have.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ConfigError {
    /// Units of no packets, or too many.
    Unit(u8),
    /// Too many parities.
    Parities(u8),
    /// A link without a rate.
    Rate(BitRate),
    /// Holding for too long.
    Hold(Duration),
    /// Too little memory for a peer.
    Memory(ByteCount),
}

/// The longest hold that can be set: a second, within which TCP repeats whatever it misses.
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
    /// The setting's name.
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
    /// Whether a host can have these settings.
    ///
    /// Errors: the first that it cannot have.
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
