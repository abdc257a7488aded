//! The coordinator: it hears of flows from the agents of hosts, and says how fast each one may be.
//!
//! Each host is one link out and one in (the hose model): where hosts' own links are the narrow ones, as in a network without
//! oversubscription, nothing else need be known. A flow to a host without an agent crosses its sender's link only.
//!
//! What it knows of volumes is what agents say, from time to time. A flow that should be through and is not is taken to have
//! [`REMAINING_MIN`] to move. Nothing is kept that agents could not say again: a coordinator that starts anew hears of all
//! flows when they join.
//!
//! Source: Ren and Wang (2016), sections 4.4 (volumes that grow; small flows pass) and 5.2 (a central controller, which hears
//! of each flow that enters or completes).
//! Leaves out: HTTP, clocks, what enforces rates (drivers). One call of [`Coordinator::decide`] after a batch of reports sets
//! all rates.

use crate::control::{FlowKey, Limit, Report};
use anabranch_fluid::{Active, Allocator, DecisionError, FlowId, LinkId, Network, TransferId};
use anabranch_units::{BitRate, ByteCount, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::IpAddr;

/// The most characters that a host's or a transfer's name has.
pub const NAME_MAX: usize = 128;
/// The most hosts.
pub const HOSTS_MAX: usize = 4_096;
/// The most addresses of a host.
pub const ADDRESSES_MAX: usize = 64;
/// The most flows of a host.
pub const HOST_FLOWS_MAX: usize = 65_536;
/// What a flow that has not ended has still to move at least, whatever was said.
pub const REMAINING_MIN: ByteCount = ByteCount::new(64 * 1024);
/// No flow's limit is below this: a connection that may send nothing cannot tell that it has ended.
pub const RATE_MIN: BitRate = BitRate::bps(100_000);
/// A limit is said anew when it is another by more than this part.
const CHANGE_MIN: f64 = 0.01;

/// How flows are told apart.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Flows with less to move pass without a limit, and nobody waits for them (section 4.4: 50 kB).
    pub mice_below: ByteCount,
}

impl Default for Settings {
    fn default() -> Self {
        Self { mice_below: ByteCount::new(50_000) }
    }
}

/// What an agent says of its host when it joins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// The addresses that flows to it have.
    pub addresses: Vec<IpAddr>,
    /// The rate of its link, out and in.
    pub rate: BitRate,
}

/// Why the coordinator does not take what an agent says.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ReportError {
    /// A name that is empty, too long, or has other than printable characters.
    Name(String),
    /// No agent of this host has joined, or another one has since.
    NotJoined(String),
    /// More hosts than [`HOSTS_MAX`].
    TooManyHosts,
    /// More addresses than [`ADDRESSES_MAX`].
    TooManyAddresses(usize),
    /// More flows of a host than [`HOST_FLOWS_MAX`].
    TooManyFlows,
    /// A link of no rate.
    NoRate,
}

impl fmt::Display for ReportError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => {
                let shown: String = name.chars().take(NAME_MAX).collect();
                write!(f, "name {shown:?}: must be 1 to {NAME_MAX} printable characters without blanks")
            }
            Self::NotJoined(host) => {
                write!(f, "host {host}: has not joined, or another agent has: join again")
            }
            Self::TooManyHosts => write!(f, "more hosts than {HOSTS_MAX}"),
            Self::TooManyAddresses(count) => {
                write!(f, "{count} addresses: a host has at most {ADDRESSES_MAX}")
            }
            Self::TooManyFlows => write!(f, "more flows than {HOST_FLOWS_MAX} on one host: the others pass"),
            Self::NoRate => write!(f, "a link of 0 bit/s: must have at least 1 bit/s"),
        }
    }
}
impl std::error::Error for ReportError {}

/// A transfer whose last flow has ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ended {
    /// Its name.
    pub name: String,
    /// When its first flow was there.
    pub since: Instant,
    /// When its last one had ended.
    pub at: Instant,
    /// Its flows that were no mice.
    pub flows: u64,
    /// What they had moved when that was last said.
    pub bytes: ByteCount,
}

/// The most transfers that have ended and that nobody has asked for; of more, the oldest are forgotten.
pub const ENDED_MAX: usize = 4_096;

/// Agents' flows, and the rates that an allocator gives them.
#[derive(Debug)]
pub struct Coordinator<A> {
    settings: Settings,
    allocator: A,
    active: Active,
    hosts: BTreeMap<String, Joined>,
    by_address: BTreeMap<IpAddr, String>,
    /// Of active flows: whose, and which.
    keys: BTreeMap<FlowId, (String, FlowKey)>,
    transfers: BTreeMap<String, TransferId>,
    transfer_names: BTreeMap<TransferId, Named>,
    transfers_so_far: u32,
    ended: VecDeque<Ended>,
    is_changed: bool,
}

#[derive(Debug)]
struct Named {
    name: String,
    /// Of those that have ended.
    flows: u64,
    moved: ByteCount,
}

#[derive(Debug)]
struct Joined {
    session: u64,
    /// While its agent is there. What it was told before it left, it has forgotten.
    is_up: bool,
    addresses: Vec<IpAddr>,
    rate: BitRate,
    out: LinkId,
    into: LinkId,
    flows: BTreeMap<FlowKey, Known>,
    /// Limits to be said.
    changed: BTreeSet<FlowKey>,
}

#[derive(Debug)]
struct Known {
    transfer: String,
    size: ByteCount,
    moved: ByteCount,
    /// `None` while it is small.
    id: Option<FlowId>,
    /// What its agent has been told, or is about to be.
    rate_bps: Option<u64>,
}

/// A transfer that is under way.
#[derive(Clone, Debug, PartialEq)]
pub struct TransferView {
    /// Its name.
    pub name: String,
    /// When its first flow was there.
    pub since: Instant,
    /// Its flows that are no mice, by host.
    pub flows: Vec<FlowView>,
}

/// A flow that is under way.
#[derive(Clone, Debug, PartialEq)]
pub struct FlowView {
    /// Who sends it.
    pub host: String,
    /// Which one it is.
    pub flow: FlowKey,
    /// What it has still to move, as far as is known.
    pub remaining: ByteCount,
    /// How fast it may be.
    pub rate: BitRate,
}

impl<A: Allocator> Coordinator<A> {
    /// No hosts.
    pub fn new(settings: Settings, allocator: A) -> Self {
        let network = Network::new(Vec::new()).expect("a network may have no links");
        Self {
            settings,
            allocator,
            active: Active::new(network),
            hosts: BTreeMap::new(),
            by_address: BTreeMap::new(),
            keys: BTreeMap::new(),
            transfers: BTreeMap::new(),
            transfer_names: BTreeMap::new(),
            transfers_so_far: 0,
            ended: VecDeque::new(),
            is_changed: false,
        }
    }

    /// An agent is there. What an earlier one of the same host said is forgotten; this one says all anew.
    ///
    /// Errors: see [`ReportError`].
    pub fn handle_join(
        &mut self,
        now: Instant,
        name: &str,
        session: u64,
        host: Host,
    ) -> Result<(), ReportError> {
        check_name(name)?;
        if host.addresses.len() > ADDRESSES_MAX {
            return Err(ReportError::TooManyAddresses(host.addresses.len()));
        }
        self.active.advance(now);
        self.forget_flows(name);
        if let Some(joined) = self.hosts.get_mut(name) {
            for link in [joined.out, joined.into] {
                self.active.set_link_rate(link, host.rate).map_err(|_| ReportError::NoRate)?;
            }
            for address in joined.addresses.drain(..) {
                // Another host may have it by now.
                if self.by_address.get(&address).is_some_and(|other| other == name) {
                    self.by_address.remove(&address);
                }
            }
            (joined.session, joined.is_up, joined.rate) = (session, true, host.rate);
            joined.addresses.clone_from(&host.addresses);
        } else {
            if self.hosts.len() >= HOSTS_MAX {
                return Err(ReportError::TooManyHosts);
            }
            let out = self.active.add_link(host.rate).map_err(|_| ReportError::NoRate)?;
            let into = self.active.add_link(host.rate).map_err(|_| ReportError::NoRate)?;
            let joined = Joined {
                session,
                is_up: true,
                addresses: host.addresses.clone(),
                rate: host.rate,
                out,
                into,
                flows: BTreeMap::new(),
                changed: BTreeSet::new(),
            };
            self.hosts.insert(name.to_owned(), joined);
        }
        self.by_address.extend(host.addresses.into_iter().map(|address| (address, name.to_owned())));
        // Flows to it cross its link from now on, and what that carries may be another.
        let is_to_it = |key: &FlowKey| self.by_address.get(&key.remote.ip()).is_some_and(|to| to == name);
        let to_it: Vec<(String, FlowKey)> =
            self.keys.values().filter(|(_, key)| is_to_it(key)).cloned().collect();
        to_it.into_iter().for_each(|(from, key)| self.route(&from, key));
        self.is_changed = true;
        Ok(())
    }

    /// An agent has gone: its flows are forgotten, and others get what they had.
    pub fn handle_leave(&mut self, now: Instant, name: &str, session: u64) {
        self.active.advance(now);
        if self.hosts.get(name).is_some_and(|host| host.session == session) {
            self.forget_flows(name);
            if let Some(host) = self.hosts.get_mut(name) {
                host.is_up = false;
            }
        }
    }

    /// What an agent says of its flows, in its order. A report of a flow that is not known changes nothing.
    ///
    /// Errors: the first report that cannot be taken; those before it count.
    pub fn handle_reports(
        &mut self,
        now: Instant,
        name: &str,
        session: u64,
        reports: &[Report],
    ) -> Result<(), ReportError> {
        self.active.advance(now);
        let is_joined = self.hosts.get(name).is_some_and(|host| host.session == session && host.is_up);
        if !is_joined {
            return Err(ReportError::NotJoined(name.to_owned()));
        }
        reports.iter().try_for_each(|report| match report {
            Report::Flow { flow, transfer, size_bytes } => {
                self.on_flow(name, *flow, transfer, ByteCount::new(*size_bytes))
            }
            Report::Moved { flow, moved_bytes } => {
                self.on_moved(name, *flow, ByteCount::new(*moved_bytes));
                Ok(())
            }
            Report::Ended { flow } => {
                self.on_ended(now, name, *flow);
                Ok(())
            }
        })
    }

    fn on_flow(
        &mut self,
        name: &str,
        key: FlowKey,
        transfer: &str,
        size: ByteCount,
    ) -> Result<(), ReportError> {
        check_name(transfer)?;
        let is_other = |known: &Known| known.transfer != transfer;
        // The same addresses and ports for another transfer: the connection is another one.
        if self.host(name).flows.get(&key).is_some_and(is_other) {
            self.forget_flow(name, key);
        }
        let mice_below = self.settings.mice_below;
        let host = self.hosts.get_mut(name).expect("only hosts that have joined report");
        if host.flows.len() >= HOST_FLOWS_MAX && !host.flows.contains_key(&key) {
            return Err(ReportError::TooManyFlows);
        }
        let known = host.flows.entry(key).or_insert_with(|| Known {
            transfer: transfer.to_owned(),
            size: ByteCount::ZERO,
            moved: ByteCount::ZERO,
            id: None,
            rate_bps: None,
        });
        if size <= known.size && known.id.is_some() {
            return Ok(());
        }
        let more = ByteCount::new(size.as_u64().saturating_sub(known.size.as_u64()));
        known.size = known.size.max(size);
        match known.id {
            Some(id) => {
                self.active.grow(id, more);
                self.is_changed = true;
            }
            None if known.size >= mice_below => self.route(name, key),
            None => {}
        }
        Ok(())
    }

    /// Has a flow that is no mouse cross its links, once more if it does already.
    fn route(&mut self, name: &str, key: FlowKey) {
        let to = self.by_address.get(&key.remote.ip());
        // To itself a host sends over no link.
        let route: Vec<LinkId> = match to {
            Some(to) if to == name => Vec::new(),
            to => std::iter::once(self.hosts[name].out).chain(to.map(|to| self.hosts[to].into)).collect(),
        };
        let host = self.hosts.get_mut(name).expect("only hosts that have joined have flows");
        let known = host.flows.get_mut(&key).expect("a flow is known before it has a route");
        let (old, remaining, transfer) = (known.id.take(), remaining(known), known.transfer.clone());
        if let Some(old) = old {
            self.active.remove(old);
            self.keys.remove(&old);
        }
        if !route.is_empty() {
            let transfer = self.transfer_id(&transfer);
            let id = self.active.insert(transfer, &route, remaining);
            self.keys.insert(id, (name.to_owned(), key));
            self.hosts.get_mut(name).and_then(|host| host.flows.get_mut(&key)).expect("it is known").id =
                Some(id);
        }
        self.is_changed = true;
    }

    fn on_moved(&mut self, name: &str, key: FlowKey, moved: ByteCount) {
        let host = self.hosts.get_mut(name).expect("only hosts that have joined report");
        if let Some(known) = host.flows.get_mut(&key) {
            known.moved = known.moved.max(moved).min(known.size);
            if let Some(id) = known.id {
                self.active.observe(id, remaining(known));
            }
        }
    }

    fn on_ended(&mut self, now: Instant, name: &str, key: FlowKey) {
        let Some(known) = self.host(name).flows.get(&key) else { return };
        let (Some(id), moved) = (known.id, known.moved) else { return self.forget_flow(name, key) };
        let transfer = self.active.transfer(id);
        let named = self.transfer_names.get_mut(&transfer).expect("a transfer with flows has a name");
        named.flows += 1;
        named.moved = ByteCount::new(named.moved.as_u64().saturating_add(moved.as_u64()));
        if let (&[_], Some((since, _))) =
            (self.active.flows_of(transfer), self.active.transfer_so_far(transfer))
        {
            if self.ended.len() >= ENDED_MAX {
                self.ended.pop_front();
            }
            let (name, flows, bytes) = (named.name.clone(), named.flows, named.moved);
            self.ended.push_back(Ended { name, since, at: now, flows, bytes });
        }
        self.forget_flow(name, key);
    }

    fn forget_flow(&mut self, name: &str, key: FlowKey) {
        let Some(host) = self.hosts.get_mut(name) else { return };
        host.changed.remove(&key);
        let Some(id) = host.flows.remove(&key).and_then(|known| known.id) else { return };
        let transfer = self.active.transfer(id);
        self.active.remove(id);
        self.keys.remove(&id);
        self.is_changed = true;
        if self.active.flows_of(transfer).is_empty() {
            let named = self.transfer_names.remove(&transfer);
            named.map(|named| self.transfers.remove(&named.name));
        }
    }

    fn forget_flows(&mut self, name: &str) {
        let flows: Vec<FlowKey> =
            self.hosts.get(name).map(|host| host.flows.keys().copied().collect()).unwrap_or_default();
        flows.into_iter().for_each(|key| self.forget_flow(name, key));
    }

    fn transfer_id(&mut self, name: &str) -> TransferId {
        if let Some(id) = self.transfers.get(name) {
            return *id;
        }
        self.transfers_so_far = self.transfers_so_far.wrapping_add(1);
        let id = TransferId(self.transfers_so_far);
        self.transfers.insert(name.to_owned(), id);
        let named = Named { name: name.to_owned(), flows: 0, moved: ByteCount::ZERO };
        self.transfer_names.insert(id, named);
        id
    }

    fn host(&self, name: &str) -> &Joined {
        &self.hosts[name]
    }

    /// Sets all rates, if anything has happened that changes them.
    ///
    /// Errors: what the allocator decided is no decision; the limits of before hold.
    pub fn decide(&mut self, now: Instant) -> Result<(), DecisionError> {
        if !std::mem::take(&mut self.is_changed) {
            return Ok(());
        }
        self.active.advance(now);
        let min_bits = 8.0 * REMAINING_MIN.as_u64() as f64;
        for id in self.active.ids().to_vec() {
            if self.active.remaining_bits(id) < min_bits {
                self.active.observe(id, REMAINING_MIN);
            }
        }
        self.active.decide(&mut self.allocator)?;
        for id in self.active.ids() {
            let (name, key) = &self.keys[id];
            let host = self.hosts.get_mut(name).expect("an active flow's host has joined");
            let known = host.flows.get_mut(key).expect("an active flow is known to its host");
            let rate_bps = self.active.bps(*id).max(RATE_MIN.as_bps() as f64);
            let is_same = |old: u64| (rate_bps - old as f64).abs() <= CHANGE_MIN * old as f64;
            if !known.rate_bps.is_some_and(is_same) {
                known.rate_bps = Some(rate_bps as u64);
                host.changed.insert(*key);
            }
        }
        Ok(())
    }

    /// The limits that an agent has not been told yet.
    pub fn poll_limits(&mut self, name: &str, session: u64) -> Vec<Limit> {
        let host = self.hosts.get_mut(name).filter(|host| host.session == session && host.is_up);
        let Some(host) = host else { return Vec::new() };
        let changed = std::mem::take(&mut host.changed);
        changed.into_iter().map(|flow| Limit { flow, rate_bps: host.flows[&flow].rate_bps }).collect()
    }

    /// The next transfer whose flows have all ended. One whose last flow went with its agent has not: it may be back.
    pub fn poll_ended(&mut self) -> Option<Ended> {
        self.ended.pop_front()
    }

    /// Hosts whose agents have limits to be told, with their agents' sessions.
    pub fn hosts_changed(&self) -> impl Iterator<Item = (&str, u64)> {
        let is_changed = |host: &Joined| host.is_up && !host.changed.is_empty();
        self.hosts
            .iter()
            .filter(move |(_, host)| is_changed(host))
            .map(|(name, host)| (name.as_str(), host.session))
    }

    /// Transfers under way, by name, with their flows at this instant.
    ///
    /// Panics: for an instant before the last one that it was told of.
    pub fn transfers(&mut self, now: Instant) -> Vec<TransferView> {
        self.active.advance(now);
        let flow = |id: &FlowId| {
            let (host, flow) = &self.keys[id];
            let remaining = ByteCount::new((self.active.remaining_bits(*id) / 8.0) as u64);
            let rate_bps = self.hosts[host].flows[flow].rate_bps.unwrap_or_default();
            FlowView { host: host.clone(), flow: *flow, remaining, rate: BitRate::bps(rate_bps) }
        };
        let view = |(name, id): (&String, &TransferId)| {
            let (since, _) = self.active.transfer_so_far(*id).expect("a transfer with a name has flows");
            let mut flows: Vec<FlowView> = self.active.flows_of(*id).iter().map(flow).collect();
            flows.sort_by(|a, b| (&a.host, a.flow).cmp(&(&b.host, b.flow)));
            TransferView { name: name.clone(), since, flows }
        };
        self.transfers.iter().map(view).collect()
    }

    /// How many flows have rates, and how many transfers they make.
    pub fn count(&self) -> (usize, usize) {
        (self.keys.len(), self.transfers.len())
    }

    /// Hosts by name, their links' rates, and whether their agents are there.
    pub fn hosts(&self) -> impl Iterator<Item = (&str, BitRate, bool)> {
        self.hosts.iter().map(|(name, host)| (name.as_str(), host.rate, host.is_up))
    }
}

/// What a flow that is known has still to move.
fn remaining(known: &Known) -> ByteCount {
    ByteCount::new(known.size.as_u64() - known.moved.as_u64()).max(REMAINING_MIN)
}

/// Whether a host or a transfer may be called so.
///
/// Errors: [`ReportError::Name`].
pub fn check_name(name: &str) -> Result<(), ReportError> {
    let is_one = (1..=NAME_MAX).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_graphic());
    if is_one { Ok(()) } else { Err(ReportError::Name(name.to_owned())) }
}

#[cfg(test)]
mod tests;
