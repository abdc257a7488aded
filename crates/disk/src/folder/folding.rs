//! Differences between names that the file system of a folder ignores.
//!
//! Folders of ext4, F2FS and tmpfs have a flag (`chattr +F`). On other file systems two working
//! names tell: the second one, in other letters, finds the file of the first one or does not.
//!
//! Leaves out: folders deeper below that have the flag alone, or another file system mounted on
//! them. Read [`Folder::folding`] first.

use super::probes::{probe_name, remove_left};
use super::{Folder, Name, Place, remove};
use crate::partial::modified_at;
use anabranch_sets::folding::Folding;
use rustix::fs::{AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;
use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::SystemTime;

/// Flag of a folder that ignores case and Unicode form (`FS_CASEFOLD_FL` in linux/fs.h).
const CASEFOLD: u32 = 0x4000_0000;
/// File systems whose folders keep all names apart without [`CASEFOLD`]: ext4, F2FS, Btrfs, tmpfs
/// (linux/magic.h).
const KEEPS_APART: [u64; 4] = [0xef53, 0xf2f5_2010, 0x9123_683e, 0x0102_1994];

impl Folder {
    /// Differences that are ignored between names in the present or future folder `name`. Errors of
    /// the system count as none.
    pub fn folding(&self, name: &Name) -> Folding {
        let path = Path::new(name.as_str());
        let own = self.open_folder(path).ok();
        let around = path.ancestors().skip(1).find_map(|above| self.open_folder(above).ok());
        around.map_or(Folding::NONE, |around| folding_of(&around, own.as_ref()))
    }
}

impl Place {
    /// Differences that are ignored between names in the present or future folder at this location.
    /// Errors of the system count as none.
    pub fn folding(&self) -> Folding {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let own = rustix::fs::openat(self.folder(), self.name(), flags, Mode::empty()).ok();
        folding_of(self.folder(), own.as_ref())
    }
}

/// The folding of a folder, or of a new folder in `around`, its nearest folder that exists.
fn folding_of(around: &OwnedFd, own: Option<&OwnedFd>) -> Folding {
    looked_up(around, own.unwrap_or(around)).unwrap_or_else(|error| {
        tracing::debug!("names are taken to be kept apart: {error}");
        Folding::NONE
    })
}

fn looked_up(around: &OwnedFd, own: &OwnedFd) -> io::Result<Folding> {
    let has_flag = rustix::fs::ioctl_getflags(own).is_ok_and(|flags| flags.bits() & CASEFOLD != 0);
    if has_flag {
        return Ok(Folding::CASE_AND_FORM);
    }
    if KEEPS_APART.contains(&(rustix::fs::fstatfs(own)?.f_type as u64)) {
        return Ok(Folding::NONE);
    }
    // The folder itself stays untouched, unless it is a mount point.
    let is_mounted = rustix::fs::fstat(own)?.st_dev != rustix::fs::fstat(around)?.st_dev;
    probe(if is_mounted { own } else { around })
}

/// Compares working names in a folder, and removes names that a killed process left. Restores the
/// folder's time of modification.
fn probe(folder: &OwnedFd) -> io::Result<Folding> {
    let before = rustix::fs::statx(folder, "", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?.stx_mtime;
    remove_left(folder, SystemTime::now());
    let name = format!("{}.name", probe_name()?);
    let found = are_equal(folder, &name, &name.to_ascii_uppercase()).map(|ignores_case| {
        // Some file systems refuse letters outside of their character set.
        let of_form = are_equal(folder, &format!("{name}\u{e9}"), &format!("{name}e\u{301}"));
        Folding { ignores_case, ignores_form: of_form.unwrap_or(false) }
    });
    let _ = rustix::fs::futimens(folder, &modified_at(before.tv_sec, before.tv_nsec.into()));
    Ok(found?)
}

/// Returns true if the name `other` finds a file that was made under `name`.
fn are_equal(folder: &OwnedFd, name: &str, other: &str) -> Result<bool, Errno> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    drop(rustix::fs::openat(folder, name, flags, Mode::RUSR | Mode::WUSR)?);
    // No other process knows the random name.
    let found = rustix::fs::statat(folder, other, AtFlags::SYMLINK_NOFOLLOW);
    remove(folder, name)?;
    match found {
        Ok(_) => Ok(true),
        Err(Errno::NOENT) => Ok(false),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::folder::Links;
    use std::os::unix::fs::MetadataExt as _;
    use std::process::Command;

    fn open(path: &Path) -> OwnedFd {
        let folder = Folder::open(path, Links::Refused).expect("it is there");
        folder.open_folder(Path::new("")).expect("it can be read")
    }

    #[test]
    fn probe_leaves_no_name_and_no_time() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let opened = std::fs::File::open(folder.path()).expect("it is there");
        opened.set_modified(std::time::SystemTime::UNIX_EPOCH).expect("it is ours");
        let modified = || {
            let found = folder.path().metadata().expect("it is there");
            (found.mtime(), found.mtime_nsec())
        };
        let before = modified();
        // Folders of other tests are on a file system that keeps names apart, too.
        assert_eq!(probe(&open(folder.path())).expect("it can be written"), Folding::NONE);
        assert_eq!(modified(), before);
        assert_eq!(std::fs::read_dir(folder.path()).expect("it can be read").count(), 0);
    }

    /// #54: a process that was killed during a probe left its working name for good.
    #[test]
    fn probe_removes_names_of_a_killed_process() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let left = folder.path().join(format!("{}.name", probe_name().expect("a random number")));
        let file = std::fs::File::create(&left).expect("the folder is ours");
        file.set_modified(SystemTime::UNIX_EPOCH).expect("it is ours");
        probe(&open(folder.path())).expect("it can be written");
        assert!(!left.exists());
    }

    #[test]
    fn folding_of_a_missing_folder_is_its_parents() {
        let around = tempfile::tempdir().expect("a temporary folder");
        let folder = Folder::open(around.path(), Links::Refused).expect("it is there");
        for name in ["new", "a/b/new"] {
            assert_eq!(folder.folding(&folder.name(name).expect("a name")), Folding::NONE);
        }
        let place = Place::of(&around.path().join("new")).expect("its folder exists");
        assert_eq!(place.folding(), Folding::NONE);
        assert!(!around.path().join("new").exists());
    }

    #[test]
    fn flagged_folder_ignores_case_and_form() {
        let around = tempfile::tempdir().expect("a temporary folder");
        let flagged = around.path().join("flagged");
        std::fs::create_dir(&flagged).expect("it can be made");
        let set = Command::new("chattr").arg("+F").arg(&flagged).output();
        if !set.as_ref().is_ok_and(|set| set.status.success()) {
            return anabranch_testing::skip::skip("this file system has no folders that fold case");
        }
        let folder = Folder::open(around.path(), Links::Refused).expect("it is there");
        for name in ["flagged", "flagged/new", "flagged/a/new"] {
            assert_eq!(folder.folding(&folder.name(name).expect("a name")), Folding::CASE_AND_FORM, "{name}");
        }
        assert_eq!(probe(&open(&flagged)).expect("it can be written"), Folding::CASE_AND_FORM);
        assert_eq!(folder.folding(&folder.name("other").expect("a name")), Folding::NONE);
    }
}
