//! An agent's record of its host's flows, and the updates that the coordinator has not received.
//!
//! Announcements and rules add flows; listings show their progress and their ends. Reports are
//! built on request from the changes so far, so no reports accumulate while the coordinator is
//! unreachable. Leaves out: clocks, sockets, listing flows (drivers). Read [`AnnouncedFlows`]
//! first.

use crate::control::{FlowKey, Report};
use crate::coordinator::{ClassSettings, HOST_COFLOWS_MAX, HOST_FLOWS_MAX, ReportError, check_name};
use anabranch_units::{BitRate, ByteCount, Duration};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;

/// Maximum number of unreported ends, above which the oldest is dropped. A reachable coordinator
/// receives them long before; a restarted coordinator receives all flows again.
const ENDED_MAX: usize = HOST_FLOWS_MAX;

/// Maximum number of known connections of one user: a part of the host's maximum.
pub const USER_FLOWS_MAX: usize = HOST_FLOWS_MAX / 4;
/// Maximum number of coflows of one user: a part of the host's maximum.
pub const USER_COFLOWS_MAX: usize = HOST_COFLOWS_MAX / 2;

/// A TCP connection of this host, as listed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ListedConnection {
    /// Addresses and ports.
    pub flow: FlowKey,
    /// Socket cookie, unique since boot.
    pub cookie: u64,
    /// User who created the socket.
    pub user: u32,
    /// True if the program may still write.
    pub may_send: bool,
    /// Bytes that the peer has acknowledged.
    pub acked_bytes: u64,
    /// Bytes written by the program.
    pub written_bytes: u64,
    /// Current rate limit of the socket; `None` for no limit.
    pub limit: Option<BitRate>,
}

/// Reason for refusing an announcement.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnnounceError {
    /// The name of the coflow is invalid.
    Name(ReportError),
    /// The host has reached its maximum number of flows.
    TooManyFlows,
    /// This user has reached the maximum number of flows.
    TooManyUserFlows(u32),
    /// The host has reached its maximum number of coflows.
    TooManyCoflows,
    /// This user has reached the maximum number of coflows.
    TooManyUserCoflows(u32),
}

impl fmt::Display for AnnounceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let no_room = "are known: no room for more";
        match self {
            Self::Name(error) => write!(f, "{error}"),
            Self::TooManyFlows => write!(f, "{HOST_FLOWS_MAX} flows {no_room}"),
            Self::TooManyUserFlows(user) => write!(f, "{USER_FLOWS_MAX} flows of user {user} {no_room}"),
            Self::TooManyCoflows => write!(f, "{HOST_COFLOWS_MAX} coflows {no_room}"),
            Self::TooManyUserCoflows(user) => {
                write!(f, "{USER_COFLOWS_MAX} coflows of user {user} {no_room}")
            }
        }
    }
}

impl std::error::Error for AnnounceError {}

/// Announced flows of this host.
#[derive(Debug)]
pub struct AnnouncedFlows {
    settings: ClassSettings,
    flows: BTreeMap<FlowKey, Entry>,
    /// Flows with an update not yet sent to the coordinator.
    pending_updates: BTreeSet<FlowKey>,
    /// Ends not yet sent to the coordinator, in order; a connection may have several.
    ended: VecDeque<EndedFlow>,
    /// Flows and coflows of each user.
    shares: BTreeMap<u32, Share>,
    /// True if a flow was refused for lack of room.
    is_full: bool,
}

/// One user's part of the announced flows.
#[derive(Debug, Default)]
struct Share {
    /// Number of known connections.
    flows: usize,
    /// Number of this user's connections in each coflow.
    coflows: BTreeMap<String, usize>,
}

#[derive(Debug)]
struct Entry {
    socket: Socket,
    user: u32,
    /// Name of the flow's coflow; `None` if the flow is complete and its connection is still open.
    coflow: Option<String>,
    /// Byte count of the connection at the start of the flow's coflow.
    before_bytes: u64,
    size_bytes: u64,
    moved_bytes: u64,
    is_size_said: bool,
    /// True if a rule has announced the flow, so its total size is unknown and only its written
    /// bytes count.
    is_open: bool,
    /// Byte count of the connection at which the flow is complete. `None` until the program
    /// announces its last write.
    ends_at_bytes: Option<u64>,
    /// Rate limit in force.
    rate: Option<BitRate>,
}

impl Entry {
    /// Bytes of this flow delivered when the connection has delivered `acked_bytes`.
    fn moved_by(&self, acked_bytes: u64) -> u64 {
        let end_bytes = self.ends_at_bytes.unwrap_or(u64::MAX);
        acked_bytes.min(end_bytes).saturating_sub(self.before_bytes).max(self.moved_bytes)
    }
}

/// Unreported end of a flow.
#[derive(Debug)]
struct EndedFlow {
    flow: FlowKey,
    /// Coflow and size to report before the end, if the coordinator does not know them yet.
    unreported: Option<(String, u64)>,
    moved_bytes: u64,
}

/// A connection's identity and its earlier limit, for the enforcement of limits.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// Socket cookie, unique since boot.
    pub cookie: u64,
    /// Rate limit of the socket before the agent's first limit; `None` for no limit.
    pub limit: Option<BitRate>,
}

impl Default for AnnouncedFlows {
    /// Creates an empty record with default settings.
    fn default() -> Self {
        Self::new(ClassSettings::default())
    }
}

impl AnnouncedFlows {
    /// Creates an empty record. `settings` must equal the coordinator's.
    pub fn new(settings: ClassSettings) -> Self {
        Self {
            settings,
            flows: BTreeMap::new(),
            pending_updates: BTreeSet::new(),
            ended: VecDeque::new(),
            shares: BTreeMap::new(),
            is_full: false,
        }
    }

    /// Handles a program's announcement of a flow's coflow, and of its total bytes for that coflow.
    ///
    /// Errors: see [`AnnounceError`].
    pub fn announce(
        &mut self,
        state: &ListedConnection,
        coflow: &str,
        size_bytes: u64,
    ) -> Result<(), AnnounceError> {
        check_name(coflow).map_err(AnnounceError::Name)?;
        let flow = state.flow;
        if self.flows.get(&flow).is_some_and(|entry| entry.socket.cookie != state.cookie) {
            self.forget(flow);
        }
        self.check_room(state, coflow).inspect_err(|_| self.is_full = true)?;
        if let Some(entry) = self.flows.get_mut(&flow).filter(|entry| entry.is_open) {
            (entry.is_open, entry.is_size_said) = (false, false);
        }
        let is_same =
            |entry: &&mut Entry| entry.coflow.as_deref() == Some(coflow) && entry.ends_at_bytes.is_none();
        if let Some(entry) = self.flows.get_mut(&flow).filter(is_same) {
            if size_bytes <= entry.size_bytes {
                return Ok(());
            }
            (entry.size_bytes, entry.is_size_said) = (size_bytes, false);
        } else {
            // The first coflow of a connection may have begun before its announcement, but all
            // later data belongs to a later coflow. Data written for the previous coflow does not
            // count for the new coflow, even if it is still in flight.
            let before_bytes = self.flows.get_mut(&flow).map_or(0, |before| {
                before.moved_bytes = before.moved_by(state.acked_bytes);
                match (&before.coflow, before.ends_at_bytes) {
                    (_, Some(end_bytes)) => end_bytes,
                    (Some(_), None) => state.written_bytes,
                    (None, None) => state.acked_bytes,
                }
            });
            self.end(flow);
            let known = self.flows.get(&flow);
            // Rate limit before the agent's first limit.
            let limit = known.map_or(state.limit, |known| known.socket.limit);
            let entry = Entry {
                socket: Socket { cookie: state.cookie, limit },
                user: state.user,
                coflow: Some(coflow.to_owned()),
                before_bytes,
                size_bytes,
                moved_bytes: 0,
                is_size_said: false,
                is_open: false,
                ends_at_bytes: None,
                rate: None,
            };
            let share = self.shares.entry(state.user).or_default();
            *share.coflows.entry(coflow.to_owned()).or_default() += 1;
            share.flows += usize::from(self.flows.insert(flow, entry).is_none());
        }
        self.pending_updates.insert(flow);
        Ok(())
    }

    /// Checks that there is room for this flow in this coflow.
    ///
    /// Errors: the host or the user has reached its maximum number of flows or coflows.
    fn check_room(&self, state: &ListedConnection, coflow: &str) -> Result<(), AnnounceError> {
        let (known, user) = (self.flows.get(&state.flow), state.user);
        let share = self.shares.get(&user);
        if known.is_none() && self.flows.len() >= HOST_FLOWS_MAX {
            return Err(AnnounceError::TooManyFlows);
        }
        if known.is_none() && share.is_some_and(|share| share.flows >= USER_FLOWS_MAX) {
            return Err(AnnounceError::TooManyUserFlows(user));
        }
        if share.is_some_and(|share| share.coflows.contains_key(coflow)) {
            return Ok(());
        }
        if share.is_some_and(|share| share.coflows.len() >= USER_COFLOWS_MAX) {
            return Err(AnnounceError::TooManyUserCoflows(user));
        }
        let all: usize = self.shares.values().map(|share| share.coflows.len()).sum();
        if all >= HOST_COFLOWS_MAX {
            return Err(AnnounceError::TooManyCoflows);
        }
        Ok(())
    }

    /// Forgets a connection that is closed or replaced.
    fn forget(&mut self, flow: FlowKey) {
        self.end(flow);
        let Some(entry) = self.flows.remove(&flow) else { return };
        if let Some(share) = self.shares.get_mut(&entry.user) {
            share.flows -= 1;
            if share.flows == 0 {
                self.shares.remove(&entry.user);
            }
        }
    }

    /// Handles a program's announcement that it has written a flow's last byte for its coflow. The
    /// flow is complete once these bytes have arrived; the connection may then serve another
    /// coflow. An announcement for a coflow other than the flow's current coflow is ignored.
    pub fn finish(&mut self, state: &ListedConnection, coflow: Option<&str>) {
        let Some(entry) = self.flows.get_mut(&state.flow) else { return };
        if entry.socket.cookie != state.cookie {
            return self.end(state.flow);
        }
        if coflow.is_some() && entry.coflow.as_deref() != coflow {
            return;
        }
        entry.moved_bytes = entry.moved_by(state.acked_bytes);
        if state.acked_bytes >= state.written_bytes {
            self.end(state.flow);
        } else if entry.coflow.is_some() {
            entry.ends_at_bytes = Some(state.written_bytes);
        }
    }

    /// Sets a flow's rate limit; `None` for no limit.
    pub fn limit(&mut self, flow: FlowKey, rate: Option<BitRate>) {
        if let Some(entry) = self.flows.get_mut(&flow) {
            entry.rate = rate;
        }
    }

    /// Returns the shortest time after the last listing within which a flow can deliver its known
    /// bytes at its rate limit.
    pub fn soonest_end(&self) -> Option<Duration> {
        let entries = self.flows.values().filter(|entry| entry.coflow.is_some());
        let end = |entry: &Entry| {
            let left = ByteCount::new(entry.size_bytes.saturating_sub(entry.moved_bytes));
            let is_over = left == ByteCount::ZERO && entry.ends_at_bytes.is_none();
            entry.rate.filter(|_| !is_over).map(|rate| rate.transmit_time(left))
        };
        entries.filter_map(end).min()
    }

    /// Ends a flow's part in its coflow: its data has arrived, or will never arrive.
    pub fn end(&mut self, flow: FlowKey) {
        let Some(entry) = self.flows.get_mut(&flow) else { return };
        let Some(coflow) = entry.coflow.take() else { return };
        (entry.ends_at_bytes, entry.rate) = (None, None);
        let coflows = self.shares.get_mut(&entry.user).map(|share| &mut share.coflows);
        if let Some(coflows) = coflows
            && let Some(flows) = coflows.get_mut(&coflow)
        {
            *flows -= 1;
            if *flows == 0 {
                coflows.remove(&coflow);
            }
        }
        self.pending_updates.remove(&flow);
        let unreported = (!entry.is_size_said).then_some((coflow, entry.size_bytes));
        if self.ended.len() >= ENDED_MAX {
            self.ended.pop_front();
        }
        self.ended.push_back(EndedFlow { flow, unreported, moved_bytes: entry.moved_bytes });
    }

    /// Handles a listing, in the order of flows. `rule` names the coflow of an unannounced flow
    /// that is not a mouse.
    pub fn observe(&mut self, listing: &[ListedConnection], rule: impl Fn(FlowKey) -> Option<String>) {
        let find =
            |flow: &FlowKey| listing.binary_search_by_key(flow, |state| state.flow).ok().map(|i| &listing[i]);
        let mut gone = Vec::new();
        let mut over = Vec::new();
        for (flow, entry) in &mut self.flows {
            let Some(state) = find(flow).filter(|state| state.cookie == entry.socket.cookie) else {
                gone.push(*flow);
                continue;
            };
            if entry.coflow.is_none() {
                continue;
            }
            let ListedConnection { acked_bytes, written_bytes, .. } = *state;
            let end = entry.ends_at_bytes.unwrap_or(u64::MAX);
            let moved_bytes = entry.moved_by(acked_bytes);
            if moved_bytes > entry.moved_bytes {
                entry.moved_bytes = moved_bytes;
                self.pending_updates.insert(*flow);
            }
            let size_bytes = written_bytes.min(end).saturating_sub(entry.before_bytes);
            if size_bytes > entry.size_bytes {
                (entry.size_bytes, entry.is_size_said) = (size_bytes, false);
                self.pending_updates.insert(*flow);
            }
            let has_closed = !state.may_send && acked_bytes >= written_bytes;
            if has_closed || acked_bytes >= end {
                over.push(*flow);
            }
        }
        for flow in over {
            self.end(flow);
        }
        for flow in gone {
            self.forget(flow);
        }
        let mice_below = self.settings.mice_below.as_u64();
        for state in listing {
            // Mice are not announced, because the coordinator does not limit them.
            let is_new =
                state.may_send && state.written_bytes >= mice_below && !self.flows.contains_key(&state.flow);
            if !is_new {
                continue;
            }
            let Some(coflow) = rule(state.flow) else { continue };
            // `take_full` reports a lack of room. An invalid name is an error of the rule's author.
            if self.announce(state, &coflow, state.written_bytes).is_ok() {
                self.flows.get_mut(&state.flow).expect("it has been announced").is_open = true;
            }
        }
    }

    /// Returns the socket of an announced flow's connection.
    pub fn socket(&self, flow: FlowKey) -> Option<Socket> {
        self.flows.get(&flow).filter(|entry| entry.coflow.is_some()).map(|entry| entry.socket)
    }

    /// Announced connections that still exist, as far as known.
    pub fn connections(&self) -> BTreeSet<FlowKey> {
        self.flows.keys().copied().collect()
    }

    /// Announced flows.
    pub fn flows(&self) -> BTreeSet<FlowKey> {
        self.flows.iter().filter(|(_, entry)| entry.coflow.is_some()).map(|(flow, _)| *flow).collect()
    }

    /// Marks all flows as unreported, because a coordinator must receive all flows again.
    pub fn say_all(&mut self) {
        self.ended.clear();
        self.pending_updates = self.flows();
        self.flows.values_mut().for_each(|entry| entry.is_size_said = false);
    }

    /// Returns reports of at most `flows_max` flows, and marks them as sent.
    pub fn take(&mut self, flows_max: usize) -> Vec<Report> {
        let mut reports = Vec::new();
        for _ in 0..flows_max {
            // The end of a flow is reported before its new announcement.
            if let Some(EndedFlow { flow, unreported, moved_bytes }) = self.ended.pop_front() {
                reports.extend(unreported.map(|(coflow, size_bytes)| Report::Flow {
                    flow,
                    coflow,
                    size_bytes,
                    open_ended: false,
                }));
                reports.push(Report::Moved { flow, moved_bytes });
                reports.push(Report::Ended { flow });
            } else if let Some(flow) = self.pending_updates.pop_first() {
                let entry = self.flows.get_mut(&flow).expect("pending updates are of known flows");
                let coflow = entry.coflow.clone().expect("pending updates are of announced flows");
                if !std::mem::replace(&mut entry.is_size_said, true) {
                    let (size_bytes, open_ended) = (entry.size_bytes, entry.is_open);
                    reports.push(Report::Flow { flow, coflow, size_bytes, open_ended });
                }
                if entry.moved_bytes > 0 {
                    reports.push(Report::Moved { flow, moved_bytes: entry.moved_bytes });
                }
            } else {
                break;
            }
        }
        reports
    }

    /// Returns true if a flow was refused for lack of room since the last call.
    pub fn take_full(&mut self) -> bool {
        std::mem::take(&mut self.is_full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOBODY: fn(FlowKey) -> Option<String> = |_| None;

    fn flow() -> FlowKey {
        let end = |text: &str| text.parse().expect("an address");
        FlowKey { local: end("10.0.0.1:40000"), remote: end("10.0.0.2:7000") }
    }
    fn seen(acked_bytes: u64, written_bytes: u64) -> ListedConnection {
        ListedConnection {
            flow: flow(),
            cookie: 1,
            user: 7,
            may_send: true,
            acked_bytes,
            written_bytes,
            limit: None,
        }
    }
    fn moved(moved_bytes: u64) -> Report {
        Report::Moved { flow: flow(), moved_bytes }
    }
    fn ended() -> Report {
        Report::Ended { flow: flow() }
    }
    fn said(coflow: &str, size_bytes: u64) -> Report {
        Report::Flow { flow: flow(), coflow: coflow.into(), size_bytes, open_ended: false }
    }

    #[test]
    fn flow_ends_once_its_announced_bytes_have_arrived() {
        let mut book = AnnouncedFlows::default();
        book.announce(&seen(0, 0), "a", 1_000_000).expect("there is room");
        assert_eq!(book.take(9), [said("a", 1_000_000)]);
        book.finish(&seen(300_000, 1_000_000), None);
        assert_eq!(book.take(9), []);
        book.observe(&[seen(999_999, 1_000_000)], NOBODY);
        assert_eq!(book.take(9), [moved(999_999)]);
        // Later data belongs to no coflow.
        book.observe(&[seen(1_000_000, 1_000_001)], NOBODY);
        assert_eq!(book.take(9), [moved(1_000_000), ended()]);
        assert!(book.flows().is_empty());
        // A flow is complete at once if all of its data has arrived.
        book.announce(&seen(1_000_000, 1_000_000), "b", 60_000).expect("there is room");
        book.finish(&seen(1_060_000, 1_060_000), None);
        assert_eq!(book.take(9), [said("b", 60_000), moved(60_000), ended()]);
    }

    #[test]
    fn coflows_that_end_between_reports_are_fully_reported() {
        let mut book = AnnouncedFlows::default();
        book.announce(&seen(0, 0), "a", 1_000).expect("there is room");
        assert_eq!(book.take(9), [said("a", 1_000)]);
        book.finish(&seen(1_000, 1_000), None);
        book.announce(&seen(1_000, 1_000), "b", 300).expect("there is room");
        book.finish(&seen(1_300, 1_300), None);
        book.announce(&seen(1_300, 1_300), "c", 50).expect("there is room");
        let [a, b] = [[moved(1_000), ended()].to_vec(), [said("b", 300), moved(300), ended()].to_vec()];
        assert_eq!(book.take(9), [a, b, vec![said("c", 50)]].concat());
        assert_eq!(book.take(9), []);
    }

    #[test]
    fn oldest_unreported_ends_are_dropped() {
        let mut book = AnnouncedFlows::default();
        for size_bytes in 0..=ENDED_MAX as u64 {
            book.announce(&seen(0, 0), "a", size_bytes).expect("there is room");
            book.end(flow());
        }
        let reports = book.take(usize::MAX);
        assert_eq!((reports.len(), &reports[0]), (3 * ENDED_MAX, &said("a", 1)));
    }

    #[test]
    fn bytes_count_for_only_one_coflow() {
        let mut book = AnnouncedFlows::default();
        book.announce(&seen(0, 0), "a", 1_000_000).expect("there is room");
        book.finish(&seen(300_000, 1_000_000), None);
        book.announce(&seen(400_000, 1_000_000), "b", 500_000).expect("there is room");
        let first = [said("a", 1_000_000), moved(400_000), ended(), said("b", 500_000)];
        assert_eq!(book.take(9), first);
        book.observe(&[seen(1_000_000, 1_500_000)], NOBODY);
        assert_eq!(book.take(9), []);
        book.observe(&[seen(1_200_000, 1_500_000)], NOBODY);
        assert_eq!(book.take(9), [moved(200_000)]);
    }

    #[test]
    fn flow_announced_by_a_rule_is_open_ended() {
        let mut book = AnnouncedFlows::default();
        let open =
            |size_bytes| Report::Flow { flow: flow(), coflow: "r".into(), size_bytes, open_ended: true };
        book.observe(&[seen(0, 49_999)], |_| Some("r".into()));
        assert_eq!(book.take(9), []);
        book.observe(&[seen(0, 50_000)], |_| Some("r".into()));
        assert_eq!(book.take(9), [open(50_000)]);
        book.observe(&[seen(10, 70_000)], |_| Some("r".into()));
        assert_eq!(book.take(9), [open(70_000), moved(10)]);
        book.announce(&seen(10, 70_000), "r", 60_000).expect("there is room");
        book.observe(&[seen(20, 70_000)], NOBODY);
        assert_eq!(book.take(9), [said("r", 70_000), moved(20)]);
    }

    #[test]
    fn rules_announce_flows_from_the_mouse_size() {
        let mut book = AnnouncedFlows::new(ClassSettings { mice_below: ByteCount::new(10) });
        book.observe(&[seen(0, 9)], |_| Some("r".into()));
        assert!(book.flows().is_empty());
        book.observe(&[seen(0, 10)], |_| Some("r".into()));
        assert_eq!(book.flows().len(), 1);
    }

    #[test]
    fn next_coflow_of_a_connection_ends_the_previous_coflow() {
        let mut book = AnnouncedFlows::default();
        book.announce(&seen(0, 0), "a", 1_000_000).expect("there is room");
        assert_eq!(book.take(9), [said("a", 1_000_000)]);
        book.announce(&seen(400_000, 1_000_000), "b", 500_000).expect("there is room");
        assert_eq!(book.take(9), [moved(400_000), ended(), said("b", 500_000)]);
        // Data that was already in the socket's buffer belongs to coflow a.
        book.observe(&[seen(900_000, 1_400_000)], NOBODY);
        assert_eq!(book.take(9), []);
        book.observe(&[seen(1_200_000, 1_600_000)], NOBODY);
        assert_eq!(book.take(9), [said("b", 600_000), moved(200_000)]);
    }

    #[test]
    fn end_of_another_coflow_is_ignored() {
        let mut book = AnnouncedFlows::default();
        book.announce(&seen(0, 0), "a", 1_000).expect("there is room");
        book.announce(&seen(1_000, 1_000), "b", 500).expect("there is room");
        book.finish(&seen(1_000, 1_000), Some("a"));
        assert_eq!(book.flows().len(), 1);
        book.finish(&seen(1_500, 1_500), Some("b"));
        assert!(book.flows().is_empty());
    }

    #[test]
    fn soonest_end_is_remaining_bytes_over_the_rate_limit() {
        let mut book = AnnouncedFlows::default();
        book.announce(&seen(0, 0), "a", 1_000_000).expect("there is room");
        assert_eq!(book.soonest_end(), None);
        book.limit(flow(), Some(BitRate::mbps(8)));
        assert_eq!(book.soonest_end(), Some(Duration::from_secs(1)));
        book.observe(&[seen(900_000, 1_000_000)], NOBODY);
        assert_eq!(book.soonest_end(), Some(Duration::from_ms(100)));
        // A connection whose data has all arrived may close at any time: no end is predicted.
        book.observe(&[seen(1_000_000, 1_000_000)], NOBODY);
        assert_eq!(book.soonest_end(), None);
        book.limit(flow(), None);
        assert_eq!(book.soonest_end(), None);
    }
    fn of_user(user: u32, number: usize) -> ListedConnection {
        let mut seen = ListedConnection { user, ..seen(0, 60_000) };
        seen.flow.local = ([10, 0, (number >> 16) as u8, 1], number as u16).into();
        seen
    }

    /// One user could take all of a host's flows (#17).
    #[test]
    fn user_may_use_a_limited_part_of_flows() {
        let mut book = AnnouncedFlows::default();
        for number in 0..USER_FLOWS_MAX {
            book.announce(&of_user(1, number), "a", 60_000).expect("there is room");
        }
        let error = book.announce(&of_user(1, USER_FLOWS_MAX), "a", 60_000).expect_err("no more");
        assert_eq!(error, AnnounceError::TooManyUserFlows(1));
        // Known flows may still grow, and other users have their own parts.
        book.announce(&of_user(1, 0), "a", 70_000).expect("it is known");
        book.announce(&of_user(2, USER_FLOWS_MAX), "a", 60_000).expect("another's");
        // Closed connections make room.
        let mut listing: Vec<ListedConnection> =
            (1..USER_FLOWS_MAX).map(|number| of_user(1, number)).collect();
        listing.sort_by_key(|seen| seen.flow);
        book.observe(&listing, NOBODY);
        book.announce(&of_user(1, USER_FLOWS_MAX), "a", 60_000).expect("there is room");

        let mut book = AnnouncedFlows::default();
        for number in 0..USER_COFLOWS_MAX {
            book.announce(&of_user(1, number), &number.to_string(), 60_000).expect("there is room");
        }
        let error = book.announce(&of_user(1, USER_COFLOWS_MAX), "more", 60_000).expect_err("no more");
        assert_eq!(error.to_string(), "512 coflows of user 1 are known: no room for more");
        assert!(book.take_full());
        book.end(of_user(1, 0).flow);
        book.announce(&of_user(1, USER_COFLOWS_MAX), "more", 60_000).expect("one has ended");
        // All users together are limited by the coordinator's maximum for one host.
        let mut user = 2;
        while let Ok(()) =
            book.announce(&of_user(user, usize::try_from(user).expect("few") + 60_000), "x", 60_000)
        {
            user += 1;
        }
        assert_eq!(user as usize - 2, HOST_COFLOWS_MAX - USER_COFLOWS_MAX);
    }
}
