//! An emulated network with a real `anabranch replicate` daemon at every site, for tests with
//! failures.
//!
//! All files are in a temporary folder, which is deleted with the [`Net`]. If a test fails, the
//! folder is kept, and its logs are printed. If the machine allows no namespaces or TUN devices,
//! the tests print the reason and count as skipped. Read [`Net`] and [`RunningSend`] first.

#![allow(clippy::disallowed_methods, reason = "tests of drivers: processes, files, threads and clocks")]

use anabranch_emu::{Emulation, EmulationOptions};
use anabranch_graph::Topology;
use anabranch_graph::file::{Defaults, load};
use anabranch_units::{BitRate, ByteCount, LinkId, SiteId};
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, mpsc};
use std::time::{Duration, Instant};

/// Time limit of every wait. It only ends a test that hangs.
pub const PATIENCE: Duration = Duration::from_secs(120);
/// Name of the controller among the daemons.
pub const CONTROLLER: &str = "controller";

/// Peak memory of a process since its start, in bytes.
pub fn peak_bytes(child: &Child) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", child.id()));
    let status = status.expect("the process is not reaped");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the process lives");
    line.trim().trim_end_matches(" kB").trim().parse::<u64>().expect("a number") * 1_024
}

/// Raises this process's limit of open files to the hard limit.
pub fn raise_open_files() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let maximum = getrlimit(Resource::Nofile).maximum;
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).expect("up to the hard limit");
}

/// A topology: two sites, and a cable between them.
pub const TWO: &str = r#"
name = "two"
[[site]]
name = "s"
[[site]]
name = "d"
[[cable]]
between = ["s", "d"]
capacity = "1 Gbit/s"
delay = "0 ms"
"#;

const CONTROLLER_PORT: u16 = 7171;
const DATA_PORT: u16 = 7172;

use crate::start::start_or_skip;
pub use anabranch_testing::skip::skip;

/// The command under test.
pub fn anabranch() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_anabranch"));
    command.stdin(Stdio::null()).env_remove("ANABRANCH_LOG");
    command
}

/// Pseudorandom bytes, the same for the same `seed`.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend_from_slice(&state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Journals of partial files in a folder.
pub fn working_files(folder: &std::path::Path) -> Vec<PathBuf> {
    let found = std::fs::read_dir(folder).into_iter().flatten().flatten().map(|e| e.path());
    let is_journal = |path: &PathBuf| {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        name.starts_with(".anabranch-") && name.ends_with(".journal")
    };
    found.filter(is_journal).collect()
}
/// Number of pieces of the file `path` that its journal lists as written.
pub fn journal_entries(path: &std::path::Path) -> u64 {
    const HEADER_BYTES: u64 = 288;
    const ENTRY_BYTES: u64 = 48;
    let name = path.file_name().expect("a file's name").as_encoded_bytes();
    let journal = path.with_file_name(format!(".anabranch-{}.journal", &blake3::hash(name).to_hex()[..32]));
    std::fs::metadata(journal).map_or(0, |found| found.len().saturating_sub(HEADER_BYTES) / ENTRY_BYTES)
}

/// The network: an emulation, and the daemons in it.
pub struct Net {
    pub emulation: Emulation,
    pub topology: Topology,
    whole: Topology,
    folder: tempfile::TempDir,
    daemons: BTreeMap<String, Child>,
    controller_at: SiteId,
    arguments: BTreeMap<String, Vec<String>>,
    /// Command prefix of a daemon, to run it inside another program.
    wrappers: BTreeMap<String, String>,
    sends: u32,
}

impl Net {
    /// Creates the network of a topology file's text, without daemons; the controller will run at
    /// the first site. `None`, with a printed reason, if this machine cannot emulate.
    pub fn new(toml: &str) -> Option<Self> {
        Self::with_data_plane(toml, toml)
    }

    /// As [`Net::new`] on `whole`, but the daemons know only the links of `data`. The other links
    /// carry control traffic. Both topologies list the same sites. A link of `data` uses the first
    /// link with the same ends in `whole`.
    pub fn with_data_plane(whole: &str, data: &str) -> Option<Self> {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let parse = |text: &str| {
            let path = folder.path().join("network.toml");
            std::fs::write(&path, text).expect("the folder is ours");
            let path = path.to_str().expect("plain names").to_owned();
            let text = |p: &str| std::fs::read_to_string(p);
            load(&path, &Defaults::new(BitRate::mbps(10)), text).expect("a good topology")
        };
        let whole = parse(whole);
        // Small socket buffers, so that few bytes of a small file are in flight when a fault
        // occurs.
        let tcp_buffer_bytes_max = Some(ByteCount::kib(256));
        let options = EmulationOptions { tcp_buffer_bytes_max, ..EmulationOptions::default() };
        let emulation = start_or_skip(&whole, options)?;
        let topology = parse(data);
        let net = Self {
            emulation,
            whole,
            topology,
            folder,
            daemons: BTreeMap::new(),
            controller_at: SiteId(0),
            arguments: BTreeMap::new(),
            wrappers: BTreeMap::new(),
            sends: 0,
        };
        for site in net.topology.sites() {
            std::fs::create_dir(net.folder.path().join(&site.name)).expect("a new folder");
        }
        let mut keys = anabranch();
        keys.args(["replicate", "keys", "init", "--topology"]).arg(net.folder.path().join("network.toml"));
        let made = keys.arg("--out").arg(net.keys()).output().expect("the command runs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        Some(net)
    }

    /// Adds arguments for the daemon `who`, from its next start on.
    pub fn arguments(&mut self, who: &str, more: &[&str]) {
        self.arguments.entry(who.to_owned()).or_default().extend(more.iter().map(|a| (*a).to_owned()));
    }

    /// Runs `script` in the shell of the daemon `who` before the daemon, from its next start on.
    pub fn before(&mut self, who: &str, script: &str) {
        self.wrappers.insert(who.to_owned(), script.to_owned());
    }

    pub fn keys(&self) -> PathBuf {
        self.folder.path().join("keys")
    }
    pub fn site(&self, name: &str) -> SiteId {
        self.topology.find_site(name).expect("a site of the test's topology")
    }
    /// The emulation's first link from one site to another.
    fn emulated(&self, from: SiteId, to: SiteId) -> LinkId {
        let mut links = self.whole.links_out(from).filter(|l| self.whole.link(*l).to == to);
        links.next().expect("a link of the test's topology")
    }
    fn link(&self, from: &str, to: &str) -> LinkId {
        self.emulated(self.site(from), self.site(to))
    }
    /// Path of a site's file.
    pub fn path(&self, site: &str, name: &str) -> PathBuf {
        self.folder.path().join(site).join(name)
    }
    /// Writes `length` bytes of noise into a site's file, and returns them.
    pub fn put(&self, site: &str, name: &str, seed: u64, length: usize) -> Vec<u8> {
        let bytes = noise(seed, length);
        std::fs::write(self.path(site, name), &bytes).expect("the folder is ours");
        bytes
    }
    /// Returns true if a site's file is exactly `bytes`, and no partial file is left beside it.
    pub fn has(&self, site: &str, name: &str, bytes: &[u8]) -> bool {
        let whole = std::fs::read(self.path(site, name)).is_ok_and(|found| found == bytes);
        whole && working_files(&self.path(site, "")).is_empty()
    }
    pub fn log(&self, who: &str) -> PathBuf {
        self.folder.path().join(format!("{who}.log"))
    }

    /// Starts the controller and every site.
    pub fn start_all(&mut self) {
        self.start(CONTROLLER);
        let names: Vec<String> = self.topology.sites().iter().map(|s| s.name.clone()).collect();
        names.iter().for_each(|name| self.start(name));
    }

    /// Starts one daemon, the controller or a relay, which must not be running.
    pub fn start(&mut self, who: &str) {
        assert!(!self.daemons.contains_key(who), "{who} runs already");
        let network = self.folder.path().join("network.toml");
        let controller = format!("{}:{CONTROLLER_PORT}", self.emulation.site_address(self.controller_at));
        let mut words: Vec<String> = vec![env!("CARGO_BIN_EXE_anabranch").into()];
        let mut add = |more: &[&str]| words.extend(more.iter().map(|w| (*w).to_owned()));
        add(&["--verbose", "replicate"]);
        let at = if who == CONTROLLER {
            let store = self.folder.path().join("controller.redb");
            add(&["controller", "--listen", &controller, "--store", &store.to_string_lossy()]);
            self.controller_at
        } else {
            let site = self.site(who);
            let dir = self.folder.path().join(who);
            add(&["relay", "--site", who, "--controller", &controller, "--dir", &dir.to_string_lossy()]);
            add(&["--listen", &format!("0.0.0.0:{DATA_PORT}")]);
            add(&["--advertise", &format!("{}:{DATA_PORT}", self.emulation.site_address(site))]);
            for link in self.topology.links_in(site) {
                let from = self.topology.link(link).from;
                let (name, link) = (&self.topology.site(from).name, self.emulated(from, site));
                add(&["--link", &format!("{name}={}:{DATA_PORT}", self.emulation.link_address(link))]);
            }
            site
        };
        add(&["--topology", &network.to_string_lossy(), "--keys", &self.keys().to_string_lossy()]);
        words.extend(self.arguments.get(who).into_iter().flatten().cloned());
        let mut command = match self.wrappers.get(who) {
            None => {
                let mut command = Command::new(&words[0]);
                command.args(&words[1..]);
                command
            }
            Some(script) => {
                let mut command = Command::new("unshare");
                command.args(["--mount", "sh", "-c", &format!("{script} && exec \"$@\""), "sh"]).args(&words);
                command
            }
        };
        let log = std::fs::File::options().append(true).create(true).open(self.log(who));
        command.env_remove("ANABRANCH_LOG").stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(log.expect("the folder is ours"));
        let child = self.emulation.spawn(at, command).expect("a daemon starts");
        self.daemons.insert(who.to_owned(), child);
    }

    /// Kills a daemon with SIGKILL.
    pub fn kill(&mut self, who: &str) {
        let mut child = self.daemons.remove(who).expect("it runs");
        child.kill().expect("ours to kill");
        child.wait().expect("ours to reap");
    }

    pub fn runs(&self, who: &str) -> bool {
        self.daemons.contains_key(who)
    }

    /// A client command at the controller's site, such as `["send", ...]`.
    pub fn operator(&self, arguments: &[&str]) -> Command {
        let controller = format!("{}:{CONTROLLER_PORT}", self.emulation.site_address(self.controller_at));
        let mut command = anabranch();
        command.arg("replicate").args(arguments).args(["--controller", &controller]);
        command.arg("--keys").arg(self.keys());
        command
    }

    /// Starts `replicate send --json` with these arguments.
    pub fn send(&mut self, arguments: &[&str]) -> RunningSend {
        self.sends += 1;
        let log = self.log(&format!("send-{}", self.sends));
        let mut all = vec!["send", "--json"];
        all.extend(arguments);
        let mut command = self.operator(&all);
        command.stdout(Stdio::piped()).stderr(std::fs::File::create(&log).expect("the folder is ours"));
        let mut child = self.emulation.spawn(self.controller_at, command).expect("a command starts");
        let stdout = child.stdout.take().expect("it is piped");
        let heard = Arc::new((Mutex::new(SendEvents::default()), Condvar::new()));
        let listener = Arc::clone(&heard);
        std::thread::spawn(move || {
            for line in BufReader::new(stdout).lines().map_while(Result::ok) {
                let event = serde_json::from_str(&line).unwrap_or(Value::String(line));
                listener.0.lock().expect("no panic holds it").events.push(event);
                listener.1.notify_all();
            }
            listener.0.lock().expect("no panic holds it").over = true;
            listener.1.notify_all();
        });
        RunningSend { child, heard, log, began: Instant::now() }
    }

    /// Bytes delivered over these links of the data plane so far.
    fn arrived(&self, links: impl IntoIterator<Item = LinkId>) -> u64 {
        let counters = self.emulation.counters().expect("the emulation runs");
        let emulated = |l: LinkId| self.emulated(self.topology.link(l).from, self.topology.link(l).to);
        links.into_iter().map(|l| counters[emulated(l).index()].arrived_bytes).sum()
    }
    /// Bytes delivered over all links into a site.
    pub fn arrived_at(&self, site: &str) -> u64 {
        self.arrived(self.topology.links_in(self.site(site)))
    }
    /// Bytes delivered over all links out of a site.
    pub fn sent_by(&self, site: &str) -> u64 {
        self.arrived(self.topology.links_out(self.site(site)))
    }
    /// Bytes delivered over all links.
    pub fn arrived_anywhere(&self) -> u64 {
        self.arrived(self.topology.link_ids())
    }
    /// Takes one direction of a cable down, or up.
    pub fn set_up(&self, from: &str, to: &str, up: bool) {
        let link = self.link(from, to);
        let mut state = self.emulation.link_state(link).expect("the emulation runs");
        state.up = up;
        self.emulation.set_link(link, state).expect("a good state");
    }
    pub fn set_rate(&self, from: &str, to: &str, rate: BitRate) {
        let link = self.link(from, to);
        let mut state = self.emulation.link_state(link).expect("the emulation runs");
        state.rate = rate;
        self.emulation.set_link(link, state).expect("a good state");
    }
}

impl Drop for Net {
    fn drop(&mut self) {
        for child in self.daemons.values_mut() {
            let _ = child.kill();
            let _ = child.wait();
        }
        if std::thread::panicking() {
            let mut logs: Vec<_> =
                std::fs::read_dir(self.folder.path()).into_iter().flatten().flatten().collect();
            logs.retain(|e| e.path().extension().is_some_and(|e| e == "log"));
            logs.sort_by_key(std::fs::DirEntry::file_name);
            for log in logs {
                let text = std::fs::read_to_string(log.path()).unwrap_or_default();
                let lines: Vec<_> = text.lines().collect();
                eprintln!("---- {}", log.path().display());
                lines[lines.len().saturating_sub(40)..].iter().for_each(|l| eprintln!("{l}"));
            }
        }
    }
}

#[derive(Default)]
struct SendEvents {
    events: Vec<Value>,
    over: bool,
}

/// A running `replicate send`.
pub struct RunningSend {
    child: Child,
    heard: Arc<(Mutex<SendEvents>, Condvar)>,
    log: PathBuf,
    began: Instant,
}

/// A finished `replicate send`.
#[derive(Debug)]
pub struct FinishedSend {
    pub status: ExitStatus,
    pub events: Vec<Value>,
    pub stderr: String,
    /// Time from the start of the command to its end.
    pub took: Duration,
}

impl RunningSend {
    fn wait<T>(&self, what: &str, mut look: impl FnMut(&SendEvents) -> Option<T>) -> T {
        let end = Instant::now() + PATIENCE;
        let mut heard = self.heard.0.lock().expect("no panic holds it");
        loop {
            if let Some(found) = look(&heard) {
                return found;
            }
            let left = end.saturating_duration_since(Instant::now());
            let last: Vec<_> = heard.events.iter().rev().take(12).rev().map(Value::to_string).collect();
            assert!(!heard.over, "send ended before {what}; its last events:\n{}", last.join("\n"));
            assert!(!left.is_zero(), "no {what} within {PATIENCE:?}; the last events:\n{}", last.join("\n"));
            heard = self.heard.1.wait_timeout(heard, left).expect("no panic holds it").0;
        }
    }

    /// Waits for an event of this name. An event that has already arrived counts.
    pub fn event(&self, name: &str) -> Value {
        self.wait(name, |h| h.events.iter().find(|e| e["event"] == name).cloned())
    }

    /// Waits for a verdict about a site.
    pub fn verdict(&self, site: &str) -> Value {
        let about = |e: &&Value| e["event"] == "verdict" && e["site"] == site;
        self.wait(&format!("verdict about {site}"), |h| h.events.iter().find(about).cloned())
    }

    /// Waits until every unfinished destination has verified this many bytes. Returns the count of
    /// the slowest destination.
    pub fn verified(&self, bytes: u64) -> u64 {
        self.wait(&format!("progress of {bytes} bytes"), |h| {
            h.events.iter().filter(|e| e["event"] == "progress").find_map(|e| {
                let destinations = e["destinations"].as_array()?;
                let least = destinations.iter().filter_map(|d| d["verified_bytes"].as_u64()).min()?;
                (least >= bytes).then_some(least)
            })
        })
    }

    /// Verified bytes of the slowest destination, by the last event.
    pub fn now_verified(&self) -> u64 {
        self.wait("progress", |h| {
            let last = h.events.iter().rev().find(|e| e["event"] == "progress")?;
            last["destinations"].as_array()?.iter().filter_map(|d| d["verified_bytes"].as_u64()).min()
        })
    }

    /// Sends SIGINT, as Ctrl-C does.
    pub fn interrupt(&self) {
        let pid = self.child.id().to_string();
        let status = Command::new("kill").args(["-INT", &pid]).status().expect("kill is there");
        assert!(status.success());
    }

    /// Waits for the end of the command.
    pub fn finish(mut self) -> FinishedSend {
        let events = {
            let end = Instant::now() + PATIENCE;
            let mut heard = self.heard.0.lock().expect("no panic holds it");
            while !heard.over {
                let left = end.saturating_duration_since(Instant::now());
                let last: Vec<_> = heard.events.iter().rev().take(12).rev().map(Value::to_string).collect();
                assert!(!left.is_zero(), "send goes on after {PATIENCE:?}:\n{}", last.join("\n"));
                heard = self.heard.1.wait_timeout(heard, left).expect("no panic holds it").0;
            }
            std::mem::take(&mut heard.events)
        };
        let status = self.child.wait().expect("ours to reap");
        let stderr = std::fs::read_to_string(&self.log).unwrap_or_default();
        FinishedSend { status, events, stderr, took: self.began.elapsed() }
    }
}

impl FinishedSend {
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or(-1)
    }
    /// The last event of the command.
    pub fn summary(&self) -> &Value {
        let last = self.events.last().filter(|e| e["event"] == "summary");
        last.unwrap_or_else(|| panic!("no summary; code {}, stderr: {}", self.code(), self.stderr))
    }
    pub fn attempts(&self) -> u64 {
        self.summary()["attempts"].as_u64().expect("a number")
    }
    /// Verdict of one destination, and its reason.
    pub fn verdict(&self, site: &str) -> (String, String) {
        let all = self.summary()["destinations"].as_array().expect("a list");
        let of = all.iter().find(|d| d["site"] == site).expect("a destination");
        let text = |field: &str| of["verdict"][field].as_str().unwrap_or_default().to_owned();
        (text("verdict"), text("reason"))
    }
    pub fn suspects(&self) -> Vec<&str> {
        self.summary()["suspects"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
    }
    /// Asserts exit code 0 and a verified copy at every destination.
    pub fn expect_done(&self) {
        assert_eq!(self.code(), 0, "{}\n{}", self.summary(), self.stderr);
        assert_eq!(self.summary()["verified"], true);
    }
}

/// A controller and a few sites on loopback, without an emulation: for errors before any data
/// moves.
pub struct LocalDaemons {
    folder: tempfile::TempDir,
    address: String,
    daemons: BTreeMap<String, Child>,
    log: Arc<Mutex<Vec<String>>>,
}

impl LocalDaemons {
    /// Starts the controller and these sites; other sites of the topology are down.
    pub fn start(toml: &str, sites: &[&str]) -> Self {
        Self::start_with(toml, sites, &[])
    }

    /// As [`LocalDaemons::start`], with further arguments of the relays.
    pub fn start_with(toml: &str, sites: &[&str], more: &[&str]) -> Self {
        Self::start_as(toml, sites, &[], more)
    }

    /// As [`LocalDaemons::start`], with further arguments of the controller and the relays.
    pub fn start_as(toml: &str, sites: &[&str], controller: &[&str], relays: &[&str]) -> Self {
        let mut local = Self::without_daemons(toml);
        let command = local.controller(controller);
        local.start_controller(command);
        for site in sites {
            let mut command = local.relay(site, site);
            command.args(relays);
            local.keep(site, command);
        }
        local
    }

    /// Creates the folder and keys without daemons.
    pub fn without_daemons(toml: &str) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let local = Self { folder, address: String::new(), daemons: BTreeMap::new(), log: Arc::default() };
        std::fs::write(local.path("network.toml"), toml).expect("the folder is ours");
        local.keys("keys/replicate");
        local
    }

    /// The controller's command, with further arguments.
    pub fn controller(&self, more: &[&str]) -> Command {
        let arguments = ["controller", "--listen", "127.0.0.1:0", "--topology", "network.toml"];
        self.command(&[&arguments, more].concat())
    }

    /// Process id of the controller.
    pub fn controller_id(&self) -> u32 {
        self.daemons[CONTROLLER].id()
    }

    /// The controller's log, without the line of its address, up to the first line with `last`.
    /// That line must arrive within [`PATIENCE`].
    pub fn log_until(&self, last: &str) -> Vec<String> {
        until(last, || self.log.lock().expect("no panic").clone())
    }

    /// As `log_until`, for a relay.
    pub fn relay_log_until(&self, site: &str, last: &str) -> Vec<String> {
        let path = self.path(&format!("{site}.log"));
        let text = || std::fs::read_to_string(&path).unwrap_or_default();
        until(last, || text().lines().map(str::to_owned).collect())
    }

    /// A site's relay command for a folder of this name.
    pub fn relay(&self, site: &str, dir: &str) -> Command {
        std::fs::create_dir_all(self.path(dir)).expect("the folder is ours");
        let mut command =
            self.command(&["relay", "--topology", "network.toml", "--site", site, "--dir", dir]);
        command.args(["--listen", "127.0.0.1:0", "--controller", &self.address]);
        command
    }

    /// Starts a site's daemon, which runs until the end of the test or a kill.
    pub fn keep(&mut self, site: &str, mut daemon: Command) {
        let log = std::fs::File::create(self.path(&format!("{site}.log"))).expect("the folder is ours");
        self.daemons.insert(site.to_owned(), daemon.stderr(log).spawn().expect("the daemon starts"));
    }

    /// Kills a daemon, a site's or [`CONTROLLER`].
    pub fn kill(&mut self, who: &str) {
        let mut child = self.daemons.remove(who).expect("it runs");
        child.kill().expect("ours to kill");
        child.wait().expect("ours to reap");
    }

    /// Sends a daemon a signal.
    pub fn signal(&self, who: &str, signal: rustix::process::Signal) {
        let pid = rustix::process::Pid::from_child(&self.daemons[who]);
        rustix::process::kill_process(pid, signal).expect("ours to signal");
    }

    /// Kills the controller if it runs, and restarts it at the same address.
    pub fn restart_controller(&mut self) {
        if self.daemons.contains_key(CONTROLLER) {
            self.kill(CONTROLLER);
        }
        let address = self.address.clone();
        let again = self.command(&["controller", "--listen", &address, "--topology", "network.toml"]);
        self.start_controller(again);
    }

    /// Starts the controller, collects its log, and reads its address from the log.
    pub fn start_controller(&mut self, mut command: Command) {
        let mut controller = command.stderr(Stdio::piped()).spawn().expect("the controller starts");
        let stderr = controller.stderr.take().expect("it is piped");
        self.daemons.insert(CONTROLLER.to_owned(), controller);
        let (log, said) = (self.log.clone(), std::sync::mpsc::channel());
        std::thread::spawn(move || {
            for line in BufReader::new(stderr).lines().map_while(Result::ok) {
                match line.split_once("controller listens on https://") {
                    Some((_, address)) => said.0.send(address.to_owned()).expect("it is waited for"),
                    None => log.lock().expect("no panic").push(line),
                }
            }
        });
        self.address = said.1.recv_timeout(PATIENCE).expect("the controller says where it listens");
    }

    /// All transfers, as in `status --json`.
    pub fn transfers(&self) -> Vec<Value> {
        let mut asked = self.command(&["status", "--json", "--controller", &self.address]);
        let said = asked.stdout(Stdio::piped()).output().expect("the command runs");
        serde_json::from_slice(&said.stdout).unwrap_or_default()
    }

    /// Waits until the controller reports these sites as up.
    pub fn wait_for(&self, sites: &[&str]) {
        let end = Instant::now() + PATIENCE;
        loop {
            let mut asked = self.command(&["status", "--sites", "--json", "--controller", &self.address]);
            let said = asked.stdout(Stdio::piped()).output().expect("the command runs");
            let up: Value = serde_json::from_slice(&said.stdout).unwrap_or_default();
            let is_up = |name: &str| {
                up.as_array().into_iter().flatten().any(|s| s["name"] == name && s["up"] == true)
            };
            if sites.iter().all(|s| is_up(s)) {
                return;
            }
            assert!(Instant::now() < end, "{sites:?}: {up}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }
    pub fn address(&self) -> &str {
        &self.address
    }

    /// Makes a separate set of keys with a new authority.
    pub fn keys(&self, name: &str) {
        let made = self.command(&["keys", "init", "--topology", "network.toml", "--out", name]).output();
        assert!(made.expect("the command runs").status.success());
    }

    /// A `replicate` command in the folder.
    pub fn command(&self, arguments: &[&str]) -> Command {
        let mut command = anabranch();
        command.current_dir(self.folder.path()).arg("replicate").args(arguments).stdout(Stdio::null());
        command
    }
}

impl Drop for LocalDaemons {
    fn drop(&mut self) {
        for daemon in self.daemons.values_mut() {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

/// Returns the command with a disk of `mib` MiB mounted at a folder. Only the command sees the
/// disk. `None` if the machine permits no mount namespace.
pub fn on_a_small_disk(command: &Command, folder: &std::path::Path, mib: u32) -> Option<Command> {
    std::fs::create_dir_all(folder).expect("the folder is ours");
    let small = || {
        let mut small = Command::new("unshare");
        small.args(["--user", "--map-root-user", "--mount", "sh", "-c"]);
        small.arg(format!("mount -t tmpfs -o size={mib}m none \"$0\" && exec \"$@\"")).arg(folder);
        small
    };
    let tried = small().arg("true").output();
    if !tried.is_ok_and(|tried| tried.status.success()) {
        skip("no small disk without a namespace of one's own");
        return None;
    }
    let mut small = small();
    small.arg(command.get_program()).args(command.get_args());
    if let Some(folder) = command.get_current_dir() {
        small.current_dir(folder);
    }
    Some(small)
}

/// Returns a log up to its first line with `last`, which must arrive within [`PATIENCE`].
fn until(last: &str, log: impl Fn() -> Vec<String>) -> Vec<String> {
    let end = Instant::now() + PATIENCE;
    loop {
        let log = log();
        if let Some(i) = log.iter().position(|l| l.contains(last)) {
            return log[..=i].to_vec();
        }
        assert!(Instant::now() < end, "no `{last}` in {log:#?}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Output of a program, line by line. No line is awaited for longer than [`PATIENCE`], and unread
/// output does not block the program.
pub struct Lines(mpsc::Receiver<String>);

impl Lines {
    pub fn of(from: impl std::io::Read + Send + 'static) -> Self {
        let (lines, received) = mpsc::channel();
        std::thread::spawn(move || {
            // Reads on without a receiver, so that the program never writes to a closed pipe.
            BufReader::new(from).lines().map_while(Result::ok).for_each(|line| drop(lines.send(line)));
        });
        Self(received)
    }

    /// Returns the next line; `None` at the end, or if no line arrives within [`PATIENCE`].
    pub fn next(&self) -> Option<String> {
        self.0.recv_timeout(PATIENCE).ok()
    }

    /// Returns the output up to the first line with `last`, all within [`PATIENCE`].
    ///
    /// Errors: the output, if it has no such line.
    pub fn until(&self, last: &str) -> Result<String, String> {
        let (mut said, end) = (String::new(), Instant::now() + PATIENCE);
        while let Ok(line) = self.0.recv_timeout(end.saturating_duration_since(Instant::now())) {
            let is_last = line.contains(last);
            said += &(line + "\n");
            if is_last {
                return Ok(said);
            }
        }
        Err(said)
    }

    /// Iterates over all lines until the end.
    pub fn rest(self) -> impl Iterator<Item = String> {
        self.0.into_iter()
    }
}

/// A program that is killed on drop.
pub struct KilledOnDrop(pub Child);

impl KilledOnDrop {
    /// Sends SIGTERM. The program must end successfully and within [`PATIENCE`].
    pub fn end_politely(mut self) {
        let pid = rustix::process::Pid::from_child(&self.0);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("ours to signal");
        let status = wait_for_the_end(&mut self.0);
        assert!(status.success(), "{status}");
    }
}

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits for the end of a program, at most [`PATIENCE`].
pub fn wait_for_the_end(child: &mut Child) -> ExitStatus {
    let end = Instant::now() + PATIENCE;
    loop {
        if let Some(status) = child.try_wait().expect("ours to reap") {
            return status;
        }
        if Instant::now() >= end {
            let _ = child.kill();
            let _ = child.wait();
            panic!("process {} goes on after {PATIENCE:?}", child.id());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Waits until a program handles SIGINT itself, at most [`PATIENCE`]. The mask is in
/// proc_pid_status(5).
pub fn catches_interrupts(program: &Child) {
    let (status, end) = (format!("/proc/{}/status", program.id()), Instant::now() + PATIENCE);
    let catches = |line: &str| {
        let mask = line.strip_prefix("SigCgt:").and_then(|m| u64::from_str_radix(m.trim(), 16).ok());
        mask.is_some_and(|mask| mask & 1 << (2 - 1) != 0)
    };
    while !std::fs::read_to_string(&status).expect("it runs").lines().any(catches) {
        assert!(Instant::now() < end, "it never handles SIGINT");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Runs a command to its end, at most [`PATIENCE`]. Returns its exit code and stderr.
pub fn run(mut command: Command) -> (Option<i32>, String) {
    use std::io::Read as _;
    let mut child = command.stderr(Stdio::piped()).spawn().expect("the command runs");
    let status = wait_for_the_end(&mut child);
    let mut said = String::new();
    child.stderr.take().expect("it is piped").read_to_string(&mut said).expect("text");
    (status.code(), said)
}
