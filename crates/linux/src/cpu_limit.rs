//! Limits of processor time: control groups of the cpu controller, of version 1 or 2.
//!
//! A group whose processes have used their quota waits until the next period. Real-time threads are
//! exempt. Source: cgroups(7); Documentation/admin-guide/cgroup-v2.rst and
//! Documentation/scheduler/sched-bwc.rst of Linux 6.18. Leaves out: weights, and groups that
//! contain groups. Read [`CpuHierarchy`] and [`CpuGroup`] first.

use std::fs::{self, File};
use std::io::{self, Error, ErrorKind};
use std::path::{Path, PathBuf};

/// Processor time that a group may use in each period.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct CpuLimit {
    /// Processor time of a period, in microseconds.
    pub quota_us: u64,
    /// Length of a period, in microseconds.
    pub period_us: u64,
}

/// Shortest period of [`CpuLimit::divided`]. Shorter periods cost more of the kernel's time.
const PERIOD_US_MIN: u64 = 10_000;
/// Longest period that the kernel permits.
const PERIOD_US_MAX: u64 = 1_000_000;
/// Smallest quota that the kernel permits.
const QUOTA_US_MIN: u64 = 1_000;

impl CpuLimit {
    /// The time of `processors` processors divided by `divisor`.
    ///
    /// A period has one millisecond for each processor if the divisor is 10 to 1,000. A share below
    /// a thousandth of a processor counts as a thousandth, because the kernel permits none smaller.
    pub fn divided(processors: u32, divisor: u32) -> Self {
        let divisor = u64::from(divisor.max(1));
        let period_us = (QUOTA_US_MIN * divisor).clamp(PERIOD_US_MIN, PERIOD_US_MAX);
        let quota_us = (u64::from(processors) * period_us).div_ceil(divisor).max(QUOTA_US_MIN);
        Self { quota_us, period_us }
    }
}

/// The hierarchy of control groups that has the cpu controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuHierarchy {
    root: PathBuf,
    version: Version,
}

#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

impl CpuHierarchy {
    /// Finds the hierarchy in which new groups can have limits.
    ///
    /// Errors: no hierarchy has the controller; the controller is not enabled for groups, with the
    /// remedy; the system's.
    pub fn find() -> io::Result<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts")?;
        if let Some(root) = mount_v1(&mounts) {
            return Ok(Self { root, version: Version::One });
        }
        let root = super::cgroup::root()?;
        let has_cpu = |file: &str| {
            let controllers = fs::read_to_string(root.join(file)).unwrap_or_default();
            controllers.split_whitespace().any(|name| name == "cpu")
        };
        if has_cpu("cgroup.subtree_control") {
            return Ok(Self { root, version: Version::Two });
        }
        let place = root.display();
        let why = if has_cpu("cgroup.controllers") {
            format!(
                "groups below {place} have no cpu controller: `echo +cpu > {place}/cgroup.subtree_control`"
            )
        } else {
            format!("{place} has no cpu controller: this kernel or container lacks it")
        };
        Err(Error::new(ErrorKind::Unsupported, why))
    }

    /// Removes the groups `PREFIX-PID-…` without processes whose process PID has ended. The kernel
    /// refuses to remove a group with processes.
    pub fn remove_left(&self, prefix: &str) {
        for entry in fs::read_dir(&self.root).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let owner = name.to_str().and_then(|name| owner_of(name, prefix));
            if owner.is_some_and(|pid| !Path::new(&format!("/proc/{pid}")).exists()) {
                drop(fs::remove_dir(entry.path()));
            }
        }
    }

    /// Returns the group `name` below the root. The group need not exist.
    pub fn group(&self, name: &str) -> CpuGroup {
        CpuGroup { path: self.root.join(name), version: self.version }
    }
}

/// Number of the process that made the group `PREFIX-PID-…`.
fn owner_of(name: &str, prefix: &str) -> Option<u32> {
    let (pid, _) = name.strip_prefix(prefix)?.strip_prefix('-')?.split_once('-')?;
    pid.parse().ok()
}

/// Finds the mount point of version 1's cpu controller in lines of the format of fstab(5).
fn mount_v1(mounts: &str) -> Option<PathBuf> {
    mounts.lines().find_map(|line| {
        let mut words = line.split(' ');
        let (_, at, kind, options) = (words.next()?, words.next()?, words.next()?, words.next()?);
        let has_cpu = options.split(',').any(|option| option == "cpu");
        (kind == "cgroup" && has_cpu).then(|| PathBuf::from(at))
    })
}

/// A control group with a limit of processor time. Dropping the value does not remove the group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuGroup {
    path: PathBuf,
    version: Version,
}

/// Counters of a group since its creation.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq)]
pub struct Throttling {
    /// Periods in which a process of the group was runnable.
    pub periods: u64,
    /// Periods in which the group used its quota and had to wait.
    pub throttled: u64,
}

impl CpuGroup {
    /// Path of the group's directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Creates the group, without a limit.
    ///
    /// Errors: the group exists; the system's, such as a missing right.
    pub fn create(&self) -> io::Result<()> {
        fs::create_dir(&self.path)
    }

    /// Sets the limit; `None` removes it.
    ///
    /// Errors: a value that the kernel refuses; the system's.
    pub fn limit(&self, limit: Option<CpuLimit>) -> io::Result<()> {
        let write = |file: &str, text: String| fs::write(self.path.join(file), text);
        match (self.version, limit) {
            (Version::One, None) => write("cpu.cfs_quota_us", "-1".to_owned()),
            (Version::One, Some(limit)) => {
                write("cpu.cfs_period_us", limit.period_us.to_string())?;
                write("cpu.cfs_quota_us", limit.quota_us.to_string())
            }
            (Version::Two, None) => write("cpu.max", "max".to_owned()),
            (Version::Two, Some(limit)) => {
                write("cpu.max", format!("{} {}", limit.quota_us, limit.period_us))
            }
        }
    }

    /// Opens the file through which a process enters: it writes its number, or 0 for itself.
    ///
    /// Errors: the system's.
    pub fn entry(&self) -> io::Result<File> {
        File::options().write(true).open(self.path.join("cgroup.procs"))
    }

    /// Numbers of the processes in the group; empty if the group does not exist.
    pub fn members(&self) -> Vec<libc::pid_t> {
        let members = fs::read_to_string(self.path.join("cgroup.procs")).unwrap_or_default();
        members.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Reads the group's counters.
    ///
    /// Errors: the system's.
    pub fn throttling(&self) -> io::Result<Throttling> {
        Ok(throttling(&fs::read_to_string(self.path.join("cpu.stat"))?))
    }

    /// Removes the group, which must have no processes. A group that does not exist is no error.
    ///
    /// Errors: the group has processes; the system's.
    pub fn remove(&self) -> io::Result<()> {
        match fs::remove_dir(&self.path) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }
}

/// Reads the counters of `cpu.stat`, which has the same names in both versions.
fn throttling(text: &str) -> Throttling {
    let value = |name: &str| {
        let found = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        found.and_then(|value| value.trim().parse().ok()).unwrap_or(0)
    };
    Throttling { periods: value("nr_periods"), throttled: value("nr_throttled") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn limits_stay_within_the_kernels_bounds() {
        let limit = |processors, divisor| {
            let CpuLimit { quota_us, period_us } = CpuLimit::divided(processors, divisor);
            (quota_us, period_us)
        };
        assert_eq!(limit(1, 1), (10_000, 10_000));
        assert_eq!(limit(1, 3), (3_334, 10_000));
        assert_eq!(limit(4, 20), (4_000, 20_000));
        assert_eq!(limit(1, 1_000), (1_000, 1_000_000));
        assert_eq!(limit(1, 1_024), (1_000, 1_000_000));
    }

    #[test]
    fn left_groups_are_recognised_by_their_process() {
        assert_eq!(owner_of("ours-4711-0", "ours"), Some(4711));
        assert_eq!(owner_of("ours-4711-doctor", "ours"), Some(4711));
        for other in ["ours", "ours-4711", "ours-x-0", "theirs-4711-0", "ourself-1-0"] {
            assert_eq!(owner_of(other, "ours"), None, "{other}");
        }
    }

    #[test]
    fn groups_of_ended_processes_are_removed() {
        let root = std::env::temp_dir().join(format!("cpu-limit-{}", std::process::id()));
        let own = root.join(format!("ours-{}-0", std::process::id()));
        // No process has a number above the kernel's limit of 4,194,304.
        let left = root.join("ours-4194305-0");
        for folder in [&own, &left] {
            fs::create_dir_all(folder).expect("the folder is ours");
        }
        CpuHierarchy { root: root.clone(), version: Version::Two }.remove_left("ours");
        assert_eq!((own.exists(), left.exists()), (true, false));
        fs::remove_dir_all(root).expect("the folder is ours");
    }

    #[test]
    fn version_1_mount_is_found_by_its_controller() {
        let hybrid = "cgroup2 /sys/fs/cgroup/unified cgroup2 rw 0 0\n\
                      cgroup /sys/fs/cgroup/cpuset cgroup rw,cpuset 0 0\n\
                      cgroup /sys/fs/cgroup/cpu,cpuacct cgroup rw,relatime,cpu,cpuacct 0 0\n";
        assert_eq!(mount_v1(hybrid), Some("/sys/fs/cgroup/cpu,cpuacct".into()));
        assert_eq!(mount_v1("cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n"), None);
    }

    #[test]
    fn throttling_is_read_from_both_versions() {
        let one = "nr_periods 12\nnr_throttled 3\nthrottled_time 4\nnr_bursts 0\nburst_time 0\n";
        let two =
            "usage_usec 9\nuser_usec 5\nsystem_usec 4\nnr_periods 12\nnr_throttled 3\nthrottled_usec 4\n";
        let expected = Throttling { periods: 12, throttled: 3 };
        assert_eq!((throttling(one), throttling(two)), (expected, expected));
        assert_eq!(throttling("usage_usec 9\n"), Throttling::default());
    }
}
