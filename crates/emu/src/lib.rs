//! Real-time emulator: sites in network namespaces, connected by one fabric.
//!
//! [`Emulation::start`] gives every site of a topology a network namespace with one TUN device. A
//! packet from a program in a site is read from the device, passes the [`anabranch_fabric`] ports
//! of the links on its path (rate, delay, loss, drop-tail queues, three strict priorities) under
//! the real clock, and is written to the device of its destination site. So any program runs on the
//! emulated network, unchanged, with the kernel's TCP.
//!
//! - **Addresses.** A site has a host address, `base + 1 + site`, which packets reach hop by hop
//!   over the path of least delay (in the topology at the start: a failed link is not routed
//!   around). With switches, flows spread over all paths of least delay (ECMP). A directed link
//!   also has an address, `base + 0x8000 + link`. The address belongs to the link's far end, and
//!   its near end reaches the address over exactly that link. Responses return over the opposite
//!   link of the cable. Only IPv4: IPv6 is switched off in the sites.
//! - **Rates** count bytes of IP packets, headers included; there is no Ethernet framing.
//!   Segmentation and checksum offloads are off, so packets have at most one MTU, as on a wire.
//! - **Priorities** follow DSCP: 40 and above (EF, CS6, CS7) first, 1 (LE) and 8 (CS1) last, all
//!   other values between. Each priority has a separate queue of the link's queue size: the
//!   topology's, or by default the bytes of 100 ms, at least 64 KiB ([`default_queue`]).
//! - **Marks.** A port with a threshold ([`EmulationOptions::ports`]) marks ECN-capable packets
//!   (RFC 3168) in their IP header.
//! - **Cleaning up.** Namespaces have no names, so they vanish with their last process. When the
//!   emulation is dropped, or its process dies by any signal, a helper process kills all programs
//!   in the namespaces.
//! - **Privileges.** Root, or a user namespace if the machine permits one; [`doctor`] and the
//!   errors name every missing right or device.
//! - **Circuits.** One site's switch can be a hybrid switch of circuits and packets
//!   ([`EmulationOptions::circuit`]), whose circuits may follow demand that programs announce
//!   ([`EmulationHandle::announce`]).
//! - **Time dilation.** Under a [`Dilation`] of F emulated time passes F times slower than the
//!   machine's. Rates, delays and reports count emulated time. Programs' processor time can be
//!   divided by F ([`EmulationOptions::host_cpus`]).
//! - **Trust.** [`Emulation::report`] returns packets' lateness, and whether figures are trusted.
//!
//! Leaves out: TTL (constant on the path), ICMP errors, changing routes, IPv6, and programs on
//! other machines. Linux only. Read [`Emulation`], [`EmulationOptions`], [`Report`] first.
//!
//! ```no_run
//! use anabranch_emu::{Emulation, EmulationOptions};
//! use anabranch_graph::{LinkProperties, Topology};
//! use anabranch_units::{BitRate, Duration};
//!
//! let mut topology = Topology::new("pair");
//! let (a, b) = (topology.add_site("a", None)?, topology.add_site("b", None)?);
//! topology.add_cable(a, b, LinkProperties::new(BitRate::mbps(100), Duration::from_ms(10)))?;
//! let emulation = Emulation::start(&topology, EmulationOptions::default())?;
//! let mut ping = std::process::Command::new("ping");
//! ping.args(["-c", "3", &emulation.site_address(b).to_string()]);
//! emulation.spawn(a, ping)?.wait()?;
//! assert!(emulation.report()?.trusted);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

#![cfg(target_os = "linux")]
#![allow(clippy::disallowed_methods, reason = "a driver: it reads the clock, starts threads and opens files")]

mod announce;
mod build;
mod circuits;
mod dilation;
mod doctor;
mod error;
mod forward;
mod lateness;
mod links;
mod route;
pub mod scenario;
mod script;
mod surroundings;
mod sys;
mod weeks;

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use anabranch_fabric::switch::ecmp::Ecmp;
use anabranch_fabric::{Policy, Port, PortSettings};
use anabranch_graph::Topology;
use anabranch_linux::cpu_limit::{CpuHierarchy, CpuLimit, Throttling};
use anabranch_linux::namespace::Namespace;
use anabranch_units::{BitRate, ByteCount, Duration, Instant, LinkId, Seed, SiteId};

use crate::build::{BuildPlan, BuiltNetwork, ProgramGroup, SiteFds, SitePlan};
use crate::circuits::Circuits;
use crate::dilation::Clock;
use crate::forward::{Figures, Forwarder, Request, Setup};
use crate::route::Routes;

pub use anabranch_fabric::RATE_MIN;
pub use anabranch_units::Histogram;
pub use anabranch_units::{Dilation, DilationError};
pub use circuits::{CircuitFigures, CircuitOptions};
pub use dilation::unstretched;
pub use doctor::doctor;
pub use error::{AnnounceError, BuildFailure, BuildStep, EmuError, Isolation};
pub use lateness::{ForwarderTime, HostTime, Report, Scheduling};
pub use links::{LinkCounters, LinkState};
#[doc(hidden)]
pub use route::exercise;
pub use route::{CircuitMark, LINKS_MAX, SITES_MAX};
pub use script::{Change, ChangeError, Loss};
pub use surroundings::{SiteEnvironment, give_preload};
pub use weeks::ScheduleFigures;

/// Options of an emulation. [`EmulationOptions::default`] suits most uses.
#[derive(Clone, Debug)]
pub struct EmulationOptions {
    /// Kind of namespaces; `None` tries the process's own privileges first, then a user namespace.
    pub isolation: Option<Isolation>,
    /// First address of the /16 network that the sites see; default 10.77.0.0.
    pub base: Ipv4Addr,
    /// Largest IP packet, 576 to 65535 bytes; default 1500. The emulator's cost is per packet, so
    /// larger packets carry more bytes on the same machine.
    pub mtu: u32,
    /// TCP congestion control in the sites (`net.ipv4.tcp_congestion_control`); default: the
    /// kernel's.
    pub congestion_control: Option<String>,
    /// Maximum buffer of a TCP socket in each direction (`tcp_rmem` and `tcp_wmem`); `None` leaves
    /// the kernel's default. Twice the bandwidth-delay product of the longest path is enough.
    pub tcp_buffer_bytes_max: Option<ByteCount>,
    /// Further settings of the sites' network: path below `/proc/sys/net` (`ipv4/tcp_sack`) and
    /// value.
    pub settings: Vec<(String, String)>,
    /// The settings of each link's port, by link, in place of the topology's; default none.
    pub ports: Option<Vec<PortSettings>>,
    /// Each site's routes, by site. The default, `None`, is the path of least delay to each site;
    /// in a network with switches, all paths of least delay, chosen by flow.
    pub switching: Option<Vec<Switching>>,
    /// A hybrid switch in place of a site's switch. Default `None`.
    pub circuit: Option<CircuitOptions>,
    /// Real time for each second of emulated time; default [`Dilation::NONE`].
    pub dilation: Dilation,
    /// Number of processors of each site, whose time is divided by the dilation. `None` means that
    /// programs run at the machine's full speed. Real-time threads are exempt.
    pub host_cpus: Option<u32>,
    /// True if the sites' TCP acknowledges every segment immediately, because delayed ACKs are not
    /// dilated; default false.
    pub quick_ack: bool,
    /// Seed of the packet losses.
    pub seed: Seed,
    /// 99th percentile of the lateness, in emulated time, above which the report does not trust the
    /// run; default 1 ms.
    pub lateness_p99_max: Duration,
    /// Priority and waits of the forwarder.
    pub forwarder: ForwarderOptions,
}

/// Priority and waits of the thread that forwards packets.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct ForwarderOptions {
    /// True to run the forwarder ahead of ordinary threads, if permitted (CAP_SYS_NICE); default
    /// true. Otherwise, on a machine whose processors are all busy, the 99th percentile of the
    /// lateness is milliseconds instead of tens of microseconds.
    pub elevate: bool,
    /// Waits shorter than this poll instead of sleeping; default 5 us.
    pub spin: Duration,
    /// Shortest sleep. Packets due within this time are handed over together, which costs less
    /// processor time per packet and adds up to this much lateness. Default zero.
    pub coalesce: Duration,
}

impl Default for ForwarderOptions {
    fn default() -> Self {
        Self { elevate: true, spin: Duration::from_us(5), coalesce: Duration::ZERO }
    }
}

/// Raises the calling thread's priority as far as permitted (CAP_SYS_NICE), for threads that must
/// wake on time and do little work. Returns the new scheduling.
pub fn elevate() -> Scheduling {
    if sys::schedule_real_time().is_ok() {
        Scheduling::RealTime
    } else if sys::set_nice(-20).is_ok() {
        Scheduling::Nice
    } else {
        Scheduling::Ordinary
    }
}

/// Routes of a site that forwards packets.
#[derive(Clone, Debug)]
pub struct Switching {
    /// For each destination, the links towards it; empty if unreachable.
    pub next: Vec<Vec<LinkId>>,
    /// Choice among several links. A flow is identified by its addresses and ports.
    pub policy: Policy,
}

impl Default for EmulationOptions {
    fn default() -> Self {
        Self {
            isolation: None,
            base: Ipv4Addr::new(10, 77, 0, 0),
            mtu: 1500,
            congestion_control: None,
            tcp_buffer_bytes_max: None,
            settings: Vec::new(),
            ports: None,
            switching: None,
            circuit: None,
            dilation: Dilation::NONE,
            host_cpus: None,
            quick_ack: false,
            seed: Seed::new(1),
            lateness_p99_max: Duration::from_ms(1),
            forwarder: ForwarderOptions::default(),
        }
    }
}

impl EmulationOptions {
    fn check(&self) -> Result<(), EmuError> {
        let refuse = |name, value: &dyn ToString, allowed| {
            Err(EmuError::Option { name, value: value.to_string(), allowed })
        };
        if !(576..=65_535).contains(&self.mtu) {
            return refuse("mtu", &self.mtu, "576 to 65535 bytes");
        }
        if self.base.octets()[2..] != [0, 0] || !self.base.is_private() {
            return refuse("base address", &self.base, "the start of a private /16 network, as 10.77.0.0");
        }
        if let Some(name) = &self.congestion_control
            && !name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_' || b == b'-')
        {
            return refuse(
                "congestion control",
                name,
                "a name as in `sysctl net.ipv4.tcp_available_congestion_control`",
            );
        }
        if let Some(cpus) = self.host_cpus
            && !(1..=HOST_CPUS_MAX).contains(&cpus)
        {
            return refuse("host processors", &cpus, "1 to 1024");
        }
        match self.tcp_buffer_bytes_max {
            Some(max) if !(4_096..=0x7fff_ffff).contains(&max.as_u64()) => {
                refuse("tcp buffer", &max, "4 KiB to 2 GiB less one byte")
            }
            _ => Ok(()),
        }
    }

    /// Settings below `/proc/sys/net` of each site: name, value, and true if the write must
    /// succeed.
    fn settings(&self) -> Vec<(String, String, bool)> {
        let wanted = [
            ("ipv6/conf/all/disable_ipv6", "1"),
            ("ipv6/conf/default/disable_ipv6", "1"),
            ("ipv4/ip_forward", "0"),
            ("ipv4/conf/all/rp_filter", "0"),
            ("ipv4/conf/default/rp_filter", "0"),
            // Otherwise a connection starts with metrics cached from an earlier one, so that
            // trials differ.
            ("ipv4/tcp_no_metrics_save", "1"),
        ];
        let mut settings: Vec<_> =
            wanted.map(|(path, value)| (path.to_owned(), value.to_owned(), false)).into();
        if let Some(name) = &self.congestion_control {
            settings.push(("ipv4/tcp_congestion_control".into(), name.clone(), true));
        }
        if let Some(max) = self.tcp_buffer_bytes_max {
            let max = max.as_u64();
            settings.push(("ipv4/tcp_rmem".into(), format!("4096 {} {max}", max.min(131_072)), true));
            settings.push(("ipv4/tcp_wmem".into(), format!("4096 {} {max}", max.min(16_384)), true));
        }
        // The caller's own settings come last, so that they take precedence.
        let stretched = dilation::settings(self.dilation);
        settings.extend(
            stretched.iter().chain(&self.settings).map(|(path, value)| (path.clone(), value.clone(), true)),
        );
        settings
    }
}

/// Maximum number of processors of a site.
const HOST_CPUS_MAX: u32 = 1_024;
/// Maximum number of packets in a site's device that the emulator has not read.
const DEVICE_QUEUE_PACKETS: u32 = 4_096;

/// Default queue of a link of `rate`: the bytes that the link sends in 100 ms, at least 64 KiB.
pub fn default_queue(rate: BitRate) -> ByteCount {
    ByteCount::new(rate.as_bps() / 80).max(ByteCount::kib(64))
}

/// A running emulation. Dropping it ends its sites' programs and namespaces in about 60 ms.
#[derive(Debug)]
pub struct Emulation {
    handle: EmulationHandle,
    forwarder: Option<JoinHandle<()>>,
    nursery: Option<(Sender<SpawnRequest>, JoinHandle<()>)>,
    /// Handle of the helper process. Dropping it ends the helper and every program in the sites.
    watchdog: Option<build::Watchdog>,
}

/// Controls of an emulation, for other threads. After the emulation's end, every call fails.
#[derive(Clone, Debug)]
pub struct EmulationHandle {
    shared: Arc<Shared>,
    requests: Sender<Request>,
}

#[derive(Debug)]
struct Shared {
    routes: Routes,
    user_namespace: Option<Namespace>,
    sites: Vec<SiteFiles>,
    isolation: Isolation,
    congestion_control: String,
    lateness_p99_max: Duration,
    clock: Clock,
    host_cpus: Option<u32>,
    bell: Arc<OwnedFd>,
}

/// A network in the form that the forwarder needs.
struct Network {
    switching: Vec<Switching>,
    ports: Vec<Port>,
    circuits: Option<Circuits>,
}

#[derive(Debug)]
struct SiteFiles {
    namespace: Namespace,
    device_counters: OwnedFd,
    /// Group of the site's programs. `None` without a limit of their processor time.
    programs: Option<ProgramGroup>,
}

/// A command to start, and the channel for the result.
type SpawnRequest = (Command, Sender<std::io::Result<Child>>);

impl Emulation {
    /// Builds `topology` and starts forwarding.
    ///
    /// Errors: a topology without sites or with too many; options or link properties out of range;
    /// a machine that does not permit the namespaces or devices, with the missing right and how to
    /// get it.
    /// Panics: if options by link or by site do not have one entry for each.
    /// Cost: about 4 ms per site. A helper is forked and stays: start before filling much memory.
    pub fn start(topology: &Topology, mut options: EmulationOptions) -> Result<Self, EmuError> {
        options.check()?;
        let size =
            |what, got, limit| if got > limit { Err(EmuError::Size { what, got, limit }) } else { Ok(()) };
        size("links", topology.links().len(), LINKS_MAX)?;
        size("sites", topology.sites().len(), SITES_MAX)?;
        if topology.sites().is_empty() {
            return Err(EmuError::Size { what: "sites", got: 0, limit: SITES_MAX });
        }
        let is_one_each = options.ports.as_ref().is_none_or(|ports| ports.len() == topology.links().len())
            && options.switching.as_ref().is_none_or(|known| known.len() == topology.sites().len());
        assert!(is_one_each, "ports are given by link and ways by site");
        let routes = Routes::new(topology, options.base);
        let ports = ports(topology, options.ports.as_deref(), options.seed)?;
        let switching = options.switching.take().unwrap_or_else(|| least_delay(topology, options.seed));
        let circuits = options.circuit.take();
        let circuits = circuits.map(|circuit| Circuits::at(topology, &switching, circuit)).transpose()?;
        let network = Network { switching, ports, circuits };
        let limit = options.host_cpus.map(|cpus| CpuLimit::divided(cpus, options.dilation.factor()));
        let hierarchy = limit.map(|_| CpuHierarchy::find()).transpose().map_err(EmuError::HostCpus)?;
        // A killed helper leaves its groups.
        hierarchy.iter().for_each(|hierarchy| hierarchy.remove_left(build::GROUP));
        let plan = BuildPlan {
            sites: topology
                .site_ids()
                .map(|site| SitePlan {
                    name: anabranch_units::text::printable(&topology.site(site).name).into_owned(),
                    address: routes.site_address(site),
                    link_addresses: routes.links_into(site).map(|l| routes.link_address(l)).collect(),
                })
                .collect(),
            prefix: route::PREFIX,
            mtu: options.mtu,
            device_queue_packets: DEVICE_QUEUE_PACKETS,
            settings: options.settings(),
            quick_ack: options.quick_ack,
            cpu: hierarchy.zip(limit),
        };
        let built = match options.isolation {
            Some(isolation) => build::build(&plan, isolation).map_err(EmuError::Build)?,
            None => match build::build(&plan, Isolation::Root) {
                Ok(built) => built,
                // A user namespace helps only if the failure is due to missing privileges.
                Err(root) if matches!(root.step, BuildStep::Setting | BuildStep::Fork | BuildStep::Group) => {
                    return Err(EmuError::Build(root));
                }
                Err(root) => build::build(&plan, Isolation::UserNamespace)
                    .map_err(|user| EmuError::NoIsolation { root, user })?,
            },
        };
        Self::run(&options, routes, network, built)
    }

    fn run(
        options: &EmulationOptions,
        routes: Routes,
        network: Network,
        built: BuiltNetwork,
    ) -> Result<Self, EmuError> {
        let clock = Clock::new(options.dilation);
        let bell = Arc::new(sys::bell().map_err(EmuError::Thread)?);
        let mut groups = built.groups.into_iter();
        let files = |SiteFds { namespace, tun, device_counters }| {
            (tun, SiteFiles { namespace, device_counters, programs: groups.next() })
        };
        let (tuns, sites) = built.sites.into_iter().map(files).unzip();
        let (requests, received) = channel();
        let setup = Setup {
            routes: routes.clone(),
            tuns,
            switching: network.switching,
            ports: network.ports,
            circuits: network.circuits,
            clock,
            bell: bell.clone(),
            requests: received,
            spin: options.forwarder.spin.to_std(),
            coalesce: options.forwarder.coalesce.to_std(),
            elevate: options.forwarder.elevate,
        };
        let shared = Shared {
            routes,
            user_namespace: built.user_namespace,
            sites,
            isolation: built.isolation,
            congestion_control: built.congestion_control,
            lateness_p99_max: options.lateness_p99_max,
            clock,
            host_cpus: options.host_cpus,
            bell,
        };
        let mut emulation = Self {
            handle: EmulationHandle { shared: Arc::new(shared), requests },
            forwarder: None,
            nursery: None,
            watchdog: Some(built.watchdog),
        };
        let thread = |name: &str| std::thread::Builder::new().name(name.into());
        let forwarder =
            thread("emu-forwarder").spawn(move || Forwarder::run(setup)).map_err(EmuError::Thread)?;
        emulation.forwarder = Some(forwarder);
        let (births, wanted) = channel::<SpawnRequest>();
        let nursery = move || {
            for (mut command, reply) in wanted {
                // The caller may have gone; the program then runs until the emulation ends.
                let _ = reply.send(command.spawn());
            }
        };
        let nursery = thread("emu-nursery").spawn(nursery).map_err(EmuError::Thread)?;
        emulation.nursery = Some((births, nursery));
        Ok(emulation)
    }

    /// Returns the controls, for other threads.
    pub fn handle(&self) -> EmulationHandle {
        self.handle.clone()
    }

    /// Way in which the namespaces were created.
    pub fn isolation(&self) -> Isolation {
        self.handle.shared.isolation
    }

    /// The congestion control that TCP in the sites uses unless a program asks for another.
    pub fn congestion_control(&self) -> &str {
        &self.handle.shared.congestion_control
    }

    /// The address of `site`, which every site reaches over the path of least delay.
    ///
    /// Panics: if the site is not of this topology.
    pub fn site_address(&self, site: SiteId) -> IpAddr {
        self.handle.site_address(site)
    }

    /// The address of the far end of `link`, which its near end reaches over exactly this link.
    ///
    /// Panics: if the link is not of this topology.
    pub fn link_address(&self, link: LinkId) -> IpAddr {
        self.handle.link_address(link)
    }

    /// Starts `command` in `site`; the program is killed when the emulation or this process ends.
    ///
    /// Errors: the program cannot be started. Its standard input and output are as `command` sets
    /// them.
    /// Panics: if the site is not of this topology.
    pub fn spawn(&self, site: SiteId, mut command: Command) -> Result<Child, EmuError> {
        let parent = std::process::id() as libc::pid_t;
        let enter = self.enter(site);
        sys::before_exec(&mut command, move || {
            enter()?;
            // The signal is set after entering, because a change of credentials clears it. The
            // kernel sends it when the *thread* that started the program ends. So a thread that
            // lives as long as the emulation, the nursery, starts all programs.
            sys::signal_on_parent_death(libc::SIGKILL)?;
            if sys::parent_pid() != parent { Err(std::io::ErrorKind::NotConnected.into()) } else { Ok(()) }
        });
        let program = command.get_program().to_string_lossy().into_owned();
        let (reply, born) = channel();
        let (births, _) = self.nursery.as_ref().expect("the nursery is there until the drop");
        births.send((command, reply)).map_err(|_| EmuError::Ended)?;
        born.recv().map_err(|_| EmuError::Ended)?.map_err(|error| EmuError::Spawn { program, site, error })
    }

    /// Prepares `command` to run in `site`; the caller starts it. The helper process also kills
    /// this program when the emulation ends.
    ///
    /// Panics: if the site is not of this topology.
    pub fn command(&self, site: SiteId, command: &mut Command) {
        sys::before_exec(command, self.enter(site));
    }

    /// Returns a function with which a forked child enters `site`, for the `pre_exec` of other
    /// kinds of command (tokio's). The function makes only system calls, as `pre_exec` requires.
    ///
    /// Panics: if the site is not of this topology.
    pub fn enter(&self, site: SiteId) -> impl Fn() -> std::io::Result<()> + Send + Sync + 'static {
        self.handle.enter(site)
    }

    /// Runs `work` in a separate thread inside `site`; sockets that it returns stay in the site.
    ///
    /// Errors: without CAP_SYS_ADMIN of our own a thread cannot enter; start a program instead.
    /// Panics: if the site is not of this topology, or if `work` does.
    pub fn run_in<T: Send>(&self, site: SiteId, work: impl FnOnce() -> T + Send) -> Result<T, EmuError> {
        let namespace = &self.handle.shared.sites[site.index()].namespace;
        namespace.run(work).map_err(|error| EmuError::Enter { site, error })
    }

    /// A path for `nsenter --net=PATH`, to enter `site`; a user namespace also needs `--user`.
    ///
    /// Panics: if the site is not of this topology.
    pub fn namespace_path(&self, site: SiteId) -> std::path::PathBuf {
        self.handle.shared.sites[site.index()].namespace.path()
    }

    /// See [`EmulationHandle::set_link`].
    ///
    /// Errors: see [`EmulationHandle::set_link`].
    pub fn set_link(&self, link: LinkId, state: LinkState) -> Result<(), EmuError> {
        self.handle.set_link(link, state)
    }

    /// See [`EmulationHandle::link_state`].
    ///
    /// Errors: see [`EmulationHandle::link_state`].
    pub fn link_state(&self, link: LinkId) -> Result<LinkState, EmuError> {
        self.handle.link_state(link)
    }

    /// See [`EmulationHandle::counters`].
    ///
    /// Errors: see [`EmulationHandle::counters`].
    pub fn counters(&self) -> Result<Vec<LinkCounters>, EmuError> {
        self.handle.counters()
    }

    /// Real time for each second of emulated time.
    pub fn dilation(&self) -> Dilation {
        self.handle.shared.clock.dilation
    }

    /// See [`EmulationHandle::now`].
    pub fn now(&self) -> Instant {
        self.handle.now()
    }

    /// See [`EmulationHandle::take_circuits`].
    ///
    /// Errors: see [`EmulationHandle::take_circuits`].
    pub fn take_circuits(&self) -> Result<Option<CircuitFigures>, EmuError> {
        self.handle.take_circuits()
    }

    /// See [`EmulationHandle::report`].
    ///
    /// Errors: see [`EmulationHandle::report`].
    pub fn report(&self) -> Result<Report, EmuError> {
        self.handle.report()
    }
}

impl Drop for Emulation {
    fn drop(&mut self) {
        // Ends the programs first, so that no program sees the network fail. The end of the nursery
        // kills its children.
        if let Some((births, nursery)) = self.nursery.take() {
            drop(births);
            let _ = nursery.join();
        }
        self.watchdog = None;
        let _ = self.handle.send(Request::Stop);
        if let Some(forwarder) = self.forwarder.take() {
            // The thread owns the devices. If it panicked, the panic has already been printed.
            let _ = forwarder.join();
        }
    }
}

impl EmulationHandle {
    fn send(&self, request: Request) -> Result<(), EmuError> {
        self.requests.send(request).map_err(|_| EmuError::Ended)?;
        sys::ring(&self.shared.bell);
        Ok(())
    }

    fn ask<T>(&self, request: impl FnOnce(Sender<T>) -> Request) -> Result<T, EmuError> {
        let (reply, answer) = channel();
        self.send(request(reply))?;
        answer.recv().map_err(|_| EmuError::Ended)
    }

    fn check_link(&self, link: LinkId) -> Result<(), EmuError> {
        let links = self.shared.routes.link_ids().count();
        if link.index() < links { Ok(()) } else { Err(EmuError::UnknownLink { link, links }) }
    }

    /// See [`Emulation::site_address`].
    ///
    /// Panics: if the site is not of this topology.
    pub fn site_address(&self, site: SiteId) -> IpAddr {
        assert!(site.index() < self.shared.sites.len(), "site {site} is not of this topology");
        self.shared.routes.site_address(site).into()
    }

    /// See [`Emulation::link_address`].
    ///
    /// Panics: if the link is not of this topology.
    pub fn link_address(&self, link: LinkId) -> IpAddr {
        assert!(self.check_link(link).is_ok(), "link {link} is not of this topology");
        self.shared.routes.link_address(link).into()
    }

    /// See [`Emulation::enter`].
    ///
    /// Panics: if the site is not of this topology.
    pub fn enter(&self, site: SiteId) -> impl Fn() -> std::io::Result<()> + Send + Sync + 'static {
        assert!(site.index() < self.shared.sites.len(), "site {site} is not of this topology");
        let shared = self.shared.clone();
        move || {
            let site = &shared.sites[site.index()];
            if let Some(programs) = &site.programs {
                // In control groups, 0 stands for the writing process.
                sys::write_packet(programs.entry.as_raw_fd(), b"0")?;
            }
            if let Some(user) = &shared.user_namespace {
                user.enter()?;
            }
            site.namespace.enter()
        }
    }

    /// Changes the state of `link` from now on. Routes do not change.
    ///
    /// Errors: an unknown link, a rate or loss out of range, an emulation that has ended.
    pub fn set_link(&self, link: LinkId, state: LinkState) -> Result<(), EmuError> {
        self.check_link(link)?;
        self.ask(|reply| Request::SetLink { link, state, reply })?
            .map_err(|error| EmuError::Link { link, error })
    }

    /// The state of `link` now.
    ///
    /// Errors: an unknown link, an emulation that has ended.
    pub fn link_state(&self, link: LinkId) -> Result<LinkState, EmuError> {
        self.check_link(link)?;
        self.ask(|reply| Request::LinkState { link, reply })
    }

    /// The counters of all links at the same instant, in the order of their ids.
    ///
    /// Errors: an emulation that has ended.
    /// Cost: a wake-up of the forwarder, about a microsecond per link; blocks until it replies.
    pub fn counters(&self) -> Result<Vec<LinkCounters>, EmuError> {
        self.ask(|reply| Request::Counters { reply })
    }

    /// Emulated time since the start. A hybrid switch's first week begins at zero.
    pub fn now(&self) -> Instant {
        self.shared.clock.now()
    }

    /// Days and rates of the circuits since the start or last call; `None` without a hybrid switch.
    ///
    /// Errors: an emulation that has ended.
    pub fn take_circuits(&self) -> Result<Option<CircuitFigures>, EmuError> {
        self.ask(|reply| Request::Circuits { reply })
    }

    /// Returns packets' lateness so far, losses, and whether figures can be trusted.
    ///
    /// Errors: an emulation that has ended.
    pub fn report(&self) -> Result<Report, EmuError> {
        let Figures { lateness, drops, refused, took_s, cpu_s, cpu_share_max, wait_s, scheduling } =
            self.ask(|reply| Request::Figures { reply })?;
        let report = Report {
            packets: lateness.total(),
            lateness_us_p50: lateness.quantile_us(0.5),
            lateness_us_p90: lateness.quantile_us(0.9),
            lateness_us_p99: lateness.quantile_us(0.99),
            lateness_us_p999: lateness.quantile_us(0.999),
            lateness_us_max: lateness.max_us(),
            drops: drops.iter().map(|(reason, count)| (reason.name(), count)).collect(),
            device_drops: self.shared.sites.iter().map(|s| device_drops(&s.device_counters)).sum(),
            refused,
            took_s,
            forwarder: ForwarderTime { cpu_s, cpu_share_max, wait_s, scheduling },
            isolation: self.shared.isolation,
            congestion_control: self.shared.congestion_control.clone(),
            host_time: self.host_time(),
            lateness_us_p99_bound: self.shared.lateness_p99_max.as_secs_f64() * 1e6,
            trusted: false,
            why: Vec::new(),
        };
        Ok(report.judge())
    }

    /// Limit of the sites' processor time; `None` without one.
    fn host_time(&self) -> Option<HostTime> {
        let cpus = self.shared.host_cpus?;
        let programs = self.shared.sites.iter().filter_map(|site| site.programs.as_ref());
        let share = |programs: &ProgramGroup| {
            let Throttling { periods, throttled } = programs.group.throttling().unwrap_or_default();
            throttled as f64 / periods.max(1) as f64
        };
        Some(HostTime { cpus, throttled_share_max: programs.map(share).fold(0.0, f64::max) })
    }
}

/// The routes of least delay to each site: a single path where sites forward; where switches
/// forward, all paths of equal delay, chosen by flow.
fn least_delay(topology: &Topology, seed: Seed) -> Vec<Switching> {
    if topology.sites().iter().any(|site| site.is_switch) {
        // Every link has a length of at least 1 ps, so that fewer hops are better at equal delay.
        let lengths = topology.links().iter().map(|link| link.properties.delay.as_ps().max(1));
        let sites: Vec<_> = topology.site_ids().collect();
        let routes = anabranch_graph::Routes::shortest(topology, &lengths.collect::<Vec<_>>(), &sites);
        let of = |site: SiteId| Switching {
            next: topology.site_ids().map(|dst| routes.next(site, dst).to_vec()).collect(),
            policy: Policy::Ecmp(Ecmp::new(seed.stream("ecmp", site.0.into()).next_u64())),
        };
        return topology.site_ids().map(of).collect();
    }
    let tables: Vec<_> = topology.site_ids().map(|to| route::next_hops(topology, to)).collect();
    let of = |site: SiteId| Switching {
        next: tables.iter().map(|next| next[site.index()].into_iter().collect()).collect(),
        policy: Policy::Ecmp(Ecmp::new(0)),
    };
    topology.site_ids().map(of).collect()
}

fn ports(topology: &Topology, given: Option<&[PortSettings]>, seed: Seed) -> Result<Vec<Port>, EmuError> {
    let port = |link: LinkId| {
        let properties = &topology.link(link).properties;
        let queue = properties.queue.unwrap_or_else(|| default_queue(properties.capacity));
        let settings = given.map_or_else(
            || PortSettings {
                loss_ppm: properties.loss_ppm,
                loss_burst: properties.loss_burst,
                ..PortSettings::new(properties.capacity, properties.delay, queue)
            },
            |given| given[link.index()],
        );
        let peer = route::switch(topology.link(link).to, topology.links().len());
        let stream = seed.stream("loss", u64::from(link.0));
        Port::new(peer, settings, stream).map_err(|error| EmuError::Link { link, error })
    };
    topology.link_ids().map(port).collect()
}

/// Packets that the kernel could not put into a site's device queue (`/proc/net/dev`, field 12).
fn device_drops(counters: &OwnedFd) -> u64 {
    use std::os::fd::AsFd;
    let Ok(text) = sys::read_from_start(counters.as_fd()) else { return 0 };
    let text = String::from_utf8_lossy(&text);
    let name = build::DEVICE;
    let fields = text.lines().find_map(|line| line.trim().strip_prefix(&*name)?.strip_prefix(':'));
    fields.and_then(|fields| fields.split_whitespace().nth(11)?.parse().ok()).unwrap_or(0)
}
