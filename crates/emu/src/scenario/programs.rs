//! Programs of a system in the hosts of an emulated scenario: their start, first output and end.
//!
//! Leaves out: the programs themselves. Read [`start`] and [`end`] first.

use super::ScenarioError;
use crate::Emulation;
use anabranch_units::SiteId;
use rustix::process::{Pid, Signal, kill_process};
use std::io::{BufRead as _, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Maximum time for programs to end before they are killed.
const END_MAX: Duration = Duration::from_secs(5);

/// Starts a program in a site, and waits for its first line on standard error. Later lines are
/// printed and passed to `hear`.
///
/// Errors: the system's; the program ends without a line, or reports an error in it.
pub fn start(
    emulation: &Emulation,
    site: SiteId,
    mut command: Command,
    mut hear: impl FnMut(&str) + Send + 'static,
) -> Result<Child, ScenarioError> {
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = emulation.spawn(site, command)?;
    let mut said = BufReader::new(child.stderr.take().expect("its standard error was made a pipe"));
    let mut line = String::new();
    said.read_line(&mut line)?;
    let is_there = child.try_wait()?.is_none() && !line.is_empty();
    // The thread drains later output, so that the program never blocks on it.
    std::thread::spawn(move || {
        for line in said.lines().map_while(Result::ok) {
            hear(&line);
            eprintln!("site {site}: {line}");
        }
    });
    if !is_there {
        let _ = child.kill();
        let _ = child.wait();
        return Err(ScenarioError::in_program(&format!("site {site}"), line.trim()));
    }
    Ok(child)
}

/// Name of a system's program at a site, as in its keys.
pub fn name(site: SiteId) -> String {
    format!("h{}", site.0)
}

/// Asks all programs to end at the same time, and waits for them.
pub fn end(programs: &mut [Child]) {
    for child in &*programs {
        if let Some(pid) = Pid::from_raw(child.id() as i32) {
            let _ = kill_process(pid, Signal::TERM);
        }
    }
    let began = Instant::now();
    for child in programs {
        while matches!(child.try_wait(), Ok(None)) && began.elapsed() < END_MAX {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = child.kill();
        let _ = child.wait();
    }
}
