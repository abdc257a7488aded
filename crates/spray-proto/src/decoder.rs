//! The receiving end of a short flow: recovers lost or late packets from parities, and delivers
//! packets to TCP in order.
//!
//! The decoder waits for an overtaken packet as long as it may still be in flight. After that time
//! TCP sees the gap and recovers the loss itself. A packet that arrives after the wait is delivered
//! at once. Duplicates, and packets already recovered, are dropped. Source: CAPS, sections IV and
//! VI-A. Differs: the paper's receiver has no time limit on holding. Read [`Decoder`] first.

use crate::memory::{PACKET_BYTES, SKIPPED_BYTES, UNIT_BYTES};
use crate::packet::{Packet, UNIT_MAX};
use anabranch_units::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Maximum number of remembered units, and of remembered numbers of given-up packets. Above it the
/// oldest are forgotten.
const UNITS_MAX: usize = 16;
const SKIPPED_MAX: usize = 512;
/// Limit of packet numbers. A sender starts a new epoch at half of it.
pub(crate) const NUMBER_MAX: u32 = 1 << 31;

/// A flow's out-of-order packets, and the packets needed for recovery.
#[derive(Clone, Debug)]
pub(crate) struct Decoder<P> {
    /// Number of the next packet to deliver.
    next: u32,
    /// Recently delivered packets, oldest first; `None` for a packet that was given up.
    recent: VecDeque<Option<P>>,
    /// Packets beyond a gap, each with its deadline for the gap.
    held: BTreeMap<u32, (P, Instant)>,
    /// Parities, by the first packet of their unit.
    units: BTreeMap<u32, Parities<P>>,
    /// Maximum number of held packets.
    held_max: usize,
    /// Maximum time that a recovered packet waits for a gap, and that a unit waits for its packets.
    /// `None` means no limit, which the published figures of simulations assume.
    hold_max: Option<Duration>,
    /// Number from which packets have no parities, so that no packet is kept for recovery. `None`
    /// for a short flow.
    parities_end: Option<u32>,
    /// Bytes of packets and parities, with their overheads.
    bytes: u64,
    /// Numbers of given-up packets that have not arrived.
    skipped: BTreeSet<u32>,
    until: Option<Instant>,
    pub(crate) counts: DecoderCounts,
}

#[derive(Clone, Debug)]
struct Parities<P> {
    packets: u8,
    parities: Vec<(u8, P)>,
    /// Expiry of the unit: its last parity's arrival plus the longest hold.
    until: Instant,
}

impl<P: Packet> Parities<P> {
    fn bytes(&self) -> u64 {
        UNIT_BYTES + self.parities.iter().map(|(_, parity)| packet_bytes(parity)).sum::<u64>()
    }
}

/// Bytes charged for a held packet.
fn packet_bytes<P: Packet>(packet: &P) -> u64 {
    packet.len_bytes() as u64 + PACKET_BYTES
}

/// Bytes charged for an entry of the recent packets.
fn recent_bytes<P: Packet>(packet: Option<&P>) -> u64 {
    packet.map_or(PACKET_BYTES, packet_bytes)
}

/// Counters of the decoder.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DecoderCounts {
    /// Packets recovered from parities.
    pub(crate) recovered: u64,
    /// Packets and parities that arrived but were not needed.
    pub(crate) surplus: u64,
    /// Missing packets for which the decoder stopped waiting.
    pub(crate) given_up: u64,
    /// Packets received ahead of a gap.
    pub(crate) early: u64,
}

impl<P: Packet> Decoder<P> {
    /// Creates the decoder of a flow that holds at most `held_max` packets. `hold_max` is the
    /// maximum wait of recovered packets and of units.
    pub(crate) const fn new(held_max: usize, hold_max: Option<Duration>) -> Self {
        Self {
            next: 0,
            held_max,
            hold_max,
            parities_end: None,
            bytes: 0,
            recent: VecDeque::new(),
            held: BTreeMap::new(),
            units: BTreeMap::new(),
            skipped: BTreeSet::new(),
            until: None,
            counts: DecoderCounts { recovered: 0, surplus: 0, given_up: 0, early: 0 },
        }
    }

    /// Number of packets that wait for a gap.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }
    /// Bytes of packets and parities, with their overheads.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Counts [`Decoder::bytes`] again, from the packets themselves.
    pub(crate) fn recounted(&self) -> u64 {
        let held = self.held.values().map(|(packet, _)| packet_bytes(packet)).sum::<u64>();
        let recent = self.recent.iter().map(|packet| recent_bytes(packet.as_ref())).sum::<u64>();
        held + recent + self.units.values().map(Parities::bytes).sum::<u64>()
    }
    /// Bytes charged for the numbers of given-up packets.
    pub(crate) fn skipped_bytes(&self) -> u64 {
        self.skipped.len() as u64 * SKIPPED_BYTES
    }
    /// Marks the flow as long: packets with numbers above all current numbers get no parities.
    pub(crate) fn end_parities(&mut self) {
        let beyond = self.held.last_key_value().map_or(self.next, |(number, _)| number + 1);
        self.parities_end.get_or_insert(beyond);
    }
    /// Deadline of the current gap.
    pub(crate) const fn due(&self) -> Option<Instant> {
        self.until
    }

    /// Handles a source packet; `hold` is the maximum wait for earlier packets. Appends deliverable
    /// packets to `out`.
    pub(crate) fn handle_source(
        &mut self,
        (now, hold): (Instant, Duration),
        (number, packet): (u32, P),
        coder: &mut P::Coder,
        out: &mut Vec<P>,
    ) {
        if number > NUMBER_MAX {
            self.counts.surplus += 1;
            return;
        }
        if number < self.next {
            if self.skipped.remove(&number) {
                return out.push(packet);
            }
            self.counts.surplus += 1;
            return;
        }
        if self.held.contains_key(&number) {
            self.counts.surplus += 1;
            return;
        }
        self.counts.early += u64::from(number > self.next);
        let until = now + hold;
        self.hold(number, packet, until);
        if number > self.next && self.units.is_empty() {
            // The packet makes no packet deliverable.
            self.until = Some(self.until.map_or(until, |first| first.min(until)));
        } else {
            self.settle(now, coder, out);
        }
        while self.held.len() > self.held_max {
            self.give_up(out);
        }
    }

    /// Deadline of a gap before a packet recovered now.
    fn mended_until(&self, now: Instant) -> Instant {
        self.hold_max.map_or(Instant::MAX, |hold| now + hold)
    }

    fn hold(&mut self, number: u32, packet: P, until: Instant) {
        self.bytes += packet_bytes(&packet);
        self.held.insert(number, (packet, until));
    }

    pub(crate) fn handle_parity(
        &mut self,
        now: Instant,
        (first, packets): (u32, u8),
        (index, parity): (u8, P),
        coder: &mut P::Coder,
        out: &mut Vec<P>,
    ) {
        let end = first.checked_add(packets.into());
        let fits = (1..=UNIT_MAX).contains(&usize::from(packets)) && usize::from(index) < UNIT_MAX;
        if !fits || end.is_none_or(|end| self.is_over(first, end)) {
            self.counts.surplus += 1;
            return;
        }
        let until = self.mended_until(now);
        let unit = self.units.entry(first).or_insert_with(|| {
            self.bytes += UNIT_BYTES;
            Parities { packets, parities: Vec::new(), until }
        });
        if unit.packets != packets || unit.parities.iter().any(|(known, _)| *known == index) {
            self.counts.surplus += 1;
            return;
        }
        self.bytes += packet_bytes(&parity);
        unit.parities.push((index, parity));
        unit.until = until;
        if self.units.len() > UNITS_MAX
            && let Some((_, unit)) = self.units.pop_first()
        {
            self.bytes -= unit.bytes();
        }
        self.settle(now, coder, out);
    }

    /// Gives up the gaps whose deadline has passed.
    pub(crate) fn handle_timeout(&mut self, now: Instant, out: &mut Vec<P>) {
        while self.until.is_some_and(|until| until <= now) {
            self.give_up(out);
        }
    }

    /// Delivers all held packets, across gaps.
    pub(crate) fn finish(&mut self, out: &mut Vec<P>) {
        while !self.held.is_empty() {
            self.give_up(out);
        }
    }

    /// Resets to packet 0, with nothing held.
    pub(crate) fn restart(&mut self) {
        *self = Self { counts: self.counts, ..Self::new(self.held_max, self.hold_max) };
    }

    /// Drops the parities of expired units.
    pub(crate) fn expire(&mut self, now: Instant) {
        let (bytes, surplus) = (&mut self.bytes, &mut self.counts.surplus);
        self.units.retain(|_, unit| {
            let stays = unit.until > now;
            if !stays {
                *bytes -= unit.bytes();
                *surplus += unit.parities.len() as u64;
            }
            stays
        });
    }

    /// Frees the memory of all packets. Held packets are delivered, parities are dropped.
    pub(crate) fn shed(&mut self, out: &mut Vec<P>) {
        self.finish(out);
        self.counts.surplus += self.units.values().map(|unit| unit.parities.len() as u64).sum::<u64>();
        (self.units, self.held, self.recent) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        self.bytes = 0;
    }

    /// Recovers and delivers as many packets as possible.
    fn settle(&mut self, now: Instant, coder: &mut P::Coder, out: &mut Vec<P>) {
        self.advance(out);
        while let Some((first, recovered)) = self.mend(coder) {
            let unit = self.units.remove(&first).expect("it was found just now");
            self.bytes -= unit.bytes();
            self.counts.surplus += (unit.parities.len() - recovered.len()) as u64;
            for (number, packet) in recovered {
                self.counts.recovered += 1;
                if number >= self.next {
                    self.hold(number, packet, self.mended_until(now));
                } else if self.skipped.remove(&number) {
                    out.push(packet);
                }
            }
            self.advance(out);
        }
        self.until = self.held.values().map(|(_, until)| *until).min();
    }

    /// Recovers the packets of the first unit with enough parities. Returns the unit, and the
    /// packets by number.
    fn mend(&mut self, coder: &mut P::Coder) -> Option<(u32, Vec<(u32, P)>)> {
        while let Some((first, unit)) = self.units.first_key_value()
            && self.is_over(*first, first + u32::from(unit.packets))
        {
            let Some((_, unit)) = self.units.pop_first() else { break };
            self.bytes -= unit.bytes();
            self.counts.surplus += unit.parities.len() as u64;
        }
        loop {
            let candidate = self.units.iter().find_map(|(first, unit)| {
                let numbers = *first..*first + u32::from(unit.packets);
                let packets: Vec<Option<P>> = numbers.map(|number| self.there(number)).collect();
                let lost = packets.iter().filter(|packet| packet.is_none()).count();
                (1..=unit.parities.len()).contains(&lost).then_some((*first, packets, lost))
            });
            let (first, packets, lost) = candidate?;
            let Some(back) = P::recover(coder, &packets, &self.units[&first].parities[..lost]) else {
                // The packets and parities are inconsistent.
                self.bytes -= self.units.remove(&first).map_or(0, |unit| unit.bytes());
                continue;
            };
            let numbers =
                (first..).zip(&packets).filter(|(_, packet)| packet.is_none()).map(|(number, _)| number);
            return Some((first, numbers.zip(back).collect()));
        }
    }

    /// Returns true if all packets of a range of numbers have arrived.
    fn is_over(&self, first: u32, end: u32) -> bool {
        end <= self.next && self.skipped.range(first..end).next().is_none()
    }

    fn there(&self, number: u32) -> Option<P> {
        match self.next.checked_sub(number) {
            None | Some(0) => self.held.get(&number).map(|(packet, _)| packet.clone()),
            Some(back) => self.recent.get(self.recent.len().checked_sub(back as usize)?).cloned().flatten(),
        }
    }

    fn advance(&mut self, out: &mut Vec<P>) {
        while let Some((packet, _)) = self.held.remove(&self.next) {
            self.bytes -= packet_bytes(&packet);
            self.step(Some(packet.clone()));
            out.push(packet);
        }
    }

    fn step(&mut self, packet: Option<P>) {
        let is_kept = self.parities_end.is_none_or(|end| self.next < end);
        self.next += 1;
        let packet = packet.filter(|_| is_kept);
        if packet.is_none() && self.recent.is_empty() {
            return;
        }
        if self.recent.len() == UNIT_MAX
            && let Some(oldest) = self.recent.pop_front()
        {
            self.bytes -= recent_bytes(oldest.as_ref());
        }
        self.bytes += recent_bytes(packet.as_ref());
        self.recent.push_back(packet);
        if !is_kept && self.recent.iter().all(Option::is_none) {
            self.forget_recent();
        }
    }

    fn forget_recent(&mut self) {
        let recent = std::mem::take(&mut self.recent);
        self.bytes -= recent.iter().map(|packet| recent_bytes(packet.as_ref())).sum::<u64>();
    }

    /// Gives up the first gap.
    fn give_up(&mut self, out: &mut Vec<P>) {
        let Some(first) = self.held.keys().next().copied() else { return };
        // A faulty sender may cause a wide gap, so only the numbers at the gap's end are
        // remembered.
        let skipped = first - self.next;
        self.counts.given_up += u64::from(skipped);
        if skipped > UNIT_MAX as u32 {
            self.next = first - UNIT_MAX as u32;
            self.forget_recent();
        }
        while self.next < first {
            self.skipped.insert(self.next);
            self.step(None);
        }
        while self.skipped.len() > SKIPPED_MAX {
            self.skipped.pop_first();
        }
        self.advance(out);
        self.until = self.held.values().map(|(_, until)| *until).min();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packet::Coder;
    use anabranch_endpoint::Bytes;
    use proptest::prelude::*;

    const HOLD: Duration = Duration::from_us(100);
    const HOLD_MAX: Duration = Duration::from_ms(4);

    fn packet(number: u32) -> Bytes {
        Bytes::from(vec![number as u8; 1 + number as usize % 7])
    }

    struct End {
        decoder: Decoder<Bytes>,
        coder: Coder,
        out: Vec<Bytes>,
    }

    impl End {
        fn new() -> Self {
            Self { decoder: Decoder::new(512, Some(HOLD_MAX)), coder: Coder::default(), out: Vec::new() }
        }
        fn source(&mut self, us: u64, number: u32) {
            let now = Instant::ZERO + Duration::from_us(us);
            self.decoder.handle_source((now, HOLD), (number, packet(number)), &mut self.coder, &mut self.out);
        }
        fn parity(&mut self, us: u64, (first, packets): (u32, u8), index: u8) {
            let now = Instant::ZERO + Duration::from_us(us);
            let unit: Vec<Bytes> = (first..first + u32::from(packets)).map(packet).collect();
            let parity = Bytes::parities(&mut self.coder, &unit, usize::from(index) + 1).pop().expect("one");
            let (coder, out) = (&mut self.coder, &mut self.out);
            self.decoder.handle_parity(now, (first, packets), (index, parity), coder, out);
        }
        fn timeout(&mut self, us: u64) {
            self.decoder.handle_timeout(Instant::ZERO + Duration::from_us(us), &mut self.out);
        }
        fn handed(&self) -> Vec<Bytes> {
            self.out.clone()
        }
    }
    fn packets(numbers: impl IntoIterator<Item = u32>) -> Vec<Bytes> {
        numbers.into_iter().map(packet).collect()
    }

    #[test]
    fn packets_are_delivered_in_order_and_recovered_by_parities() {
        let mut end = End::new();
        end.source(0, 0);
        end.source(1, 2);
        end.source(2, 3);
        assert_eq!(end.handed(), packets([0]));
        end.parity(3, (0, 4), 1);
        assert_eq!(end.handed(), packets(0..4));
        // A recovered packet that also arrives later is not needed.
        end.source(50, 1);
        assert_eq!(
            (end.handed(), end.decoder.counts.recovered, end.decoder.counts.surplus),
            (packets(0..4), 1, 1)
        );
        assert_eq!(end.decoder.due(), None);
    }

    #[test]
    fn gap_is_given_up_in_time_and_filled_late() {
        let mut end = End::new();
        end.source(10, 1);
        end.source(30, 3);
        assert_eq!(end.decoder.due(), Some(Instant::ZERO + Duration::from_us(110)));
        end.timeout(110);
        assert_eq!(end.handed(), packets([1]));
        end.timeout(130);
        assert_eq!(end.handed(), packets([1, 3]));
        end.source(140, 2);
        end.source(141, 0);
        end.source(142, 0);
        assert_eq!(end.handed(), packets([1, 3, 2, 0]));
        assert_eq!((end.decoder.counts.given_up, end.decoder.counts.surplus), (2, 1));
    }

    /// #48: a packet recovered beyond a gap waited for it without limit.
    #[test]
    fn recovered_packets_wait_no_longer_than_held_packets() {
        let mut end = End::new();
        end.parity(10, (5, 1), 0);
        assert!(end.handed().is_empty());
        assert_eq!(end.decoder.due(), Some(Instant::ZERO + Duration::from_us(10) + HOLD_MAX));
        end.timeout(10 + HOLD_MAX.as_us());
        assert_eq!((end.handed(), end.decoder.due()), (packets([5]), None));
    }

    /// #48: parities of a unit that never completes were kept without limit.
    #[test]
    fn units_expire_with_the_longest_hold() {
        let mut end = End::new();
        end.parity(10, (0, 4), 0);
        end.parity(20, (0, 4), 1);
        end.decoder.expire(Instant::from_us(19) + HOLD_MAX);
        assert!(end.decoder.bytes() > 0);
        end.decoder.expire(Instant::from_us(20) + HOLD_MAX);
        assert_eq!((end.decoder.bytes(), end.decoder.counts.surplus), (0, 2));
    }

    /// A long flow's packets get no parities, so none is kept after its delivery.
    #[test]
    fn packets_of_long_flows_are_not_kept() {
        let mut end = End::new();
        (0..10).for_each(|number| end.source(number.into(), number));
        assert!(end.decoder.bytes() > 0);
        end.decoder.end_parities();
        (10..10 + UNIT_MAX as u32).for_each(|number| end.source(number.into(), number));
        assert_eq!((end.decoder.bytes(), end.decoder.recounted()), (0, 0));
        assert_eq!(end.handed(), packets(0..74));
    }

    #[test]
    fn abandoned_gap_is_recovered_later() {
        let mut end = End::new();
        end.source(0, 1);
        end.timeout(100);
        end.parity(100, (0, 2), 0);
        assert_eq!(end.handed(), packets([1, 0]));
    }

    proptest! {
        /// Under any loss, delay and duplication, no packet is delivered twice and none that
        /// arrived is missing; without timeouts the order is kept.
        #[test]
        fn each_arrived_packet_is_delivered_exactly_once(
            order in Just((0u32..60).collect::<Vec<u32>>()).prop_shuffle(),
            lost in prop::collection::btree_set(0u32..60, 0..10),
            parities in prop::collection::vec((0u32..6, 0u8..3, 0usize..60), 0..20),
            again in prop::collection::vec(0u32..60, 0..20),
            timeouts in prop::collection::vec(0usize..60, 0..5),
        ) {
            let mut end = End::new();
            for (at, number) in order.iter().enumerate() {
                if !lost.contains(number) {
                    end.source(at as u64, *number);
                }
                for (unit, index, when) in &parities {
                    if *when == at {
                        end.parity(at as u64, (unit * 10, 10), *index);
                    }
                }
                if timeouts.contains(&at) {
                    end.timeout(at as u64 + 100);
                }
            }
            for number in again.iter().filter(|number| !lost.contains(number)) {
                end.source(70, *number);
            }
            if timeouts.is_empty() {
                let handed = end.handed().len() as u32;
                prop_assert_eq!(end.handed(), packets(0..handed));
            }
            end.decoder.finish(&mut end.out);
            let mut handed = end.handed();
            let came: Vec<Bytes> = packets((0..60).filter(|number| !lost.contains(number)));
            handed.sort();
            prop_assert!(handed.windows(2).all(|two| two[0] != two[1]), "{:?}", handed);
            let mut missing = came.iter().filter(|packet| handed.binary_search(packet).is_err());
            prop_assert_eq!(missing.next(), None);
        }
    }
}
