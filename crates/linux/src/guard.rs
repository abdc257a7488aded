//! A guard: a process that watches another process, its *ward*, and undoes the ward's changes in
//! the kernel once the ward is gone.
//!
//! A killed process cannot undo its changes, and a hanging process does not. The guard reads a pipe
//! whose other end only its ward holds, so the pipe closes when the ward ends for any reason. A
//! ward that may hang writes a byte at intervals, and the guard measures the time without a byte. A
//! guard has its own process group, so that Ctrl-C and a stop of the ward's group do not reach it.
//! A frozen cgroup freezes both processes. Leaves out: the changes to undo. Read [`start`] and
//! [`WardWatch`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Starts a guard whose standard input is its ward's pipe.
///
/// Errors: the system's.
pub fn start(command: &mut Command, pipe: impl Into<Stdio>) -> io::Result<Child> {
    command.process_group(0).stdin(pipe).stdout(Stdio::null()).spawn()
}

/// A sign of the ward's state.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The ward has written a byte.
    Beat,
    /// The ward has written no byte for the guard's waiting time.
    Silence,
    /// The ward has ended.
    End,
}

/// The guard's end of its ward's pipe.
#[derive(Debug)]
pub struct WardWatch {
    pipe: OwnedFd,
    patience: Option<Duration>,
}

impl WardWatch {
    /// Watches this process's standard input. A ward that writes no byte for `patience` is silent;
    /// `None` waits for ever.
    ///
    /// Errors: there is no standard input.
    pub fn by_stdin(patience: Option<Duration>) -> io::Result<Self> {
        Ok(Self { pipe: io::stdin().as_fd().try_clone_to_owned()?, patience })
    }

    /// Waits for the next sign. A pipe that cannot be read counts as the ward's end.
    pub fn next(&self) -> Sign {
        let patience = self.patience.map(|patience| Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: patience.subsec_nanos().into(),
        });
        loop {
            match poll(&mut [PollFd::new(&self.pipe, PollFlags::IN)], patience.as_ref()) {
                Ok(0) => return Sign::Silence,
                Ok(_) => {}
                Err(Errno::INTR) => continue,
                Err(_) => return Sign::End,
            }
            match rustix::io::read(&self.pipe, &mut [0; 4_096]) {
                Ok(0) => return Sign::End,
                Ok(_) => return Sign::Beat,
                Err(Errno::INTR | Errno::AGAIN) => {}
                Err(_) => return Sign::End,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write as _;

    /// #48: the watch distinguishes beats, silence and the end.
    #[test]
    fn ward_watch_distinguishes_beats_silence_and_end() {
        let (reader, mut writer) = io::pipe().expect("a pipe");
        let watch = WardWatch { pipe: reader.into(), patience: Some(Duration::from_millis(1)) };
        assert_eq!(watch.next(), Sign::Silence);
        writer.write_all(b"..").expect("it has room");
        assert_eq!(watch.next(), Sign::Beat);
        assert_eq!(watch.next(), Sign::Silence);
        drop(writer);
        assert_eq!(watch.next(), Sign::End);
    }
}
