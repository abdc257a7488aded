//! The agent's guard: a process that does nothing until its agent is gone, and then lifts the agent's limits.
//!
//! A killed agent can lift nothing, and limits stay on sockets, its queue on its device and small bursts for all of them. The guard
//! holds the other end of a pipe of the agent's; when that closes it reads the agent's state file and clears the device. Where the
//! agent has lifted all by itself, there is only the size of bursts to set back. Leaves out: a kill of both processes. Then the next agent
//! does the same. Read [`watch`] and [`clean_up`].

use super::AgentError;
use super::enforce::{Left, State};
use anabranch_linux::guard;
use anabranch_pace::{HtbPacer, Pacer, PacerOptions, set_tso_rtt_log};
use std::io;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// How often what a dying process may still hold is tried, and how long after each.
const TRIES: u32 = 200;
const TRY_AGAIN: Duration = Duration::from_millis(10);

/// Starts an agent's guard; it ends after what is returned is dropped.
///
/// Errors: the system's.
pub(super) fn start(mut command: Command) -> io::Result<Child> {
    guard::start(&mut command, Stdio::piped())
}

/// Waits until this process's standard input ends, as it does when the agent that has started it is gone, and then sets back and
/// lifts what the agent has left.
///
/// Errors: as [`clean_up`].
pub fn watch(state: &Path, device: Option<&str>) -> Result<(), AgentError> {
    // Without a standard input there is no agent.
    if let Ok(agent) = guard::Watch::by_stdin(None) {
        while agent.next() != guard::Sign::End {}
    }
    clean_up(state, device)
}

/// Sets back and lifts what an agent that is gone has left.
///
/// Errors: one line for the user, of the first that could not be done; the others are done all the same.
pub fn clean_up(state: &Path, device: Option<&str>) -> Result<(), AgentError> {
    // Held by another for long: the next agent is there already, and sees to it.
    let Ok((mut state, left)) = try_on(|| State::open(state)) else { return Ok(()) };
    let done = [
        large_bursts(&mut state),
        device
            .map_or(Ok(()), |device| try_on(|| HtbPacer::clear(device)).map(drop).map_err(AgentError::Queue)),
        lift(left, &mut state),
    ];
    done.into_iter().collect()
}

/// A process that dies closes one file after the other: what it holds may outlive the pipe by a little.
fn try_on<T, E>(attempt: impl Fn() -> Result<T, E>) -> Result<T, E> {
    let again = |_: &E| std::thread::sleep(TRY_AGAIN);
    (1..TRIES).find_map(|_| attempt().inspect_err(again).ok()).map_or_else(&attempt, Ok)
}

fn large_bursts(state: &mut State) -> Result<(), AgentError> {
    if let Some(log) = state.tso_rtt_log() {
        set_tso_rtt_log(log)?;
        state.note_tso_rtt_log(None)?;
    }
    Ok(())
}

fn lift(left: Left, state: &mut State) -> Result<(), AgentError> {
    if !left.is_empty() {
        left.lift(state, &mut Pacer::new(&PacerOptions::default()).map_err(AgentError::Pacer)?)?;
    }
    Ok(())
}
