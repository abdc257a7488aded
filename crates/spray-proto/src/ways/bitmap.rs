//! A bitmap of paths: the paths are used in turn. A path is skipped once for a marked packet, and
//! several times for a lost packet.
//!
//! Source: the public simulator of the Ultra Ethernet Consortium (htsim, `uec_mp`), whose bitmap
//! has penalties up to 15: one for a mark, the maximum for a lost packet.

use super::{PacketFate, Spreader};
use anabranch_units::{Instant, RandomStream};

/// Number of paths.
const WAYS: usize = 128;
const PENALTY_MAX: u8 = 15;

/// Remaining skips of each path.
#[derive(Debug)]
pub(super) struct Bitmap {
    penalties: Vec<u8>,
    next: usize,
    /// Flow-specific mask, with which each flow starts at a different path and uses the paths in a
    /// different order.
    mask: usize,
}

impl Bitmap {
    pub(super) fn new(mut random: RandomStream) -> Self {
        let (next, mask) = (random.below(WAYS as u64) as usize, random.below(WAYS as u64) as usize);
        Self { penalties: vec![0; WAYS], next, mask }
    }
}

impl Spreader for Bitmap {
    fn choose(&mut self, _: Instant, _: usize) -> u16 {
        loop {
            let way = self.next ^ self.mask;
            self.next = (self.next + 1) % WAYS;
            match self.penalties[way].checked_sub(1) {
                None => return way as u16,
                Some(left) => self.penalties[way] = left,
            }
        }
    }
    fn handle_fate(&mut self, _: Instant, value: u16, fate: PacketFate) {
        let Some(penalty) = self.penalties.get_mut(usize::from(value)) else { return };
        *penalty = match fate {
            PacketFate::Came => return,
            PacketFate::Marked => (*penalty + 1).min(PENALTY_MAX),
            PacketFate::Late => PENALTY_MAX,
        };
    }
}
