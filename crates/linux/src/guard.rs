//! A guard: a process that watches another one, its *ward*, and undoes what that has changed in the kernel once it is gone.
//!
//! A killed process can undo nothing, and one that stands still undoes nothing either. The guard reads a pipe whose other end its ward alone
//! holds: the pipe closes with the ward, however that ends. A ward that may stand still writes a byte at intervals, and the guard counts the
//! time without one. A guard has its own process group, so that Ctrl-C and a stop of the ward's group spare it. A frozen cgroup
//! freezes both. Leaves out: what is undone. Read [`start`] and [`WardWatch`].

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

/// Starts a guard that reads its ward's pipe as its standard input.
///
/// Errors: the system's.
pub fn start(command: &mut Command, pipe: impl Into<Stdio>) -> io::Result<Child> {
    command.process_group(0).stdin(pipe).stdout(Stdio::null()).spawn()
}

/// A sign of a ward's state.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Sign {
    /// The ward has written.
    Beat,
    /// The ward has written nothing for as long as the guard waits.
    Silence,
    /// The ward is gone.
    End,
}

/// A guard's view of its ward.
#[derive(Debug)]
pub struct WardWatch {
    pipe: OwnedFd,
    patience: Option<Duration>,
}

impl WardWatch {
    /// Watches by this process's standard input. `patience` is the time after which a ward that writes nothing is silent; `None` for never.
    ///
    /// Errors: there is no standard input.
    pub fn by_stdin(patience: Option<Duration>) -> io::Result<Self> {
        Ok(Self { pipe: io::stdin().as_fd().try_clone_to_owned()?, patience })
    }

    /// Waits for the next sign. A pipe that cannot be read is an end.
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

    /// #48: beats, silence and the end are told apart.
    #[test]
    fn each_sign_of_the_ward_is_told() {
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
