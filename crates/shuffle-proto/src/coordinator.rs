//! The coordinator: receives flows from hosts' agents, and sets each flow's rate limit.
//!
//! Each host is one link out and one in (the hose model), which is the whole network if hosts' own
//! links are the bottlenecks. Hosts that share a narrower link to the other hosts (a rack's
//! uplinks, a site's line) declare it, and the network becomes a tree: a flow crosses the uplinks
//! that its ends do not share. A flow to a host without an agent crosses its sender's links only.
//!
//! Volumes are known from agents' periodic reports. An overdue flow is assumed to have
//! [`REMAINING_MIN`] left. A flow without arrivals for [`IDLE_AFTER`] is idle: its program has
//! nothing to send, or its receiver reads nothing. An idle flow has no limit, like a mouse, and its
//! coflow does not wait for it until it moves again. A flow is slow if its program, its receiver or
//! an unreported link holds it below its limit. A slow flow keeps its limit, but reserves only a
//! little more than its actual rate on its links. The remaining rate is available to other flows.
//!
//! The volume of an open-ended flow is unknown beyond its buffer. The flow is assumed to have as
//! much left as its coflow's open-ended flows have moved on average. (Where few flows move most
//! bytes, a long flow tends to last longer.) With an empty buffer it is idle at once.
//!
//! Agents can report all state again: a restarted coordinator receives all flows as they join.
//!
//! Source: Ren and Wang (2016), sections 4.4 (growing volumes; small flows pass) and 5.2 (a central
//! controller that learns of arriving and completing flows). Leaves out: HTTP, clocks, enforcing
//! rates (drivers). [`Coordinator::decide`] after a batch of reports sets all rates.

mod messages;
mod progress;

use crate::control::{FlowKey, Limit, Report};
use anabranch_fluid::{ActiveFlows, Allocator, CoflowId, DecisionError, FlowId, LinkId, Network};
use anabranch_units::{BitRate, ByteCount, Instant};
pub use messages::*;
pub use progress::IDLE_AFTER;
use progress::{LOOK_STEP, Progress, Verdict};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::net::IpAddr;

/// Minimum assumed remaining bytes of a flow that has not ended, whatever was reported.
pub const REMAINING_MIN: ByteCount = ByteCount::new(64 * 1024);
/// Minimum rate limit of a flow: a connection that may send nothing cannot report its end.
pub const RATE_MIN: BitRate = BitRate::bps(100_000);
/// Minimum share of its link, divided among all flows there. After a raise, data already sent at
/// the low rate still delays the following data by the time of two segments.
pub const PART_MIN: f64 = 0.02;
/// Share of its limit below which a flow is classified as slow.
const SLOW_BELOW: f64 = 0.75;
/// Share of its limit above which a flow is no longer classified as slow.
const SLOW_UNTIL: f64 = 0.9;
/// Rate reserved for a slow flow, as a multiple of its measured rate.
const SLOW_KEEPS: f64 = 1.25;
/// Minimum relative change of a slow flow's measured rate that changes its reservation.
const MEASURED_CHANGE_MIN: f64 = 0.1;
/// Minimum relative change of a limit that is sent to the agent.
const CHANGE_MIN: f64 = 0.01;

/// Maximum number of begun or ended coflows waiting to be polled; above it the oldest are dropped.
pub const ENDED_MAX: usize = 4_096;

/// Flows of all agents, and the rates that an allocator gives them.
#[derive(Debug)]
pub struct Coordinator<A> {
    settings: ClassSettings,
    /// `None` while a decision is made outside of the coordinator.
    allocator: Option<A>,
    active: ActiveFlows,
    /// For each link: its rate, and the part reserved for slow flows in bits per second.
    links: Vec<(BitRate, u64)>,
    hosts: BTreeMap<String, JoinedHost>,
    uplinks: BTreeMap<String, Links>,
    by_address: BTreeMap<IpAddr, String>,
    /// Host and key of each active flow.
    keys: BTreeMap<FlowId, (String, FlowKey)>,
    /// Time of the next check of each active or slow flow, in order of time.
    looks: BTreeSet<(Instant, String, FlowKey)>,
    /// Coflows that have flows other than mice.
    coflows: BTreeMap<String, Coflow>,
    coflows_so_far: u32,
    /// Names of begun coflows, until polled.
    begun: VecDeque<String>,
    ended: VecDeque<EndedCoflow>,
    is_changed: bool,
}

#[derive(Debug)]
struct Coflow {
    id: CoflowId,
    /// Start time of the coflow's first flow.
    since: Instant,
    /// Number of the coflow's present flows, idle flows included.
    flows: usize,
    /// Number of the coflow's ended flows.
    flows_ended: u64,
    /// Bytes moved by the coflow's open-ended flows, ended flows included.
    open_moved: u64,
    moved: ByteCount,
}

/// The two directions of a link.
#[derive(Copy, Clone, Debug)]
struct Links {
    rate: BitRate,
    out: LinkId,
    into: LinkId,
}

#[derive(Debug)]
struct JoinedHost {
    session: u64,
    /// True while the host's agent is connected. An agent forgets its limits when it leaves.
    is_up: bool,
    joins: u64,
    addresses: Vec<IpAddr>,
    link: Links,
    uplinks: Vec<String>,
    flows: BTreeMap<FlowKey, ReportedFlow>,
    /// Number of the host's flows in each coflow.
    coflows: BTreeMap<String, usize>,
    /// Flows with limits not yet sent.
    changed: BTreeSet<FlowKey>,
}

#[derive(Debug)]
struct ReportedFlow {
    coflow: String,
    size: ByteCount,
    moved: ByteCount,
    is_open: bool,
    state: State,
    /// Limit in bits per second that the flow's agent has, or will receive with the next limits.
    rate_bps: Option<u64>,
}

/// State of a flow.
#[derive(Clone, Debug)]
enum State {
    /// A mouse, or a flow that crosses no link: no limit.
    Passes,
    /// A flow with a rate.
    Active { id: FlowId, watch: ProgressWatch },
    /// A slow flow: it keeps its limit, and reserves `keeps_bps` on the links of `route`.
    Slow { keeps_bps: u64, route: Vec<LinkId>, watch: ProgressWatch },
    /// An idle flow without a limit. `moved` is the number of bytes moved when it became idle.
    Idle { moved: ByteCount },
}

/// Progress of a flow, and the time of its next check.
#[derive(Copy, Clone, Debug)]
struct ProgressWatch {
    progress: Progress,
    look_at: Instant,
}

impl ProgressWatch {
    fn new(now: Instant, moved: ByteCount, rate_bps: f64) -> Self {
        let mut progress = Progress::new(now, moved);
        progress.set_rate(now, rate_bps);
        Self { look_at: progress.look_at(), progress }
    }
}

impl State {
    const fn watch(&mut self) -> Option<&mut ProgressWatch> {
        match self {
            Self::Active { watch, .. } | Self::Slow { watch, .. } => Some(watch),
            Self::Passes | Self::Idle { .. } => None,
        }
    }
}

impl ReportedFlow {
    const fn id(&self) -> Option<FlowId> {
        match self.state {
            State::Active { id, .. } => Some(id),
            State::Passes | State::Slow { .. } | State::Idle { .. } => None,
        }
    }

    /// Returns true if the flow's coflow must wait for it.
    const fn is_waited_for(&self) -> bool {
        !matches!(self.state, State::Passes)
    }
}

/// A decision made apart from the coordinator, on the flows at the time of its start.
#[derive(Debug)]
pub struct Decision<A> {
    active: ActiveFlows,
    allocator: A,
    result: Result<(), DecisionError>,
}

impl<A: Allocator> Decision<A> {
    /// Makes the decision. This step is the only slow one.
    pub fn make(&mut self) {
        self.result = self.active.decide(&mut self.allocator);
    }
}

impl<A: Allocator> Coordinator<A> {
    /// Creates a coordinator without hosts.
    pub fn new(settings: ClassSettings, allocator: A) -> Self {
        let network = Network::new(Vec::new()).expect("a network may have no links");
        Self {
            settings,
            allocator: Some(allocator),
            active: ActiveFlows::new(network),
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

    /// Handles a joining agent. State of the host's earlier agent is dropped and reported again.
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
            // At the maximum number of hosts, a disconnected host is removed. Its links are reused.
            None if self.hosts.len() >= HOSTS_MAX => self.unused_host().cloned().map(|unused| {
                self.by_address.retain(|_, host| *host != unused);
                self.hosts.remove(&unused).expect("it is there").link
            }),
            None => None,
        };
        let link = set_links(&mut self.active, &mut self.links, known, rate);
        if let Some(joined) = self.hosts.get_mut(name) {
            for address in joined.addresses.drain(..) {
                // Another host may use the address by now.
                if self.by_address.get(&address).is_some_and(|other| other == name) {
                    self.by_address.remove(&address);
                }
            }
            (joined.session, joined.is_up, joined.link) = (session, true, link);
            joined.joins += 1;
            (joined.addresses, joined.uplinks) = (addresses.clone(), uplinks);
        } else {
            let joined = JoinedHost {
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
        // Flows to this host now cross its links, and the links' rates may have changed.
        let is_to_it = |key: &FlowKey| self.by_address.get(&key.remote.ip()).is_some_and(|to| to == name);
        let mut to_it: Vec<(String, FlowKey)> =
            self.keys.values().filter(|(_, key)| is_to_it(key)).cloned().collect();
        // Until now, a loopback address without a host counted as the sender's own address.
        if self.hosts[name].addresses.iter().any(IpAddr::is_loopback) {
            let passes = |(key, known): &(&FlowKey, &ReportedFlow)| {
                is_to_it(key) && !known.is_waited_for() && known.size >= self.settings.mice_below
            };
            let of_host = |(from, host): (&String, &JoinedHost)| -> Vec<(String, FlowKey)> {
                host.flows.iter().filter(passes).map(|(key, _)| (from.clone(), *key)).collect()
            };
            to_it.extend(self.hosts.iter().flat_map(of_host));
        }
        to_it.into_iter().for_each(|(from, key)| self.route(now, &from, key));
        self.is_changed = true;
        Ok(())
    }

    /// Finds a host without an agent and without flows to it.
    fn unused_host(&self) -> Option<&String> {
        let is_unused = |host: &JoinedHost| {
            let into = host.link.into;
            !host.is_up && self.active.flows_on(into).is_empty() && self.links[into.0 as usize].1 == 0
        };
        self.hosts.iter().find(|(_, host)| is_unused(host)).map(|(name, _)| name)
    }

    /// Checks that a host may join.
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
            let is_behind = |(other, joined): &(&String, &JoinedHost)| {
                *other != name && joined.is_up && joined.uplinks.contains(uplink)
            };
            if let Some((other, _)) = self.hosts.iter().filter(|_| known != *said).find(is_behind) {
                let (name, said, other) = (uplink.clone(), *said, other.clone());
                return Err(ReportError::UplinkRate { name, said, other, known });
            }
        }
        Ok(())
    }

    /// Handles a leaving agent. Its flows are removed, and other flows may use their rates.
    pub fn handle_leave(&mut self, now: Instant, name: &str, session: u64) {
        self.active.advance(now);
        if self.hosts.get(name).is_some_and(|host| host.session == session) {
            self.forget_flows(now, name);
            if let Some(host) = self.hosts.get_mut(name) {
                host.is_up = false;
            }
        }
    }

    /// Handles an agent's reports about its flows, in order; ignores reports of unknown flows.
    ///
    /// Errors: the first refused report; the reports before it are applied.
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
        // The buffered bytes are known only after the written and the delivered bytes.
        open.into_iter().for_each(|flow| self.on_buffer(now, name, flow));
        result
    }

    /// Activates an open-ended flow with enough buffered data. An empty buffer makes it idle.
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
        let is_other = |known: &ReportedFlow| known.coflow != coflow;
        // A report with equal addresses and ports but another coflow is of a new connection.
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
            // The connection may still have the limit of its previous coflow.
            host.changed.insert(key);
        }
        let known = host.flows.entry(key).or_insert_with(|| ReportedFlow {
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
            // The flow has more data, so it is assumed to send.
            State::Idle { .. } => self.route(now, name, key),
            State::Slow { .. } => {}
            State::Passes if known.size >= mice_below => self.route(now, name, key),
            State::Passes => {}
        }
        Ok(())
    }

    /// Places a flow that is not a mouse on its links, also after its links have changed.
    fn route(&mut self, now: Instant, name: &str, key: FlowKey) {
        let route = self.links(name, key);
        self.set_state(now, name, key, |active, known, id| {
            if route.is_empty() {
                return State::Passes;
            }
            let id = active.insert(id, &route, remaining(known));
            let rate_bps = known.rate_bps.unwrap_or(0) as f64;
            State::Active { id, watch: ProgressWatch::new(now, known.moved, rate_bps) }
        });
    }

    /// Returns the links that a flow crosses; none if a host sends to itself.
    fn links(&self, name: &str, key: FlowKey) -> Vec<LinkId> {
        let from = &self.hosts[name];
        let to = self.by_address.get(&key.remote.ip());
        let is_here = to.map_or(key.remote.ip().is_loopback(), |to| to == name);
        if is_here || key.remote.ip() == key.local.ip() {
            return Vec::new();
        }
        let Some(to) = to else { return vec![from.link.out] };
        let to = &self.hosts[to];
        let apart = |of: &'_ JoinedHost, from: &JoinedHost| -> Vec<Links> {
            let names = of.uplinks.iter().filter(|uplink| !from.uplinks.contains(uplink));
            names.map(|uplink| self.uplinks[uplink]).collect()
        };
        let out = apart(from, to).into_iter().map(|uplink| uplink.out);
        let into = apart(to, from).into_iter().map(|uplink| uplink.into);
        [from.link.out].into_iter().chain(out).chain(into).chain([to.link.into]).collect()
    }

    /// Changes the state of a flow, and updates all totals that depend on the state.
    fn set_state(
        &mut self,
        now: Instant,
        name: &str,
        key: FlowKey,
        state: impl FnOnce(&mut ActiveFlows, &ReportedFlow, CoflowId) -> State,
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
        let Some(flow) = self.hosts[name].flows.get(&key) else { return };
        if flow.is_waited_for() {
            let coflow = self.coflows.get_mut(&flow.coflow).expect("what has a flow is there");
            coflow.flows_ended += 1;
            let bytes = coflow.moved.as_u64().saturating_add(flow.moved.as_u64());
            coflow.moved = ByteCount::new(bytes);
            if coflow.flows == 1 {
                if self.ended.len() >= ENDED_MAX {
                    self.ended.pop_front();
                }
                let Coflow { since, flows_ended: flows, moved: bytes, .. } = *coflow;
                self.ended.push_back(EndedCoflow { name: flow.coflow.clone(), since, at: now, flows, bytes });
            }
        }
        self.forget_flow(now, name, key);
    }

    fn forget_flow(&mut self, now: Instant, name: &str, key: FlowKey) {
        let known = self.hosts.get(name).and_then(|host| host.flows.get(&key));
        if known.is_some_and(ReportedFlow::is_waited_for) {
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

    /// Time of the next [`Coordinator::decide`] without reports: a flow may become idle or slow.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.looks.first().map(|(at, ..)| *at)
    }

    /// Checks whether flows have become idle or slow, for the flows whose check is due.
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

    /// Classifies a flow as slow or not, by its measured rate and its share of the permitted bytes.
    fn judge(&mut self, now: Instant, name: &str, key: FlowKey, bps: f64, part: f64) {
        let keeps_bps = ((SLOW_KEEPS * bps) as u64).max(RATE_MIN.as_bps());
        let (route, watch) = match &self.hosts[name].flows[&key].state {
            // A flow held at the minimum rate shows nothing about its potential.
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

    /// Sets all rates after a change since the last decision. Returns true if rates were set.
    ///
    /// Errors: the allocator's decision is invalid; earlier limits stay in force.
    /// Panics: while a decision is made outside of the coordinator.
    pub fn decide(&mut self, now: Instant) -> Result<bool, DecisionError> {
        if !self.is_due(now) {
            return Ok(false);
        }
        let allocator = self.allocator.as_mut().expect("no decision is made elsewhere");
        self.active.decide(allocator)?;
        self.set_limits(now, |_| true);
        Ok(true)
    }

    /// Starts a due decision outside of the coordinator, until [`Coordinator::end_decision`].
    pub fn begin_decision(&mut self, now: Instant) -> Option<Decision<A>> {
        if self.allocator.is_none() || !self.is_due(now) {
            return None;
        }
        let allocator = self.allocator.take()?;
        Some(Decision { active: self.active.fork(), allocator, result: Ok(()) })
    }

    /// Applies a decision to the flows that still exist. Later changes wait for the next decision.
    ///
    /// Errors: the allocator's decision is invalid; earlier limits stay in force.
    pub fn end_decision(&mut self, now: Instant, decision: Decision<A>) -> Result<(), DecisionError> {
        let Decision { active, allocator, result } = decision;
        self.allocator = Some(allocator);
        result?;
        self.active.advance(now);
        self.active.adopt(&active);
        self.set_limits(now, |id| active.is_active(id));
        Ok(())
    }

    /// Advances time to `now`. Returns true if rates must change.
    fn is_due(&mut self, now: Instant) -> bool {
        self.active.advance(now);
        self.look(now);
        let is_changed = std::mem::take(&mut self.is_changed);
        if is_changed {
            self.estimate();
        }
        is_changed
    }

    /// Queues the changed limits of the flows that the decision covers.
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

    /// Sets the assumed remaining bytes of flows with an unknown volume: overdue or open-ended.
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

    /// Returns the decided rates, raised to each flow's minimum. Other flows give up the rest.
    fn limits_bps(&self) -> Vec<(FlowId, f64)> {
        let active = &self.active;
        let least_bps = |id| self.least_bps(id);
        // For each link: total minimum of flows below their minimum, and rate of other flows.
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

    /// Minimum rate of a flow.
    fn least_bps(&self, id: FlowId) -> f64 {
        let active = &self.active;
        let part = |link| PART_MIN * active.rate_bps(link) / active.flows_on(link).len() as f64;
        active.route(id).map(part).fold(f64::INFINITY, f64::min).max(RATE_MIN.as_bps() as f64)
    }

    /// Takes the limits that an agent has not received yet.
    pub fn poll_limits(&mut self, name: &str, session: u64) -> Vec<Limit> {
        let host = self.hosts.get_mut(name).filter(|host| host.session == session && host.is_up);
        let Some(host) = host else { return Vec::new() };
        let changed = std::mem::take(&mut host.changed);
        changed.into_iter().map(|flow| Limit { flow, rate_bps: host.flows[&flow].rate_bps }).collect()
    }

    /// Returns the name of the next begun coflow.
    pub fn poll_begun(&mut self) -> Option<String> {
        self.begun.pop_front()
    }

    /// Returns the next ended coflow. Flows that vanished with their agent count as not ended.
    pub fn poll_ended(&mut self) -> Option<EndedCoflow> {
        self.ended.pop_front()
    }

    /// Hosts with unsent limits, with the sessions of their agents.
    pub fn hosts_changed(&self) -> impl Iterator<Item = (&str, u64)> {
        let is_changed = |host: &JoinedHost| host.is_up && !host.changed.is_empty();
        self.hosts
            .iter()
            .filter(move |(_, host)| is_changed(host))
            .map(|(name, host)| (name.as_str(), host.session))
    }

    /// Returns the active coflows by name, with the state of their flows at `now`.
    ///
    /// Panics: if `now` is before an earlier call's `now`.
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

    /// Number of flows that are not mice, number of flows with rates, and number of coflows.
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

/// Sets both directions of a link to this nonzero rate. Adds the link if it is unknown.
fn set_links(
    active: &mut ActiveFlows,
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

/// Sets the capacity of links to the part not reserved for slow flows, at least a minimum.
fn set_rates(active: &mut ActiveFlows, links: &[(BitRate, u64)], changed: &[LinkId]) {
    for link in changed {
        let (rate, kept_bps) = links[link.0 as usize];
        let least_bps = (PART_MIN * rate.as_bps() as f64) as u64;
        let left_bps = rate.as_bps().saturating_sub(kept_bps).max(least_bps).max(1);
        active.set_link_rate(*link, BitRate::bps(left_bps)).expect("a rate that is not 0 is one");
    }
}

/// Assumed remaining bytes of a known flow.
fn remaining(known: &ReportedFlow) -> ByteCount {
    ByteCount::new(known.size.as_u64() - known.moved.as_u64()).max(REMAINING_MIN)
}

#[cfg(test)]
mod tests;
