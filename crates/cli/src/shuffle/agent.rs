//! `anabranch shuffle agent`: a host's part. It says what flows there are, and holds them to the rates that come back.
//!
//! While the coordinator is away, no flow has a limit: after [`SILENCE_MAX`] without a word of it all are lifted, and when it
//! is back the agent joins anew with all flows. Whatever goes wrong between the two, they begin anew likewise. While it runs,
//! `net.ipv4.tcp_tso_rtt_log` is 0, so that limits that are raised take effect soon (`pace::set_tso_rtt_log` says why).
//! Read [`Args`], and `shuffle::book` for what is said.

pub mod announce;
mod enforce;
pub mod guard;

use anabranch_api::ClientError;
use anabranch_api::shuffle::Client;
use anabranch_api::shuffle::wire::{JoinRequest, ReportsRequest};
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, System};
use anabranch_net::tls::CredentialFiles;
use anabranch_pace::{Flow, FlowReader, FlowState, Listing, Pacer, PacerOptions};
use anabranch_shuffle::book::{Book, Seen};
use anabranch_shuffle::control::FlowKey;
use anabranch_shuffle::coordinator::{ADDRESSES_MAX, HOST_FLOWS_MAX, check_name};
use anabranch_shuffle::rules::Rules;
use anabranch_units::{BitRate, ByteCount};
use anyhow::Context as _;
use enforce::{Enforcer, State};
use std::convert::Infallible;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::time::{sleep, sleep_until, timeout};

/// How to run it.
#[derive(clap::Args)]
pub struct Args {
    /// Where the coordinator listens, as HOST:PORT or https://HOST:PORT.
    #[arg(long, value_name = "HOST:PORT", default_value = "127.0.0.1:7190")]
    coordinator: String,
    /// The folder that `shuffle keys` made, or a copy with ca.pem, sites/HOST.pem and sites/HOST.key.
    #[arg(long, value_name = "DIR", default_value = "keys/shuffle")]
    keys: PathBuf,
    /// The host's name, as `shuffle keys --hosts` was given it.
    #[arg(long, value_name = "HOST")]
    name: String,
    /// What the host's link carries of data, out and in, as "9.4 Gbit/s" for a link of 10 Gbit/s on which packets have 1,500
    /// bytes. Without: reckoned from the rate and the packets' size that the default route's device names.
    #[arg(long, value_name = "RATE")]
    link: Option<BitRate>,
    /// An address that flows to this host have. Repeatable. The coordinator takes only addresses that its --hosts file gives
    /// this host or, without one, the address from which this agent connects. Without: all of those.
    #[arg(long, value_name = "ADDRESS")]
    address: Vec<IpAddr>,
    /// The Unix socket over which programs announce their flows, one JSON object a line:
    /// {"flow":{"local":"10.0.0.1:40000","remote":"10.0.0.2:7000"},"transfer":"job-7","size_bytes":1000000}.
    ///
    /// Each line is answered by one; who is silent for 5 s has to connect again.
    /// {"ended":{"local":…,"remote":…},"transfer":"job-7"} says that all is written though the connection stays; it is over
    /// once that has arrived. Only the user who made the flow's socket, or root, may speak of it.
    #[arg(long, value_name = "PATH")]
    listen: Option<PathBuf>,
    /// The group that may use the socket of --listen, beside root.
    #[arg(long, value_name = "GROUP", requires = "listen")]
    group: Option<String>,
    /// Announce flows by rules, for programs that do not. A TOML file of [[rule]] tables with `remote = "10.0.0.0/8"`,
    /// `remote_port`, `local_port` (all optional) and `transfer = "job-{remote_host}"`.
    ///
    /// {remote_host}, {remote_port} and {local_host} are filled in. The first rule that fits a flow counts. What such a flow
    /// has to move is what its program has written so far.
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// The cgroup whose programs' connections may be held to rates by BPF. Without: all of the host's.
    #[arg(long, value_name = "PATH")]
    cgroup: Option<PathBuf>,
    /// The network device whose queue may be replaced by an HTB one, for flows that can be held to rates in no other way.
    /// Without: none is replaced.
    #[arg(long, value_name = "DEVICE")]
    device: Option<String>,
    /// The file that says which flows have limits, so that the next agent lifts what a killed one left.
    #[arg(long, value_name = "FILE")]
    state: Option<PathBuf>,
}

/// After so long without a word of the coordinator, limits are lifted.
const SILENCE_MAX: Duration = Duration::from_secs(1);
/// What is said then.
pub(super) const SILENT: &str = "the coordinator is silent";
/// How long one request may take.
const REPLY_MAX: Duration = SILENCE_MAX;
/// How often flows are looked at; sooner where one should be through, but no sooner than [`LOOK_SOON`], and later where looks take
/// more than one part in [`LOOKS_MIN`] of the time.
const LOOK_EVERY: Duration = Duration::from_millis(100);
const LOOK_SOON: Duration = Duration::from_millis(5);
const LOOKS_MIN: u32 = 20;
/// No later than this unless looks take half of the time: flows of which nothing is heard for twice as long count as idle.
const LOOK_LATE: Duration = Duration::from_millis(250);
/// The agent says something at least this often.
const SAY_EVERY: Duration = Duration::from_millis(200);
/// How long one call waits for limits.
const LIMITS_WAIT: Duration = Duration::from_secs(10);
/// How long to wait before joining is tried again, at first and at most.
const RETRY: (Duration, Duration) = (Duration::from_millis(50), Duration::from_millis(500));
/// After a session has begun, how long limits of the one before stand that were not said again.
const OLD_LIMITS: Duration = SILENCE_MAX;
/// The most connections that nobody has announced which are looked at, for rules.
const CONNECTIONS_MAX: usize = 2 * HOST_FLOWS_MAX;
/// Flows of one request: with these, one stays below the 64 KiB from which on requests take turns.
const FLOWS_TOGETHER: usize = 100;

/// Runs it until it is told to end.
///
/// Errors: one line for the user.
pub fn run(args: &Args, quiet: bool) -> anyhow::Result<ExitCode> {
    check_name(&args.name)?;
    anyhow::ensure!(
        args.state.is_some() || rustix::process::geteuid().is_root(),
        "an agent sets limits on all users' flows: run it as root, or name a file that it may write with --state, for your own flows"
    );
    let identity =
        Identity::load(&CredentialFiles::in_set(&args.keys, System::Shuffle, Role::Site, &args.name))?;
    let client = Client::new(&args.coordinator, &identity, REPLY_MAX)?;
    let link_rate = match args.link {
        Some(rate) => rate,
        None => anabranch_pace::link_rate().map_err(|error| anyhow::anyhow!("{error}: give --link RATE"))?,
    };
    let addresses = args.address.clone();
    anyhow::ensure!(
        addresses.len() <= ADDRESSES_MAX,
        "--address: {} addresses: a host has at most {ADDRESSES_MAX}",
        addresses.len()
    );
    let addresses_here = anabranch_pace::addresses()?;
    let rules: Rules = match &args.rules {
        Some(path) => std::fs::read_to_string(path)
            .map_err(anyhow::Error::from)
            .and_then(|text| Ok(text.parse()?))
            .with_context(|| format!("--rules {}", path.display()))?,
        None => Rules::default(),
    };
    let state_path = match &args.state {
        Some(path) => path.clone(),
        None => {
            let folder = PathBuf::from("/run/anabranch");
            std::fs::create_dir_all(&folder)
                .context("/run/anabranch: cannot be made: name a file with --state")?;
            folder.join(format!("shuffle-{}.jsonl", anabranch_net::keys::escaped(&args.name)))
        }
    };
    let (mut state, left) = State::open(&state_path)?;
    let device = args.device.as_deref();
    let options =
        PacerOptions { cgroup: args.cgroup.clone(), device: args.device.clone(), ..PacerOptions::default() };
    let mut pacer = Pacer::new(&options)?;
    for missing in pacer.missing() {
        tracing::warn!("{missing}");
    }
    let lifted = left.lift(&mut state, &mut pacer)?;
    if lifted > 0 {
        tracing::warn!("limits of {lifted} flows that an agent had left are lifted");
    }
    let listener = |path: &PathBuf| announce::listen(path, args.group.as_deref());
    crate::process::runtime()?.block_on(async {
        let announcements = args.listen.as_ref().map(listener).transpose()?;
        let reader = FlowReader::new()?;
        small_bursts(&mut state);
        let guard = guard::start(&state_path, device);
        if let Err(error) = &guard {
            tracing::warn!("no guard: if this agent is killed, limits stay until the next one: {error}");
        }
        let agent = Agent {
            client,
            name: args.name.clone(),
            addresses,
            addresses_here,
            link_rate,
            book: Arc::default(),
            rules,
            coordinator: Mutex::default(),
            changed: Arc::new(Notify::new()),
            reader: Mutex::new(reader),
            enforcer: Enforcer::start(pacer, state)?,
            heard_at: Mutex::new(None),
            session: Mutex::new(None),
            is_cut: AtomicBool::new(false),
            is_full: AtomicBool::new(false),
            quiet,
        };
        if !quiet {
            eprintln!(
                "agent of {}, with a link of {link_rate}; coordinator {}",
                agent.name,
                agent.client.address()
            );
        }
        let answering = async {
            match announcements {
                Some(listener) => {
                    let (book, changed) = (agent.book.clone(), agent.changed.clone());
                    announce::answer(listener, FlowReader::new()?, book, changed, announce::IDLE_MAX).await;
                    Ok(())
                }
                None => std::future::pending::<anyhow::Result<()>>().await,
            }
        };
        let ended = tokio::select! {
            refused = agent.serve() => Err(refused),
            never = agent.lift_in_silence() => match never {},
            failed = answering => failed,
            never = crate::keys::follow(&identity) => match never {},
            () = crate::process::asked_to_end() => Ok(()),
        };
        agent.leave().await;
        drop(agent);
        if let Some(path) = &args.listen {
            let _ = std::fs::remove_file(path);
        }
        if let Ok(mut guard) = guard {
            drop(guard.stdin.take());
            let _ = guard.wait();
        } else {
            guard::clean_up(&state_path, device)?;
        }
        ended.map(|()| ExitCode::SUCCESS)
    })
}

struct Agent {
    client: Client,
    name: String,
    /// Those that were named; none is for the coordinator to say.
    addresses: Vec<IpAddr>,
    /// Those of this network namespace.
    addresses_here: Vec<IpAddr>,
    link_rate: BitRate,
    book: Arc<Mutex<Book>>,
    rules: Rules,
    /// Where the coordinator was last found: connections with it are for no rule.
    coordinator: Mutex<Vec<SocketAddr>>,
    /// Wakes who reports.
    changed: Arc<Notify>,
    reader: Mutex<FlowReader>,
    enforcer: Enforcer,
    /// When the coordinator last answered; `None` once limits are lifted for its silence.
    heard_at: Mutex<Option<Instant>>,
    session: Mutex<Option<u64>>,
    /// Whether there were more flows than are looked at, or than may be announced: said when it begins, not at each look.
    is_cut: AtomicBool,
    is_full: AtomicBool,
    quiet: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Has the kernel send small bursts, so that raised limits take effect soon. What is to be set again in the end is in the state
/// file, as an agent that was killed may have left it there.
fn small_bursts(state: &mut State) {
    let mut set = || match anabranch_pace::tso_rtt_log()? {
        0 => Ok(()),
        log => {
            state.note_tso_rtt_log(Some(log))?;
            anabranch_pace::set_tso_rtt_log(0)
        }
    };
    match set() {
        // Older kernels have no other bursts.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => tracing::warn!("limits that are raised take effect late: {error}"),
        Ok(()) => {}
    }
}

/// Whether a connection is one with the coordinator: the agent's own, or another agent's where it runs on this host.
fn is_control(key: FlowKey, coordinator: &[SocketAddr], addresses: &[IpAddr]) -> bool {
    coordinator.iter().any(|at| {
        let is_here = at.ip() == key.local.ip() || at.ip().is_loopback() || addresses.contains(&at.ip());
        *at == key.remote || is_here && at.port() == key.local.port()
    })
}

/// How long after a look that took so long has begun the next one is due, if so soon a flow should be through.
fn look_after(look_took: Duration, soonest_end: Option<Duration>) -> Duration {
    let soonest = soonest_end.unwrap_or(LOOK_EVERY).clamp(LOOK_SOON, LOOK_EVERY);
    soonest.max((LOOKS_MIN * look_took).min(LOOK_LATE)).max(2 * look_took)
}

/// What it is called by the coordinator.
fn key(flow: Flow) -> FlowKey {
    FlowKey { local: flow.local(), remote: flow.remote() }
}

/// What the kernel calls it.
fn flow(key: FlowKey) -> Flow {
    Flow::new(key.local, key.remote)
}

/// What the agent's book takes in of a connection.
fn seen(state: &FlowState) -> Seen {
    let bytes = |count: Option<ByteCount>| count.map_or(0, ByteCount::as_u64);
    let acked_bytes = bytes(state.bytes_acked);
    let sent = bytes(state.bytes_sent).saturating_sub(bytes(state.bytes_retransmitted));
    Seen {
        flow: key(state.flow),
        cookie: state.cookie(),
        user: state.uid,
        may_send: state.may_send,
        acked_bytes,
        written_bytes: sent.max(acked_bytes).saturating_add(bytes(state.bytes_not_sent)),
        limit: state.pacing_limit,
    }
}

impl Agent {
    /// Joins, again and again. Returns when the coordinator says that it never will.
    async fn serve(&self) -> anyhow::Error {
        let (mut pause, mut is_away) = (RETRY.0, false);
        loop {
            let error = match self.join().await {
                Ok(session) => {
                    pause = RETRY.0;
                    if std::mem::take(&mut is_away) {
                        tracing::info!("the coordinator is back");
                    }
                    let Err(error) = self.converse(session).await;
                    error
                }
                // The keys are another's, or the settings are none: that stays so.
                Err(error @ ClientError::Refused { status: 400 | 403, .. }) => return error.into(),
                Err(error @ ClientError::Settings(_)) => return error.into(),
                Err(error) => error,
            };
            match &error {
                ClientError::Refused { status: 409, .. } => tracing::info!("{error}"),
                _ if !std::mem::replace(&mut is_away, true) => tracing::warn!("{error}; trying on"),
                _ => tracing::debug!("{error}"),
            }
            sleep(pause).await;
            pause = (2 * pause).min(RETRY.1);
        }
    }

    /// Names may change; where one is not found, the coordinator is where it was.
    async fn find_coordinator(&self) {
        let found = timeout(REPLY_MAX, tokio::net::lookup_host(self.client.address())).await;
        // Where this fails, the client fails as well, and says so.
        if let Ok(Ok(found)) = found {
            *lock(&self.coordinator) = found.collect();
        }
    }

    async fn join(&self) -> Result<u64, ClientError> {
        self.find_coordinator().await;
        self.look().await;
        let session = crate::process::random()
            .map_err(|error| ClientError::Settings(format!("/dev/urandom: {error}")))?;
        let reports = {
            let mut book = lock(&self.book);
            book.say_all();
            book.take(FLOWS_TOGETHER)
        };
        let (addresses, link_rate_bps) = (self.addresses.clone(), self.link_rate.as_bps());
        let request = JoinRequest { session, addresses, link_rate_bps, reports };
        self.client.join(&self.name, &request, REPLY_MAX).await?;
        tracing::info!("joined coordinator {}", self.client.address());
        *lock(&self.heard_at) = Some(Instant::now());
        *lock(&self.session) = Some(session);
        self.enforcer.begin_session().await;
        Ok(session)
    }

    /// Reports and sets limits until something goes wrong.
    async fn converse(&self, session: u64) -> Result<Infallible, ClientError> {
        let lift_old = async {
            sleep(OLD_LIMITS).await;
            self.enforcer.lift_old().await;
            std::future::pending().await
        };
        tokio::select! {
            ended = self.report(session) => ended,
            ended = self.take_limits(session) => ended,
            never = lift_old => never,
        }
    }

    async fn report(&self, session: u64) -> Result<Infallible, ClientError> {
        let mut said_at = Instant::now();
        let (mut looked_at, mut look_took) = (Instant::now(), Duration::ZERO);
        loop {
            // Whoever waits for a flow's end should not wait for a look.
            let soonest = lock(&self.book).soonest_end().map(|end| end.to_std());
            let look_at = looked_at + look_after(look_took, soonest);
            tokio::select! {
                () = sleep_until(look_at.into()) => {
                    looked_at = Instant::now();
                    self.look().await;
                    look_took = looked_at.elapsed();
                }
                () = self.changed.notified() => {}
                () = sleep_until((said_at + SAY_EVERY).into()) => {}
            }
            loop {
                let reports = lock(&self.book).take(FLOWS_TOGETHER);
                if reports.is_empty() && said_at.elapsed() < SAY_EVERY {
                    break;
                }
                said_at = Instant::now();
                self.client.report(&self.name, &ReportsRequest { session, reports }, REPLY_MAX).await?;
                let mut heard_at = lock(&self.heard_at);
                if heard_at.is_none() {
                    // Limits were lifted meanwhile, and the coordinator does not know.
                    return Err(ClientError::Unreachable(SILENT.to_owned()));
                }
                *heard_at = Some(Instant::now());
            }
        }
    }

    async fn take_limits(&self, session: u64) -> Result<Infallible, ClientError> {
        loop {
            let limits = self.client.limits(&self.name, session, LIMITS_WAIT, REPLY_MAX).await?;
            let limits = {
                let mut book = lock(&self.book);
                limits.iter().for_each(|limit| book.limit(limit.flow, limit.rate_bps.map(BitRate::bps)));
                let known = |limit: anabranch_shuffle::control::Limit| {
                    // One that has ended meanwhile needs none.
                    let socket = book.socket(limit.flow)?;
                    Some((flow(limit.flow), limit.rate_bps.map(BitRate::bps), socket))
                };
                limits.into_iter().filter_map(known).collect::<Vec<_>>()
            };
            self.enforcer.set(limits).await;
            self.changed.notify_one();
        }
    }

    /// Looks at what has become of flows.
    async fn look(&self) {
        // A pass over the kernel's table takes some microseconds for each flow.
        let list = || {
            let mut reader = lock(&self.reader);
            let listing = reader.list(CONNECTIONS_MAX)?;
            if listing.left_out == 0 {
                return Ok(listing);
            }
            // Those that are announced come first.
            let known = lock(&self.book).connections();
            reader.list_with(CONNECTIONS_MAX, |flow| known.contains(&key(flow)))
        };
        let listing: std::io::Result<Listing> = tokio::task::block_in_place(list);
        let listing = match listing {
            Ok(listing) => listing,
            Err(error) => return tracing::warn!("flows cannot be listed: {error}"),
        };
        let is_cut = listing.left_out > 0;
        if !self.is_cut.swap(is_cut, Ordering::Relaxed) && is_cut {
            let more = listing.left_out;
            tracing::warn!(
                "more than {CONNECTIONS_MAX} connections that nobody has announced: no rule looks at {more} of them"
            );
        }
        let flows = {
            let mut book = lock(&self.book);
            let listed: Vec<Seen> = listing.flows.iter().map(seen).collect();
            let coordinator = lock(&self.coordinator);
            book.observe(&listed, |key| {
                if is_control(key, &coordinator, &self.addresses_here) {
                    None
                } else {
                    self.rules.transfer(key)
                }
            });
            drop(coordinator);
            let is_full = book.take_full();
            let flows = book.flows();
            if is_full && !self.is_full.swap(true, Ordering::Relaxed) {
                tracing::warn!("more than {HOST_FLOWS_MAX} flows: the others pass without limits");
            } else if flows.len() < HOST_FLOWS_MAX {
                self.is_full.store(false, Ordering::Relaxed);
            }
            flows.into_iter().map(flow).collect()
        };
        self.enforcer.keep(flows).await;
    }

    /// Lifts all limits whenever the coordinator has been silent for too long.
    async fn lift_in_silence(&self) -> Infallible {
        loop {
            let heard_at = *lock(&self.heard_at);
            let left =
                heard_at.map_or(SILENCE_MAX, |heard_at| SILENCE_MAX.saturating_sub(heard_at.elapsed()));
            if left.is_zero() {
                *lock(&self.heard_at) = None;
                tracing::warn!("{SILENT}: no flow has a limit until it is back");
                self.enforcer.lift_all().await;
            } else {
                sleep(left).await;
            }
        }
    }

    async fn leave(&self) {
        self.enforcer.lift_all().await;
        let session = *lock(&self.session);
        if let Some(session) = session {
            // Without this it counts as gone a second later.
            let _ = self.client.leave(&self.name, session, REPLY_MAX / 2).await;
        }
        if !self.quiet {
            eprintln!("agent of {} ends; it has lifted its limits", self.name);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_shuffle::coordinator::IDLE_AFTER;

    #[test]
    fn looks_take_a_small_part_of_the_time_or_half_of_it_where_flows_would_count_as_idle() {
        let ms = Duration::from_millis;
        assert_eq!(look_after(ms(0), None), LOOK_EVERY);
        assert_eq!(look_after(ms(0), Some(ms(50))), ms(50));
        assert_eq!(look_after(ms(0), Some(ms(0))), LOOK_SOON);
        assert_eq!(look_after(ms(0), Some(ms(500))), LOOK_EVERY);
        assert_eq!(look_after(ms(3), Some(ms(0))), ms(60));
        assert_eq!(look_after(ms(5), None), LOOK_EVERY);
        assert_eq!(look_after(ms(12), None), ms(240));
        // Thousands of flows, of which the coordinator is to hear; and more than that.
        assert_eq!(look_after(ms(120), Some(ms(0))), LOOK_LATE);
        assert_eq!(look_after(ms(260), None), ms(520));
        assert!(2 * LOOK_LATE <= IDLE_AFTER.to_std());
    }

    #[test]
    fn connections_with_the_coordinator_are_known_at_both_ends() {
        let here: [IpAddr; 1] = ["10.0.0.1".parse().expect("good")];
        let is_control = |local: &str, remote: &str, coordinator: &str| {
            let end = |text: &str| -> SocketAddr { text.parse().expect("good") };
            is_control(FlowKey { local: end(local), remote: end(remote) }, &[end(coordinator)], &here)
        };
        assert!(is_control("10.0.0.1:40000", "10.0.0.9:7190", "10.0.0.9:7190"));
        assert!(!is_control("10.0.0.1:40000", "10.0.0.8:7190", "10.0.0.9:7190"));
        assert!(!is_control("10.0.0.1:7190", "10.0.0.8:40000", "10.0.0.9:7190"));
        // Where the coordinator runs on this host, what it answers other hosts goes from its port.
        for coordinator in ["10.0.0.1:7190", "127.0.0.1:7190"] {
            assert!(is_control("10.0.0.1:7190", "10.0.0.2:40000", coordinator));
            assert!(!is_control("10.0.0.1:7191", "10.0.0.2:40000", coordinator));
            assert!(!is_control("10.0.0.1:40000", "10.0.0.2:7190", coordinator));
        }
    }
}
