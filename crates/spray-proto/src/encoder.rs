//! The sending end of a short flow: source packets leave as they come, and parities follow once a unit is whole or TCP has paused.
//!
//! Nothing waits for a unit: it is packets that have left already. What the other end is known to have needs no parity.
//! Source: CAPS, sections IV and VI. Leaves out: how many parities (`host`). Read [`Encoder`] first.

use crate::memory::PACKET_BYTES;
use crate::packet::{Packet, UNIT_MAX};
use anabranch_units::{Duration, Instant};
use std::collections::VecDeque;

/// What TCP sends before it has heard anything (RFC 6928).
const FIRST_WINDOW: u32 = 10;

/// A flow's source packets of which no parity has been made.
#[derive(Clone, Debug)]
pub(crate) struct Encoder<P> {
    /// The number of the next source packet.
    next: u32,
    /// Those before it, without parities so far.
    unit: VecDeque<P>,
    /// Which of these have come, from the lowest bit on.
    come: u64,
    /// After how many packets the unit is whole.
    whole: usize,
    began_at: Instant,
    last_at: Instant,
    /// Packets up to this one have come, or were lost.
    echoed: u32,
    /// The most packets that were on their way: a short flow's window seldom shrinks.
    flight_max: u32,
}

/// A unit that is to get parities.
pub(crate) struct Unit<P> {
    /// The number of its first packet.
    pub(crate) first: u32,
    pub(crate) packets: Vec<P>,
}

impl<P: Packet> Encoder<P> {
    pub(crate) const fn new() -> Self {
        Self {
            next: 0,
            unit: VecDeque::new(),
            come: 0,
            whole: 1,
            began_at: Instant::ZERO,
            last_at: Instant::ZERO,
            echoed: 0,
            flight_max: FIRST_WINDOW,
        }
    }

    /// Packets of TCP's window, as far as they show.
    pub(crate) fn window(&self) -> u32 {
        self.flight_max
    }
    /// Whether the next packet begins a unit.
    pub(crate) fn is_between(&self) -> bool {
        self.unit.is_empty()
    }
    /// The unit that begins is to have so many packets.
    pub(crate) fn begin(&mut self, packets: usize) {
        self.whole = packets.clamp(1, UNIT_MAX);
    }
    /// Bytes of the packets that are kept, with what each counts beside.
    pub(crate) fn bytes(&self) -> u64 {
        self.unit.iter().map(|packet| packet.len_bytes() as u64 + PACKET_BYTES).sum()
    }
    fn flight(&self) -> u32 {
        self.next - self.echoed
    }

    /// Takes in a packet that leaves; its number, and whether its unit is whole.
    pub(crate) fn push(&mut self, now: Instant, packet: P) -> (u32, bool) {
        if self.unit.is_empty() {
            self.began_at = now;
        }
        self.last_at = now;
        self.unit.push_back(packet);
        self.next += 1;
        self.flight_max = self.flight_max.max(self.flight());
        (self.next - 1, self.unit.len() >= self.whole)
    }

    /// The number of a packet that leaves and is part of no unit.
    ///
    /// Panics: a unit is under way.
    pub(crate) fn pass(&mut self) -> u32 {
        assert!(self.unit.is_empty(), "numbers of a unit follow each other");
        self.next += 1;
        self.next - 1
    }

    /// Whether so many packets have been numbered.
    pub(crate) const fn is_worn_out(&self, numbers: u32) -> bool {
        self.next >= numbers
    }

    /// A packet has come.
    pub(crate) fn handle_echo(&mut self, number: u32) {
        if number < self.next {
            self.echoed = self.echoed.max(number + 1);
        }
        let first = self.next - self.unit.len() as u32;
        if (first..self.next).contains(&number) {
            self.come |= 1 << (number - first);
        }
        while self.come & 1 == 1 && self.unit.pop_front().is_some() {
            self.come >>= 1;
        }
    }

    /// Takes the unit as it is; none where nothing is without parities.
    pub(crate) fn take(&mut self) -> Option<Unit<P>> {
        let first = self.next - self.unit.len() as u32;
        self.come = 0;
        (!self.unit.is_empty()).then(|| Unit { first, packets: self.unit.drain(..).collect() })
    }

    /// When parities are due although the unit is not whole: TCP has paused for `idle`, or the unit is `most` old.
    pub(crate) fn due(&self, idle: Duration, most: Duration) -> Option<Instant> {
        (!self.unit.is_empty()).then(|| (self.last_at + idle).min(self.began_at + most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_endpoint::Bytes;

    #[test]
    fn a_unit_is_whole_at_its_size_and_forgets_what_has_come() {
        let mut encoder = Encoder::<Bytes>::new();
        let at = |us| Instant::ZERO + Duration::from_us(us);
        assert!(encoder.is_between() && encoder.take().is_none());
        encoder.begin(3);
        let push = |encoder: &mut Encoder<Bytes>, us| encoder.push(at(us), Bytes::from_static(b"x"));
        assert_eq!(push(&mut encoder, 0), (0, false));
        assert_eq!(push(&mut encoder, 1), (1, false));
        let (idle, most) = (Duration::from_us(10), Duration::from_us(100));
        assert_eq!(encoder.due(idle, most), Some(at(11)));
        // The second has come: it stays, as the first is needed with it.
        encoder.handle_echo(1);
        assert_eq!(push(&mut encoder, 2), (2, true));
        encoder.handle_echo(0);
        let unit = encoder.take().expect("one is left");
        assert_eq!((unit.first, unit.packets.len()), (2, 1));
        assert_eq!(encoder.due(idle, most), None);
        // Echoes of what was never sent are none.
        encoder.handle_echo(u32::MAX);
        assert_eq!(push(&mut encoder, 3), (3, false));
    }

    #[test]
    fn the_window_is_what_is_on_its_way() {
        let mut encoder = Encoder::<Bytes>::new();
        assert_eq!(encoder.window(), FIRST_WINDOW);
        for n in 0..40 {
            encoder.push(Instant::ZERO, Bytes::new());
            assert_eq!(encoder.window(), FIRST_WINDOW.max(n + 1));
            if n % 20 == 19 {
                encoder.take();
            }
        }
        (0..35).for_each(|number| encoder.handle_echo(number));
        assert_eq!(encoder.window(), 40, "it was so large");
    }
}
