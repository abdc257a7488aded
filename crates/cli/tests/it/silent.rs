//! Listeners under a thousand connections that send nothing, or one byte per second: honest peers
//! are still served.
//!
//! Each test runs one daemon (the relay's test, three) as a process on loopback, and measures an
//! honest client's times without other connections. Then it measures the times while silent
//! connections are open from four addresses, among them the client's own. A silent connection is
//! reopened as soon as it is closed. Read [`Flood`] and [`served_all_the_same`] first.

use crate::net::{PATIENCE, TWO, noise, raise_open_files};
use crate::{anabranch, text};
use anabranch_net::identity::Identity;
use anabranch_net::keys::{Role, System};
use anabranch_net::tls::CredentialFiles;
use anabranch_replicate::wire::{DestinationRequest, SubmitRequest};
use anabranch_testing::ports::free_port;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpSocket;
use tokio::task::JoinSet;

/// Number of concurrent silent connections.
const SILENT: u64 = 1_000;
/// A number of silent connections half above a listener's limit of half-open connections.
const MORE_SILENT: u64 = 1_500;
/// Minimum duration of an attack: longer than the timeout of a silent connection.
const ATTACK: Duration = Duration::from_secs(4);
/// Last bytes of the source addresses of silent connections.
const ADDRESSES: [u8; 4] = [1, 10, 11, 12];
/// Time that a call may take beyond the calls before the attack. Shorter than the timeout of a
/// silent connection, so a call that waits for a silent connection takes too long.
const SLACK: Duration = Duration::from_secs(2);

/// Concurrent tests would disturb each other's measurements.
static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Daemons in a temporary folder.
pub struct World {
    folder: tempfile::TempDir,
    pub daemons: Vec<Child>,
    _alone: std::sync::MutexGuard<'static, ()>,
}

impl World {
    pub fn new() -> Self {
        let alone = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        raise_open_files();
        let folder = tempfile::tempdir().expect("a temporary folder");
        Self { folder, daemons: Vec::new(), _alone: alone }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = anabranch();
        command.current_dir(self.folder.path()).args(words).stdout(Stdio::null()).stderr(Stdio::piped());
        command
    }

    pub fn done(&self, words: &[&str]) {
        let output = self.command(words).output().expect("the command runs");
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    }

    /// Starts a daemon by `command` and waits until it listens at `at`.
    pub fn start(&mut self, mut command: Command, at: SocketAddr) {
        command.stderr(Stdio::inherit());
        self.daemons.push(command.spawn().expect("a daemon starts"));
        let end = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(at).is_err() {
            assert!(Instant::now() < end, "it listens at {at}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    pub fn operator(&self, system: System) -> Identity {
        let files = CredentialFiles::in_set(&self.path("keys"), system, Role::Operator, "operator");
        Identity::load(&files).expect("they were made")
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in &mut self.daemons {
            drop(child.kill());
            drop(child.wait());
        }
    }
}

pub fn free_address() -> SocketAddr {
    ([127, 0, 0, 1], free_port()).into()
}

/// Data that a connection sends before authentication.
#[derive(Copy, Clone, Debug)]
pub enum StrangerData {
    Nothing,
    /// The first message of a TLS handshake, one byte per second.
    AByteASecond,
}

/// Connections to one listener. Each is reopened when it is closed.
pub struct Flood {
    _tasks: JoinSet<()>,
    opened: Arc<AtomicU64>,
}

impl Flood {
    /// Starts the connections, and waits until all are open.
    pub async fn start(at: SocketAddr, count: u64, says: StrangerData) -> Self {
        let opened = Arc::new(AtomicU64::new(0));
        let mut tasks = JoinSet::new();
        for number in 0..count {
            let (opened, host) = (Arc::clone(&opened), ADDRESSES[number as usize % ADDRESSES.len()]);
            tasks.spawn(async move {
                loop {
                    // An address may run out of source ports for a moment.
                    if hold(at, host, says, &opened).await.is_err() {
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                }
            });
        }
        let end = Instant::now() + PATIENCE;
        while opened.load(Relaxed) < count {
            assert!(Instant::now() < end, "{} connections were accepted", opened.load(Relaxed));
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        Self { _tasks: tasks, opened }
    }
}

/// Holds one connection until the listener closes it.
async fn hold(at: SocketAddr, host: u8, says: StrangerData, opened: &AtomicU64) -> std::io::Result<()> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(([127, 0, 0, host], 0).into())?;
    let mut tcp = socket.connect(at).await?;
    opened.fetch_add(1, Relaxed);
    // A handshake record of 512 bytes, with the version TLS 1.0 for compatibility, that contains a
    // ClientHello.
    let mut said = [22, 3, 1, 2, 0, 1, 0, 1, 252, 3, 3].into_iter().chain(std::iter::repeat(7));
    loop {
        let wait = match says {
            StrangerData::Nothing => Duration::MAX,
            StrangerData::AByteASecond => {
                tcp.write_u8(said.next().expect("it goes on for ever")).await?;
                Duration::from_secs(1)
            }
        };
        // If the listener sends data, such as an alert, it closes the connection next.
        if let Ok(Ok(0) | Err(_)) = tokio::time::timeout(wait, tcp.read(&mut [0; 64])).await {
            return Ok(());
        }
    }
}

/// Durations of a client's calls.
#[derive(Clone, Copy)]
struct CallTimes {
    calls: usize,
    shortest: Duration,
    median: Duration,
    longest: Duration,
}

impl std::fmt::Display for CallTimes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.2?} (longest {:.2?}, {} calls)", self.median, self.longest, self.calls)
    }
}

/// Measures sequential calls of `ask`: at least three, for at least `time`, and for at most
/// [`PATIENCE`] until one takes at most `wanted`.
async fn times(time: Duration, wanted: Duration, ask: &mut impl AsyncFnMut()) -> CallTimes {
    let (begun, mut took) = (Instant::now(), Vec::new());
    let is_wanted = |took: &[Duration]| took.iter().any(|took| *took <= wanted);
    while took.len() < 3 || begun.elapsed() < time || (!is_wanted(&took) && begun.elapsed() < PATIENCE) {
        let begun = Instant::now();
        tokio::time::timeout(PATIENCE, ask()).await.expect("it is served at all");
        took.push(begun.elapsed());
    }
    took.sort_unstable();
    let (median, longest) = (took[took.len() / 2], took[took.len() - 1]);
    CallTimes { calls: took.len(), shortest: took[0], median, longest }
}

/// Permitted delay of a client, compared with its times without silent connections.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Bound {
    /// Each call ends, and the shortest takes at most twice the longest quiet call, plus
    /// [`SLACK`]. A busy machine may delay all other calls.
    Loose,
    /// Each call takes at most twice the longest quiet call, plus [`SLACK`]. The median call takes
    /// at most twice the median quiet call, with [`SILENT`] silent connections open.
    Twice,
}

/// Asserts that an honest client of `at` is served within `bound` while silent and slow connections
/// are open.
async fn served_all_the_same(at: SocketAddr, bound: Bound, mut ask: impl AsyncFnMut()) {
    let quiet_time = if bound == Bound::Loose { Duration::ZERO } else { ATTACK };
    let quiet = times(quiet_time, Duration::MAX, &mut ask).await;
    let loose = quiet.longest * 2 + SLACK;
    for (count, says) in [
        (SILENT, StrangerData::Nothing),
        (SILENT, StrangerData::AByteASecond),
        (MORE_SILENT, StrangerData::Nothing),
    ] {
        let flood = Flood::start(at, count, says).await;
        let wanted = if bound == Bound::Loose { loose } else { Duration::MAX };
        let now = times(ATTACK, wanted, &mut ask).await;
        let opened = flood.opened.load(Relaxed);
        println!("{count} say {says:?}, {opened} opened: {now}; quiet: {quiet}");
        let late = match bound {
            Bound::Loose => now.shortest > loose,
            Bound::Twice => now.longest > loose || (count == SILENT && now.median > quiet.median * 2),
        };
        assert!(!late, "{count} say {says:?}: {now}, and {quiet} when all is quiet");
    }
}

pub fn block_on(work: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(work);
}

/// Starts a controller. Returns its address, too.
fn controller() -> (World, SocketAddr) {
    let (mut world, at) = (World::new(), free_address());
    std::fs::write(world.path("network.toml"), TWO).expect("the folder is ours");
    world.done(&["replicate", "keys", "init", "--topology", "network.toml", "--out", "keys"]);
    let listen = at.to_string();
    let words = ["replicate", "controller", "--listen", &listen, "--topology", "network.toml"];
    let command = world.command(&[&words[..], &["--keys", "keys", "--store", "store.redb"]].concat());
    world.start(command, at);
    (world, at)
}

/// #17: 256 silent connections took all slots for handshakes of the controller, and 1,000 excluded
/// all clients.
#[test]
fn clients_reach_the_controller_despite_silent_connections() {
    controller_serves(Bound::Loose);
}

fn controller_serves(bound: Bound) {
    let (world, at) = controller();
    let identity = world.operator(anabranch_replicate::SYSTEM);
    block_on(served_all_the_same(at, bound, async || {
        let client = anabranch_replicate::Client::new(at.to_string(), &identity, PATIENCE);
        client.expect("good credentials").topology().await.expect("it answers");
    }));
}

/// #17: 256 silent connections took all slots for greetings of a site. With 1,000, a transfer of
/// 200 kB took 15 s.
#[test]
fn data_reaches_a_site_despite_silent_connections() {
    site_serves(Bound::Loose);
}

fn site_serves(bound: Bound) {
    let (mut world, controller_at) = controller();
    let mut at = controller_at;
    for site in ["s", "d"] {
        at = free_address();
        std::fs::create_dir(world.path(site)).expect("a new folder");
        let (listen, controller) = (at.to_string(), controller_at.to_string());
        let words = ["replicate", "relay", "--site", site, "--dir", site, "--listen", &listen];
        let more = ["--topology", "network.toml", "--keys", "keys", "--controller", &controller];
        let command = world.command(&[&words[..], &more].concat());
        world.start(command, at);
    }
    std::fs::write(world.path("s/file"), noise(3, 200_000)).expect("the folder is ours");
    let identity = world.operator(anabranch_replicate::SYSTEM);
    let client = anabranch_replicate::Client::new(controller_at.to_string(), &identity, PATIENCE);
    let client = client.expect("good credentials");
    let mut count = 0;
    block_on(async {
        // The controller waits for its sites for a while after its start.
        while !client.topology().await.expect("it answers").sites.iter().all(|s| s.up) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        tokio::time::sleep(Duration::from_secs(3)).await;
        let send = async || {
            count += 1;
            let destination = DestinationRequest { site: "d".into(), path: format!("copy-{count}") };
            let id = client.submit(&SubmitRequest::new("s", "file", vec![destination])).await;
            let id = id.expect("a good request");
            loop {
                let view = client.status(id).await.expect("it answers");
                if view.outcome.is_some() {
                    assert_eq!(view.exit_code, Some(0), "{view:?}");
                    return;
                }
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        served_all_the_same(at, bound, send).await;
    });
}

/// #17: 1,000 silent connections excluded every agent and operator from the coordinator.
#[test]
fn clients_reach_the_coordinator_despite_silent_connections() {
    coordinator_serves(Bound::Loose);
}

fn coordinator_serves(bound: Bound) {
    let (mut world, at) = (World::new(), free_address());
    world.done(&["shuffle", "keys", "--hosts", "h1", "--operators", "operator", "--out", "keys"]);
    let listen = at.to_string();
    let words = ["shuffle", "coordinator", "--listen", &listen, "--keys", "keys", "--store", "store.redb"];
    let command = world.command(&words);
    world.start(command, at);
    let identity = world.operator(anabranch_shuffle::SYSTEM);
    block_on(served_all_the_same(at, bound, async || {
        let client = anabranch_shuffle::Client::new(&at.to_string(), &identity, PATIENCE);
        client.expect("good credentials").coflows().await.expect("it answers");
    }));
}

/// #17: 64 silent connections took all clients' slots of a server, which then refused all other
/// clients.
#[test]
fn gather_clients_are_served_despite_silent_connections() {
    gather_server_serves(Bound::Loose);
}

fn gather_server_serves(bound: Bound) {
    let (mut world, at) = (World::new(), free_address());
    world.done(&["gather", "keys", "--out", "keys"]);
    std::fs::create_dir(world.path("served")).expect("a new folder");
    std::fs::write(world.path("served/file"), noise(4, 200_000)).expect("the folder is ours");
    let listen = at.to_string();
    let command = world.command(&["gather", "serve", "served", "--listen", &listen, "--keys", "keys"]);
    world.start(command, at);
    let mut count = 0;
    block_on(served_all_the_same(at, bound, async || {
        count += 1;
        let (object, out) = (format!("{at}/file"), format!("copy-{count}"));
        let mut command = world.command(&["gather", "get", &object, "-o", &out, "--keys", "keys"]);
        let output = tokio::task::spawn_blocking(move || command.output()).await.expect("it does not panic");
        let output = output.expect("the command runs");
        assert!(output.status.success(), "{}", text(&output.stderr));
    }));
}

/// #17: the bound holds for a release build on an idle machine.
#[test]
#[ignore = "it measures: `make claims`"]
fn a_thousand_silent_connections_at_most_double_service_time() {
    controller_serves(Bound::Twice);
    site_serves(Bound::Twice);
    coordinator_serves(Bound::Twice);
    gather_server_serves(Bound::Twice);
}
