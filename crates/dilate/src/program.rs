//! Check before a program's start whether its time can be stretched. Read [`check_program`].

use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use crate::elf::{Linkage, linkage};

/// Maximum number of interpreters in a chain: a script's, that interpreter's own, and so on, as in
/// the kernel (execve(2)).
const INTERPRETERS_MAX: usize = 5;
/// Maximum length in bytes of a script's first line that is read (execve(2)).
const LINE_BYTES_MAX: usize = 255;
/// Mode bits of a file that runs with another user's or group's rights.
const SET_ID: u32 = 0o6000;

/// Reason why a program's time cannot be stretched.
#[derive(Debug)]
#[non_exhaustive]
pub enum ProgramError {
    /// The folders in `PATH` contain no such program.
    NotFound {
        /// Name of the program.
        name: String,
    },
    /// The file cannot be read.
    Unreadable {
        /// The file.
        path: PathBuf,
        /// The system's reason.
        error: io::Error,
    },
    /// The file is not a program.
    NotAProgram {
        /// The file.
        path: PathBuf,
    },
    /// The program is statically linked, like Go's programs, so it loads no library.
    Static {
        /// The file.
        path: PathBuf,
    },
    /// The program does not load the C library.
    NoLibc {
        /// The file.
        path: PathBuf,
    },
    /// The program has another word length or byte order than the library.
    Foreign {
        /// The file.
        path: PathBuf,
    },
    /// The program runs with another user's rights, so the loader preloads no library.
    SetId {
        /// The file.
        path: PathBuf,
    },
    /// The program's file has capabilities (capabilities(7)), so the loader preloads no library.
    Capabilities {
        /// The file.
        path: PathBuf,
    },
}

impl std::fmt::Display for ProgramError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let but = "its time cannot be stretched";
        match self {
            Self::NotFound { name } => write!(f, "{name}: no such program in the folders of PATH"),
            Self::Unreadable { path, error } => write!(f, "{}: {error}", path.display()),
            Self::NotAProgram { path } => write!(f, "{}: is no program and no script", path.display()),
            Self::Static { path } => {
                write!(f, "{}: is linked statically, as Go's programs are: {but}", path.display())
            }
            Self::NoLibc { path } => write!(f, "{}: does not load the C library: {but}", path.display()),
            Self::Foreign { path } => {
                write!(f, "{}: is of another word length or byte order: {but}", path.display())
            }
            Self::SetId { path } => {
                write!(f, "{}: is set-user-ID or set-group-ID: {but} unless root runs it", path.display())
            }
            Self::Capabilities { path } => {
                write!(f, "{}: its file has capabilities (setcap): {but} unless root runs it", path.display())
            }
        }
    }
}

impl std::error::Error for ProgramError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Unreadable { error, .. } => Some(error),
            _ => None,
        }
    }
}

/// Checks that the library can stretch a program's time. `name` is a path, or a name to look up in
/// the folders of `PATH`. For a script, its interpreter is checked; for a script that runs `env
/// NAME`, the program `NAME`.
///
/// Errors: see [`ProgramError`]. Programs that this program starts are not checked.
pub fn check_program(name: &Path) -> Result<(), ProgramError> {
    check_program_of(name, is_root())
}

/// Does the same as [`check_program`], for root or for another user.
fn check_program_of(name: &Path, is_root: bool) -> Result<(), ProgramError> {
    let mut path = find(name)?;
    for _ in 0..INTERPRETERS_MAX {
        let unreadable = |error| ProgramError::Unreadable { path: path.clone(), error };
        let file = File::open(&path).map_err(unreadable)?;
        let mode = file.metadata().map_err(unreadable)?.permissions().mode();
        let mut start = vec![0; LINE_BYTES_MAX];
        let length = read_at(&file, &mut start, 0).map_err(unreadable)?;
        start.truncate(length);
        if let Some(interpreter) = interpreter(&start) {
            path = find(&interpreter)?;
            continue;
        }
        let mut failed = None;
        let linkage = linkage(&mut |at, bytes| {
            let mut part = vec![0; bytes];
            match read_at(&file, &mut part, at) {
                Ok(length) => part.truncate(length),
                Err(error) => {
                    failed = Some(error);
                    return None;
                }
            }
            Some(part)
        });
        if let Some(error) = failed {
            return Err(unreadable(error));
        }
        return match linkage {
            Some(Linkage::Libc) if mode & SET_ID != 0 && !is_root => Err(ProgramError::SetId { path }),
            Some(Linkage::Libc) if !is_root && has_capabilities(&file) => {
                Err(ProgramError::Capabilities { path })
            }
            Some(Linkage::Libc) => Ok(()),
            Some(Linkage::Other) => Err(ProgramError::NoLibc { path }),
            Some(Linkage::Static) => Err(ProgramError::Static { path }),
            Some(Linkage::Foreign) => Err(ProgramError::Foreign { path }),
            None => Err(ProgramError::NotAProgram { path }),
        };
    }
    Err(ProgramError::NotAProgram { path })
}

fn is_root() -> bool {
    // SAFETY: the call has no arguments and changes no state.
    unsafe { libc::geteuid() == 0 }
}

/// Returns true if a file has capabilities; false if the file system does not support them.
fn has_capabilities(file: &File) -> bool {
    let name = c"security.capability";
    // SAFETY: the descriptor is open and the name ends with a zero; without a buffer the kernel
    // returns the value's length.
    unsafe { libc::fgetxattr(file.as_raw_fd(), name.as_ptr(), std::ptr::null_mut(), 0) > 0 }
}

/// Finds the file of a program.
fn find(name: &Path) -> Result<PathBuf, ProgramError> {
    if name.as_os_str().as_bytes().contains(&b'/') {
        return Ok(name.to_owned());
    }
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| {
        path.metadata().is_ok_and(|file| file.is_file() && file.permissions().mode() & 0o111 != 0)
    });
    found.ok_or_else(|| ProgramError::NotFound { name: name.display().to_string() })
}

/// Fills a buffer, up to the end of the file. Returns the number of bytes.
fn read_at(file: &File, buffer: &mut [u8], at: u64) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read_at(&mut buffer[length..], at.saturating_add(length as u64)) {
            Ok(0) => break,
            Ok(more) => length += more,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(length)
}

/// The program that runs a script with this first line; `None` if the file is not a script.
fn interpreter(start: &[u8]) -> Option<PathBuf> {
    let line = start.strip_prefix(b"#!")?.split(|byte| *byte == b'\n').next()?;
    let mut words = line.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty());
    let path = |word: &[u8]| PathBuf::from(std::ffi::OsStr::from_bytes(word));
    let first = path(words.next()?);
    if first.file_name() != Some("env".as_ref()) {
        return Some(first);
    }
    let is_name = |word: &&[u8]| !word.starts_with(b"-") && !word.contains(&b'=');
    words.find(is_name).map(path).or(Some(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use anabranch_testing::skip::skip;

    #[test]
    fn scripts_are_checked_by_their_interpreter() {
        let of = |line: &str| interpreter(line.as_bytes()).map(|path| path.display().to_string());
        assert_eq!(of("#!/bin/sh -e\necho"), Some("/bin/sh".into()));
        assert_eq!(of("#! /usr/bin/env python3\n"), Some("python3".into()));
        assert_eq!(of("#!/usr/bin/env -S A=1 python3 -u\n"), Some("python3".into()));
        assert_eq!(of("\x7fELF"), None);
        assert_eq!(of("#!\n"), None);
    }

    #[test]
    fn programs_with_more_rights_are_refused_except_for_root() {
        let path = std::env::temp_dir().join(format!("anabranch-dilate-{}", std::process::id()));
        std::fs::copy(std::env::current_exe().expect("it runs"), &path).expect("room for a copy");
        let check = |is_root| check_program_of(&path, is_root).map_err(|error| error.to_string());
        assert_eq!(check(false), Ok(()));
        // Version 2 of the attribute, with CAP_NET_RAW permitted and effective
        // (linux/capability.h).
        let value = [0x0200_0001u32, 1 << 13, 0, 0, 0].map(u32::to_le_bytes).concat();
        let name = std::ffi::CString::new(path.as_os_str().as_bytes()).expect("no zero");
        let attribute = c"security.capability";
        // SAFETY: both names end with a zero, and the value has the stated length.
        let set = unsafe {
            libc::setxattr(name.as_ptr(), attribute.as_ptr(), value.as_ptr().cast(), value.len(), 0)
        };
        let with_capabilities = (check(false), check(true));
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o4755)).expect("its owner may");
        let with_set_id = (check(false), check(true));
        std::fs::remove_file(&path).expect("it is there");
        assert!(with_set_id.0.is_err_and(|error| error.contains("set-user-ID")) && with_set_id.1.is_ok());
        if set != 0 {
            return skip("only root may give a file capabilities");
        }
        let refusal = with_capabilities.0.expect_err("capabilities");
        assert!(refusal.contains("its file has capabilities"), "{refusal}");
        assert_eq!(with_capabilities.1, Ok(()));
    }

    #[test]
    fn unusable_programs_are_refused_by_name() {
        check_program(&std::env::current_exe().expect("it runs")).expect("it loads the C library");
        check_program("sh".as_ref()).expect("every shell does");
        for (name, words) in [
            ("/proc/self/status", "is no program"),
            ("/no/such/file", "No such file"),
            ("no-such-program-anywhere", "in the folders of PATH"),
        ] {
            let error = check_program(name.as_ref()).expect_err("it cannot run").to_string();
            assert!(error.contains(name) && error.contains(words), "{error}");
        }
    }
}
