//! Circuits that follow demand, under the real clock: the scheduling loop of a hybrid switch.
//!
//! The loop drives a system's [`CircuitControl`], the same machine as in the simulator. Once a week
//! the control gets the bytes in the switch's queues, and the switch gets its next week. Announced
//! demand is counted by TCP connection. A SYN from a host opens a connection, payload counts as
//! forwarded once it has left the switch, and a FIN or RST cancels the remaining demand.
//!
//! Source: Mukerjee, *Eliminating Adverse Control Plane Interactions* (CMU-CS-18-106, 2018), §2.2.2
//! and §2.5.2. Differs: the end of a connection is seen in its packets, not in the program's call.
//! Leaves out: the socket for announcements; the decisions, which a system makes. Read [`Weeks`]
//! first.

use crate::AnnounceError;
use crate::error::CONNECTIONS_MAX;
use anabranch_fabric::{Matching, Timetable};
use anabranch_sim::circuits::{CircuitControl, CircuitSchedule, CircuitWeek};
use anabranch_units::{ByteCount, FlowKey, Instant};
use etherparse::{IpNumber, Ipv4HeaderSlice, TcpHeaderSlice};
use serde::Serialize;
use std::collections::BTreeMap;

/// Figures of the weeks of circuits that follow demand, since the start or the last call.
#[derive(Copy, Clone, Debug, Default, PartialEq, Serialize)]
pub struct ScheduleFigures {
    /// Weeks that the control has decided.
    pub weeks: u64,
    /// Total number of days in these weeks.
    pub scheduled_days: u64,
    /// Mean over these weeks of the estimated demand, in bytes.
    pub demand_bytes_mean: f64,
    /// Announcements of programs that were accepted.
    pub announcements: u64,
    /// Announcements that were refused.
    pub announcements_refused: u64,
    /// Reports about flows that the control has refused since the start. Each means that the
    /// estimated demand may be wrong.
    pub unknown_reports: u64,
}

/// One direction of a TCP connection between two racks.
#[derive(Debug)]
struct Connection {
    /// Number of the flow, by which the control keeps its demand.
    number: u32,
    racks: [u16; 2],
    /// Sequence number of the connection's first byte.
    first_seq: u32,
    /// Stream position behind the last byte that the switch has forwarded.
    forwarded_until: u64,
    /// Coflow of the last announcement, and the bytes announced for it so far.
    coflow: String,
    coflow_bytes: u64,
}

/// The scheduling loop of a hybrid switch.
#[derive(Debug)]
pub(crate) struct Weeks {
    schedule: CircuitSchedule,
    control: Box<dyn CircuitControl>,
    /// True if the control needs reports about connections.
    follows_flows: bool,
    /// Rack of each site. `None` for a switch.
    rack_of: Vec<Option<u16>>,
    connections: BTreeMap<FlowKey, Connection>,
    /// Number of connections opened so far.
    opened: u32,
    figures: ScheduleFigures,
}

impl Weeks {
    /// Creates the loop of `schedule` for sites in the racks `rack_of`.
    pub(crate) fn new(schedule: CircuitSchedule, rack_of: Vec<Option<u16>>) -> Self {
        let (control, follows_flows) = (schedule.plan.control(), schedule.plan.follows_flows());
        let (connections, figures) = (BTreeMap::new(), ScheduleFigures::default());
        Self { schedule, control, follows_flows, rack_of, connections, opened: 0, figures }
    }

    /// True if [`Self::handle_forwarded`] needs the packets that leave the switch.
    pub(crate) const fn follows_flows(&self) -> bool {
        self.follows_flows
    }

    /// Handles `packet`, which a program at site `source` has sent to site `destination`.
    pub(crate) fn handle_sent(&mut self, source: u16, destination: u16, packet: &[u8]) {
        let rack = |site: u16| self.rack_of.get(usize::from(site)).copied().flatten();
        let racks = rack(source).zip(rack(destination)).filter(|(source, destination)| source != destination);
        let Some((from, to)) = racks.filter(|_| self.follows_flows) else { return };
        let Some(segment) = Segment::parse(packet) else { return };
        if segment.is_syn {
            self.open(&segment, [from, to]);
        }
        if segment.is_fin || segment.is_rst {
            self.close(segment.flow);
        }
        if segment.is_rst {
            self.close(FlowKey { local: segment.flow.remote, remote: segment.flow.local });
        }
    }

    /// Handles `packet`, which the switch has forwarded.
    pub(crate) fn handle_forwarded(&mut self, packet: &[u8]) {
        let Some(segment) = Segment::parse(packet).filter(|segment| segment.payload_bytes > 0) else {
            return;
        };
        let Some(connection) = self.connections.get_mut(&segment.flow) else { return };
        let Some(position) = connection.position(segment.seq) else { return };
        let end = position + u64::from(segment.payload_bytes);
        connection.forwarded_until = connection.forwarded_until.max(end);
        self.control.handle_forwarded(connection.number, position, segment.payload_bytes);
    }

    /// Handles a program's announcement that `flow` has `bytes` to send in total for `coflow`.
    ///
    /// Errors: the circuits follow no announcements; no such connection between two racks is open.
    pub(crate) fn handle_announced(
        &mut self,
        flow: FlowKey,
        coflow: &str,
        bytes: ByteCount,
    ) -> Result<(), AnnounceError> {
        let found = self.connections.get_mut(&flow.canonical()).filter(|_| self.follows_flows);
        let Some(connection) = found else {
            self.figures.announcements_refused += 1;
            return Err(if self.follows_flows {
                AnnounceError::NoConnection(flow)
            } else {
                AnnounceError::NotFollowed
            });
        };
        if connection.coflow != coflow {
            (connection.coflow, connection.coflow_bytes) = (coflow.to_owned(), 0);
        }
        let more_bytes = bytes.as_u64().saturating_sub(connection.coflow_bytes);
        connection.coflow_bytes += more_bytes;
        self.figures.announcements += 1;
        if more_bytes > 0 {
            self.control.handle_announced(connection.number, connection.racks, ByteCount::new(more_bytes));
        }
        Ok(())
    }

    /// Time of the next call of [`Self::handle_queues`].
    pub(crate) fn poll_timeout(&self) -> Instant {
        self.control.poll_timeout()
    }

    /// Makes the control decide a week. `bytes` are the bytes in the switch's queues, by source,
    /// then destination.
    pub(crate) fn handle_queues(&mut self, now: Instant, bytes: Vec<u64>) {
        self.control.handle_queues(now, bytes);
    }

    /// The next timetable for the switch and the time at which it starts; call until `None`.
    pub(crate) fn poll_timetable(&mut self) -> Option<(Timetable<Matching>, Instant)> {
        let week = self.control.poll_week()?;
        self.count(&week);
        Some((self.schedule.timetable(&week), week.begins_at))
    }

    /// Returns the figures since the start or the last call, and resets them.
    pub(crate) fn take(&mut self) -> ScheduleFigures {
        let unknown_reports = self.figures.unknown_reports;
        std::mem::replace(&mut self.figures, ScheduleFigures { unknown_reports, ..Default::default() })
    }

    fn count(&mut self, week: &CircuitWeek) {
        let figures = &mut self.figures;
        figures.weeks += 1;
        figures.scheduled_days += week.days.len() as u64;
        let apart = week.demand.as_u64() as f64 - figures.demand_bytes_mean;
        figures.demand_bytes_mean += apart / figures.weeks as f64;
        figures.unknown_reports = week.unknown_reports;
    }

    fn open(&mut self, segment: &Segment, racks: [u16; 2]) {
        let first_seq = segment.seq.wrapping_add(1);
        let known = self.connections.get(&segment.flow);
        if known.is_some_and(|known| known.first_seq == first_seq) {
            return;
        }
        self.close(segment.flow);
        if self.connections.len() < CONNECTIONS_MAX {
            let number = self.opened;
            self.opened = self.opened.wrapping_add(1);
            let (forwarded_until, coflow, coflow_bytes) = (0, String::new(), 0);
            let connection = Connection { number, racks, first_seq, forwarded_until, coflow, coflow_bytes };
            self.connections.insert(segment.flow, connection);
        }
    }

    fn close(&mut self, flow: FlowKey) {
        if let Some(connection) = self.connections.remove(&flow) {
            self.control.handle_closed(connection.number);
        }
    }
}

impl Connection {
    /// Stream position of the byte with sequence number `seq`: of all candidates, the one nearest
    /// to the last forwarded byte. `None` if it lies before the first byte.
    fn position(&self, seq: u32) -> Option<u64> {
        let apart = seq.wrapping_sub(self.first_seq).wrapping_sub(self.forwarded_until as u32) as i32;
        self.forwarded_until.checked_add_signed(apart.into())
    }
}

/// The fields of a TCP segment that the loop reads.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
struct Segment {
    /// Source and destination of the segment.
    flow: FlowKey,
    seq: u32,
    payload_bytes: u32,
    is_syn: bool,
    is_fin: bool,
    is_rst: bool,
}

impl Segment {
    /// Parses the segment in an IPv4 packet. `None` for other protocols, later fragments, and
    /// truncated headers.
    fn parse(packet: &[u8]) -> Option<Self> {
        let ip = Ipv4HeaderSlice::from_slice(packet).ok()?;
        if ip.protocol() != IpNumber::TCP || ip.fragments_offset().value() != 0 {
            return None;
        }
        let behind_ip = &packet[ip.slice().len()..];
        let tcp = TcpHeaderSlice::from_slice(behind_ip).ok()?;
        Some(Self {
            flow: FlowKey {
                local: (ip.source_addr(), tcp.source_port()).into(),
                remote: (ip.destination_addr(), tcp.destination_port()).into(),
            },
            seq: tcp.sequence_number(),
            payload_bytes: u32::try_from(behind_ip.len() - tcp.slice().len()).ok()?,
            is_fin: tcp.fin(),
            is_syn: tcp.syn(),
            is_rst: tcp.rst(),
        })
    }
}

#[cfg(test)]
mod tests;
