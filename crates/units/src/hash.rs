//! FNV-1a: distinguishes texts, but is no protection against a forger.

/// FNV-1a of 64 bits (Fowler, Noll, Vo).
///
/// ```
/// assert_eq!(anabranch_units::fnv1a(*b"a"), 0xaf63_dc4c_8601_ec8c);
/// ```
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, add)
}
