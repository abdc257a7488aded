//! Real-time emulator: sites in network namespaces, connected by one fabric.
//!
//! [`Emulation::start`] gives every site of a topology a network namespace with one TUN device. A
//! packet from a program in a site is read from the device, passes the [`anabranch_fabric`] ports
//! of the links on its path (rate, delay, loss, drop-tail queues, three strict priorities) under
//! the real clock, and is written to the device of its destination site. So any program runs on the
//! emulated network, unchanged, with the kernel's TCP.
//!
//! - **Addresses.** A site has a host address, `base + 1 + site`, reached hop by hop over the path
//!   of least delay (in the topology at the start: a failed link is not routed around). With
//!   switches, flows spread over all such paths (ECMP). A directed link has an address, too,
//!   `base + 0x8000 + link`: an address of its far end, which its near end reaches over exactly
//!   that link. Answers return over the opposite link of the cable. IPv4 only; IPv6 is switched off in
//!   the sites.
//! - **Rates** count bytes of IP packets, headers included; there is no Ethernet framing.
//!   Segmentation and checksum offloads are off, so packets are as on a wire, at most one MTU long.
//! - **Priorities** follow DSCP: 40 and above (EF, CS6, CS7) first, 1 (LE) and 8 (CS1) last, the
//!   rest between. Each priority has a separate queue of the link's queue size: the topology's, or
//!   else the bytes of 100 ms, but at least 64 KiB ([`default_queue`]).
//! - **Marks.** A port with a threshold ([`EmulationOptions::ports`]) marks ECN-capable packets
//!   (RFC 3168) in their IP header.
//! - **Cleaning up.** Namespaces have no names, so they vanish with their last process. A helper
//!   process kills all programs in them when the emulation is dropped or its process dies, by any
//!   signal.
//! - **Privileges.** Root, or a user namespace if the machine permits one; [`doctor`] and the
//!   errors name everything that is missing.
//! - **Circuits.** One site's switch can be a hybrid switch of circuits and packets
//!   ([`EmulationOptions::circuit`]), whose circuits may follow demand that programs announce
//!   ([`EmulationHandle::announce`]).
//! - **Time dilation.** Under a [`Dilation`] of F emulated time passes F times slower than the
//!   machine's. Rates, delays and reports count emulated time.
//! - **Trust.** [`Emulation::report`] gives packets' lateness, and whether figures can be trusted.
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
mod route;
pub mod scenario;
mod script;
mod surroundings;
mod sys;
mod weeks;

use std::net::{IpAddr, Ipv4Addr};
use std::os::fd::OwnedFd;
use std::process::{Child, Command};
use std::sync::Arc;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

use anabranch_fabric::switch::ecmp::Ecmp;
use anabranch_fabric::{Drop as DropReason, Policy, Port, PortSettings};
use anabranch_graph::Topology;
use anabranch_linux::namespace::Namespace;
use anabranch_units::{BitRate, ByteCount, Duration, Instant, LinkId, Seed, SiteId};

use crate::build::{BuildPlan, BuiltNetwork, SitePlan};
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
pub use lateness::{Report, Scheduling};
#[doc(hidden)]
pub use route::exercise;
pub use route::{CircuitMark, LINKS_MAX, SITES_MAX};
pub use script::{Change, ChangeError, Loss};
pub use surroundings::{SiteEnvironment, give_preload};
pub use weeks::ScheduleFigures;

/// Options of an emulation. [`EmulationOptions::default`] suits most uses.
#[derive(Clone, Debug)]
pub struct EmulationOptions {
    /// The way to make namespaces; `None` tries our own privileges first, then a user namespace.
    pub isolation: Option<Isolation>,
    /// First address of the /16 network that the sites see; default 10.77.0.0.
    pub base: Ipv4Addr,
    /// Largest IP packet, 576 to 65535 bytes; default 1500. The emulator's cost is per packet, so a
    /// larger one carries more on the same machine.
    pub mtu: u32,
    /// TCP congestion control in the sites (`net.ipv4.tcp_congestion_control`); default: the
    /// kernel's.
    pub congestion_control: Option<String>,
    /// The most that a TCP socket buffers in each direction (`tcp_rmem` and `tcp_wmem`); `None`
    /// leaves the kernel's default. Twice the bandwidth-delay product of the longest path is
    /// enough.
    pub tcp_buffer_bytes_max: Option<ByteCount>,
    /// Further settings of the sites' network: path below `/proc/sys/net` (`ipv4/tcp_sack`) and
    /// value.
    pub settings: Vec<(String, String)>,
    /// The settings of each link's port, by link, in place of the topology's; default none.
    pub ports: Option<Vec<PortSettings>>,
    /// Each site's routes, by site; `None`, the default, is one path of least delay to each, or in
    /// a network with switches all that are of least delay, flow by flow.
    pub switching: Option<Vec<Switching>>,
    /// A hybrid switch in place of a site's switch. Default none.
    pub circuit: Option<CircuitOptions>,
    /// Real time for each second of emulated time; default [`Dilation::NONE`].
    pub dilation: Dilation,
    /// True if the sites' TCP acknowledges every segment, as delayed ACKs are not dilated; default
    /// false.
    pub quick_ack: bool,
    /// Seed of the packet losses.
    pub seed: Seed,
    /// 99th percentile of the lateness, in emulated time, above which the report does not trust the
    /// run; default 1 ms.
    pub lateness_p99_max: Duration,
    /// Run the forwarder ahead of ordinary threads, if permitted (CAP_SYS_NICE); default true.
    /// Without it, on a machine whose processors all have other work, the 99th percentile of the
    /// lateness is milliseconds instead of tens of microseconds.
    pub elevate: bool,
    /// Deadlines nearer than this are waited for awake; default 5 us.
    pub spin: Duration,
    /// Shortest sleep, so that packets due close to one another are handed over together: less
    /// processor time per packet, at the price of as much lateness. Default none.
    pub coalesce: Duration,
}

/// Raises the calling thread's priority as far as permitted (CAP_SYS_NICE), for punctual threads
/// with little work. Returns the new scheduling.
pub fn elevate() -> Scheduling {
    if sys::schedule_real_time().is_ok() {
        Scheduling::RealTime
    } else if sys::set_nice(-20).is_ok() {
        Scheduling::Nice
    } else {
        Scheduling::Ordinary
    }
}

/// The routes of a site that forwards.
#[derive(Clone, Debug)]
pub struct Switching {
    /// For each destination: the links that lead there; empty if unreachable.
    pub next: Vec<Vec<LinkId>>,
    /// Choice among several links. Flows are identified by addresses and ports.
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
            quick_ack: false,
            seed: Seed::new(1),
            lateness_p99_max: Duration::from_ms(1),
            elevate: true,
            spin: Duration::from_us(5),
            coalesce: Duration::ZERO,
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
            // Otherwise a connection starts with values learned by an earlier one, and trials
            // differ.
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
        // The caller's own settings are last, so that they take precedence.
        let stretched = dilation::settings(self.dilation);
        settings.extend(
            stretched.iter().chain(&self.settings).map(|(path, value)| (path.clone(), value.clone(), true)),
        );
        settings
    }
}

/// Packets that a site's device holds while the emulator does not read them.
const DEVICE_QUEUE_PACKETS: u32 = 4_096;

/// Default queue of a link of `rate`: the bytes that it sends in 100 ms, but at least 64 KiB.
pub fn default_queue(rate: BitRate) -> ByteCount {
    ByteCount::new(rate.as_bps() / 80).max(ByteCount::kib(64))
}

/// The state of a link, which may change at run time.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LinkState {
    /// True if the link is up. A link that goes down drops its queued and arriving packets.
    pub up: bool,
    /// Bits per second.
    pub rate: BitRate,
    /// One-way propagation delay.
    pub delay: Duration,
    /// Packets lost at random, parts per million.
    pub loss_ppm: u32,
    /// Mean packets of a burst of such losses; 1 if each packet is lost or not independently.
    pub loss_burst: u32,
}

/// Counters of the packets that have passed a link since the start, and its queue now.
#[derive(Copy, Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct LinkCounters {
    /// Id of the link.
    pub link: LinkId,
    /// Packets that came to it.
    pub offered_packets: u64,
    /// Packets that it sent, lost ones included.
    pub sent_packets: u64,
    /// Bytes of the packets that it sent.
    pub sent_bytes: u64,
    /// Packets that came off its far end.
    pub arrived_packets: u64,
    /// Bytes that came off its far end.
    pub arrived_bytes: u64,
    /// Packets for which its queues had no room.
    pub dropped_queue_full: u64,
    /// Packets that it lost at random.
    pub dropped_loss: u64,
    /// Packets dropped because of a bit error.
    pub dropped_bit_error: u64,
    /// Packets dropped since it was down.
    pub dropped_link_down: u64,
    /// Packets that it marked (ECN).
    pub marked_packets: u64,
    /// Bytes that wait for it now.
    pub queue_bytes: u64,
}

impl LinkCounters {
    fn of(link: LinkId, port: &Port) -> Self {
        let counters = port.counters();
        Self {
            link,
            offered_packets: counters.offered_packets,
            sent_packets: counters.sent_packets,
            sent_bytes: counters.sent_bytes,
            arrived_packets: counters.arrived_packets,
            arrived_bytes: counters.arrived_bytes,
            dropped_queue_full: counters.drops.of(DropReason::QueueFull),
            dropped_loss: counters.drops.of(DropReason::Loss),
            dropped_bit_error: counters.drops.of(DropReason::BitError),
            dropped_link_down: counters.drops.of(DropReason::LinkDown),
            marked_packets: counters.marked_packets,
            queue_bytes: port.queue_bytes().as_u64(),
        }
    }
}

/// A running emulation. Dropping it kills its sites' programs and its namespaces in about 60 ms.
#[derive(Debug)]
pub struct Emulation {
    handle: EmulationHandle,
    forwarder: Option<JoinHandle<()>>,
    nursery: Option<(Sender<SpawnRequest>, JoinHandle<()>)>,
    /// Ends, and with it every program in the sites, when dropped.
    watchdog: Option<build::Watchdog>,
}

/// The controls of an emulation, for other threads. Outlives it harmlessly: every call then fails.
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
    bell: Arc<OwnedFd>,
}

/// A network as the forwarder takes it.
struct Network {
    switching: Vec<Switching>,
    ports: Vec<Port>,
    circuits: Option<Circuits>,
}

#[derive(Debug)]
struct SiteFiles {
    namespace: Namespace,
    device_counters: OwnedFd,
}

/// A program to be started, and who wants it.
type SpawnRequest = (Command, Sender<std::io::Result<Child>>);

impl Emulation {
    /// Builds `topology` and starts forwarding.
    ///
    /// Errors: too large a topology or none, options or link properties out of range, and, with
    /// what is missing and how to get it, a machine that does not allow the namespaces or devices.
    /// Panics: if options by link or by site are not one for each.
    /// Cost: about 4 ms per site. The process forks a helper that stays, so start before filling
    /// much memory.
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
        let plan = BuildPlan {
            sites: topology
                .site_ids()
                .map(|site| SitePlan {
                    address: routes.site_address(site),
                    link_addresses: routes.links_into(site).map(|l| routes.link_address(l)).collect(),
                })
                .collect(),
            prefix: route::PREFIX,
            mtu: options.mtu,
            device_queue_packets: DEVICE_QUEUE_PACKETS,
            settings: options.settings(),
            quick_ack: options.quick_ack,
        };
        let built = match options.isolation {
            Some(isolation) => build::build(&plan, isolation).map_err(EmuError::Build)?,
            None => match build::build(&plan, Isolation::Root) {
                Ok(built) => built,
                // Only a lack of privileges can be different in a user namespace.
                Err(root) if root.step == BuildStep::Setting || root.step == BuildStep::Fork => {
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
        let (tuns, sites) = built
            .sites
            .into_iter()
            .map(|s| (s.tun, SiteFiles { namespace: s.namespace, device_counters: s.device_counters }))
            .unzip();
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
            spin: options.spin.to_std(),
            coalesce: options.coalesce.to_std(),
            elevate: options.elevate,
        };
        let shared = Shared {
            routes,
            user_namespace: built.user_namespace,
            sites,
            isolation: built.isolation,
            congestion_control: built.congestion_control,
            lateness_p99_max: options.lateness_p99_max,
            clock,
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
                // The caller may have gone; the program then runs unobserved to the emulation's
                // end.
                let _ = reply.send(command.spawn());
            }
        };
        let nursery = thread("emu-nursery").spawn(nursery).map_err(EmuError::Thread)?;
        emulation.nursery = Some((births, nursery));
        Ok(emulation)
    }

    /// The controls, for other threads.
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

    /// The address of `site`, reached from everywhere over the path of least delay.
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

    /// Starts `command` in `site`. It is killed when the emulation is dropped or this process dies.
    ///
    /// Errors: the program cannot be started. Its standard input and output are as `command` sets
    /// them.
    /// Panics: if the site is not of this topology.
    pub fn spawn(&self, site: SiteId, mut command: Command) -> Result<Child, EmuError> {
        let parent = std::process::id() as libc::pid_t;
        let enter = self.enter(site);
        sys::before_exec(&mut command, move || {
            enter()?;
            // After entering, because a change of credentials clears it. The signal comes when the
            // *thread* that started the program ends, hence the nursery, a thread that lives as
            // long as the emulation.
            sys::signal_on_parent_death(libc::SIGKILL)?;
            if sys::parent_pid() != parent { Err(std::io::ErrorKind::NotConnected.into()) } else { Ok(()) }
        });
        let program = command.get_program().to_string_lossy().into_owned();
        let (reply, born) = channel();
        let (births, _) = self.nursery.as_ref().expect("the nursery is there until the drop");
        births.send((command, reply)).map_err(|_| EmuError::Ended)?;
        born.recv().map_err(|_| EmuError::Ended)?.map_err(|error| EmuError::Spawn { program, site, error })
    }

    /// Prepares `command` to run in `site` once started by its own means. The helper process kills
    /// it, too, when the emulation ends.
    ///
    /// Panics: if the site is not of this topology.
    pub fn command(&self, site: SiteId, command: &mut Command) {
        sys::before_exec(command, self.enter(site));
    }

    /// A function by which a forked child enters `site`, for the `pre_exec` of other kinds of
    /// command (tokio's). It makes system calls only, so it may run there.
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

    /// A path for `nsenter --net=PATH`, to look into `site`; user namespaces need `--user`, too.
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
        // Programs first, so that none sees the network die. The nursery's end kills its children.
        if let Some((births, nursery)) = self.nursery.take() {
            drop(births);
            let _ = nursery.join();
        }
        self.watchdog = None;
        let _ = self.handle.send(Request::Stop);
        if let Some(forwarder) = self.forwarder.take() {
            // The thread holds the devices; if it panicked, the panic has been printed already.
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
            if let Some(user) = &shared.user_namespace {
                user.enter()?;
            }
            shared.sites[site.index()].namespace.enter()
        }
    }

    /// Changes the state of `link` from now on. Routes stay as they are.
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

    /// The counters of all links at one instant, by id.
    ///
    /// Errors: an emulation that has ended.
    /// Cost: a wake-up of the forwarder, about a microsecond per link; blocks until it answers.
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
            forwarder_cpu_s: cpu_s,
            forwarder_cpu_share_max: cpu_share_max,
            forwarder_wait_s: wait_s,
            scheduling,
            isolation: self.shared.isolation,
            congestion_control: self.shared.congestion_control.clone(),
            lateness_us_p99_bound: self.shared.lateness_p99_max.as_secs_f64() * 1e6,
            trusted: false,
            why: Vec::new(),
        };
        Ok(report.judge())
    }
}

/// The path of least delay to each site: a single path where sites forward, and all equal paths,
/// chosen by flow, where switches do.
fn least_delay(topology: &Topology, seed: Seed) -> Vec<Switching> {
    if topology.sites().iter().any(|site| site.is_switch) {
        // A link without delay would count less than none at all.
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

/// Packets that the kernel could not put into a site's device (`/proc/net/dev`, field 12).
fn device_drops(counters: &OwnedFd) -> u64 {
    use std::os::fd::AsFd;
    let Ok(text) = sys::read_from_start(counters.as_fd()) else { return 0 };
    let text = String::from_utf8_lossy(&text);
    let name = build::DEVICE;
    let fields = text.lines().find_map(|line| line.trim().strip_prefix(&*name)?.strip_prefix(':'));
    fields.and_then(|fields| fields.split_whitespace().nth(11)?.parse().ok()).unwrap_or(0)
}
