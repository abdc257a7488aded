//! A network of real daemons in an emulation: the controller at one site, a relay at each. What `demo`, `experiment` and
//! emulated scenarios have in common.
//!
//! Read [`Stage`] first, then [`Sends`].

use anabranch_emu::Emulation;
use anabranch_graph::Topology;
use anabranch_pieces::FileHash;
use anabranch_units::{ByteCount, Seed, SiteId};
use anyhow::Context as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// The port of the controller, and of each site's data.
const CONTROLLER_PORT: u16 = 7171;
const DATA_PORT: u16 = 7172;

/// Where and how the daemons run.
pub struct Stage {
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

/// The daemons; dropping them ends them.
pub struct Daemons(Vec<Child>);

impl Drop for Daemons {
    fn drop(&mut self) {
        for daemon in &mut self.0 {
            let _ = daemon.kill();
            let _ = daemon.wait();
        }
    }
}

impl Stage {
    /// The site's name.
    pub fn name(&self, site: SiteId) -> &str {
        &self.topology.site(site).name
    }

    /// The folder below which the site's daemon reads and writes.
    pub fn site_folder(&self, site: SiteId) -> PathBuf {
        self.folder.join(self.name(site))
    }

    /// Makes the folders anew, with the network's file.
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
        let mut command = Command::new(std::env::current_exe()?);
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        Ok(command)
    }

    fn controller_address(&self, emulation: &Emulation) -> String {
        format!("{}:{CONTROLLER_PORT}", emulation.site_address(self.controller))
    }

    /// Starts the controller and a daemon at each site.
    ///
    /// Errors: the system's.
    pub fn start_daemons(&self, emulation: &Emulation) -> anyhow::Result<Daemons> {
        let network = self.network_file();
        let controller = self.controller_address(emulation);
        let mut daemons = Daemons(Vec::new());
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
        daemons.0.push(emulation.spawn(self.controller, command)?);
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
            daemons.0.push(emulation.spawn(site, command)?);
        }
        Ok(daemons)
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

/// Makes the keys of all sites and of an operator called `operator`.
///
/// Errors: the system's.
pub fn make_keys(topology: &Topology, folder: &Path) -> anyhow::Result<()> {
    use anabranch_net::keys::{SetRequest, System, VALID_DAYS, make_set, write_set};
    let request = SetRequest {
        system: System::Replicate,
        sites: topology.sites().iter().map(|s| s.name.clone()).collect(),
        operators: vec!["operator".into()],
        controller_hosts: vec![],
        valid_days: VALID_DAYS,
    };
    Ok(write_set(folder, &make_set(&request)?)?)
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
