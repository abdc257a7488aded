//! The agent's guard: a process that removes the routes of a stopped or killed agent.
//!
//! A stopped agent (a stop signal, a debugger) leaves routes into a device that no process reads.
//! The forwarding thread writes heartbeats into a pipe at intervals. After `SILENCE_MAX` without a
//! heartbeat the guard deletes the agent's routes, which the agent restores once it runs again. If
//! the agent is killed, the guard deletes the rules, too.
//!
//! Leaves out: a frozen cgroup with both processes, and a stop of both. In these cases the peers'
//! agents stop sending datagrams, and this host's answers are lost. Read [`watch`].

use crate::kernel::Kernel;
use anabranch_linux::guard::{self, Sign, WardWatch};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io::{self, PipeReader, PipeWriter, pipe};
use std::process::{Child, Command};
use std::time::Duration;

/// Time without a heartbeat after which TCP takes the ordinary route. It equals the peers' timeout
/// for a silent agent.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// Number of checks whether an ending process is gone, and the interval between two checks. A
/// process closes its files one by one.
const LOOKS: u32 = 200;
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// The guard process, from the agent's side.
#[derive(Debug)]
pub(crate) struct Guard {
    command: Command,
    pipe: PipeReader,
    child: Option<Child>,
}

impl Guard {
    /// Starts the guard. Returns the non-blocking write end of the pipe for heartbeats.
    ///
    /// Errors: the system's.
    pub(crate) fn start(mut command: Command) -> io::Result<(Self, PipeWriter)> {
        let (pipe, beats) = pipe()?;
        fcntl_setfl(&beats, fcntl_getfl(&beats)? | OFlags::NONBLOCK)?;
        let child = Some(guard::start(&mut command, pipe.try_clone()?)?);
        Ok((Self { command, pipe, child }, beats))
    }

    /// Restarts the guard if another program has killed it.
    pub(crate) fn keep(&mut self) {
        if let Some(child) = &mut self.child
            && matches!(child.try_wait(), Ok(Some(_)))
        {
            tracing::warn!("the agent's guard was ended by another program: it is started again");
            let started = self.pipe.try_clone().and_then(|pipe| guard::start(&mut self.command, pipe));
            self.child = started.inspect_err(|error| tracing::warn!("no guard: {error}")).ok();
        }
    }

    /// Waits for the guard to end, after all write ends of the pipe are closed. Stops waiting after
    /// two seconds, for example if the guard is stopped.
    pub(crate) fn wait(mut self) {
        let Some(mut child) = self.child.take() else { return };
        for _ in 0..LOOKS {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(LOOK_AGAIN);
        }
    }
}

/// Watches the parent process, which is the agent with this table, until it ends. Then deletes the
/// agent's rules and routes.
///
/// Errors: the system's.
pub fn watch(table: u32) -> io::Result<()> {
    let agent = WardWatch::by_stdin(Some(SILENCE_MAX))?;
    let mut kernel = Kernel::open()?;
    let mut is_silent = false;
    loop {
        match agent.next() {
            Sign::Beat => is_silent = false,
            Sign::Silence => {
                let count = kernel.delete_routes(table);
                if count > 0 && !std::mem::replace(&mut is_silent, true) {
                    tracing::warn!(
                        "the agent of table {table} stands still: TCP to {count} peers goes the ordinary way"
                    );
                }
            }
            Sign::End => break,
        }
    }
    for _ in 0..LOOKS {
        if !kernel.live_tables()?.contains(&table) {
            kernel.delete_rules(table)?;
            return Ok(());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    // The next agent is already running, and has deleted the old rules.
    Ok(())
}
