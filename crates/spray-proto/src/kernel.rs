//! An agent's needs of its host's kernel, compared with the kernel's state, and the repairs of each difference.
//!
//! An agent needs a device that is up, rules, and a route for each peer whose packets go by datagrams. Other programs change all of them:
//! network managers remove rules that they do not know, `sysctl --system` turns on reverse path filtering. A [`Reconciler`] compares what
//! the driver lists with what is needed. A fault that returns [`REPAIRS_MAX`] times within [`FAULT_WINDOW`] ends the repairs: some other program
//! insists on it, and TCP goes the ordinary way until a hold has passed.
//!
//! Three rules stand for each peer. The first two let agents speak to each other by the ordinary way: TCP to the peer's agent, and TCP from
//! ours, jump over the third, by which all other TCP that begins on this host looks into the agent's table. With reverse path filtering
//! three more say the same of packets from our address, as the kernel looks up the way back with that address.
//! Leaves out: netlink and the device (`spray`). Read [`Rule`] and [`Reconciler`] first.

use anabranch_units::{Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::IpAddr;

/// The `protocol` of an agent's rules and routes, by which agents recognise them. No number of a routing daemon
/// (`include/uapi/linux/rtnetlink.h`, `RTPROT_*`).
pub const PROTOCOL: u8 = 72;
/// Repairs of one fault within [`FAULT_WINDOW`] after which the next one is not made: managers that insist do so every few seconds, and a
/// reload of the network's settings changes things once or twice.
pub const REPAIRS_MAX: usize = 5;
/// See [`REPAIRS_MAX`].
pub const FAULT_WINDOW: Duration = Duration::from_secs(60);
/// Time without repairs after a fault was given up; it doubles each time, up to [`HOLD_MAX`].
const HOLD_MIN: Duration = Duration::from_secs(60);
/// Longest time without repairs. A fault that stays away for so long starts again at [`HOLD_MIN`].
const HOLD_MAX: Duration = Duration::from_secs(960);
/// Time without repairs after the kernel has refused one.
const HOLD_REFUSED: Duration = Duration::from_secs(2);
/// Observations without a new beat of the forwarding thread after which it counts as standing still.
const STALLS_MAX: u32 = 3;

/// A difference between what the agent needs and what the kernel has.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The forwarding thread does not beat.
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
    /// Everything is in place, and TCP to a peer still does not go into the device.
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

/// The packets that a rule is for, all of them TCP.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selector {
    /// Source address; `None` for packets that begin on this host.
    pub from: Option<IpAddr>,
    /// Destination address.
    pub to: IpAddr,
    /// One port; `None` for all.
    pub port: Option<Port>,
}

/// A port at one end of a connection.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Port {
    /// The port that packets come from.
    Source(u16),
    /// The port that packets go to.
    Destination(u16),
}

/// The action of a rule.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RuleAction {
    /// Looks into a table.
    Lookup(u32),
    /// Goes on at the rule of this priority.
    Goto(u32),
    /// Nothing: the target of jumps.
    Nop,
}

/// A rule of the form that agents' rules have.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Rule {
    /// Place among all rules, the least first.
    pub priority: u32,
    /// Address family.
    pub is_ipv6: bool,
    /// Packets that it is for; `None` for all.
    pub selector: Option<Selector>,
    /// The action for these packets.
    pub action: RuleAction,
    /// Number of the program that has set it: [`PROTOCOL`] for an agent.
    pub protocol: u8,
}

impl Rule {
    /// Table of the agent that sets a rule of this form; `None` if no agent does.
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
    /// Our address towards it.
    pub from: IpAddr,
    /// Longest packet, IP header included.
    pub mtu_bytes: u32,
}

/// A peer, as far as rules go.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct PeerPlace {
    /// The peer's address.
    pub address: IpAddr,
    /// Our address towards it.
    pub local: IpAddr,
    /// The port of the peer's agent.
    pub port: u16,
}

/// The kernel's state.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Observed {
    /// Beats of the forwarding thread so far.
    pub beats: u64,
    /// Whether the device is up; `None` if it does not exist.
    pub device_is_up: Option<bool>,
    /// Whether the host filters by reverse path on all devices.
    pub host_filters: bool,
    /// Whether the device's own setting filters.
    pub device_filters: bool,
    /// Rules of the form that agents' rules have.
    pub rules: Vec<Rule>,
    /// Routes of the agent's table into its device.
    pub routes: Vec<Route>,
    /// Peers with a route to which the kernel does not send TCP through the device.
    pub bypassed: Vec<IpAddr>,
}

/// One step towards what is needed.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Repair {
    /// Make the device again. The next observation shows other faults.
    MakeDevice,
    /// Set the device up.
    RaiseDevice,
    /// Turn off the device's reverse path filter.
    StopFilter,
    /// Delete a rule.
    DeleteRule(Rule),
    /// Add a rule.
    AddRule(Rule),
    /// Set the route to a peer that [`Reconciler::route`] gives, if it gives one.
    SetRoute(IpAddr),
    /// Delete the route to a peer.
    DeleteRoute(IpAddr),
}

/// News for the log.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The first fault of its kind within [`FAULT_WINDOW`]; repairs follow.
    Found(Fault),
    /// Repairs end for this long: they do not last, or there are none.
    GaveUp(Fault, Duration),
    /// The kernel has all that is needed again.
    Recovered,
}

#[derive(Debug)]
struct GivenUp {
    fault: Fault,
    /// When repairs are tried again.
    until: Instant,
    /// Time without repairs after a failed try.
    hold: Duration,
    /// Whether the repairs of the last try are still unproven.
    is_trial: bool,
}

/// Compares what is needed with what the kernel has. A machine without I/O.
///
/// Cost: of one comparison, one step of a sorted set for each rule and route.
#[derive(Debug)]
pub struct Reconciler {
    table: u32,
    port: u16,
    peers: Vec<PeerPlace>,
    routes: BTreeMap<IpAddr, Route>,
    host_filters: bool,
    rules: BTreeSet<Rule>,
    /// Times of the last repairs of each fault.
    repaired_at: BTreeMap<Fault, VecDeque<Instant>>,
    given_up: Option<GivenUp>,
    hold: Duration,
    last_given_up_at: Option<Instant>,
    /// The last count of beats, and observations since it changed.
    beats: (u64, u32),
    events: VecDeque<Event>,
}

impl Reconciler {
    /// The agent has this table, listens on `port`, and has these peers; none has a route yet.
    pub fn new(table: u32, port: u16, peers: Vec<PeerPlace>, host_filters: bool) -> Self {
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

    /// Replaces stale rules by this agent's rules. `live_tables` are the tables of other running agents.
    pub fn begin(&self, rules: &[Rule], live_tables: &BTreeSet<u32>) -> Vec<Repair> {
        let is_stale = |rule: &&Rule| match rule.table() {
            Some(table) if table == self.table => true,
            Some(table) => rule.protocol == PROTOCOL && !live_tables.contains(&table),
            None => false,
        };
        let delete = rules.iter().filter(is_stale).copied().map(Repair::DeleteRule);
        delete.chain(self.rules.iter().copied().map(Repair::AddRule)).collect()
    }

    /// A peer's packets go by datagrams, or not any more.
    pub fn handle_route(&mut self, to: IpAddr, route: Option<Route>) {
        match route {
            Some(route) => _ = self.routes.insert(to, route),
            None => _ = self.routes.remove(&to),
        }
    }

    /// The route that a peer needs, if any.
    pub fn route(&self, to: IpAddr) -> Option<&Route> {
        self.routes.get(&to)
    }

    /// Peers that need a route.
    pub fn routed(&self) -> impl Iterator<Item = IpAddr> {
        self.routes.keys().copied()
    }

    /// Why TCP goes the ordinary way, if no peer can have a route now.
    pub fn fault(&self) -> Option<Fault> {
        let is_still = self.beats.1 >= STALLS_MAX;
        is_still.then_some(Fault::Standstill).or(self.given_up.as_ref().map(|given_up| given_up.fault))
    }

    /// News for the log, until none.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Compares, and returns the repairs to make, in this order.
    pub fn handle_observed(&mut self, now: Instant, observed: &Observed) -> Vec<Repair> {
        let was_still = self.beats.1 >= STALLS_MAX;
        let stalls = if observed.beats == self.beats.0 { self.beats.1.saturating_add(1) } else { 0 };
        self.beats = (observed.beats, stalls);
        match (was_still, stalls >= STALLS_MAX) {
            (false, true) => self.events.push_back(Event::GaveUp(Fault::Standstill, Duration::ZERO)),
            (true, false) => self.events.push_back(Event::Recovered),
            _ => {}
        }
        if stalls >= STALLS_MAX {
            // The guard removes the routes of a forwarding thread that stands still.
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
            // The next observation shows whether these last.
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

    /// The kernel has refused a repair.
    pub fn handle_refused(&mut self, now: Instant, repair: &Repair) {
        let fault = match repair {
            Repair::MakeDevice => Fault::DeviceDeleted,
            Repair::RaiseDevice => Fault::DeviceDown,
            Repair::StopFilter => Fault::ReversePathFilter,
            Repair::AddRule(_) => Fault::RulesRemoved,
            Repair::SetRoute(_) => Fault::RoutesRemoved,
            // A rule or route that is gone already cannot be deleted.
            Repair::DeleteRule(_) | Repair::DeleteRoute(_) => return,
        };
        let (until, hold) = (now + HOLD_REFUSED, HOLD_REFUSED);
        if self.given_up.is_none() {
            self.events.push_back(Event::GaveUp(fault, hold));
            self.given_up = Some(GivenUp { fault, until, hold, is_trial: false });
        }
    }

    fn give_up(&mut self, now: Instant, fault: Fault) {
        let is_again =
            self.last_given_up_at.is_some_and(|at| now.saturating_since(at) < self.hold + HOLD_MAX);
        self.hold = if is_again { (self.hold * 2).min(HOLD_MAX) } else { HOLD_MIN };
        self.last_given_up_at = Some(now);
        let hold = self.hold;
        self.given_up = Some(GivenUp { fault, until: now + hold, hold, is_trial: false });
        self.events.push_back(Event::GaveUp(fault, hold));
    }

    /// The first fault, which may cause later faults, and all repairs.
    fn compare(&mut self, observed: &Observed) -> (Option<Fault>, Vec<Repair>) {
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
fn rules(table: u32, port: u16, peers: &[PeerPlace], host_filters: bool) -> BTreeSet<Rule> {
    let mut rules = BTreeSet::new();
    for peer in peers {
        let is_ipv6 = peer.address.is_ipv6();
        let rule =
            |priority, selector, action| Rule { priority, is_ipv6, selector, action, protocol: PROTOCOL };
        rules.insert(rule(table + 1, None, RuleAction::Nop));
        // There is no such filter for IPv6.
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
