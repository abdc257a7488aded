//! What an agent knows of its host's flows, and what of that the coordinator has not been told.
//!
//! Flows come from announcements and from rules, their progress and their ends from listings. Reports are made when they are
//! asked for, from what has changed by then, so however long the coordinator is away nothing piles up. Leaves out: clocks,
//! sockets, who lists flows (drivers). Read [`Book`] first.

use crate::control::{FlowKey, Report};
use crate::coordinator::{HOST_FLOWS_MAX, Settings, check_name};
use anabranch_units::BitRate;
use std::collections::{BTreeMap, BTreeSet};

/// A TCP connection of this host as a listing has it.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Seen {
    /// Which.
    pub flow: FlowKey,
    /// What tells it from all others of this boot.
    pub cookie: u64,
    /// Whether its program may still write.
    pub is_established: bool,
    /// What has arrived of it.
    pub acked_bytes: u64,
    /// What its program has written.
    pub written_bytes: u64,
    /// How fast it may be.
    pub limit: Option<BitRate>,
}

/// The flows of this host that have been announced.
#[derive(Debug, Default)]
pub struct Book {
    flows: BTreeMap<FlowKey, Entry>,
    /// Those of which something is to be said.
    unsaid: BTreeSet<FlowKey>,
    /// Those whose end is to be said, and what they had moved.
    ended: BTreeMap<FlowKey, u64>,
    /// Whether there was no room for a flow.
    is_full: bool,
}

#[derive(Debug)]
struct Entry {
    socket: Socket,
    /// What waits for it; `None` when that is over and the connection stays.
    transfer: Option<String>,
    /// What its connection had moved before this transfer.
    before_bytes: u64,
    size_bytes: u64,
    moved_bytes: u64,
    is_size_said: bool,
}

/// What a limit's enforcement has to know of a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Socket {
    /// What tells it from all others of this boot.
    pub cookie: u64,
    /// The limit that it had when it became known.
    pub limit: Option<BitRate>,
}

impl Book {
    /// A program says what waits for a flow, and how much it moves in all for that.
    ///
    /// Errors: a name that cannot be one; no room. One line.
    pub fn announce(&mut self, state: &Seen, transfer: &str, size_bytes: u64) -> Result<(), String> {
        check_name(transfer).map_err(|error| error.to_string())?;
        let flow = state.flow;
        if self.flows.get(&flow).is_some_and(|entry| entry.socket.cookie != state.cookie) {
            self.end(flow);
            self.flows.remove(&flow);
        }
        if self.flows.len() >= HOST_FLOWS_MAX && !self.flows.contains_key(&flow) {
            self.is_full = true;
            return Err(format!("{HOST_FLOWS_MAX} flows are known: no room for more"));
        }
        let is_same = |entry: &&mut Entry| entry.transfer.as_deref() == Some(transfer);
        if let Some(entry) = self.flows.get_mut(&flow).filter(is_same) {
            if size_bytes <= entry.size_bytes {
                return Ok(());
            }
            (entry.size_bytes, entry.is_size_said) = (size_bytes, false);
        } else {
            let known = self.flows.get(&flow);
            // The first transfer of a connection may have begun before it was announced; what comes after is another's.
            let before_bytes = known.map_or(0, |_| state.acked_bytes);
            // What it had before any limit of ours.
            let limit = known.map_or(state.limit, |known| known.socket.limit);
            let entry = Entry {
                socket: Socket { cookie: state.cookie, limit },
                transfer: Some(transfer.to_owned()),
                before_bytes,
                size_bytes,
                moved_bytes: 0,
                is_size_said: false,
            };
            self.flows.insert(flow, entry);
        }
        self.unsaid.insert(flow);
        Ok(())
    }

    /// A program says that its flow has moved all that its transfer waits for. The connection may stay, for another one.
    pub fn end(&mut self, flow: FlowKey) {
        let Some(entry) = self.flows.get_mut(&flow) else { return };
        if entry.transfer.take().is_some() {
            self.unsaid.remove(&flow);
            self.ended.insert(flow, entry.moved_bytes);
        }
    }

    /// Takes in what there is now, in the order of flows. What flows are that nobody has announced, and that are no mice,
    /// `rule` says.
    pub fn observe(&mut self, listing: &[Seen], rule: impl Fn(FlowKey) -> Option<String>) {
        let find =
            |flow: &FlowKey| listing.binary_search_by_key(flow, |state| state.flow).ok().map(|i| &listing[i]);
        let mut gone = Vec::new();
        let mut over = Vec::new();
        for (flow, entry) in &mut self.flows {
            let Some(state) = find(flow).filter(|state| state.cookie == entry.socket.cookie) else {
                gone.push(*flow);
                continue;
            };
            if entry.transfer.is_none() {
                continue;
            }
            let Seen { acked_bytes, written_bytes, .. } = *state;
            let moved_bytes = acked_bytes.saturating_sub(entry.before_bytes);
            if moved_bytes > entry.moved_bytes {
                entry.moved_bytes = moved_bytes;
                self.unsaid.insert(*flow);
            }
            let size_bytes = written_bytes.saturating_sub(entry.before_bytes);
            if size_bytes > entry.size_bytes {
                (entry.size_bytes, entry.is_size_said) = (size_bytes, false);
                self.unsaid.insert(*flow);
            }
            if !state.is_established && acked_bytes >= written_bytes {
                over.push(*flow);
            }
        }
        for flow in over {
            self.end(flow);
        }
        for flow in gone {
            self.end(flow);
            self.flows.remove(&flow);
        }
        let mice_below = Settings::default().mice_below.as_u64();
        for state in listing {
            // Of mice nobody need hear.
            let is_new = state.is_established
                && state.written_bytes >= mice_below
                && !self.flows.contains_key(&state.flow);
            if !is_new {
                continue;
            }
            let Some(transfer) = rule(state.flow) else { continue };
            // One for which there is no room is told of by `take_full`; a name that is none, by who made the rule.
            let _ = self.announce(state, &transfer, state.written_bytes);
        }
    }

    /// The connection of a flow that is announced.
    pub fn socket(&self, flow: FlowKey) -> Option<Socket> {
        self.flows.get(&flow).filter(|entry| entry.transfer.is_some()).map(|entry| entry.socket)
    }

    /// The flows that are announced.
    pub fn flows(&self) -> BTreeSet<FlowKey> {
        self.flows.iter().filter(|(_, entry)| entry.transfer.is_some()).map(|(flow, _)| *flow).collect()
    }

    /// From now on, everything is unsaid: a coordinator has to hear of all flows anew.
    pub fn say_all(&mut self) {
        self.ended.clear();
        self.unsaid = self.flows();
        self.flows.values_mut().for_each(|entry| entry.is_size_said = false);
    }

    /// What is to be said, at most so many flows of it. It counts as said.
    pub fn take(&mut self, flows_max: usize) -> Vec<Report> {
        let mut reports = Vec::new();
        for _ in 0..flows_max {
            // A flow that has ended and is announced again ends first.
            if let Some((flow, moved_bytes)) = self.ended.pop_first() {
                reports.push(Report::Moved { flow, moved_bytes });
                reports.push(Report::Ended { flow });
            } else if let Some(flow) = self.unsaid.pop_first() {
                let entry = self.flows.get_mut(&flow).expect("what is unsaid is of known flows");
                let transfer = entry.transfer.clone().expect("what is unsaid is of announced flows");
                if !std::mem::replace(&mut entry.is_size_said, true) {
                    reports.push(Report::Flow { flow, transfer, size_bytes: entry.size_bytes });
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

    /// Whether there was no room for a flow since this was asked last.
    pub fn take_full(&mut self) -> bool {
        std::mem::take(&mut self.is_full)
    }
}
