//! Memory, logs and viewers of `live` under hostile publishers, nodes, neighbours and viewers.
//!
//! A controller, a source, a reflector, an edge and an honest publisher run as processes on
//! loopback. An honest viewer reads parts at the edge. The test plays reflector `mallory` and edge
//! `oscar` of the same network, and strangers without keys. Read [`World`] first, then
//! [`hostile_parties_fill_no_memory_and_no_log`].

#![allow(clippy::disallowed_methods, reason = "tests of drivers: processes, files, sockets and clocks")]

mod nodes;
mod strangers;

use crate::net::{PATIENCE, anabranch, peak_bytes, raise_open_files};
use anabranch_http::origin::Origin;
use anabranch_live::SYSTEM;
use anabranch_live::description::{Description, Layout};
use anabranch_media::hls::{DeliveryDirectives, MediaPlaylist};
use anabranch_net::identity::Identity;
use anabranch_net::keys::Role;
use anabranch_net::tls::CredentialFiles;
use anabranch_testing::ports::free_port;
use hyper::{HeaderMap, StatusCode};
use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::{Child, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::time::{sleep, timeout};

const MIB: u64 = 1 << 20;
/// Maximum growth of a daemon's peak memory. An edge holds 16 MiB of an endless object, and may
/// hold three. A frame of a neighbour has 8 MiB, a request to the controller takes 32 MiB, and the
/// source's window has 8 MiB here. The rest is for 400 connections and the allocator.
const GROWTH_MAX: u64 = 96 * MIB;
/// Bytes of each endless upload and object: more than [`GROWTH_MAX`].
const ENDLESS_BYTES: u64 = 128 * MIB;
/// Maximum number of log lines of a daemon about all attacks, without the lines about wrong tokens.
/// Each kind of attack has one line. Equal lines return after a minute, on a slow machine.
const LINES_MAX: usize = 40;
/// Token of the honest publisher, for channel `news`.
const TOKEN: &str = "0123456789abcdef";
/// Token of the hostile publisher, for channel `evil`.
const EVIL_TOKEN: &str = "fedcba9876543210";
/// Programs whose memory and log are bounded.
const DAEMONS: [&str; 4] = ["controller", "london", "paris", "rome"];

/// A network with running daemons, and the keys of its hostile nodes.
struct World {
    folder: tempfile::TempDir,
    /// Addresses of media, and with the suffix `-control` of control, by node.
    addresses: BTreeMap<String, SocketAddr>,
    layout: Layout,
    daemons: BTreeMap<&'static str, Child>,
    /// Number of parts that the honest viewer has received.
    parts: Arc<AtomicU64>,
}

/// The network. Nobody publishes channel `trap`, and only `mallory` advertises it.
fn description(addresses: &BTreeMap<String, SocketAddr>) -> String {
    let mut text = String::new();
    let nodes = [
        ("london", "source"),
        ("paris", "reflector"),
        ("mallory", "reflector"),
        ("rome", "edge"),
        ("oscar", "edge"),
    ];
    for (name, tier) in nodes {
        let media = addresses[name];
        text += &format!("[[node]]\nname = \"{name}\"\ntier = \"{tier}\"\nmedia = \"http://{media}\"\n");
        if tier != "edge" {
            text += &format!("control = \"{}\"\n", addresses[&format!("{name}-control")]);
        }
    }
    let links = [
        ("london", "paris", 1),
        ("london", "mallory", 1_000),
        ("paris", "rome", 1),
        ("paris", "oscar", 1),
        ("mallory", "rome", 1_000),
    ];
    for (from, to, cost) in links {
        text +=
            &format!("[[link]]\nfrom = \"{from}\"\nto = \"{to}\"\ncapacity = \"100Mbit/s\"\ncost = {cost}\n");
    }
    text += "[[group]]\nname = \"here\"\nedges = [\"rome\"]\n";
    for channel in ["news", "evil", "trap"] {
        text += &format!("[[channel]]\nname = \"{channel}\"\nrenditions = {{ main = \"1Mbit/s\" }}\n");
    }
    text
}

impl World {
    /// Starts all daemons, and waits until each listens.
    fn start() -> Self {
        raise_open_files();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let names = ["controller", "london", "paris", "mallory", "rome", "oscar"];
        let controls = ["london-control", "paris-control", "mallory-control"];
        let address = |name: &&str| ((*name).to_owned(), SocketAddr::from(([127, 0, 0, 1], free_port())));
        let addresses: BTreeMap<_, _> = names.iter().chain(&controls).map(address).collect();
        let text = description(&addresses);
        std::fs::write(folder.path().join("live.toml"), &text).expect("the folder is ours");
        let tokens = format!("news {TOKEN}\nevil {EVIL_TOKEN}\n");
        std::fs::write(folder.path().join("tokens"), tokens).expect("the folder is ours");
        let description = Description::from_toml(&text).expect("a good description");
        let layout = Layout::new(description).expect("a good description");
        let parts = Arc::default();
        let mut world = Self { folder, addresses, layout, daemons: BTreeMap::new(), parts };
        let made = world.command("keys --network live.toml --operators operator").output();
        assert!(made.expect("the command runs").status.success());
        let controller = world.address("controller");
        world.run("controller", &format!("controller --every 60s --listen {controller}"));
        let source = "source --window 8 --token-file tokens";
        world.run_node("london", source, Some("london-control"));
        world.run_node("paris", "node", Some("paris-control"));
        world.run_node("rome", "node", None);
        let publish = format!("publish http://{} --token {TOKEN} --channel news", world.address("london"));
        world.spawn("publisher", &format!("{publish} --renditions main=400kbit/s"));
        world
    }

    fn address(&self, name: &str) -> SocketAddr {
        self.addresses[name]
    }

    fn command(&self, line: &str) -> std::process::Command {
        let mut command = anabranch();
        command.current_dir(self.folder.path()).arg("live").args(line.split(' ')).stdout(Stdio::null());
        command
    }

    fn log_path(&self, name: &str) -> PathBuf {
        self.folder.path().join(format!("{name}.log"))
    }

    fn spawn(&mut self, name: &'static str, line: &str) {
        let log = std::fs::File::create(self.log_path(name)).expect("the folder is ours");
        let child = self.command(line).stderr(log).spawn().expect("a daemon starts");
        self.daemons.insert(name, child);
    }

    /// Starts a daemon, and waits until it listens.
    fn run(&mut self, name: &'static str, line: &str) {
        self.spawn(name, line);
        let end = Instant::now() + PATIENCE;
        while std::net::TcpStream::connect(self.address(name)).is_err() {
            assert!(Instant::now() < end, "{name} never listens");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn run_node(&mut self, name: &'static str, verb: &str, control: Option<&str>) {
        let mut line = format!(
            "{verb} --name {name} --listen {} --controller {}",
            self.address(name),
            self.address("controller")
        );
        if let Some(control) = control {
            line += &format!(" --control {}", self.address(control));
        }
        self.run(name, &line);
    }

    /// Keys of a node.
    fn identity(&self, name: &str) -> Identity {
        let files = CredentialFiles::in_set(&self.folder.path().join("keys/live"), SYSTEM, Role::Site, name);
        Identity::load(&files).expect("`live keys` made them")
    }

    /// Lines in a daemon's log.
    fn log(&self, name: &str) -> Vec<String> {
        let text = std::fs::read(self.log_path(name)).unwrap_or_default();
        String::from_utf8_lossy(&text).lines().map(str::to_owned).collect()
    }

    /// Peak memory of a process since its start.
    fn peak(&self, name: &str) -> u64 {
        peak_bytes(&self.daemons[name])
    }

    /// Waits until the honest viewer has received two further parts.
    async fn plays_on(&self, after: &str) {
        let (before, end) = (self.parts.load(Relaxed), Instant::now() + PATIENCE);
        while self.parts.load(Relaxed) < before + 2 {
            assert!(Instant::now() < end, "the viewer receives no part after {after}");
            sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for World {
    fn drop(&mut self) {
        for child in self.daemons.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            for name in self.daemons.keys() {
                let log = self.log(name);
                let shown = log.len().saturating_sub(LINES_MAX * 2);
                eprintln!("--- {name}, {} lines\n{}", log.len(), log[shown..].join("\n"));
            }
        }
    }
}

/// Fetches a target whole.
///
/// Errors: a status other than 200; the connection's errors.
async fn fetch(origin: &Origin, target: &str) -> io::Result<Vec<u8>> {
    let mut reply = origin.get(target, &HeaderMap::new()).await?;
    if reply.status() != StatusCode::OK {
        return Err(io::Error::other(reply.status().to_string()));
    }
    let mut body = Vec::new();
    while let Some(bytes) = reply.bytes().await? {
        body.extend_from_slice(&bytes);
    }
    reply.finish();
    Ok(body)
}

/// Reads the newest part again and again, by blocking reload. Counts the parts.
async fn watch(url: String, parts: Arc<AtomicU64>) {
    let origin = Origin::new(&url).expect("a URL");
    let (mut query, mut newest) = (String::new(), String::new());
    loop {
        let target = format!("/news/main/index.m3u8{query}");
        query.clear();
        let read = timeout(PATIENCE, fetch(&origin, &target)).await;
        let text = read.ok().and_then(Result::ok).unwrap_or_default();
        let Ok(playlist) = MediaPlaylist::read(&text) else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let of_segments = playlist.segments.iter().flat_map(|segment| &segment.parts);
        let of_open = playlist.open.iter().flat_map(|open| &open.parts);
        let Some(part) = of_segments.chain(of_open).next_back().map(|part| part.resource.uri.clone()) else {
            sleep(Duration::from_millis(50)).await;
            continue;
        };
        let path = format!("/news/main/{part}");
        if part == newest {
            sleep(Duration::from_millis(20)).await;
        } else if let Ok(Ok(bytes)) = timeout(PATIENCE, fetch(&origin, &path)).await
            && !bytes.is_empty()
        {
            parts.fetch_add(1, Relaxed);
            newest = part;
        }
        let next = playlist.open.as_ref().map_or(0, |open| open.parts.len() as u64);
        let msn = Some(playlist.next_msn());
        query = format!("?{}", DeliveryDirectives { msn, part: Some(next), skip: None }.query());
    }
}

/// Attacks with a determined answer assert it. Floods of frames, long reports and noise may be
/// refused at any byte, so only their effect on memory, log and viewer is asserted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn hostile_parties_fill_no_memory_and_no_log() {
    let world = World::start();
    let mallory = nodes::Mallory::start(&world).await;
    let url = format!("http://{}", world.address("rome"));
    let viewer = tokio::spawn(watch(url, Arc::clone(&world.parts)));
    world.plays_on("the start").await;
    let before = DAEMONS.map(|name| (name, world.peak(name), world.log(name).len()));

    let attacked_at = Instant::now();
    strangers::wrong_tokens(&world).await;
    let tokens_s = attacked_at.elapsed().as_secs() as usize;
    world.plays_on("wrong tokens").await;
    strangers::bad_uploads(&world).await;
    world.plays_on("bad uploads").await;
    nodes::bad_reports(&world).await;
    world.plays_on("bad reports").await;
    nodes::bad_children(&world).await;
    world.plays_on("bad frames of children").await;
    strangers::bad_viewers(&world, &mallory).await;
    world.plays_on("bad viewers").await;
    assert!(!viewer.is_finished(), "{:?}", viewer.await);
    viewer.abort();

    for (name, peak, lines) in before {
        let growth = world.peak(name).saturating_sub(peak);
        println!("{name}: {} MiB before, {} MiB more after", peak / MIB, growth / MIB);
        assert!(growth < GROWTH_MAX, "{name}: {} MiB more, at most {GROWTH_MAX} B", growth / MIB);
        let (about_tokens, others): (Vec<_>, Vec<_>) =
            world.log(name).into_iter().skip(lines).partition(|line| line.contains("wrong token"));
        println!("{name}: {} lines", others.len());
        assert!(others.len() <= LINES_MAX, "{name}: {} lines: {others:#?}", others.len());
        // At most one line for each second, and one for each of the two incomplete seconds.
        assert!(about_tokens.len() <= tokens_s + 2, "{name}: {about_tokens:#?}");
        let longest = others.iter().map(String::len).max().unwrap_or(0);
        assert!(longest < 4_096, "{name}: a line of {longest} bytes");
    }
}
