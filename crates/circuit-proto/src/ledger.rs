//! Announced demand: the bytes that programs have announced, minus the bytes that the switch has
//! forwarded.
//!
//! Source: the thesis, §2.5.2: programs announce application data units (ADUs) by flow, the switch
//! counts application bytes by flow without retransmissions, and the close of a flow cancels its
//! remaining demand. Differs: a byte counts as forwarded once, by its position in the stream;
//! Etalon ignores a sequence number that it saw within the last second. Differs: the close cancels
//! demand, as in the thesis but not in Etalon's code.
//!
//! Leaves out: the messages of announcements. Read [`Ledger`] first.

use crate::matching::port;
use crate::{Demand, DemandError};
use anabranch_units::ByteCount;
use std::collections::BTreeMap;
use std::fmt;

/// Maximum number of flows of a ledger.
pub const FLOWS_MAX: usize = 65_536;

/// Maximum number of separate ranges of forwarded bytes of one flow; each takes 16 bytes. A gap
/// between ranges is a packet that was lost before the switch, or dropped by its queue.
pub const RANGES_MAX: usize = 64;

/// Outstanding demand by flow.
///
/// `F` names a flow: a TCP connection's addresses and ports, or a simulator's number. A flow is
/// open from its first announcement to its close. The switch also forwards packets of flows that
/// are not open, which leave no entry. Limits: [`FLOWS_MAX`] flows, [`RANGES_MAX`] ranges for each.
/// A forwarded range beyond the second limit is not counted, so that its flow's demand is too large
/// until the flow closes.
/// Cost: O(log flows + ranges) for each call, O(flows + racks^2) for [`Self::demand`].
#[derive(Clone, Debug)]
pub struct Ledger<F> {
    racks: usize,
    flows: BTreeMap<F, Flow>,
    refused: u64,
}

/// Reason why an announcement is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LedgerError {
    /// A rack that does not exist, or a flow within one rack.
    Rack(DemandError),
    /// A flow that has announced different racks before.
    OtherRacks,
    /// A new flow beyond [`FLOWS_MAX`] flows.
    Full,
}

impl fmt::Display for LedgerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Rack(error) => write!(f, "announcement: {error}"),
            Self::OtherRacks => write!(f, "announcement: the flow has announced other racks before"),
            Self::Full => write!(f, "announcement: a ledger has {FLOWS_MAX} flows at most: close one first"),
        }
    }
}

impl std::error::Error for LedgerError {}

/// Announced and forwarded bytes of one flow.
#[derive(Clone, Debug)]
struct Flow {
    /// Source rack and destination rack.
    racks: (u16, u16),
    announced_bytes: u64,
    forwarded: Ranges,
}

impl Flow {
    fn outstanding_bytes(&self) -> u64 {
        self.announced_bytes.saturating_sub(self.forwarded.bytes)
    }
}

/// Disjoint ranges of a stream's bytes.
#[derive(Clone, Debug, Default)]
struct Ranges {
    /// First position and end position of each range, in order. No two ranges touch.
    ranges: Vec<(u64, u64)>,
    /// Sum of the lengths of the ranges.
    bytes: u64,
}

impl Ranges {
    /// Adds the bytes from `begin` up to `end`. Returns false if the number of ranges would exceed
    /// [`RANGES_MAX`].
    fn add(&mut self, begin: u64, end: u64) -> bool {
        // The existing ranges that touch the new range.
        let first = self.ranges.partition_point(|range| range.1 < begin);
        let last = self.ranges.partition_point(|range| range.0 <= end);
        if first == last && self.ranges.len() == RANGES_MAX {
            return false;
        }
        let touched = &self.ranges[first..last];
        let before: u64 = touched.iter().map(|range| range.1 - range.0).sum();
        let begin = touched.first().map_or(begin, |range| range.0.min(begin));
        let end = touched.last().map_or(end, |range| range.1.max(end));
        self.ranges.splice(first..last, [(begin, end)]);
        self.bytes += end - begin - before;
        true
    }
}

impl<F: Ord + Copy> Ledger<F> {
    /// Creates a ledger of flows between `racks` racks.
    ///
    /// Errors: fewer than 2 racks, or more than [`RACKS_MAX`](crate::RACKS_MAX).
    pub fn new(racks: usize) -> Result<Self, DemandError> {
        Demand::new(racks)?;
        Ok(Self { racks, flows: BTreeMap::new(), refused: 0 })
    }

    /// Records that `flow`, from rack `source` to rack `destination`, has `bytes` more to send.
    ///
    /// Errors: an unknown rack, the same rack twice, other racks than before, or a new flow beyond
    /// [`FLOWS_MAX`]. The flow's demand is then unchanged, and [`Self::refused`] counts the call.
    pub fn handle_announced(
        &mut self,
        flow: F,
        source: usize,
        destination: usize,
        bytes: ByteCount,
    ) -> Result<(), LedgerError> {
        let result = self.announce(flow, source, destination, bytes);
        self.refused += u64::from(result.is_err());
        result
    }

    fn announce(
        &mut self,
        flow: F,
        source: usize,
        destination: usize,
        bytes: ByteCount,
    ) -> Result<(), LedgerError> {
        if let Some(rack) = [source, destination].into_iter().find(|rack| *rack >= self.racks) {
            return Err(LedgerError::Rack(DemandError::NoSuchRack { rack, racks: self.racks }));
        }
        if source == destination {
            return Err(LedgerError::Rack(DemandError::ToItself(source)));
        }
        let racks = (port(source), port(destination));
        if self.flows.len() >= FLOWS_MAX && !self.flows.contains_key(&flow) {
            return Err(LedgerError::Full);
        }
        let new = || Flow { racks, announced_bytes: 0, forwarded: Ranges::default() };
        let entry = self.flows.entry(flow).or_insert_with(new);
        if entry.racks != racks {
            return Err(LedgerError::OtherRacks);
        }
        // Saturation is theoretical: a flow of 2^64 bytes would take 58 years at 80 Gbit/s.
        entry.announced_bytes = entry.announced_bytes.saturating_add(bytes.as_u64());
        Ok(())
    }

    /// Records that the switch has forwarded `bytes` of `flow`, from `position` in its stream on.
    ///
    /// Returns false if these bytes are not counted: the flow is not open, the flow has
    /// [`RANGES_MAX`] ranges, or the bytes end beyond position 2^64 - 1. [`Self::refused`] counts
    /// such calls of open flows.
    pub fn handle_forwarded(&mut self, flow: F, position: u64, bytes: u32) -> bool {
        if bytes == 0 {
            return true;
        }
        let Some(entry) = self.flows.get_mut(&flow) else { return false };
        let end = position.checked_add(bytes.into());
        let is_counted = end.is_some_and(|end| entry.forwarded.add(position, end));
        self.refused += u64::from(!is_counted);
        is_counted
    }

    /// Closes `flow`, and cancels its remaining demand.
    pub fn handle_closed(&mut self, flow: F) {
        self.flows.remove(&flow);
    }

    /// Bytes that open flows have announced and the switch has not forwarded, by pair of racks.
    ///
    /// A pair's entry is limited to 2^64 / racks^2 bytes: 17 TB with 1,024 racks, more than any
    /// week carries.
    pub fn demand(&self) -> Demand {
        let pair_max = u64::MAX / (self.racks * self.racks) as u64;
        let mut entries = vec![0u64; self.racks * self.racks];
        for flow in self.flows.values() {
            let (source, destination) = flow.racks;
            let entry = &mut entries[usize::from(source) * self.racks + usize::from(destination)];
            *entry = entry.saturating_add(flow.outstanding_bytes()).min(pair_max);
        }
        Demand::from_entries(self.racks, entries)
            .expect("entries of racks^2 pairs, and none of a rack to itself")
    }

    /// Number of open flows.
    pub fn flows(&self) -> usize {
        self.flows.len()
    }

    /// Number of refused announcements, plus uncounted forwarded ranges of open flows.
    pub fn refused(&self) -> u64 {
        self.refused
    }
}

#[cfg(test)]
mod tests;
