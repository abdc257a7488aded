//! The agent's guard: a process that does nothing until its agent is gone, and then lifts what that has left.
//!
//! A killed agent can lift nothing, and limits stay on sockets; so does what it has set for all of them. The guard holds the other end of a pipe of the agent's; when
//! that closes it reads the agent's state file. Where the agent has lifted all by itself, there is nothing in it. Leaves
//! out: whoever kills both. Then the next agent does the same. Read [`start`] and [`run`].

use super::enforce::State;
use anabranch_pace::{Pacer, PacerOptions};
use std::io::Read as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::Duration;

/// Whose guard.
#[derive(clap::Args)]
pub struct Args {
    /// The agent's state file.
    #[arg(long, value_name = "FILE")]
    state: PathBuf,
    /// What the agent has found net.ipv4.tcp_tso_rtt_log at, if it has changed it.
    #[arg(long, value_name = "LOG")]
    tso_rtt_log: Option<u8>,
}

/// How often the state file is tried, and how long after each.
const TRIES: u32 = 200;
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// Starts this process's guard; it ends after what is returned is dropped.
///
/// Errors: the system's.
pub fn start(state: &Path, tso_rtt_log: Option<u8>) -> std::io::Result<Child> {
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["--quiet", "shuffle", "guard", "--state"]).arg(state);
    command.args(tso_rtt_log.map(|log| format!("--tso-rtt-log={log}")));
    // Of a group of its own, so that Ctrl-C does not end it before its agent.
    command.process_group(0).stdin(Stdio::piped()).stdout(Stdio::null()).spawn()
}

/// Runs it until its agent is gone.
///
/// Errors: one line for the user.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut rest = [0; 64];
    while std::io::stdin().read(&mut rest).is_ok_and(|length| length > 0) {}
    // A process that dies closes one file after the other: the lock may outlive the pipe by a little.
    let opened =
        (0..TRIES).find_map(|_| State::open(&args.state).inspect_err(|_| std::thread::sleep(TRY_AGAIN)).ok());
    // Held by another: the next agent is there already, and sees to it.
    let Some((mut state, left)) = opened else { return Ok(ExitCode::SUCCESS) };
    if !left.is_empty() {
        left.lift(&mut state, &mut Pacer::new(&PacerOptions::default())?)?;
    }
    if let Some(log) = args.tso_rtt_log {
        anabranch_pace::set_tso_rtt_log(log)?;
    }
    Ok(ExitCode::SUCCESS)
}
