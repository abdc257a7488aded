//! Working names that test a file system (*probes*), and the removal of probes that a killed
//! process left.
//!
//! A test takes milliseconds. A probe that is older than [`LEFT_AFTER`] therefore belongs to no
//! running process. Read [`probe_name`] and [`remove_left`] first.

use super::remove;
use anabranch_pieces::name::RESERVED;
use rustix::fs::{AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::CStr;
use std::io;
use std::os::fd::OwnedFd;
use std::time::{Duration, SystemTime};

/// Name of the only file in a probe that is a directory.
pub(crate) const PROBE_FILE: &str = "file";
/// Endings of the names of probes. A probe of the Unicode form has letters behind its ending.
const ENDINGS: [&[u8]; 3] = [b".name", b".probe-a", b".probe-b"];
/// Letters behind the ending of a probe, in both Unicode forms.
const FORMS: [&[u8]; 3] = [b"", "\u{e9}".as_bytes(), "e\u{301}".as_bytes()];
/// Digits of a probe's random number.
const DIGITS: usize = 16;
/// Age from which a probe counts as left. It covers clocks of file servers that differ from this
/// machine's.
const LEFT_AFTER: Duration = Duration::from_secs(3_600);

/// A random name for a probe, without its ending.
///
/// Errors: the system has no random number.
pub(crate) fn probe_name() -> io::Result<String> {
    Ok(format!("{RESERVED}{:016x}", anabranch_net::random()?))
}

fn is_probe(name: &[u8]) -> bool {
    let numbered = name.strip_prefix(RESERVED.as_bytes()).and_then(|rest| rest.split_at_checked(DIGITS));
    numbered.is_some_and(|(digits, ending)| {
        let letters = ENDINGS.iter().find_map(|known| ending.strip_prefix(*known));
        digits.iter().all(u8::is_ascii_hexdigit) && letters.is_some_and(|letters| FORMS.contains(&letters))
    })
}

/// Removes the probes in a folder that were left before `now`. Errors of the system leave them for
/// the next test.
pub(crate) fn remove_left(folder: &OwnedFd, now: SystemTime) {
    let Ok(entries) = rustix::fs::Dir::read_from(folder) else { return };
    let names = entries.flatten().map(|entry| entry.file_name().to_owned());
    let probes: Vec<_> = names.filter(|name| is_probe(name.to_bytes())).collect();
    for name in probes {
        if let Err(errno) = remove_one(folder, &name, now) {
            tracing::debug!("{}: a probe that was left stays: {errno}", name.to_bytes().escape_ascii());
        }
    }
}

fn remove_one(folder: &OwnedFd, name: &CStr, now: SystemTime) -> Result<(), Errno> {
    let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW)?;
    let made = SystemTime::UNIX_EPOCH + Duration::from_secs(u64::try_from(found.st_mtime).unwrap_or(0));
    if !now.duration_since(made).is_ok_and(|age| age >= LEFT_AFTER) {
        return Ok(());
    }
    match FileType::from_raw_mode(found.st_mode) {
        FileType::RegularFile => remove(folder, name),
        FileType::Directory => {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let opened = rustix::fs::openat(folder, name, flags, Mode::empty())?;
            remove(&opened, PROBE_FILE)?;
            rustix::fs::unlinkat(folder, name, AtFlags::REMOVEDIR)
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn removed(folder: &Path, now: SystemTime) -> Vec<String> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let opened = rustix::fs::open(folder, flags, Mode::empty()).expect("it is there");
        remove_left(&opened, now);
        let names = std::fs::read_dir(folder).expect("it is there").flatten();
        let mut names: Vec<_> =
            names.map(|entry| entry.file_name().into_string().expect("a plain name")).collect();
        names.sort_unstable();
        names
    }

    /// #54: a process that was killed during a test left its working names for good.
    #[test]
    fn old_probes_are_removed_and_young_ones_kept() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let number = format!("{RESERVED}0123456789abcdef");
        let name = |ending: &str| folder.path().join(format!("{number}{ending}"));
        for ending in [".name", ".name\u{e9}", ".named", ".partial"] {
            std::fs::write(name(ending), "").expect("the folder is ours");
        }
        for ending in [".probe-a", ".probe-b"] {
            std::fs::create_dir(name(ending)).expect("the folder is ours");
        }
        std::fs::write(name(".probe-a").join(PROBE_FILE), "").expect("the folder is ours");
        std::fs::write(name(".probe-b").join("other"), "").expect("the folder is ours");
        let now = SystemTime::now();
        assert_eq!(removed(folder.path(), now).len(), 6, "young probes may be of another process");
        let later = now + LEFT_AFTER + Duration::from_secs(2);
        let other = [".named", ".partial", ".probe-b"].map(|ending| format!("{number}{ending}"));
        assert_eq!(removed(folder.path(), later), other);
    }
}
