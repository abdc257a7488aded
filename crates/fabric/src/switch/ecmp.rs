//! Equal-cost multipath: a flow keeps to one path, chosen by a hash.
//!
//! Source: RFC 2992, hash-threshold. The hash is splitmix64's finaliser over source, destination
//! and flow (in place of the five-tuple), the entropy that a sender may vary, and the switch's
//! salt. The salt makes the layers of a network choose independently.

use super::PolicyInput;
use anabranch_units::RandomStream;

/// State of the policy: the salt of its hash.
#[derive(Clone, Debug)]
pub struct Ecmp {
    salt: u64,
}

impl Ecmp {
    /// Creates a policy with this salt, which should differ between the switches of a network.
    pub const fn new(salt: u64) -> Self {
        Self { salt }
    }

    pub(super) fn drawn(stream: &dyn Fn(&str) -> RandomStream) -> Self {
        Self::new(stream("ecmp").next_u64())
    }

    #[inline]
    pub(super) fn choose(&self, view: &PolicyInput<'_>) -> u32 {
        self.way(view, view.count())
    }

    /// Returns one of `count` paths by flow and entropy.
    #[inline]
    pub(super) fn way(&self, view: &PolicyInput<'_>, count: u32) -> u32 {
        self.hashed(view, count, view.meta.entropy)
    }

    /// Returns the path of the packet's flow, regardless of the packet's entropy.
    #[inline]
    pub(super) fn of_flow(&self, view: &PolicyInput<'_>) -> u32 {
        self.hashed(view, view.count(), 0)
    }

    #[inline]
    fn hashed(&self, view: &PolicyInput<'_>, count: u32, entropy: u16) -> u32 {
        let meta = view.meta;
        let tuple = u64::from(meta.flow) << 32 | u64::from(meta.src) << 16 | u64::from(meta.dst);
        let entropy = u64::from(entropy).wrapping_mul(0xd134_2543_de82_ef95);
        let mut z = (tuple ^ self.salt.rotate_left(17) ^ entropy).wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        ((u128::from(z) * u128::from(count)) >> 64) as u32
    }
}
