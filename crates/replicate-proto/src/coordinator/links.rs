//! Capacities of links: as declared in the topology, as transfers measure them, and as plans use
//! them.
//!
//! A hop shows its link's capacity only if the network limits it. Its sender then has a backlog,
//! and its receiver has room. The sum of the flows that cross the link at that time is the
//! *carried* rate, and it is the link's *limit*. Without a backlog the carried rate is a lower
//! bound of the capacity. A link with little traffic is therefore no evidence of a low capacity. A
//! rate counts if it is steady: it is averaged over [`SPAN`] windows, whose halves agree within
//! [`STEADY`]. Plans use the carried rate of a link if it differs from the declared capacity by
//! [`WRONG`] or more.
//!
//! A link that is declared too low may carry only its planned rate, because its flows are held back
//! at other links or paced by their source. The error costs time only if the link limits the plan:
//! the plan fills it, and the min-cut grows with its capacity. One of its flows then sends padding
//! while it has no data ready, until the link is measured ([`Links::is_measured`]).
//!
//! Sources: Cheng and others, *Delivery Rate Estimation*,
//! draft-cheng-iccrg-delivery-rate-estimation-02 (a rate that the application limits is only a
//! lower bound); BBR, draft-ietf-ccwg-bbr-06, section 5.3.1.2 (a rate that grows by less than a
//! quarter is the path's).
//! Differs: rates are measured by receivers over half seconds, not by senders over round trips.
//!
//! Leaves out: the cause of a limit. Competing traffic, losses and slow hosts count as the link's.
//! Records are in memory: a new controller measures again. Read [`Links`] first.

use crate::control::{FlowArrival, Run};
use crate::plan::FlowId;
use anabranch_graph::Topology;
use anabranch_units::{BitRate, Duration, Instant, LinkId};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Minimum ratio of the declared and the carried rate for plans to use the carried rate.
const WRONG: u64 = 2;
/// Time after which a record no longer counts: other traffic on long-distance links changes over
/// hours.
const RECORD_TIME: Duration = Duration::from_secs(3_600);
/// Time after its last report in which a flow counts as traffic of its link: three reports.
const FRESH: Duration = Duration::from_ms(1_600);
/// Shortest window in seconds: most of the time between two reports.
const WINDOW_MIN_S: f64 = 0.4;
/// Number of windows of one measurement, about two seconds.
const SPAN: usize = 4;
/// Largest ratio of the two halves of a steady rate.
const STEADY: f64 = 1.25;
/// Least part of a window in which a backlogged sender waits for TCP.
const BACKLOG_MIN: f64 = 0.8;
/// Largest part of a window in which a receiver may have no room.
const WAIT_MAX: f64 = 0.1;
/// Largest part of a link's traffic whose receivers may have no room.
const CROWDED_MAX: f64 = 0.1;
/// Bits on the link per bit of symbols of 64 KiB: headers of frames (45 B each), TLS (22 B each
/// 16 KiB), TCP with timestamps and IPv4 in packets of 1,500 bytes.
const OVERHEAD: f64 = 1.038;
/// Maximum rate that a site may report for a hop.
const RATE_MAX: f64 = 1e13;
/// Minimum relative change of a carried rate for which plans are adapted.
const ADAPT: f64 = 0.1;

/// A measured rate of a link, in bits of packets per second.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct MeasuredRate {
    /// The rate.
    pub rate: BitRate,
    /// Whether the link limited its traffic to this rate. Otherwise the rate is a lower bound of
    /// its capacity.
    pub is_limit: bool,
}

/// The capacity of one link.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct LinkStatus {
    /// Capacity in the topology that the controller was given.
    pub declared: BitRate,
    /// The latest measurement, if it still counts.
    pub carried: Option<MeasuredRate>,
    /// Capacity that plans use.
    pub planned: BitRate,
}

impl LinkStatus {
    /// Whether plans use another capacity than the declared one.
    pub fn is_wrong(&self) -> bool {
        self.planned != self.declared
    }
}

/// Capacities of all links, and meters of the flows in transit. See the module.
#[derive(Debug)]
pub(super) struct Links {
    declared: Vec<BitRate>,
    /// The capacities that plans use where they differ from the declared ones.
    corrected: BTreeMap<LinkId, BitRate>,
    records: BTreeMap<LinkId, Record>,
    meters: BTreeMap<LinkId, BTreeMap<(Run, FlowId), Meter>>,
    /// Links whose records have changed since the last [`Links::poll_corrections`].
    touched: BTreeSet<LinkId>,
    /// Time at which the first record expires.
    expiry: Option<Instant>,
}

#[derive(Copy, Clone, Debug)]
struct Record {
    carried: MeasuredRate,
    at: Instant,
}

/// Measurement of one flow's hop.
#[derive(Debug, Default)]
struct Meter {
    /// Shares of time in the sender's last two reports in which it had a backlog: a receiver's
    /// window overlaps both.
    backlog: [f64; 2],
    /// The receiver's counters at the end of the last window.
    last: Option<FlowArrival>,
    windows: VecDeque<Window>,
    at: Instant,
}

#[derive(Copy, Clone, Debug)]
struct Window {
    bytes: u64,
    seconds: f64,
    has_backlog: bool,
    has_room: bool,
}

impl Links {
    /// Links of a topology, without measurements.
    pub(super) fn new(topology: &Topology) -> Self {
        Self {
            declared: topology.links().iter().map(|l| l.properties.capacity).collect(),
            corrected: BTreeMap::new(),
            records: BTreeMap::new(),
            meters: BTreeMap::new(),
            touched: BTreeSet::new(),
            expiry: None,
        }
    }

    /// The capacity of a link.
    ///
    /// Panics: if the link is not in the topology.
    pub(super) fn status(&self, link: LinkId) -> LinkStatus {
        let declared = self.declared[link.index()];
        let planned = self.corrected.get(&link).copied().unwrap_or(declared);
        LinkStatus { declared, carried: self.records.get(&link).map(|r| r.carried), planned }
    }

    /// Whether a measurement shows that the link can carry no more than plans use.
    pub(super) fn is_measured(&self, link: LinkId) -> bool {
        self.records.get(&link).is_some_and(|r| r.carried.is_limit)
    }

    /// Handles a sender's report of the share of time in which its flow had a backlog.
    pub(super) fn handle_sent(&mut self, link: LinkId, flow: (Run, FlowId), now: Instant, blocked: f64) {
        let meter = self.meters.entry(link).or_default().entry(flow).or_default();
        // The new time keeps a meter whose receiver has not reported yet.
        meter.at = now;
        meter.backlog = [meter.backlog[1], if blocked.is_finite() { blocked } else { 0.0 }];
    }

    /// Handles a receiver's report of a flow's counters.
    pub(super) fn handle_arrived(&mut self, link: LinkId, run: Run, now: Instant, arrival: &FlowArrival) {
        let meters = self.meters.entry(link).or_default();
        let meter = meters.entry((run, arrival.flow)).or_default();
        meter.at = now;
        if !meter.handle_arrival(arrival) {
            return;
        }
        meters.retain(|_, meter| now.saturating_since(meter.at) < FRESH);
        if let Some(carried) = carried(meters.values()) {
            self.record(link, now, carried);
        }
    }

    /// Removes the meters of an attempt whose flows have ended.
    pub(super) fn handle_ended(&mut self, run: Run) {
        self.meters.retain(|_, meters| {
            meters.retain(|(of, _), _| *of != run);
            !meters.is_empty()
        });
    }

    fn record(&mut self, link: LinkId, now: Instant, new: MeasuredRate) {
        let is_more = |old: &MeasuredRate| {
            let margin = if old.is_limit { STEADY } else { 1.0 };
            new.rate.as_bps() as f64 > old.rate.as_bps() as f64 * margin
        };
        let old = self.records.get(&link).map(|record| record.carried);
        if !new.is_limit && old.is_some_and(|old| !is_more(&old)) {
            return;
        }
        self.records.insert(link, Record { carried: new, at: now });
        self.touched.insert(link);
        self.expiry = self.records.values().map(|record| record.at + RECORD_TIME).min();
    }

    /// Time at which [`Links::poll_corrections`] is due.
    pub(super) fn deadline(&self) -> Option<Instant> {
        self.expiry
    }

    /// Returns the links whose planned capacity changes now, with the new capacity.
    pub(super) fn poll_corrections(&mut self, now: Instant) -> Vec<(LinkId, BitRate)> {
        if self.expiry.is_some_and(|expiry| now >= expiry) {
            let touched = &mut self.touched;
            self.records.retain(|link, record| {
                let counts = now < record.at + RECORD_TIME;
                if !counts {
                    touched.insert(*link);
                }
                counts
            });
            self.expiry = self.records.values().map(|record| record.at + RECORD_TIME).min();
        }
        let mut corrections = Vec::new();
        for link in std::mem::take(&mut self.touched) {
            let (used, next) = (self.status(link).planned, self.capacity(link));
            let ratio = next.as_bps() as f64 / used.as_bps() as f64;
            let declared = self.declared[link.index()];
            let is_news = (ratio - 1.0).abs() > ADAPT || (next == declared && used != declared);
            if !is_news {
                continue;
            }
            if next == declared {
                self.corrected.remove(&link);
            } else {
                self.corrected.insert(link, next);
            }
            corrections.push((link, next));
        }
        corrections
    }

    /// The capacity of a link by its declaration and its record.
    fn capacity(&self, link: LinkId) -> BitRate {
        let declared = self.declared[link.index()];
        let Some(Record { carried: MeasuredRate { rate, is_limit }, .. }) = self.records.get(&link) else {
            return declared;
        };
        let is_low = *is_limit && rate.as_bps().saturating_mul(WRONG) <= declared.as_bps();
        let is_high = rate.as_bps() >= declared.as_bps().saturating_mul(WRONG);
        if is_low || is_high { *rate } else { declared }
    }
}

/// Total rate of one link's flows; `None` if their windows are no evidence. The flows may share the
/// link unevenly.
fn carried<'a>(meters: impl Iterator<Item = &'a Meter>) -> Option<MeasuredRate> {
    let (mut total, mut first, mut second, mut crowded) = (0.0, 0.0, 0.0, 0.0);
    let mut is_limit = false;
    for meter in meters {
        let rate = meter.rate()?;
        total += rate;
        first += mean(meter.windows.iter().take(SPAN / 2));
        second += mean(meter.windows.iter().skip(SPAN / 2));
        if !meter.windows.iter().all(|w| w.has_room) {
            crowded += rate;
        } else {
            is_limit |= meter.windows.iter().all(|w| w.has_backlog);
        }
    }
    // A rate below 1 bit/s is a stalled hop and no measurement, because no link has capacity 0.
    let is_steady = total >= 1.0 && f64::max(first, second) <= STEADY * f64::min(first, second);
    if !is_steady || crowded > total * CROWDED_MAX {
        return None;
    }
    let rate = BitRate::bps((total * OVERHEAD).min(RATE_MAX) as u64);
    Some(MeasuredRate { rate, is_limit })
}

impl Meter {
    /// Returns true if the report ends a window.
    fn handle_arrival(&mut self, new: &FlowArrival) -> bool {
        let Some(old) = self.last else {
            self.last = Some(*new);
            return false;
        };
        let seconds = new.elapsed_s - old.elapsed_s;
        let bytes = new.received_bytes.checked_sub(old.received_bytes);
        let (Some(bytes), true) = (bytes, seconds.is_finite() && seconds >= 0.0) else {
            // Counters that decrease are no measurement: the meter starts again.
            *self = Self { last: Some(*new), at: self.at, ..Self::default() };
            return false;
        };
        if seconds < WINDOW_MIN_S {
            return false;
        }
        let has_backlog = self.backlog.iter().all(|share| *share >= BACKLOG_MIN);
        let has_room = new.waited_s - old.waited_s <= seconds * WAIT_MAX;
        self.windows.push_back(Window { bytes, seconds, has_backlog, has_room });
        if self.windows.len() > SPAN {
            self.windows.pop_front();
        }
        self.last = Some(*new);
        true
    }

    /// Mean rate of the last windows in bits of symbols per second; `None` if there are too few.
    fn rate(&self) -> Option<f64> {
        (self.windows.len() == SPAN).then(|| mean(self.windows.iter()))
    }
}

/// Mean rate of windows in bits per second.
fn mean<'a>(windows: impl Iterator<Item = &'a Window> + Clone) -> f64 {
    let bytes: u64 = windows.clone().map(|w| w.bytes).fold(0, u64::saturating_add);
    bytes as f64 * 8.0 / windows.map(|w| w.seconds).sum::<f64>()
}

#[cfg(test)]
mod tests;
