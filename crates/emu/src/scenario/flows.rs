//! The flows of a run, each site's tasks for these flows, and their results.
//!
//! Leaves out: the programs in the sites (`host`). Read [`Flows`] first.

use super::host::{self, HostObservations, IncastTask, IncomingFlow, OutgoingFlow, Serve, Source, Task};
use super::{Rehearsal, RunningSystem, ScenarioError, System, congestion_control, linux_name};
use crate::Emulation;
use anabranch_sim::scenario::{Incast, Udp, Workload};
use anabranch_sim::traffic::{Start, UdpFlow};
use anabranch_sim::{CoflowRow, CompletionTimes, FlowEnd, Plan, WorkloadRow};
use anabranch_units::{BitRate, ByteCount, Duration, Instant, Seed, SiteId};
use std::collections::BTreeMap;
use std::net::IpAddr;

/// Maximum duration of a run whose scenario states none.
const TIME_MAX: Duration = Duration::from_secs(600);

/// Running systems, each with the number of its workload.
pub(super) type Systems = Vec<(usize, Box<dyn RunningSystem>)>;

/// The flows of a run, and each site's tasks.
pub(super) struct Flows {
    /// Numbers and sizes of each workload's flows; the size is `None` for an endless flow.
    pub(super) of_workload: Vec<Vec<(u32, Option<ByteCount>)>>,
    /// Tasks by site.
    pub(super) tasks: BTreeMap<u16, Task>,
    /// Task without flows: the settings that all tasks have in common.
    pub(super) timing: Task,
    /// Prepared workloads of systems, by workload number.
    rehearsals: BTreeMap<usize, Box<dyn Rehearsal>>,
    taken: u32,
}

/// Sites that are hosts, and their addresses.
struct HostSites<'a> {
    plan: &'a Plan,
    address: &'a dyn Fn(SiteId) -> IpAddr,
}

impl HostSites<'_> {
    fn site(&self, host: u16) -> SiteId {
        self.plan.network().hosts()[usize::from(host)]
    }
    fn of(&self, host: u16) -> IpAddr {
        (self.address)(self.site(host))
    }
}

impl Flows {
    /// Errors: more flows than can be emulated, or a start that is too late.
    pub(super) fn new(
        plan: &Plan,
        trial: u64,
        systems: &[&dyn System],
        address: &dyn Fn(SiteId) -> IpAddr,
    ) -> Result<Self, ScenarioError> {
        let (scenario, seed) = (plan.scenario(), Seed::new(plan.seed(trial)));
        let places = HostSites { plan, address };
        let end = Instant::ZERO + scenario.duration.unwrap_or(TIME_MAX);
        let timing = Task {
            duration_ns: end.as_ns(),
            warmup_ns: scenario.warmup.as_ns(),
            congestion_control: congestion_control(plan)?.to_owned(),
            ..Task::default()
        };
        let (of_workload, tasks, rehearsals) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let mut new = Self { of_workload, tasks, timing, rehearsals, taken: 0 };
        for (index, workload) in scenario.workload.iter().enumerate() {
            let field = format!("workload[{index}]");
            let kind = workload.kind();
            let only = || ScenarioError::new(format!("{field}.kind: {kind}: only in the simulator"));
            let priority = workload.priority().unwrap_or_default();
            let numbers = match workload {
                Workload::Incast(incast) => {
                    let (client, servers) = plan.incast_hosts(seed, index).ok_or_else(only)?;
                    new.incast(incast, plan.seed(trial), client, &servers, &places, &field)?
                }
                Workload::Udp(udp) => {
                    let flows = plan.udp_flows(seed, index).ok_or_else(only)?;
                    new.udp(udp, flows, &places, &field)?
                }
                Workload::System(workload) => {
                    let system = systems.iter().find(|system| system.kind() == workload.kind);
                    let only = || {
                        ScenarioError::new(format!("{field}.kind: {}: only in the simulator", workload.kind))
                    };
                    let rehearsal = system.ok_or_else(only)?.rehearse(workload, plan, &field)?;
                    let priority = rehearsal.priority();
                    let mut numbers = Vec::new();
                    for start in rehearsal.flows() {
                        let flow = new.take(&field)?;
                        numbers.push((flow, start.size));
                        new.flow(flow, &start, (priority, None), &places);
                    }
                    new.rehearsals.insert(index, rehearsal);
                    numbers
                }
                _ => {
                    if workload.twice_below().is_some() {
                        let line =
                            format!("{field}.twice_below: only in the simulator: leave it out to emulate");
                        return Err(ScenarioError::new(line));
                    }
                    let starts = plan.starts(seed, index).ok_or_else(only)?;
                    let control =
                        workload.control().map(|control| linux_name(control, &format!("{field}.control")));
                    let kind = (priority, control.transpose()?);
                    new.starts(starts, (end, scenario.duration.is_some()), kind, &places, &field)?
                }
            };
            new.of_workload.push(numbers);
        }
        Ok(new)
    }

    /// Takes the next flow number.
    fn take(&mut self, field: &str) -> Result<u32, ScenarioError> {
        let most = host::FLOWS_MAX;
        if self.taken >= most {
            let line = format!("{field}: more than {most} flows: too many to emulate: ask for fewer");
            return Err(ScenarioError::new(line));
        }
        self.taken += 1;
        Ok(self.taken - 1)
    }

    fn incast(
        &mut self,
        incast: &Incast,
        seed: u64,
        client: u16,
        servers: &[u16],
        places: &HostSites<'_>,
        field: &str,
    ) -> Result<Vec<(u32, Option<ByteCount>)>, ScenarioError> {
        let block_bytes = incast.block_bytes().map_err(ScenarioError::new)?;
        let (request_bytes, priority) = (incast.request.as_u64(), incast.priority);
        let mut numbers = Vec::new();
        let mut ask = IncastTask {
            rounds: incast.rounds,
            warmup_rounds: incast.warmup_rounds,
            request_bytes,
            block_bytes,
            jitter_ns: incast.jitter.as_ns(),
            seed,
            priority,
            ..IncastTask::default()
        };
        for server in servers {
            let number = self.take(field)?;
            numbers.push((number, None));
            let port = host::port(number);
            let serve = Serve { port, priority, request_bytes, block_bytes };
            self.task(places.site(*server)).serve.push(serve);
            ask.servers.push((places.of(*server), port));
        }
        ask.first_flow = numbers.first().map_or(0, |(number, _)| *number);
        self.task(places.site(client)).ask.push(ask);
        Ok(numbers)
    }

    fn udp(
        &mut self,
        udp: &Udp,
        flows: Vec<UdpFlow>,
        places: &HostSites<'_>,
        field: &str,
    ) -> Result<Vec<(u32, Option<ByteCount>)>, ScenarioError> {
        let (start_ns, stop_ns) = (udp.start.as_ns(), udp.stop.map(Duration::as_ns));
        let mut numbers = Vec::new();
        for of_pair in flows {
            let flow = self.take(field)?;
            numbers.push((flow, None));
            self.task(places.site(of_pair.dst)).sinks.push(flow);
            let (to, priority) = (places.of(of_pair.dst), udp.priority);
            let source = Source { flow, to, priority, start_ns, stop_ns, udp: of_pair };
            self.task(places.site(source.udp.src)).sources.push(source);
        }
        Ok(numbers)
    }

    fn starts(
        &mut self,
        starts: impl IntoIterator<Item = Start>,
        (end, is_asked): (Instant, bool),
        kind: (u8, Option<&str>),
        places: &HostSites<'_>,
        field: &str,
    ) -> Result<Vec<(u32, Option<ByteCount>)>, ScenarioError> {
        let mut numbers = Vec::new();
        for start in starts {
            if start.at >= end {
                if !is_asked {
                    return Err(ScenarioError::new(format!(
                        "{field}: a flow begins later than {TIME_MAX}: too long to emulate"
                    )));
                }
                break;
            }
            let flow = self.take(field)?;
            numbers.push((flow, start.size));
            self.flow(flow, &start, kind, places);
        }
        Ok(numbers)
    }

    /// Adds a TCP flow from one host to another, with its priority. `control` is its congestion
    /// control if it differs from the task's.
    fn flow(
        &mut self,
        flow: u32,
        start: &Start,
        (priority, control): (u8, Option<&str>),
        places: &HostSites<'_>,
    ) {
        let congestion_control = control.map(str::to_owned);
        let size_bytes = start.size.map(ByteCount::as_u64);
        self.task(places.site(start.dst)).incoming.push(IncomingFlow { flow, size_bytes });
        let (to, start_ns, announce) = (places.of(start.dst), start.at.as_ns(), None);
        let outgoing =
            OutgoingFlow { flow, to, priority, congestion_control, start_ns, size_bytes, announce };
        self.task(places.site(start.src)).outgoing.push(outgoing);
    }

    /// Changes a setting in all tasks.
    pub(super) fn set(&mut self, change: impl Fn(&mut Task)) {
        self.tasks.values_mut().chain([&mut self.timing]).for_each(change);
    }

    fn task(&mut self, site: SiteId) -> &mut Task {
        self.tasks.entry(site.0).or_insert_with(|| self.timing.clone())
    }

    /// Starts the systems' programs, and lets the hosts' programs report the flow events that these
    /// programs subscribe to.
    ///
    /// Errors: the systems'.
    pub(super) fn start(
        &mut self,
        emulation: &Emulation,
        plan: &Plan,
        seed: Seed,
    ) -> Result<Systems, ScenarioError> {
        let started = self
            .rehearsals
            .iter()
            .map(|(index, rehearsal)| Ok((*index, rehearsal.start(emulation, plan, seed)?)));
        let started: Systems = started.collect::<Result<_, ScenarioError>>()?;
        for (index, running) in &started {
            let numbers = self.of_workload[*index].iter().enumerate();
            let of: BTreeMap<u32, usize> = numbers.map(|(at, (number, _))| (*number, at)).collect();
            for (site, task) in &mut self.tasks {
                for outgoing in &mut task.outgoing {
                    if let Some(flow) = of.get(&outgoing.flow) {
                        outgoing.announce = running.announce(SiteId(*site), *flow);
                    }
                }
            }
        }
        Ok(started)
    }
}

/// Returns a flow's state at the end of a run, from the hosts' observations.
fn flow_end(seen: &HostObservations, number: u32) -> FlowEnd {
    let flow = seen.flows.get(&number).cloned().unwrap_or_default();
    let end_ns = flow.whole_ns.unwrap_or(seen.over_ns);
    let lasted = flow.start_ns.map_or(0, |start_ns| end_ns.saturating_sub(start_ns));
    FlowEnd {
        lasted: Duration::from_ns(lasted),
        is_whole: flow.whole_ns.is_some(),
        delivered_bytes: flow.received_bytes,
    }
}

/// Results of the workloads, from the hosts' observations.
pub(super) fn rows(
    plan: &Plan,
    all: &Flows,
    systems: &Systems,
    seen: &HostObservations,
) -> (Vec<WorkloadRow>, Vec<CoflowRow>) {
    let scenario = plan.scenario();
    let us = |ns: u64| ns as f64 / 1e3;
    let measured = Duration::from_ns(seen.over_ns.saturating_sub(scenario.warmup.as_ns()));
    let mbps = |bytes| BitRate::average(ByteCount::new(bytes), measured).map(BitRate::as_mbps_f64);
    let mut coflows = Vec::new();
    let mut one = |(index, workload): (usize, &Workload)| {
        let flows = &all.of_workload[index];
        let mut row = WorkloadRow {
            workload: workload.kind().to_owned(),
            flows: flows.len() as u64,
            ..WorkloadRow::default()
        };
        match workload {
            Workload::Incast(_) => {
                let first = flows.first().map(|(number, _)| *number);
                if let Some(asked) = seen.asked.iter().find(|a| Some(a.first_flow) == first) {
                    let times = asked.rounds_ns.iter().map(|(from, to)| us(to - from)).collect();
                    row.rounds(times, asked.round_bytes);
                }
            }
            Workload::Udp(_) => {
                let sinks = || flows.iter().filter_map(|(number, _)| seen.sinks.get(number));
                row.goodput_mbps = mbps(sinks().map(|flow| flow.received_bytes - flow.warmup_bytes).sum());
                let sent = flows.iter().filter_map(|(number, _)| seen.sent.get(number));
                row.datagrams(sent.sum(), sinks().map(|flow| &flow.sink));
            }
            _ => {
                let bytes =
                    |number| seen.flows.get(number).map_or(0, |flow| flow.received_bytes - flow.warmup_bytes);
                if !flows.is_empty() {
                    row.goodput_mbps = mbps(flows.iter().map(|(number, _)| bytes(number)).sum());
                }
                if !flows.is_empty() && flows.iter().all(|(_, size)| size.is_none()) {
                    row.share(flows.iter().filter_map(|(number, _)| mbps(bytes(number))).collect());
                    return row;
                }
                let whole = flows.iter().filter_map(|(number, size)| {
                    let flow = seen.flows.get(number)?;
                    Some((size.as_ref()?.as_u64(), us(flow.whole_ns?.saturating_sub(flow.start_ns?))))
                });
                if !flows.is_empty() {
                    row.complete(&CompletionTimes(whole.collect()));
                }
                if let Workload::Racks(_) = workload {
                    row.all_flows(flows.iter().map(|(number, _)| flow_end(seen, *number)));
                }
                if let Some((_, running)) = systems.iter().find(|(number, _)| *number == index) {
                    let numbers: Vec<u32> = flows.iter().map(|(number, _)| *number).collect();
                    let ended = running.report(seen, &numbers, &mut row).into_iter();
                    coflows.extend(ended.map(|row| CoflowRow { workload_index: index as u16, ..row }));
                }
            }
        }
        row
    };
    let workloads = scenario.workload.iter().enumerate().map(&mut one).collect();
    (workloads, coflows)
}
