//! Sizes and rates: bytes, bits per second, and the transmission time of a size at a rate.

use crate::Duration;
use crate::text_form::serde_as_text;

/// A size.
///
/// Units: bytes. In text: `32 MiB`, `1.5 GB`, `64 B`; serialised as such text. A number without a
/// unit is refused.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ByteCount(u64);

/// A rate.
///
/// Units: bits per second, prefixes decimal (1 Gbit/s = 10^9 bit/s). In text: `20 Mbit/s`;
/// serialised as such text.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BitRate(u64);

/// A rate as picoseconds per byte in 32.32 fixed point, so that a transmission time needs one
/// multiplication and no division.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Serialiser {
    ps_per_byte_q32: u64,
}

impl ByteCount {
    /// Zero bytes.
    pub const ZERO: Self = Self(0);

    /// A size of `n` bytes.
    pub const fn new(n: u64) -> Self {
        Self(n)
    }
    /// A size of `n` KiB (1,024 bytes).
    pub const fn kib(n: u64) -> Self {
        Self(n << 10)
    }
    /// A size of `n` MiB (1,048,576 bytes).
    pub const fn mib(n: u64) -> Self {
        Self(n << 20)
    }
    /// Number of bytes.
    pub const fn as_u64(self) -> u64 {
        self.0
    }
}

impl std::ops::Add for ByteCount {
    type Output = Self;
    fn add(self, other: Self) -> Self {
        Self(self.0 + other.0)
    }
}
impl std::ops::AddAssign for ByteCount {
    fn add_assign(&mut self, other: Self) {
        self.0 += other.0;
    }
}
impl std::iter::Sum for ByteCount {
    fn sum<I: Iterator<Item = Self>>(iter: I) -> Self {
        iter.fold(Self::ZERO, |a, b| a + b)
    }
}

impl BitRate {
    /// A rate of `n` bit/s.
    pub const fn bps(n: u64) -> Self {
        Self(n)
    }
    /// A rate of `n` Mbit/s.
    pub const fn mbps(n: u64) -> Self {
        Self(n * 1_000_000)
    }
    /// A rate of `n` Gbit/s.
    pub const fn gbps(n: u64) -> Self {
        Self(n * 1_000_000_000)
    }
    /// Bits per second.
    pub const fn as_bps(self) -> u64 {
        self.0
    }
    /// Mbit/s, for reports.
    pub fn as_mbps_f64(self) -> f64 {
        self.0 as f64 / 1e6
    }
    /// Time to transmit `size` at this rate, rounded down to a picosecond.
    ///
    /// Panics: never. A rate of zero gives the longest duration.
    pub fn transmit_time(self, size: ByteCount) -> Duration {
        if self.0 == 0 {
            return Duration::from_ps(u64::MAX);
        }
        let ps = u128::from(size.0) * 8_000_000_000_000 / u128::from(self.0);
        Duration::from_ps(u64::try_from(ps).unwrap_or(u64::MAX))
    }
    /// The rate at which `size` is transmitted in `time`, rounded down; `None` if `time` is zero.
    pub fn average(size: ByteCount, time: Duration) -> Option<Self> {
        let ps = u128::from(time.as_ps());
        (ps > 0).then(|| Self((u128::from(size.0) * 8_000_000_000_000 / ps).min(u128::from(u64::MAX)) as u64))
    }
    /// Converts the rate for the hot path; `None` for a rate of zero.
    pub fn serialiser(self) -> Option<Serialiser> {
        (self.0 > 0).then(|| Serialiser {
            ps_per_byte_q32: ((8_000_000_000_000u128 << 32) / u128::from(self.0)) as u64,
        })
    }
}

impl std::ops::Mul<u64> for BitRate {
    type Output = Self;
    fn mul(self, n: u64) -> Self {
        Self(self.0 * n)
    }
}

impl Serialiser {
    /// Time to transmit `bytes` bytes, rounded down to a picosecond.
    #[inline]
    pub const fn time(self, bytes: u32) -> Duration {
        Duration::from_ps(((bytes as u128 * self.ps_per_byte_q32 as u128) >> 32) as u64)
    }
}

const SIZES: &[(&str, f64)] = &[
    ("B", 1.0),
    ("kB", 1e3),
    ("MB", 1e6),
    ("GB", 1e9),
    ("TB", 1e12),
    ("KiB", 1024.0),
    ("MiB", 1048576.0),
    ("GiB", 1073741824.0),
    ("TiB", 1099511627776.0),
];
const RATES: &[(&str, f64)] = &[
    ("bit/s", 1.0),
    ("kbit/s", 1e3),
    ("Mbit/s", 1e6),
    ("Gbit/s", 1e9),
    ("Tbit/s", 1e12),
    ("bps", 1.0),
    ("kbps", 1e3),
    ("Mbps", 1e6),
    ("Gbps", 1e9),
];

impl std::str::FromStr for ByteCount {
    type Err = crate::ParseQuantityError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        crate::parse_scaled(text, SIZES, Self::USUAL_UNIT, "B, kB, MB, GB, TB, KiB, MiB, GiB, TiB").map(Self)
    }
}
impl std::str::FromStr for BitRate {
    type Err = crate::ParseQuantityError;
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        crate::parse_scaled(text, RATES, Self::USUAL_UNIT, "bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s").map(Self)
    }
}

impl std::fmt::Display for ByteCount {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let n = self.0 as f64;
        match self.0 {
            0..1024 => write!(f, "{} B", self.0),
            1024..0x10_0000 => crate::write_trimmed(f, n / 1024.0, "KiB"),
            0x10_0000..0x4000_0000 => crate::write_trimmed(f, n / 1048576.0, "MiB"),
            _ => crate::write_trimmed(f, n / 1073741824.0, "GiB"),
        }
    }
}
impl std::fmt::Display for BitRate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let n = self.0 as f64;
        match self.0 {
            0..1_000 => write!(f, "{} bit/s", self.0),
            1_000..1_000_000 => crate::write_trimmed(f, n / 1e3, "kbit/s"),
            1_000_000..1_000_000_000 => crate::write_trimmed(f, n / 1e6, "Mbit/s"),
            _ => crate::write_trimmed(f, n / 1e9, "Gbit/s"),
        }
    }
}

impl ByteCount {
    const BASE_UNIT: &'static str = "B";
    const USUAL_UNIT: &'static str = "B";
    const EXAMPLE: &'static str = "64 KiB";
}
impl BitRate {
    const BASE_UNIT: &'static str = "bit/s";
    const USUAL_UNIT: &'static str = "bit/s";
    const EXAMPLE: &'static str = "20 Mbit/s";
}
impl Duration {
    pub(crate) const BASE_UNIT: &'static str = "ps";
    pub(crate) const USUAL_UNIT: &'static str = "s";
    pub(crate) const EXAMPLE: &'static str = "5 ms";
}
serde_as_text!(ByteCount);
serde_as_text!(BitRate);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn sizes_and_rates_parse_their_usual_spellings() {
        assert_eq!("32 MiB".parse(), Ok(ByteCount::mib(32)));
        assert_eq!("1500 B".parse(), Ok(ByteCount::new(1500)));
        assert_eq!("20Mbit/s".parse(), Ok(BitRate::mbps(20)));
        assert_eq!("0.5 Gbit/s".parse(), Ok(BitRate::mbps(500)));
        assert!("20".parse::<BitRate>().is_err(), "a rate without unit is a guess");
        assert!("20 MiB/s".parse::<BitRate>().is_err());
    }

    /// #17: `queue = 64` meant a queue of 64 bytes, without a warning.
    #[test]
    fn size_without_unit_is_refused_with_a_suggestion() {
        let said = "64".parse::<ByteCount>().expect_err("no unit").to_string();
        assert_eq!(
            said,
            "`64`: has no unit: write `64 B`, or use another of B, kB, MB, GB, TB, KiB, MiB, GiB, TiB"
        );
        let said = "1.5".parse::<BitRate>().expect_err("no unit").to_string();
        assert!(said.contains("write `1.5 bit/s`"), "{said}");
        let said = serde_json::from_str::<ByteCount>("64").expect_err("no unit").to_string();
        assert!(said.contains("`64`: has no unit: write `64 B`"), "{said}");
        let said = serde_json::from_str::<ByteCount>("-64").expect_err("negative").to_string();
        assert!(said.contains("in quotes, such as \"64 KiB\""), "{said}");
        assert_eq!(serde_json::to_string(&ByteCount::kib(64)).expect("text"), "\"64 KiB\"");
    }

    #[test]
    fn full_packet_takes_twelve_microseconds_at_one_gigabit() {
        let size = ByteCount::new(1500);
        assert_eq!(BitRate::gbps(1).transmit_time(size), Duration::from_us(12));
    }

    proptest! {
        #[test]
        fn serialiser_agrees_with_division_to_a_picosecond_per_packet(rate in 1_000u64..400_000_000_000, bytes in 0u32..100_000) {
            let exact = BitRate::bps(rate).transmit_time(ByteCount::new(bytes.into()));
            let fast = BitRate::bps(rate).serialiser().expect("rate is not zero").time(bytes);
            prop_assert!(exact.as_ps() - fast.as_ps() <= 1, "{} {}", exact, fast);
        }

        #[test]
        fn sizes_survive_serialisation(size: u64) {
            let size = ByteCount::new(size);
            let text = serde_json::to_string(&size).expect("a size is a string");
            prop_assert_eq!(serde_json::from_str::<ByteCount>(&text).expect("we wrote it"), size);
        }

        #[test]
        fn rates_survive_serialisation(rate: u64) {
            let rate = BitRate::bps(rate);
            let text = serde_json::to_string(&rate).expect("a rate is a string");
            prop_assert_eq!(serde_json::from_str::<BitRate>(&text).expect("we wrote it"), rate);
        }
    }
}
