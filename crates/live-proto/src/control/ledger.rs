//! The streams that a node has admitted to one link, within the estimated capacity.
//!
//! Advertisements are up to one period old, and two children can see the same spare capacity. So
//! the sending end of each link admits streams by its ledger alone. Source: promise 3 of §4.4.2
//! requires an admission; the thesis does not describe one. Leaves out: the measurement
//! (`capacity`). Read [`LinkLedger`] and [`Capacity`] first.

use crate::Object;
use anabranch_units::BitRate;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of streams on one link.
pub const STREAMS_MAX: usize = 65_536;

/// Capacity of a link, as declared by the operator and as measured from transfers.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Capacity {
    /// Capacity declared by the operator.
    pub declared: BitRate,
    /// Estimate from transfers; `None` until the link has limited a transfer.
    pub measured: Option<BitRate>,
}

impl Capacity {
    /// A declared capacity without a measurement.
    pub const fn declared(declared: BitRate) -> Self {
        Self { declared, measured: None }
    }

    /// The capacity with another declared value. A measurement that reached the earlier declared
    /// value was limited by that value, and is discarded.
    #[must_use]
    pub fn redeclared(self, declared: BitRate) -> Self {
        Self { declared, measured: self.measured.filter(|measured| *measured < self.declared) }
    }

    /// The capacity to use: the measured capacity, at most the declared capacity.
    pub fn believed(self) -> BitRate {
        self.measured.map_or(self.declared, |measured| measured.min(self.declared))
    }
}

/// Count and hash of a set of attempts. The two ends of a link compare digests.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Digest {
    /// Number of attempts.
    pub count: u64,
    /// Exclusive or of the hashes of all attempts.
    pub hash: u64,
}

/// The streams of one link: each object with the number of the child's request for it.
#[derive(Clone, Debug, Default)]
pub struct Attempts {
    attempts: BTreeMap<Object, u64>,
    hash: u64,
}

impl Attempts {
    /// The attempt for an object.
    pub fn of(&self, object: Object) -> Option<u64> {
        self.attempts.get(&object).copied()
    }

    /// All attempts, by object.
    pub fn iter(&self) -> impl Iterator<Item = (Object, u64)> {
        self.attempts.iter().map(|(object, attempt)| (*object, *attempt))
    }

    /// Number of attempts.
    pub fn len(&self) -> usize {
        self.attempts.len()
    }

    /// Whether there are no attempts.
    pub fn is_empty(&self) -> bool {
        self.attempts.is_empty()
    }

    /// Inserts the attempt for an object, and replaces an earlier attempt.
    pub fn insert(&mut self, object: Object, attempt: u64) {
        let earlier = self.attempts.insert(object, attempt);
        self.hash ^= earlier.map_or(0, |earlier| mixed(object, earlier)) ^ mixed(object, attempt);
    }

    /// Removes the attempt for an object. Returns false if there is none.
    pub fn remove(&mut self, object: Object) -> bool {
        let earlier = self.attempts.remove(&object);
        self.hash ^= earlier.map_or(0, |earlier| mixed(object, earlier));
        earlier.is_some()
    }

    /// Digest of all attempts.
    pub fn digest(&self) -> Digest {
        Digest { count: self.attempts.len() as u64, hash: self.hash }
    }
}

/// Hash of one attempt: the finaliser of MurmurHash3, applied to each word.
fn mixed(object: Object, attempt: u64) -> u64 {
    let mix = |hash: u64, word: u64| anabranch_units::mix64(hash ^ word);
    [u64::from(object.channel.0), object.bitrate.as_bps(), attempt].into_iter().fold(1, mix)
}

/// The ledger of one link, kept by its sending end.
#[derive(Clone, Debug)]
pub struct LinkLedger {
    capacity: Capacity,
    attempts: Attempts,
    /// Objects by their admission number, in the order of admission.
    order: BTreeMap<u64, Object>,
    numbers: BTreeMap<Object, u64>,
    admissions: u64,
    used_bps: u64,
}

impl LinkLedger {
    /// Creates the ledger of a link without streams.
    pub fn new(capacity: Capacity) -> Self {
        Self {
            capacity,
            attempts: Attempts::default(),
            order: BTreeMap::new(),
            numbers: BTreeMap::new(),
            admissions: 0,
            used_bps: 0,
        }
    }

    /// The capacity, declared and measured.
    pub const fn capacity(&self) -> Capacity {
        self.capacity
    }

    /// The admitted streams.
    pub const fn attempts(&self) -> &Attempts {
        &self.attempts
    }

    /// Sum of the admitted bitrates.
    pub const fn used(&self) -> BitRate {
        BitRate::bps(self.used_bps)
    }

    /// Capacity that no stream uses.
    pub fn spare(&self) -> BitRate {
        BitRate::bps(self.capacity.believed().as_bps().saturating_sub(self.used_bps))
    }

    /// Admits a stream if the spare capacity suffices and the link has fewer than [`STREAMS_MAX`]
    /// streams. An object admitted earlier keeps its position and gets the new attempt. Returns
    /// whether the object is admitted.
    pub fn admit(&mut self, object: Object, attempt: u64) -> bool {
        if !self.numbers.contains_key(&object) {
            if object.bitrate > self.spare() || self.attempts.len() >= STREAMS_MAX {
                return false;
            }
            self.admissions += 1;
            self.order.insert(self.admissions, object);
            self.numbers.insert(object, self.admissions);
            self.used_bps += object.bitrate.as_bps();
        }
        self.attempts.insert(object, attempt);
        true
    }

    /// Releases a stream. Returns false if the object was not admitted.
    pub fn release(&mut self, object: Object) -> bool {
        let Some(number) = self.numbers.remove(&object) else { return false };
        self.order.remove(&number);
        self.used_bps -= object.bitrate.as_bps();
        self.attempts.remove(object)
    }

    /// Sets a new capacity, and releases streams that do not fit, the last admitted first. Returns
    /// the released streams with their attempts.
    pub fn set_capacity(&mut self, capacity: Capacity) -> Vec<(Object, u64)> {
        self.capacity = capacity;
        let mut evicted = Vec::new();
        while self.used_bps > capacity.believed().as_bps() {
            let (_, object) = self.order.last_key_value().expect("streams use the capacity");
            let object = *object;
            let attempt = self.attempts.of(object).expect("an admitted stream has an attempt");
            self.release(object);
            evicted.push((object, attempt));
        }
        evicted
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ChannelId;
    use proptest::prelude::*;

    fn object(channel: u32) -> Object {
        Object { channel: ChannelId(channel), bitrate: BitRate::mbps(u64::from(channel % 4)) }
    }

    fn mbps(capacity: u64) -> Capacity {
        Capacity::declared(BitRate::mbps(capacity))
    }

    proptest! {
        #[test]
        fn admitted_streams_never_exceed_the_capacity(
            steps in prop::collection::vec((0..3u8, 0..12u32), 0..60),
        ) {
            let mut ledger = LinkLedger::new(mbps(10));
            let mut admitted = BTreeMap::new();
            for ((kind, number), attempt) in steps.into_iter().zip(0..) {
                let object = object(number);
                match kind {
                    0 => {
                        let spare = ledger.spare();
                        let is_admitted = ledger.admit(object, attempt);
                        let fits = admitted.contains_key(&object) || object.bitrate <= spare;
                        prop_assert_eq!(is_admitted, fits);
                        if fits {
                            admitted.insert(object, attempt);
                        }
                    }
                    1 => prop_assert_eq!(ledger.release(object), admitted.remove(&object).is_some()),
                    _ => for (object, attempt) in ledger.set_capacity(mbps(u64::from(number))) {
                        prop_assert_eq!(admitted.remove(&object), Some(attempt));
                    },
                }
                let used: u64 = admitted.keys().map(|object| object.bitrate.as_bps()).sum();
                prop_assert_eq!(ledger.used(), BitRate::bps(used));
                prop_assert!(ledger.used() <= ledger.capacity().believed());
                let mut same = Attempts::default();
                admitted.iter().for_each(|(object, attempt)| same.insert(*object, *attempt));
                prop_assert_eq!(ledger.attempts().digest(), same.digest());
            }
        }
    }

    #[test]
    fn lower_measurement_survives_a_new_declared_capacity() {
        let measured = |mbps| Capacity { measured: Some(BitRate::mbps(mbps)), ..self::mbps(8) };
        assert_eq!(measured(5).redeclared(BitRate::mbps(20)).believed(), BitRate::mbps(5));
        assert_eq!(measured(5).redeclared(BitRate::mbps(4)).believed(), BitRate::mbps(4));
        assert_eq!(measured(8).redeclared(BitRate::mbps(20)).believed(), BitRate::mbps(20));
    }

    #[test]
    fn last_admitted_streams_are_evicted_first() {
        let mut ledger = LinkLedger::new(mbps(6));
        for (channel, attempt) in [(3, 1), (1, 2), (2, 3)] {
            assert!(ledger.admit(object(channel), attempt));
        }
        assert!(!ledger.admit(object(5), 4), "the link is full");
        assert_eq!(ledger.set_capacity(mbps(4)), [(object(2), 3)]);
        assert_eq!(ledger.set_capacity(mbps(3)), [(object(1), 2)]);
    }

    #[test]
    fn measured_capacity_never_exceeds_the_declared_capacity() {
        let measured = |mbps| Capacity { measured: Some(BitRate::mbps(mbps)), ..self::mbps(8) };
        assert_eq!(measured(9).believed(), BitRate::mbps(8));
        assert_eq!(measured(3).believed(), BitRate::mbps(3));
    }
}
