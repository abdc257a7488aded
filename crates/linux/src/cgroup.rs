//! Control groups, version 2.
//!
//! Source: cgroups(7), fstab(5). Leaves out: limits, and the creation of groups. Read [`root`].

use std::io;
use std::path::PathBuf;

/// The root of the version 2 hierarchy. Machines with both versions mount it beside the version 1
/// hierarchies.
///
/// Errors: no version 2 hierarchy is mounted; the system's.
pub fn root() -> io::Result<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    mount(&mounts).ok_or_else(|| {
        let why = "none is mounted here; `ip netns exec` hides it, `nsenter --net=/run/netns/NAME` does not";
        io::Error::new(io::ErrorKind::NotFound, why)
    })
}

/// Finds the mount point in lines of the format of fstab(5).
fn mount(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (_, at, kind) = (words.next()?, words.next()?, words.next()?);
        (kind == "cgroup2").then(|| PathBuf::from(at))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cgroup2_mount_is_found_beside_version_1() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mount(hybrid), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(mount("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"), Some("/sys/fs/cgroup".into()));
        assert_eq!(mount("proc /proc proc rw 0 0\n\n"), None);
    }
}
