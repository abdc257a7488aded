//! The agent's guard: a process that takes TCP off an agent that stands still or is killed.
//!
//! An agent that stands still (a stop signal, a debugger) leaves routes into a device that nobody reads. The forwarding thread
//! writes a beat at intervals into a pipe; after `SILENCE_MAX` without one the guard deletes the agent's routes, and the agent puts them back
//! once it runs. The guard of an agent that is gone deletes its rules, too. Leaves out: a frozen cgroup that has both, and a stop of both.
//! Then the peers' agents take their side off, and this host's answers are lost. Read [`watch`].

use crate::kernel::Kernel;
use anabranch_linux::guard::{self, Sign, Watch};
use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};
use std::io::{self, PipeReader, PipeWriter, pipe};
use std::process::{Child, Command};
use std::time::Duration;

/// Time without a beat after which TCP goes the ordinary way: the time after which peers' agents take an agent for gone.
const SILENCE_MAX: Duration = Duration::from_secs(3);
/// Looks at a process that ends, and the time between two: it closes one file after the other.
const LOOKS: u32 = 200;
const LOOK_AGAIN: Duration = Duration::from_millis(10);

/// A guard as its agent sees it.
#[derive(Debug)]
pub(crate) struct Guard {
    command: Command,
    pipe: PipeReader,
    child: Option<Child>,
}

impl Guard {
    /// Starts it. Returns the end of the pipe that takes beats, which never blocks.
    ///
    /// Errors: the system's.
    pub(crate) fn start(mut command: Command) -> io::Result<(Self, PipeWriter)> {
        let (pipe, beats) = pipe()?;
        fcntl_setfl(&beats, fcntl_getfl(&beats)? | OFlags::NONBLOCK)?;
        let child = Some(guard::start(&mut command, pipe.try_clone()?)?);
        Ok((Self { command, pipe, child }, beats))
    }

    /// Starts it again if another program has killed it.
    pub(crate) fn keep(&mut self) {
        if let Some(child) = &mut self.child
            && matches!(child.try_wait(), Ok(Some(_)))
        {
            tracing::warn!("the agent's guard was ended by another program: it is started again");
            let started = self.pipe.try_clone().and_then(|pipe| guard::start(&mut self.command, pipe));
            self.child = started.inspect_err(|error| tracing::warn!("no guard: {error}")).ok();
        }
    }

    /// Waits until it has ended, after the last end that takes beats is closed. A guard that stands still is left behind.
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

/// Watches the agent that has started this process and that has this table, until the agent is gone; then deletes what it has left.
///
/// Errors: the system's.
pub fn watch(table: u32) -> io::Result<()> {
    let agent = Watch::by_stdin(Some(SILENCE_MAX))?;
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
            kernel.delete_rules(table);
            return Ok(());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    // The next agent is there already, and has deleted them.
    Ok(())
}
