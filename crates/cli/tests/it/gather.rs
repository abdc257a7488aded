//! `gather` over loopback with real faults: loss, corruption, crashes, attacks, full disks.
//!
//! Servers and clients are processes; a [`HarmfulPath`] damages datagrams. Read [`World`].

mod attacks;
mod directories;
mod hard_links;
mod harmful_path;
mod many;
mod revoked;
mod words;

use crate::net::{PATIENCE, journal_entries, noise, on_a_small_disk, working_files};
use crate::{anabranch, text};
use anabranch_endpoint::{Bytes, WireMessage as _};
use anabranch_gather_proto::msg::{Control, Datagram, ObjectDescription, PullId, Request};
use anabranch_gather_proto::{Mode, RateControl};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::seal::{self, ChannelId};
use anabranch_net::tls::CredentialFiles;
use anabranch_units::Duration as Time;
use harmful_path::{DatagramHarm, HarmfulPath, LINK, SLOW_LINK};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const MIB: usize = 1 << 20;

struct Server {
    child: Child,
    at: SocketAddr,
    /// Output so far.
    log: Arc<Mutex<String>>,
    _way: Option<HarmfulPath>,
}

/// Servers, each with a folder, and keys for the servers and a client.
struct World {
    folder: tempfile::TempDir,
    servers: Vec<Server>,
}

impl World {
    /// Creates a world with `servers` servers.
    fn new(servers: usize) -> Self {
        let world = Self { folder: tempfile::tempdir().expect("a temporary folder"), servers: Vec::new() };
        world.make_keys("keys");
        (0..servers).fold(world, |world, _| world.with(None, &[]))
    }

    fn make_keys(&self, name: &str) {
        let mut command = anabranch();
        command.args(["gather", "keys", "--clients", "client,other", "--out"]).arg(self.path(name));
        let made = command.output();
        let made = made.expect("the command runs");
        assert!(made.status.success(), "{}", text(&made.stderr));
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// Adds a server with further arguments, behind a harmful path if `harm` is given.
    fn with(mut self, harm: Option<DatagramHarm>, more: &[&str]) -> Self {
        let number = self.servers.len();
        let dir = self.path(&format!("server-{number}"));
        std::fs::create_dir(&dir).expect("the folder is ours");
        let way = harm.map(|harm| HarmfulPath::new(harm, number as u64));
        let mut command = anabranch();
        command.args(["gather", "serve"]).arg(&dir).args(["--listen", "127.0.0.1:0"]).args(more);
        command.arg("--keys").arg(self.path("keys"));
        if let Some(way) = &way {
            command.args(["--advertise-port", &way.port.to_string()]);
        }
        let mut child = command.stderr(Stdio::piped()).spawn().expect("a server starts");
        let mut said = BufReader::new(child.stderr.take().expect("it is piped")).lines();
        let line = said.next().expect("it says where it is").expect("text");
        let at = line.rsplit_once(" on ").and_then(|(_, at)| at.parse().ok());
        let at: SocketAddr = at.unwrap_or_else(|| panic!("{line}"));
        // The reader thread drains later output, so that the server never blocks on it.
        let log = Arc::new(Mutex::new(String::new()));
        let lines = Arc::clone(&log);
        std::thread::spawn(move || {
            said.map_while(Result::ok).for_each(|line| {
                eprintln!("{number}: {line}");
                lines.lock().expect("nobody panics with it").push_str(&(line + "\n"));
            });
        });
        if let Some(way) = &way {
            way.lead_to(at);
        }
        self.servers.push(Server { child, at, log, _way: way });
        self
    }

    /// Puts an object into the folders of some servers.
    fn put(&self, servers: std::ops::Range<usize>, name: &str, bytes: &[u8]) {
        for server in servers {
            std::fs::write(self.path(&format!("server-{server}")).join(name), bytes).expect("ours");
        }
    }

    /// Formats an object of these servers as an argument of `get`.
    fn object(&self, servers: std::ops::Range<usize>, name: &str) -> String {
        let servers: Vec<String> = self.servers[servers].iter().map(|s| s.at.to_string()).collect();
        format!("{}/{name}", servers.join(","))
    }

    /// Runs `gather get` with these arguments. The default output file is `out`.
    fn get(&self, arguments: &[&str]) -> RunningClient {
        let mut command = anabranch();
        command.args(["gather", "get", "--json", "--keys"]).arg(self.path("keys")).args(arguments);
        if !arguments.contains(&"-o") {
            command.arg("-o").arg(self.path("out"));
        }
        RunningClient::start(command)
    }

    fn kill(&mut self, server: usize) {
        self.servers[server].child.kill().expect("ours to kill");
        self.servers[server].child.wait().expect("ours to reap");
    }

    fn has(&self, bytes: &[u8]) -> bool {
        working_files(&self.path("")).is_empty()
            && std::fs::read(self.path("out")).is_ok_and(|out| out == bytes)
    }

    /// Waits until the journal of `out` has entries for this many bytes, one for each generation.
    fn wait_for(&self, bytes: usize) {
        let entries = bytes as u64 / (256 << 10);
        let end = Instant::now() + PATIENCE;
        while journal_entries(&self.path("out")) < entries {
            assert!(Instant::now() < end, "{bytes} bytes come in time");
            std::thread::sleep(Duration::from_millis(2));
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for server in &mut self.servers {
            drop(server.child.kill());
            drop(server.child.wait());
        }
    }
}

struct RunningClient {
    child: Child,
    out: Option<std::thread::JoinHandle<String>>,
    err: Option<std::thread::JoinHandle<String>>,
}

#[derive(Debug)]
struct ClientOutput {
    code: Option<i32>,
    /// Results of the objects, in order.
    objects: Vec<Value>,
    /// Result of the whole command.
    end: Value,
    stderr: String,
}

impl RunningClient {
    fn start(mut command: Command) -> Self {
        let command = command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("the command runs");
        let (mut out, mut err) = (child.stdout.take().expect("piped"), child.stderr.take().expect("piped"));
        let read = |io: &mut dyn std::io::Read| {
            let mut text = String::new();
            io.read_to_string(&mut text).map(|_| text).expect("text")
        };
        let out = std::thread::spawn(move || read(&mut out));
        let err = std::thread::spawn(move || read(&mut err));
        Self { child, out: Some(out), err: Some(err) }
    }

    fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).expect("ours to signal");
    }

    /// Waits for the client's end.
    fn end(self) -> ClientOutput {
        self.end_within(PATIENCE)
    }

    fn end_within(mut self, time: Duration) -> ClientOutput {
        let end = Instant::now() + time;
        let code = loop {
            match self.child.try_wait().expect("ours to reap") {
                Some(status) => break status.code(),
                None if Instant::now() > end => panic!("it does not end: {self:?}", self = self.child),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let text = |thread: &mut Option<std::thread::JoinHandle<String>>| {
            thread.take().expect("once").join().expect("it reads")
        };
        let (out, stderr) = (text(&mut self.out), text(&mut self.err));
        let lines: Vec<Value> = out
            .lines()
            .map(|line| serde_json::from_str(line).unwrap_or_else(|e| panic!("{e}: {line}")))
            .collect();
        let objects = lines.iter().filter(|line| line["event"] == "object").cloned().collect();
        let end = lines.into_iter().find(|line| line["event"] == "end").unwrap_or_default();
        ClientOutput { code, objects, end, stderr }
    }
}

impl Drop for RunningClient {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

impl ClientOutput {
    fn count(&self, what: &str) -> u64 {
        self.end[what].as_u64().unwrap_or_else(|| panic!("{what}: {self:?}"))
    }
    /// Reason for the failure of the only object.
    fn reason(&self) -> &str {
        self.objects[0]["error"].as_str().unwrap_or_else(|| panic!("{self:?}"))
    }
    /// The client's output on stderr, which must be one line.
    fn line(&self) -> &str {
        assert!(self.stderr.trim_end().lines().count() == 1, "{self:?}");
        self.stderr.trim_end()
    }
}

#[test]
fn eight_servers_deliver_a_complete_object() {
    let world = World::new(8);
    let bytes = noise(1, 48 * MIB + 12_345);
    world.put(0..8, "object", &bytes);
    let got = world.get(&[&world.object(0..8, "object")]).end();
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(world.has(&bytes));
    let hash = blake3::hash(&bytes).to_hex().to_string();
    assert_eq!((&got.objects[0]["verdict"], &got.objects[0]["blake3"]), (&"verified".into(), &hash.into()));
    assert_eq!(got.count("fetched_bytes"), bytes.len() as u64);
    let rows = got.end["servers"].as_array().expect("a row for each");
    let received: u64 = rows.iter().filter_map(|row| row["received_bytes"].as_u64()).sum();
    assert!(rows.len() == 8 && received > bytes.len() as u64, "{got:?}");
}

#[test]
fn object_arrives_intact_despite_packet_loss() {
    let harm = DatagramHarm { loss_ppm: 50_000, ..DatagramHarm::default() };
    let world = (0..8).fold(World::new(0), |world, _| world.with(Some(harm), &[]));
    let bytes = noise(2, 24 * MIB + 1);
    world.put(0..8, "object", &bytes);
    let got = world.get(&[&world.object(0..8, "object"), LINK[0], LINK[1]]).end();
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(world.has(&bytes));
    assert_eq!((got.count("forged_packets"), got.count("replayed_packets")), (0, 0), "{got:?}");
}

#[test]
fn object_arrives_despite_damaged_repeated_late_and_replayed_datagrams() {
    let harm = DatagramHarm {
        loss_ppm: 10_000,
        flip_ppm: 20_000,
        repeat_ppm: 30_000,
        late_ppm: 50_000,
        replay_ppm: 30_000,
        spoofs: false,
    };
    let world = (0..4).fold(World::new(0), |world, _| world.with(Some(harm), &[]));
    let bytes = noise(3, 20 * MIB);
    world.put(0..4, "object", &bytes);
    let got = world.get(&[&world.object(0..4, "object"), LINK[0], LINK[1]]).end();
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(world.has(&bytes));
    for counter in ["forged_packets", "replayed_packets", "received_packets"] {
        assert!(got.count(counter) > 0, "{counter}: {got:?}");
    }
    assert_eq!((got.count("malformed_packets"), got.stderr.as_str()), (0, ""), "{got:?}");
}

#[test]
fn forged_datagrams_with_a_valid_channel_are_harmless() {
    let harm = DatagramHarm { spoofs: true, ..DatagramHarm::default() };
    let world = World::new(0).with(Some(harm), &[]);
    let bytes = noise(4, 8 * MIB);
    world.put(0..1, "object", &bytes);
    let got = world.get(&[&world.object(0..1, "object"), LINK[0], LINK[1]]).end();
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(world.has(&bytes));
    // One forged packet is sent for each genuine one, except before and after the session.
    assert!(got.count("forged_packets") + got.count("unknown_datagrams") > 500, "{got:?}");
    assert_eq!((got.count("replayed_packets"), got.count("malformed_packets")), (0, 0), "{got:?}");
}

#[test]
fn blocks_of_a_dead_server_come_from_other_servers() {
    let mut world = World::new(8);
    let bytes = noise(5, 24 * MIB);
    world.put(0..8, "object", &bytes);
    let getting = world.get(&[&world.object(0..8, "object"), SLOW_LINK[0], SLOW_LINK[1]]);
    world.wait_for(bytes.len() / 2);
    world.kill(0);
    let got = getting.end();
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(world.has(&bytes));
    assert!(got.end["servers"][0]["lost"].is_string(), "{got:?}");
    // Data that had arrived was not requested again.
    assert!(got.count("fetched_bytes") == bytes.len() as u64, "{got:?}");
}

/// #17: an unreachable server went unreported if the other servers had everything.
#[test]
fn unreachable_server_is_reported_although_the_pull_succeeds() {
    let mut world = World::new(2);
    let bytes = noise(6, MIB);
    world.put(0..2, "object", &bytes);
    world.kill(1);
    let mut command = anabranch();
    command.args(["gather", "get", "--keys"]).arg(world.path("keys")).arg(world.object(0..2, "object"));
    let output = command.arg("-o").arg(world.path("out")).output().expect("the command runs");
    assert!(output.status.success() && world.has(&bytes), "{output:?}");
    let (said, dead) = (text(&output.stderr), world.servers[1].at.to_string());
    let lines: Vec<_> = said.lines().filter(|line| line.contains("cannot be reached")).collect();
    assert!(
        matches!(lines[..], [line] if line.contains(&dead) && line.contains("the others go on")),
        "{said}"
    );
}

#[test]
fn object_without_live_servers_fails_alone() {
    let mut world = World::new(4);
    let (lost, kept) = (noise(6, 24 * MIB), noise(7, 24 * MIB));
    world.put(0..2, "lost", &lost);
    world.put(2..4, "kept", &kept);
    let out = world.path("some");
    let getting = world.get(&[
        &world.object(0..2, "lost"),
        &world.object(2..4, "kept"),
        "-o",
        out.to_str().expect("plain"),
        SLOW_LINK[0],
        SLOW_LINK[1],
    ]);
    let end = Instant::now() + PATIENCE;
    while journal_entries(&out.join("lost")) < 4 {
        assert!(Instant::now() < end, "the first bytes come in time");
        std::thread::sleep(Duration::from_millis(2));
    }
    world.kill(0);
    world.kill(1);
    let got = getting.end();
    assert_eq!(got.code, Some(3), "{got:?}");
    let reason = got.reason();
    assert!((0..2).all(|server| reason.contains(&world.servers[server].at.to_string())), "{reason}");
    assert!(!reason.contains('\n'), "{reason}");
    assert_eq!(got.objects[1]["verdict"], "verified");
    assert!(std::fs::read(out.join("kept")).is_ok_and(|found| found == kept));
    assert!(!out.join("lost").exists());
}

#[test]
fn killed_client_fetches_only_the_missing_bytes() {
    let world = World::new(4);
    let bytes = noise(8, 24 * MIB + 7);
    world.put(0..4, "object", &bytes);
    let object = world.object(0..4, "object");
    let getting = world.get(&[&object, SLOW_LINK[0], SLOW_LINK[1]]);
    world.wait_for(bytes.len() / 2);
    getting.signal(Signal::KILL);
    assert_eq!(getting.end().code, None);
    assert!(!world.path("out").exists());
    let got = world.get(&[&object]).end();
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(world.has(&bytes));
    let kept = got.objects[0]["kept_bytes"].as_u64().expect("a number");
    assert!(kept >= bytes.len() as u64 / 3, "{got:?}");
    assert_eq!(kept + got.count("fetched_bytes"), bytes.len() as u64);
}

#[test]
fn interrupted_client_reports_it_and_can_resume() {
    let world = World::new(2);
    let bytes = noise(9, 24 * MIB);
    world.put(0..2, "object", &bytes);
    let object = world.object(0..2, "object");
    let getting = world.get(&[&object, SLOW_LINK[0], SLOW_LINK[1]]);
    world.wait_for(bytes.len() / 4);
    getting.signal(Signal::INT);
    let got = getting.end();
    assert_eq!((got.code, &got.objects[0]["verdict"]), (Some(130), &"interrupted".into()), "{got:?}");
    let got = world.get(&[&object]).end();
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(world.has(&bytes));
    assert!(got.objects[0]["kept_bytes"].as_u64() >= Some(bytes.len() as u64 / 8), "{got:?}");
}

#[test]
fn keys_of_another_authority_are_refused_in_one_line() {
    let world = World::new(1);
    world.put(0..1, "object", b"bytes");
    world.make_keys("others");
    let mut command = anabranch();
    command.args(["gather", "get", "--keys"]).arg(world.path("others")).arg("-o").arg(world.path("out"));
    command.arg(world.object(0..1, "object"));
    let got = RunningClient::start_plain(command);
    assert_eq!(got.code, Some(1), "{got:?}");
    assert!(got.line().contains("authority") || got.line().contains("certificate"), "{got:?}");
}

#[test]
fn small_objects_arrive_and_invalid_names_are_refused() {
    let world = World::new(1);
    world.put(0..1, "empty", b"");
    world.put(0..1, "byte", b"x");
    std::fs::write(world.path("secret"), b"outside").expect("the folder is ours");
    std::os::unix::fs::symlink("../secret", world.path("server-0/leak")).expect("the folder is ours");
    for (name, bytes) in [("empty", &b""[..]), ("byte", b"x")] {
        let got = world.get(&[&world.object(0..1, name), "--replace"]).end();
        assert_eq!(got.code, Some(0), "{got:?}");
        assert!(world.has(bytes), "{name}");
    }
    for name in ["none", "leak", "none/at/all"] {
        let out = world.path("never");
        let got = world.get(&[&world.object(0..1, name), "-o", out.to_str().expect("plain")]).end();
        assert_eq!(got.code, Some(1), "{got:?}");
        assert!(got.reason().contains(&world.servers[0].at.to_string()), "{got:?}");
        let why = if name == "leak" { "outside the folder" } else { "no such object" };
        assert!(got.reason().contains(why), "{got:?}");
        assert!(!out.exists(), "{name}");
    }
    let got = world.get(&[&world.object(0..1, "../secret")]).end();
    assert_eq!(got.code, Some(2), "{got:?}");
    assert!(got.stderr.contains("a path without `..`"), "{got:?}");
}

#[test]
fn unwritable_output_is_reported_in_one_line() {
    let world = World::new(1);
    let bytes = noise(10, 4 * MIB);
    world.put(0..1, "object", &bytes);
    std::fs::write(world.path("file"), b"no folder").expect("the folder is ours");
    let object = world.object(0..1, "object");
    let below_a_file = world.path("file/out");
    let got = world.get(&[&object, "-o", below_a_file.to_str().expect("plain")]).end();
    assert_eq!(got.code, Some(1), "{got:?}");
    assert!(got.reason().contains("file") && !got.reason().contains('\n'), "{got:?}");

    let full = world.path("full");
    let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
    command.args(["gather", "get", "--json", &object]);
    command.arg("--keys").arg(world.path("keys")).arg("-o").arg(full.join("out"));
    let Some(command) = on_a_small_disk(&command, &full, 1) else { return };
    let got = RunningClient::start(command).end();
    assert_eq!(got.code, Some(1), "{got:?}");
    assert!(got.reason().to_lowercase().contains("no space"), "{got:?}");
    assert_eq!(got.count("fetched_bytes"), 0, "{got:?}");
}

impl RunningClient {
    /// Runs a command without `--json`.
    fn start_plain(mut command: Command) -> ClientOutput {
        let output = command.output().expect("the command runs");
        let stderr = text(&output.stderr);
        ClientOutput { code: output.status.code(), objects: Vec::new(), end: Value::Null, stderr }
    }
}

/// A client whose messages the test writes.
struct ManualClient {
    stream: tokio_rustls::TlsStream<tokio::net::TcpStream>,
    channel: seal::Channel,
    socket: tokio::net::UdpSocket,
    read: Vec<u8>,
}

impl ManualClient {
    async fn connect(keys: &Path, to: SocketAddr) -> Self {
        Self::connect_as(keys, "client", to).await.expect("it is let in")
    }

    /// Connects under a name. Returns the reason if it is refused.
    async fn connect_as(keys: &Path, name: &str, to: SocketAddr) -> Result<Self, String> {
        let id = ChannelId::random().expect("the system has randomness");
        Self::connect_with(keys, name, to, id).await
    }

    /// Connects under a name, with this channel.
    async fn connect_with(keys: &Path, name: &str, to: SocketAddr, id: ChannelId) -> Result<Self, String> {
        let files = CredentialFiles::in_set(keys, anabranch_gather::SYSTEM, Role::Operator, name);
        let identity = Identity::load(&files).expect("they were made");
        let tcp = tokio::net::TcpStream::connect(to).await.expect("the server listens");
        let (mut stream, _) = identity.connect_to_site(tcp).await.expect("of one authority");
        let channel = seal::channel(&stream, id).expect("TLS 1.3");
        write(&mut stream, &Control::Hello { channel: id.0 }).await;
        let mut read = Vec::new();
        let port = match hear(&mut stream, &mut read).await {
            Control::Welcome { port } => port,
            Control::Goodbye { reason } => return Err(reason),
            other => panic!("{other:?}"),
        };
        let socket = tokio::net::UdpSocket::bind("127.0.0.1:0").await.expect("loopback is there");
        socket.connect((to.ip(), port)).await.expect("loopback is there");
        Ok(Self { stream, channel, socket, read })
    }

    async fn say(&mut self, message: Control) {
        write(&mut self.stream, &message).await;
    }
    async fn hear(&mut self) -> Control {
        hear(&mut self.stream, &mut self.read).await
    }

    /// Counts the packets that arrive for a while.
    async fn packets(&mut self) -> usize {
        let mut buffer = vec![0; 1 << 16];
        let mut packets = 0;
        let end = tokio::time::Instant::now() + Duration::from_millis(400);
        while let Ok(length) = tokio::time::timeout_at(end, self.socket.recv(&mut buffer)).await {
            let length = length.expect("loopback is there");
            let opened = self.channel.opener.open(&mut buffer[..length]).expect("it is for us");
            assert!(matches!(Datagram::decode(opened.payload), Ok(Datagram::<Bytes>::Packet(_))));
            packets += 1;
        }
        packets
    }
}

async fn write(stream: &mut (impl tokio::io::AsyncWrite + Unpin), message: &Control) {
    let mut bytes = Vec::new();
    message.encode_framed(&mut bytes);
    stream.write_all(&bytes).await.expect("the server listens");
    stream.flush().await.expect("the server listens");
}

async fn hear(stream: &mut (impl tokio::io::AsyncRead + Unpin), read: &mut Vec<u8>) -> Control {
    loop {
        if let Some((message, length)) = Control::decode_framed(read).expect("well written") {
            read.drain(..length);
            return message;
        }
        let more = tokio::time::timeout(PATIENCE, stream.read_buf(read)).await.expect("an answer in time");
        assert!(more.expect("the server answers") > 0, "the server has closed the connection");
    }
}

/// Processor time of a process, in ticks.
fn processor_time(child: &Child) -> u64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("it runs");
    let fields: Vec<&str> = stat.rsplit_once(')').expect("a name").1.split_whitespace().collect();
    fields[11..13].iter().map(|field| field.parse::<u64>().expect("a number")).sum()
}

fn request(pull: u16, object: &str) -> Control {
    Control::Pull(Request {
        pull: PullId(pull),
        object: object.into(),
        start: 0,
        length: None,
        is_cut: false,
        mode: Mode::Counted,
        rate_control: RateControl::Bbr,
        block_bytes: 1_000,
        blocks_max: 64,
        window: 4,
        grant: None,
        start_after: Time::ZERO,
        rtt: Some(Time::from_us(100)),
        servers: 1,
    })
}

#[test]
fn no_packet_leaves_before_the_client_proves_its_address() {
    let world = World::new(1);
    world.put(0..1, "object", &noise(11, MIB));
    std::fs::write(world.path("secret"), b"outside").expect("the folder is ours");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let mut hand = ManualClient::connect(&world.path("keys"), world.servers[0].at).await;
        hand.say(request(0, "object")).await;
        assert!(matches!(hand.hear().await, Control::Accepted(accepted) if accepted.bytes == MIB as u64));
        let begun = processor_time(&world.servers[0].child);
        assert_eq!(hand.packets().await, 0);
        // Issue #4: unsendable due packets kept a processor busy. Ticks are 10 ms.
        assert!(processor_time(&world.servers[0].child) - begun < 20);
        // A datagram with the channel's id, but without the channel's keys, proves no address.
        let mut forged = vec![7; 48];
        forged[..8].copy_from_slice(&hand.channel.sealer.channel().0.to_be_bytes());
        hand.socket.send(&forged).await.expect("loopback is there");
        assert_eq!(hand.packets().await, 0);
        let mut shown = vec![0; seal::OVERHEAD_BYTES];
        hand.channel.sealer.seal(&mut shown).expect("the first of its key");
        hand.socket.send(&shown).await.expect("loopback is there");
        let end = Instant::now() + PATIENCE;
        while hand.packets().await == 0 {
            assert!(Instant::now() < end, "packets come once the client has shown where to");
        }

        // Names of objects that `get` would refuse to send.
        for (pull, name) in (1..).zip(["../secret", "/etc/passwd", "", ".", "object/../../secret"]) {
            hand.say(Control::Describe { object: name.into(), with_hash: false }).await;
            hand.say(Control::Describe { object: name.into(), with_hash: true }).await;
            hand.say(request(pull, name)).await;
            let (mut nothing, mut refused) = (0, 0);
            while (nothing, refused) != (2, 1) {
                match hand.hear().await {
                    Control::Described { found: Err(_), .. } => nothing += 1,
                    Control::Refused { reason, .. } if !reason.contains('\n') => refused += 1,
                    other => panic!("{name}: {other:?}"),
                }
            }
        }
    });
}

fn found(bytes: u64, hash: Option<[u8; 32]>) -> ObjectDescription {
    ObjectDescription { bytes, mode: 0o644, modified_ns: 0, hash }
}

/// A server whose messages the test writes. It reports the length of an object if `length` is
/// given, accepts no pull, and answers a request for the hash with `says`.
async fn listen_by_hand(
    keys: PathBuf,
    listener: tokio::net::TcpListener,
    bytes: Option<u64>,
    says: Option<Control>,
) {
    let files = CredentialFiles::in_set(&keys, anabranch_gather::SYSTEM, Role::Site, "server");
    let identity = Identity::load(&files).expect("they were made");
    let (tcp, _) = listener.accept().await.expect("a client connects");
    let (mut stream, _) = identity.accept(tcp).await.expect("of one authority");
    let mut read = Vec::new();
    assert!(matches!(hear(&mut stream, &mut read).await, Control::Hello { .. }));
    write(&mut stream, &Control::Welcome { port: 9 }).await;
    // Runs until the client disconnects.
    loop {
        if let Some((message, length)) = Control::decode_framed(&read).expect("well written") {
            read.drain(..length);
            match (message, &says) {
                (Control::Describe { object, with_hash: false }, _) => {
                    if let Some(bytes) = bytes {
                        write(&mut stream, &Control::Described { object, found: Ok(found(bytes, None)) })
                            .await;
                    }
                }
                (Control::Describe { .. }, Some(says)) => write(&mut stream, says).await,
                _ => {}
            }
        } else if stream.read_buf(&mut read).await.unwrap_or(0) == 0 {
            return;
        }
    }
}

/// The client sends its requests together with its greeting. If a server drops the connection
/// before its answer, the client repeats all requests over a new connection with another channel. A
/// message other than the answer is reported to the user.
#[test]
fn requests_sent_with_the_greeting_are_repeated_after_reconnection() {
    let world = World::new(0);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("loopback is there");
    let at = listener.local_addr().expect("it is bound");
    let keys = world.path("keys");
    let server = runtime.spawn(async move {
        let files = CredentialFiles::in_set(&keys, anabranch_gather::SYSTEM, Role::Site, "server");
        let identity = Identity::load(&files).expect("they were made");
        let mut heard = Vec::new();
        for is_last in [false, true] {
            let (tcp, _) = listener.accept().await.expect("a client connects");
            let (mut stream, _) = identity.accept(tcp).await.expect("of one authority");
            let mut read = Vec::new();
            let Control::Hello { channel } = hear(&mut stream, &mut read).await else { panic!("a greeting") };
            // This connection is dropped after the requests. The next one must repeat them.
            let mut asked = Vec::new();
            while !asked.contains(&true) {
                if let Control::Describe { object, with_hash } = hear(&mut stream, &mut read).await {
                    assert_eq!(object, "object");
                    asked.push(with_hash);
                }
            }
            heard.push((channel, asked));
            if is_last {
                write(&mut stream, &Control::Goodbye { reason: "full".into() }).await;
                // Reads on like a real server: closing with unread data loses the last message.
                while stream.read_buf(&mut read).await.unwrap_or(0) > 0 {}
            }
        }
        heard
    });
    let got = world.get(&[&format!("{at}/object")]).end();
    assert_eq!(got.code, Some(1), "{got:?}");
    assert!(got.reason().contains("it does not let this client in: full"), "{got:?}");
    let heard = runtime.block_on(server).expect("it ends with its client");
    let [(first, asked), (second, again)] = &heard[..] else { panic!("{heard:?}") };
    assert_eq!((asked, asked), (again, &vec![false, true]));
    assert_ne!(first, second, "another session's keys, and another channel");
}

/// Issue #4: a complete object never finished if no server answered the request for its hash.
#[test]
fn get_does_not_wait_for_a_server_without_answer() {
    let world = World::new(1);
    let bytes = noise(13, 20 * MIB);
    world.put(0..1, "object", &bytes);
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    let object = || "object".to_owned();
    let another = Control::Described { object: object(), found: Ok(found(1, Some([7; 32]))) };
    let length = Some(bytes.len() as u64);
    let taken_away = Control::Described { object: object(), found: Err("no such object".into()) };
    for (length, says) in [(None, None), (length, None), (length, Some(taken_away)), (length, Some(another))]
    {
        let listener =
            runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).expect("loopback is there");
        let at = listener.local_addr().expect("it is bound");
        let server = listen_by_hand(world.path("keys"), listener, length, says);
        let server = runtime.spawn(server);
        let holders = format!("{at},{}", world.object(0..1, "object"));
        // Shorter than the pause of a busy server with the object, the time would end the pull.
        let got = world.get(&[&holders, "--give-up", "5 s"]).end();
        assert_eq!(got.code, Some(0), "{got:?}");
        assert!(world.has(&bytes));
        runtime.block_on(server).expect("it ends with its client");
        std::fs::remove_file(world.path("out")).expect("it is there");
    }
}

#[test]
fn striped_file_is_reassembled_despite_a_dead_server() {
    let mut world = World::new(4);
    let bytes = noise(12, 20 * MIB + 3);
    std::fs::write(world.path("whole"), &bytes).expect("the folder is ours");
    let servers: Vec<String> = world.servers.iter().map(|server| server.at.to_string()).collect();
    let stripe = |more: &[&str]| {
        let mut command = anabranch();
        command.current_dir(world.folder.path()).args(["gather", "stripe", "whole", "--into", "cut"]);
        command.args(["--servers", &servers.join(",")]).args(more).output().expect("the command runs")
    };
    for (wrong, said) in [(["--copies", "5"], "1 to 4 servers"), (["--parts", "0"], "must be 1 to")] {
        let output = stripe(&wrong);
        assert_eq!(output.status.code(), Some(2), "{output:?}");
        let said_so = text(&output.stderr);
        assert!(said_so.contains(said) && said_so.trim_end().lines().count() == 1, "{said_so}");
    }
    let output = stripe(&["--copies", "2", "--json"]);
    assert!(output.status.success(), "{output:?}");
    let done: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(done["blake3"], blake3::hash(&bytes).to_hex().to_string());
    assert_eq!(done["part"].as_array().map(Vec::len), Some(4));
    for server in 0..4 {
        let cut = std::fs::read_dir(world.path(&format!("cut/{server}"))).expect("it was made");
        for part in cut {
            let part = part.expect("it can be listed");
            let name = part.file_name();
            let to = world.path(&format!("server-{server}")).join(name);
            std::fs::rename(part.path(), to).expect("the folder is ours");
        }
    }
    world.kill(3);
    let manifest = world.path("cut/whole.toml");
    let got = world.get(&["--manifest", manifest.to_str().expect("plain")]).end();
    assert_eq!(got.code, Some(0), "{got:?}");
    assert!(world.has(&bytes));
}

/// Creates eight servers, with two copies of each eighth of `bytes`. `harm` impairs their paths.
fn striped(bytes: &[u8], harm: Option<DatagramHarm>) -> World {
    let world = (0..8).fold(World::new(0), |world, _| world.with(harm, &[]));
    std::fs::write(world.path("whole"), bytes).expect("the folder is ours");
    let servers: Vec<String> = world.servers.iter().map(|server| server.at.to_string()).collect();
    let mut command = anabranch();
    command
        .current_dir(world.folder.path())
        .args(["gather", "stripe", "whole", "--into", "cut", "--copies", "2"]);
    let output = command.args(["--servers", &servers.join(",")]).output().expect("the command runs");
    assert!(output.status.success(), "{output:?}");
    std::fs::remove_file(world.path("whole")).expect("it was written");
    for server in 0..8 {
        for part in std::fs::read_dir(world.path(&format!("cut/{server}"))).expect("it was made") {
            let part = part.expect("it can be listed");
            let to = world.path(&format!("server-{server}")).join(part.file_name());
            std::fs::rename(part.path(), to).expect("the folder is ours");
        }
    }
    world
}

/// Issue #4, "done when" 2: a gibibyte striped over eight servers survives all faults.
#[test]
#[ignore = "five pulls of a gibibyte take minutes: `make claims`"]
fn gibibyte_arrives_intact_under_all_faults() {
    let bytes = noise(14, 1 << 30);
    let lossy = DatagramHarm { loss_ppm: 50_000, ..DatagramHarm::default() };
    let mangling = DatagramHarm {
        loss_ppm: 10_000,
        flip_ppm: 10_000,
        repeat_ppm: 20_000,
        late_ppm: 20_000,
        replay_ppm: 20_000,
        spoofs: true,
    };
    for (what, harm) in [
        ("as it is", None),
        ("one of eight killed half way", None),
        ("client killed half way", None),
        ("5 % lost", Some(lossy)),
        ("damaged, doubled, late, replayed, forged", Some(mangling)),
    ] {
        let mut world = striped(&bytes, harm);
        let manifest = world.path("cut/whole.toml");
        let arguments = ["--manifest", manifest.to_str().expect("plain")];
        let mut getting = world.get(&arguments);
        if what.ends_with("half way") {
            world.wait_for(bytes.len() / 2);
        }
        if what.starts_with("one") {
            world.kill(3);
        } else if what.starts_with("client") {
            getting.signal(Signal::KILL);
            drop(getting.end());
            getting = world.get(&arguments);
        }
        let got = getting.end_within(Duration::from_secs(300));
        assert_eq!(got.code, Some(0), "{what}: {got:?}");
        assert!(world.has(&bytes), "{what}");
        let row = |name: &str| format!("{name} {}", got.end[name]);
        let rows = [
            "goodput_bps",
            "took_s",
            "fetched_bytes",
            "received_packets",
            "useless_packets",
            "forged_packets",
            "replayed_packets",
            "unknown_datagrams",
            "dropped_by_the_kernel",
        ];
        println!("{what}: {}; {}", got.objects[0]["verdict"], rows.map(row).join(", "));
    }
}
