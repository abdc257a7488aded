//! Memory of a real `spray` agent with an authenticated but malicious peer.
//!
//! The agent runs in one network namespace; the test plays its peer in another. If the machine
//! allows no namespaces or TUN devices, the test prints the reason and counts as skipped.
//! `ANABRANCH_ROGUE_S=300` makes the attack last 300 s. Read [`RoguePeer`] first.

#![allow(clippy::disallowed_methods, reason = "tests of drivers: processes, files, sockets and clocks")]

use crate::namespace::Namespace;
use crate::net::{PATIENCE, anabranch};
use anabranch_endpoint::{Bytes, WireMessage as _};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::seal::{self, ChannelId, HEADER_BYTES, Sealer, TAG_BYTES};
use anabranch_net::tls::CredentialFiles;
use anabranch_spray_proto::control::{Control, Readiness};
use anabranch_spray_proto::{Body, Datagram};
use anabranch_testing::skip::skip;
use anabranch_units::{Instant as Time, Seed};
use serde_json::Value;
use std::net::{TcpStream, UdpSocket};
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::runtime::Runtime;
use tokio_rustls::TlsStream;

/// Maximum memory of the agent's process.
const AGENT_MEMORY_MIB: u64 = 64;
/// Default duration of an attack in seconds.
const ATTACK_S: u64 = 6;
const AGENT: &str = "10.77.0.2:7200";
/// Number of flows in the attack.
const FLOWS: u64 = 3_000;

/// A peer of the agent that the test plays.
struct RoguePeer {
    runtime: Runtime,
    stream: TlsStream<tokio::net::TcpStream>,
    socket: UdpSocket,
    sealer: Sealer,
    sent: u32,
}

impl RoguePeer {
    /// Connects to the agent from a namespace, and agrees on keys. The agent listens before it has
    /// resolved its peers' addresses, so it may refuse a first connection.
    fn connect(host: &Namespace, identity: &Identity) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
        let began = Instant::now();
        let (stream, channel) = loop {
            let called = host.run(|| TcpStream::connect(AGENT));
            match called.and_then(|tcp| runtime.block_on(Self::greet(tcp, identity))) {
                Ok(greeted) => break greeted,
                Err(error) => assert!(began.elapsed() < PATIENCE, "the agent never greets: {error}"),
            }
            std::thread::sleep(Duration::from_millis(20));
        };
        let socket = host.run(|| UdpSocket::bind("10.77.0.1:0").expect("a free port"));
        socket.connect(AGENT).expect("an address");
        let sealer = seal::channel(&stream, channel).expect("keys").sealer;
        Self { runtime, stream, socket, sealer, sent: 0 }
    }

    async fn greet(
        tcp: TcpStream,
        identity: &Identity,
    ) -> std::io::Result<(TlsStream<tokio::net::TcpStream>, ChannelId)> {
        tcp.set_nonblocking(true)?;
        let mut stream = identity.connect(tokio::net::TcpStream::from_std(tcp)?, Role::Site, "b").await?;
        let channel = ChannelId::random().map_err(std::io::Error::other)?;
        say(&mut stream, Control::Hello { channel: channel.0 }).await;
        stream.read_exact(&mut [0; 10]).await?;
        Ok((stream, channel))
    }

    /// Sends a keep-alive, so that the session continues.
    fn say_alive(&mut self) {
        let alive =
            Control::Alive { readiness: Readiness::Ready, longest_bytes: 1_472, came: self.sent.into() };
        self.runtime.block_on(say(&mut self.stream, alive));
    }

    fn send(&mut self, flow: u32, sent_at: Time, body: Body<Bytes>) {
        let datagram = Datagram { number: self.sent, sent_at, flow, body, echoes: Vec::new() };
        let mut bytes = vec![0; HEADER_BYTES];
        datagram.encode(&mut bytes);
        bytes.extend([0; TAG_BYTES]);
        self.sealer.seal(&mut bytes).expect("the key lasts");
        self.sent += 1;
        // The socket may refuse the datagram while the host's buffers are full.
        let _ = self.socket.send(&bytes);
    }

    /// Sends the input that takes the most memory: parities of units that never complete, packets
    /// beyond gaps, and packets in order of many flows.
    fn attack(&mut self, time: Duration) {
        let mut random = Seed::new(1).stream("rogue", 0);
        let packet = Bytes::from(vec![0; 1_300]);
        let (began, mut said_at) = (Instant::now(), None::<Instant>);
        while began.elapsed() < time {
            if said_at.is_none_or(|at| at.elapsed() > Duration::from_millis(500)) {
                self.say_alive();
                said_at = Some(Instant::now());
            }
            let (epoch, packet) = (Time::ZERO, packet.clone());
            let flow = random.below(FLOWS) as u32;
            let now = Time::from_us(began.elapsed().as_micros() as u64);
            match self.sent / 30_000 % 3 {
                0 => {
                    let (first, index) = (random.below(15) as u32 * 64, random.below(63) as u8);
                    self.send(flow, now, Body::Parity { epoch, first, packets: 64, index, parity: packet });
                }
                1 => {
                    // A very late packet makes the host hold the packets after it.
                    let sent_at = if random.below(1_000) == 0 { Time::ZERO } else { now };
                    let number = 1 + self.sent / 16 * 2;
                    self.send(self.sent % 16, sent_at, Body::Source { epoch, number, packet });
                }
                _ => {
                    let number = self.sent / FLOWS as u32;
                    self.send(self.sent % FLOWS as u32, now, Body::Source { epoch, number, packet });
                }
            }
        }
    }
}

async fn say(stream: &mut TlsStream<tokio::net::TcpStream>, message: Control) {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    stream.write_all(&bytes).await.expect("the agent listens");
    stream.flush().await.expect("the agent listens");
}

/// The agent's process, and the path of its status socket.
struct Agent {
    process: Child,
    socket: std::path::PathBuf,
}

impl Agent {
    fn start(host: &Namespace, folder: &Path, name: &str, peer: &str) -> Self {
        let socket = folder.join(format!("{name}.sock"));
        let mut agent = anabranch();
        agent.args(["-q", "spray", "up", "--name", name, "--peer", peer, "--keys"]).arg(folder.join("keys"));
        agent.arg("--socket").arg(&socket).stdout(Stdio::null());
        Self { process: host.run(move || agent.spawn()).expect("it runs"), socket }
    }

    /// Status of the agent's only peer.
    fn peer(&self) -> Value {
        let mut status = anabranch();
        let output = status.args(["spray", "status", "--json", "--socket"]).arg(&self.socket).output();
        let status: Value = serde_json::from_slice(&output.expect("it runs").stdout).unwrap_or_default();
        status["peers"][0].clone()
    }

    /// A value of `/proc/PID/status`, in MiB.
    fn memory_mib(&self, what: &str) -> u64 {
        let state = std::fs::read_to_string(format!("/proc/{}/status", self.process.id())).expect("it lives");
        let line = state.lines().find_map(|line| line.strip_prefix(what)).expect("a process has memory");
        line.trim_start_matches(':').trim().trim_end_matches(" kB").parse::<u64>().expect("a number") >> 10
    }

    /// Waits until `is_right` returns true for the peer's status; `what` names the condition in the
    /// error.
    fn wait(&self, what: &str, is_right: impl Fn(&Value) -> bool) {
        let began = Instant::now();
        while !is_right(&self.peer()) {
            assert!(began.elapsed() < PATIENCE, "never {what}: {}", self.peer());
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Agent {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// #48: a peer made the agent's process take 1.3 GiB of memory in 45 s, and the memory was never
/// freed.
#[test]
fn agents_memory_is_bounded_under_a_hostile_peer() {
    let hosts = || -> Result<_, String> {
        let hosts = [Namespace::start()?, Namespace::start()?];
        hosts[0].connect("v0", &hosts[1], "v0")?;
        for (host, number) in hosts.iter().zip(1..) {
            host.command(&format!("ip address add 10.77.0.{number}/24 dev v0"))?;
            host.command("ip link set v0 up")?;
            host.command("ip link set lo up")?;
        }
        Ok(hosts)
    };
    let hosts = match hosts() {
        Ok(hosts) => hosts,
        Err(why) => return skip(&why),
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let keys = folder.path().join("keys");
    let mut made = anabranch();
    assert!(
        made.args(["-q", "spray", "keys", "--hosts", "a,b", "--out"])
            .arg(&keys)
            .status()
            .expect("it runs")
            .success()
    );
    let agent = Agent::start(&hosts[1], folder.path(), "b", "a=10.77.0.1");
    let files = CredentialFiles::in_set(&keys, anabranch_spray::SYSTEM, Role::Site, "a");
    let mut rogue = RoguePeer::connect(&hosts[0], &Identity::load(&files).expect("keys were made"));
    let attack_s = std::env::var("ANABRANCH_ROGUE_S").ok().and_then(|text| text.parse().ok());
    let mut left_s = attack_s.unwrap_or(ATTACK_S);
    println!("RSS before: {} MiB", agent.memory_mib("VmRSS"));
    let began = Instant::now();
    // A busy machine needs longer for an attack that costs memory.
    let has_come = |peer: &Value| {
        peer["came_datagrams"].as_u64() > Some(20_000) && peer["held_bytes"].as_u64() > Some(1 << 20)
    };
    while left_s > 0 || (!has_come(&agent.peer()) && began.elapsed() < PATIENCE) {
        let part_s = left_s.clamp(1, 20);
        rogue.attack(Duration::from_secs(part_s));
        left_s = left_s.saturating_sub(part_s);
        let peer = agent.peer();
        let figures =
            ["came_datagrams", "held_bytes", "shed_flows", "flows"].map(|name| peer[name].to_string());
        println!("{left_s} s left: RSS {} MiB, {figures:?}", agent.memory_mib("VmRSS"));
    }
    let (peer, peak) = (agent.peer(), agent.memory_mib("VmHWM"));
    println!("peak: {peak} MiB");
    assert!(peer["came_datagrams"].as_u64() > Some(20_000), "the attack does not come: {peer}");
    assert!(peer["held_bytes"].as_u64() > Some(1 << 20), "the attack holds nothing: {peer}");
    assert!(peak < AGENT_MEMORY_MIB, "{peak} MiB");
    // The session ends with its connection, and its memory is freed.
    drop(rogue);
    agent.wait("empty", |peer| peer["held_bytes"] == 0 && peer["flows"] == 0 && peer["is_up"] == false);
    println!("RSS after: {} MiB", agent.memory_mib("VmRSS"));
    // An honest agent with the same key is accepted.
    let honest = Agent::start(&hosts[0], folder.path(), "a", "b=10.77.0.2");
    honest.wait("up", |peer| peer["is_up"] == true);
    agent.wait("up", |peer| peer["is_up"] == true);
}
