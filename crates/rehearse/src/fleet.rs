//! One system's programs in an emulation: keys, start, readiness, status and end.
//!
//! Leaves out: the programs' arguments, which are in each system's module. Read [`Fleet`] first.

use anabranch_emu::Emulation;
use anabranch_emu::scenario::programs::{end, start};
use anabranch_emu::scenario::{RunningSystem, ScenarioError};
use anabranch_net::keys::{SetRequest, make_set, write_set};
use anabranch_units::SiteId;
use anyhow::{Context as _, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde::de::DeserializeOwned;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum time until a fleet is ready.
const READY_MAX: Duration = Duration::from_secs(20);
/// Interval between two checks of a fleet that is not ready.
const READY_POLL: Duration = Duration::from_millis(50);
/// Log filter that omits the lines of each round.
const QUIET: &str = "error,anabranch=warn";

/// Builds a command of this program, without arguments and without input.
pub fn program() -> Command {
    let mut command = Command::new(std::env::current_exe().unwrap_or_else(|_| "anabranch".into()));
    command.stdin(Stdio::null());
    command
}

/// Builds a command of this program that logs only warnings and errors.
pub(crate) fn quiet_program() -> Command {
    let mut command = program();
    command.env("ANABRANCH_LOG", QUIET);
    command
}

/// Processes that are killed when this value is dropped.
#[derive(Default)]
pub struct Programs(pub(crate) Vec<Child>);

impl Drop for Programs {
    fn drop(&mut self) {
        for program in &mut self.0 {
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

/// One system's programs in an emulation, and the folder of their keys, sockets and stores.
///
/// Dropping the fleet ends its programs: first the agents, so that each can deregister, then the
/// controllers.
pub struct Fleet {
    folder: PathBuf,
    /// Temporary folder, which is removed on drop. `None` for a folder of the caller.
    temporary: Option<tempfile::TempDir>,
    agents: Vec<Child>,
    controllers: Vec<Child>,
}

impl Fleet {
    /// Creates an empty fleet of the system with this name, in a temporary folder.
    ///
    /// Errors: a temporary folder that cannot be created.
    pub fn new(system: &str) -> anyhow::Result<Self> {
        let temporary = tempfile::Builder::new().prefix(&format!("anabranch-{system}-")).tempdir()?;
        let mut fleet = Self::in_folder(temporary.path());
        fleet.temporary = Some(temporary);
        Ok(fleet)
    }

    /// Creates an empty fleet in a folder that is not removed.
    pub fn in_folder(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), temporary: None, agents: Vec::new(), controllers: Vec::new() }
    }

    /// The fleet's folder.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// Path of a file with this name in the fleet's folder.
    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The folder of the fleet's keys.
    pub fn keys(&self) -> PathBuf {
        self.path("keys")
    }

    /// Creates the fleet's keys.
    ///
    /// Errors: invalid names in the request; an error of the operating system.
    pub fn make_keys(&self, request: &SetRequest) -> anyhow::Result<()> {
        make_keys(&self.keys(), request)
    }

    /// Starts an agent in a site and waits for its first line. Returns the agent's index.
    ///
    /// Errors: an error of the operating system; the agent's line if it ends at once.
    pub fn start(&mut self, emulation: &Emulation, site: SiteId, command: Command) -> anyhow::Result<usize> {
        self.agents.push(start(emulation, site, command, |_| {})?);
        Ok(self.agents.len() - 1)
    }

    /// Kills the agent with this index, and starts it again with `command`.
    ///
    /// Errors: as [`Self::start`].
    pub fn restart(
        &mut self,
        agent: usize,
        emulation: &Emulation,
        site: SiteId,
        command: Command,
    ) -> anyhow::Result<()> {
        self.agents[agent].kill()?;
        self.agents[agent].wait()?;
        self.agents[agent] = start(emulation, site, command, |_| {})?;
        Ok(())
    }

    /// Starts a controller in a site and waits for its first line.
    ///
    /// Errors: as [`Self::start`].
    pub fn start_controller(
        &mut self,
        emulation: &Emulation,
        site: SiteId,
        command: Command,
    ) -> anyhow::Result<()> {
        self.controllers.push(start(emulation, site, command, |_| {})?);
        Ok(())
    }

    /// Starts an agent, whose command sets its standard error. Does not wait for its first line.
    ///
    /// Errors: an error of the operating system.
    pub fn spawn(&mut self, emulation: &Emulation, site: SiteId, command: Command) -> anyhow::Result<()> {
        self.agents.push(emulation.spawn(site, command)?);
        Ok(())
    }

    /// Starts a controller, as [`Self::spawn`] starts an agent.
    ///
    /// Errors: an error of the operating system.
    pub fn spawn_controller(
        &mut self,
        emulation: &Emulation,
        site: SiteId,
        command: Command,
    ) -> anyhow::Result<()> {
        self.controllers.push(emulation.spawn(site, command)?);
        Ok(())
    }

    /// Kills all controllers.
    ///
    /// Errors: an error of the operating system.
    pub fn kill_controllers(&mut self) -> anyhow::Result<()> {
        for mut controller in self.controllers.drain(..) {
            controller.kill()?;
            controller.wait()?;
        }
        Ok(())
    }

    /// Returns true if a controller was started and not killed.
    pub fn has_controller(&self) -> bool {
        !self.controllers.is_empty()
    }

    /// Number of agents started.
    pub fn agents(&self) -> usize {
        self.agents.len()
    }

    /// Sends a signal to the agent with this index.
    pub fn signal(&self, agent: usize, signal: Signal) {
        send_signal(&self.agents[agent], signal);
    }

    /// Waits until `up` returns `all`, the number of programs. `agents` names the programs in the
    /// error.
    ///
    /// Errors: errors of `up`; programs that are not ready after 20 seconds.
    pub fn wait_ready(
        agents: &str,
        all: usize,
        mut up: impl FnMut() -> anyhow::Result<usize>,
    ) -> anyhow::Result<()> {
        let began = Instant::now();
        loop {
            let up = up()?;
            if up == all {
                return Ok(());
            }
            ensure!(began.elapsed() < READY_MAX, "{up} of {all} {agents} have joined within {READY_MAX:?}");
            std::thread::sleep(READY_POLL);
        }
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        // A stopped process handles the signal to end only after it continues.
        self.agents.iter().for_each(|agent| send_signal(agent, Signal::CONT));
        end(&mut self.agents);
        end(&mut self.controllers);
    }
}

/// Creates keys in a folder.
///
/// Errors: invalid names in the request; an error of the operating system.
pub fn make_keys(folder: &Path, request: &SetRequest) -> anyhow::Result<()> {
    Ok(write_set(folder, &make_set(request)?)?)
}

fn send_signal(program: &Child, signal: Signal) {
    if let Some(pid) = Pid::from_raw(program.id() as i32) {
        let _ = kill_process(pid, signal);
    }
}

/// Converts an error, with its causes, to a scenario's error.
pub(crate) fn failed(error: anyhow::Error) -> ScenarioError {
    ScenarioError::new(format!("{error:#}"))
}

/// Converts started programs, or the error of their start, to a scenario's result.
///
/// Errors: as [`failed`].
pub(crate) fn started<R: RunningSystem + 'static>(
    running: anyhow::Result<R>,
) -> Result<Box<dyn RunningSystem>, ScenarioError> {
    Ok(Box::new(running.map_err(failed)?))
}

/// Refuses a workload with a setting that only the simulator has. `field` is the workload's
/// position in the scenario.
///
/// Errors: name and position of the setting, in one line.
pub(crate) fn refuse_only_simulated(field: &str, setting: Option<&str>) -> Result<(), ScenarioError> {
    setting.map_or(Ok(()), |setting| {
        let line = format!("{field}.{setting}: only in the simulator: leave it out to emulate");
        Err(ScenarioError::new(line))
    })
}

/// Runs a client in a site and reads the JSON value that it prints.
///
/// Errors: an error of the operating system; output that is not a `T`, for example because the
/// client got no answer.
pub(crate) fn ask<T: DeserializeOwned>(
    emulation: &Emulation,
    site: SiteId,
    mut command: Command,
) -> anyhow::Result<T> {
    command.stdout(Stdio::piped()).stderr(Stdio::null());
    let output = emulation.spawn(site, command)?.wait_with_output()?;
    serde_json::from_slice(&output.stdout).context("a controller does not tell its status")
}
