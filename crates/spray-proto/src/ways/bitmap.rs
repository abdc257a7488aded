//! A bitmap of ways: all in turns, but those whose packets came back marked are passed over as often as they were, and those whose packets
//! did not come for longer.
//!
//! Source: the public simulator of the Ultra Ethernet Consortium (htsim, `uec_mp`), whose bitmap has penalties up to 15: one for a mark, the
//! most for a packet that did not come.

use super::{Fate, Spreader};
use anabranch_units::{Instant, RandomStream};

/// How many ways there are.
const WAYS: usize = 128;
const PENALTY_MAX: u8 = 15;

/// How often each way is still to be passed over.
#[derive(Debug)]
pub(super) struct Bitmap {
    penalties: Vec<u8>,
    next: usize,
    /// Flows begin with different ways, and take them in different orders.
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
    fn handle_fate(&mut self, _: Instant, value: u16, fate: Fate) {
        let Some(penalty) = self.penalties.get_mut(usize::from(value)) else { return };
        *penalty = match fate {
            Fate::Came => return,
            Fate::Marked => (*penalty + 1).min(PENALTY_MAX),
            Fate::Late => PENALTY_MAX,
        };
    }
}
