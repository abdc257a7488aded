//! The coordinator: it hears of flows from the agents of hosts, and sets each one's limit.
//!
//! Each host is one link out and one in (the hose model), which is all where hosts' own links are the narrow ones. Where hosts
//! share a narrower way to the others (a rack's uplinks, a site's line), they say so, and the network is a tree: a flow
//! crosses the uplinks that its ends do not share. A flow to a host whose agent has never been there crosses
//! its sender's links only.
//!
//! Volumes are known from agents' reports, from time to time. A flow that should be through and is not is taken to have
//! [`REMAINING_MIN`] to move. A flow of which nothing has arrived for [`IDLE_AFTER`] is idle: its program has nothing to send, or
//! its receiver takes nothing. An idle flow passes without a limit and its coflow does not wait for it, as if it were small, until it
//! moves again. A flow that moves slower than its limit, because of its program, its receiver or a link that no agent has reported, is
//! slow: it keeps its limit, but its share of its links is only a little more than it moves; others get the rest.
//! The volume of an open-ended flow is not known beyond its buffer, which says little: such flows are
//! taken to have as much to move as those of their coflow have moved so far, on average. (The longer one has gone on, the
//! longer it will, where few flows move most of the bytes.) With nothing in its buffer, such a flow is idle at once.
//! Nothing is kept that agents could not report again: a coordinator that starts anew hears of all flows when they join.
//!
//! Source: Ren and Wang (2016), sections 4.4 (volumes that grow; small flows pass) and 5.2 (a central controller, which hears
//! of each flow that enters or completes).
//! Leaves out: HTTP, clocks, enforcing rates (drivers). One call of [`Coordinator::decide`] after a batch of reports sets
//! all rates.

mod messages;
mod progress;

use crate::control::{FlowKey, Limit, Report};
use anabranch_fluid::{Active, Allocator, CoflowId, DecisionError, FlowId, LinkId, Network};
use anabranch_units::{BitRate, ByteCount, Instant};
pub use messages::*;
pub use progress::IDLE_AFTER;
use progress::{LOOK_STEP, Progress, Verdict};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

/// What a flow that has not ended has still to move at least, whatever was said.
pub const REMAINING_MIN: ByteCount = ByteCount::new(64 * 1024);
/// No flow's limit is below this: a connection that may send nothing cannot tell that it has ended.
pub const RATE_MIN: BitRate = BitRate::bps(100_000);
/// Nor below this part of its link's, over all flows there: what has been sent at a low rate holds up what follows when the
/// rate is raised, by two segments' time at the least.
pub const PART_MIN: f64 = 0.02;
/// A flow is slow that moves less than this part of what it may.
const SLOW_BELOW: f64 = 0.75;
/// It is slow until it moves more than this part of it.
const SLOW_UNTIL: f64 = 0.9;
/// What is kept for a slow flow, in what it moves.
const SLOW_KEEPS: f64 = 1.25;
/// By so much a rate is another one where rates are measured.
const MEASURED_CHANGE_MIN: f64 = 0.1;
/// A limit is said anew when it is another by more than this part.
const CHANGE_MIN: f64 = 0.01;

/// The most coflows that have begun or ended and that nobody has asked for; of more, the oldest are forgotten.
pub const ENDED_MAX: usize = 4_096;

/// Agents' flows, and the rates that an allocator gives them.
#[derive(Debug)]
pub struct Coordinator<A> {
    settings: Settings,
    /// Away while a decision is made elsewhere.
    allocator: Option<A>,
    active: Active,
    /// By link: its rate, and how much of that is kept for slow flows, in bits a second.
    links: Vec<(BitRate, u64)>,
    hosts: BTreeMap<String, Joined>,
    uplinks: BTreeMap<String, Links>,
    by_address: BTreeMap<IpAddr, String>,
    /// Of active flows: whose, and which.
    keys: BTreeMap<FlowId, (String, FlowKey)>,
    /// When each active or slow flow is to be looked at; the first one first.
    looks: BTreeSet<(Instant, String, FlowKey)>,
    /// Those that have flows other than mice.
    coflows: BTreeMap<String, Coflow>,
    coflows_so_far: u32,
    /// Names of those that have begun and that nobody has asked for.
    begun: VecDeque<String>,
    ended: VecDeque<Ended>,
    is_changed: bool,
}

#[derive(Debug)]
struct Coflow {
    id: CoflowId,
    /// When its first flow was there.
    since: Instant,
    /// How many it has, idle ones among them.
    flows: usize,
    /// Of those that have ended.
    flows_ended: u64,
    /// What its open-ended flows have moved, those that have ended among them.
    open_moved: u64,
    moved: ByteCount,
}

/// A link in both directions.
#[derive(Copy, Clone, Debug)]
struct Links {
    rate: BitRate,
    out: LinkId,
    into: LinkId,
}

#[derive(Debug)]
struct Joined {
    session: u64,
    /// While its agent is there. What it was told before it left, it has forgotten.
    is_up: bool,
    joins: u64,
    addresses: Vec<IpAddr>,
    link: Links,
    uplinks: Vec<String>,
    flows: BTreeMap<FlowKey, Known>,
    /// What its flows are of, and of which how many.
    coflows: BTreeMap<String, usize>,
    /// Limits to be said.
    changed: BTreeSet<FlowKey>,
}

#[derive(Debug)]
struct Known {
    coflow: String,
    size: ByteCount,
    moved: ByteCount,
    is_open: bool,
    state: State,
    /// What its agent has been told, or is about to be.
    rate_bps: Option<u64>,
}

/// What becomes of a flow.
#[derive(Clone, Debug)]
enum State {
    /// It is small, or crosses no link: it passes.
    Passes,
    /// It has a rate.
    Active { id: FlowId, watch: Watch },
    /// It has the limit that it had, and so much is kept for it on these links, in bits a second.
    Slow { keeps_bps: u64, route: Vec<LinkId>, watch: Watch },
    /// It passes until it moves, and had moved so much when it stopped.
    Idle { moved: ByteCount },
}

/// How a flow gets on, and when it is looked at next.
#[derive(Copy, Clone, Debug)]
struct Watch {
    progress: Progress,
    look_at: Instant,
}

impl Watch {
    fn new(now: Instant, moved: ByteCount, rate_bps: f64) -> Self {
        let mut progress = Progress::new(now, moved);
        progress.set_rate(now, rate_bps);
        Self { look_at: progress.look_at(), progress }
    }
}

impl State {
    const fn watch(&mut self) -> Option<&mut Watch> {
        match self {
            Self::Active { watch, .. } | Self::Slow { watch, .. } => Some(watch),
            Self::Passes | Self::Idle { .. } => None,
        }
    }
}

impl Known {
    const fn id(&self) -> Option<FlowId> {
        match self.state {
            State::Active { id, .. } => Some(id),
            State::Passes | State::Slow { .. } | State::Idle { .. } => None,
        }
    }

    /// Whether its coflow has ended only when it has.
    const fn is_waited_for(&self) -> bool {
        !matches!(self.state, State::Passes)
    }
}

/// A decision that is made apart from the coordinator, on the flows that were there when it began.
#[derive(Debug)]
pub struct Decision<A> {
    active: Active,
    allocator: A,
    result: Result<(), DecisionError>,
}

impl<A: Allocator> Decision<A> {
    /// Decides, which is what takes time.
    pub fn make(&mut self) {
        self.result = self.active.decide(&mut self.allocator);
    }
}

impl<A: Allocator> Coordinator<A> {
    /// No hosts.
    pub fn new(settings: Settings, allocator: A) -> Self {
        let network = Network::new(Vec::new()).expect("a network may have no links");
        Self {
            settings,
            allocator: Some(allocator),
            active: Active::new(network),
            links: Vec::new(),
            hosts: BTreeMap::new(),
            uplinks: BTreeMap::new(),
            by_address: BTreeMap::new(),
            keys: BTreeMap::new(),
            looks: BTreeSet::new(),
            coflows: BTreeMap::new(),
            coflows_so_far: 0,
            begun: VecDeque::new(),
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
        let addresses = host.addresses.iter().map(IpAddr::to_canonical).collect();
        let host = Host { addresses, ..host };
        self.check_host(name, &host)?;
        self.active.advance(now);
        self.forget_flows(now, name);
        let Host { addresses, rate, uplinks } = host;
        for uplink in &uplinks {
            let known = self.uplinks.get(&uplink.name).copied();
            self.uplinks.insert(
                uplink.name.clone(),
                set_links(&mut self.active, &mut self.links, known, uplink.rate),
            );
        }
        let uplinks: Vec<String> = uplinks.into_iter().map(|uplink| uplink.name).collect();
        let known = match self.hosts.get(name) {
            Some(joined) => Some(joined.link),
            // Whoever has gone is forgotten where there is no room, and its links are another's.
            None if self.hosts.len() >= HOSTS_MAX => self.unused_host().cloned().map(|unused| {
                self.by_address.retain(|_, host| *host != unused);
                self.hosts.remove(&unused).expect("it is there").link
            }),
            None => None,
        };
        let link = set_links(&mut self.active, &mut self.links, known, rate);
        if let Some(joined) = self.hosts.get_mut(name) {
            for address in joined.addresses.drain(..) {
                // Another host may have it by now.
                if self.by_address.get(&address).is_some_and(|other| other == name) {
                    self.by_address.remove(&address);
                }
            }
            (joined.session, joined.is_up, joined.link) = (session, true, link);
            joined.joins += 1;
            (joined.addresses, joined.uplinks) = (addresses.clone(), uplinks);
        } else {
            let joined = Joined {
                session,
                is_up: true,
                joins: 1,
                addresses: addresses.clone(),
                link,
                uplinks,
                flows: BTreeMap::new(),
                coflows: BTreeMap::new(),
                changed: BTreeSet::new(),
            };
            self.hosts.insert(name.to_owned(), joined);
        }
        self.by_address.extend(addresses.into_iter().map(|address| (address, name.to_owned())));
        // Flows to it cross its links from now on, and what those carry may be another.
        let is_to_it = |key: &FlowKey| self.by_address.get(&key.remote.ip()).is_some_and(|to| to == name);
        let mut to_it: Vec<(String, FlowKey)> =
            self.keys.values().filter(|(_, key)| is_to_it(key)).cloned().collect();
        // A loopback address of no host was taken for the sender's own.
        if self.hosts[name].addresses.iter().any(IpAddr::is_loopback) {
            let passes = |(key, known): &(&FlowKey, &Known)| {
                is_to_it(key) && !known.is_waited_for() && known.size >= self.settings.mice_below
            };
            let of_host = |(from, host): (&String, &Joined)| -> Vec<(String, FlowKey)> {
                host.flows.iter().filter(passes).map(|(key, _)| (from.clone(), *key)).collect()
            };
            to_it.extend(self.hosts.iter().flat_map(of_host));
        }
        to_it.into_iter().for_each(|(from, key)| self.route(now, &from, key));
        self.is_changed = true;
        Ok(())
    }

    /// A host whose agent is not there and to which there are no flows.
    fn unused_host(&self) -> Option<&String> {
        let is_unused = |host: &Joined| {
            let into = host.link.into;
            !host.is_up && self.active.flows_on(into).is_empty() && self.links[into.0 as usize].1 == 0
        };
        self.hosts.iter().find(|(_, host)| is_unused(host)).map(|(name, _)| name)
    }

    /// Whether a host may join.
    fn check_host(&self, name: &str, host: &Host) -> Result<(), ReportError> {
        check_name(name)?;
        if host.addresses.len() > ADDRESSES_MAX {
            return Err(ReportError::TooManyAddresses(host.addresses.len()));
        }
        for address in &host.addresses {
            check_address(*address)?;
            let other =
                self.by_address.get(address).filter(|other| *other != name && self.hosts[*other].is_up);
            if let Some(other) = other {
                return Err(ReportError::AddressTaken { address: *address, other: other.clone() });
            }
        }
        if host.uplinks.len() > HOST_UPLINKS_MAX {
            return Err(ReportError::TooManyHostUplinks(host.uplinks.len()));
        }
        let is_full = !self.hosts.contains_key(name) && self.hosts.len() >= HOSTS_MAX;
        if is_full && self.unused_host().is_none() {
            return Err(ReportError::TooManyHosts);
        }
        let rates = std::iter::once(host.rate).chain(host.uplinks.iter().map(|uplink| uplink.rate));
        if let Some(rate) = rates.min().filter(|rate| *rate < RATE_MIN) {
            return Err(ReportError::SlowLink(rate));
        }
        let mut room = UPLINKS_MAX.saturating_sub(self.uplinks.len());
        for (at, Uplink { name: uplink, rate: said }) in host.uplinks.iter().enumerate() {
            check_name(uplink)?;
            if host.uplinks[..at].iter().any(|other| other.name == *uplink) {
                return Err(ReportError::UplinkTwice(uplink.clone()));
            }
            let Some(known) = self.uplinks.get(uplink).map(|known| known.rate) else {
                room = room.checked_sub(1).ok_or(ReportError::TooManyUplinks)?;
                continue;
            };
            let is_behind = |(other, joined): &(&String, &Joined)| {
                *other != name && joined.is_up && joined.uplinks.contains(uplink)
            };
            if let Some((other, _)) = self.hosts.iter().filter(|_| known != *said).find(is_behind) {
                let (name, said, other) = (uplink.clone(), *said, other.clone());
                return Err(ReportError::UplinkRate { name, said, other, known });
            }
        }
        Ok(())
    }

    /// An agent has gone: its flows are forgotten, and others get what they had.
    pub fn handle_leave(&mut self, now: Instant, name: &str, session: u64) {
        self.active.advance(now);
        if self.hosts.get(name).is_some_and(|host| host.session == session) {
            self.forget_flows(now, name);
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
        let mut open = BTreeSet::new();
        let result = reports.iter().try_for_each(|report| {
            let flow = match report {
                Report::Flow { flow, coflow, size_bytes, open_ended } => {
                    self.on_flow(now, name, *flow, coflow, ByteCount::new(*size_bytes), *open_ended)?;
                    flow
                }
                Report::Moved { flow, moved_bytes } => {
                    self.on_moved(now, name, *flow, ByteCount::new(*moved_bytes));
                    flow
                }
                Report::Ended { flow } => {
                    self.on_ended(now, name, *flow);
                    flow
                }
            };
            if self.hosts[name].flows.get(flow).is_some_and(|known| known.is_open) {
                open.insert(*flow);
            }
            Ok(())
        });
        // What is in a buffer is known only once both has been said, what was written and what has arrived.
        open.into_iter().for_each(|flow| self.on_buffer(now, name, flow));
        result
    }

    /// Has an open-ended flow begin that has something to move, and be idle that has not.
    fn on_buffer(&mut self, now: Instant, name: &str, key: FlowKey) {
        let Some(known) = self.hosts[name].flows.get(&key) else { return };
        let (moved, waits) = (known.moved, known.size.as_u64() - known.moved.as_u64());
        match known.state {
            State::Active { .. } | State::Slow { .. } if waits == 0 => {
                self.set_state(now, name, key, |_, _, _| State::Idle { moved });
            }
            State::Passes if waits >= self.settings.mice_below.as_u64() => {
                self.route(now, name, key);
                let known = &self.hosts[name].flows[&key];
                if let Some(coflow) = self.coflows.get_mut(&known.coflow) {
                    coflow.open_moved = coflow.open_moved.saturating_add(moved.as_u64());
                }
            }
            State::Idle { .. } if waits >= self.settings.mice_below.as_u64() => self.route(now, name, key),
            _ => {}
        }
    }

    fn on_flow(
        &mut self,
        now: Instant,
        name: &str,
        key: FlowKey,
        coflow: &str,
        size: ByteCount,
        is_open: bool,
    ) -> Result<(), ReportError> {
        check_name(coflow)?;
        let is_other = |known: &Known| known.coflow != coflow;
        // The same addresses and ports for another coflow: the connection is another one.
        if self.hosts[name].flows.get(&key).is_some_and(is_other) {
            self.forget_flow(now, name, key);
        }
        let mice_below = self.settings.mice_below;
        let host = self.hosts.get_mut(name).expect("only hosts that have joined report");
        if !host.flows.contains_key(&key) {
            if host.flows.len() >= HOST_FLOWS_MAX {
                return Err(ReportError::TooManyFlows);
            }
            let is_full = host.coflows.len() >= HOST_COFLOWS_MAX;
            if is_full && !host.coflows.contains_key(coflow) {
                return Err(ReportError::TooManyCoflows);
            }
            *host.coflows.entry(coflow.to_owned()).or_default() += 1;
            // Its connection may have a limit still, of what it moved before.
            host.changed.insert(key);
        }
        let known = host.flows.entry(key).or_insert_with(|| Known {
            coflow: coflow.to_owned(),
            size: ByteCount::ZERO,
            moved: ByteCount::ZERO,
            is_open,
            state: State::Passes,
            rate_bps: None,
        });
        known.is_open = is_open;
        if is_open {
            known.size = known.size.max(size);
            return Ok(());
        }
        if size <= known.size && known.is_waited_for() {
            return Ok(());
        }
        let more = ByteCount::new(size.as_u64().saturating_sub(known.size.as_u64()));
        known.size = known.size.max(size);
        match known.state {
            State::Active { id, .. } => {
                self.active.grow(id, more);
                self.is_changed = true;
            }
            // There is more to move: it is taken to begin.
            State::Idle { .. } => self.route(now, name, key),
            State::Slow { .. } => {}
            State::Passes if known.size >= mice_below => self.route(now, name, key),
            State::Passes => {}
        }
        Ok(())
    }

    /// Has a flow that is no mouse cross its links, once more if it does already.
    fn route(&mut self, now: Instant, name: &str, key: FlowKey) {
        let route = self.links(name, key);
        self.set_state(now, name, key, |active, known, id| {
            if route.is_empty() {
                return State::Passes;
            }
            let id = active.insert(id, &route, remaining(known));
            let rate_bps = known.rate_bps.unwrap_or(0) as f64;
            State::Active { id, watch: Watch::new(now, known.moved, rate_bps) }
        });
    }

    /// The links that a flow crosses; to itself a host sends over none.
    fn links(&self, name: &str, key: FlowKey) -> Vec<LinkId> {
        let from = &self.hosts[name];
        let to = self.by_address.get(&key.remote.ip());
        let is_here = to.map_or(key.remote.ip().is_loopback(), |to| to == name);
        if is_here || key.remote.ip() == key.local.ip() {
            return Vec::new();
        }
        let Some(to) = to else { return vec![from.link.out] };
        let to = &self.hosts[to];
        let apart = |of: &'_ Joined, from: &Joined| -> Vec<Links> {
            let names = of.uplinks.iter().filter(|uplink| !from.uplinks.contains(uplink));
            names.map(|uplink| self.uplinks[uplink]).collect()
        };
        let out = apart(from, to).into_iter().map(|uplink| uplink.out);
        let into = apart(to, from).into_iter().map(|uplink| uplink.into);
        [from.link.out].into_iter().chain(out).chain(into).chain([to.link.into]).collect()
    }

    /// Has a flow be in another state, and all that depends on that follow.
    fn set_state(
        &mut self,
        now: Instant,
        name: &str,
        key: FlowKey,
        state: impl FnOnce(&mut Active, &Known, CoflowId) -> State,
    ) {
        let Self { active, links, keys, looks, coflows, .. } = self;
        let host = self.hosts.get_mut(name).expect("only hosts that have joined have flows");
        let known = host.flows.get_mut(&key).expect("a flow is known before it has a state");
        let was_waited_for = known.is_waited_for();
        if let Some(watch) = known.state.watch() {
            looks.remove(&(watch.look_at, name.to_owned(), key));
        }
        match &known.state {
            State::Active { id, .. } => {
                active.withdraw(*id);
                keys.remove(id);
            }
            State::Slow { keeps_bps, route, .. } => {
                route.iter().for_each(|link| links[link.0 as usize].1 -= keeps_bps);
                set_rates(active, links, route);
            }
            State::Passes | State::Idle { .. } => {}
        }
        let is_new = !coflows.contains_key(&known.coflow);
        let coflow = coflows.entry(known.coflow.clone()).or_insert_with(|| {
            self.coflows_so_far = self.coflows_so_far.wrapping_add(1);
            let id = CoflowId(self.coflows_so_far);
            Coflow { id, since: now, flows: 0, flows_ended: 0, open_moved: 0, moved: ByteCount::ZERO }
        });
        known.state = state(active, known, coflow.id);
        if let Some(watch) = known.state.watch() {
            looks.insert((watch.look_at, name.to_owned(), key));
        }
        match &known.state {
            State::Active { id, .. } => drop(keys.insert(*id, (name.to_owned(), key))),
            State::Slow { keeps_bps, route, .. } => {
                route.iter().for_each(|link| links[link.0 as usize].1 += keeps_bps);
                set_rates(active, links, route);
            }
            State::Passes | State::Idle { .. } => {}
        }
        if known.state.watch().is_none() && known.rate_bps.take().is_some() {
            host.changed.insert(key);
        }
        coflow.flows = coflow.flows + usize::from(known.is_waited_for()) - usize::from(was_waited_for);
        if coflow.flows == 0 {
            coflows.remove(&known.coflow);
        } else if is_new {
            if self.begun.len() >= ENDED_MAX {
                self.begun.pop_front();
            }
            self.begun.push_back(known.coflow.clone());
        }
        self.is_changed = true;
    }

    fn on_moved(&mut self, now: Instant, name: &str, key: FlowKey, moved: ByteCount) {
        let wakes_at = self.settings.mice_below.max(ByteCount::new(1)).as_u64();
        let host = self.hosts.get_mut(name).expect("only hosts that have joined report");
        let Some(known) = host.flows.get_mut(&key) else { return };
        let before = known.moved;
        known.moved = known.moved.max(moved).min(known.size);
        let left = remaining(known);
        match &mut known.state {
            State::Passes => return,
            State::Active { id, watch } => {
                if !known.is_open {
                    self.active.observe(*id, left);
                }
                watch.progress.on_moved(now, known.moved);
            }
            State::Slow { watch, .. } => watch.progress.on_moved(now, known.moved),
            State::Idle { moved: before } => {
                let is_awake = moved.as_u64() >= before.as_u64().saturating_add(wakes_at);
                if is_awake && !known.is_open {
                    return self.route(now, name, key);
                }
            }
        }
        if known.is_open
            && let Some(coflow) = self.coflows.get_mut(&known.coflow)
        {
            let more = known.moved.as_u64() - before.as_u64();
            coflow.open_moved = coflow.open_moved.saturating_add(more);
        }
    }

    fn on_ended(&mut self, now: Instant, name: &str, key: FlowKey) {
        let Some(known) = self.hosts[name].flows.get(&key) else { return };
        if known.is_waited_for() {
            let coflow = self.coflows.get_mut(&known.coflow).expect("what has a flow is there");
            coflow.flows_ended += 1;
            let bytes = coflow.moved.as_u64().saturating_add(known.moved.as_u64());
            coflow.moved = ByteCount::new(bytes);
            if coflow.flows == 1 {
                if self.ended.len() >= ENDED_MAX {
                    self.ended.pop_front();
                }
                let Coflow { since, flows_ended: flows, moved: bytes, .. } = *coflow;
                self.ended.push_back(Ended { name: known.coflow.clone(), since, at: now, flows, bytes });
            }
        }
        self.forget_flow(now, name, key);
    }

    fn forget_flow(&mut self, now: Instant, name: &str, key: FlowKey) {
        let known = self.hosts.get(name).and_then(|host| host.flows.get(&key));
        if known.is_some_and(Known::is_waited_for) {
            self.set_state(now, name, key, |_, _, _| State::Passes);
        }
        let Some(host) = self.hosts.get_mut(name) else { return };
        host.changed.remove(&key);
        let Some(known) = host.flows.remove(&key) else { return };
        if let Some(flows) = host.coflows.get_mut(&known.coflow) {
            *flows -= 1;
            if *flows == 0 {
                host.coflows.remove(&known.coflow);
            }
        }
    }

    fn forget_flows(&mut self, now: Instant, name: &str) {
        let flows: Vec<FlowKey> =
            self.hosts.get(name).map(|host| host.flows.keys().copied().collect()).unwrap_or_default();
        flows.into_iter().for_each(|key| self.forget_flow(now, name, key));
    }

    /// When [`Coordinator::decide`] is to be called although nobody has said anything: a flow may be idle or slow.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.looks.first().map(|(at, ..)| *at)
    }

    /// Looks at the flows of which it is time to tell whether they are idle or slow.
    fn look(&mut self, now: Instant) {
        while self.looks.first().is_some_and(|(at, ..)| *at <= now) {
            let (_, name, key) = self.looks.pop_first().expect("there is a first one");
            let host =
                self.hosts.get_mut(&name).expect("a flow that is looked at is of a host that has joined");
            let known = host.flows.get_mut(&key).expect("it is known to its host");
            let moved = known.moved;
            let watch = known.state.watch().expect("it is active or slow");
            let verdict = watch.progress.look(now);
            watch.look_at = watch.progress.look_at();
            self.looks.insert((watch.look_at, name.clone(), key));
            match verdict {
                Some(Verdict::Idle) => self.set_state(now, &name, key, |_, _, _| State::Idle { moved }),
                Some(Verdict::Moves { bps, part }) => self.judge(now, &name, key, bps, part),
                None => {}
            }
        }
    }

    /// Has a flow be slow, or slow no longer, that moves so much, and such a part of what it may.
    fn judge(&mut self, now: Instant, name: &str, key: FlowKey, bps: f64, part: f64) {
        let keeps_bps = ((SLOW_KEEPS * bps) as u64).max(RATE_MIN.as_bps());
        let (route, watch) = match &self.hosts[name].flows[&key].state {
            // Whoever waits cannot tell what it might move.
            State::Active { id, watch }
                if part < SLOW_BELOW && self.active.bps(*id) >= self.least_bps(*id) =>
            {
                (self.active.route(*id).collect(), *watch)
            }
            State::Slow { .. } if part > SLOW_UNTIL => return self.route(now, name, key),
            State::Slow { keeps_bps: old_bps, route, watch }
                if keeps_bps.abs_diff(*old_bps) as f64 > MEASURED_CHANGE_MIN * *old_bps as f64 =>
            {
                (route.clone(), *watch)
            }
            _ => return,
        };
        self.set_state(now, name, key, |_, _, _| State::Slow { keeps_bps, route, watch });
    }

    /// Sets all rates, if anything has happened that changes them; says whether it has.
    ///
    /// Errors: what the allocator decided is no decision; the limits of before hold.
    /// Panics: while a decision is made elsewhere.
    pub fn decide(&mut self, now: Instant) -> Result<bool, DecisionError> {
        if !self.is_due(now) {
            return Ok(false);
        }
        let allocator = self.allocator.as_mut().expect("no decision is made elsewhere");
        self.active.decide(allocator)?;
        self.set_limits(now, |_| true);
        Ok(true)
    }

    /// What is to be decided, if anything has happened that changes rates, so that it can be decided elsewhere while agents are
    /// heard. Nothing else is decided until it comes back by [`Coordinator::end_decision`].
    pub fn begin_decision(&mut self, now: Instant) -> Option<Decision<A>> {
        if self.allocator.is_none() || !self.is_due(now) {
            return None;
        }
        let allocator = self.allocator.take()?;
        Some(Decision { active: self.active.fork(), allocator, result: Ok(()) })
    }

    /// Sets the rates that were decided, for flows that are there still. What has come since waits for the next decision.
    ///
    /// Errors: as [`Coordinator::decide`].
    pub fn end_decision(&mut self, now: Instant, decision: Decision<A>) -> Result<(), DecisionError> {
        let Decision { active, allocator, result } = decision;
        self.allocator = Some(allocator);
        result?;
        self.active.advance(now);
        self.active.adopt(&active);
        self.set_limits(now, |id| active.is_active(id));
        Ok(())
    }

    /// Brings all up to this instant; whether anything has happened that changes rates.
    fn is_due(&mut self, now: Instant) -> bool {
        self.active.advance(now);
        self.look(now);
        let is_changed = std::mem::take(&mut self.is_changed);
        if is_changed {
            self.estimate();
        }
        is_changed
    }

    /// Has agents be told of the rates of those flows that were decided on.
    fn set_limits(&mut self, now: Instant, is_decided: impl Fn(FlowId) -> bool) {
        let limits = self.limits_bps();
        for (id, rate_bps) in limits.iter().filter(|(id, _)| is_decided(*id)) {
            let rate_bps = *rate_bps;
            let (name, key) = &self.keys[id];
            let host = self.hosts.get_mut(name).expect("an active flow's host has joined");
            let known = host.flows.get_mut(key).expect("an active flow is known to its host");
            let is_same = |old: u64| (rate_bps - old as f64).abs() <= CHANGE_MIN * old as f64;
            if !known.rate_bps.is_some_and(is_same) {
                known.rate_bps = Some(rate_bps as u64);
                host.changed.insert(*key);
                let watch = known.state.watch().expect("an active flow is looked at");
                self.looks.remove(&(watch.look_at, name.clone(), *key));
                watch.progress.set_rate(now, rate_bps);
                watch.look_at = watch.progress.look_at().max(now + LOOK_STEP);
                self.looks.insert((watch.look_at, name.clone(), *key));
            }
        }
    }

    /// Has flows have something to move of which that is not known: who should be through and is not, and who is open-ended.
    fn estimate(&mut self) {
        let Self { active, keys, hosts, coflows, .. } = self;
        for (id, (name, key)) in keys {
            let known = &hosts[name].flows[key];
            let least = if known.is_open {
                let coflow = &coflows[&known.coflow];
                let mean = coflow.open_moved / (coflow.flows as u64 + coflow.flows_ended).max(1);
                remaining(known).max(ByteCount::new(mean))
            } else {
                REMAINING_MIN
            };
            let left_bytes = (active.remaining_bits(*id) / 8.0) as u64;
            if known.is_open && left_bytes < least.as_u64() {
                active.grow(*id, ByteCount::new(least.as_u64() - left_bytes));
            } else if left_bytes < least.as_u64() {
                active.observe(*id, least);
            }
        }
    }

    /// The rates that were decided, but that each flow has the least that it may; what those that wait have so is taken from
    /// the others on their links, in proportion.
    fn limits_bps(&self) -> Vec<(FlowId, f64)> {
        let active = &self.active;
        let least_bps = |id| self.least_bps(id);
        // By link: what flows that wait have, and the others.
        let mut links = vec![(0.0, 0.0); active.network().links()];
        for id in active.ids() {
            let (bps, least_bps) = (active.bps(*id), least_bps(*id));
            for link in active.route(*id) {
                let (waiting_bps, going_bps) = &mut links[link.0 as usize];
                if bps < least_bps {
                    *waiting_bps += least_bps;
                } else {
                    *going_bps += bps;
                }
            }
        }
        let limit_bps = |id: &FlowId| {
            let (bps, least_bps) = (active.bps(*id), least_bps(*id));
            let part = |link: LinkId| {
                let (waiting_bps, going_bps) = links[link.0 as usize];
                ((active.rate_bps(link) - waiting_bps) / going_bps).min(1.0)
            };
            let part = if bps < least_bps { 1.0 } else { active.route(*id).map(part).fold(1.0, f64::min) };
            (*id, (part * bps).max(least_bps))
        };
        active.ids().iter().map(limit_bps).collect()
    }

    /// The least that a flow may have.
    fn least_bps(&self, id: FlowId) -> f64 {
        let active = &self.active;
        let part = |link| PART_MIN * active.rate_bps(link) / active.flows_on(link).len() as f64;
        active.route(id).map(part).fold(f64::INFINITY, f64::min).max(RATE_MIN.as_bps() as f64)
    }

    /// The limits that an agent has not been told yet.
    pub fn poll_limits(&mut self, name: &str, session: u64) -> Vec<Limit> {
        let host = self.hosts.get_mut(name).filter(|host| host.session == session && host.is_up);
        let Some(host) = host else { return Vec::new() };
        let changed = std::mem::take(&mut host.changed);
        changed.into_iter().map(|flow| Limit { flow, rate_bps: host.flows[&flow].rate_bps }).collect()
    }

    /// The name of the next coflow that has begun.
    pub fn poll_begun(&mut self) -> Option<String> {
        self.begun.pop_front()
    }

    /// The next coflow whose flows have all ended. One whose last flow went with its agent has not: it may be back.
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

    /// Coflows under way, by name, with their flows at this instant.
    ///
    /// Panics: for an instant before the last one that it was told of.
    pub fn coflows(&mut self, now: Instant) -> Vec<CoflowView> {
        self.active.advance(now);
        let mut flows: BTreeMap<&str, Vec<FlowView>> = BTreeMap::new();
        for (host, joined) in &self.hosts {
            for (flow, known) in joined.flows.iter().filter(|(_, known)| known.is_waited_for()) {
                let remaining = match known.id() {
                    Some(id) => ByteCount::new((self.active.remaining_bits(id) / 8.0) as u64),
                    None => ByteCount::new(known.size.as_u64() - known.moved.as_u64()),
                };
                let is_limited = matches!(known.state, State::Active { .. } | State::Slow { .. });
                let rate = is_limited.then(|| BitRate::bps(known.rate_bps.unwrap_or_default()));
                let view = FlowView { host: host.clone(), flow: *flow, remaining, rate };
                flows.entry(&known.coflow).or_default().push(view);
            }
        }
        let view = |(name, coflow): (&String, &Coflow)| CoflowView {
            name: name.clone(),
            since: coflow.since,
            flows: flows.remove(name.as_str()).unwrap_or_default(),
        };
        self.coflows.iter().map(view).collect()
    }

    /// How many flows there are, but for mice; how many of them have rates; and how many coflows they make.
    pub fn count(&self) -> (usize, usize, usize) {
        let flows = self.coflows.values().map(|coflow| coflow.flows).sum();
        (flows, self.keys.len(), self.coflows.len())
    }

    /// Hosts by name.
    pub fn hosts(&self) -> impl Iterator<Item = HostView<'_>> {
        self.hosts.iter().map(|(name, host)| HostView {
            name,
            is_up: host.is_up,
            joins: host.joins,
            rate: host.link.rate,
            uplinks: host.uplinks.iter().map(|uplink| (uplink.as_str(), self.uplinks[uplink].rate)).collect(),
        })
    }
}

/// A link's two directions at this rate, which is not 0, added unless they are known.
fn set_links(
    active: &mut Active,
    links: &mut Vec<(BitRate, u64)>,
    known: Option<Links>,
    rate: BitRate,
) -> Links {
    if let Some(Links { out, into, .. }) = known {
        let both = [out, into];
        both.iter().for_each(|link| links[link.0 as usize].0 = rate);
        set_rates(active, links, &both);
        return Links { rate, out, into };
    }
    let mut add = || {
        links.push((rate, 0));
        active.add_link(rate).expect("a rate that is not 0 is one")
    };
    Links { rate, out: add(), into: add() }
}

/// Has links carry what is not kept for slow flows, but never nothing.
fn set_rates(active: &mut Active, links: &[(BitRate, u64)], changed: &[LinkId]) {
    for link in changed {
        let (rate, kept_bps) = links[link.0 as usize];
        let least_bps = (PART_MIN * rate.as_bps() as f64) as u64;
        let left_bps = rate.as_bps().saturating_sub(kept_bps).max(least_bps).max(1);
        active.set_link_rate(*link, BitRate::bps(left_bps)).expect("a rate that is not 0 is one");
    }
}

/// What a flow that is known has still to move.
fn remaining(known: &Known) -> ByteCount {
    ByteCount::new(known.size.as_u64() - known.moved.as_u64()).max(REMAINING_MIN)
}

#[cfg(test)]
mod tests;
