//! LetFlow: a flow changes to another random path after a pause that is long enough to prevent
//! overtaking.
//!
//! Source: Vanini and others, *Let It Flow: Resilient Asymmetric Load Balancing with Flowlet
//! Switching* (2017), sections 3 and 4: a pause of 500 us, and a table of hashed flows without
//! tags, so that two flows in one slot count as one flow.

use super::PolicyInput;
use super::ecmp::Ecmp;
use super::rps::Rps;
use anabranch_units::{Duration, RandomStream, RunInstant};

/// Pause after which a flow may take another path.
const PAUSE: Duration = Duration::from_us(500);
/// Number of slots for flows.
const FLOWS: u32 = 1 << 14;

/// State of the policy: time and path of the last packet in each slot.
#[derive(Clone, Debug)]
pub struct LetFlow {
    hash: Ecmp,
    draw: Rps,
    /// Allocated at the first packet, because most switches of a large network never choose a path.
    places: Vec<(RunInstant, u32)>,
}

impl LetFlow {
    pub(super) fn drawn(stream: &dyn Fn(&str) -> RandomStream) -> Self {
        Self { hash: Ecmp::drawn(stream), draw: Rps::drawn(stream), places: Vec::new() }
    }

    #[inline]
    pub(super) fn choose(&mut self, view: &PolicyInput<'_>) -> u32 {
        if self.places.is_empty() {
            self.places = vec![(RunInstant::ZERO, u32::MAX); FLOWS as usize];
        }
        let (last, way) = &mut self.places[self.hash.way(view, FLOWS) as usize];
        if *way >= view.count() || view.now.saturating_since(*last) > PAUSE {
            *way = self.draw.choose(view);
        }
        *last = view.now;
        *way
    }
}
