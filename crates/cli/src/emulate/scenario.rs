//! A scenario under real kernels: the same file as `simulate`, its hosts in network namespaces, its flows over the kernel's
//! TCP, the same ports in between under the real clock.
//!
//! What the kernel decides for itself is said beside the results, and what cannot be set is refused. Leaves out: Poisson and
//! UDP workloads, marks, shared buffers, paths other than the shortest. Read [`run`] first.

use super::Args;
use super::agent::{Ask, Incoming, Outgoing, Seen, Serve, Task, monotonic_ns};
use crate::run_dir::RunDir;
use crate::simulate::{keyed_rows, table};
use anabranch_emu::{Emulation, EmulationOptions, Report};
use anabranch_sim::scenario::{self, Point, Scenario, Spread, Workload};
use anabranch_sim::{Plan, PlanError, Times, WorkloadRow};
use anabranch_transport::Control;
use anabranch_units::{BitRate, ByteCount, Duration, LinkId, Seed};
use anyhow::{Context as _, bail, ensure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::io::{BufRead as _, BufReader, Write as _};
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// The first port that flows are taken in at; each flow has its own.
const PORT_FIRST: u16 = 20_000;
/// Most flows of a run: each is two threads.
const FLOWS_MAX: usize = 500;
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
    lateness_us_p99: f64,
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
    let mut done: Vec<table::Line> = Vec::new();
    let mut trusted = true;
    for (index, point) in points.iter().enumerate() {
        for trial in 0..args.trials {
            if !quiet {
                let swept: String =
                    point.swept.iter().map(|(key, value)| format!(" {key} = {value}")).collect();
                eprintln!("emulating{swept}, trial {} of {}", trial + 1, args.trials);
            }
            let plan = plan(args, point)?;
            let (rows, report, emulated) = emulate(args, &plan, trial, &interrupted)?;
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
                    println!("{}", serde_json::Value::Object(row.clone()));
                }
                if let Some(record) = &mut record {
                    record.row(&row)?;
                }
            }
            if let Some(record) = &mut record {
                record.emulation(&format!("point {index}, trial {trial}"), &report)?;
            }
            let drops = emulated.dropped_queue_full + emulated.dropped_otherwise;
            done.push(table::Line { point: index, rows, drops });
        }
    }
    if !args.json {
        println!("{}", table::of(&points, &done));
    }
    if let Some(record) = record {
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
    }
    Ok(points)
}

/// Files that a scenario names lie beside it.
fn plan(args: &Args, point: &Point) -> Result<Plan, PlanError> {
    let folder = Path::new(&args.topology).parent().map(Path::to_path_buf).unwrap_or_default();
    Plan::new(point.scenario.clone(), &|name| std::fs::read_to_string(folder.join(name)))
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
    only(network.mark.is_some(), "network.mark")?;
    only(network.queue_packets.is_some(), "network.queue_packets")?;
    only(network.shared_buffer.is_some(), "network.shared_buffer")?;
    only(network.bit_errors_ppt > 0, "network.bit_errors_ppt")?;
    only(network.spread != Spread::Ecmp, "network.spread")?;
    only(transport.cwnd_max.is_some(), "transport.cwnd_max")?;
    only(transport.initial_ssthresh.is_some(), "transport.initial_ssthresh")?;
    only(transport.initial_window_segments != 10, "transport.initial_window_segments")?;
    only(transport.rto_min != Duration::from_ms(200), "transport.rto_min")?;
    only(!transport.handshake, "transport.handshake")?;
    for (index, workload) in workload.iter().enumerate() {
        ensure!(
            matches!(workload, Workload::Long(_) | Workload::Incast(_) | Workload::Trace(_)),
            "workload[{index}].kind: {}: only long, incast and trace can be emulated",
            workload.kind()
        );
        only(workload.priority() != Some(1), &format!("workload[{index}].priority"))?;
    }
    congestion_control(plan)?;
    let flag = |name: &str, is: bool| (format!("ipv4/{name}"), if is { "1" } else { "0" }.to_owned());
    for path in plan.scenario().kernel.keys() {
        let is_plain = path.starts_with("ipv4/")
            && path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/_".contains(&b));
        ensure!(is_plain, "kernel.{path}: must be a path below /proc/sys/net, as ipv4/tcp_early_retrans");
    }
    let kernel = plan.scenario().kernel.iter().map(|(path, value)| (path.clone(), value.clone()));
    Ok(EmulationOptions {
        mtu: transport.mss + transport.header_bytes,
        tcp_buffer_bytes_max: Some(transport.receive_buffer.max(ByteCount::kib(64))),
        settings: vec![
            flag("tcp_sack", transport.sack),
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
        _ => {
            bail!("transport.control: only newreno and cubic can be emulated, as the kernel's reno and cubic")
        }
    }
}

/// One run: the rows of its workloads, and how far to trust them.
fn emulate(
    args: &Args,
    plan: &Plan,
    trial: u64,
    interrupted: &AtomicBool,
) -> anyhow::Result<(Vec<WorkloadRow>, Report, Emulated)> {
    let seed = Seed::new(plan.seed(trial));
    let mut topology = plan.network().topology().clone();
    for link in topology.link_ids() {
        let port = *plan.network().port_settings(link);
        let properties = topology.link_properties_mut(link);
        (properties.queue, properties.loss_ppm) = (Some(port.queue_bytes_max), port.loss_ppm);
    }
    let options = EmulationOptions { seed, lateness_p99_max: args.lateness_bound, ..settings(plan)? };
    let emulation = Emulation::start(&topology, options)?;
    let flows = Flows::new(plan, trial, &emulation)?;
    let mut agents = Vec::new();
    for (site, task) in flows.tasks {
        agents.push(Agent::start(&emulation, anabranch_units::SiteId(site), &task)?);
    }
    for agent in &mut agents {
        agent.expect("ready")?;
    }
    let begin_ns = monotonic_ns() + LEAD_NS;
    for agent in &mut agents {
        agent.tell(&begin_ns.to_string())?;
    }
    let ended = watch(plan, &emulation, &mut agents, begin_ns, interrupted)?;
    let report = emulation.report()?;
    let counters = emulation.counters()?;
    let emulated = Emulated {
        congestion_control: congestion_control(plan)?.to_owned(),
        dropped_queue_full: counters.iter().map(|c| c.dropped_queue_full).sum(),
        dropped_otherwise: counters.iter().map(|c| c.dropped_loss + c.dropped_link_down).sum(),
        lateness_us_p99: report.lateness_us_p99,
        trusted: report.trusted,
        why: report.why.clone(),
    };
    let rows = rows(plan, &flows.of_workload, &ended);
    Ok((rows, report, emulated))
}

/// Which flows there are, and what each site has to do for them.
struct Flows {
    /// By workload: the numbers of its flows, and their sizes.
    of_workload: Vec<Vec<(u32, Option<ByteCount>)>>,
    /// By site.
    tasks: BTreeMap<u16, Task>,
}

impl Flows {
    fn new(plan: &Plan, trial: u64, emulation: &Emulation) -> anyhow::Result<Self> {
        let (scenario, seed) = (plan.scenario(), Seed::new(plan.seed(trial)));
        let mut new = Self { of_workload: Vec::new(), tasks: BTreeMap::new() };
        let site = |host: u16| plan.network().hosts()[usize::from(host)];
        let mut flow = 0;
        let ns = |duration: Duration| duration.as_ns();
        let timing = Task {
            duration_ns: ns(scenario.duration.unwrap_or(TIME_MAX)),
            warmup_ns: ns(scenario.warmup),
            congestion_control: congestion_control(plan)?.to_owned(),
            ..Task::default()
        };
        let take = |flow: &mut u32| {
            *flow += 1;
            ensure!(*flow as usize <= FLOWS_MAX, "more than {FLOWS_MAX} flows: too many to emulate");
            Ok((*flow - 1, PORT_FIRST + (*flow - 1) as u16))
        };
        for (index, workload) in scenario.workload.iter().enumerate() {
            let mut numbers = Vec::new();
            if let (Workload::Incast(incast), Some((client, servers))) = (workload, plan.incast_hosts(index))
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
                    first_flow: flow,
                    ..Ask::default()
                };
                for server in servers {
                    let (number, port) = take(&mut flow)?;
                    numbers.push((number, None));
                    let serve = Serve { port, request_bytes, block_bytes };
                    new.tasks.entry(site(*server).0).or_insert_with(|| timing.clone()).serve.push(serve);
                    ask.servers.push((emulation.site_address(site(*server)), port));
                }
                new.tasks.entry(site(client).0).or_insert_with(|| timing.clone()).ask.push(ask);
            } else {
                for start in plan.starts(seed, index).context("a workload that lists its flows")? {
                    let (number, port) = take(&mut flow)?;
                    numbers.push((number, start.size));
                    let size_bytes = start.size.map(ByteCount::as_u64);
                    let (src, dst) = (site(start.src), site(start.dst));
                    let incoming = Incoming { flow: number, port, size_bytes };
                    new.tasks.entry(dst.0).or_insert_with(|| timing.clone()).incoming.push(incoming);
                    let to = (emulation.site_address(dst), port);
                    let outgoing = Outgoing { flow: number, to, start_ns: start.at.as_ns(), size_bytes };
                    new.tasks.entry(src.0).or_insert_with(|| timing.clone()).outgoing.push(outgoing);
                }
            }
            new.of_workload.push(numbers);
        }
        Ok(new)
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
) -> anyhow::Result<Vec<Seen>> {
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
        let seen: anyhow::Result<Vec<Seen>> =
            agents.iter_mut().map(|agent| Ok(serde_json::from_str(&agent.line()?)?)).collect();
        over.store(true, Ordering::Relaxed);
        changing.join().expect("it does not panic")?;
        match seen {
            Err(_) if interrupted.load(Ordering::Relaxed) => Ok(Vec::new()),
            seen => seen,
        }
    })
}

/// What the workloads got, by what the hosts saw.
fn rows(plan: &Plan, of_workload: &[Vec<(u32, Option<ByteCount>)>], seen: &[Seen]) -> Vec<WorkloadRow> {
    let scenario = plan.scenario();
    let us = |ns: u64| ns as f64 / 1e3;
    let over_ns = seen.iter().map(|s| s.over_ns).max().unwrap_or_default();
    let measured = Duration::from_ns(over_ns.saturating_sub(scenario.warmup.as_ns()));
    let mbps = |bytes| BitRate::average(ByteCount::new(bytes), measured).map(BitRate::as_mbps_f64);
    let one = |(index, workload): (usize, &Workload)| {
        let flows = &of_workload[index];
        let of = |number: u32| seen.iter().flat_map(|s| &s.flows).find(|f| f.flow == number);
        let mut row = WorkloadRow {
            workload: workload.kind().to_owned(),
            flows: flows.len() as u64,
            ..WorkloadRow::default()
        };
        if let Workload::Incast(_) = workload {
            let first = flows.first().map(|(number, _)| *number);
            let asked = seen.iter().flat_map(|s| &s.asked).find(|a| Some(a.first_flow) == first);
            if let Some(asked) = asked {
                let times = asked.rounds_ns.iter().map(|(from, to)| us(to - from)).collect();
                row.rounds(times, asked.round_bytes);
            }
            return row;
        }
        let bytes = |number: u32| of(number).map_or(0, |f| f.bytes - f.warmup_bytes);
        row.goodput_mbps = mbps(flows.iter().map(|(number, _)| bytes(*number)).sum());
        if flows.iter().all(|(_, size)| size.is_none()) {
            row.share(flows.iter().filter_map(|(number, _)| mbps(bytes(*number))).collect());
        } else {
            let whole = flows.iter().filter_map(|(number, size)| {
                let seen = of(*number)?;
                Some((size.as_ref()?.as_u64(), us(seen.whole_ns?.saturating_sub(seen.start_ns?))))
            });
            row.complete(&Times(whole.collect()));
        }
        row
    };
    scenario.workload.iter().enumerate().map(one).collect()
}
