//! Demand patterns for tests and experiments; two of them are drawn from a seed.

use crate::{Demand, DemandError};
use anabranch_units::{ByteCount, Seed};

/// `bytes` from each rack to the next rack: a single matching carries all demand.
///
/// Errors: a number of racks out of range.
pub fn ring(racks: usize, bytes: ByteCount) -> Result<Demand, DemandError> {
    let mut demand = Demand::new(racks)?;
    for source in 0..racks {
        demand.add(source, (source + 1) % racks, bytes)?;
    }
    Ok(demand)
}

/// `bytes` from each rack, shared equally among all other racks.
///
/// Errors: a number of racks out of range.
pub fn all_to_all(racks: usize, bytes: ByteCount) -> Result<Demand, DemandError> {
    let mut demand = Demand::new(racks)?;
    let share = ByteCount::new(bytes.as_u64() / (racks as u64 - 1));
    for source in 0..racks {
        for destination in (0..racks).filter(|destination| *destination != source) {
            demand.add(source, destination, share)?;
        }
    }
    Ok(demand)
}

/// `bytes` from each rack to drawn racks: 70 % in `big` flows of equal size, 30 % in `small` flows.
/// No rack receives more than it sends.
///
/// Each flow of a rack is part of a random cycle through all racks, so that all racks send and
/// receive equally much.
///
/// Errors: a number of racks out of range.
pub fn skewed(
    racks: usize,
    bytes: ByteCount,
    big: usize,
    small: usize,
    seed: Seed,
) -> Result<Demand, DemandError> {
    let mut demand = Demand::new(racks)?;
    let mut random = seed.stream("skewed demand", racks as u64);
    for (flows, share) in [(big, bytes.as_u64() * 7 / 10), (small, bytes.as_u64() * 3 / 10)] {
        for _ in 0..flows {
            // A random cycle through all racks: each rack sends once and receives once, never to
            // itself.
            let mut cycle: Vec<usize> = (0..racks).collect();
            random.shuffle(&mut cycle);
            let size = ByteCount::new(share / flows as u64);
            for at in 0..racks {
                demand.add(cycle[at], cycle[(at + 1) % racks], size)?;
            }
        }
    }
    Ok(demand)
}

/// Entries drawn uniformly between 0 and twice their mean. The mean is `bytes` divided by a rack's
/// number of entries; a share of `density_ppm` of the pairs have an entry.
///
/// Errors: a number of racks out of range.
pub fn random(racks: usize, bytes: ByteCount, density_ppm: u32, seed: Seed) -> Result<Demand, DemandError> {
    let mut demand = Demand::new(racks)?;
    let mut random = seed.stream("random demand", racks as u64);
    let partners = (racks as u64 - 1) * u64::from(density_ppm) / 1_000_000;
    let most = bytes.as_u64().saturating_mul(2) / partners.max(1);
    for source in 0..racks {
        for destination in (0..racks).filter(|destination| *destination != source) {
            if random.chance_ppm(density_ppm) {
                demand.add(source, destination, ByteCount::new(random.below(most + 1)))?;
            }
        }
    }
    Ok(demand)
}
