//! Errors of the emulator, each with the missing right or device and how to get it.

use std::io::{Error, ErrorKind};

use anabranch_fabric::{CircuitError, PortError};
use anabranch_units::{FlowKey, LinkId, SiteId};

/// Maximum number of open connections between racks, both directions counted. Further connections
/// have no demand.
pub(crate) const CONNECTIONS_MAX: usize = 65_536;

/// Reason why there is no emulation, or why a request failed.
#[derive(Debug)]
#[non_exhaustive]
pub enum EmuError {
    /// The topology has more sites or links than an emulation can have, or no site.
    Size {
        /// Kind of the items that are too many or too few.
        what: &'static str,
        /// Number of items.
        got: usize,
        /// Maximum number of items.
        limit: usize,
    },
    /// An option has an invalid value.
    Option {
        /// Name of the setting.
        name: &'static str,
        /// The invalid value.
        value: String,
        /// Permitted values.
        allowed: &'static str,
    },
    /// A link has invalid settings for a port.
    Link {
        /// The link.
        link: LinkId,
        /// Reason.
        error: PortError,
    },
    /// The switch of circuits has invalid settings.
    Circuit(CircuitError),
    /// The topology has no such link.
    UnknownLink {
        /// The requested link.
        link: LinkId,
        /// Number of links.
        links: usize,
    },
    /// Namespaces could not be created in the only permitted way.
    Build(BuildFailure),
    /// Namespaces could not be created, neither with the process's own privileges nor in a user
    /// namespace.
    NoIsolation {
        /// Failure with the process's own privileges.
        root: BuildFailure,
        /// Failure in a user namespace.
        user: BuildFailure,
    },
    /// The machine has no limits of processor time.
    HostCpus(Error),
    /// A program could not be started in a site.
    Spawn {
        /// The program.
        program: String,
        /// The site.
        site: SiteId,
        /// Reason.
        error: Error,
    },
    /// The thread could not enter the site.
    Enter {
        /// The site.
        site: SiteId,
        /// Reason.
        error: Error,
    },
    /// An announcement of demand was refused.
    Announce(AnnounceError),
    /// A thread of the emulator could not be started.
    Thread(Error),
    /// The emulation has ended.
    Ended,
}

/// Reason for the refusal of an announcement of demand.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AnnounceError {
    /// The circuits follow no announcements.
    NotFollowed,
    /// No connection of this name is open between two racks.
    NoConnection(FlowKey),
}

impl std::fmt::Display for AnnounceError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NotFollowed => {
                f.write_str("circuits of this network follow no announcements: set circuit.schedule.demand = \"announced\"")
            }
            Self::NoConnection(flow) => write!(
                f,
                "flow {flow}: no such connection is open between two racks, or {CONNECTIONS_MAX} others are: announce open connections"
            ),
        }
    }
}

impl std::error::Error for AnnounceError {}

/// Way in which the namespaces were created.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Isolation {
    /// Network namespaces made with the process's own privileges (CAP_SYS_ADMIN and CAP_NET_ADMIN).
    Root,
    /// Network namespaces inside a user namespace, which needs no privileges if the machine permits
    /// it.
    UserNamespace,
}

/// A failed step in the creation of the namespaces.
#[derive(Debug)]
pub struct BuildFailure {
    /// Kind of namespaces that was tried.
    pub isolation: Isolation,
    /// The step that failed.
    pub step: BuildStep,
    /// Site in which the step failed; `None` if no site was involved.
    pub site: Option<SiteId>,
    /// Name of this site, where it is known.
    pub site_name: Option<String>,
    /// The kernel's error.
    pub error: Error,
}

/// Steps in the creation of the namespaces.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum BuildStep {
    /// Start the helper process, or exchange descriptors with it.
    Fork,
    /// Create a user namespace.
    UnshareUser,
    /// Become root inside the user namespace.
    MapIds,
    /// Create a network namespace.
    UnshareNet,
    /// Open `/dev/net/tun`.
    OpenTun,
    /// Create a TUN device.
    MakeTun,
    /// Set the device's MTU and addresses, and bring the device up.
    Interface,
    /// Write a setting below `/proc/sys/net`.
    Setting,
    /// Create a control group that limits processor time.
    Group,
}

impl BuildStep {
    pub(crate) const ALL: [Self; 9] = [
        Self::Fork,
        Self::UnshareUser,
        Self::MapIds,
        Self::UnshareNet,
        Self::OpenTun,
        Self::MakeTun,
        Self::Interface,
        Self::Setting,
        Self::Group,
    ];

    const fn what(self) -> &'static str {
        match self {
            Self::Fork => "start the helper process",
            Self::UnshareUser => "make a user namespace",
            Self::MapIds => "become root inside the user namespace",
            Self::UnshareNet => "make a network namespace",
            Self::OpenTun => "open /dev/net/tun",
            Self::MakeTun => "make a TUN device",
            Self::Interface => "set up the site's network device",
            Self::Setting => "apply a TCP setting",
            Self::Group => "limit the processor time of hosts",
        }
    }
}

impl BuildStep {
    /// Error numbers with which the kernel reports that the machine lacks support for this step,
    /// besides "not supported" and "not permitted". The same numbers at another step mean a bug in
    /// this crate.
    pub const fn lacks(self) -> &'static [i32] {
        match self {
            // The maximum number of namespaces is reached.
            Self::UnshareUser | Self::UnshareNet => &[libc::ENOSPC],
            Self::OpenTun => &[libc::ENOENT, libc::ENODEV, libc::ENXIO],
            Self::Group => &[libc::EROFS],
            _ => &[],
        }
    }
}

impl BuildFailure {
    /// The fix, in one sentence.
    pub fn fix(&self) -> &'static str {
        let code = self.error.raw_os_error();
        match (self.step, self.isolation) {
            (BuildStep::Fork, _) if code == Some(libc::EMFILE) => {
                "raise the limit of open files (`ulimit -n 4096`)"
            }
            (BuildStep::Fork, _) => "raise the limits of open files and processes (`ulimit -n`, `ulimit -u`)",
            (BuildStep::UnshareUser | BuildStep::UnshareNet, _) if code == Some(libc::ENOSPC) => {
                "raise the limits `sysctl user.max_user_namespaces` and `user.max_net_namespaces` (as root), e.g. to 10000"
            }
            (BuildStep::UnshareNet, Isolation::Root) => "needs CAP_SYS_ADMIN: run as root (`sudo`)",
            (
                BuildStep::UnshareUser | BuildStep::MapIds | BuildStep::UnshareNet | BuildStep::MakeTun,
                Isolation::UserNamespace,
            ) => restriction(),
            (BuildStep::UnshareUser | BuildStep::MapIds, Isolation::Root) => "run as root",
            (BuildStep::OpenTun, _) if self.error.kind() == ErrorKind::NotFound => {
                "load the module (`sudo modprobe tun`), or give the container the device (`--device /dev/net/tun`)"
            }
            (BuildStep::OpenTun, _) if code == Some(libc::EACCES) => {
                "let users open it (`sudo chmod 666 /dev/net/tun`), or run as root"
            }
            (BuildStep::OpenTun, _) => "give the container the device (`--device /dev/net/tun`)",
            (BuildStep::MakeTun | BuildStep::Interface, _) => {
                "needs CAP_NET_ADMIN: run as root, or give the container the capability (`--cap-add NET_ADMIN`)"
            }
            (BuildStep::Setting, _) if self.error.kind() == ErrorKind::NotFound => {
                "the kernel lacks a setting (time dilation takes Linux 6.11) or this congestion control: choose one that `anabranch doctor` lists, or load its module"
            }
            (BuildStep::Setting, _) if code == Some(libc::EPERM) => {
                "a site's default congestion control must be an allowed one: `sudo sysctl -w net.ipv4.tcp_allowed_congestion_control=\"reno cubic bbr\"`, with its name in the list"
            }
            (BuildStep::Group, _) => "run as root with a writable /sys/fs/cgroup, or leave the limit out",
            (BuildStep::Setting, _) => "make /proc/sys writable (a container may need `--privileged`)",
        }
    }
}

/// Describes the setting that forbids user namespaces on this machine.
pub(crate) fn restriction() -> &'static str {
    let is = |name: &str, value: &str| {
        std::fs::read_to_string(format!("/proc/sys/{name}")).is_ok_and(|v| v.trim() == value)
    };
    if is("user/max_user_namespaces", "0") {
        "user namespaces are switched off: `sudo sysctl user.max_user_namespaces=10000`, or run as root"
    } else if is("kernel/unprivileged_userns_clone", "0") {
        "user namespaces are for root only here: `sudo sysctl kernel.unprivileged_userns_clone=1`, or run as root"
    } else if is("kernel/apparmor_restrict_unprivileged_userns", "1") {
        "AppArmor restricts user namespaces: `sudo sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or run as root"
    } else {
        "a container or security module forbids it: run as root, or outside the container"
    }
}

impl std::fmt::Display for BuildFailure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "cannot {}", self.step.what())?;
        match (&self.site_name, self.site) {
            (Some(name), _) => write!(f, " for site `{name}`")?,
            (None, Some(site)) => write!(f, " for site {site}")?,
            (None, None) => {}
        }
        write!(f, ": {}: {}", self.error, self.fix())
    }
}
impl std::error::Error for BuildFailure {}

impl std::fmt::Display for EmuError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Size { what, got, limit } => write!(f, "{got} {what} to emulate: must be 1 to {limit}"),
            Self::Option { name, value, allowed } => write!(f, "{name} {value}: must be {allowed}"),
            Self::Link { link, error } => write!(f, "link {link}: {error}"),
            Self::Circuit(error) => write!(f, "switch of circuits: {error}"),
            Self::UnknownLink { link, links } => {
                write!(f, "no link {link}: this topology has {links} links, from 0")
            }
            Self::HostCpus(error) => write!(f, "host processors: no limit is possible: {error}"),
            Self::Build(failure) => failure.fmt(f),
            Self::NoIsolation { root, user } => {
                write!(
                    f,
                    "no network to emulate on; with our own privileges: {root}; in a user namespace: {user}"
                )
            }
            Self::Spawn { program, site, error } => {
                write!(f, "cannot start `{program}` in site {site}: {error}")
            }
            Self::Enter { site, error } => write!(f, "cannot enter site {site}: {error}"),
            Self::Announce(error) => error.fmt(f),
            Self::Thread(error) => write!(f, "cannot start a thread of the emulator: {error}"),
            Self::Ended => write!(f, "the emulation has ended"),
        }
    }
}
impl std::error::Error for EmuError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_steps_decode_from_their_numbers() {
        for step in BuildStep::ALL {
            assert_eq!(BuildStep::ALL[step as usize], step);
        }
    }

    #[test]
    fn inaccessible_device_is_named_with_its_fix() {
        let failure = BuildFailure {
            isolation: Isolation::UserNamespace,
            step: BuildStep::OpenTun,
            site: Some(SiteId(0)),
            site_name: None,
            error: Error::from_raw_os_error(libc::EACCES),
        };
        let text = failure.to_string();
        assert!(text.contains("/dev/net/tun") && text.contains("chmod"), "{text}");
    }

    #[test]
    fn forbidden_congestion_control_is_named_with_its_fix() {
        let failure = BuildFailure {
            isolation: Isolation::Root,
            step: BuildStep::Setting,
            site: Some(SiteId(0)),
            site_name: Some("paris".into()),
            error: Error::from_raw_os_error(libc::EPERM),
        };
        let text = failure.to_string();
        assert!(text.contains("site `paris`") && text.contains("sysctl -w net.ipv4.tcp_allowed"), "{text}");
    }
}
