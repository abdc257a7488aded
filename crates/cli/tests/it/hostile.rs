//! Memory under authenticated but malicious peers.
//!
//! A controller, a source, a relay and a destination run as processes on loopback. The test plays
//! two more sites of the same network: `e`, which sends, and `z`, which receives. Both use the
//! control protocol correctly until they take part in real transfers. Then they misbehave in every
//! way that costs other processes memory. Each process's peak memory is `VmHWM`; afterwards an
//! honest transfer must still succeed.

#![allow(clippy::disallowed_methods, reason = "tests of drivers: processes, files, sockets and clocks")]

mod misdeeds;

use crate::net::{PATIENCE, anabranch, noise, peak_bytes, skip};
use anabranch_graph::Topology;
use anabranch_graph::file::{Defaults, load};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::socket::{self, TcpOptions};
use anabranch_net::tls::CredentialFiles;
use anabranch_pieces::GenerationHash;
use anabranch_replicate::wire::{DestinationRequest, LinkAddress, SubmitRequest};
use anabranch_replicate::{Client, SiteLink};
use anabranch_replicate_proto::control::{
    Command, Inventory, OutgoingSpec, Report, Run, SiteProgram, TransferId,
};
use anabranch_replicate_proto::coordinator::SchemeChoice;
use anabranch_replicate_proto::msg::{FrameHeader, Hello, HelloReply, SYMBOL_BYTES_MAX};
use anabranch_testing::ports::free_port;
use anabranch_units::BitRate;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsStream;

/// `s` reaches `d` through `r`, and `e` reaches `z` through `r`; `e` is also a neighbour of `d`.
const NETWORK: &str = r#"
[defaults]
capacity = "1 Gbit/s"
[[site]]
name = "s"
[[site]]
name = "r"
[[site]]
name = "d"
[[site]]
name = "e"
[[site]]
name = "z"
[[cable]]
between = ["s", "r"]
[[cable]]
between = ["r", "d"]
[[cable]]
between = ["e", "r"]
[[cable]]
between = ["r", "z"]
[[cable]]
between = ["e", "d"]
"#;

const MIB: u64 = 1 << 20;
/// Memory limit of each site, set by `--memory`.
const SITE_MEMORY: u64 = 40 * MIB;
/// Maximum memory of a site's process above that limit.
const SITE_REST: u64 = 64 * MIB;
/// Maximum memory of the controller: its own, one large request, and small requests of some peers.
const CONTROLLER_MEMORY: u64 = 128 * MIB;
/// Bytes of a symbol: the default, with which 64 stripes just fit [`SITE_MEMORY`].
const SYMBOL: u32 = 65_536;

/// The honest processes, and the keys and topology that the dishonest sites need.
struct World {
    folder: tempfile::TempDir,
    topology: Topology,
    daemons: BTreeMap<&'static str, Child>,
    ports: BTreeMap<&'static str, u16>,
}

impl World {
    fn new() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = folder.path().join("network.toml");
        std::fs::write(&path, NETWORK).expect("the folder is ours");
        let read = |p: &str| std::fs::read_to_string(p);
        let topology = load(path.to_str().expect("plain"), &Defaults::new(BitRate::mbps(10)), read);
        let names = ["controller", "s", "r", "d", "e", "z"];
        let mut world = Self {
            folder,
            topology: topology.expect("a good topology"),
            daemons: BTreeMap::new(),
            ports: names.into_iter().map(|n| (n, free_port())).collect(),
        };
        let made = world.command(&["keys", "init", "--topology", "network.toml"]).output();
        assert!(made.expect("the command runs").status.success());
        let controller = world.address("controller").to_string();
        world.start("controller", &["controller", "--listen", &controller]);
        let end = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(world.address("controller")).is_err() {
            assert!(Instant::now() < end, "the controller listens");
            std::thread::sleep(Duration::from_millis(10));
        }
        for site in ["s", "r", "d"] {
            std::fs::create_dir(world.folder.path().join(site)).expect("a new folder");
            let (listen, memory) = (world.address(site).to_string(), format!("{SITE_MEMORY} B"));
            let own = ["relay", "--site", site, "--dir", site, "--listen", &listen, "--memory", &memory];
            world.start(site, &[&own[..], &["--controller", &controller]].concat());
        }
        world
    }

    fn start(&mut self, who: &'static str, words: &[&str]) {
        let log = std::fs::File::create(self.log(who)).expect("the folder is ours");
        let mut command = self.command(&[words, &["--topology", "network.toml"]].concat());
        self.daemons.insert(who, command.stderr(log).spawn().expect("a daemon starts"));
    }

    fn command(&self, words: &[&str]) -> std::process::Command {
        let mut command = anabranch();
        command.current_dir(self.folder.path()).arg("replicate").args(words).stdout(Stdio::null());
        command
    }

    fn log(&self, who: &str) -> PathBuf {
        self.folder.path().join(format!("{who}.log"))
    }

    fn address(&self, who: &str) -> SocketAddr {
        ([127, 0, 0, 1], self.ports[who]).into()
    }

    fn credentials(&self, role: Role, name: &str) -> Identity {
        let files = CredentialFiles::in_set(
            &self.folder.path().join("keys/replicate"),
            anabranch_replicate::SYSTEM,
            role,
            name,
        );
        Identity::load(&files).expect("`keys init` made them")
    }

    fn client(&self, role: Role, name: &str) -> Client {
        let address = self.address("controller").to_string();
        Client::new(address, &self.credentials(role, name), PATIENCE).expect("good credentials")
    }

    /// Peak memory of a process since its start.
    fn peak(&self, who: &str) -> u64 {
        peak_bytes(&self.daemons[who])
    }

    fn show(&self, after: &str) {
        let peaks = ["s", "r", "d", "controller"].map(|who| format!("{who} {}", self.peak(who) / MIB));
        println!("peak MiB after {after}: {}", peaks.join(", "));
    }

    fn assert_bounds(&self) {
        for who in ["s", "r", "d"] {
            let (peak, bound) = (self.peak(who), SITE_MEMORY + SITE_REST);
            assert!(peak < bound, "{who} took {} MiB, bound {} MiB", peak / MIB, bound / MIB);
        }
        let (peak, bound) = (self.peak("controller"), CONTROLLER_MEMORY);
        assert!(peak < bound, "the controller took {} MiB, bound {} MiB", peak / MIB, bound / MIB);
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in self.daemons.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for who in self.daemons.keys() {
                eprintln!("--- {who}\n{}", std::fs::read_to_string(self.log(who)).unwrap_or_default());
            }
        }
    }
}

/// A site that the test plays.
struct Actor {
    identity: Arc<Identity>,
    link: Arc<SiteLink>,
    programs: mpsc::UnboundedReceiver<SiteProgram>,
    tasks: tokio::task::JoinSet<()>,
}

/// Claimed length of the dishonest source's file.
const CLAIMED: u64 = 4 << 30;

impl Actor {
    /// Registers the site, answers the controller's questions, and forwards the controller's
    /// commands.
    fn new(world: &World, name: &str) -> Self {
        Self::at(world, name, &world.address(name).to_string())
    }

    /// As [`Self::new`], with `address` as the site's address for other sites.
    fn at(world: &World, name: &str, address: &str) -> Self {
        let site = world.topology.find_site(name).expect("a site");
        let addresses = world.topology.links_in(site);
        let addresses = addresses.map(|link| LinkAddress { link, address: address.to_owned() }).collect();
        let link = SiteLink::new(
            world.client(Role::Site, name),
            name,
            anabranch_replicate::wire::RegisterRequest::new(7, addresses),
        );
        let link = Arc::new(link);
        let (programs_out, programs) = mpsc::unbounded_channel();
        let mut tasks = tokio::task::JoinSet::new();
        let own = Arc::clone(&link);
        tasks.spawn(async move {
            loop {
                for command in own.next_commands().await.expect("the controller lives") {
                    let report = match command {
                        Command::Inquire { run, is_source, .. } => {
                            let length = is_source.then_some(CLAIMED);
                            Report::Inventory(Inventory { length, ..Inventory::new(run) })
                        }
                        Command::Install { program } => {
                            let run = program.run;
                            programs_out.send(*program).expect("the test listens");
                            Report::Ready { run }
                        }
                        _ => continue,
                    };
                    own.report(&[report]).await.expect("the controller lives");
                }
            }
        });
        let identity = world.credentials(Role::Site, name);
        Self { identity: Arc::new(identity), link, programs, tasks }
    }

    async fn program(&mut self) -> SiteProgram {
        let next = tokio::time::timeout(PATIENCE, self.programs.recv());
        next.await.expect("the controller installs in time").expect("the actor lives")
    }

    /// Accepts every flow and sends heartbeats, but reads no data.
    fn read_nothing(&mut self, at: SocketAddr) {
        let identity = Arc::clone(&self.identity);
        self.tasks.spawn(async move {
            let listener = TcpListener::bind(at).await.expect("a free port");
            let mut held = tokio::task::JoinSet::new();
            loop {
                let (tcp, _) = listener.accept().await.expect("accepts");
                let identity = Arc::clone(&identity);
                held.spawn(async move {
                    let Ok((mut stream, _)) = identity.accept(tcp).await else { return };
                    let mut hello = [0; Hello::LEN];
                    let _ = stream.read_exact(&mut hello).await;
                    let _ = stream.write_u8(HelloReply::Welcome.encode()).await;
                    while stream.write_u8(1).await.is_ok() && stream.flush().await.is_ok() {
                        tokio::time::sleep(Duration::from_millis(500)).await;
                    }
                });
            }
        });
    }
}

/// A greeted and accepted connection for one stripe of a flow.
async fn greeted(identity: &Identity, run: Run, out: &OutgoingSpec, stripe: u16) -> TlsStream<TcpStream> {
    let end = Instant::now() + PATIENCE;
    loop {
        assert!(Instant::now() < end, "{} does not take the flow in", out.to_name);
        let tried = async {
            let to = out.address.parse().expect("an address");
            let tcp = socket::connect(to, &TcpOptions::default()).await?;
            let mut stream = identity.connect(tcp, Role::Site, &out.to_name).await?;
            stream.write_all(&Hello { run, flow: out.flow, stripe }.encode()).await?;
            stream.flush().await?;
            let reply = stream.read_u8().await?;
            std::io::Result::Ok((stream, reply))
        };
        if let Ok((stream, 0)) = tried.await {
            return stream;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

fn data(generation: u64, length: u32) -> [u8; FrameHeader::LEN] {
    FrameHeader::Data { generation, hash: GenerationHash([7; 32]), length }.encode()
}

/// Misbehaviour of a dishonest source on each of its stripes, until the connection ends.
#[derive(Copy, Clone, Debug)]
enum Flood {
    /// All pieces except the next expected one, as fast as possible, and most of one further frame.
    AllButTheNext,
    /// Pieces with wrong hashes, as fast as possible.
    WrongHashes,
    /// The same piece, repeatedly.
    Duplicates,
    /// Most of a frame of the maximum size, without its end.
    HalfAFrame,
    /// A frame above the maximum size.
    TooLarge,
    /// A generation beyond the end of the file.
    BeyondTheEnd,
}

impl Flood {
    /// True if the receiver closes the connection at once.
    fn is_refused(self) -> bool {
        matches!(self, Self::TooLarge | Self::BeyondTheEnd)
    }
}

async fn flood(how: Flood, stripe: u16, stripes: u16, symbol: u32, stream: &mut TlsStream<TcpStream>) {
    let body = vec![stripe as u8; symbol as usize];
    let mut sent = 0u64;
    loop {
        let generation = match how {
            Flood::AllButTheNext => 1 + u64::from(stripe) + sent * u64::from(stripes),
            Flood::WrongHashes => u64::from(stripe) + sent * u64::from(stripes),
            Flood::BeyondTheEnd => CLAIMED,
            Flood::Duplicates | Flood::HalfAFrame | Flood::TooLarge => 0,
        };
        let length = if matches!(how, Flood::TooLarge) { SYMBOL_BYTES_MAX + 1 } else { symbol };
        let half = matches!(how, Flood::HalfAFrame);
        let part = if half { &body[1..] } else { &body[..] };
        let wrote = async {
            stream.write_all(&data(generation, length)).await?;
            stream.write_all(part).await?;
            stream.flush().await
        };
        if wrote.await.is_err() {
            return;
        }
        if half {
            return std::future::pending().await;
        }
        sent += 1;
    }
}

/// Makes `e` send to `to` with misbehaviour `how`: with the maximum number of stripes for `long`,
/// or with one stripe until the receiver closes it.
async fn bad_source(
    world: &World,
    e: &mut Actor,
    to: &str,
    scheme: SchemeChoice,
    how: Flood,
    long: Duration,
) {
    let operator = world.client(Role::Operator, "operator");
    let id = submit(&operator, "e", to, scheme, if how.is_refused() { 1 } else { 64 }).await;
    let program = e.program().await;
    let mut tasks = tokio::task::JoinSet::new();
    for out in program.outgoing {
        for stripe in 0..out.hop.stripes {
            let (identity, out, run) = (Arc::clone(&e.identity), out.clone(), program.run);
            tasks.spawn(async move {
                let mut stream = greeted(&identity, run, &out, stripe).await;
                flood(how, stripe, out.hop.stripes, SYMBOL, &mut stream).await;
            });
        }
    }
    let ends = async { while tasks.join_next().await.is_some() {} };
    let ended = tokio::time::timeout(if how.is_refused() { PATIENCE } else { long }, ends).await.is_ok();
    assert!(ended || !how.is_refused(), "{how:?} was not refused");
    operator.cancel(id).await.expect("the controller lives");
    world.show(&format!("{how:?} from e to {to}"));
}

async fn submit(operator: &Client, from: &str, to: &str, scheme: SchemeChoice, stripes: u16) -> TransferId {
    let destination = DestinationRequest { site: to.into(), path: format!("from-{from}") };
    let mut request = SubmitRequest::new(from, "file", vec![destination]);
    (request.scheme, request.symbol_bytes, request.hop.stripes) = (scheme, SYMBOL, stripes);
    operator.submit(&request).await.expect("a good request")
}

/// Opens many connections to `to` that send no greeting: some are silent, some stop in the middle
/// of the TLS handshake, some after the handshake.
fn loiter(
    tasks: &mut tokio::task::JoinSet<()>,
    identity: &Arc<Identity>,
    to: SocketAddr,
    role: Role,
    who: &str,
) {
    for number in 0..330 {
        let (identity, who) = (Arc::clone(identity), who.to_owned());
        tasks.spawn(async move {
            loop {
                let Ok(mut tcp) = TcpStream::connect(to).await else { return };
                match number % 3 {
                    0 => drop(tcp.read_u8().await),
                    1 => {
                        // A handshake message of 64 KiB without its end.
                        let record = [&[22, 3, 1, 0x40, 0][..], &[1, 0, 0xff, 0x00], &[0; 0x3ffc]].concat();
                        for _ in 0..3 {
                            let _ = tcp.write_all(&record).await;
                        }
                        let _ = tcp.read_u8().await;
                    }
                    _ => {
                        if let Ok(mut stream) = identity.connect(tcp, role, &who).await {
                            let _ = stream.read_u8().await;
                        }
                    }
                }
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        });
    }
}

/// Sends a raw request to the controller, which the client would not send.
async fn raw_request(world: &World, identity: &Identity, path: &str, length: usize, body: &[u8]) -> String {
    let to = world.address("controller");
    let tried = async {
        let tcp = TcpStream::connect(to).await?;
        let mut stream = identity.connect(tcp, Role::Controller, "controller").await?;
        let head = format!("POST {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
        stream.write_all(head.as_bytes()).await?;
        stream.write_all(body).await?;
        stream.flush().await?;
        let mut answer = vec![0; 64];
        let read = stream.read(&mut answer).await?;
        answer.truncate(read);
        std::io::Result::Ok(String::from_utf8_lossy(&answer).into_owned())
    };
    tried.await.unwrap_or_else(|e| e.to_string())
}

/// Sends concurrent requests with bodies of the maximum size, some without their last byte.
async fn bodies(world: &World, e: &Actor, long: Duration) {
    let most = 4 * MIB as usize;
    let run = r#""run":{"transfer":1,"attempt":1}"#;
    let list = |begin: String, item: &str, end: &str| {
        let mut text = begin;
        while text.len() + item.len() + end.len() + 1 < most {
            text.push_str(item);
            text.push(',');
        }
        text.pop();
        text.push_str(end);
        Arc::new(text + &" ".repeat(8))
    };
    let first = r#"{"session":7,"batch":1000000,"reports":["#;
    let ranges = format!(r#"{first}{{"report":"inventory",{run},"length":1,"hash":null,"have":["#);
    let bodies = [
        // A body with the maximum number of ranges, and a body with more.
        list(ranges.clone(), r#"{"start":9223372036854775806,"end":9223372036854775807}"#, "]}]}"),
        list(ranges, r#"{"start":1,"end":2}"#, "]}]}"),
        list(first.to_owned(), &format!(r#"{{"report":"ready",{run}}}"#), "]}"),
        list(
            first.to_owned(),
            &format!(r#"{{"report":"failed",{run},"kind":"refused","reason":"x"}}"#),
            "]}",
        ),
    ];
    let end = Instant::now() + long;
    let futures = (0..24).map(|number| {
        let (identity, body) = (Arc::clone(&e.identity), Arc::clone(&bodies[number % bodies.len()]));
        async move {
            let slow = number >= 16;
            let part = if slow { &body.as_bytes()[..body.len() - 1] } else { body.as_bytes() };
            loop {
                let asked = raw_request(world, &identity, "/v1/sites/e/reports", body.len(), part);
                let Ok(_) = tokio::time::timeout(end.saturating_duration_since(Instant::now()), asked).await
                else {
                    return;
                };
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        }
    });
    futures_util::future::join_all(futures).await;
    world.show("large requests of e");
}

fn attack(long: Duration) {
    let world = World::new();
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let (mut e, mut z) = (Actor::new(&world, "e"), Actor::new(&world, "z"));
        z.read_nothing(world.address("z"));
        world.show("the start");

        // Both neighbours of the relay are dishonest, so that its buffers and all its readers fill
        // up.
        for scheme in [SchemeChoice::Coded, SchemeChoice::SinglePath] {
            bad_source(&world, &mut e, "z", scheme, Flood::AllButTheNext, long).await;
        }
        for how in [Flood::HalfAFrame, Flood::WrongHashes, Flood::Duplicates] {
            bad_source(&world, &mut e, "d", SchemeChoice::SinglePath, how, long).await;
        }
        for how in [Flood::TooLarge, Flood::BeyondTheEnd] {
            bad_source(&world, &mut e, "d", SchemeChoice::Coded, how, long).await;
        }
        while e.programs.try_recv().is_ok() {}

        // An honest source, whose destination reads nothing.
        let bytes = noise(9, 48 << 20);
        std::fs::write(world.folder.path().join("s/file"), &bytes).expect("the folder is ours");
        let operator = world.client(Role::Operator, "operator");
        let id = submit(&operator, "s", "z", SchemeChoice::SinglePath, 64).await;
        z.program().await;
        tokio::time::sleep(long).await;
        operator.cancel(id).await.expect("the controller lives");
        world.show("a destination that reads nothing");

        let mut loiterers = tokio::task::JoinSet::new();
        for site in ["s", "r", "d"] {
            loiter(&mut loiterers, &e.identity, world.address(site), Role::Site, site);
        }
        loiter(&mut loiterers, &e.identity, world.address("controller"), Role::Controller, "controller");
        tokio::time::sleep(long).await;
        loiterers.shutdown().await;
        world.show("connections that never greet");

        bodies(&world, &e, long).await;
        drop(e.link);

        // Afterwards an honest transfer must succeed.
        let mut request = SubmitRequest::new(
            "s",
            "file",
            vec![DestinationRequest { site: "d".into(), path: "copy".into() }],
        );
        request.symbol_bytes = SYMBOL;
        let id = operator.submit(&request).await.expect("a good request");
        let end = Instant::now() + PATIENCE;
        let view = loop {
            let view = operator.status(id).await.expect("the controller lives");
            if view.outcome.is_some() || Instant::now() > end {
                break view;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        };
        assert_eq!(view.exit_code, Some(0), "{view:?}");
        let copy = std::fs::read(world.folder.path().join("d/copy")).expect("it has its name");
        assert!(copy == bytes, "the copy is the file");
        world.show("an honest transfer");
        world.assert_bounds();
    });
}

#[test]
fn memory_stays_bounded_under_malicious_input() {
    attack(Duration::from_millis(800));
}

#[test]
#[ignore = "ten attacks of 15 s take two minutes: `make claims`"]
fn memory_stays_bounded_under_long_misbehaviour_of_peers() {
    attack(Duration::from_secs(15));
}
