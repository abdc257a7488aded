//! A resolved scenario: names are replaced by numbers, files are read, and routes are computed.
//! Runs start from a plan.

use crate::circuits::{CircuitPlan, CircuitSchedule};
use crate::end::Msg;
use crate::error::PlanError;
use crate::network::{Network, host_rate_bps};
use crate::scenario::{
    DURATION_MAX, KINDS, LongWorkload, Pairs, Pattern, Racks, Scenario, UDP_RATE_MIN, Workload,
};
use crate::sizes::Sizes;
use crate::system::{System, SystemPlan};
use crate::traffic::{
    Arrivals, Incast, IncastSettings, Job, RackLoad, SendPattern, Start, Traffic, Transfers, Udp, UdpFlow,
};
use anabranch_fabric::{CircuitSettings, Layer, PortSettings};
use anabranch_units::text::printable;
use anabranch_units::{BitRate, ByteCount, Duration, Instant, LinkId, ParseQuantityError, Seed};
use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

/// A resolved scenario that can be run any number of times.
#[derive(Debug)]
pub struct Plan {
    pub(crate) scenario: Scenario,
    pub(crate) network: Network,
    work: Vec<ResolvedWorkload>,
    /// Changes of links, by time.
    pub(crate) changes: Vec<(Instant, LinkId, PortSettings)>,
    pub(crate) probed_links: Vec<LinkId>,
    /// The control of a hybrid switch whose circuits follow demand.
    circuits: Option<Arc<dyn CircuitPlan>>,
}

/// Maximum number of flows that a workload opens at once. Each flow takes some 2 kB.
const FLOWS_AT_ONCE_MAX: usize = 1_000_000;

#[derive(Debug)]
enum ResolvedWorkload {
    Long { pairs: PairList, size: Option<ByteCount>, start: Duration, jitter: Duration, streams: u32 },
    Incast { client: u16, servers: usize, is_random: bool, block_bytes: u64 },
    Poisson { gap: Duration, sizes: Sizes },
    Udp { pairs: PairList, rate: BitRate },
    Trace { starts: Vec<Start> },
    Racks(RackLoad),
    System(Box<dyn SystemPlan>),
}

/// Pairs of sender and receiver.
#[derive(Clone, Debug)]
enum PairList {
    Listed(Vec<(u16, u16)>),
    Permutation,
}

/// Returns the error for a workload kind that neither this room nor any of `systems` has.
fn unknown(kind: &str, field: &str, systems: &[&dyn System]) -> PlanError {
    let kinds = KINDS.into_iter().chain(systems.iter().map(|system| system.kind())).collect::<Vec<_>>();
    wrong(format!("{field}.kind"), format!("`{kind}`: must be one of {}", kinds.join(", ")))
}

fn wrong(field: impl Into<String>, message: impl std::fmt::Display) -> PlanError {
    PlanError { field: field.into(), message: message.to_string() }
}

impl Plan {
    /// Resolves a scenario. `read` returns the text of files that the scenario names.
    ///
    /// Errors: unknown hosts and links, unreadable or invalid files, more servers than hosts, a
    /// system's workload.
    pub fn new(scenario: Scenario, read: &dyn Fn(&str) -> io::Result<String>) -> Result<Self, PlanError> {
        Self::with_systems(scenario, read, &[])
    }

    /// Resolves a scenario with workloads of `systems`.
    ///
    /// Errors: as [`Self::new`], and errors of a system's workload.
    pub fn with_systems(
        scenario: Scenario,
        read: &dyn Fn(&str) -> io::Result<String>,
        systems: &[&dyn System],
    ) -> Result<Self, PlanError> {
        let mut network = Network::new(&scenario.network, read).map_err(|e| wrong(e.field, e.message))?;
        let segment = ByteCount::new(scenario.transport.mss.into())
            + ByteCount::new(scenario.transport.header_bytes.into());
        let packet = scenario.workload.iter().map(Workload::packet).fold(segment, ByteCount::max);
        network.check_queues(&scenario.network, packet).map_err(|e| wrong(e.field, e.message))?;
        if let Some(circuit) = &scenario.circuit {
            network = network.with_circuit_spec(circuit, packet).map_err(|e| wrong(e.field, e.message))?;
        }
        let circuits = circuits(&scenario, &network, systems)?;
        let mut work = Vec::new();
        for (index, workload) in scenario.workload.iter().enumerate() {
            let field = format!("workload[{index}]");
            work.push(match workload {
                Workload::System(workload) => {
                    let system = systems.iter().find(|system| system.kind() == workload.kind);
                    let system = system.ok_or_else(|| unknown(&workload.kind, &field, systems))?;
                    ResolvedWorkload::System(system.plan(workload, &network, &field)?)
                }
                Workload::Racks(racks) => {
                    ResolvedWorkload::Racks(rack_load(&network, racks, scenario.duration, &field, read)?)
                }
                _ => look_up(&network, workload, &field, read)?,
            });
        }
        let layers: Vec<usize> = (0..work.len()).filter(|index| has_layer(&work[*index])).collect();
        if let [first, second, ..] = layers[..] {
            let message = format!("workload[{first}] is a layer of all hosts already: there can be one");
            return Err(wrong(format!("workload[{second}].kind"), message));
        }
        let is_endless =
            |work: &ResolvedWorkload| matches!(work, ResolvedWorkload::System(system) if !system.has_end());
        if scenario.duration.is_none() && work.iter().any(is_endless) {
            return Err(wrong("duration", "missing: a workload here has no end of its own"));
        }
        let link =
            |field: String, name: &str| network.find_link(name).map_err(|message| wrong(field, message));
        let mut changes = Vec::new();
        for (index, change) in scenario.change.iter().enumerate() {
            let link = link(format!("change[{index}].link"), &change.link)?;
            let before = changes.iter().rev().find(|(_, l, _)| *l == link).map(|(_, _, settings)| settings);
            let before: &PortSettings = before.unwrap_or_else(|| network.port_settings(link));
            let settings = PortSettings {
                up: change.up.unwrap_or(before.up),
                rate: change.rate.unwrap_or(before.rate),
                delay: change.delay.unwrap_or(before.delay),
                loss_ppm: change.loss_ppm.unwrap_or(before.loss_ppm),
                loss_burst: change.loss_burst.unwrap_or(before.loss_burst),
                ..*before
            };
            settings.check().map_err(|error| wrong(format!("change[{index}]"), error))?;
            let at = Instant::ZERO + change.at;
            if changes.last().is_some_and(|(before, ..)| at < *before) {
                return Err(wrong(format!("change[{index}].at"), "changes are listed by their times"));
            }
            changes.push((at, link, settings));
        }
        let probed = scenario.probe.iter().flat_map(|probe| probe.links.iter().enumerate());
        let probed_links = probed
            .map(|(index, name)| link(format!("probe.links[{index}]"), name))
            .collect::<Result<_, _>>()?;
        Ok(Self { scenario, network, work, changes, probed_links, circuits })
    }

    /// Schedule of a hybrid switch whose circuits follow demand; `None` for other networks.
    pub fn circuit_schedule(&self) -> Option<CircuitSchedule> {
        let spec = self.scenario.circuit.as_ref()?;
        let (plan, week) = (self.circuits.clone()?, spec.schedule.as_ref()?.window);
        Some(CircuitSchedule { plan, night: spec.night.length(), week, day_min: spec.day })
    }

    /// Returns the same plan with a hybrid switch in place of the named switch.
    ///
    /// Errors: no such switch, or settings that do not fit its ports.
    pub fn with_circuits(self, switch: &str, settings: CircuitSettings) -> Result<Self, PlanError> {
        let field = "circuit";
        let site = self.network.find_switch(switch).map_err(|error| wrong(field, error))?;
        let network = self.network.with_circuits(site, settings).map_err(|error| wrong(field, error))?;
        Ok(Self { network, ..self })
    }

    /// The resolved scenario.
    pub const fn scenario(&self) -> &Scenario {
        &self.scenario
    }
    /// The network.
    pub const fn network(&self) -> &Network {
        &self.network
    }
    /// Warnings for the scenario's author: parts of the topology's file that are ignored, and flows
    /// between hosts without a path.
    pub fn warnings(&self) -> Vec<String> {
        let mut warnings = self.network.warnings().to_vec();
        if self.network.is_connected() {
            return warnings;
        }
        let hosts = self.network.hosts().len() as u16;
        let is_cut = |(src, dst): &(u16, u16)| !self.network.is_reachable(*src, *dst);
        for (index, work) in self.work.iter().enumerate() {
            let (mut is_drawn, mut some) = (false, None);
            let pairs: Box<dyn Iterator<Item = (u16, u16)> + '_> = match work {
                ResolvedWorkload::Long { pairs: PairList::Listed(pairs), .. }
                | ResolvedWorkload::Udp { pairs: PairList::Listed(pairs), .. } => {
                    Box::new(pairs.iter().copied())
                }
                ResolvedWorkload::Trace { starts } => {
                    Box::new(starts.iter().map(|start| (start.src, start.dst)))
                }
                ResolvedWorkload::Incast { client, servers, is_random: false, .. } => {
                    let servers = self.network.servers(*client, *servers, None);
                    Box::new(servers.into_iter().map(|server| (server, *client)))
                }
                ResolvedWorkload::Incast { client, .. } => {
                    is_drawn = true;
                    Box::new((0..hosts).map(|server| (server, *client)))
                }
                // Both ends are drawn among all hosts. If any pair has no path, then some pair with
                // the first host has no path either.
                _ => {
                    is_drawn = true;
                    Box::new((0..hosts).flat_map(|host| [(0, host), (host, 0)]))
                }
            };
            let cut = pairs.filter(is_cut).inspect(|pair| _ = some.get_or_insert(*pair));
            let count = cut.collect::<BTreeSet<_>>().len();
            if let Some((src, dst)) = some {
                let name = |host: u16| {
                    let site = self.network.hosts()[usize::from(host)];
                    printable(&self.network.topology().site(site).name).into_owned()
                };
                let (from, to) = (name(src), name(dst));
                let pairs = if is_drawn { "some of the drawn".to_owned() } else { count.to_string() };
                warnings.push(format!(
                    "workload[{index}]: {pairs} pairs of hosts have no path, as `{from}` to `{to}`: flows between them deliver nothing"
                ));
            }
        }
        warnings
    }
    /// Seed of trial `trial`.
    pub const fn seed(&self, trial: u64) -> u64 {
        self.scenario.seed.wrapping_add(trial)
    }
    /// Changes by time: a link, and the settings of its port from that time on.
    pub fn changes(&self) -> &[(Instant, LinkId, PortSettings)] {
        &self.changes
    }

    /// Returns the flows that workload `index` starts in a run with this seed, in order of time,
    /// for an implementation outside this room. Returns `None` for workloads that do not start
    /// flows at given times. The iterator is endless if the workload is.
    pub fn starts(&self, seed: Seed, index: usize) -> Option<impl Iterator<Item = Start>> {
        match self.job(seed, index as u64, self.work.get(index)?, self.scenario.workload.get(index)?) {
            Ok(Job::Transfers(transfers)) => Some(transfers.into_starts()),
            _ => None,
        }
    }
    /// Returns the sources of UDP workload `index` in a run with this seed; `None` for other
    /// workloads.
    pub fn udp_flows(&self, seed: Seed, index: usize) -> Option<Vec<UdpFlow>> {
        match self.job(seed, index as u64, self.work.get(index)?, self.scenario.workload.get(index)?) {
            Ok(Job::Udp(udp)) => Some(udp.into_flows()),
            _ => None,
        }
    }
    /// Returns the hosts of incast `index` in a run with this seed: the client, and the servers.
    /// `None` for other workloads.
    pub fn incast_hosts(&self, seed: Seed, index: usize) -> Option<(u16, Vec<u16>)> {
        match self.work.get(index)? {
            ResolvedWorkload::Incast { client, servers, is_random, .. } => {
                Some((*client, self.network.servers(*client, *servers, is_random.then_some(seed))))
            }
            _ => None,
        }
    }

    /// Returns true if the port of `link` may change, or must distinguish priorities.
    pub(crate) fn needs_plain(&self, link: LinkId) -> bool {
        let own = self.scenario.workload.iter().filter_map(Workload::priority);
        let systems = self.work.iter().filter_map(|work| match work {
            ResolvedWorkload::System(system) => Some(system.priorities()),
            _ => None,
        });
        let of_acks = self.scenario.network.acks_first.then_some(0);
        let mut priorities = own.chain(systems.flatten().copied()).chain(of_acks);
        let first = priorities.next();
        priorities.any(|p| Some(p) != first) || self.changes.iter().any(|(_, l, _)| *l == link)
    }

    /// Creates the layer between machines and network in a run with this seed, if a workload has
    /// one.
    pub(crate) fn layer(&self, seed: Seed) -> Option<Box<dyn Layer<Msg>>> {
        self.work.iter().find_map(|work| match work {
            ResolvedWorkload::System(system) => system.layer(&self.network, seed),
            _ => None,
        })
    }
    /// Index of the workload that has the layer.
    pub(crate) fn layer_workload(&self) -> Option<usize> {
        self.work.iter().position(has_layer)
    }

    /// Creates the traffic of the hosts in a run with this seed.
    ///
    /// Errors: failures of a system's random draw.
    pub(crate) fn traffic(&self, seed: Seed) -> Result<Traffic, PlanError> {
        let jobs = self.work.iter().zip(&self.scenario.workload).enumerate();
        let jobs = jobs.map(|(number, (work, workload))| self.job(seed, number as u64, work, workload));
        let jobs = jobs.collect::<Result<_, _>>()?;
        Ok(Traffic::new(self.scenario.transport.clone(), jobs)
            .with_seed(seed)
            .with_acks_first(self.scenario.network.acks_first))
    }

    fn job(
        &self,
        seed: Seed,
        number: u64,
        work: &ResolvedWorkload,
        workload: &Workload,
    ) -> Result<Job, PlanError> {
        let hosts = self.network.hosts().len() as u16;
        let mut random = seed.stream("workload", number);
        let priority = workload.priority().unwrap_or_default();
        Ok(match (work, workload) {
            (ResolvedWorkload::System(system), _) => Job::App(system.app(&self.network, seed)?),
            (ResolvedWorkload::Long { pairs, size, start, jitter, streams }, _) => {
                let mut starts = Vec::new();
                for (src, dst) in pairs.draw(hosts, &mut random) {
                    for _ in 0..*streams {
                        let later = Duration::from_ps(random.below(jitter.as_ps() + 1));
                        starts.push(Start { at: Instant::ZERO + *start + later, src, dst, size: *size });
                    }
                }
                let transfers = Transfers::listed(starts, priority).with_control(workload.control());
                Job::Transfers(transfers.with_copies(workload.twice_below()))
            }
            (
                ResolvedWorkload::Incast { client, servers, is_random, block_bytes },
                Workload::Incast(spec),
            ) => Job::Incast(Incast::new(IncastSettings {
                client: *client,
                servers: self.network.servers(*client, *servers, is_random.then_some(seed)),
                block_bytes: *block_bytes,
                request_bytes: spec.request.as_u64(),
                jitter: spec.jitter,
                random,
                rounds: spec.rounds,
                warmup_rounds: spec.warmup_rounds,
                priority,
            })),
            (ResolvedWorkload::Poisson { gap, sizes }, Workload::Poisson(spec)) => {
                let arrivals = Arrivals { gap: *gap, sizes: sizes.clone(), hosts, left: spec.flows, random };
                Job::Transfers(Transfers::arriving(arrivals, priority).with_copies(spec.twice_below))
            }
            (ResolvedWorkload::Udp { pairs, rate }, Workload::Udp(spec)) => {
                let pairs = pairs.draw(hosts, &mut random);
                let sending = match (spec.on, spec.off) {
                    (Some(on), Some(off)) => SendPattern::OnOff { on, off },
                    _ if spec.random => SendPattern::Random { batch: spec.batch },
                    _ => SendPattern::Constant,
                };
                let flows = pairs.into_iter().enumerate().map(|(i, (src, dst))| UdpFlow {
                    src,
                    dst,
                    rate: *rate,
                    size_bytes: spec.packet.as_u64() as u32,
                    sending,
                    seed,
                    stream: number << 32 | i as u64,
                });
                let stop = spec.stop.map(|stop| Instant::ZERO + stop);
                Job::Udp(Udp::new(flows.collect(), priority, Instant::ZERO + spec.start, stop))
            }
            (ResolvedWorkload::Trace { starts }, _) => {
                let transfers = Transfers::listed(starts.clone(), priority);
                Job::Transfers(transfers.with_copies(workload.twice_below()))
            }
            (ResolvedWorkload::Racks(load), _) => {
                let transfers = Transfers::listed(load.starts(&mut random), priority);
                Job::Transfers(transfers.with_control(workload.control()))
            }
            _ => unreachable!("work is made from its workload, one for one"),
        })
    }
}

fn has_layer(work: &ResolvedWorkload) -> bool {
    matches!(work, ResolvedWorkload::System(system) if system.has_layer())
}

impl PairList {
    const fn count(&self, hosts: usize) -> usize {
        match self {
            Self::Listed(pairs) => pairs.len(),
            Self::Permutation => hosts,
        }
    }

    fn draw(&self, hosts: u16, random: &mut anabranch_units::RandomStream) -> Vec<(u16, u16)> {
        match self {
            Self::Listed(pairs) => pairs.clone(),
            // Repeated until no host sends to itself, which takes e draws on average.
            Self::Permutation => loop {
                let mut to: Vec<u16> = (0..hosts).collect();
                random.shuffle(&mut to);
                if (0..hosts).all(|host| to[usize::from(host)] != host) {
                    return (0..hosts).zip(to).collect();
                }
            },
        }
    }
}

fn who(network: &Network, pairs: &Pairs, field: &str) -> Result<PairList, PlanError> {
    let hosts = network.hosts().len() as u16;
    let field = format!("{field}.pairs");
    Ok(PairList::Listed(match pairs {
        Pairs::Named(Pattern::Permutation) => return Ok(PairList::Permutation),
        Pairs::Named(Pattern::All) => {
            let others = |src: u16| (0..hosts).filter(move |dst| *dst != src).map(move |dst| (src, dst));
            (0..hosts).flat_map(others).collect()
        }
        Pairs::Named(Pattern::Halves) => {
            (0..hosts / 2).map(|host| (host, hosts - hosts / 2 + host)).collect()
        }
        Pairs::Stride(stride) => {
            let stride = (stride % usize::from(hosts)) as u16;
            if stride == 0 {
                return Err(wrong(
                    field,
                    format!("a stride that {hosts} hosts divide: everyone would send to itself"),
                ));
            }
            (0..hosts).map(|host| (host, (host + stride) % hosts)).collect()
        }
        Pairs::Listed(pairs) => {
            let mut listed = Vec::new();
            for (index, (from, to)) in pairs.iter().enumerate() {
                let field = format!("{field}[{index}]");
                let host = |name| network.find_host(name).map_err(|message| wrong(field.clone(), message));
                let (src, dst) = (host(from)?, host(to)?);
                if src == dst {
                    return Err(wrong(field, format!("`{from}` would send to itself")));
                }
                listed.push((src, dst));
            }
            listed
        }
    }))
}

/// Returns the rate of each pair at which the average link uses the share `load` of its rate.
fn pair_rate(network: &Network, pairs: &PairList, load: f64) -> BitRate {
    let capacity: u64 = network.topology().links().iter().map(|l| l.properties.capacity.as_bps()).sum();
    let hosts = network.hosts().len() as u16;
    let hops: u64 = match pairs {
        PairList::Listed(pairs) => pairs.iter().map(|(src, dst)| network.hops(*src, *dst)).sum(),
        // The permutation is drawn later, so every pair counts with equal probability.
        PairList::Permutation => {
            let all = (0..hosts).flat_map(|src| (0..hosts).map(move |dst| (src, dst)));
            let sum: u64 = all.filter(|(src, dst)| src != dst).map(|(src, dst)| network.hops(src, dst)).sum();
            sum / (u64::from(hosts) - 1)
        }
    };
    BitRate::bps((load * capacity as f64 / hops.max(1) as f64) as u64)
}

/// Creates the control of circuits that follow demand, if the scenario has a schedule.
///
/// Errors: no system provides schedules of circuits, or the system refuses the settings.
fn circuits(
    scenario: &Scenario,
    network: &Network,
    systems: &[&dyn System],
) -> Result<Option<Arc<dyn CircuitPlan>>, PlanError> {
    let spec = scenario.circuit.as_ref().filter(|spec| spec.schedule.is_some());
    let Some((spec, (_, racks))) = spec.zip(network.racks()) else { return Ok(None) };
    let found = systems.iter().find_map(|system| system.circuits(spec, racks));
    let missing = || Err(wrong("circuit.schedule", "no system here decides circuits: leave it out"));
    found.unwrap_or_else(missing).map(|plan| Some(Arc::from(plan)))
}

/// Resolves a workload of flows between racks.
fn rack_load(
    network: &Network,
    spec: &Racks,
    duration: Option<Duration>,
    field: &str,
    read: &dyn Fn(&str) -> io::Result<String>,
) -> Result<RackLoad, PlanError> {
    let Some((rack_of, racks)) = network.racks() else {
        return Err(wrong(format!("{field}.kind"), "`racks`: needs a [circuit], whose links lead to racks"));
    };
    let mut hosts = vec![Vec::new(); racks.into()];
    for (host, rack) in (0u16..).zip(rack_of) {
        hosts[usize::from(rack.unwrap_or_default())].extend(rack.map(|_| host));
    }
    if let Some(rack) = hosts.iter().position(Vec::is_empty) {
        return Err(wrong(format!("{field}.kind"), format!("`racks`: rack {rack} has no host")));
    }
    let shifts = spec.shifts.clone().unwrap_or_else(|| (1..racks).collect());
    if let Some(shift) = shifts.iter().find(|shift| !(1..racks).contains(shift)) {
        let message = format!("{shift}: must be 1 to {}, as there are {racks} racks", racks - 1);
        return Err(wrong(format!("{field}.shifts"), message));
    }
    if shifts.is_empty() {
        return Err(wrong(format!("{field}.shifts"), "empty: must have at least 1 number"));
    }
    let sizes = sizes(&spec.sizes, field, read)?;
    let until = Instant::ZERO + duration.unwrap_or_default();
    let load = RackLoad { hosts, rate: spec.rate, sizes, shifts, until };
    if load.flows_mean() > FLOWS_AT_ONCE_MAX as f64 {
        let message =
            format!("{}: {:.0} flows: must be at most {FLOWS_AT_ONCE_MAX}", spec.rate, load.flows_mean());
        return Err(wrong(format!("{field}.rate"), message));
    }
    Ok(load)
}

/// Parses sizes of flows: a built-in distribution, one size, a range, or a file.
fn sizes(text: &str, field: &str, read: &dyn Fn(&str) -> io::Result<String>) -> Result<Sizes, PlanError> {
    let wrong = |message: String| wrong(format!("{field}.sizes"), message);
    let size = |text: &str| text.trim().parse::<ByteCount>().ok().filter(|size| size.as_u64() > 0);
    if let Some((least, most)) = text.split_once(" to ") {
        let range = size(least).zip(size(most)).filter(|(least, most)| least <= most);
        let (least, most) =
            range.ok_or_else(|| wrong(format!("`{text}`: must be two sizes, the smaller one first")))?;
        return Ok(Sizes::uniform(least, most));
    }
    match (Sizes::carried(text), text.parse::<ByteCount>()) {
        (Some(sizes), _) => Ok(sizes),
        (None, Ok(size)) if size.as_u64() > 0 => Ok(Sizes::fixed(size)),
        (None, Err(error @ ParseQuantityError::NoUnit { .. })) => Err(wrong(error.to_string())),
        _ => {
            let read = read(text);
            let file =
                read.map_err(|error| wrong(format!("{text}: {error}: name a file that can be read")))?;
            Sizes::parse(&file).map_err(|error| wrong(format!("{text}: {error}")))
        }
    }
}

fn look_up(
    network: &Network,
    workload: &Workload,
    field: &str,
    read: &dyn Fn(&str) -> io::Result<String>,
) -> Result<ResolvedWorkload, PlanError> {
    let hosts = network.hosts().len();
    let file = |field: String, name: &str| {
        read(name).map_err(|error| wrong(field, format!("{name}: {error}: name a file that can be read")))
    };
    Ok(match workload {
        Workload::Long(long) => {
            let pairs = who(network, &long.pairs, field)?;
            let flows = pairs.count(hosts) * long.streams as usize;
            if flows > FLOWS_AT_ONCE_MAX {
                let message = format!("{}: {flows} flows: must be at most {FLOWS_AT_ONCE_MAX}", long.streams);
                return Err(wrong(format!("{field}.streams"), message));
            }
            let LongWorkload { size, start, jitter, streams, .. } = *long;
            ResolvedWorkload::Long { pairs, size, start, jitter, streams }
        }
        Workload::Incast(incast) => {
            let client = incast.client.as_deref().map_or(Ok(0), |name| network.find_host(name));
            let client = client.map_err(|message| wrong(format!("{field}.client"), message))?;
            if incast.servers >= hosts {
                let message =
                    format!("{}: the network has {hosts} hosts, one of them the client", incast.servers);
                return Err(wrong(format!("{field}.servers"), message));
            }
            let block_bytes =
                incast.block_bytes().map_err(|message| wrong(format!("{field}.block"), message))?;
            let (servers, is_random) = (incast.servers, incast.random_servers);
            ResolvedWorkload::Incast { client, servers, is_random, block_bytes }
        }
        Workload::Poisson(poisson) => {
            let sizes = sizes(&poisson.sizes, field, read)?;
            let rates = network.hosts().iter().map(|host| host_rate_bps(network, *host) as f64);
            let per_s = poisson.load * rates.sum::<f64>() / (8.0 * sizes.mean_bytes());
            let gap = Duration::from_ps((1e12 / per_s).round() as u64);
            if gap > DURATION_MAX {
                let message = format!(
                    "{}: a flow every {gap}: must be at least one every {DURATION_MAX}",
                    poisson.load
                );
                return Err(wrong(format!("{field}.load"), message));
            }
            ResolvedWorkload::Poisson { gap, sizes }
        }
        Workload::Udp(udp) => {
            let pairs = who(network, &udp.pairs, field)?;
            let (name, rate) = match (udp.rate, udp.load) {
                (Some(rate), _) => ("rate", rate),
                (None, load) => ("load", pair_rate(network, &pairs, load.unwrap_or_default())),
            };
            if rate < UDP_RATE_MIN {
                let message = format!("{rate} for each pair: must be at least {UDP_RATE_MIN}");
                return Err(wrong(format!("{field}.{name}"), message));
            }
            ResolvedWorkload::Udp { pairs, rate }
        }
        Workload::Trace(trace) => {
            let field = format!("{field}.file");
            let text = file(field.clone(), &trace.file)?;
            let starts = read_trace(network, &text)
                .map_err(|message| wrong(field, format!("{}: {message}", trace.file)))?;
            ResolvedWorkload::Trace { starts }
        }
        Workload::Racks(_) | Workload::System(_) => unreachable!("they are looked up elsewhere"),
    })
}

/// Parses the flows of a trace: CSV with the header `start_s,from,to,size_bytes`.
fn read_trace(network: &Network, text: &str) -> Result<Vec<Start>, String> {
    const HEADER: &str = "start_s,from,to,size_bytes";
    let mut lines = text.lines();
    let header = lines.next().unwrap_or_default().trim();
    if header != HEADER {
        return Err(format!("line 1: `{header}`: must be the header {HEADER}"));
    }
    let mut starts = Vec::new();
    for (index, line) in lines.enumerate().filter(|(_, line)| !line.trim().is_empty()) {
        let at = |message: String| format!("line {}: {message}", index + 2);
        let fields: Vec<_> = line.split(',').map(str::trim).collect();
        let &[start, from, to, size] = fields.as_slice() else {
            return Err(at(format!("{} fields: must be {HEADER}", fields.len())));
        };
        let start_s = start.parse::<f64>().ok().filter(|s| (0.0..=100_000.0).contains(s));
        let start_s = start_s.ok_or_else(|| at(format!("start `{start}`: must be 0 to 100000 seconds")))?;
        let size = size.parse::<u64>().ok().filter(|s| (1..=1 << 50).contains(s));
        let size = size.ok_or_else(|| at("size: must be 1 to 2^50 bytes".to_owned()))?;
        let (src, dst) = (network.find_host(from).map_err(at)?, network.find_host(to).map_err(at)?);
        if src == dst {
            return Err(at(format!("`{from}` would send to itself")));
        }
        let start = Instant::ZERO + Duration::from_ps((start_s * 1e12).round() as u64);
        starts.push(Start { at: start, src, dst, size: Some(ByteCount::new(size)) });
    }
    Ok(starts)
}
