//! Limits of all numbers that decide placements: one set for files, messages and options.
//!
//! Within these limits no sum of the optimiser overflows, and no number that a reader accepted is
//! refused later. A reader of a file puts the location before the error message. Leaves out: limits
//! of counts and sizes, which are defined with the items that they limit. Read [`OutOfRange`]
//! first.

use anabranch_units::BitRate;
use std::fmt;

/// Maximum cost or price per Mbit/s.
pub const PRICE_PER_MBPS_MAX: f64 = 1e6;
/// Maximum score.
pub const SCORE_MAX: f64 = 1e9;
/// Maximum weight of scores or costs, and maximum factor of capacities.
pub const WEIGHT_MAX: f64 = 1e9;
/// Maximum capacity of a cluster, and maximum background traffic.
pub const CAPACITY_MAX: BitRate = BitRate::bps(1_000_000_000_000_000);
/// Maximum bitrate of a client.
pub const BITRATE_MAX: BitRate = BitRate::bps(1_000_000_000_000);
/// Maximum distance of a city's coordinate from 0, in km.
pub const COORDINATE_KM_MAX: f64 = 1e6;
/// Minimum mean of costs or scores, by which both are scaled.
pub const MEAN_MIN: f64 = 1e-9;

/// A number outside its limits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OutOfRange {
    what: &'static str,
    value: String,
    range: String,
    remedy: &'static str,
}

impl fmt::Display for OutOfRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, value, range, remedy } = self;
        write!(f, "{what} {value}: must be {range}: {remedy}")
    }
}
impl std::error::Error for OutOfRange {}

/// A power of ten, as text.
fn power(value: f64) -> String {
    format!("10^{}", value.log10().round())
}

fn check(
    what: &'static str,
    value: f64,
    most: f64,
    unit: &str,
    remedy: &'static str,
) -> Result<(), OutOfRange> {
    let range = || format!("0 to {}{unit}", power(most));
    let is_within = (0.0..=most).contains(&value);
    if is_within {
        Ok(())
    } else {
        Err(OutOfRange { what, value: value.to_string(), range: range(), remedy })
    }
}

/// Checks a cost or price per Mbit/s, at most [`PRICE_PER_MBPS_MAX`].
pub fn check_price(what: &'static str, value: f64) -> Result<(), OutOfRange> {
    check(what, value, PRICE_PER_MBPS_MAX, " for each Mbit/s", "choose a larger unit of money")
}

/// Checks a score, at most [`SCORE_MAX`].
pub fn check_score(value: f64) -> Result<(), OutOfRange> {
    check("score", value, SCORE_MAX, "", "choose a larger unit, or leave the cluster out")
}

/// Checks a weight, at most [`WEIGHT_MAX`].
pub fn check_weight(value: f64) -> Result<(), OutOfRange> {
    check("weight", value, WEIGHT_MAX, "", "what counts is its ratio to the other weight")
}

/// Checks a rate that a cluster sends, at most [`CAPACITY_MAX`].
pub fn check_capacity(what: &'static str, value: BitRate) -> Result<(), OutOfRange> {
    check_rate(what, value, 0, CAPACITY_MAX, "split the cluster into several")
}

/// Checks a client's bitrate, above 0 and at most [`BITRATE_MAX`].
pub fn check_bitrate(value: BitRate) -> Result<(), OutOfRange> {
    check_rate("bitrate", value, 1, BITRATE_MAX, "name the rate of one client")
}

fn check_rate(
    what: &'static str,
    value: BitRate,
    least_bps: u64,
    most: BitRate,
    remedy: &'static str,
) -> Result<(), OutOfRange> {
    let range = || format!("{least_bps} to {} bit/s", power(most.as_bps() as f64));
    if (least_bps..=most.as_bps()).contains(&value.as_bps()) {
        Ok(())
    } else {
        Err(OutOfRange { what, value: format!("{} bit/s", value.as_bps()), range: range(), remedy })
    }
}

/// Checks a coordinate, at most [`COORDINATE_KM_MAX`] from 0 on either side.
pub fn check_coordinate(what: &'static str, value: f64) -> Result<(), OutOfRange> {
    let most = power(COORDINATE_KM_MAX);
    let remedy = "name places on one plane, in km";
    let is_within = value.abs() <= COORDINATE_KM_MAX;
    if is_within {
        Ok(())
    } else {
        Err(OutOfRange { what, value: value.to_string(), range: format!("-{most} to {most}"), remedy })
    }
}

/// Checks the mean of costs or scores, at least [`MEAN_MIN`].
pub fn check_mean(what: &'static str, value: f64) -> Result<(), OutOfRange> {
    if value >= MEAN_MIN {
        Ok(())
    } else {
        let range = format!("{} or more", power(MEAN_MIN));
        Err(OutOfRange { what, value: value.to_string(), range, remedy: "choose a smaller unit" })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each limit is accepted, and the next value past it is refused with a line that names the
    /// remedy (#48).
    #[test]
    fn each_limit_is_accepted_and_the_next_value_refused() {
        let above = |value: f64| f64::from_bits(value.to_bits() + 1);
        let more = |rate: BitRate| BitRate::bps(rate.as_bps() + 1);
        let taken = [
            check_price("cost", PRICE_PER_MBPS_MAX),
            check_price("cost", 0.0),
            check_score(SCORE_MAX),
            check_weight(WEIGHT_MAX),
            check_capacity("capacity", CAPACITY_MAX),
            check_capacity("capacity", BitRate::bps(0)),
            check_bitrate(BITRATE_MAX),
            check_bitrate(BitRate::bps(1)),
            check_coordinate("x_km", -COORDINATE_KM_MAX),
            check_mean("mean cost", MEAN_MIN),
        ];
        assert!(taken.iter().all(Result::is_ok), "{taken:?}");
        let refused = [
            check_price("cost", above(PRICE_PER_MBPS_MAX)),
            check_price("cost", -1.0),
            check_price("cost", f64::NAN),
            check_score(above(SCORE_MAX)),
            check_weight(1e308),
            check_capacity("capacity", more(CAPACITY_MAX)),
            check_bitrate(more(BITRATE_MAX)),
            check_bitrate(BitRate::bps(0)),
            check_coordinate("x_km", above(COORDINATE_KM_MAX)),
            check_mean("mean cost", 0.0),
            check_mean("mean cost", f64::NAN),
        ];
        assert!(refused.iter().all(Result::is_err), "{refused:?}");
        let said = |checked: Result<(), OutOfRange>| checked.expect_err("it is outside").to_string();
        assert_eq!(
            said(check_price("cost", 2e6)),
            "cost 2000000: must be 0 to 10^6 for each Mbit/s: choose a larger unit of money"
        );
        assert_eq!(
            said(check_capacity("background", more(CAPACITY_MAX))),
            "background 1000000000000001 bit/s: must be 0 to 10^15 bit/s: split the cluster into several"
        );
        assert_eq!(
            said(check_mean("mean score", 0.0)),
            "mean score 0: must be 10^-9 or more: choose a smaller unit"
        );
    }
}
