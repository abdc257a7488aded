//! The agent's guard: a process that waits for the end of its agent, and then lifts the agent's
//! limits.
//!
//! A killed agent leaves limits on sockets, a queue on its device, and the kernel's setting for
//! small bursts. The guard holds the other end of a pipe of the agent. When the pipe closes, the
//! guard reads the state file and removes the queue. After an orderly end it only restores the
//! burst setting. Leaves out: a kill of both processes, after which the next agent cleans up. Read
//! [`watch`] and [`clean_up`].

use super::AgentError;
use super::enforce::{LeftoverLimits, StateFile};
use anabranch_linux::guard;
use anabranch_pace::{HtbPacer, Pacer, PacerOptions, set_tso_rtt_log};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Number of attempts to take a lock that an ending process holds, and interval between two
/// attempts.
const TRIES: u32 = 200;
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// Starts an agent's guard, which ends after the returned process handle is dropped.
///
/// Errors: the system's.
pub(super) fn start(mut command: Command) -> io::Result<Child> {
    guard::start(&mut command, Stdio::piped())
}

/// Waits for the end of this process's standard input, which marks the end of the agent that
/// started it. Then lifts limits and restores settings.
///
/// Errors: as [`clean_up`].
pub fn watch(state: &Path, device: Option<&str>) -> Result<(), AgentError> {
    // A process without standard input was not started by an agent.
    if let Ok(agent) = guard::WardWatch::by_stdin(None) {
        while agent.next() != guard::Sign::End {}
    }
    clean_up(state, device)
}

/// Lifts limits and restores settings that an ended agent has left.
///
/// Errors: one line for the user about the first failed step; the remaining steps are still taken.
pub fn clean_up(state: &Path, device: Option<&str>) -> Result<(), AgentError> {
    // A lock that stays held belongs to the next agent, which cleans up itself.
    let Ok((mut state, left)) = try_on(|| StateFile::open(state)) else { return Ok(()) };
    let done = [
        large_bursts(&mut state),
        device
            .map_or(Ok(()), |device| try_on(|| HtbPacer::clear(device)).map(drop).map_err(AgentError::Queue)),
        lift(left, &mut state),
    ];
    done.into_iter().collect()
}

/// Retries an operation. An ending process closes its files one by one, so its locks may exist
/// briefly after its pipe is closed.
fn try_on<T, E>(attempt: impl Fn() -> Result<T, E>) -> Result<T, E> {
    let again = |_: &E| std::thread::sleep(TRY_AGAIN);
    (1..TRIES).find_map(|_| attempt().inspect_err(again).ok()).map_or_else(&attempt, Ok)
}

fn large_bursts(state: &mut StateFile) -> Result<(), AgentError> {
    if let Some(log) = state.tso_rtt_log() {
        set_tso_rtt_log(log)?;
        state.note_tso_rtt_log(None)?;
    }
    Ok(())
}

fn lift(left: LeftoverLimits, state: &mut StateFile) -> Result<(), AgentError> {
    if !left.is_empty() {
        left.lift(state, &mut Pacer::new(&PacerOptions::default()).map_err(AgentError::Pacer)?)?;
    }
    Ok(())
}
