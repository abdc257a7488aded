//! LetFlow: a flow goes on another path, drawn at random, where it has paused for long enough that nothing can be overtaken.
//!
//! Source: Vanini and others, *Let It Flow: Resilient Asymmetric Load Balancing with Flowlet Switching* (2017), sections 3 and 4: a pause of
//! 500 us, a table of hashed flows without tags, so that two flows of one place are as one.

use super::View;
use super::ecmp::Ecmp;
use super::rps::Rps;
use anabranch_units::{Duration, RandomStream, RunInstant};

/// After which pause a flow may go another way.
const PAUSE: Duration = Duration::from_us(500);
/// Places for flows.
const FLOWS: u32 = 1 << 14;

/// The policy's state: of each place when its last packet came, and which way that went.
#[derive(Clone, Debug)]
pub struct LetFlow {
    hash: Ecmp,
    draw: Rps,
    /// Made when the first packet comes: most switches of a large network never have a choice.
    places: Vec<(RunInstant, u32)>,
}

impl LetFlow {
    pub(super) fn drawn(stream: &dyn Fn(&str) -> RandomStream) -> Self {
        Self { hash: Ecmp::drawn(stream), draw: Rps::drawn(stream), places: Vec::new() }
    }

    #[inline]
    pub(super) fn choose(&mut self, view: &View<'_>) -> u32 {
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
