//! Control groups of version 2.
//!
//! Source: cgroups(7), fstab(5). Leaves out: limits, and groups of our own. Read [`root`].

use std::io;
use std::path::PathBuf;

/// The root of the version 2 hierarchy. Machines with both versions mount it beside the groups of version 1.
///
/// Errors: none is mounted; the system's.
pub fn root() -> io::Result<PathBuf> {
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    mount(&mounts).ok_or_else(|| {
        let why = "none is mounted here; `ip netns exec` hides it, `nsenter --net=/run/netns/NAME` does not";
        io::Error::new(io::ErrorKind::NotFound, why)
    })
}

/// Of lines as fstab(5) has them.
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
    fn the_mount_is_found_also_beside_version_1() {
        let hybrid = "tmpfs /sys/fs/cgroup tmpfs rw 0 0\ncgroup /sys/fs/cgroup/cpu cgroup rw,cpu 0 0\ncgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n";
        assert_eq!(mount(hybrid), Some("/sys/fs/cgroup/unified".into()));
        assert_eq!(mount("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"), Some("/sys/fs/cgroup".into()));
        assert_eq!(mount("proc /proc proc rw 0 0\n\n"), None);
    }
}
