//! Packets in the form in which the layer codes them: bytes on a wire, or the simulator's
//! substitute.
//!
//! Read [`Packet`] first.

use anabranch_codes::mds::Unit;
use anabranch_endpoint::Bytes;
use std::collections::BTreeMap;

/// A packet that can be part of a unit.
pub trait Packet: Clone {
    /// State shared between units, such as precomputed coefficients.
    type Coder: Default;
    /// Length of the packet in bytes.
    fn len_bytes(&self) -> usize;
    /// Computes `count` parities of these packets.
    ///
    /// Shape: 1 to 64 packets; the number of parities is 0 to 64.
    fn parities(coder: &mut Self::Coder, packets: &[Self], count: usize) -> Vec<Self>;
    /// Recovers the lost packets, in order, from the received packets and parities.
    ///
    /// Shape: `packets` has an entry for each packet of the unit, `None` for a lost one. `parities`
    /// are numbered from 0, and are at least as many as the lost packets.
    /// Errors: `None` if the input is inconsistent, which only a faulty or malicious sender causes.
    fn recover(
        coder: &mut Self::Coder,
        packets: &[Option<Self>],
        parities: &[(u8, Self)],
    ) -> Option<Vec<Self>>;
}

/// Maximum number of packets in a unit, and of parities.
pub const UNIT_MAX: usize = 64;
/// Bytes of the length that precedes each coded packet, because packets of a unit differ in length.
pub(crate) const LENGTH_BYTES: usize = 2;
/// Maximum number of units with cached coefficients.
const UNITS_MAX: usize = 64;

/// Cached coefficients of units, by number of packets and of parities.
#[derive(Debug, Default)]
pub struct Coder(BTreeMap<(usize, usize), Unit>);

impl Coder {
    fn unit(&mut self, packets: usize, parities: usize) -> Option<&Unit> {
        if self.0.len() >= UNITS_MAX && !self.0.contains_key(&(packets, parities)) {
            self.0.clear();
        }
        match self.0.entry((packets, parities)) {
            std::collections::btree_map::Entry::Occupied(there) => Some(there.into_mut()),
            std::collections::btree_map::Entry::Vacant(place) => {
                Some(place.insert(Unit::new(packets, parities).ok()?))
            }
        }
    }
}

/// Prefixes a packet with its length.
fn framed(packet: &[u8]) -> Vec<u8> {
    let length = u16::try_from(packet.len()).expect("packets are shorter than 64 KiB");
    [&length.to_be_bytes(), packet].concat()
}

impl Packet for Bytes {
    type Coder = Coder;

    fn len_bytes(&self) -> usize {
        self.len()
    }

    fn parities(coder: &mut Coder, packets: &[Self], count: usize) -> Vec<Self> {
        let Some(unit) = coder.unit(packets.len(), count).filter(|_| count > 0) else { return Vec::new() };
        let framed: Vec<Vec<u8>> = packets.iter().map(|packet| framed(packet)).collect();
        let len = framed.iter().map(Vec::len).max().unwrap_or_default();
        let mut parities = vec![vec![0; len]; count];
        let blocks: Vec<&[u8]> = framed.iter().map(Vec::as_slice).collect();
        unit.encode(&blocks, &mut parities.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>());
        parities.into_iter().map(Bytes::from).collect()
    }

    fn recover(coder: &mut Coder, packets: &[Option<Self>], parities: &[(u8, Self)]) -> Option<Vec<Self>> {
        let (_, first) = parities.first()?;
        let len = first.len();
        if len < LENGTH_BYTES || parities.iter().any(|(_, parity)| parity.len() != len) {
            return None;
        }
        let framed: Vec<Option<Vec<u8>>> =
            packets.iter().map(|packet| packet.as_ref().map(|packet| framed(packet))).collect();
        if framed.iter().flatten().any(|packet| packet.len() > len) {
            return None;
        }
        let numbers = usize::from(parities.iter().map(|(number, _)| *number).max()?) + 1;
        let unit = coder.unit(packets.len(), numbers)?;
        let mut there: Vec<Option<&[u8]>> = framed.iter().map(Option::as_deref).collect();
        there.resize(packets.len() + numbers, None);
        for (number, parity) in parities {
            there[packets.len() + usize::from(*number)] = Some(parity);
        }
        let lost = packets.iter().filter(|packet| packet.is_none()).count();
        let mut outputs = vec![vec![0; len]; lost];
        unit.recover(&there, &mut outputs.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>()).ok()?;
        let unframed = |output: Vec<u8>| {
            let length = usize::from(u16::from_be_bytes([output[0], output[1]]));
            Bytes::from(output).get(LENGTH_BYTES..LENGTH_BYTES + length).map(Bytes::copy_from_slice)
        };
        outputs.into_iter().map(unframed).collect()
    }
}

/// A packet's bytes as sent, with its congestion mark (ECN) stored separately. Setting the mark in
/// the header before recovery would change the coded bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarriedPacket {
    /// The bytes.
    pub bytes: Bytes,
    /// True if the packet arrived with a congestion mark.
    pub is_marked: bool,
}

impl From<Bytes> for CarriedPacket {
    fn from(bytes: Bytes) -> Self {
        Self { bytes, is_marked: false }
    }
}

impl Packet for CarriedPacket {
    type Coder = Coder;

    fn len_bytes(&self) -> usize {
        self.bytes.len()
    }
    fn parities(coder: &mut Coder, packets: &[Self], count: usize) -> Vec<Self> {
        let packets: Vec<Bytes> = packets.iter().map(|packet| packet.bytes.clone()).collect();
        Bytes::parities(coder, &packets, count).into_iter().map(Self::from).collect()
    }
    fn recover(coder: &mut Coder, packets: &[Option<Self>], parities: &[(u8, Self)]) -> Option<Vec<Self>> {
        let bytes = |packet: &Option<Self>| packet.as_ref().map(|packet| packet.bytes.clone());
        let packets: Vec<Option<Bytes>> = packets.iter().map(bytes).collect();
        let parities: Vec<(u8, Bytes)> =
            parities.iter().map(|(index, parity)| (*index, parity.bytes.clone())).collect();
        Some(Bytes::recover(coder, &packets, &parities)?.into_iter().map(Self::from).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn lost_packets_of_any_length_are_recovered(
            packets in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..200), 1..20),
            parities in 1usize..8, lost in prop::collection::vec(any::<prop::sample::Index>(), 1..8),
        ) {
            let mut coder = Coder::default();
            let packets: Vec<Bytes> = packets.into_iter().map(Bytes::from).collect();
            let made = Bytes::parities(&mut coder, &packets, parities);
            prop_assert_eq!(made.len(), parities);
            let mut there: Vec<Option<Bytes>> = packets.iter().cloned().map(Some).collect();
            lost.iter().take(parities).for_each(|lost| there[lost.index(packets.len())] = None);
            // The last parities recover as well as the first.
            let missing = there.iter().filter(|packet| packet.is_none()).count();
            let made: Vec<(u8, Bytes)> = (0u8..).zip(made).skip(parities - missing).collect();
            let back = Bytes::recover(&mut coder, &there, &made).expect("as many parities as are lost");
            let want: Vec<Bytes> =
                packets.iter().zip(&there).filter(|(_, there)| there.is_none()).map(|(packet, _)| packet.clone()).collect();
            prop_assert_eq!(back, want);
        }

        #[test]
        fn inconsistent_parities_recover_nothing_without_panic(
            packets in prop::collection::vec(prop::option::of(prop::collection::vec(any::<u8>(), 0..50)), 1..20),
            parities in prop::collection::vec((0u8..64, prop::collection::vec(any::<u8>(), 0..50)), 0..20),
        ) {
            let packets: Vec<Option<Bytes>> = packets.into_iter().map(|packet| packet.map(Bytes::from)).collect();
            let parities: Vec<(u8, Bytes)> = parities.into_iter().map(|(n, bytes)| (n, Bytes::from(bytes))).collect();
            let _ = Bytes::recover(&mut Coder::default(), &packets, &parities);
        }
    }
}
