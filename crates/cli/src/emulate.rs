//! `anabranch emulate TOPOLOGY -- CMD`: any program on an emulated network, with a report on how
//! far the run can be trusted.
//!
//! The command builds the network, starts the programs of `--run`, runs CMD in a site, and ends all
//! programs when CMD ends. CMD inherits input and output, and `anabranch` exits with the exit code
//! of CMD. The output of `--run` programs is written to stderr, each line with its site. Leaves
//! out: the programs themselves. Read [`Args`] first, then [`run`].

mod announcements;
mod outcome;
mod scenario;

pub(crate) use scenario::host as host_command;

use crate::exit::{self, OrUsage as _};
use crate::run_dir::RunDir;
use anabranch_emu::{
    Change, Dilation, EmuError, Emulation, EmulationOptions, Isolation, Loss, SiteEnvironment,
};
use anabranch_graph::{Site, Topology};
use anabranch_units::text::printable;
use anabranch_units::{BitRate, ByteCount, Duration, Seed, SiteId};
use anyhow::Context as _;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use std::ffi::OsString;
use std::io::{BufRead as _, IsTerminal as _, Read, Write as _};
use std::os::unix::process::{CommandExt as _, ExitStatusExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration as StdDuration, Instant};
use tokio::signal::unix::{SignalKind, signal};

/// Text below the options in `--help`.
const HELP: &str = "In CMD and --run, {@SITE} stands for a site's address. Programs also find in their environment:
  ANABRANCH_SITE, ANABRANCH_ADDRESS   the site they run in
  ANABRANCH_ADDRESS_<SITE>            every site's address; names in capitals, _ for all but letters and digits
  ANABRANCH_NETNS_<SITE>              for `nsenter --net=PATH CMD`, to run something in another site
  ANABRANCH_DILATION                  real time for each second of the network
  ANABRANCH_SHUFFLE_SOCKET            where to announce demand to circuits that follow it
  ANABRANCH_SITES                     all of this as JSON, and the address of each link's far end

Exit code: that of CMD; 128 and the signal's number if one ended it; 124 if --duration did; 126 or 127 if it could not
be started; 130 after Ctrl-C; 1 if the network could not be built; 2 for wrong usage; 6 with --strict.

Examples:
  anabranch emulate b4 --rate 10Mbit/s --site 2 -- ping -c 3 '{@12}'
  anabranch emulate internet2 --run 'chicago=iperf3 -s' -- iperf3 -c '{@chicago}'
  anabranch emulate internet2 --loss 0.1% --at '2s link 0-2 down' --at '5s link 0-2 up' -- ./my-test
  anabranch emulate butterfly         (a shell in the first site)
  anabranch emulate scenario.toml --set network.rate='50 Mbit/s'
  anabranch emulate circuit.toml --run '16=iperf3 -s' -- iperf3 -c '{@16}'   (a command in place of the scenario's flows)";

/// Runs one host of an emulated scenario, for the command that started this process.
///
/// Errors: see [`anabranch_emu::scenario::run_host`].
pub(crate) fn host() -> anyhow::Result<ExitCode> {
    anabranch_emu::scenario::run_host()?;
    Ok(ExitCode::SUCCESS)
}

/// The network, and the programs to run on it.
#[derive(clap::Args)]
#[command(after_help = HELP)]
pub struct Args {
    /// The network: a built-in topology (`anabranch topologies` lists them), or a .toml, .graphml,
    /// .gml or .xml file; or a scenario, as
    /// `simulate` takes it.
    #[arg(value_name = "TOPOLOGY|SCENARIO")]
    topology: String,
    /// For a scenario: a setting that replaces the file's, such as network.rate="10 Gbit/s".
    /// Repeatable.
    #[arg(long = "set", value_name = "KEY=VALUE")]
    sets: Vec<String>,
    /// For a scenario: runs of each combination of swept settings.
    #[arg(long, value_name = "COUNT", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=1_000))]
    trials: u64,
    /// Rate of links without one in the topology. Without: 10 Mbit/s. Two processors carry about 26
    /// links of 20 Mbit/s.
    #[arg(long, value_name = "RATE")]
    rate: Option<BitRate>,
    /// The site in which CMD runs, by name or number. Without: the first that is no switch.
    #[arg(long, value_name = "SITE")]
    site: Option<String>,
    /// A program to run in a site besides CMD, as a line for `sh`. It starts before CMD and is
    /// stopped after it. Repeatable.
    #[arg(long = "run", value_name = "SITE=CMD")]
    runs: Vec<String>,
    /// Time between the start of the --run programs and the start of CMD.
    #[arg(long, value_name = "TIME", default_value = "300 ms")]
    settle: Duration,
    /// A change of links at a time after the start of CMD: `2s link A-B down` (or `up`, `rate R`,
    /// `delay T`, `loss P`, `loss P burst N`). A-B means both directions, A>B one, `all` every
    /// link. Repeatable.
    #[arg(long = "at", value_name = "TIME link LINK CHANGE")]
    changes: Vec<String>,
    /// Random loss on every link, such as `0.1%` or `1000ppm`, instead of the topology's; `0.1%
    /// burst 8` for bursts of 8 packets on average.
    #[arg(long, value_name = "SHARE")]
    loss: Option<Loss>,
    /// Maximum queue before each link, for each priority, such as "64 KiB", instead of the
    /// topology's.
    #[arg(long, value_name = "SIZE")]
    queue: Option<ByteCount>,
    #[command(flatten)]
    kernel: Kernel,
    /// Lateness bound: the run is not trusted if the 99th percentile of its lateness exceeds it.
    /// Lateness is the delay of packets, and of the starts of a scenario's flows and datagrams,
    /// behind their due time. Without: 1 ms, and for packets over circuits 1 % of the shortest day.
    #[arg(long, value_name = "TIME")]
    lateness_bound: Option<Duration>,
    /// Exit with 6 if the run is not trusted although CMD succeeded.
    #[arg(long)]
    strict: bool,
    /// End CMD after this long, with exit code 124.
    #[arg(long, value_name = "TIME")]
    duration: Option<Duration>,
    /// Seed of the random losses of a topology. Without: 1. A scenario has its own.
    #[arg(long)]
    seed: Option<u64>,
    /// Create the sites in a user namespace even if this user could create them without one.
    #[arg(long)]
    user_namespace: bool,
    /// Write the sites' addresses and names to this file, in the format of `/etc/hosts`.
    #[arg(long, value_name = "FILE")]
    hosts: Option<PathBuf>,
    /// Print the report as one JSON object, after CMD's own output.
    #[arg(long)]
    json: bool,
    /// Write the report as JSON to this file.
    #[arg(long, value_name = "FILE")]
    report: Option<PathBuf>,
    /// Create a run directory: a row for each link, the arguments, commit, machine and lateness.
    /// The folder must not exist.
    #[arg(long, value_name = "DIR")]
    record: Option<PathBuf>,
    /// The program to run and its arguments. Without: a shell, if this is a terminal.
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

/// Kernels and clocks of the sites.
#[derive(clap::Args)]
struct Kernel {
    /// For a topology: maximum size of an IP packet in bytes. A larger one carries more data for the
    /// same work. Without: 1500. A scenario has transport.mss and transport.header_bytes.
    #[arg(long, value_name = "BYTES")]
    mtu: Option<u32>,
    /// TCP congestion control in the sites, by the kernel's name (`anabranch doctor` lists them).
    /// Without: the kernel's default, or the scenario's.
    #[arg(long, value_name = "NAME")]
    congestion_control: Option<String>,
    /// Maximum buffer of a TCP socket in the sites in each direction, such as "4 MiB". Without: the
    /// kernel's default, or the scenario's.
    #[arg(long, value_name = "SIZE")]
    tcp_buffer: Option<ByteCount>,
    /// Real time for each second of the network, a whole number from 1 to 1024. Rates and times of
    /// reports are the network's. Without: the scenario's, or the smallest at which this machine
    /// carries its circuits on time, or 1.
    #[arg(long, value_name = "FACTOR")]
    dilation: Option<Dilation>,
    /// Number of processors of each host, whose time is divided by the dilation; needs root and
    /// control groups. Without: programs run at the machine's full speed.
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u32).range(1..=1024))]
    host_cpus: Option<u32>,
    /// A library that CMD, the programs of --run and the hosts of a scenario load before all others
    /// (LD_PRELOAD), as one that dilates their clocks, or one that announces what they send.
    /// Repeatable.
    #[arg(long, value_name = "FILE")]
    preload: Vec<PathBuf>,
}

/// The checked arguments.
struct Job {
    topology: Topology,
    site: SiteId,
    /// Site, and command line as the user wrote it, of each program of `--run`.
    runs: Vec<(SiteId, String)>,
    changes: Vec<Change>,
    /// Libraries that programs load before all other libraries.
    preload: Vec<PathBuf>,
    options: EmulationOptions,
}

/// A program of `--run`.
struct Background {
    site: SiteId,
    line: String,
    child: Child,
    ended: Option<ExitStatus>,
}

/// Reason for the end of the run, other than the end of the command.
#[derive(Copy, Clone, PartialEq, Eq)]
enum Cut {
    None,
    Duration,
    Signal(i32),
}

/// Rate of links for which neither the topology nor the user states a rate.
const DEFAULT_RATE: BitRate = BitRate::mbps(10);

/// Time between a request to end and a kill of a program.
const GRACE: StdDuration = StdDuration::from_secs(2);

/// Runs the command. `quiet` and `verbose` come from the command line.
///
/// Errors: a one-line message for the user.
pub fn run(args: &Args, quiet: bool, verbose: u8) -> anyhow::Result<ExitCode> {
    let has_programs = !args.command.is_empty() || !args.runs.is_empty();
    if scenario::is_scenario(&args.topology) && !has_programs {
        return scenario::run(args, quiet);
    }
    let job = check(args, quiet).or_usage()?;
    let topology = &job.topology;
    if let Some(path) = &args.report {
        // Checked now, because a failure after the run would lose its results.
        std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    }
    let record = args.record.as_deref().map(RunDir::claim).transpose()?;
    let emulation = match Emulation::start(topology, job.options.clone()) {
        Err(error @ (EmuError::Size { .. } | EmuError::Option { .. } | EmuError::Link { .. })) => {
            return Err(exit::usage(error));
        }
        started => started?,
    };
    // Created after the start, because the emulation's helper forks while the process has a single
    // thread.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let follows_demand = job.options.circuit.as_ref().is_some_and(|circuit| circuit.schedule.is_some());
    let announcements = follows_demand.then(announcements::Announcements::new).transpose()?;
    let _serving = announcements.as_ref().map(|place| place.serve(emulation.handle())).transpose()?;
    let surroundings = SiteEnvironment::new(topology, &emulation)?
        .with_preload(job.preload.clone())
        .with_variables(announcements.iter().flat_map(|place| place.variables()));
    if let Some(path) = &args.hosts {
        let lines =
            topology.site_ids().map(|s| format!("{} {}\n", emulation.site_address(s), topology.site(s).name));
        std::fs::write(path, lines.collect::<String>())
            .with_context(|| format!("cannot write {}", path.display()))?;
    }
    let ended = runtime.block_on(
        ScheduledRun { args, job: &job, emulation: &emulation, surroundings: &surroundings, quiet }.conduct(),
    );
    // A pending wait for a program ends with the emulation, below.
    runtime.shutdown_background();
    let ended = ended?;
    let outcome = outcome::Outcome {
        topology,
        site: job.site,
        options: &job.options,
        code: ended.code,
        seconds: ended.seconds,
        runs: ended.backgrounds.iter().map(|b| (b.site, b.line.as_str(), b.ended)).collect(),
        changes: &job.changes,
        report: emulation.report()?,
        links: emulation.counters()?,
        circuits: emulation.take_circuits()?,
    };
    drop(emulation);
    if let Some(path) = &args.report {
        let text = serde_json::to_string_pretty(&outcome.json()?)?;
        std::fs::write(path, text + "\n").with_context(|| format!("cannot write {}", path.display()))?;
    }
    if let Some(mut record) = record {
        let json = outcome.json()?;
        for link in json["links"].as_array().into_iter().flatten() {
            record.row(link)?;
        }
        record.emulation(topology.name(), &outcome.report)?;
        record.write("topology.toml", anabranch_graph::file::toml::write(topology))?;
        let (command, mut config) = crate::arguments();
        config["rate"] = args.rate.unwrap_or(DEFAULT_RATE).to_string().into();
        record.finish(&command, config, Some(job.options.seed))?;
    }
    if args.json {
        outln!("{}", serde_json::to_string(&outcome.json()?)?);
    }
    if !quiet && !ended.stillborn {
        crate::output::write_error(&outcome.text(verbose));
    }
    let distrusted = args.strict && !outcome.report.trusted && ended.code == 0;
    Ok(ExitCode::from(if distrusted { exit::UNTRUSTED } else { ended.code }))
}

/// Loads the topology, and the options of its emulation.
fn network(args: &Args) -> anyhow::Result<(Topology, EmulationOptions)> {
    ensure_usage!(
        args.sets.is_empty() && args.trials == 1,
        "--set and --trials are for scenarios: {} is a topology",
        args.topology
    );
    let mut topology = crate::network::load(&args.topology, args.rate.unwrap_or(DEFAULT_RATE))?;
    if let Some(rate) = args.rate
        && topology.links().iter().all(|link| link.properties.capacity != rate)
    {
        tracing::warn!("--rate {rate}: changes nothing: each link of {} has its own rate", args.topology);
    }
    for link in topology.link_ids() {
        let properties = topology.link_properties_mut(link);
        if let Some(loss) = args.loss {
            properties.loss_ppm = loss.ppm;
            properties.loss_burst = loss.burst.unwrap_or(properties.loss_burst);
        }
        if args.queue.is_some() {
            properties.queue = args.queue;
        }
    }
    let (kernel, default) = (&args.kernel, EmulationOptions::default());
    let mtu = kernel.mtu.unwrap_or(default.mtu);
    if let Some(queue) = args.queue.filter(|queue| queue.as_u64() < mtu.into()) {
        bail_usage!("--queue {queue}: must hold at least a packet of --mtu, {mtu} B");
    }
    let options = EmulationOptions {
        mtu,
        congestion_control: kernel.congestion_control.clone(),
        tcp_buffer_bytes_max: kernel.tcp_buffer,
        dilation: kernel.dilation.unwrap_or_default(),
        host_cpus: kernel.host_cpus,
        seed: Seed::new(args.seed.unwrap_or(1)),
        lateness_p99_max: args.lateness_bound.unwrap_or(default.lateness_p99_max),
        ..default
    };
    Ok((topology, options))
}

/// Returns the absolute paths of the libraries to preload. Refuses a missing library, and a program
/// whose time a library cannot stretch, because it would run at the wrong speed without a warning.
fn preload(args: &Args) -> anyhow::Result<Vec<PathBuf>> {
    let path = |library: &PathBuf| {
        let path = library.canonicalize().with_context(|| format!("--preload {}", library.display()))?;
        if stretches_time(&path)
            && let Some(program) = args.command.first()
        {
            anabranch_dilate::check_program(program.as_ref())?;
        }
        Ok(path)
    };
    args.kernel.preload.iter().map(path).collect()
}

/// Returns true if a library to preload stretches the time of programs.
fn stretches_time(library: &Path) -> bool {
    library.file_name() == Some(anabranch_dilate::LIBRARY.as_ref())
}

fn check(args: &Args, quiet: bool) -> anyhow::Result<Job> {
    let preload = preload(args)?;
    let is_scenario = scenario::is_scenario(&args.topology);
    let (topology, options) = if is_scenario { scenario::network(args, quiet)? } else { network(args)? };
    let first = topology.site_ids().find(|site| !topology.site(*site).is_switch).unwrap_or(SiteId(0));
    let site = args.site.as_deref().map_or(Ok(first), |name| topology.find_site(name))?;
    host_only(&topology, site).context("--site")?;
    let runs = args
        .runs
        .iter()
        .map(|text| {
            let (name, line) =
                text.split_once('=').with_context(|| format!("--run `{text}`: write it as SITE=CMD"))?;
            let site = topology.find_site(name).with_context(|| format!("--run `{text}`"))?;
            host_only(&topology, site).with_context(|| format!("--run `{text}`"))?;
            ensure_usage!(!line.trim().is_empty(), "--run `{text}`: no command after the `=`");
            Ok((site, line.to_owned()))
        })
        .collect::<anyhow::Result<Vec<_>>>()?;
    let change = |text: &String| Change::parse(text, &topology).with_context(|| format!("--at `{text}`"));
    let mut changes = args.changes.iter().map(change).collect::<anyhow::Result<Vec<_>>>()?;
    changes.sort_by_key(|c| c.at);
    for text in args.command.iter().filter_map(|w| w.to_str()).chain(runs.iter().map(|r| r.1.as_str())) {
        addresses(text, &topology, |_| String::new())?;
    }
    if args.command.is_empty()
        && runs.is_empty()
        && args.duration.is_none()
        && !std::io::stdin().is_terminal()
    {
        bail_usage!(
            "no command to run: add one after `--`, as in `anabranch emulate {} -- ping -c 1 '{{@1}}'`",
            args.topology
        );
    }
    let isolation = args.user_namespace.then_some(Isolation::UserNamespace);
    let options = EmulationOptions { isolation, ..options };
    Ok(Job { topology, site, runs, changes, preload, options })
}

/// Refuses a switch as the site of a program.
fn host_only(topology: &Topology, site: SiteId) -> anyhow::Result<()> {
    // A topology without sites is refused later, with its limits.
    match topology.sites().get(site.index()) {
        Some(Site { name, is_switch: true, .. }) => {
            bail_usage!("site `{}` is a switch, where no program runs: name a host", printable(name))
        }
        _ => Ok(()),
    }
}

/// Replaces every `{@SITE}` in `text`.
///
/// Errors: a site that is not in the topology.
fn addresses(text: &str, topology: &Topology, address: impl Fn(SiteId) -> String) -> anyhow::Result<String> {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("{@") {
        let Some((name, after)) = after.split_once('}') else { break };
        let site = topology.find_site(name).with_context(|| format!("`{{@{name}}}`"))?;
        out.push_str(before);
        out.push_str(&address(site));
        rest = after;
    }
    out.push_str(rest);
    Ok(out)
}

struct RunEnd {
    code: u8,
    /// True if the command could not be started.
    stillborn: bool,
    seconds: f64,
    backgrounds: Vec<Background>,
}

/// Signals that end a run. While this value receives them, they do not end the process.
struct Signals([(i32, tokio::signal::unix::Signal); 3]);

impl Signals {
    fn new() -> std::io::Result<Self> {
        let of = |kind: SignalKind| signal(kind).map(|signal| (kind.as_raw_value(), signal));
        Ok(Self([of(SignalKind::interrupt())?, of(SignalKind::terminate())?, of(SignalKind::hangup())?]))
    }

    /// Waits for the next signal. Returns its number.
    async fn next(&mut self) -> i32 {
        let [a, b, c] = &mut self.0;
        tokio::select! { _ = a.1.recv() => a.0, _ = b.1.recv() => b.0, _ = c.1.recv() => c.0 }
    }
}

/// A running network, with all scheduled changes.
struct ScheduledRun<'a> {
    args: &'a Args,
    job: &'a Job,
    emulation: &'a Emulation,
    surroundings: &'a SiteEnvironment,
    quiet: bool,
}

impl ScheduledRun<'_> {
    async fn conduct(&self) -> anyhow::Result<RunEnd> {
        let topology = &self.job.topology;
        let mut signals = Signals::new()?;
        let mut backgrounds = self.start_backgrounds()?;
        let mut cut = Cut::None;
        if !backgrounds.is_empty() {
            tokio::select! {
                () = tokio::time::sleep(self.args.settle.to_std()) => {}
                n = signals.next() => cut = Cut::Signal(n),
            }
            check_backgrounds(topology, &mut backgrounds);
        }
        let begun = Instant::now();
        let (mut status, mut running) = (None, false);
        if cut == Cut::None {
            let child = match self.command()? {
                None => None,
                Some(command) => match self.emulation.spawn(self.job.site, command) {
                    Ok(child) => Some(child),
                    Err(EmuError::Spawn { program, error, .. }) => {
                        errln!("anabranch: cannot start `{program}`: {error}");
                        let code = if error.kind() == std::io::ErrorKind::NotFound { 127 } else { 126 };
                        stop_backgrounds(&mut backgrounds).await;
                        return Ok(RunEnd { code, stillborn: true, seconds: 0.0, backgrounds });
                    }
                    Err(error) => return Err(error.into()),
                },
            };
            running = child.is_some();
            (status, cut) = self.watch(child, begun, &mut signals).await?;
        }
        let seconds = self.job.options.dilation.emulated(begun.elapsed()).as_secs_f64();
        check_backgrounds(topology, &mut backgrounds);
        stop_backgrounds(&mut backgrounds).await;
        let code = match (cut, status) {
            (Cut::None, Some(status)) => exit_code(status),
            (Cut::Duration, _) if running => 124,
            (Cut::Signal(n), _) => 128 + n as u8,
            _ => 0,
        };
        Ok(RunEnd { code, stillborn: false, seconds, backgrounds })
    }

    /// Replaces `{@SITE}` in `text` by addresses.
    fn fill(&self, text: &str) -> anyhow::Result<String> {
        addresses(text, &self.job.topology, |s| self.emulation.site_address(s).to_string())
    }

    fn start_backgrounds(&self) -> anyhow::Result<Vec<Background>> {
        let start = |(site, line): &(SiteId, String)| {
            let mut command = Command::new("sh");
            // The program has a separate process group. Ctrl-C on the terminal then reaches only
            // CMD, and the kill at the end reaches all processes below `sh`.
            command.arg("-c").arg(self.fill(line)?).process_group(0);
            command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
            self.surroundings.give(&mut command, *site);
            let mut child = self.emulation.spawn(*site, command)?;
            let name = &self.job.topology.site(*site).name;
            if let Some(out) = child.stdout.take() {
                relay_lines(name, out, self.quiet);
            }
            if let Some(err) = child.stderr.take() {
                relay_lines(name, err, false);
            }
            Ok(Background { site: *site, line: line.clone(), child, ended: None })
        };
        self.job.runs.iter().map(start).collect()
    }

    /// Returns CMD, or a shell; `None` if only `--run` programs run.
    fn command(&self) -> anyhow::Result<Option<Command>> {
        let mut words = self.args.command.iter().map(|word| match word.to_str() {
            Some(text) => self.fill(text).map(OsString::from),
            None => Ok(word.clone()),
        });
        let mut command = if let Some(program) = words.next() {
            let mut command = Command::new(program?);
            command.args(words.collect::<anyhow::Result<Vec<_>>>()?);
            command
        } else if std::io::stdin().is_terminal() && self.job.runs.is_empty() && self.args.duration.is_none() {
            let site = &self.job.topology.site(self.job.site).name;
            let address = self.emulation.site_address(self.job.site);
            if !self.quiet {
                errln!(
                    "a shell in {site} ({address}); in another site: nsenter --net=$ANABRANCH_NETNS_1 CMD; `exit` ends it all"
                );
            }
            Command::new(std::env::var_os("SHELL").unwrap_or_else(|| "/bin/sh".into()))
        } else {
            return Ok(None);
        };
        self.surroundings.give(&mut command, self.job.site);
        Ok(Some(command))
    }

    /// Applies the changes at their times until the command ends, or is ended.
    async fn watch(
        &self,
        child: Option<Child>,
        begun: Instant,
        signals: &mut Signals,
    ) -> anyhow::Result<(Option<ExitStatus>, Cut)> {
        let dilation = self.job.options.dilation;
        // The process id stays valid until `wait` has returned, which `ending` signals.
        let pid = child.as_ref().and_then(|c| Pid::from_raw(c.id() as i32));
        let mut ending = std::pin::pin!(async {
            match child {
                Some(mut child) => tokio::task::spawn_blocking(move || child.wait())
                    .await
                    .map_err(anyhow::Error::from)?
                    .map_err(Into::into),
                None => std::future::pending::<anyhow::Result<ExitStatus>>().await,
            }
        });
        let mut limit = std::pin::pin!(async {
            match self.args.duration {
                Some(duration) => tokio::time::sleep(dilation.real(duration)).await,
                None => std::future::pending().await,
            }
        });
        let mut changes = self.job.changes.iter().peekable();
        let cut = loop {
            let due = changes.peek().map(|c| begun + dilation.real(c.at));
            let next_change = async {
                match due {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                status = &mut ending => return Ok((Some(status?), Cut::None)),
                () = &mut limit => break Cut::Duration,
                n = signals.next() => break Cut::Signal(n),
                () = next_change => if let Some(change) = changes.next() {
                    change.apply(self.emulation).with_context(|| format!("--at `{change}`"))?;
                    tracing::info!("{change}");
                },
            }
        };
        let Some(pid) = pid else { return Ok((None, cut)) };
        // After Ctrl-C on the terminal the command has received the signal, too, and may be
        // cleaning up.
        let first = match cut {
            Cut::Signal(2) if std::io::stdin().is_terminal() => None,
            Cut::Signal(2) => Some(Signal::INT),
            _ => Some(Signal::TERM),
        };
        for wanted in [first, Some(Signal::TERM)] {
            if let Some(wanted) = wanted {
                // A process that has just ended needs no signal.
                let _ = kill_process(pid, wanted);
            }
            tokio::select! {
                status = &mut ending => return Ok((Some(status?), cut)),
                () = tokio::time::sleep(GRACE) => {}
            }
        }
        // The emulation's end kills programs that have not ended.
        Ok((None, cut))
    }
}

fn exit_code(status: ExitStatus) -> u8 {
    let code = status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0));
    u8::try_from(code).unwrap_or(u8::MAX)
}

/// Reports programs of `--run` that have ended early.
fn check_backgrounds(topology: &Topology, backgrounds: &mut [Background]) {
    for background in backgrounds.iter_mut().filter(|b| b.ended.is_none()) {
        if let Ok(Some(status)) = background.child.try_wait() {
            background.ended = Some(status);
            if !status.success() {
                let site = &topology.site(background.site).name;
                errln!("anabranch: --run {site}: `{}` ended with {}", background.line, exit_code(status));
            }
        }
    }
}

async fn stop_backgrounds(backgrounds: &mut [Background]) {
    for background in backgrounds.iter().filter(|b| b.ended.is_none()) {
        if let Some(pid) = Pid::from_raw(background.child.id() as i32) {
            // The process has not been waited for, so its id is still valid.
            let _ = kill_process_group(pid, Signal::TERM);
        }
    }
    let patience = Instant::now() + GRACE;
    while Instant::now() < patience {
        if backgrounds.iter_mut().all(|b| b.ended.is_some() || !matches!(b.child.try_wait(), Ok(None))) {
            return;
        }
        tokio::time::sleep(StdDuration::from_millis(10)).await;
    }
    // The emulation's end kills programs that have not ended.
}

/// Maximum bytes of a program's output line; a longer line is split.
const LINE_BYTES_MAX: u64 = 64 << 10;

/// Copies the lines of a program in `site` to stderr, or discards them.
fn relay_lines(site: &str, from: impl Read + Send + 'static, discard: bool) {
    let site = site.to_owned();
    std::thread::spawn(move || {
        let mut from = std::io::BufReader::new(from);
        let mut line = Vec::new();
        while let Ok(1..) = from.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line) {
            if !discard {
                let mut out = std::io::stderr().lock();
                let text = line.strip_suffix(b"\n").unwrap_or(&line);
                // If stderr is closed, there is no reader for an error.
                let _ = out.write_all(&[b"[", site.as_bytes(), b"] ", text, b"\n"].concat());
            }
            line.clear();
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn site_placeholders_are_replaced_and_other_braces_kept() {
        let topology = crate::network::load("internet2", BitRate::mbps(1)).expect("built in");
        let fill = |text| addresses(text, &topology, |s| format!("<{s}>"));
        assert_eq!(fill("a {@chicago}:{@0} {x} {@").expect("known"), "a <6>:<0> {x} {@");
        let error = format!("{:#}", fill("{@mars}").expect_err("unknown"));
        assert!(error.contains("mars") && error.contains("seattle"), "{error}");
    }
}
