//! FNV-1a and a finaliser, which distinguish texts but do not protect against forgery.

/// FNV-1a of 64 bits (Fowler, Noll, Vo).
///
/// ```
/// assert_eq!(anabranch_units::fnv1a(*b"a"), 0xaf63_dc4c_8601_ec8c);
/// ```
pub fn fnv1a(bytes: impl IntoIterator<Item = u8>) -> u64 {
    let add = |hash: u64, byte: u8| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, add)
}

/// Finaliser of MurmurHash3 for 64 bits (Appleby): each input bit changes half of the output bits.
///
/// ```
/// assert_eq!(anabranch_units::mix64(0), 0);
/// assert_eq!(anabranch_units::mix64(1), 0xb456_bcfc_34c2_cb2c);
/// ```
pub fn mix64(word: u64) -> u64 {
    let word = (word ^ (word >> 33)).wrapping_mul(0xff51_afd7_ed55_8ccd);
    let word = (word ^ (word >> 33)).wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    word ^ (word >> 33)
}
