//! A rate in JSON as a number of bits per second, for fields whose name contains the unit.
//!
//! Used as `#[serde(with = "crate::bps")]`. Leaves out: rates in users' settings, which are texts
//! with a unit.

use anabranch_units::BitRate;
use serde::{Deserialize as _, Deserializer, Serializer};

/// Writes the rate.
pub fn serialize<S: Serializer>(rate: &BitRate, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u64(rate.as_bps())
}

/// Reads the rate.
pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<BitRate, D::Error> {
    u64::deserialize(d).map(BitRate::bps)
}
