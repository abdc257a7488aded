//! A network of real daemons in an emulation: the controller at one site, a relay at each. `demo`, `experiment` and
//! emulated scenarios share it.
//!
//! Read [`DaemonSettings`] first, then [`RunningSends`].

use crate::fleet::{Fleet, Programs};
use crate::program;
use anabranch_emu::Emulation;
use anabranch_graph::Topology;
use anabranch_net::keys::{SetRequest, VALID_DAYS};
use anabranch_pieces::FileHash;
use anabranch_units::{ByteCount, Seed, SiteId};
use anyhow::Context as _;
use serde_json::Value;
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write as _};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The port of the controller, and of each site's data.
const CONTROLLER_PORT: u16 = 7171;
const DATA_PORT: u16 = 7172;

/// Where and how the daemons run.
pub struct DaemonSettings {
    /// The network.
    pub topology: Topology,
    /// The run's folder: one below it for each site.
    pub folder: PathBuf,
    /// The keys of all sites and of the operator.
    pub keys: PathBuf,
    /// The controller's site.
    pub controller: SiteId,
    /// Whether transfers fill what their plans leave.
    pub fill: bool,
    /// How long a destination may hold the others of its transfer back; `None` is the controller's default.
    pub patience: Option<Duration>,
    /// Whether transfers are planned together; `None` is the controller's default.
    pub joint: Option<bool>,
}

impl DaemonSettings {
    /// The site's name.
    pub fn name(&self, site: SiteId) -> &str {
        &self.topology.site(site).name
    }

    /// The folder below which the site's daemon reads and writes.
    pub fn site_folder(&self, site: SiteId) -> PathBuf {
        self.folder.join(self.name(site))
    }

    /// Removes and makes the sites' folders, and writes the network's file.
    ///
    /// Errors: the system's.
    pub fn make_folders(&self) -> anyhow::Result<()> {
        let _ = std::fs::remove_dir_all(&self.folder);
        for site in self.topology.site_ids() {
            std::fs::create_dir_all(self.site_folder(site))?;
        }
        Ok(std::fs::write(self.network_file(), anabranch_graph::file::toml::write(&self.topology))?)
    }

    fn network_file(&self) -> PathBuf {
        self.folder.join("topology.toml")
    }

    /// This program, its standard error going to `log` in the site's folder.
    ///
    /// Errors: the system's.
    pub fn command(&self, site: SiteId, log: &str) -> anyhow::Result<Command> {
        let log = std::fs::File::create(self.site_folder(site).join(log))?;
        let mut command = program();
        command.stdout(Stdio::null()).stderr(log);
        Ok(command)
    }

    /// The last line of a site's log.
    pub fn last_words(&self, site: SiteId, log: &str) -> String {
        let said = std::fs::read_to_string(self.site_folder(site).join(log)).unwrap_or_default();
        said.lines().last().unwrap_or("no word").to_owned()
    }

    /// Where the controller listens.
    pub fn controller_address(&self, emulation: &Emulation) -> String {
        format!("{}:{CONTROLLER_PORT}", emulation.site_address(self.controller))
    }

    /// Starts the controller and a daemon at each site. They belong to `fleet`.
    ///
    /// Errors: the system's.
    pub fn start_daemons(&self, emulation: &Emulation, fleet: &mut Fleet) -> anyhow::Result<()> {
        let network = self.network_file();
        let controller = self.controller_address(emulation);
        let mut command = self.command(self.controller, "controller.log")?;
        command.args(["--verbose", "replicate", "controller", "--topology"]).arg(&network);
        command.args(["--listen", &controller]).arg("--keys").arg(&self.keys);
        command.arg("--store").arg(self.folder.join("controller.redb"));
        if let Some(patience) = self.patience {
            command.args(["--patience", &format!("{} s", patience.as_secs())]);
        }
        if let Some(joint) = self.joint {
            command.args(["--joint", &joint.to_string()]);
        }
        fleet.spawn_controller(emulation, self.controller, command)?;
        for site in self.topology.site_ids() {
            let mut command = self.command(site, "relay.log")?;
            command.args(["--verbose", "replicate", "relay", "--topology"]).arg(&network);
            command.args(["--site", self.name(site), "--controller", &controller]);
            command.arg("--keys").arg(&self.keys).arg("--dir").arg(self.site_folder(site));
            command.args(["--listen", &format!("0.0.0.0:{DATA_PORT}")]);
            command.args(["--advertise", &format!("{}:{DATA_PORT}", emulation.site_address(site))]);
            for link in self.topology.links_in(site) {
                let from = self.name(self.topology.link(link).from);
                command.args(["--link", &format!("{from}={}:{DATA_PORT}", emulation.link_address(link))]);
            }
            fleet.spawn(emulation, site, command)?;
        }
        Ok(())
    }

    /// `replicate send --json` of `file` from `source`, its events on its standard output. Not started yet.
    ///
    /// Errors: the system's.
    pub fn send(
        &self,
        emulation: &Emulation,
        source: SiteId,
        destinations: &[SiteId],
        scheme: &str,
        (file, copy, log): (&str, &str, &str),
    ) -> anyhow::Result<Command> {
        let to: Vec<_> = destinations.iter().map(|d| self.name(*d)).collect();
        let mut command = self.command(source, log)?;
        command.args(["--verbose", "replicate", "send", file, "--as", copy, "--json"]);
        command.args(["--from", self.name(source), "--to", &to.join(","), "--scheme", scheme]);
        command.args(["--controller", &self.controller_address(emulation)]);
        if self.fill {
            command.arg("--fill");
        }
        command.arg("--keys").arg(&self.keys).stdout(Stdio::piped());
        Ok(command)
    }
}

/// The events of one transfer.
#[derive(Default)]
pub struct TransferEvents {
    /// When all its sites were ready.
    pub started: Option<Instant>,
    /// Why attempts were stopped, sites left for later, or nothing could be done.
    pub stops: Vec<String>,
    /// Whether the controller lost sight of a site that an attempt needed.
    pub has_lost_a_site: bool,
    /// By site: when its verified bytes were seen to grow, and to how many.
    pub grown: BTreeMap<String, Vec<(Instant, u64)>>,
    /// The summary of its `send`; `None` if that broke off.
    pub summary: Option<Value>,
    /// Whether its `send` has ended.
    pub has_ended: bool,
}

impl TransferEvents {
    fn hear(&mut self, event: &Value) {
        let now = Instant::now();
        match event["event"].as_str() {
            Some("started") => {
                self.started.get_or_insert(now);
            }
            Some("progress") => {
                for d in event["destinations"].as_array().into_iter().flatten() {
                    let (Some(site), Some(bytes)) = (d["site"].as_str(), d["verified_bytes"].as_u64()) else {
                        continue;
                    };
                    let grown = self.grown.entry(site.to_owned()).or_default();
                    if grown.last().is_none_or(|(_, had)| bytes > *had) {
                        grown.push((now, bytes));
                    }
                }
            }
            Some(kind @ ("stopped" | "postponed" | "waiting")) => {
                self.has_lost_a_site |= event["gone"].is_string();
                self.stops.push(format!("{kind}: {}", event["reason"].as_str().unwrap_or("-")));
            }
            _ => {}
        }
    }
}

/// Has `hear` each event that `replicate send --json` prints, until it ends; gives the last one, the summary.
pub fn events(output: impl BufRead, mut hear: impl FnMut(&Value)) -> Option<Value> {
    let mut last = None;
    for line in output.lines() {
        let event: Value = serde_json::from_str(&line.ok()?).ok()?;
        hear(&event);
        last = Some(event);
    }
    last.filter(|event| event["event"] == "summary")
}

/// Sends under way, and what is heard of their transfers. Dropping them ends them.
#[derive(Default)]
pub struct RunningSends {
    programs: Programs,
    heard: Vec<Arc<Mutex<TransferEvents>>>,
    listeners: Vec<JoinHandle<()>>,
}

impl RunningSends {
    /// Starts one more, which is a [`DaemonSettings::send`].
    ///
    /// Errors: the system's.
    pub fn begin(&mut self, emulation: &Emulation, source: SiteId, command: Command) -> anyhow::Result<()> {
        let mut send = emulation.spawn(source, command)?;
        let output = BufReader::new(send.stdout.take().context("its output is piped")?);
        self.programs.0.push(send);
        let heard = Arc::<Mutex<TransferEvents>>::default();
        self.heard.push(heard.clone());
        self.listeners.push(std::thread::spawn(move || {
            let summary = events(output, |event| lock(&heard).hear(event));
            let mut heard = lock(&heard);
            (heard.summary, heard.has_ended) = (summary, true);
        }));
        Ok(())
    }

    /// The events of each transfer so far, in the order of the transfers' starts.
    pub fn heard(&self) -> impl Iterator<Item = MutexGuard<'_, TransferEvents>> {
        self.heard.iter().map(|heard| lock(heard))
    }

    /// Ends them.
    pub fn end(self) -> Vec<TransferEvents> {
        let Self { programs, heard, listeners } = self;
        // A listener ends with its send, and that when it is not answered; a kill is surer.
        drop(programs);
        listeners.into_iter().for_each(|listener| listener.join().expect("it does not panic"));
        heard.iter().map(|heard| std::mem::take(&mut *lock(heard))).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A request for the keys of all sites and of an operator called `operator`.
pub fn keys_of(topology: &Topology) -> SetRequest {
    SetRequest {
        system: anabranch_replicate::SYSTEM,
        sites: topology.sites().iter().map(|s| s.name.clone()).collect(),
        operators: vec!["operator".into()],
        controller_hosts: vec![],
        valid_days: VALID_DAYS,
    }
}

/// Writes a file of random bytes, the same each time, and returns its hash.
///
/// Errors: the system's.
pub fn make_file(path: &Path, size: ByteCount) -> anyhow::Result<FileHash> {
    let mut random = Seed::new(1).stream("file", size.as_u64());
    let mut hasher = blake3::Hasher::new();
    let file = std::fs::File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let mut file = std::io::BufWriter::new(file);
    let mut left = size.as_u64();
    let mut block = vec![0u8; 1 << 16];
    while left > 0 {
        block.chunks_exact_mut(8).for_each(|c| c.copy_from_slice(&random.next_u64().to_le_bytes()));
        let take = left.min(block.len() as u64) as usize;
        hasher.update(&block[..take]);
        file.write_all(&block[..take])?;
        left -= take as u64;
    }
    file.flush()?;
    Ok(FileHash(*hasher.finalize().as_bytes()))
}
