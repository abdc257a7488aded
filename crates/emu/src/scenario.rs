//! Scenarios under real kernels, from the same files as in the simulator. Hosts run in network
//! namespaces, their flows use the kernel's TCP and UDP, and the simulator's ports connect them
//! under the real clock.
//!
//! The plan lists the flows, so that emulated and simulated runs start the same flows at the same
//! times. Settings that the kernel decides for itself are listed beside the results; settings that
//! the kernel cannot have are refused. A jitter of hosts exists only in the simulator, because real
//! hosts have their own jitter. A system's workload is run by the [`System`] of its kind, with that
//! system's own programs in the hosts.
//!
//! Leaves out: shared buffers; many runs, tables and files of results. Read [`run`] and
//! [`Rehearsal`] first.

mod controls;
mod dilated;
mod flows;
mod host;
pub mod programs;

use crate::dilation::{self, RTO_MIN_DEFAULT, unstretched};
use crate::{
    CircuitFigures, CircuitMark, CircuitOptions, Dilation, Emulation, EmulationHandle, EmulationOptions,
    Histogram, HostTime, LinkState, Report, Switching,
};
use anabranch_fabric::{Drop as DropReason, PortSettings};
use anabranch_sim::scenario::{Dark, Scenario, SystemWorkload, Workload};
use anabranch_sim::traffic::Start;
use anabranch_sim::{CoflowRow, Plan, WorkloadRow};
use anabranch_transport::Control;
use anabranch_units::{ByteCount, Duration, Seed, SiteId};
use flows::{Flows, rows};
use host::{DATAGRAM_BYTES_MIN, Task, monotonic_ns};
use serde::Serialize;
use std::any::Any;
use std::fmt;
use std::io::{BufRead as _, BufReader, Write as _};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

pub use dilated::{measured_dilation, packets_late_max, shortest_day};
#[doc(hidden)]
pub use host::exercise_stamp;
pub use host::{Announce, FlowObservation, HostObservations, IncastRounds, SinkObservation, run as run_host};

/// DSCP of packets that travel against a circuit if ECN is on: from the pool for experimental and
/// local use (RFC 2474, section 6).
const MARK_DSCP: u8 = 0b00_0111;

/// Reason why a scenario cannot be emulated, or why a run failed: one line for the user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScenarioError(String);

impl ScenarioError {
    /// Creates an error with this text.
    pub fn new(line: impl Into<String>) -> Self {
        Self(line.into())
    }

    fn in_program(name: &str, what: impl fmt::Display) -> Self {
        Self(format!("{name}: {what}"))
    }
}

impl fmt::Display for ScenarioError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
impl std::error::Error for ScenarioError {}

impl From<crate::EmuError> for ScenarioError {
    fn from(error: crate::EmuError) -> Self {
        Self(error.to_string())
    }
}
impl From<std::io::Error> for ScenarioError {
    fn from(error: std::io::Error) -> Self {
        Self(error.to_string())
    }
}
impl From<serde_json::Error> for ScenarioError {
    fn from(error: serde_json::Error) -> Self {
        Self(error.to_string())
    }
}

/// A system that emulated scenarios may run.
pub trait System: Sync {
    /// Name of the system in workloads: `kind = "gather"`.
    fn kind(&self) -> &'static str;
    /// Prepares `workload`, which messages call `field`, for the network of `plan`.
    ///
    /// Errors: an invalid setting, or a setting of the simulator only.
    fn rehearse(
        &self,
        workload: &SystemWorkload,
        plan: &Plan,
        field: &str,
    ) -> Result<Box<dyn Rehearsal>, ScenarioError>;
}

/// A prepared workload of a system.
pub trait Rehearsal {
    /// The flows that the hosts' own programs send for the workload, in the order of their numbers.
    fn flows(&self) -> Vec<Start> {
        Vec::new()
    }
    /// Strict priority of the flows of [`Self::flows`].
    fn priority(&self) -> u8 {
        1
    }
    /// Starts the system's programs in their hosts, for a run with this seed. The programs are
    /// ready when the call returns.
    ///
    /// Errors: the system's; a program that does not become ready.
    fn start(
        &self,
        emulation: &Emulation,
        plan: &Plan,
        seed: Seed,
    ) -> Result<Box<dyn RunningSystem>, ScenarioError>;
}

/// A system's running programs; dropping it ends them.
pub trait RunningSystem: Send {
    /// The announcement for the program at `site` before it sends flow `flow` of
    /// [`Rehearsal::flows`]; `None` if flows are not announced.
    fn announce(&self, _site: SiteId, _flow: usize) -> Option<Announce> {
        None
    }
    /// Performs the system's work other than the flows of [`Rehearsal::flows`]. Runs from the start
    /// of the run until the work is done or `time` has passed.
    ///
    /// Errors: a program that fails.
    fn work(&mut self, emulation: &Emulation, time: std::time::Duration) -> Result<(), ScenarioError>;
    /// A reason to distrust the run; called while its programs still run.
    fn distrust(&self, _: &Emulation) -> Option<String> {
        None
    }
    /// Completes `row`, which already counts the flows `numbers` of [`Rehearsal::flows`], from the
    /// hosts' observations `seen`; returns the results of coflows.
    fn report(&self, seen: &HostObservations, numbers: &[u32], row: &mut WorkloadRow) -> Vec<CoflowRow>;
}

/// Options of scenario runs.
pub struct Options<'a> {
    /// The systems that a scenario may use.
    pub systems: &'a [&'a dyn System],
    /// Builds a command that calls [`run_host`] in a separate process.
    pub host: &'a dyn Fn() -> std::io::Result<Command>,
    /// 99th percentile of lateness, in emulated time, above which a run is not trusted. `None`
    /// means 1 % of the shortest day for packets over circuits, and 1 ms otherwise.
    pub lateness_p99_max: Option<Duration>,
    /// Real time for each second of emulated time. `None` means the scenario's dilation, or no
    /// dilation.
    pub dilation: Option<Dilation>,
    /// Number of processors of each host, whose time is divided by the dilation. `None` means that
    /// programs run at the machine's full speed.
    pub host_cpus: Option<u32>,
    /// The kernel's name of the hosts' congestion control, which may be a BPF program. `None` means
    /// the scenario's congestion control.
    pub congestion_control: Option<&'a str>,
    /// Called with each emulation before its hosts start. The result is dropped after the run.
    pub started: Option<&'a dyn Fn(EmulationHandle) -> std::io::Result<Box<dyn Any>>>,
    /// Set to true to end a run early; the results are then invalid.
    pub interrupted: &'a AtomicBool,
}

/// Settings that the kernel chose because the scenario leaves them open, and the lateness of the
/// emulation.
#[derive(Clone, Debug, Serialize)]
pub struct EmulationFigures {
    /// The congestion control of TCP flows, by the kernel's name.
    pub congestion_control: String,
    /// Length of the run in emulated time.
    pub emulated_s: f64,
    /// Time dilation and circuits of the run.
    #[serde(flatten)]
    pub dilated: DilationFigures,
    /// Packets dropped at a full queue.
    pub dropped_queue_full: u64,
    /// Packets dropped for another reason.
    pub dropped_otherwise: u64,
    /// Packets marked (ECN).
    pub marked_packets: u64,
    /// 99th percentile of packets' lateness at their ports, in microseconds.
    pub lateness_us_p99: f64,
    /// 99th percentile of the lateness of flows' starts, in microseconds; `None` without TCP flows.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub start_lateness_us_p99: Option<f64>,
    /// 99th percentile of the lateness of sent datagrams, in microseconds; `None` without
    /// datagrams.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datagram_lateness_us_p99: Option<f64>,
    /// Maximum lateness of sent datagrams, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub datagram_lateness_us_max: Option<f64>,
    /// True if figures can be trusted.
    pub trusted: bool,
    /// Reasons for distrust.
    pub why: Vec<String>,
}

/// Time dilation of a run, and figures of its circuits. All times and rates are in emulated time.
#[derive(Clone, Debug, Serialize)]
pub struct DilationFigures {
    /// Real time for each second of emulated time.
    pub dilation: Dilation,
    /// Timers of the kernel that count real time.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub unstretched: Vec<String>,
    /// Limit of the hosts' processor time. `None` without a limit.
    #[serde(flatten)]
    pub host_time: Option<HostTime>,
    /// 99th percentile of packets' lateness as a share of the shortest day of circuits. `None`
    /// without circuits.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lateness_day_share: Option<f64>,
    /// Days, weeks and rates of circuits after the warm-up. `None` without circuits.
    #[serde(flatten)]
    pub circuits: Option<CircuitFigures>,
}

/// The results of a run.
#[derive(Debug)]
pub struct Run {
    /// Rows of the workloads.
    pub workloads: Vec<WorkloadRow>,
    /// Rows of the coflows.
    pub coflows: Vec<CoflowRow>,
    /// Lateness of the emulation.
    pub report: Report,
    /// Figures of the emulation beside the rows.
    pub emulated: EmulationFigures,
}

/// Checks whether runs of `plan` with `trials` trials can be emulated.
///
/// Errors: a setting without a kernel option; a feature that emulated ports lack; a workload that
/// only the simulator runs.
pub fn check(
    plan: &Plan,
    trials: u64,
    dilation: Option<Dilation>,
    systems: &[&dyn System],
) -> Result<(), ScenarioError> {
    settings(plan, dilation.unwrap_or(stated_dilation(plan)?.unwrap_or_default()))?;
    for trial in 0..trials {
        Flows::new(plan, trial, systems, &|_| std::net::Ipv4Addr::UNSPECIFIED.into())?;
    }
    Ok(())
}

/// The dilation stated in the scenario, if any.
///
/// Errors: a dilation out of range.
pub fn stated_dilation(plan: &Plan) -> Result<Option<Dilation>, ScenarioError> {
    let stated = plan.scenario().dilation.map(Dilation::try_from).transpose();
    stated.map_err(|error| ScenarioError::new(error.to_string()))
}

/// Options of an emulation of the network of `plan`, hybrid switch and TCP settings included, for
/// one trial.
///
/// Errors: a setting that this kernel does not accept, or that no emulated port supports.
pub fn emulation_options(
    plan: &Plan,
    trial: u64,
    dilation: Dilation,
) -> Result<EmulationOptions, ScenarioError> {
    let seed = Seed::new(plan.seed(trial));
    let switching = plan.network().topology().site_ids().map(|site| {
        let (next, policy) = plan.network().switching(site, seed);
        Switching { next, policy }
    });
    Ok(EmulationOptions {
        seed,
        switching: Some(switching.collect()),
        circuit: plan.network().circuit().map(|(site, settings)| {
            let mark =
                if plan.scenario().transport.ecn { CircuitMark::Dscp(MARK_DSCP) } else { CircuitMark::Ece };
            CircuitOptions { site, settings: settings.clone(), mark, schedule: plan.circuit_schedule() }
        }),
        ..settings(plan, dilation)?
    })
}

/// Runs one trial of `plan`.
///
/// Errors: see [`ScenarioError`].
pub fn run(plan: &Plan, trial: u64, options: &Options<'_>) -> Result<Run, ScenarioError> {
    let dilation = match options.dilation {
        Some(dilation) => dilation,
        None => stated_dilation(plan)?.unwrap_or_default(),
    };
    run_at(plan, trial, options, dilation, None)
}

/// Runs one trial of `plan` under `dilation`, for at most `limit` of emulated time.
fn run_at(
    plan: &Plan,
    trial: u64,
    options: &Options<'_>,
    dilation: Dilation,
    limit: Option<Duration>,
) -> Result<Run, ScenarioError> {
    let (seed, control) = (Seed::new(plan.seed(trial)), control_name(plan, options)?);
    controls::check(control)?;
    for control in plan.scenario().workload.iter().filter_map(Workload::control) {
        control.linux_name().map_or(Ok(()), controls::check)?;
    }
    let packets_late_max = dilated::packets_late_max(plan, options);
    let emulation = Emulation::start(
        plan.network().topology(),
        EmulationOptions {
            lateness_p99_max: packets_late_max,
            host_cpus: options.host_cpus,
            ..emulation_options(plan, trial, dilation)?
        },
    )?;
    let _serving = options.started.map(|started| started(emulation.handle())).transpose()?;
    let mut flows = Flows::new(plan, trial, options.systems, &|site| emulation.site_address(site))?;
    flows.set(|task| {
        task.dilation = dilation;
        control.clone_into(&mut task.congestion_control);
        task.duration_ns = limit.map_or(task.duration_ns, |limit| task.duration_ns.min(limit.as_ns()));
    });
    let mut systems = flows.start(&emulation, plan, seed)?;
    let mut hosts = Vec::new();
    for (site, task) in std::mem::take(&mut flows.tasks) {
        hosts.push(Host::start(&emulation, SiteId(site), &task, options.host)?);
    }
    for host in &mut hosts {
        host.expect("ready")?;
    }
    let begin_ns = dilated::begin_ns(plan, &emulation, dilation);
    for host in &mut hosts {
        host.tell(&begin_ns.to_string())?;
    }
    let running = systems.iter_mut().map(|(_, running)| running);
    let span =
        Span { begin_ns, dilation, warmup_ns: flows.timing.warmup_ns, end_ns: flows.timing.duration_ns };
    let (seen, circuits) = watch(plan, &emulation, &mut hosts, running, span, options.interrupted)?;
    let mut report = emulation.report()?;
    // Hosts set it on each socket, so the sites' default says nothing about the flows.
    control.clone_into(&mut report.congestion_control);
    report.why.extend(distrust(&seen, options.lateness_p99_max.unwrap_or(dilated::LATENESS_MAX)));
    report.why.extend(systems.iter().filter_map(|(_, running)| running.distrust(&emulation)));
    report.trusted = report.why.is_empty();
    let counters = emulation.counters()?;
    let lateness_us_p99 = report.lateness_us_p99;
    let day = dilated::shortest_day_of(plan);
    let emulated = EmulationFigures {
        congestion_control: control.to_owned(),
        emulated_s: Duration::from_ns(seen.over_ns).as_secs_f64(),
        dilated: DilationFigures {
            dilation,
            unstretched: unstretched(dilation, control, plan.scenario().transport.delayed_ack.is_none()),
            host_time: report.host_time,
            lateness_day_share: day.map(|day| lateness_us_p99 / (day.as_secs_f64() * 1e6)),
            circuits,
        },
        dropped_queue_full: report.drops.get(DropReason::QueueFull.name()).copied().unwrap_or(0),
        dropped_otherwise: counters
            .iter()
            .map(|c| c.dropped_loss + c.dropped_bit_error + c.dropped_link_down)
            .sum(),
        marked_packets: counters.iter().map(|c| c.marked_packets).sum(),
        lateness_us_p99,
        start_lateness_us_p99: has(&seen.starts_late).map(|late| late.quantile_us(0.99)),
        datagram_lateness_us_p99: has(&seen.datagrams_late).map(|late| late.quantile_us(0.99)),
        datagram_lateness_us_max: has(&seen.datagrams_late).map(Histogram::max_us),
        trusted: report.trusted,
        why: report.why.clone(),
    };
    let (workloads, coflows) = rows(plan, &flows, &systems, &seen);
    Ok(Run { workloads, coflows, report, emulated })
}

/// Settings of the sites' TCP and devices under a dilation.
///
/// Errors: a setting that this kernel does not accept, or that no emulated port supports.
fn settings(plan: &Plan, dilation: Dilation) -> Result<EmulationOptions, ScenarioError> {
    let Scenario { network, transport, workload, .. } = plan.scenario();
    let only = |is_set: bool, name: &str| match is_set {
        false => Ok(()),
        true => Err(ScenarioError::new(format!("{name}: only in the simulator: leave it out to emulate"))),
    };
    only(network.shared_buffer.is_some(), "network.shared_buffer")?;
    only(network.acks_first, "network.acks_first")?;
    let is_moving =
        plan.scenario().circuit.as_ref().is_some_and(|circuit| circuit.night.dark() == Dark::Moving);
    only(is_moving, "circuit.night.dark")?;
    only(transport.cwnd_max.is_some(), "transport.cwnd_max")?;
    only(transport.rack_reo_wnd_mult != 1, "transport.rack_reo_wnd_mult")?;
    only(transport.ack_every != 2, "transport.ack_every")?;
    only(transport.dctcp_gain_ppm != 62_500, "transport.dctcp_gain_ppm")?;
    only(transport.dctcp_alpha_ppm != 1_000_000, "transport.dctcp_alpha_ppm")?;
    only(transport.initial_ssthresh.is_some(), "transport.initial_ssthresh")?;
    only(transport.initial_window_segments != 10, "transport.initial_window_segments")?;
    only(!transport.handshake, "transport.handshake")?;
    let mtu = transport.mss + transport.header_bytes;
    let rto_min = dilation::rto_min(dilation, transport.rto_min).map_err(|most| {
        let rto_min = transport.rto_min;
        ScenarioError::new(format!(
            "transport.rto_min: {rto_min}: must be at most {most} under a dilation of {dilation}"
        ))
    })?;
    // The kernel's default is not set explicitly, so that kernels without the setting also work.
    let rto_min = Some(rto_min).filter(|_| transport.rto_min != RTO_MIN_DEFAULT);
    for (index, workload) in workload.iter().enumerate() {
        if matches!(workload, Workload::System(_)) && dilation != Dilation::NONE {
            return Err(ScenarioError::new(format!(
                "workload[{index}].kind: {}: its programs count real time: leave out the dilation of {dilation}",
                workload.kind()
            )));
        }
        if let Workload::Udp(udp) = workload {
            let (least, most) = (DATAGRAM_BYTES_MIN, mtu);
            if !(u64::from(least)..=u64::from(most)).contains(&udp.packet.as_u64()) {
                return Err(ScenarioError::new(format!(
                    "workload[{index}].packet: {}: must be {least} to {most} bytes to emulate: it holds headers and a stamp of \
                     {least} bytes, and the most is transport.mss and transport.header_bytes together",
                    udp.packet
                )));
            }
        }
    }
    congestion_control(plan)?;
    let flag = |name: &str, is: bool| (format!("ipv4/{name}"), if is { "1" } else { "0" }.to_owned());
    for path in plan.scenario().kernel.keys() {
        let is_plain = path.starts_with("ipv4/")
            && path.bytes().all(|b| b.is_ascii_alphanumeric() || b"/_".contains(&b));
        if !is_plain {
            return Err(ScenarioError::new(format!(
                "kernel.{path}: must be a path below /proc/sys/net, as ipv4/tcp_early_retrans"
            )));
        }
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
            // Timestamps take 12 bytes of each header, if the scenario's headers include them.
            flag("tcp_timestamps", transport.header_bytes >= 52),
        ]
        .into_iter()
        .chain(rto_min)
        .chain(kernel)
        .collect(),
        dilation,
        quick_ack: transport.delayed_ack.is_none(),
        ..EmulationOptions::default()
    })
}

/// The kernel's name of the congestion control in the hosts of a run.
fn control_name<'a>(plan: &Plan, options: &Options<'a>) -> Result<&'a str, ScenarioError> {
    options.congestion_control.map_or_else(|| congestion_control(plan), Ok)
}

/// The kernel's name of the scenario's congestion control. Hosts set it on every socket, because
/// not every machine permits every congestion control as a site's default.
///
/// Errors: a congestion control that no kernel has.
pub fn congestion_control(plan: &Plan) -> Result<&'static str, ScenarioError> {
    linux_name(plan.scenario().transport.control, "transport.control")
}

fn linux_name(control: Control, field: &str) -> Result<&'static str, ScenarioError> {
    control.linux_name().ok_or_else(|| {
        ScenarioError::new(format!(
            "{field}: Linux has none of this name; --congestion-control names one that the machine has"
        ))
    })
}

fn has(late: &Histogram) -> Option<&Histogram> {
    Some(late).filter(|late| late.total() > 0)
}

/// Reasons to distrust a run by its hosts' programs: lateness above `bound`, lost datagrams, or
/// failures.
fn distrust(seen: &HostObservations, bound: Duration) -> Vec<String> {
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

/// A host's program that performs its task.
struct Host {
    child: Child,
    lines: BufReader<ChildStdout>,
    name: String,
}

impl Host {
    fn start(
        emulation: &Emulation,
        site: SiteId,
        task: &Task,
        program: &dyn Fn() -> std::io::Result<Command>,
    ) -> Result<Self, ScenarioError> {
        let mut command = program()?;
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::inherit());
        let name = format!("site {site}");
        let mut child = emulation.spawn(site, command)?;
        let output = child.stdout.take();
        let output = output.ok_or_else(|| ScenarioError::in_program(&name, "its output is no pipe"))?;
        let mut host = Self { child, lines: BufReader::new(output), name };
        host.tell(&serde_json::to_string(task)?)?;
        Ok(host)
    }

    fn tell(&mut self, line: &str) -> Result<(), ScenarioError> {
        let told = self.child.stdin.as_mut().map(|stdin| writeln!(stdin, "{line}"));
        match told {
            Some(Ok(())) => Ok(()),
            _ => Err(ScenarioError::in_program(&self.name, "its program has ended")),
        }
    }

    fn line(&mut self) -> Result<String, ScenarioError> {
        let mut line = String::new();
        let length = self.lines.read_line(&mut line)?;
        if length == 0 {
            return Err(ScenarioError::in_program(&self.name, "its program ended early"));
        }
        Ok(line)
    }

    fn expect(&mut self, word: &str) -> Result<(), ScenarioError> {
        let line = self.line()?;
        if line.trim() != word {
            let what = format!("its program said `{}`", line.trim());
            return Err(ScenarioError::in_program(&self.name, what));
        }
        Ok(())
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        // The process may have ended already; the error is ignored.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Start of the run by the machine's clock, and conversion of emulated times.
#[derive(Copy, Clone)]
struct Span {
    begin_ns: u64,
    dilation: Dilation,
    warmup_ns: u64,
    end_ns: u64,
}

impl Span {
    /// Converts an emulated time to the machine's clock.
    const fn real_ns(self, at_ns: u64) -> u64 {
        self.begin_ns.saturating_add(self.dilation.real_ns(at_ns))
    }
}

/// Waits for the hosts' reports and the systems' work, and meanwhile changes links as the scenario
/// says. Returns the reports, and the figures of circuits after the warm-up.
fn watch<'a>(
    plan: &Plan,
    emulation: &Emulation,
    hosts: &mut [Host],
    systems: impl Iterator<Item = &'a mut Box<dyn RunningSystem>>,
    span: Span,
    interrupted: &AtomicBool,
) -> Result<(HostObservations, Option<CircuitFigures>), ScenarioError> {
    let over = AtomicBool::new(false);
    let handle = emulation.handle();
    let wait_until = |due_ns: u64| {
        while monotonic_ns() < due_ns {
            if over.load(Ordering::Relaxed) {
                return false;
            }
            let left = due_ns.saturating_sub(monotonic_ns()).min(20_000_000);
            std::thread::sleep(std::time::Duration::from_nanos(left));
        }
        true
    };
    std::thread::scope(|scope| {
        let changing = scope.spawn(|| {
            for (at, link, port) in plan.changes() {
                if !wait_until(span.real_ns(at.as_ns())) {
                    return Ok(());
                }
                let PortSettings { up, rate, delay, loss_ppm, loss_burst, .. } = *port;
                let state = LinkState { up, rate, delay, loss_ppm, loss_burst };
                handle.set_link(*link, state)?;
            }
            Ok::<_, crate::EmuError>(())
        });
        let counting = scope.spawn(|| {
            wait_until(span.real_ns(span.warmup_ns));
            handle.take_circuits()?;
            wait_until(span.real_ns(span.end_ns));
            handle.take_circuits()
        });
        let time = std::time::Duration::from_nanos(span.dilation.real_ns(span.end_ns));
        let work = |running: &'a mut Box<dyn RunningSystem>| {
            scope
                .spawn(move || if wait_until(span.begin_ns) { running.work(emulation, time) } else { Ok(()) })
        };
        let working: Vec<_> = systems.map(work).collect();
        // The hosts' programs end by themselves in time. Ctrl-C reaches these programs as well as
        // this process, and closes their output.
        let listen = || {
            hosts.iter_mut().try_for_each(|host| host.expect("done"))?;
            let done = working.into_iter().map(|work| work.join().expect("it does not panic"));
            done.collect::<Result<Vec<()>, _>>()?;
            hosts.iter_mut().try_for_each(|host| host.tell("all are"))?;
            let mut seen = HostObservations::default();
            for host in hosts.iter_mut() {
                seen.merge(serde_json::from_str(&host.line()?)?);
            }
            Ok(seen)
        };
        let seen: Result<HostObservations, ScenarioError> = listen();
        over.store(true, Ordering::Relaxed);
        changing.join().expect("it does not panic")?;
        let circuits = counting.join().expect("it does not panic")?;
        match seen {
            Err(_) if interrupted.load(Ordering::Relaxed) => Ok((HostObservations::default(), circuits)),
            seen => Ok((seen?, circuits)),
        }
    })
}

#[cfg(test)]
mod tests;
