//! The coordinator: it hears of flows from the agents of hosts, and says how fast each one may be.
//!
//! Each host is one link out and one in (the hose model), which is all where hosts' own links are the narrow ones. Where hosts
//! share a narrower way to the others (a rack's uplinks, a site's line), they say so, and the network is a tree: a flow
//! crosses the uplinks that its ends do not share. A flow to a host without an agent crosses its sender's link only.
//!
//! What it knows of volumes is what agents say, from time to time. A flow that should be through and is not is taken to have
//! [`REMAINING_MIN`] to move. One of which nothing has arrived for [`IDLE_AFTER`] is idle: its program has nothing to send, or
//! its receiver takes nothing. It passes without a limit and nobody waits for it, as if it were small, until it moves again.
//! Nothing is kept that agents could not say again: a coordinator that starts anew hears of all
//! flows when they join.
//!
//! Source: Ren and Wang (2016), sections 4.4 (volumes that grow; small flows pass) and 5.2 (a central controller, which hears
//! of each flow that enters or completes).
//! Leaves out: HTTP, clocks, what enforces rates (drivers). One call of [`Coordinator::decide`] after a batch of reports sets
//! all rates.

use crate::control::{FlowKey, Limit, Report};
use anabranch_fluid::{Active, Allocator, DecisionError, FlowId, LinkId, Network, TransferId};
use anabranch_units::{BitRate, ByteCount, Duration, Instant};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::fmt;
use std::net::IpAddr;

/// The most characters that a host's or a transfer's name has.
pub const NAME_MAX: usize = 128;
/// The most hosts.
pub const HOSTS_MAX: usize = 4_096;
/// The most uplinks.
pub const UPLINKS_MAX: usize = 4_096;
/// The most uplinks that a host is behind.
pub const HOST_UPLINKS_MAX: usize = 8;
/// The most addresses of a host.
pub const ADDRESSES_MAX: usize = 64;
/// The most flows of a host.
pub const HOST_FLOWS_MAX: usize = 65_536;
/// What a flow that has not ended has still to move at least, whatever was said.
pub const REMAINING_MIN: ByteCount = ByteCount::new(64 * 1024);
/// No flow's limit is below this: a connection that may send nothing cannot tell that it has ended.
pub const RATE_MIN: BitRate = BitRate::bps(100_000);
/// Nor below this part of its link's, over all flows there: what has been sent at a low rate holds up what follows when the
/// rate is raised, by two segments' time at the least.
pub const PART_MIN: f64 = 0.02;
/// A flow of which nothing has arrived for so long is idle, and for as long again as the most that a kernel sends at once
/// ([`BURST`]) takes at its rate.
pub const IDLE_AFTER: Duration = Duration::from_ms(500);
/// The most that a kernel hands to a link at once (what one segmentation offload may carry).
const BURST: ByteCount = ByteCount::new(64 * 1024);
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
    /// What it shares with other hosts on its way to all others; in any order, and each once.
    pub uplinks: Vec<Uplink>,
}

/// What carries all that some hosts send to others, and all that these send to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uplink {
    /// Its name, the same for all hosts behind it.
    pub name: String,
    /// What it carries, out and in; the same, too.
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
    /// More uplinks than [`UPLINKS_MAX`].
    TooManyUplinks,
    /// More uplinks of a host than [`HOST_UPLINKS_MAX`].
    TooManyHostUplinks(usize),
    /// An uplink that a host is behind twice.
    UplinkTwice(String),
    /// An uplink of which another host that is there says something else.
    UplinkRate {
        /// Its name.
        name: String,
        /// What this host says.
        said: BitRate,
        /// Who else is behind it.
        other: String,
        /// What that one says.
        known: BitRate,
    },
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
            Self::TooManyUplinks => write!(f, "more uplinks than {UPLINKS_MAX}"),
            Self::TooManyHostUplinks(count) => {
                write!(f, "{count} uplinks: a host is behind at most {HOST_UPLINKS_MAX}")
            }
            Self::UplinkTwice(name) => write!(f, "uplink {name}: named twice: a host is behind it once"),
            Self::UplinkRate { name, said, other, known } => {
                write!(
                    f,
                    "uplink {name}: {said}, but {known} on host {other}: say the same on all hosts behind it"
                )
            }
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
    uplinks: BTreeMap<String, Links>,
    by_address: BTreeMap<IpAddr, String>,
    /// Of active flows: whose, and which.
    keys: BTreeMap<FlowId, (String, FlowKey)>,
    /// When each active flow is to be looked at, whether it is idle; the first one first.
    looks: BTreeSet<(Instant, FlowId)>,
    /// Those that have flows other than mice.
    transfers: BTreeMap<String, Transfer>,
    transfers_so_far: u32,
    ended: VecDeque<Ended>,
    is_changed: bool,
}

#[derive(Debug)]
struct Transfer {
    id: TransferId,
    /// When its first flow was there.
    since: Instant,
    /// How many it has, idle ones among them.
    flows: usize,
    /// Of those that have ended.
    flows_ended: u64,
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
    addresses: Vec<IpAddr>,
    link: Links,
    uplinks: Vec<String>,
    flows: BTreeMap<FlowKey, Known>,
    /// Limits to be said.
    changed: BTreeSet<FlowKey>,
}

#[derive(Debug)]
struct Known {
    transfer: String,
    size: ByteCount,
    moved: ByteCount,
    state: State,
    /// What its agent has been told, or is about to be.
    rate_bps: Option<u64>,
}

/// What becomes of a flow.
#[derive(Copy, Clone, Debug)]
enum State {
    /// It is small, or crosses no link: it passes.
    Passes,
    /// It has a rate.
    Active {
        id: FlowId,
        /// When some of it arrived, or it was given another rate.
        moved_at: Instant,
        /// When it is looked at, whether it is idle.
        look_at: Instant,
    },
    /// It passes until it moves, and had moved so much when it stopped.
    Idle { moved: ByteCount },
}

impl Known {
    const fn id(&self) -> Option<FlowId> {
        match self.state {
            State::Active { id, .. } => Some(id),
            State::Passes | State::Idle { .. } => None,
        }
    }

    /// Whether its transfer has ended only when it has.
    const fn is_waited_for(&self) -> bool {
        !matches!(self.state, State::Passes)
    }

    /// How long none of it may arrive without its being idle.
    fn idle_after(&self) -> Duration {
        let rate = BitRate::bps(self.rate_bps.unwrap_or(0)).max(RATE_MIN);
        IDLE_AFTER + rate.transmit_time(BURST)
    }
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

/// A host that has joined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostView<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether its agent is there.
    pub is_up: bool,
    /// What its link carries, out and in.
    pub rate: BitRate,
    /// Its uplinks' names and rates.
    pub uplinks: Vec<(&'a str, BitRate)>,
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
    /// How fast it may be; `None` while it is idle, and passes without a limit.
    pub rate: Option<BitRate>,
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
            uplinks: BTreeMap::new(),
            by_address: BTreeMap::new(),
            keys: BTreeMap::new(),
            looks: BTreeSet::new(),
            transfers: BTreeMap::new(),
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
        self.check_host(name, &host)?;
        self.active.advance(now);
        self.forget_flows(now, name);
        let Host { addresses, rate, uplinks } = host;
        for uplink in &uplinks {
            let known = self.uplinks.get(&uplink.name).copied();
            self.uplinks.insert(uplink.name.clone(), set_links(&mut self.active, known, uplink.rate));
        }
        let uplinks: Vec<String> = uplinks.into_iter().map(|uplink| uplink.name).collect();
        let link = set_links(&mut self.active, self.hosts.get(name).map(|joined| joined.link), rate);
        if let Some(joined) = self.hosts.get_mut(name) {
            for address in joined.addresses.drain(..) {
                // Another host may have it by now.
                if self.by_address.get(&address).is_some_and(|other| other == name) {
                    self.by_address.remove(&address);
                }
            }
            (joined.session, joined.is_up, joined.link) = (session, true, link);
            (joined.addresses, joined.uplinks) = (addresses.clone(), uplinks);
        } else {
            let joined = Joined {
                session,
                is_up: true,
                addresses: addresses.clone(),
                link,
                uplinks,
                flows: BTreeMap::new(),
                changed: BTreeSet::new(),
            };
            self.hosts.insert(name.to_owned(), joined);
        }
        self.by_address.extend(addresses.into_iter().map(|address| (address, name.to_owned())));
        // Flows to it cross its links from now on, and what those carry may be another.
        let is_to_it = |key: &FlowKey| self.by_address.get(&key.remote.ip()).is_some_and(|to| to == name);
        let to_it: Vec<(String, FlowKey)> =
            self.keys.values().filter(|(_, key)| is_to_it(key)).cloned().collect();
        to_it.into_iter().for_each(|(from, key)| self.route(now, &from, key));
        self.is_changed = true;
        Ok(())
    }

    /// Whether a host may join.
    fn check_host(&self, name: &str, host: &Host) -> Result<(), ReportError> {
        check_name(name)?;
        if host.addresses.len() > ADDRESSES_MAX {
            return Err(ReportError::TooManyAddresses(host.addresses.len()));
        }
        if host.uplinks.len() > HOST_UPLINKS_MAX {
            return Err(ReportError::TooManyHostUplinks(host.uplinks.len()));
        }
        if !self.hosts.contains_key(name) && self.hosts.len() >= HOSTS_MAX {
            return Err(ReportError::TooManyHosts);
        }
        let rates = std::iter::once(host.rate).chain(host.uplinks.iter().map(|uplink| uplink.rate));
        if rates.min() == Some(BitRate::bps(0)) {
            return Err(ReportError::NoRate);
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
        reports.iter().try_for_each(|report| match report {
            Report::Flow { flow, transfer, size_bytes } => {
                self.on_flow(now, name, *flow, transfer, ByteCount::new(*size_bytes))
            }
            Report::Moved { flow, moved_bytes } => {
                self.on_moved(now, name, *flow, ByteCount::new(*moved_bytes));
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
        now: Instant,
        name: &str,
        key: FlowKey,
        transfer: &str,
        size: ByteCount,
    ) -> Result<(), ReportError> {
        check_name(transfer)?;
        let is_other = |known: &Known| known.transfer != transfer;
        // The same addresses and ports for another transfer: the connection is another one.
        if self.hosts[name].flows.get(&key).is_some_and(is_other) {
            self.forget_flow(now, name, key);
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
            state: State::Passes,
            rate_bps: None,
        });
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
            let (id, moved_at) = (active.insert(id, &route, remaining(known)), now);
            State::Active { id, moved_at, look_at: now + known.idle_after() }
        });
    }

    /// The links that a flow crosses; to itself a host sends over none.
    fn links(&self, name: &str, key: FlowKey) -> Vec<LinkId> {
        let from = &self.hosts[name];
        let Some(to) = self.by_address.get(&key.remote.ip()) else { return vec![from.link.out] };
        if to == name {
            return Vec::new();
        }
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
        state: impl FnOnce(&mut Active, &Known, TransferId) -> State,
    ) {
        let Self { active, keys, looks, transfers, .. } = self;
        let host = self.hosts.get_mut(name).expect("only hosts that have joined have flows");
        let known = host.flows.get_mut(&key).expect("a flow is known before it has a state");
        let was_waited_for = known.is_waited_for();
        if let State::Active { id, look_at, .. } = known.state {
            active.remove(id);
            keys.remove(&id);
            looks.remove(&(look_at, id));
        }
        let transfer = transfers.entry(known.transfer.clone()).or_insert_with(|| {
            self.transfers_so_far = self.transfers_so_far.wrapping_add(1);
            let id = TransferId(self.transfers_so_far);
            Transfer { id, since: now, flows: 0, flows_ended: 0, moved: ByteCount::ZERO }
        });
        known.state = state(active, known, transfer.id);
        if let State::Active { id, look_at, .. } = known.state {
            keys.insert(id, (name.to_owned(), key));
            looks.insert((look_at, id));
        } else if known.rate_bps.take().is_some() {
            host.changed.insert(key);
        }
        transfer.flows = transfer.flows + usize::from(known.is_waited_for()) - usize::from(was_waited_for);
        if transfer.flows == 0 {
            transfers.remove(&known.transfer);
        }
        self.is_changed = true;
    }

    fn on_moved(&mut self, now: Instant, name: &str, key: FlowKey, moved: ByteCount) {
        let wakes_at = self.settings.mice_below.max(ByteCount::new(1)).as_u64();
        let host = self.hosts.get_mut(name).expect("only hosts that have joined report");
        let Some(known) = host.flows.get_mut(&key) else { return };
        let has_moved = moved > known.moved;
        known.moved = known.moved.max(moved).min(known.size);
        let left = remaining(known);
        match &mut known.state {
            State::Passes => {}
            State::Active { id, moved_at, .. } => {
                self.active.observe(*id, left);
                if has_moved {
                    *moved_at = now;
                }
            }
            State::Idle { moved: before } => {
                if moved.as_u64() >= before.as_u64().saturating_add(wakes_at) {
                    self.route(now, name, key);
                }
            }
        }
    }

    fn on_ended(&mut self, now: Instant, name: &str, key: FlowKey) {
        let Some(known) = self.hosts[name].flows.get(&key) else { return };
        if known.is_waited_for() {
            let transfer = self.transfers.get_mut(&known.transfer).expect("what has a flow is there");
            transfer.flows_ended += 1;
            let bytes = transfer.moved.as_u64().saturating_add(known.moved.as_u64());
            transfer.moved = ByteCount::new(bytes);
            if transfer.flows == 1 {
                if self.ended.len() >= ENDED_MAX {
                    self.ended.pop_front();
                }
                let Transfer { since, flows_ended: flows, moved: bytes, .. } = *transfer;
                self.ended.push_back(Ended { name: known.transfer.clone(), since, at: now, flows, bytes });
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
        host.flows.remove(&key);
        host.changed.remove(&key);
    }

    fn forget_flows(&mut self, now: Instant, name: &str) {
        let flows: Vec<FlowKey> =
            self.hosts.get(name).map(|host| host.flows.keys().copied().collect()).unwrap_or_default();
        flows.into_iter().for_each(|key| self.forget_flow(now, name, key));
    }

    /// When [`Coordinator::decide`] is to be called although nobody has said anything: a flow may be idle.
    pub fn poll_timeout(&self) -> Option<Instant> {
        self.looks.first().map(|(at, _)| *at)
    }

    /// Finds the flows that have been idle for long enough.
    fn find_idle(&mut self, now: Instant) {
        while let Some((at, id)) = self.looks.first().copied().filter(|(at, _)| *at <= now) {
            let (name, key) = self.keys[&id].clone();
            let host = self.hosts.get_mut(&name).expect("an active flow's host has joined");
            let known = host.flows.get_mut(&key).expect("an active flow is known to its host");
            let idle_after = known.idle_after();
            let State::Active { moved_at, look_at, .. } = &mut known.state else {
                unreachable!("only active flows are looked at")
            };
            if *moved_at + idle_after > now {
                *look_at = *moved_at + idle_after;
                self.looks.remove(&(at, id));
                self.looks.insert((*look_at, id));
            } else {
                let moved = known.moved;
                self.set_state(now, &name, key, |_, _, _| State::Idle { moved });
            }
        }
    }

    /// Sets all rates, if anything has happened that changes them.
    ///
    /// Errors: what the allocator decided is no decision; the limits of before hold.
    pub fn decide(&mut self, now: Instant) -> Result<(), DecisionError> {
        self.active.advance(now);
        self.find_idle(now);
        if !std::mem::take(&mut self.is_changed) {
            return Ok(());
        }
        let min_bits = 8.0 * REMAINING_MIN.as_u64() as f64;
        for id in self.active.ids().to_vec() {
            if self.active.remaining_bits(id) < min_bits {
                self.active.observe(id, REMAINING_MIN);
            }
        }
        self.active.decide(&mut self.allocator)?;
        let limits = self.limits_bps();
        for (id, rate_bps) in &limits {
            let rate_bps = *rate_bps;
            let (name, key) = &self.keys[id];
            let host = self.hosts.get_mut(name).expect("an active flow's host has joined");
            let known = host.flows.get_mut(key).expect("an active flow is known to its host");
            let is_same = |old: u64| (rate_bps - old as f64).abs() <= CHANGE_MIN * old as f64;
            if !known.rate_bps.is_some_and(is_same) {
                known.rate_bps = Some(rate_bps as u64);
                host.changed.insert(*key);
                // At another rate it is looked at anew.
                let idle_after = known.idle_after();
                if let State::Active { moved_at, look_at, .. } = &mut known.state {
                    self.looks.remove(&(*look_at, *id));
                    (*moved_at, *look_at) = (now, now + idle_after);
                    self.looks.insert((*look_at, *id));
                }
            }
        }
        Ok(())
    }

    /// The rates that were decided, but that each flow has the least that it may; what those that wait have so is taken from
    /// the others on their links, in proportion.
    fn limits_bps(&self) -> Vec<(FlowId, f64)> {
        let active = &self.active;
        let least_bps = |id: FlowId| {
            let part = |link| PART_MIN * active.rate_bps(link) / active.flows_on(link).len() as f64;
            active.route(id).map(part).fold(f64::INFINITY, f64::min).max(RATE_MIN.as_bps() as f64)
        };
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
        let mut flows: BTreeMap<&str, Vec<FlowView>> = BTreeMap::new();
        for (host, joined) in &self.hosts {
            for (flow, known) in joined.flows.iter().filter(|(_, known)| known.is_waited_for()) {
                let remaining = match known.id() {
                    Some(id) => ByteCount::new((self.active.remaining_bits(id) / 8.0) as u64),
                    None => ByteCount::new(known.size.as_u64() - known.moved.as_u64()),
                };
                let rate = known.id().map(|_| BitRate::bps(known.rate_bps.unwrap_or_default()));
                let view = FlowView { host: host.clone(), flow: *flow, remaining, rate };
                flows.entry(&known.transfer).or_default().push(view);
            }
        }
        let view = |(name, transfer): (&String, &Transfer)| TransferView {
            name: name.clone(),
            since: transfer.since,
            flows: flows.remove(name.as_str()).unwrap_or_default(),
        };
        self.transfers.iter().map(view).collect()
    }

    /// How many flows there are, but for mice; how many of them have rates; and how many transfers they make.
    pub fn count(&self) -> (usize, usize, usize) {
        let flows = self.transfers.values().map(|transfer| transfer.flows).sum();
        (flows, self.keys.len(), self.transfers.len())
    }

    /// Hosts by name.
    pub fn hosts(&self) -> impl Iterator<Item = HostView<'_>> {
        self.hosts.iter().map(|(name, host)| HostView {
            name,
            is_up: host.is_up,
            rate: host.link.rate,
            uplinks: host.uplinks.iter().map(|uplink| (uplink.as_str(), self.uplinks[uplink].rate)).collect(),
        })
    }
}

/// A link's two directions at this rate, which is not 0, added unless they are known.
fn set_links(active: &mut Active, known: Option<Links>, rate: BitRate) -> Links {
    const CHECKED: &str = "a rate that is not 0 is one";
    if let Some(Links { out, into, .. }) = known {
        [out, into].into_iter().for_each(|link| active.set_link_rate(link, rate).expect(CHECKED));
        return Links { rate, out, into };
    }
    let mut add = || active.add_link(rate).expect(CHECKED);
    Links { rate, out: add(), into: add() }
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
