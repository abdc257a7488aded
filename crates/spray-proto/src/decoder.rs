//! The receiving end of a short flow: what is lost or late comes back from parities, and TCP gets packets in order.
//!
//! A packet that others have overtaken is waited for as long as it may still be on its way, but no longer: then TCP sees the gap, and
//! does what it does about losses. What comes after all is handed over then. What came twice, or was mended already, is dropped.
//! Source: CAPS, sections IV and VI-A. Differs: the paper's receiver holds no packet back in time. Read [`Decoder`] first.

use crate::memory::{PACKET_BYTES, SKIPPED_BYTES, UNIT_BYTES};
use crate::packet::{Packet, UNIT_MAX};
use anabranch_units::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// The most units that are remembered, and gaps that were given up: the oldest of more are forgotten.
const UNITS_MAX: usize = 16;
const SKIPPED_MAX: usize = 512;
/// The highest number of a packet: a sender that has had half as many begins anew.
pub(crate) const NUMBER_MAX: u32 = 1 << 31;

/// A flow's packets that came out of order, and those with which lost ones are mended.
#[derive(Clone, Debug)]
pub(crate) struct Decoder<P> {
    /// The number of the packet that is handed over next.
    next: u32,
    /// Those handed over before it, the last one last; none for one that was given up.
    recent: VecDeque<Option<P>>,
    /// Those that came beyond a gap, and until when the gap is waited for on their account.
    held: BTreeMap<u32, (P, Instant)>,
    /// Parities by their units' first packets.
    units: BTreeMap<u32, Parities<P>>,
    /// The most that are held.
    held_max: usize,
    /// The longest that a mended packet waits for a gap, and a unit for its packets. `None`:
    /// without end, in simulators, whose published figures have it so.
    hold_max: Option<Duration>,
    /// Number from which on packets get no parities, so that none is kept for mends. `None` for a
    /// short flow.
    parities_end: Option<u32>,
    /// Bytes of packets and parities, with what each counts beside.
    bytes: u64,
    /// Packets that were given up and have not come.
    skipped: BTreeSet<u32>,
    until: Option<Instant>,
    pub(crate) counts: DecoderCounts,
}

#[derive(Clone, Debug)]
struct Parities<P> {
    packets: u8,
    parities: Vec<(u8, P)>,
    /// When the unit is given up: its last parity's arrival plus the longest hold.
    until: Instant,
}

impl<P: Packet> Parities<P> {
    fn bytes(&self) -> u64 {
        UNIT_BYTES + self.parities.iter().map(|(_, parity)| packet_bytes(parity)).sum::<u64>()
    }
}

/// Bytes that a held packet counts.
fn packet_bytes<P: Packet>(packet: &P) -> u64 {
    packet.len_bytes() as u64 + PACKET_BYTES
}

/// Bytes that a place among the recent packets counts.
fn recent_bytes<P: Packet>(packet: Option<&P>) -> u64 {
    packet.map_or(PACKET_BYTES, packet_bytes)
}

/// What became of packets.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct DecoderCounts {
    /// Packets that parities brought back.
    pub(crate) recovered: u64,
    /// Packets and parities that were of no use.
    pub(crate) surplus: u64,
    /// Packets that were no longer waited for.
    pub(crate) given_up: u64,
    /// Packets that came beyond a gap.
    pub(crate) early: u64,
}

impl<P: Packet> Decoder<P> {
    /// The start of a flow that holds at most `held_max` packets; mended packets and units wait for
    /// `hold_max`.
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

    /// How many packets wait for a gap.
    pub(crate) fn held(&self) -> usize {
        self.held.len()
    }
    /// Bytes of packets and parities, with what each counts beside.
    pub(crate) const fn bytes(&self) -> u64 {
        self.bytes
    }
    /// Recount of [`Decoder::bytes`] from the packets themselves.
    pub(crate) fn recounted(&self) -> u64 {
        let held = self.held.values().map(|(packet, _)| packet_bytes(packet)).sum::<u64>();
        let recent = self.recent.iter().map(|packet| recent_bytes(packet.as_ref())).sum::<u64>();
        held + recent + self.units.values().map(Parities::bytes).sum::<u64>()
    }
    /// Bytes that the numbers of gaps count.
    pub(crate) fn skipped_bytes(&self) -> u64 {
        self.skipped.len() as u64 * SKIPPED_BYTES
    }
    /// Notes that the flow is long: packets with higher numbers than any so far get no parities.
    pub(crate) fn end_parities(&mut self) {
        let beyond = self.held.last_key_value().map_or(self.next, |(number, _)| number + 1);
        self.parities_end.get_or_insert(beyond);
    }
    /// When a gap is given up.
    pub(crate) const fn due(&self) -> Option<Instant> {
        self.until
    }

    /// A source packet has come; `hold` is how long those before it are waited for. What can be handed over goes to `out`.
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
            // Nothing can be handed over on its account.
            self.until = Some(self.until.map_or(until, |first| first.min(until)));
        } else {
            self.settle(now, coder, out);
        }
        while self.held.len() > self.held_max {
            self.give_up(out);
        }
    }

    /// Until when what is mended now waits for a gap.
    fn mended_until(&self, now: Instant) -> Instant {
        self.hold_max.map_or(Instant::MAX, |hold| now + hold)
    }

    fn hold(&mut self, number: u32, packet: P, until: Instant) {
        self.bytes += packet_bytes(&packet);
        self.held.insert(number, (packet, until));
    }

    /// A parity has come.
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

    /// Gives up the gaps whose time is over.
    pub(crate) fn handle_timeout(&mut self, now: Instant, out: &mut Vec<P>) {
        while self.until.is_some_and(|until| until <= now) {
            self.give_up(out);
        }
    }

    /// Hands over all that is held, gaps or not.
    pub(crate) fn finish(&mut self, out: &mut Vec<P>) {
        while !self.held.is_empty() {
            self.give_up(out);
        }
    }

    /// Begins again at packet 0, with nothing held.
    pub(crate) fn restart(&mut self) {
        *self = Self { counts: self.counts, ..Self::new(self.held_max, self.hold_max) };
    }

    /// Drops the parities of units whose time is over.
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

    /// Gives back the memory of all packets. Held packets are handed over, parities are dropped.
    pub(crate) fn shed(&mut self, out: &mut Vec<P>) {
        self.finish(out);
        self.counts.surplus += self.units.values().map(|unit| unit.parities.len() as u64).sum::<u64>();
        (self.units, self.held, self.recent) = (BTreeMap::new(), BTreeMap::new(), VecDeque::new());
        self.bytes = 0;
    }

    /// Hands over what is in order, and mends what can be.
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

    /// The first unit that parities make whole, and what they bring back, by number.
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
                // They do not fit together.
                self.bytes -= self.units.remove(&first).map_or(0, |unit| unit.bytes());
                continue;
            };
            let numbers =
                (first..).zip(&packets).filter(|(_, packet)| packet.is_none()).map(|(number, _)| number);
            return Some((first, numbers.zip(back).collect()));
        }
    }

    /// Whether all packets from one number to another have come.
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
        // A gap of a sender that errs may be wide: only its end can come late.
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
    fn packets_are_handed_over_in_order_and_mended_by_parities() {
        let mut end = End::new();
        end.source(0, 0);
        end.source(1, 2);
        end.source(2, 3);
        assert_eq!(end.handed(), packets([0]));
        end.parity(3, (0, 4), 1);
        assert_eq!(end.handed(), packets(0..4));
        // What was mended and comes after all is of no use.
        end.source(50, 1);
        assert_eq!(
            (end.handed(), end.decoder.counts.recovered, end.decoder.counts.surplus),
            (packets(0..4), 1, 1)
        );
        assert_eq!(end.decoder.due(), None);
    }

    #[test]
    fn a_gap_is_given_up_in_time_and_filled_when_its_packet_comes() {
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

    /// #48: a packet that was mended beyond a gap waited for it without end.
    #[test]
    fn mended_packets_wait_for_a_gap_no_longer_than_held_ones() {
        let mut end = End::new();
        end.parity(10, (5, 1), 0);
        assert!(end.handed().is_empty());
        assert_eq!(end.decoder.due(), Some(Instant::ZERO + Duration::from_us(10) + HOLD_MAX));
        end.timeout(10 + HOLD_MAX.as_us());
        assert_eq!((end.handed(), end.decoder.due()), (packets([5]), None));
    }

    /// #48: parities of a unit that is never whole were kept without end.
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

    /// A long flow's packets get no parities: none of them is kept once it was handed over.
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
    fn a_gap_that_was_given_up_is_mended_after_all() {
        let mut end = End::new();
        end.source(0, 1);
        end.timeout(100);
        end.parity(100, (0, 2), 0);
        assert_eq!(end.handed(), packets([1, 0]));
    }

    proptest! {
        /// Whatever is lost, late or doubled: nothing is handed over twice, nothing that came is missing in the end, and without timeouts all is
        /// in order.
        #[test]
        fn nothing_is_lost_or_doubled(
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
