//! A scenario under real kernels: the same file as `simulate`, its hosts in network namespaces, its flows over the kernel's
//! TCP and UDP, the same ports in between under the real clock.
//!
//! The plan lists the flows, so that both clocks start the same ones at the same times. What the kernel decides for itself is
//! said beside the results, and what cannot be set is refused; a jitter of hosts is the simulator's alone, as these have their own.
//! Leaves out: shared buffers. Read [`run`] first.

use super::Args;
use super::agent::{self, Announce, Ask, Incoming, Outgoing, Seen, Serve, Source, Task, monotonic_ns};
use crate::pipe::Pipe;
use crate::run_dir::RunDir;
use crate::shuffle::emulated::{Coordination, Shuffled};
use crate::shuffle::simulated::report_transfers;
use crate::simulate::systems::Family;
use crate::simulate::{keyed, keyed_rows, parquet, table};
use anabranch_emu::{Emulation, EmulationOptions, Histogram, Report, Switching};
use anabranch_sim::scenario::{self, Point, Scenario, Workload};
use anabranch_sim::traffic::Start;
use anabranch_sim::{Plan, PlanError, Times, TransferRow, WorkloadRow};
use anabranch_transport::Control;
use anabranch_units::{BitRate, ByteCount, Duration, Instant, LinkId, Seed, SiteId};
use anyhow::{Context as _, bail, ensure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{IpAddr, Ipv4Addr};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// How long a run without a duration may take.
const TIME_MAX: Duration = Duration::from_secs(600);
/// Between the word to go and the first flow.
const LEAD_NS: u64 = 100_000_000;

/// What the kernel did that the scenario does not say, and how late the emulation was.
#[derive(Clone, Debug, Serialize)]
struct Emulated {
    congestion_control: String,
    dropped_queue_full: u64,
    dropped_otherwise: u64,
    marked_packets: u64,
    lateness_us_p99: f64,
    /// How much later than they were due flows began; none without flows of TCP.
    #[serde(skip_serializing_if = "Option::is_none")]
    start_lateness_us_p99: Option<f64>,
    /// How much later than they were due datagrams were sent; none without.
    #[serde(skip_serializing_if = "Option::is_none")]
    datagram_lateness_us_p99: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    datagram_lateness_us_max: Option<f64>,
    trusted: bool,
    why: Vec<String>,
}

/// Whether `name` is a scenario file.
pub(super) fn is_scenario(name: &str) -> bool {
    let text =
        Path::new(name).extension().is_some_and(|e| e == "toml").then(|| std::fs::read_to_string(name));
    text.and_then(Result::ok)
        .and_then(|text| text.parse::<toml::Table>().ok())
        .is_some_and(|table| table.contains_key("network") || table.contains_key("workload"))
}

/// Runs it.
///
/// Errors: one line for the user.
pub(super) fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    let points = match load(args) {
        Ok(points) => points,
        Err(error) => {
            eprintln!("anabranch: {error:#}");
            return Ok(ExitCode::from(2));
        }
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    signal_hook::flag::register(signal_hook::consts::SIGINT, interrupted.clone())?;
    let mut record = args.record.as_deref().map(RunDir::claim).transpose()?;
    let (mut done, mut pipe): (Vec<table::Line>, _) = (Vec::new(), Pipe::default());
    let (mut trusted, mut transfers) = (true, Vec::new());
    for (index, point) in points.iter().enumerate() {
        for trial in 0..args.trials {
            if !quiet {
                let swept: String =
                    point.swept.iter().map(|(key, value)| format!(" {key} = {value}")).collect();
                eprintln!("emulating{swept}, trial {} of {}", trial + 1, args.trials);
            }
            let plan = plan(args, point)?;
            let (rows, ended, report, emulated) = emulate(args, &plan, trial, &interrupted)?;
            if interrupted.load(Ordering::Relaxed) {
                eprintln!("anabranch: interrupted");
                return Ok(ExitCode::from(130));
            }
            trusted &= emulated.trusted;
            if !emulated.trusted && !quiet {
                eprintln!("anabranch: not to be trusted: {}", emulated.why.join("; "));
            }
            for row in keyed_rows(point, trial, plan.seed(trial), &rows, &emulated) {
                if args.json {
                    pipe.print(std::iter::once(serde_json::Value::Object(row.clone()).to_string()));
                }
                if let Some(record) = &mut record {
                    record.row(&row)?;
                }
            }
            let keyed = |row| keyed(point, trial, plan.seed(trial), row);
            transfers.extend(ended.iter().map(keyed));
            if let Some(record) = &mut record {
                record.emulation(&format!("point {index}, trial {trial}"), &report)?;
            }
            let drops = emulated.dropped_queue_full + emulated.dropped_otherwise;
            done.push(table::Line { point: index, rows, transfers: ended, drops });
            if pipe.is_closed {
                return Ok(ExitCode::SUCCESS);
            }
        }
    }
    if !args.json {
        pipe.print(std::iter::once(table::of(&points, &done).to_string()));
    }
    if let Some(record) = record {
        if !transfers.is_empty() {
            parquet::write(&record, "transfers", &transfers)?;
        }
        let (command, config) = crate::arguments();
        record.finish(&command, config, points.first().map(|p| Seed::new(p.scenario.seed)))?;
    }
    Ok(if args.strict && !trusted { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn load(args: &Args) -> anyhow::Result<Vec<Point>> {
    ensure!(
        args.command.is_empty() && args.runs.is_empty(),
        "a scenario says itself what runs: leave out the command"
    );
    let text = std::fs::read_to_string(&args.topology).with_context(|| args.topology.clone())?;
    let points = scenario::read(&args.topology, &text, &args.sets)?;
    for point in &points {
        let plan = plan(args, point).map_err(|error| {
            let place = scenario::place(&args.topology, &text, &args.sets, &error.field);
            anyhow::anyhow!("{place}: {error}")
        })?;
        settings(&plan).with_context(|| args.topology.clone())?;
        for trial in 0..args.trials {
            Flows::new(&plan, trial, &|_| Ipv4Addr::UNSPECIFIED.into())
                .with_context(|| args.topology.clone())?;
        }
    }
    Ok(points)
}

/// Files that a scenario names lie beside it.
fn plan(args: &Args, point: &Point) -> Result<Plan, PlanError> {
    let folder = Path::new(&args.topology).parent().map(Path::to_path_buf).unwrap_or_default();
    let read = |name: &str| std::fs::read_to_string(folder.join(name));
    Plan::with_systems(point.scenario.clone(), &read, &Family)
}

/// What the sites' TCP is set to.
///
/// Errors: what no kernel here can be told, or no emulated port can do.
fn settings(plan: &Plan) -> anyhow::Result<EmulationOptions> {
    let Scenario { network, transport, workload, .. } = plan.scenario();
    let only = |is_set: bool, name: &str| {
        ensure!(!is_set, "{name}: only in the simulator: leave it out to emulate");
        anyhow::Ok(())
    };
    only(network.shared_buffer.is_some(), "network.shared_buffer")?;
    only(transport.cwnd_max.is_some(), "transport.cwnd_max")?;
    only(transport.dctcp_gain_ppm != 62_500, "transport.dctcp_gain_ppm")?;
    only(transport.dctcp_alpha_ppm != 1_000_000, "transport.dctcp_alpha_ppm")?;
    only(transport.initial_ssthresh.is_some(), "transport.initial_ssthresh")?;
    only(transport.initial_window_segments != 10, "transport.initial_window_segments")?;
    only(transport.rto_min != Duration::from_ms(200), "transport.rto_min")?;
    only(!transport.handshake, "transport.handshake")?;
    let mtu = transport.mss + transport.header_bytes;
    for (index, workload) in workload.iter().enumerate() {
        if let Workload::Udp(udp) = workload {
            let (least, most) = (agent::DATAGRAM_BYTES_MIN, mtu);
            ensure!(
                (u64::from(least)..=u64::from(most)).contains(&udp.packet.as_u64()),
                "workload[{index}].packet: {}: must be {least} to {most} bytes to emulate: it holds headers and a stamp of {least} \
                 bytes, and the most is transport.mss and transport.header_bytes together",
                udp.packet
            );
        }
    }
    congestion_control(plan)?;
    let flag = |name: &str, is: bool| (format!("ipv4/{name}"), if is { "1" } else { "0" }.to_owned());
    for path in plan.scenario().kernel.keys() {
        let is_plain = path.starts_with("ipv4/")
            && path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/_".contains(&b));
        ensure!(is_plain, "kernel.{path}: must be a path below /proc/sys/net, as ipv4/tcp_early_retrans");
    }
    let links = plan.network().topology().link_ids();
    let ports = links.map(|link| *plan.network().port_settings(link));
    let kernel = plan.scenario().kernel.iter().map(|(path, value)| (path.clone(), value.clone()));
    Ok(EmulationOptions {
        mtu,
        ports: Some(ports.collect()),
        tcp_buffer_bytes_max: Some(transport.receive_buffer.max(ByteCount::kib(64))),
        settings: vec![
            flag("tcp_sack", transport.sack),
            flag("tcp_ecn", transport.ecn),
            flag("tcp_slow_start_after_idle", transport.slow_start_restart),
            // 12 bytes of each header, as the scenario has them or not.
            flag("tcp_timestamps", transport.header_bytes >= 52),
        ]
        .into_iter()
        .chain(kernel)
        .collect(),
        ..EmulationOptions::default()
    })
}

/// The kernel's name of the scenario's congestion control, which each socket is told: not every machine lets a site have any
/// as its default.
fn congestion_control(plan: &Plan) -> anyhow::Result<&'static str> {
    match plan.scenario().transport.control {
        Control::NewReno => Ok("reno"),
        Control::Cubic => Ok("cubic"),
        Control::Dctcp => Ok("dctcp"),
        _ => bail!("transport.control: only newreno, cubic and dctcp can be emulated, by the kernel's own"),
    }
}

/// One run: the rows of its workloads, and how far to trust them.
fn emulate(
    args: &Args,
    plan: &Plan,
    trial: u64,
    interrupted: &AtomicBool,
) -> anyhow::Result<(Vec<WorkloadRow>, Vec<TransferRow>, Report, Emulated)> {
    let seed = Seed::new(plan.seed(trial));
    let topology = plan.network().topology();
    let switching = topology.site_ids().map(|site| {
        let (next, policy) = plan.network().switching(site, seed);
        Switching { next, policy }
    });
    let options = EmulationOptions {
        seed,
        switching: Some(switching.collect()),
        lateness_p99_max: args.lateness_bound,
        ..settings(plan)?
    };
    let emulation = Emulation::start(topology, options)?;
    let mut flows = Flows::new(plan, trial, &|site| emulation.site_address(site))?;
    let control = flows.shuffles.values().filter(|shuffled| shuffled.shuffle.has_coordinator());
    let control = control.map(|shuffled| Coordination::start(&emulation, plan, &shuffled.shuffle));
    let control: Vec<Coordination> = control.collect::<Result<_, _>>()?;
    flows.announce(&control);
    let mut agents = Vec::new();
    for (site, task) in std::mem::take(&mut flows.tasks) {
        agents.push(Agent::start(&emulation, SiteId(site), &task)?);
    }
    for agent in &mut agents {
        agent.expect("ready")?;
    }
    let begin_ns = monotonic_ns() + LEAD_NS;
    for agent in &mut agents {
        agent.tell(&begin_ns.to_string())?;
    }
    let seen = watch(plan, &emulation, &mut agents, begin_ns, interrupted)?;
    let mut report = emulation.report()?;
    report.why.extend(distrust(&seen, args.lateness_bound));
    report.why.extend(control.iter().filter_map(Coordination::distrust));
    report.trusted = report.why.is_empty();
    let counters = emulation.counters()?;
    let emulated = Emulated {
        congestion_control: congestion_control(plan)?.to_owned(),
        dropped_queue_full: counters.iter().map(|c| c.dropped_queue_full).sum(),
        dropped_otherwise: counters
            .iter()
            .map(|c| c.dropped_loss + c.dropped_bit_error + c.dropped_link_down)
            .sum(),
        marked_packets: counters.iter().map(|c| c.marked_packets).sum(),
        lateness_us_p99: report.lateness_us_p99,
        start_lateness_us_p99: has(&seen.starts_late).map(|late| late.quantile_us(0.99)),
        datagram_lateness_us_p99: has(&seen.datagrams_late).map(|late| late.quantile_us(0.99)),
        datagram_lateness_us_max: has(&seen.datagrams_late).map(Histogram::max_us),
        trusted: report.trusted,
        why: report.why.clone(),
    };
    drop(control);
    let rows = rows(plan, &flows, &seen);
    let shuffles = flows.shuffles.iter();
    let transfers = shuffles.flat_map(|(index, shuffled)| shuffled.transfers(*index as u16, &seen)).collect();
    Ok((rows, transfers, report, emulated))
}

fn has(late: &Histogram) -> Option<&Histogram> {
    Some(late).filter(|late| late.total() > 0)
}

/// What of the hosts' programs speaks against a run: they were later than `bound`, lost datagrams, or failed.
fn distrust(seen: &Seen, bound: Duration) -> Vec<String> {
    let bound_us = bound.as_secs_f64() * 1e6;
    let late = |late: &Histogram, what: &str, remedy: &str| {
        let p99 = late.quantile_us(0.99);
        let is_late = p99 > bound_us;
        is_late.then(|| format!("1 % of the {what} {p99:.0} us late (bound {bound_us:.0} us): {remedy}"))
    };
    let findings = [
        late(&seen.starts_late, "flows began more than", "free a processor"),
        late(
            &seen.datagrams_late,
            "datagrams were sent more than",
            "lower workload.rate or free a processor",
        ),
        (seen.unread_datagrams > 0).then(|| {
            format!(
                "{} datagrams arrived and were not read in time: lower workload.rate",
                seen.unread_datagrams
            )
        }),
        seen.failure
            .as_ref()
            .map(|first| format!("{} refusals by the hosts' kernels, the first: {first}", seen.failed)),
    ];
    findings.into_iter().flatten().collect()
}

/// Which flows there are, and what each site has to do for them.
struct Flows {
    /// By workload: the numbers of its flows, and their sizes.
    of_workload: Vec<Vec<(u32, Option<ByteCount>)>>,
    /// By site.
    tasks: BTreeMap<u16, Task>,
    /// What all tasks begin as.
    timing: Task,
    /// Workloads of kind `shuffle`.
    shuffles: BTreeMap<usize, Shuffled>,
}

impl Flows {
    /// Errors: more than can be emulated, or later.
    fn new(plan: &Plan, trial: u64, address: &dyn Fn(SiteId) -> IpAddr) -> anyhow::Result<Self> {
        let (scenario, seed) = (plan.scenario(), Seed::new(plan.seed(trial)));
        let site = |host: u16| plan.network().hosts()[usize::from(host)];
        let mut flow = 0;
        let ns = |duration: Duration| duration.as_ns();
        let end = Instant::ZERO + scenario.duration.unwrap_or(TIME_MAX);
        let timing = Task {
            duration_ns: end.as_ns(),
            warmup_ns: ns(scenario.warmup),
            congestion_control: congestion_control(plan)?.to_owned(),
            ..Task::default()
        };
        let (of_workload, tasks, shuffles) = (Vec::new(), BTreeMap::new(), BTreeMap::new());
        let mut new = Self { of_workload, tasks, timing, shuffles };
        let mut take = |index: usize| {
            let most = agent::FLOWS_MAX;
            flow += 1;
            ensure!(
                flow <= most,
                "workload[{index}]: more than {most} flows: too many to emulate: ask for fewer"
            );
            Ok(flow - 1)
        };
        for (index, workload) in scenario.workload.iter().enumerate() {
            let mut numbers = Vec::new();
            let priority = workload.priority().unwrap_or_default();
            if let (Workload::Incast(incast), Some((client, servers))) =
                (workload, plan.incast_hosts(seed, index))
            {
                let block_bytes = incast.block_bytes().map_err(anyhow::Error::msg)?;
                let request_bytes = incast.request.as_u64();
                let mut ask = Ask {
                    rounds: incast.rounds,
                    warmup_rounds: incast.warmup_rounds,
                    request_bytes,
                    block_bytes,
                    jitter_ns: ns(incast.jitter),
                    seed: plan.seed(trial),
                    priority,
                    ..Ask::default()
                };
                for server in servers {
                    let number = take(index)?;
                    numbers.push((number, None));
                    let port = agent::port(number);
                    new.task(site(server)).serve.push(Serve { port, priority, request_bytes, block_bytes });
                    ask.servers.push((address(site(server)), port));
                }
                ask.first_flow = numbers.first().map_or(0, |(number, _)| *number);
                new.task(site(client)).ask.push(ask);
            } else if let (Workload::Udp(spec), Some(flows)) = (workload, plan.udp_flows(seed, index)) {
                for udp in flows {
                    let flow = take(index)?;
                    numbers.push((flow, None));
                    let (src, dst) = (site(udp.src), site(udp.dst));
                    let (start_ns, stop_ns) = (ns(spec.start), spec.stop.map(ns));
                    new.task(dst).sinks.push(flow);
                    new.task(src).sources.push(Source {
                        flow,
                        to: address(dst),
                        priority,
                        start_ns,
                        stop_ns,
                        udp,
                    });
                }
            } else if let Workload::System(system) = workload
                && system.kind == "shuffle"
            {
                let field = format!("workload[{index}]");
                let shuffle = crate::shuffle::simulated::plan(system, plan.network(), &field)?;
                let mut transfers = Vec::new();
                for (name, flows) in shuffle.transfers() {
                    let mut of_transfer = Vec::new();
                    for start in flows {
                        let flow = take(index)?;
                        numbers.push((flow, start.size));
                        of_transfer.push((flow, start.size.unwrap_or_default()));
                        new.transfer(flow, &start, shuffle.priority(), (&site, address));
                    }
                    transfers.push((name.to_owned(), of_transfer));
                }
                new.shuffles.insert(index, Shuffled { shuffle, transfers });
            } else {
                let starts = plan.starts(seed, index).with_context(|| {
                    format!("workload[{index}].kind: {}: only in the simulator", workload.kind())
                })?;
                for start in starts {
                    if start.at >= end {
                        let is_asked = scenario.duration.is_some();
                        ensure!(
                            is_asked,
                            "workload[{index}]: a flow begins later than {TIME_MAX}: too long to emulate"
                        );
                        break;
                    }
                    let flow = take(index)?;
                    numbers.push((flow, start.size));
                    new.transfer(flow, &start, priority, (&site, address));
                }
            }
            new.of_workload.push(numbers);
        }
        Ok(new)
    }

    /// A flow of TCP from one host to another.
    fn transfer(
        &mut self,
        flow: u32,
        start: &Start,
        priority: u8,
        (site, address): (&dyn Fn(u16) -> SiteId, &dyn Fn(SiteId) -> IpAddr),
    ) {
        let size_bytes = start.size.map(ByteCount::as_u64);
        let (src, dst) = (site(start.src), site(start.dst));
        self.task(dst).incoming.push(Incoming { flow, size_bytes });
        let (to, start_ns, announce) = (address(dst), start.at.as_ns(), None);
        self.task(src).outgoing.push(Outgoing { flow, to, priority, start_ns, size_bytes, announce });
    }

    /// Flows of transfers are announced to the agents of their hosts.
    fn announce(&mut self, control: &[Coordination]) {
        let with_coordinator = self.shuffles.values().filter(|shuffled| shuffled.shuffle.has_coordinator());
        for (control, shuffled) in control.iter().zip(with_coordinator) {
            let transfers = shuffled.transfers.iter();
            let of: BTreeMap<u32, &String> = transfers
                .flat_map(|(name, flows)| flows.iter().map(move |(flow, _)| (*flow, name)))
                .collect();
            for (site, task) in &mut self.tasks {
                let socket = control.socket(SiteId(*site));
                for outgoing in &mut task.outgoing {
                    if let Some(transfer) = of.get(&outgoing.flow) {
                        let (transfer, socket) = ((*transfer).clone(), socket.clone());
                        outgoing.announce = Some(Announce { transfer, socket });
                    }
                }
            }
        }
    }

    fn task(&mut self, site: SiteId) -> &mut Task {
        self.tasks.entry(site.0).or_insert_with(|| self.timing.clone())
    }
}

/// A program in a host that does its part.
struct Agent {
    child: Child,
    lines: BufReader<ChildStdout>,
    name: String,
}

impl Agent {
    fn start(emulation: &Emulation, site: anabranch_units::SiteId, task: &Task) -> anyhow::Result<Self> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("emulate-agent").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let mut child = emulation.spawn(site, command)?;
        let lines = BufReader::new(child.stdout.take().context("its output is a pipe")?);
        let mut agent = Self { child, lines, name: format!("site {site}") };
        agent.tell(&serde_json::to_string(task)?)?;
        Ok(agent)
    }

    fn tell(&mut self, line: &str) -> anyhow::Result<()> {
        let stdin = self.child.stdin.as_mut().context("its input is a pipe")?;
        writeln!(stdin, "{line}").with_context(|| format!("{}: its program has ended", self.name))
    }

    fn line(&mut self) -> anyhow::Result<String> {
        let mut line = String::new();
        let length = self.lines.read_line(&mut line)?;
        ensure!(length > 0, "{}: its program ended early", self.name);
        Ok(line)
    }

    fn expect(&mut self, word: &str) -> anyhow::Result<()> {
        let line = self.line()?;
        ensure!(line.trim() == word, "{}: its program said `{}`", self.name, line.trim());
        Ok(())
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Waits for the agents' reports; meanwhile changes the links as the scenario says.
fn watch(
    plan: &Plan,
    emulation: &Emulation,
    agents: &mut [Agent],
    begin_ns: u64,
    interrupted: &AtomicBool,
) -> anyhow::Result<Seen> {
    let over = AtomicBool::new(false);
    let handle = emulation.handle();
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            for (at, link, port) in plan.changes() {
                let due_ns = begin_ns + at.as_ns();
                while monotonic_ns() < due_ns {
                    if over.load(Ordering::Relaxed) {
                        return Ok(());
                    }
                    let left = due_ns.saturating_sub(monotonic_ns()).min(20_000_000);
                    std::thread::sleep(std::time::Duration::from_nanos(left));
                }
                let state = anabranch_emu::LinkState {
                    up: port.up,
                    rate: port.rate,
                    delay: port.delay,
                    loss_ppm: port.loss_ppm,
                };
                handle.set_link(LinkId(link.0), state)?;
            }
            Ok::<_, anabranch_emu::EmuError>(())
        });
        // The agents themselves end in time; Ctrl-C reaches them as it does us, and their output then ends.
        let mut gather = || {
            agents.iter_mut().try_for_each(|agent| agent.expect("done"))?;
            agents.iter_mut().try_for_each(|agent| agent.tell("all are"))?;
            let mut seen = Seen::default();
            for agent in agents.iter_mut() {
                seen.merge(serde_json::from_str(&agent.line()?)?);
            }
            anyhow::Ok(seen)
        };
        let seen = gather();
        over.store(true, Ordering::Relaxed);
        changing.join().expect("it does not panic")?;
        match seen {
            Err(_) if interrupted.load(Ordering::Relaxed) => Ok(Seen::default()),
            seen => seen,
        }
    })
}

/// What the workloads got, by what the hosts saw.
fn rows(plan: &Plan, all: &Flows, seen: &Seen) -> Vec<WorkloadRow> {
    let scenario = plan.scenario();
    let us = |ns: u64| ns as f64 / 1e3;
    let measured = Duration::from_ns(seen.over_ns.saturating_sub(scenario.warmup.as_ns()));
    let mbps = |bytes| BitRate::average(ByteCount::new(bytes), measured).map(BitRate::as_mbps_f64);
    let one = |(index, workload): (usize, &Workload)| {
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
                row.goodput_mbps = mbps(sinks().map(|flow| flow.bytes - flow.warmup_bytes).sum());
                let sent = flows.iter().filter_map(|(number, _)| seen.sent.get(number));
                row.datagrams(sent.sum(), sinks().map(|flow| &flow.sink));
            }
            _ => {
                let bytes = |number| seen.flows.get(number).map_or(0, |flow| flow.bytes - flow.warmup_bytes);
                row.goodput_mbps = mbps(flows.iter().map(|(number, _)| bytes(number)).sum());
                if flows.iter().all(|(_, size)| size.is_none()) {
                    row.share(flows.iter().filter_map(|(number, _)| mbps(bytes(number))).collect());
                    return row;
                }
                let whole = flows.iter().filter_map(|(number, size)| {
                    let flow = seen.flows.get(number)?;
                    Some((size.as_ref()?.as_u64(), us(flow.whole_ns?.saturating_sub(flow.start_ns?))))
                });
                row.complete(&Times(whole.collect()));
                if let Some(shuffled) = all.shuffles.get(&index) {
                    let transfers = shuffled.transfers(index as u16, seen);
                    let times = transfers.iter().filter_map(|transfer| transfer.tct_us).collect();
                    report_transfers(times, transfers.len(), &mut row);
                }
            }
        }
        row
    };
    scenario.workload.iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::agent::SeenFlow;
    use super::*;

    const NETWORK: &str = "[network]\ntopology = \"star\"\nhosts = 3\nrate = \"10 Mbit/s\"\n";

    fn planned(text: &str) -> Plan {
        let points =
            scenario::read("test.toml", &format!("{text}\n{NETWORK}"), &[]).expect("a good scenario");
        Plan::new(points[0].scenario.clone(), &|_| unreachable!("it names no file")).expect("a good plan")
    }

    fn listed(plan: &Plan) -> anyhow::Result<Flows> {
        Flows::new(plan, 0, &|site| Ipv4Addr::new(10, 0, 0, site.0 as u8).into())
    }

    #[test]
    fn hosts_are_told_their_parts_of_the_flows_until_the_end() {
        let workloads = r#"
            duration = "1 s"
            workload = [
                { kind = "poisson", load = 0.1, sizes = "10 kB", priority = 2 },
                { kind = "udp", pairs = [["h0", "h2"]], rate = "1 Mbit/s", start = "1 ms", priority = 0 },
            ]
        "#;
        let plan = planned(workloads);
        let flows = listed(&plan).expect("few flows");
        let outgoing: Vec<&Outgoing> = flows.tasks.values().flat_map(|task| &task.outgoing).collect();
        assert_eq!(outgoing.len(), flows.of_workload[0].len());
        assert!((20..=60).contains(&outgoing.len()), "37.5 in the mean: {}", outgoing.len());
        assert!(outgoing.iter().all(|flow| flow.start_ns < 1_000_000_000 && flow.priority == 2));
        assert!(outgoing.iter().all(|flow| flow.size_bytes == Some(10_000)));
        for (host, task) in &flows.tasks {
            let to_it = outgoing.iter().filter(|flow| flow.to == Ipv4Addr::new(10, 0, 0, *host as u8));
            assert_eq!(to_it.count(), task.incoming.len(), "host {host}");
        }
        let [source] = &flows.tasks[&0].sources[..] else { panic!("one source") };
        assert_eq!((source.start_ns, source.priority, source.flow), (1_000_000, 0, outgoing.len() as u32));
        assert_eq!(flows.tasks[&2].sinks, [source.flow]);
    }

    #[test]
    fn too_many_flows_and_too_late_ones_are_refused_and_as_many_as_fit_are_not() {
        let of = |flows: u32| {
            let workload = format!(
                "duration = \"9 s\"\nworkload = [{{ kind = \"long\", pairs = [[\"h0\", \"h1\"]], streams = {flows} }}]"
            );
            listed(&planned(&workload))
        };
        assert!(of(agent::FLOWS_MAX).is_ok());
        let two = r#"
            duration = "9 s"
            workload = [
                { kind = "long", pairs = [["h0", "h1"]], streams = 10000 },
                { kind = "long", pairs = [["h0", "h1"]] },
            ]
        "#;
        let error = listed(&planned(two)).err().expect("one too many").to_string();
        assert!(error.contains("workload[1]: more than 10000 flows"), "{error}");
        let late = r#"workload = [{ kind = "long", pairs = [["h0", "h1"]], size = "1 B", start = "600 s" }]"#;
        let error = listed(&planned(late)).err().expect("too late").to_string();
        assert!(error.contains("workload[0]: a flow begins later than"), "{error}");
    }

    #[test]
    fn flows_of_transfers_are_announced_where_they_are_sent_from() {
        let text = r#"
            [workload]
            kind = "shuffle"
            transfers.t.start = "1 s"
            transfers.t.flows = [
                { from = "h0", to = "h2", size = "10 kB" },
                { from = "h1", to = "h2", size = "20 kB", start = "5 ms" },
            ]
        "#;
        let points = scenario::read("test.toml", &format!("{NETWORK}{text}"), &[]).expect("a good scenario");
        let read = |_: &str| unreachable!("it names no file");
        let plan = Plan::with_systems(points[0].scenario.clone(), &read, &Family).expect("a good plan");
        let flows = listed(&plan).expect("few flows");
        assert_eq!(
            flows.shuffles[&0].transfers,
            [("t".to_owned(), vec![(0, ByteCount::new(10_000)), (1, ByteCount::new(20_000)),])]
        );
        let [late] = &flows.tasks[&1].outgoing[..] else { panic!("one") };
        assert_eq!((late.flow, late.start_ns, late.size_bytes), (1, 1_005_000_000, Some(20_000)));
        assert_eq!(flows.tasks[&2].incoming.len(), 2);
        let mut seen = Seen::default();
        let flow =
            |start_ns, whole_ns| SeenFlow { start_ns: Some(start_ns), whole_ns, ..SeenFlow::default() };
        seen.flows.insert(0, flow(1_000_000_000, Some(1_500_000_000)));
        seen.flows.insert(1, flow(1_005_000_000, None));
        let tct_us = |seen: &Seen| flows.shuffles[&0].transfers(0, seen)[0].tct_us;
        assert_eq!(tct_us(&seen), None, "its last flow is not whole");
        seen.flows.insert(1, flow(1_005_000_000, Some(2_250_000_000)));
        assert_eq!(tct_us(&seen), Some(1_250_000.0));
    }

    #[test]
    fn late_programs_and_lost_datagrams_speak_against_a_run() {
        let mut seen = Seen::default();
        assert!(distrust(&seen, Duration::from_us(500)).is_empty());
        (0..99).for_each(|_| seen.datagrams_late.record(1_000));
        seen.datagrams_late.record(2_000_000);
        seen.starts_late.record(400_000);
        assert!(distrust(&seen, Duration::from_us(500)).is_empty(), "one in a hundred may be late");
        seen.datagrams_late.record(2_000_000);
        seen.unread_datagrams = 3;
        let why = distrust(&seen, Duration::from_us(500));
        assert!(
            why.len() == 2 && why[0].contains("bound 500 us") && why[1].starts_with("3 datagrams"),
            "{why:?}"
        );
        assert!(distrust(&seen, Duration::from_us(300))[0].contains("flows began"));
    }
}
