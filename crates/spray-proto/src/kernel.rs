//! The kernel state that an agent needs, its comparison with the actual state, and the repairs of
//! differences.
//!
//! An agent needs a device that is up, rules, and a route for each peer whose packets travel in
//! datagrams. Other programs change all of these: network managers remove unknown rules, `sysctl
//! --system` turns on reverse path filtering. A [`Reconciler`] compares the driver's lists with the
//! needed state. A fault that returns [`REPAIRS_MAX`] times within [`FAULT_WINDOW`] ends the
//! repairs, because another program insists on its state; TCP then takes the ordinary route until a
//! hold has passed.
//!
//! Each peer has three rules. The first two keep agents reachable over the ordinary route: TCP to
//! the peer's agent, and TCP from this host's agent, skip the third rule. The third rule sends all
//! other TCP from this host to the agent's table. With reverse path filtering three more rules do
//! the same for packets from our address, because the kernel looks up the reverse route with that
//! address.
//!
//! Leaves out: netlink and the device (`spray`). Read [`Rule`] and [`Reconciler`] first.

use anabranch_units::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::IpAddr;

/// Value of `protocol` in an agent's rules and routes, by which agents recognise them. No routing
/// daemon uses it (`include/uapi/linux/rtnetlink.h`, `RTPROT_*`).
pub const PROTOCOL: u8 = 72;
/// Maximum repairs of one fault within [`FAULT_WINDOW`]. Insistent managers interfere every few
/// seconds, while a reload of the network's settings causes one or two changes.
pub const REPAIRS_MAX: usize = 5;
/// Window for counting repairs of one fault.
pub const FAULT_WINDOW: Duration = Duration::from_secs(60);
/// Pause after a fault was given up; it doubles each time, up to [`HOLD_MAX`].
const HOLD_MIN: Duration = Duration::from_secs(60);
/// Maximum pause. If no repairs were given up for this time after a pause, the next pause is
/// [`HOLD_MIN`] again.
const HOLD_MAX: Duration = Duration::from_secs(960);
/// Pause after the kernel has refused a repair.
const HOLD_REFUSED: Duration = Duration::from_secs(2);
/// Number of observations without a new heartbeat of the forwarding thread after which the thread
/// counts as stalled.
const STALLS_MAX: u32 = 3;

/// A difference between what the agent needs and what the kernel has.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The forwarding thread is stalled.
    Standstill,
    /// The device does not exist any more.
    DeviceDeleted,
    /// The device is not up.
    DeviceDown,
    /// Reverse path filtering drops packets that the agent writes to its device.
    ReversePathFilter,
    /// Rules are missing.
    RulesRemoved,
    /// Routes are missing or differ.
    RoutesRemoved,
    /// The state is complete, but the kernel does not send TCP to a peer into the device.
    Bypassed,
}

impl Fault {
    /// All faults, in the order of their codes.
    pub const ALL: [Self; 7] = [
        Self::Standstill,
        Self::DeviceDeleted,
        Self::DeviceDown,
        Self::ReversePathFilter,
        Self::RulesRemoved,
        Self::RoutesRemoved,
        Self::Bypassed,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Standstill => "the thread that carries packets stands still",
            Self::DeviceDeleted => "another program deleted the agent's device",
            Self::DeviceDown => "another program set the agent's device down",
            Self::ReversePathFilter => "reverse path filtering (rp_filter) was turned on",
            Self::RulesRemoved => "another program removed the agent's rules",
            Self::RoutesRemoved => "another program removed the agent's routes",
            Self::Bypassed => "an earlier rule takes TCP past the agent's table",
        })
    }
}

/// Selector of a rule; rules apply to TCP only.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selector {
    /// Source address; `None` for packets that begin on this host.
    pub from: Option<IpAddr>,
    /// Destination address.
    pub to: IpAddr,
    /// One port of the connection; `None` for all ports.
    pub port: Option<Port>,
}

/// A port number at one end of a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// The source port of the packets.
    Source(u16),
    /// The destination port of the packets.
    Destination(u16),
}

/// The action of a rule.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleAction {
    /// Look up a table.
    Lookup(u32),
    /// Continue at the rule of this priority.
    Goto(u32),
    /// No action: the target of jumps.
    Nop,
}

/// A rule of the form that agents use.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// Position among all rules, lowest first.
    pub priority: u32,
    /// Address family.
    pub is_ipv6: bool,
    /// Matching packets; `None` for all.
    pub selector: Option<Selector>,
    /// The action for these packets.
    pub action: RuleAction,
    /// Number of the program that has set the rule: [`PROTOCOL`] for an agent.
    pub protocol: u8,
}

impl Rule {
    /// Table of the agent that sets a rule of this form; `None` if the form is not an agent's.
    pub fn table(&self) -> Option<u32> {
        match (self.action, self.selector) {
            (RuleAction::Lookup(table), Some(Selector { port: None, .. })) if self.priority == table => {
                Some(table)
            }
            (RuleAction::Goto(target), Some(Selector { port: Some(_), .. }))
                if self.priority.checked_add(2) == Some(target) =>
            {
                Some(target - 1)
            }
            (RuleAction::Nop, None) => self.priority.checked_sub(1),
            _ => None,
        }
    }
}

/// A route of an agent's table.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Route {
    /// The peer's address.
    pub to: IpAddr,
    /// This host's address towards the peer.
    pub from: IpAddr,
    /// Maximum packet length in bytes, IP header included.
    pub mtu_bytes: u32,
}

/// A peer's addresses and port.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PeerEndpoint {
    /// The peer's address.
    pub address: IpAddr,
    /// This host's address towards the peer.
    pub local: IpAddr,
    /// The port of the peer's agent.
    pub port: u16,
}

/// The kernel's actual state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelState {
    /// Number of heartbeats of the forwarding thread so far.
    pub beats: u64,
    /// True if the device is up; `None` if it does not exist.
    pub device_is_up: Option<bool>,
    /// True if the host setting filters by reverse path on all devices.
    pub host_filters: bool,
    /// True if the device's own setting filters by reverse path.
    pub device_filters: bool,
    /// Rules of the form that agents use.
    pub rules: Vec<Rule>,
    /// Routes of the agent's table into its device.
    pub routes: Vec<Route>,
    /// Peers that have a route but whose TCP the kernel sends past the device.
    pub bypassed: Vec<IpAddr>,
}

/// One repair.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Make the device again. The next observation shows the faults that remain.
    MakeDevice,
    /// Set the device up.
    RaiseDevice,
    /// Turn off the device's reverse path filter.
    StopFilter,
    /// Delete a rule.
    DeleteRule(Rule),
    /// Add a rule.
    AddRule(Rule),
    /// Set the route to a peer to [`Reconciler::route`], if that is `Some`.
    SetRoute(IpAddr),
    /// Delete the route to a peer.
    DeleteRoute(IpAddr),
}

/// An event for the log.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first fault of its kind within [`FAULT_WINDOW`]; repairs follow.
    Found(Fault),
    /// Repairs pause for this time, because they do not last or because no repair exists.
    GaveUp(Fault, Duration),
    /// The kernel's state is complete again.
    Recovered,
}

#[derive(Debug)]
struct FaultHold {
    fault: Fault,
    /// Time of the next attempt to repair.
    until: Instant,
    /// Pause after a failed attempt.
    hold: Duration,
    /// True until an observation shows whether the last attempt lasts.
    is_trial: bool,
}

/// State machine that compares the needed state with the kernel's.
///
/// Cost: one step of a sorted set for each rule and route in each comparison.
#[derive(Debug)]
pub struct Reconciler {
    table: u32,
    port: u16,
    peers: Vec<PeerEndpoint>,
    routes: BTreeMap<IpAddr, Route>,
    host_filters: bool,
    rules: BTreeSet<Rule>,
    /// Times of the last repairs of each fault.
    repaired_at: BTreeMap<Fault, VecDeque<Instant>>,
    given_up: Option<FaultHold>,
    hold: Duration,
    last_given_up_at: Option<Instant>,
    /// Last count of heartbeats, and number of observations since it changed.
    beats: (u64, u32),
    events: VecDeque<Event>,
}

impl Reconciler {
    /// Creates a reconciler for an agent with this table, port and peers, without routes.
    pub fn new(table: u32, port: u16, peers: Vec<PeerEndpoint>, host_filters: bool) -> Self {
        Self {
            rules: rules(table, port, &peers, host_filters),
            table,
            port,
            peers,
            routes: BTreeMap::new(),
            host_filters,
            repaired_at: BTreeMap::new(),
            given_up: None,
            hold: HOLD_MIN,
            last_given_up_at: None,
            beats: (0, 0),
            events: VecDeque::new(),
        }
    }

    /// Returns the repairs that replace stale rules by this agent's rules. `live_tables` are the
    /// tables of other running agents.
    pub fn begin(&self, rules: &[Rule], live_tables: &BTreeSet<u32>) -> Vec<Repair> {
        let is_stale = |rule: &&Rule| match rule.table() {
            Some(table) if table == self.table => true,
            Some(table) => rule.protocol == PROTOCOL && !live_tables.contains(&table),
            None => false,
        };
        let delete = rules.iter().filter(is_stale).copied().map(Repair::DeleteRule);
        delete.chain(self.rules.iter().copied().map(Repair::AddRule)).collect()
    }

    /// Replaces the peers, and returns the resulting repairs of rules, new rules first. Drops the
    /// needed routes of removed peers.
    pub fn handle_peers(&mut self, peers: Vec<PeerEndpoint>) -> Vec<Repair> {
        let wanted = rules(self.table, self.port, &peers, self.host_filters);
        let before = std::mem::replace(&mut self.rules, wanted);
        self.routes.retain(|to, _| peers.iter().any(|peer| peer.address == *to));
        self.peers = peers;
        let add = self.rules.difference(&before).copied().map(Repair::AddRule);
        add.chain(before.difference(&self.rules).copied().map(Repair::DeleteRule)).collect()
    }

    /// Address families of the peers: true for IPv6, false for IPv4.
    pub fn families(&self) -> BTreeSet<bool> {
        self.peers.iter().map(|peer| peer.address.is_ipv6()).collect()
    }

    /// Sets or removes the route that a peer needs.
    pub fn handle_route(&mut self, to: IpAddr, route: Option<Route>) {
        match route {
            Some(route) => _ = self.routes.insert(to, route),
            None => _ = self.routes.remove(&to),
        }
    }

    /// Route that a peer needs, if any.
    pub fn route(&self, to: IpAddr) -> Option<&Route> {
        self.routes.get(&to)
    }

    /// Peers that need a route.
    pub fn routed(&self) -> impl Iterator<Item = IpAddr> {
        self.routes.keys().copied()
    }

    /// Fault that keeps TCP on the ordinary route, if any.
    pub fn fault(&self) -> Option<Fault> {
        let is_still = self.beats.1 >= STALLS_MAX;
        is_still.then_some(Fault::Standstill).or(self.given_up.as_ref().map(|given_up| given_up.fault))
    }

    /// Returns the next event for the log, until `None`.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Compares the needed state with the observed state, and returns the repairs in order.
    pub fn handle_observed(&mut self, now: Instant, observed: &KernelState) -> Vec<Repair> {
        let was_still = self.beats.1 >= STALLS_MAX;
        let stalls = if observed.beats == self.beats.0 { self.beats.1.saturating_add(1) } else { 0 };
        self.beats = (observed.beats, stalls);
        match (was_still, stalls >= STALLS_MAX) {
            (false, true) => self.events.push_back(Event::GaveUp(Fault::Standstill, Duration::ZERO)),
            (true, false) => self.events.push_back(Event::Recovered),
            _ => {}
        }
        if stalls >= STALLS_MAX {
            // The guard removes the routes of a stalled forwarding thread.
            return Vec::new();
        }
        let (fault, repairs) = self.compare(observed);
        if let Some(given_up) = &mut self.given_up {
            if now < given_up.until {
                return Vec::new();
            }
            let Some(fault) = fault else {
                self.given_up = None;
                self.repaired_at.clear();
                self.events.push_back(Event::Recovered);
                return repairs;
            };
            if std::mem::replace(&mut given_up.is_trial, false) {
                (given_up.fault, given_up.until) = (fault, now + given_up.hold);
                return Vec::new();
            }
            // The next observation shows whether the repairs last.
            (given_up.is_trial, given_up.until) = (true, now);
            return repairs;
        }
        let Some(fault) = fault else { return repairs };
        let times = self.repaired_at.entry(fault).or_default();
        times.retain(|at| now.saturating_since(*at) < FAULT_WINDOW);
        let is_first = times.is_empty();
        if fault == Fault::Bypassed || times.len() >= REPAIRS_MAX {
            self.give_up(now, fault);
            return Vec::new();
        }
        times.push_back(now);
        if is_first {
            self.events.push_back(Event::Found(fault));
        }
        repairs
    }

    /// Handles the kernel's refusal of a repair.
    pub fn handle_refused(&mut self, now: Instant, repair: &Repair) {
        let fault = match repair {
            Repair::MakeDevice => Fault::DeviceDeleted,
            Repair::RaiseDevice => Fault::DeviceDown,
            Repair::StopFilter => Fault::ReversePathFilter,
            Repair::AddRule(_) => Fault::RulesRemoved,
            Repair::SetRoute(_) => Fault::RoutesRemoved,
            // A rule or route that is already gone cannot be deleted.
            Repair::DeleteRule(_) | Repair::DeleteRoute(_) => return,
        };
        let (until, hold) = (now + HOLD_REFUSED, HOLD_REFUSED);
        if self.given_up.is_none() {
            self.events.push_back(Event::GaveUp(fault, hold));
            self.given_up = Some(FaultHold { fault, until, hold, is_trial: false });
        }
    }

    fn give_up(&mut self, now: Instant, fault: Fault) {
        let is_again =
            self.last_given_up_at.is_some_and(|at| now.saturating_since(at) < self.hold + HOLD_MAX);
        self.hold = if is_again { (self.hold * 2).min(HOLD_MAX) } else { HOLD_MIN };
        self.last_given_up_at = Some(now);
        let hold = self.hold;
        self.given_up = Some(FaultHold { fault, until: now + hold, hold, is_trial: false });
        self.events.push_back(Event::GaveUp(fault, hold));
    }

    /// Returns all repairs, and the first fault, which may have caused the later faults.
    fn compare(&mut self, observed: &KernelState) -> (Option<Fault>, Vec<Repair>) {
        let Some(is_up) = observed.device_is_up else {
            return (Some(Fault::DeviceDeleted), vec![Repair::MakeDevice]);
        };
        let (mut faults, mut repairs) = (BTreeSet::new(), Vec::new());
        if !is_up {
            faults.insert(Fault::DeviceDown);
            repairs.push(Repair::RaiseDevice);
        }
        if observed.device_filters {
            faults.insert(Fault::ReversePathFilter);
            repairs.push(Repair::StopFilter);
        }
        if observed.host_filters != self.host_filters {
            self.host_filters = observed.host_filters;
            self.rules = rules(self.table, self.port, &self.peers, self.host_filters);
            if self.host_filters {
                faults.insert(Fault::ReversePathFilter);
            }
        }
        let own = observed.rules.iter().filter(|rule| rule.table() == Some(self.table));
        let own: BTreeSet<Rule> = own.copied().collect();
        repairs.extend(own.difference(&self.rules).copied().map(Repair::DeleteRule));
        let missing: Vec<Rule> = self.rules.difference(&own).copied().collect();
        if !missing.is_empty() {
            faults.insert(Fault::RulesRemoved);
            repairs.extend(missing.into_iter().map(Repair::AddRule));
        }
        let routes: BTreeMap<IpAddr, Route> =
            observed.routes.iter().map(|route| (route.to, *route)).collect();
        let extra = routes.keys().filter(|to| !self.routes.contains_key(to));
        repairs.extend(extra.copied().map(Repair::DeleteRoute));
        let differs = |(to, route): &(&IpAddr, &Route)| routes.get(to) != Some(route);
        let missing: Vec<IpAddr> = self.routes.iter().filter(differs).map(|(to, _)| *to).collect();
        if !missing.is_empty() {
            faults.insert(Fault::RoutesRemoved);
            repairs.extend(missing.into_iter().map(Repair::SetRoute));
        }
        if faults.is_empty() && observed.bypassed.iter().any(|to| self.routes.contains_key(to)) {
            faults.insert(Fault::Bypassed);
        }
        (faults.first().copied(), repairs)
    }
}

/// The rules of an agent.
fn rules(table: u32, port: u16, peers: &[PeerEndpoint], host_filters: bool) -> BTreeSet<Rule> {
    let mut rules = BTreeSet::new();
    for peer in peers {
        let is_ipv6 = peer.address.is_ipv6();
        let rule =
            |priority, selector, action| Rule { priority, is_ipv6, selector, action, protocol: PROTOCOL };
        rules.insert(rule(table + 1, None, RuleAction::Nop));
        // The kernel has no reverse path filter for IPv6.
        let back = Some(Some(peer.local)).filter(|_| host_filters && !is_ipv6);
        for from in [None].into_iter().chain(back) {
            let to = peer.address;
            for port in [Port::Destination(peer.port), Port::Source(port)] {
                let selector = Some(Selector { from, to, port: Some(port) });
                rules.insert(rule(table - 1, selector, RuleAction::Goto(table + 1)));
            }
            let selector = Some(Selector { from, to, port: None });
            rules.insert(rule(table, selector, RuleAction::Lookup(table)));
        }
    }
    rules
}

#[cfg(test)]
mod tests;
