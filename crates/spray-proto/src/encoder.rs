//! The sending end of a short flow: source packets leave at once, and parities follow when a unit
//! is complete or TCP pauses.
//!
//! A unit consists of packets that have already left, so no packet waits for it. Packets that the
//! other end has acknowledged need no parity. Source: CAPS, sections IV and VI. Leaves out: the
//! number of parities (`host`). Read [`Encoder`] first.

use crate::memory::PACKET_BYTES;
use crate::packet::{Packet, UNIT_MAX};
use anabranch_units::{Duration, Instant};
use std::collections::VecDeque;

/// TCP's initial window (RFC 6928).
const FIRST_WINDOW: u32 = 10;

/// A flow's source packets without parities.
#[derive(Clone, Debug)]
pub(crate) struct Encoder<P> {
    /// Number of the next source packet.
    next: u32,
    /// Packets before `next` that have no parities yet.
    unit: VecDeque<P>,
    /// Bitmap of acknowledged packets in `unit`; the lowest bit is the first packet.
    come: u64,
    /// Number of packets at which the unit is complete.
    whole: usize,
    began_at: Instant,
    last_at: Instant,
    /// Number below which all packets count as acknowledged or lost.
    echoed: u32,
    /// Largest number of packets in flight so far. A short flow's window rarely shrinks.
    flight_max: u32,
}

/// A complete unit, for which parities are computed.
pub(crate) struct Unit<P> {
    /// Number of its first packet.
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

    /// Observed window of TCP, in packets.
    pub(crate) fn window(&self) -> u32 {
        self.flight_max
    }
    /// Returns true if the next packet begins a unit.
    pub(crate) fn is_between(&self) -> bool {
        self.unit.is_empty()
    }
    /// Sets the size of the unit that begins.
    pub(crate) fn begin(&mut self, packets: usize) {
        self.whole = packets.clamp(1, UNIT_MAX);
    }
    /// Bytes of the kept packets, with their overheads.
    pub(crate) fn bytes(&self) -> u64 {
        self.unit.iter().map(|packet| packet.len_bytes() as u64 + PACKET_BYTES).sum()
    }
    fn flight(&self) -> u32 {
        self.next - self.echoed
    }

    /// Records a packet that leaves. Returns its number, and true if its unit is complete.
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

    /// Returns the number of a packet that leaves outside of any unit.
    ///
    /// Panics: if a unit is incomplete.
    pub(crate) fn pass(&mut self) -> u32 {
        assert!(self.unit.is_empty(), "numbers of a unit follow each other");
        self.next += 1;
        self.next - 1
    }

    /// Returns true if at least `numbers` packets have been numbered.
    pub(crate) const fn is_worn_out(&self, numbers: u32) -> bool {
        self.next >= numbers
    }

    /// Handles the echo of a packet.
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

    /// Removes and returns the unit, complete or not. `None` if the unit is empty.
    pub(crate) fn take(&mut self) -> Option<Unit<P>> {
        let first = self.next - self.unit.len() as u32;
        self.come = 0;
        (!self.unit.is_empty()).then(|| Unit { first, packets: self.unit.drain(..).collect() })
    }

    /// Time at which parities of an incomplete unit are due: TCP has paused for `idle`, or the unit
    /// is `most` old.
    pub(crate) fn due(&self, idle: Duration, most: Duration) -> Option<Instant> {
        (!self.unit.is_empty()).then(|| (self.last_at + idle).min(self.began_at + most))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_endpoint::Bytes;

    #[test]
    fn unit_is_complete_at_its_size_and_forgets_arrivals() {
        let mut encoder = Encoder::<Bytes>::new();
        let at = |us| Instant::ZERO + Duration::from_us(us);
        assert!(encoder.is_between() && encoder.take().is_none());
        encoder.begin(3);
        let push = |encoder: &mut Encoder<Bytes>, us| encoder.push(at(us), Bytes::from_static(b"x"));
        assert_eq!(push(&mut encoder, 0), (0, false));
        assert_eq!(push(&mut encoder, 1), (1, false));
        let (idle, most) = (Duration::from_us(10), Duration::from_us(100));
        assert_eq!(encoder.due(idle, most), Some(at(11)));
        // The second packet is acknowledged but stays, because the first one needs it for recovery.
        encoder.handle_echo(1);
        assert_eq!(push(&mut encoder, 2), (2, true));
        encoder.handle_echo(0);
        let unit = encoder.take().expect("one is left");
        assert_eq!((unit.first, unit.packets.len()), (2, 1));
        assert_eq!(encoder.due(idle, most), None);
        // Echoes of numbers that were never sent are ignored.
        encoder.handle_echo(u32::MAX);
        assert_eq!(push(&mut encoder, 3), (3, false));
    }

    #[test]
    fn window_is_the_largest_number_in_flight() {
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
