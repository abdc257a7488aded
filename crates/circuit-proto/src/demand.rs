//! The bytes that racks wait to send to each other.

use crate::Timing;
use anabranch_units::ByteCount;
use std::fmt;

/// Most racks of a network: a port number fits 16 bits, and a matrix of demand 8 MiB.
pub const RACKS_MAX: usize = 1024;

/// Bytes from each rack to each other rack.
///
/// Shape: `racks` by `racks`, the source's row first. The diagonal is zero: a rack's own traffic never leaves it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    racks: usize,
    bytes: Vec<u64>,
    /// Sum of all entries.
    total: u64,
}

/// A mistake in a matrix of demand.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DemandError {
    /// Number of racks outside 2 to [`RACKS_MAX`].
    Racks(usize),
    /// A row or column that the network lacks.
    NoSuchRack {
        /// Number in the request.
        rack: usize,
        /// Racks of the network.
        racks: usize,
    },
    /// Bytes of a rack to itself.
    ToItself(usize),
    /// The sum of all entries exceeds 2^64 - 1 bytes.
    TooLarge,
}

impl fmt::Display for DemandError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Racks(racks) => write!(f, "{racks} racks: a network has 2 to {RACKS_MAX}"),
            Self::NoSuchRack { rack, racks } => {
                write!(f, "rack {rack}: the network has racks 0 to {}", racks - 1)
            }
            Self::ToItself(rack) => {
                write!(f, "rack {rack} to itself: demand is between different racks")
            }
            Self::TooLarge => write!(f, "demand: the sum of all entries exceeds 2^64 - 1 bytes"),
        }
    }
}

impl std::error::Error for DemandError {}

impl Demand {
    /// No demand between `racks` racks.
    ///
    /// Errors: fewer than 2 racks, or more than [`RACKS_MAX`].
    pub fn new(racks: usize) -> Result<Self, DemandError> {
        if !(2..=RACKS_MAX).contains(&racks) {
            return Err(DemandError::Racks(racks));
        }
        Ok(Self { racks, bytes: vec![0; racks * racks], total: 0 })
    }

    /// Number of racks.
    pub fn racks(&self) -> usize {
        self.racks
    }

    /// Adds `bytes` from `source` to `destination`.
    ///
    /// Errors: an unknown rack, a rack to itself, or a sum beyond 2^64 - 1 bytes.
    pub fn add(&mut self, source: usize, destination: usize, bytes: ByteCount) -> Result<(), DemandError> {
        for rack in [source, destination] {
            if rack >= self.racks {
                return Err(DemandError::NoSuchRack { rack, racks: self.racks });
            }
        }
        if source == destination {
            return Err(DemandError::ToItself(source));
        }
        self.total = self.total.checked_add(bytes.as_u64()).ok_or(DemandError::TooLarge)?;
        self.bytes[source * self.racks + destination] += bytes.as_u64();
        Ok(())
    }

    /// Bytes from `source` to `destination`.
    ///
    /// Panics: if the network lacks one of the racks.
    pub fn between(&self, source: usize, destination: usize) -> ByteCount {
        assert!(source < self.racks && destination < self.racks, "racks are below {}", self.racks);
        ByteCount::new(self.bytes[source * self.racks + destination])
    }

    /// Sum of all entries.
    pub fn total(&self) -> ByteCount {
        ByteCount::new(self.total)
    }

    /// Time that each pair needs on a circuit, in picoseconds, rounded up.
    ///
    /// Shape: as the demand's. A time beyond the week counts as the week and one picosecond: no schedule serves more.
    pub(crate) fn circuit_ps(&self, timing: &Timing) -> Vec<u64> {
        let rate = u128::from(timing.circuit_rate.as_bps());
        let most = timing.week.as_ps() + 1;
        let time = |bytes: &u64| {
            if *bytes == 0 {
                return 0;
            }
            let bit_ps = u128::from(*bytes) * 8 * 1_000_000_000_000;
            u64::try_from(bit_ps.div_ceil(rate)).unwrap_or(u64::MAX).min(most)
        };
        self.bytes.iter().map(time).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrong_racks_are_refused() {
        assert_eq!(Demand::new(1), Err(DemandError::Racks(1)));
        assert!(Demand::new(RACKS_MAX).is_ok());
        assert_eq!(Demand::new(RACKS_MAX + 1), Err(DemandError::Racks(RACKS_MAX + 1)));
        let mut demand = Demand::new(4).unwrap();
        let bytes = ByteCount::new(1);
        assert_eq!(demand.add(4, 0, bytes), Err(DemandError::NoSuchRack { rack: 4, racks: 4 }));
        assert_eq!(demand.add(2, 2, bytes), Err(DemandError::ToItself(2)));
    }

    #[test]
    fn sums_beyond_64_bits_are_refused() {
        let mut demand = Demand::new(3).unwrap();
        demand.add(0, 1, ByteCount::new(u64::MAX)).unwrap();
        assert_eq!(demand.add(1, 2, ByteCount::new(1)), Err(DemandError::TooLarge));
        assert_eq!(demand.total(), ByteCount::new(u64::MAX));
    }
}
