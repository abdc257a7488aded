//! A rate in JSON as a number of bits a second, for fields whose name says so.
//!
//! For `#[serde(with = "crate::bps")]`. Leaves out: rates that users write, which are texts with a unit.

use anabranch_units::BitRate;
use serde::{Deserialize as _, Deserializer, Serializer};

/// Writes it.
pub fn serialize<S: Serializer>(rate: &BitRate, s: S) -> Result<S::Ok, S::Error> {
    s.serialize_u64(rate.as_bps())
}

/// Reads it.
pub fn deserialize<'de, D: Deserializer<'de>>(d: D) -> Result<BitRate, D::Error> {
    u64::deserialize(d).map(BitRate::bps)
}
