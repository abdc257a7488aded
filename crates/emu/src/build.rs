//! Namespaces: a forked helper creates them, passes their descriptors to its parent, and stays as a
//! watchdog.
//!
//! A process with several threads cannot enter a user namespace, and a library cannot ask its
//! program to restart. So [`build`] forks a helper with one thread. The helper enters a user
//! namespace if needed, then creates and configures a network namespace for each site, and sends
//! the descriptors back. No namespace has a name, so the kernel removes it with its last process
//! and descriptor, however this process ends.
//!
//! The helper then waits for its parent to close the socket or to die. It kills all processes in
//! the namespaces (background programs, too), removes the groups that limit their processor time,
//! and ends.

use std::io::{Error, Write as _};
use std::net::Ipv4Addr;
use std::os::fd::{AsFd as _, AsRawFd, OwnedFd, RawFd};
use std::os::unix::fs::MetadataExt;

use anabranch_linux::cpu_limit::{CpuGroup, CpuHierarchy, CpuLimit};
use anabranch_linux::namespace::{Kind, Namespace};
use anabranch_linux::netlink::NetlinkError;
use anabranch_linux::rtnetlink::{Address, LOOPBACK, LinkChange, Prefix, Route, Rtnetlink};
use anabranch_linux::tun;
use anabranch_units::SiteId;

use crate::error::{BuildFailure, BuildStep, Isolation};
use crate::sys;

/// Name of the network device in every site.
pub(crate) const DEVICE: &str = "ab0";

/// Begin of the names of control groups.
pub(crate) const GROUP: &str = "anabranch";

/// Data that the helper needs, prepared before the fork.
#[derive(Debug)]
pub(crate) struct BuildPlan {
    pub sites: Vec<SitePlan>,
    pub prefix: u8,
    pub mtu: u32,
    pub device_queue_packets: u32,
    /// Settings: path below `/proc/sys/net`, value, and true if the emulation is refused when the
    /// value cannot be set.
    pub settings: Vec<(String, String, bool)>,
    /// True if TCP acknowledges every segment immediately.
    pub quick_ack: bool,
    /// Limit of the processor time of each site's programs, and the hierarchy of its groups. `None`
    /// without a limit.
    pub cpu: Option<(CpuHierarchy, CpuLimit)>,
}

impl BuildPlan {
    /// The control groups of the sites' programs, in the order of the sites, which the helper `pid`
    /// creates and removes. Empty without a limit.
    fn groups(&self, pid: libc::pid_t) -> Vec<CpuGroup> {
        let Some((hierarchy, _)) = &self.cpu else { return Vec::new() };
        (0..self.sites.len()).map(|site| hierarchy.group(&format!("{GROUP}-{pid}-{site}"))).collect()
    }
}

/// A control group of programs, and the file through which they enter it.
#[derive(Debug)]
pub(crate) struct ProgramGroup {
    pub group: CpuGroup,
    pub entry: OwnedFd,
}

#[derive(Debug)]
pub(crate) struct SitePlan {
    /// Name of the site in messages; empty if it has none.
    pub name: String,
    pub address: Ipv4Addr,
    pub link_addresses: Vec<Ipv4Addr>,
}

/// Descriptors of one site.
#[derive(Debug)]
pub(crate) struct SiteFds {
    pub namespace: Namespace,
    pub tun: OwnedFd,
    /// The file `/proc/net/dev` of the namespace.
    pub device_counters: OwnedFd,
}

/// The namespaces and their helper. Dropping the value kills all programs in the namespaces.
#[derive(Debug)]
pub(crate) struct BuiltNetwork {
    pub user_namespace: Option<Namespace>,
    pub sites: Vec<SiteFds>,
    /// Groups of the sites' programs, in the order of the sites; empty without a limit.
    pub groups: Vec<ProgramGroup>,
    pub isolation: Isolation,
    pub congestion_control: String,
    pub watchdog: Watchdog,
}

/// The parent's handle of the helper process.
#[derive(Debug)]
pub(crate) struct Watchdog {
    pid: libc::pid_t,
    socket: Option<OwnedFd>,
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        self.socket = None;
        sys::wait_for(self.pid);
    }
}

/// Creates the namespaces of `plan`.
pub(crate) fn build(
    plan: &BuildPlan,
    isolation: Isolation,
) -> std::result::Result<BuiltNetwork, BuildFailure> {
    let fail = |step| move |error| BuildFailure { isolation, step, site: None, site_name: None, error };
    let (ours, theirs) = sys::socket_pair().map_err(fail(BuildStep::Fork))?;
    let parent = std::process::id() as libc::pid_t;
    let pid = match sys::fork().map_err(fail(BuildStep::Fork))? {
        sys::Fork::Child => run_child(theirs, plan, isolation, parent),
        sys::Fork::Parent(pid) => pid,
    };
    drop(theirs);
    let socket = ours.as_raw_fd();
    let mut built = BuiltNetwork {
        user_namespace: None,
        sites: Vec::with_capacity(plan.sites.len()),
        groups: Vec::new(),
        isolation,
        congestion_control: String::new(),
        watchdog: Watchdog { pid, socket: Some(ours) },
    };
    loop {
        let mut bytes = [0; Note::LEN];
        let (n, fds) = sys::receive_with_fds(socket, &mut bytes).map_err(fail(BuildStep::Fork))?;
        let note = (n == Note::LEN).then(|| Note::decode(bytes)).flatten();
        let mut fds = fds.into_iter();
        match (note, fds.next(), fds.next(), fds.next()) {
            (Some(Note::UserNamespace), Some(fd), None, None) => {
                built.user_namespace = Some(Namespace::from_descriptor(Kind::User, fd));
            }
            (Some(Note::Site), Some(namespace), Some(tun), Some(device_counters)) => {
                let namespace = Namespace::from_descriptor(Kind::Network, namespace);
                built.sites.push(SiteFds { namespace, tun, device_counters });
            }
            (Some(Note::Done { congestion_control }), None, ..) if built.sites.len() == plan.sites.len() => {
                let name = String::from_utf8_lossy(&congestion_control);
                built.congestion_control = name.trim_matches(['\0', '\n']).to_owned();
                let open = |group: CpuGroup| Ok(ProgramGroup { entry: group.entry()?.into(), group });
                let groups = plan.groups(pid).into_iter().map(open).collect::<std::io::Result<_>>();
                built.groups = groups.map_err(fail(BuildStep::Group))?;
                return Ok(built);
            }
            (Some(Note::Failed { step, errno, site }), None, ..) => {
                let error = Error::from_raw_os_error(errno);
                let planned = site.and_then(|site| plan.sites.get(site.index()));
                let site_name = planned.map(|site| site.name.clone()).filter(|name| !name.is_empty());
                return Err(BuildFailure { isolation, step, site, site_name, error });
            }
            // The helper died, or this process had no free number for a descriptor.
            _ => {
                let error =
                    Error::other("the helper process ended early, or too few file descriptors are allowed");
                return Err(fail(BuildStep::Fork)(error));
            }
        }
    }
}

/// Maximum length of a congestion control's name (`TCP_CA_NAME_MAX`).
const NAME_MAX: usize = 16;

/// A message from the helper to its parent.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
enum Note {
    UserNamespace,
    Site,
    /// All sites are configured. The name, padded with zeros, is their TCP's congestion control.
    Done {
        congestion_control: [u8; NAME_MAX],
    },
    Failed {
        step: BuildStep,
        errno: i32,
        site: Option<SiteId>,
    },
}

impl Note {
    const LEN: usize = 8 + NAME_MAX;

    fn encode(self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[0] = match self {
            Self::UserNamespace => 0,
            Self::Site => 1,
            Self::Done { .. } => 2,
            Self::Failed { .. } => 3,
        };
        if let Self::Failed { step, errno, site } = self {
            bytes[1] = step as u8;
            let site = site.map_or(u16::MAX, |s| s.0);
            bytes[2..4].copy_from_slice(&site.to_ne_bytes());
            bytes[4..8].copy_from_slice(&errno.to_ne_bytes());
        }
        if let Self::Done { congestion_control } = self {
            bytes[8..].copy_from_slice(&congestion_control);
        }
        bytes
    }

    fn decode(bytes: [u8; Self::LEN]) -> Option<Self> {
        let [kind, step, s0, s1, e0, e1, e2, e3, congestion_control @ ..] = bytes;
        let site = u16::from_ne_bytes([s0, s1]);
        Some(match kind {
            0 => Self::UserNamespace,
            1 => Self::Site,
            2 => Self::Done { congestion_control },
            3 => Self::Failed {
                step: *BuildStep::ALL.get(usize::from(step))?,
                errno: i32::from_ne_bytes([e0, e1, e2, e3]),
                site: (site != u16::MAX).then_some(SiteId(site)),
            },
            _ => return None,
        })
    }
}

/// Setting for the number of retransmissions of a connection that no program holds. The helper sets
/// the minimum at the end; otherwise such connections keep their namespace for minutes, and longer
/// with a longer RTO.
const ORPHAN_RETRIES: &str = "/proc/sys/net/ipv4/tcp_orphan_retries";

/// Namespaces that the helper has created.
#[derive(Default)]
struct CreatedNamespaces {
    inodes: Vec<u64>,
    /// The file [`ORPHAN_RETRIES`] of each namespace. An open file does not keep the namespace
    /// alive.
    orphan_retries: Vec<std::fs::File>,
}

/// Creates the groups of the plan with their limit, and adds each to `made`.
fn make_groups(plan: &BuildPlan, made: &mut Vec<CpuGroup>) -> std::io::Result<()> {
    let Some((_, limit)) = &plan.cpu else { return Ok(()) };
    for group in plan.groups(std::process::id() as libc::pid_t) {
        group.create()?;
        made.push(group);
        made.last().map_or(Ok(()), |group| group.limit(Some(*limit)))?;
    }
    Ok(())
}

fn run_child(socket: OwnedFd, plan: &BuildPlan, isolation: Isolation, parent: libc::pid_t) -> ! {
    let socket = sys::detach(socket);
    let (mut made, mut groups) = (CreatedNamespaces::default(), Vec::new());
    let mut site = None;
    let grouped = make_groups(plan, &mut groups).map_err(at(BuildStep::Group));
    match grouped.and_then(|()| make(socket, plan, isolation, &mut site, &mut made)) {
        Ok(()) => {
            let name = std::fs::read("/proc/sys/net/ipv4/tcp_congestion_control").unwrap_or_default();
            let mut congestion_control = [0; NAME_MAX];
            congestion_control.iter_mut().zip(name).for_each(|(to, from)| *to = from);
            let _ = sys::send_with_fds(socket, &Note::Done { congestion_control }.encode(), &[]);
        }
        Err((step, error)) => {
            let errno = error.raw_os_error().unwrap_or(libc::EIO);
            let _ = sys::send_with_fds(socket, &Note::Failed { step, errno, site }.encode(), &[]);
        }
    }
    // The parent never sends, so this returns when the parent closes its end or dies.
    let _ = sys::receive_with_fds(socket, &mut [0; 1]);
    made.orphan_retries.iter_mut().for_each(|file| drop(file.write_all(b"1")));
    // A process without processor time could not end.
    groups.iter().for_each(|group| drop(group.limit(None)));
    kill_all_in(&made.inodes, parent);
    remove_groups(&groups, parent);
    sys::exit_now(0)
}

type StepResult<T> = std::result::Result<T, (BuildStep, Error)>;

fn at(step: BuildStep) -> impl FnOnce(Error) -> (BuildStep, Error) {
    move |error| (step, error)
}

fn make(
    socket: RawFd,
    plan: &BuildPlan,
    isolation: Isolation,
    site: &mut Option<SiteId>,
    made: &mut CreatedNamespaces,
) -> StepResult<()> {
    if isolation == Isolation::UserNamespace {
        let (uid, gid) = sys::effective_ids();
        let user = Namespace::unshare(Kind::User).map_err(at(BuildStep::UnshareUser))?;
        // user_namespaces(7): an unprivileged process may map one id to one id, and only after it
        // has denied setgroups.
        std::fs::write("/proc/self/setgroups", "deny").map_err(at(BuildStep::MapIds))?;
        std::fs::write("/proc/self/uid_map", format!("0 {uid} 1")).map_err(at(BuildStep::MapIds))?;
        std::fs::write("/proc/self/gid_map", format!("0 {gid} 1")).map_err(at(BuildStep::MapIds))?;
        sys::send_with_fds(socket, &Note::UserNamespace.encode(), &[user.as_fd().as_raw_fd()])
            .map_err(at(BuildStep::Fork))?;
    }
    for (i, site_plan) in plan.sites.iter().enumerate() {
        *site = Some(SiteId(i as u16));
        let namespace = Namespace::unshare(Kind::Network).map_err(at(BuildStep::UnshareNet))?;
        made.inodes.push(namespace.inode().map_err(at(BuildStep::UnshareNet))?);
        made.orphan_retries.extend(std::fs::File::options().write(true).open(ORPHAN_RETRIES));
        let fds = make_site(plan, site_plan, namespace)?;
        let fds = [fds.namespace.as_fd().as_raw_fd(), fds.tun.as_raw_fd(), fds.device_counters.as_raw_fd()];
        sys::send_with_fds(socket, &Note::Site.encode(), &fds).map_err(at(BuildStep::Fork))?;
    }
    Ok(())
}

/// Configures the network namespace of this process.
fn make_site(plan: &BuildPlan, site: &SitePlan, namespace: Namespace) -> StepResult<SiteFds> {
    tun::check().map_err(at(BuildStep::OpenTun))?;
    let tun = tun::open(DEVICE).map_err(at(BuildStep::MakeTun))?;
    for (path, value, required) in &plan.settings {
        let result = std::fs::write(format!("/proc/sys/net/{path}"), value);
        if *required {
            result.map_err(at(BuildStep::Setting))?;
        }
    }
    // The parent receives only the error number.
    let with_number =
        |error: NetlinkError| error.raw_os_error().map_or_else(|| error.into(), Error::from_raw_os_error);
    set_up_devices(plan, site).map_err(|error| (BuildStep::Interface, with_number(error)))?;
    let device_counters = std::fs::File::open("/proc/self/net/dev").map_err(at(BuildStep::Interface))?;
    Ok(SiteFds { namespace, tun, device_counters: device_counters.into() })
}

fn set_up_devices(plan: &BuildPlan, site: &SitePlan) -> Result<(), NetlinkError> {
    let mut rtnetlink = Rtnetlink::open()?;
    let device = rtnetlink.index_of(DEVICE)?;
    rtnetlink.change_link(LOOPBACK, &LinkChange { set_up: true, ..LinkChange::default() })?;
    let change = LinkChange {
        set_up: true,
        mtu_bytes: Some(plan.mtu),
        queue_packets: Some(plan.device_queue_packets),
        ..LinkChange::default()
    };
    rtnetlink.change_link(device, &change)?;
    let prefix = Prefix { address: site.address.into(), bits: plan.prefix };
    rtnetlink.add_address(Address { device, prefix })?;
    if plan.quick_ack {
        // Replaces the route that the kernel has added with the address.
        let network =
            u32::from(site.address) & u32::MAX.checked_shl(32 - u32::from(plan.prefix)).unwrap_or(0);
        rtnetlink.set_route(&Route {
            table: libc::RT_TABLE_MAIN.into(),
            device,
            to: Prefix { address: Ipv4Addr::from(network).into(), bits: plan.prefix },
            from: Some(site.address.into()),
            mtu_bytes: None,
            quick_ack: true,
            protocol: libc::RTPROT_KERNEL,
        })?;
    }
    // The addresses are on the loopback device, so that the kernel never chooses one as a source.
    for &address in &site.link_addresses {
        rtnetlink.add_address(Address { device: LOOPBACK, prefix: Prefix::host(address.into()) })?;
    }
    Ok(())
}

/// Kills every process in our network namespaces, and repeats until there is none.
fn kill_all_in(inodes: &[u64], parent: libc::pid_t) {
    let me = std::process::id() as libc::pid_t;
    // A program that forks faster than one pass over the processes could escape. A thousand passes
    // take two seconds.
    for _ in 0..1_000 {
        let mut found = false;
        let Ok(entries) = std::fs::read_dir("/proc") else { return };
        for entry in entries.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|n| n.parse::<libc::pid_t>().ok()) else {
                continue;
            };
            if pid == me || pid == parent {
                continue;
            }
            let inode = std::fs::metadata(format!("/proc/{pid}/ns/net")).map(|m| m.ino());
            if inode.is_ok_and(|inode| inodes.contains(&inode)) {
                found = true;
                let _ = sys::kill(pid, libc::SIGKILL);
            }
        }
        if !found {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

/// Kills every process in the groups, such as programs that have left their namespace, and removes
/// the groups.
fn remove_groups(groups: &[CpuGroup], parent: libc::pid_t) {
    let me = std::process::id() as libc::pid_t;
    // As many passes as in `kill_all_in`.
    for _ in 0..1_000 {
        let mut is_left = false;
        for group in groups {
            let members = group.members().into_iter().filter(|pid| ![me, parent].contains(pid));
            members.for_each(|pid| drop(sys::kill(pid, libc::SIGKILL)));
            is_left |= group.remove().is_err();
        }
        if !is_left {
            return;
        }
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_decode_as_they_were_encoded() {
        let failed = Note::Failed { step: BuildStep::MakeTun, errno: 13, site: Some(SiteId(7)) };
        let early = Note::Failed { step: BuildStep::UnshareUser, errno: 28, site: None };
        let done = Note::Done { congestion_control: *b"sixteen letters!" };
        for note in [Note::UserNamespace, Note::Site, done, failed, early] {
            assert_eq!(Note::decode(note.encode()), Some(note));
        }
        assert_eq!(Note::decode([9; Note::LEN]), None);
    }
}
