//! Formats of quantities and names for people, common to all commands.
//!
//! Leaves out: making foreign text safe to print ([`anabranch_units::text`]).

use anabranch_units::{BitRate, ByteCount};

/// Converts bytes per second to a rate for display.
pub fn rate(bytes_per_second: f64) -> BitRate {
    let bps = bytes_per_second * 8.0;
    // Three significant digits.
    let step = 10f64.powf((bps.max(1.0).log10().floor() - 2.0).max(0.0));
    BitRate::bps(((bps / step).round() * step) as u64)
}

/// Formats a size in decimal units, as for rates.
pub fn size(size: ByteCount) -> indicatif::DecimalBytes {
    indicatif::DecimalBytes(size.as_u64())
}

/// Shortens a name to at most `columns` characters by cutting its end.
pub fn fitted(name: &str, columns: usize) -> String {
    if name.chars().count() <= columns {
        return name.to_owned();
    }
    name.chars().take(columns.saturating_sub(1)).chain(['…']).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_name_is_cut_at_the_last_column() {
        assert_eq!(fitted("a-very-long-site-name", 10), "a-very-lo…");
        assert_eq!(fitted("größe", 5), "größe");
    }
}
