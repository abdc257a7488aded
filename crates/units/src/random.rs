//! Named random streams: one component's draws do not shift another component's draws.

use rand_core::{RngCore, SeedableRng};
use rand_xoshiro::Xoshiro256PlusPlus;

/// Seed of a run, from which every component draws a named random stream.
///
/// ```
/// use anabranch_units::Seed;
/// let seed = Seed::new(7);
/// let (mut a, mut b) = (seed.stream("loss", 3), seed.stream("loss", 3));
/// assert_eq!(a.next_u64(), b.next_u64());
/// assert_ne!(seed.stream("loss", 4).next_u64(), seed.stream("loss", 3).next_u64());
/// ```
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Seed(u64);

/// A repeatable stream of random numbers (xoshiro256++).
#[derive(Clone, Debug)]
pub struct RandomStream(Xoshiro256PlusPlus);

impl Seed {
    /// Creates the seed `n`.
    pub const fn new(n: u64) -> Self {
        Self(n)
    }
    /// Creates the stream called `name` for the component numbered `id`.
    pub fn stream(self, name: &str, id: u64) -> RandomStream {
        // FNV-1a over the name, the id and the seed; xoshiro's seeding mixes the result further
        // (splitmix64).
        let hash = crate::fnv1a(name.bytes().chain(id.to_le_bytes()).chain(self.0.to_le_bytes()));
        RandomStream(Xoshiro256PlusPlus::seed_from_u64(hash))
    }
}

impl RandomStream {
    /// Draws 64 random bits.
    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0.next_u64()
    }
    /// Draws a number below `n`, uniformly except for a bias under `n / 2^64`. Returns zero for `n`
    /// = 0.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        ((u128::from(self.next_u64()) * u128::from(n)) >> 64) as u64
    }
    /// Draws a number in [0, 1), for planners and reports.
    #[inline]
    pub fn unit_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 / (1u64 << 53) as f64
    }
    /// Returns true with a probability of `ppm` in a million.
    #[inline]
    pub fn chance_ppm(&mut self, ppm: u32) -> bool {
        self.below(1_000_000) < u64::from(ppm)
    }
    /// Puts `items` in a random order (Fisher and Yates).
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            items.swap(i, self.below(i as u64 + 1) as usize);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_of_different_names_differ() {
        let seed = Seed::new(1);
        assert_ne!(seed.stream("a", 0).next_u64(), seed.stream("b", 0).next_u64());
        assert_ne!(Seed::new(2).stream("a", 0).next_u64(), seed.stream("a", 0).next_u64());
    }

    #[test]
    fn shuffling_keeps_every_item() {
        let mut items: Vec<u32> = (0..50).collect();
        Seed::new(3).stream("order", 0).shuffle(&mut items);
        assert_ne!(items, (0..50).collect::<Vec<_>>());
        items.sort_unstable();
        assert_eq!(items, (0..50).collect::<Vec<_>>());
    }
}
