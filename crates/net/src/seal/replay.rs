//! Replay window: a bitmap of the newest received packet numbers, which advances with the highest
//! number.
//!
//! Source: RFC 4303, section 3.4.3 (which packets to accept); RFC 6479 (a ring of words, so that an
//! advance clears words instead of shifting all). Read [`Window`] first.

use super::OpenError;

/// Size of the replay window in packet numbers: 16 ms of datagrams of 1,200 bytes at 10 Gbit/s.
pub const WINDOW: u64 = 16_384;
const WORD_BITS: u64 = 64;
/// Words in the ring: one more than the window needs, because the window rarely starts at a word
/// boundary.
const WORDS: u64 = WINDOW / WORD_BITS + 1;

/// Bitmap of the last [`WINDOW`] numbers.
pub(super) struct Window {
    words: [u64; WORDS as usize],
    /// One more than the highest marked number.
    next: u64,
}

impl Window {
    pub(super) fn new() -> Self {
        Self { words: [0; WORDS as usize], next: 0 }
    }

    /// One more than the highest marked number.
    pub(super) const fn next(&self) -> u64 {
        self.next
    }

    fn place(number: u64) -> (usize, u64) {
        ((number / WORD_BITS % WORDS) as usize, 1 << (number % WORD_BITS))
    }

    /// Checks that `number` may still be marked.
    pub(super) fn check(&self, number: u64) -> Result<(), OpenError> {
        if number >= self.next {
            return Ok(());
        }
        if self.next - number > WINDOW {
            return Err(OpenError::TooOld { number });
        }
        let (word, bit) = Self::place(number);
        if self.words[word] & bit != 0 { Err(OpenError::Replayed { number }) } else { Ok(()) }
    }

    /// Marks a number that passed [`Window::check`]. The number must be below `u64::MAX`.
    pub(super) fn mark(&mut self, number: u64) {
        if number >= self.next {
            // The words above the highest number's word hold numbers that have left the window.
            let (newest, to) = (self.next.saturating_sub(1) / WORD_BITS, number / WORD_BITS);
            for word in newest + 1..=to.min(newest + WORDS) {
                self.words[(word % WORDS) as usize] = 0;
            }
            self.next = number + 1;
        }
        let (word, bit) = Self::place(number);
        self.words[word] |= bit;
    }
}
