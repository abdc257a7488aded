//! Random packet spraying (RPS): every packet takes a random path.
//!
//! Source: Dixit and others, *On the impact of packet spraying in data center networks* (2013),
//! section 3: the path is drawn uniformly, regardless of queues.

use super::PolicyInput;
use anabranch_units::RandomStream;

/// State of the policy: its random stream.
#[derive(Clone, Debug)]
pub struct Rps {
    random: RandomStream,
}

impl Rps {
    /// Creates a policy that draws from `random`, which should differ between the switches of a
    /// network.
    pub const fn new(random: RandomStream) -> Self {
        Self { random }
    }

    /// Creates the policy. The stream keeps its older name, because the name determines the draws.
    pub(super) fn drawn(stream: &dyn Fn(&str) -> RandomStream) -> Self {
        Self::new(stream("spray")) // tidy-allow: systems, a stream's name
    }

    #[inline]
    pub(super) fn choose(&mut self, view: &PolicyInput<'_>) -> u32 {
        self.random.below(view.count().into()) as u32
    }
}
