//! The limit of a flow: a rate, or no limit of this crate.
//!
//! Read [`Limit`].

use anabranch_units::BitRate;

use crate::{Connection, PaceError};

/// Rate limit of a flow.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Limit {
    /// Maximum rate.
    ///
    /// Units: bits per second of TCP's data; whether headers count depends on the
    /// [`crate::Mechanism`].
    Rate(BitRate),
    /// No limit of this crate: the flow gets back the rate that it had before.
    None,
}

impl Limit {
    /// Minimum rate: at a lower rate, a full segment takes longer than 1.5 s, and the flow would
    /// appear stopped.
    pub const RATE_MIN: BitRate = BitRate::bps(8_000);

    /// The limit in whole bytes per second for the kernel; `None` for no limit.
    ///
    /// Units: bytes per second, rounded down.
    /// Errors: a rate below [`Limit::RATE_MIN`], or above the mechanism's maximum.
    pub(crate) fn bytes_per_second(self, max: u64) -> Result<Option<u64>, PaceError> {
        let Self::Rate(rate) = self else { return Ok(None) };
        let bytes = rate.as_bps() / 8;
        if rate < Self::RATE_MIN || bytes > max {
            return Err(PaceError::Rate {
                rate,
                min: Self::RATE_MIN,
                max: BitRate::bps(max.saturating_mul(8)),
            });
        }
        Ok(Some(bytes))
    }
}

/// Converts the flows of these changes to canonical names, under which limits are stored.
pub fn canonical<C: Into<Connection> + Copy>(changes: &[(C, Limit)]) -> Vec<(Connection, Limit)> {
    let change = |(connection, limit): &(C, Limit)| {
        let Connection { flow, cookie } = (*connection).into();
        (Connection { flow: flow.canonical(), cookie }, *limit)
    };
    changes.iter().map(change).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_accepted_only_within_their_bounds() {
        let bytes = |bps| Limit::Rate(BitRate::bps(bps)).bytes_per_second(u64::from(u32::MAX) - 1).ok();
        assert_eq!(bytes(8_000), Some(Some(1_000)));
        assert_eq!(bytes(7_999), None);
        assert_eq!(bytes(8 * (u64::from(u32::MAX) - 1)), Some(Some(u64::from(u32::MAX) - 1)));
        assert_eq!(bytes(8 * u64::from(u32::MAX)), None);
        assert_eq!(Limit::None.bytes_per_second(0).ok(), Some(None));
    }
}
