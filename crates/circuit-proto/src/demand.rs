//! Traffic demand: the bytes that each rack has to send to each other rack.

use crate::Timing;
use crate::timing::sending_ps;
use anabranch_units::ByteCount;
use std::fmt;

/// Maximum number of racks: a port number fits 16 bits, and a matrix of demand 8 MiB.
pub const RACKS_MAX: usize = 1024;

/// Bytes to send from each rack to each other rack.
///
/// Shape: `racks` by `racks`, ordered by source, then destination. The diagonal is zero, because
/// traffic within a rack does not pass the switch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Demand {
    racks: usize,
    bytes: Vec<u64>,
    /// Sum of all entries.
    total: u64,
}

/// Reason why a matrix of demand is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum DemandError {
    /// Number of racks outside 2 to [`RACKS_MAX`].
    Racks(usize),
    /// A row or column without a rack in the network.
    NoSuchRack {
        /// Number of the requested rack.
        rack: usize,
        /// Number of racks of the network.
        racks: usize,
    },
    /// Bytes from a rack to itself.
    ToItself(usize),
    /// The sum of all entries exceeds 2^64 - 1 bytes.
    TooLarge,
    /// A matrix whose number of entries is not the square of the number of racks.
    Entries {
        /// Number of entries of the matrix.
        has: usize,
        /// Number of racks of the network.
        racks: usize,
    },
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
            Self::Entries { has, racks } => {
                write!(f, "{has} entries: {racks} racks need {racks} rows of {racks} entries")
            }
        }
    }
}

impl std::error::Error for DemandError {}

impl Demand {
    /// Creates a matrix without demand between `racks` racks.
    ///
    /// Errors: fewer than 2 racks, or more than [`RACKS_MAX`].
    pub fn new(racks: usize) -> Result<Self, DemandError> {
        if !(2..=RACKS_MAX).contains(&racks) {
            return Err(DemandError::Racks(racks));
        }
        Ok(Self { racks, bytes: vec![0; racks * racks], total: 0 })
    }

    /// Creates demand from the entries in bytes, ordered by source, then destination.
    ///
    /// Errors: a number of racks out of range, a wrong number of entries, bytes on the diagonal, or
    /// a sum beyond 2^64 - 1 bytes.
    pub fn from_entries(racks: usize, bytes: Vec<u64>) -> Result<Self, DemandError> {
        Self::new(racks)?;
        if bytes.len() != racks * racks {
            return Err(DemandError::Entries { has: bytes.len(), racks });
        }
        if let Some(rack) = (0..racks).find(|rack| bytes[rack * racks + rack] > 0) {
            return Err(DemandError::ToItself(rack));
        }
        let total = bytes.iter().try_fold(0u64, |sum, entry| sum.checked_add(*entry));
        let total = total.ok_or(DemandError::TooLarge)?;
        Ok(Self { racks, bytes, total })
    }

    /// Number of racks.
    pub fn racks(&self) -> usize {
        self.racks
    }

    /// Adds `bytes` from `source` to `destination`.
    ///
    /// Errors: an unknown rack, the same rack as source and destination, or a sum beyond 2^64 - 1
    /// bytes.
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
    /// Panics: if one of the racks does not exist.
    pub fn between(&self, source: usize, destination: usize) -> ByteCount {
        assert!(source < self.racks && destination < self.racks, "racks are below {}", self.racks);
        ByteCount::new(self.bytes[source * self.racks + destination])
    }

    /// All entries in bytes, ordered by source, then destination.
    pub fn entries(&self) -> &[u64] {
        &self.bytes
    }

    /// Sum of all entries.
    pub fn total(&self) -> ByteCount {
        ByteCount::new(self.total)
    }

    /// Time in picoseconds that each pair needs on a circuit, rounded up.
    ///
    /// Shape: the shape of the demand. A time beyond the week counts as the week plus one
    /// picosecond, because no schedule serves more.
    pub(crate) fn circuit_ps(&self, timing: &Timing) -> Vec<u64> {
        let most = timing.week.as_ps() + 1;
        let time = |bytes: &u64| {
            u64::try_from(sending_ps(timing.circuit_rate, *bytes)).unwrap_or(u64::MAX).min(most)
        };
        self.bytes.iter().map(time).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_and_equal_racks_are_refused() {
        assert_eq!(Demand::new(1), Err(DemandError::Racks(1)));
        assert!(Demand::new(RACKS_MAX).is_ok());
        assert_eq!(Demand::new(RACKS_MAX + 1), Err(DemandError::Racks(RACKS_MAX + 1)));
        let mut demand = Demand::new(4).unwrap();
        let bytes = ByteCount::new(1);
        assert_eq!(demand.add(4, 0, bytes), Err(DemandError::NoSuchRack { rack: 4, racks: 4 }));
        assert_eq!(demand.add(2, 2, bytes), Err(DemandError::ToItself(2)));
    }

    #[test]
    fn invalid_demand_matrices_are_refused() {
        assert_eq!(Demand::from_entries(1, vec![0]), Err(DemandError::Racks(1)));
        assert_eq!(Demand::from_entries(2, vec![0; 3]), Err(DemandError::Entries { has: 3, racks: 2 }));
        assert_eq!(Demand::from_entries(2, vec![0, 1, 1, 5]), Err(DemandError::ToItself(1)));
        assert_eq!(Demand::from_entries(2, vec![0, u64::MAX, 1, 0]), Err(DemandError::TooLarge));
        let mut demand = Demand::new(2).unwrap();
        demand.add(0, 1, ByteCount::new(7)).unwrap();
        assert_eq!(Demand::from_entries(2, vec![0, 7, 0, 0]), Ok(demand));
    }

    #[test]
    fn demand_beyond_64_bits_is_refused() {
        let mut demand = Demand::new(3).unwrap();
        demand.add(0, 1, ByteCount::new(u64::MAX)).unwrap();
        assert_eq!(demand.add(1, 2, ByteCount::new(1)), Err(DemandError::TooLarge));
        assert_eq!(demand.total(), ByteCount::new(u64::MAX));
    }
}
