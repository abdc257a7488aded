//! Random packet spraying (RPS): every packet takes a path of its own.
//!
//! Source: Dixit and others, *On the impact of packet spraying in data center networks* (2013), section 3: uniform, without
//! regard to queues.

use super::View;
use anabranch_units::RandomStream;

/// The policy's state: its random stream.
#[derive(Clone, Debug)]
pub struct Rps {
    random: RandomStream,
}

impl Rps {
    /// A policy that draws from `random`, which each switch of a network should have of its own.
    pub const fn new(random: RandomStream) -> Self {
        Self { random }
    }

    /// The stream's name decides what is drawn: it is what it was before the policy's was changed.
    pub(super) fn drawn(stream: &dyn Fn(&str) -> RandomStream) -> Self {
        Self::new(stream("spray")) // tidy-allow: systems, a stream's name
    }

    #[inline]
    pub(super) fn choose(&mut self, view: &View<'_>) -> u32 {
        self.random.below(view.count().into()) as u32
    }
}
