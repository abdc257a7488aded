//! Values of packets that arrived unmarked are reused; without one, the next path of the bitmap is
//! used.
//!
//! Source: the mixed mode of the public simulator of the Ultra Ethernet Consortium (htsim,
//! `uec_mp`).

use super::bitmap::Bitmap;
use super::reps::Reps;
use super::{PacketFate, Spreader};
use anabranch_units::{Instant, RandomStream};

/// The two spreaders that are combined.
#[derive(Debug)]
pub(super) struct Mixed {
    bitmap: Bitmap,
    reps: Reps,
}

impl Mixed {
    pub(super) fn new(random: RandomStream) -> Self {
        Self { bitmap: Bitmap::new(random.clone()), reps: Reps::new(random) }
    }
}

impl Spreader for Mixed {
    fn choose(&mut self, now: Instant, in_flight: usize) -> u16 {
        self.reps.recycled(now).unwrap_or_else(|| self.bitmap.choose(now, in_flight))
    }
    fn handle_fate(&mut self, now: Instant, value: u16, fate: PacketFate) {
        self.bitmap.handle_fate(now, value, fate);
        self.reps.handle_fate(now, value, fate);
    }
}
