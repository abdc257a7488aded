//! Real daemons in an emulated network: the controller at one site, and a relay at each site.
//! `demo`, `experiment` and emulated scenarios share this module.
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

const CONTROLLER_PORT: u16 = 7171;
/// Port of each site for data.
const DATA_PORT: u16 = 7172;

/// Network, folders and options of the daemons.
pub struct DaemonSettings {
    /// The network.
    pub topology: Topology,
    /// Folder of the run, with one folder for each site.
    pub folder: PathBuf,
    /// Folder with the keys of all sites and of the operator.
    pub keys: PathBuf,
    /// The controller's site.
    pub controller: SiteId,
    /// True if uncoded data fills the capacity that plans leave.
    pub fill: bool,
    /// Time for which a destination may delay the other destinations of its transfer; `None` is the
    /// controller's default.
    pub patience: Option<Duration>,
    /// True if transfers are planned together; `None` is the controller's default.
    pub joint: Option<bool>,
}

impl DaemonSettings {
    /// Name of a site.
    pub fn name(&self, site: SiteId) -> &str {
        &self.topology.site(site).name
    }

    /// Folder below which a site's daemon reads and writes files.
    pub fn site_folder(&self, site: SiteId) -> PathBuf {
        self.folder.join(self.name(site))
    }

    /// Deletes and creates the sites' folders, and writes the network's file.
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

    /// Builds a command of this program, whose standard error is written to `log` in the site's
    /// folder.
    ///
    /// Errors: the system's.
    pub fn command(&self, site: SiteId, log: &str) -> anyhow::Result<Command> {
        let log = std::fs::File::create(self.site_folder(site).join(log))?;
        let mut command = program();
        command.stdout(Stdio::null()).stderr(log);
        Ok(command)
    }

    /// Returns the last line of a site's log.
    pub fn last_words(&self, site: SiteId, log: &str) -> String {
        let said = std::fs::read_to_string(self.site_folder(site).join(log)).unwrap_or_default();
        said.lines().last().unwrap_or("no word").to_owned()
    }

    /// Address of the controller.
    pub fn controller_address(&self, emulation: &Emulation) -> String {
        format!("{}:{CONTROLLER_PORT}", emulation.site_address(self.controller))
    }

    /// Starts the controller and a daemon at each site, and adds them to `fleet`.
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

    /// Builds the command `replicate send --json` for `file` at `source`, with its events on
    /// standard output.
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
    /// Time at which all sites of the transfer were ready.
    pub started: Option<Instant>,
    /// Reasons for which attempts were stopped, sites were postponed, or the transfer waited.
    pub stops: Vec<String>,
    /// True if the controller lost a site that an attempt needed.
    pub has_lost_a_site: bool,
    /// By site: times at which the verified bytes grew, each with the new number of bytes.
    pub grown: BTreeMap<String, Vec<(Instant, u64)>>,
    /// The summary that `send` printed; `None` if `send` failed.
    pub summary: Option<Value>,
    /// True if `send` has ended.
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

/// Calls `hear` with each event that `replicate send --json` prints until its end. Returns the
/// summary if it is the last event.
pub fn events(output: impl BufRead, mut hear: impl FnMut(&Value)) -> Option<Value> {
    let mut last = None;
    for line in output.lines() {
        let event: Value = serde_json::from_str(&line.ok()?).ok()?;
        hear(&event);
        last = Some(event);
    }
    last.filter(|event| event["event"] == "summary")
}

/// Running `send` programs, and the events of their transfers. Dropping the value kills the
/// programs.
#[derive(Default)]
pub struct RunningSends {
    programs: Programs,
    heard: Vec<Arc<Mutex<TransferEvents>>>,
    listeners: Vec<JoinHandle<()>>,
}

impl RunningSends {
    /// Starts another transfer; `command` is made by [`DaemonSettings::send`].
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

    /// Kills the programs. Returns the events of each transfer.
    pub fn end(self) -> Vec<TransferEvents> {
        let Self { programs, heard, listeners } = self;
        // A listener ends only after its `send` has ended, and an unanswered `send` may not end, so
        // it is killed.
        drop(programs);
        listeners.into_iter().for_each(|listener| listener.join().expect("it does not panic"));
        heard.iter().map(|heard| std::mem::take(&mut *lock(heard))).collect()
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns a request for the keys of all sites and of an operator with the name `operator`.
pub fn keys_of(topology: &Topology) -> SetRequest {
    SetRequest {
        system: anabranch_replicate::SYSTEM,
        sites: topology.sites().iter().map(|s| s.name.clone()).collect(),
        operators: vec!["operator".into()],
        controller_hosts: vec![],
        valid_days: VALID_DAYS,
    }
}

/// Writes a file of pseudorandom bytes, the same for each call, and returns its hash.
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
