//! Scenarios: network, transport, workloads, probes, changes, and sweeps of settings.
//!
//! A scenario is a TOML file (or the same as a [`toml::Table`]); `read` makes [`Point`]s of it, one for each combination of
//! the swept values, each with its resolved [`Scenario`]. A setting that the file lacks has a default, and a setting that is
//! unknown, impossible or senseless is refused with its line.
//!
//! ```toml
//! [network]
//! topology = "star"
//! hosts = 33
//! rate = "1 Gbit/s"
//! delay = "25 us"
//! queue = "64 KiB"
//! [workload]
//! kind = "incast"
//! block = "256 KiB"
//! [sweep]
//! "workload.servers" = [1, 2, 4, 8, 16, 32]
//! ```
//!
//! Leaves out: how a scenario runs (`network`, `traffic`). Read [`Scenario`] and [`Workload`] first.

mod check;
mod circuit;
mod read;

pub(crate) use check::{DURATION_MAX, UDP_RATE_MIN};
pub use circuit::{CircuitSpec, DemandSource, ResizeSpec, ScheduleSpec};
pub use read::{Point, ScenarioError, place, read};

use anabranch_fabric::switch::PolicyKind;
use anabranch_transport::{Config, Control};
use anabranch_units::{BitRate, ByteCount, Duration};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One simulation, all settings resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// For people.
    #[serde(default)]
    pub name: String,
    /// Of everything random. Trial `t` runs with `seed + t`.
    #[serde(default = "one")]
    pub seed: u64,
    /// When the run ends at the latest. Needed if a workload has no end of its own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<Duration>,
    /// Goodput is measured from here on.
    #[serde(default)]
    pub warmup: Duration,
    /// Hosts, links and queues.
    pub network: NetworkSpec,
    /// A switch of circuits and packets in place of one of the topology's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub circuit: Option<CircuitSpec>,
    /// How TCP is set up, on all hosts.
    #[serde(default)]
    pub transport: Config,
    /// What the hosts do.
    #[serde(default)]
    pub workload: Vec<Workload>,
    /// What is sampled over time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probe>,
    /// What changes on the way.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub change: Vec<Change>,
    /// What else the hosts' kernels are told where the scenario is emulated: a path below `/proc/sys/net`, as
    /// `ipv4/tcp_early_retrans`, and its value. The simulator has no kernel.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kernel: BTreeMap<String, String>,
    /// Real time for each second of an emulated run, 1 to [`DILATION_MAX`]. `None` leaves it to the
    /// emulator. The simulator has no clock to stretch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dilation: Option<u32>,
}

/// Largest time dilation: a millisecond of the network takes a second.
pub const DILATION_MAX: u32 = 1_024;

const fn one() -> u64 {
    1
}

/// Hosts, links and queues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NetworkSpec {
    /// `star` (needs `hosts`), `dumbbell` (`pairs`), `leaf-spine` (`tors`, `spines`, `hosts`: per tor), `fat-tree` (`k`), a
    /// built-in topology, or a file.
    pub topology: String,
    /// Hosts of a star, or below each tor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<usize>,
    /// Pairs of hosts of a dumbbell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<usize>,
    /// Top-of-rack switches of a leaf-spine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tors: Option<usize>,
    /// Spine switches of a leaf-spine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spines: Option<usize>,
    /// Ports of each switch of a fat tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k: Option<usize>,
    /// Of every link that does not say otherwise.
    #[serde(default = "gigabit")]
    pub rate: BitRate,
    /// One way, of every link that does not say otherwise.
    #[serde(default = "microsecond")]
    pub delay: Duration,
    /// Bytes that wait at most at a switch's port.
    #[serde(default = "queue")]
    pub queue: ByteCount,
    /// Packets that wait at most at a switch's port, if that is limited too.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_packets: Option<u32>,
    /// Bytes that wait at most at a host's own port. Large, as hosts hold back rather than drop.
    #[serde(default = "host_queue")]
    pub host_queue: ByteCount,
    /// Waiting bytes above which a switch's port marks (ECN).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<ByteCount>,
    /// Whether what the receiver of a flow sends, acknowledgements, has the first priority at all ports.
    #[serde(default)]
    pub acks_first: bool,
    /// A buffer that all ports of a switch share, beside `queue`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_buffer: Option<ByteCount>,
    /// With a shared buffer: no queue holds more than so many times what is free of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_factor: Option<f64>,
    /// Whether a one-way link gets a way back of the same kind, for acknowledgements: systems do not plan with it.
    #[serde(default)]
    pub ways_back: bool,
    /// Packets lost by chance on every link, parts per million.
    #[serde(default)]
    pub loss_ppm: u32,
    /// Packets that a burst of such losses takes in the mean, on every link; with 1 each packet is lost or not on its own (see
    /// [`anabranch_fabric::PortSettings`]).
    #[serde(default = "one_packet", skip_serializing_if = "is_one_packet")]
    pub loss_burst: u32,
    /// Bits damaged by chance on every link, parts per 10^12.
    #[serde(default)]
    pub bit_errors_ppt: u64,
    /// Of links between switches, where it differs: a dumbbell's bottleneck, a leaf-spine's uplinks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink_rate: Option<BitRate>,
    /// Of links between switches, where it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink_delay: Option<Duration>,
    /// Of links between switches, where it differs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink_queue: Option<ByteCount>,
    /// How switches choose among equal paths.
    #[serde(default)]
    pub spread: Spread,
    /// Each packet leaves its host up to so much later, by chance and in order. The time of a packet at the bottleneck keeps
    /// flows from falling into step (see [`anabranch_fabric::Hosts::with_jitter`]). Of the simulator: emulated hosts are
    /// irregular of themselves.
    #[serde(default)]
    pub jitter: Duration,
}

const fn one_packet() -> u32 {
    1
}
#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde calls it so")]
const fn is_one_packet(burst: &u32) -> bool {
    *burst == 1
}
const fn gigabit() -> BitRate {
    BitRate::gbps(1)
}
const fn microsecond() -> Duration {
    Duration::from_us(1)
}
const fn queue() -> ByteCount {
    ByteCount::kib(256)
}
const fn host_queue() -> ByteCount {
    ByteCount::mib(64)
}

/// How switches choose among equal paths.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Spread {
    /// By a policy of each switch, which has this word.
    By(PolicyKind),
    /// By destination, evenly: host d of a fat tree is reached over core (d mod h) h + (d / h) mod h, with h = k / 2 (Zahavi,
    /// *D-Mod-K routing*, 2010).
    DModK,
    /// By destination, by a hash: host d of a fat tree is reached over core splitmix64(d) mod h^2.
    DHash,
}

impl Default for Spread {
    fn default() -> Self {
        Self::By(PolicyKind::Ecmp)
    }
}

impl From<Spread> for String {
    fn from(spread: Spread) -> Self {
        spread.word().to_owned()
    }
}

impl TryFrom<String> for Spread {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        let words =
            || Self::all().map(|spread| format!("`{}`", spread.word())).collect::<Vec<_>>().join(", ");
        let found = Self::all().find(|spread| spread.word() == word);
        found.ok_or_else(|| format!("unknown variant `{word}`, expected one of {}", words()))
    }
}

impl Spread {
    fn all() -> impl Iterator<Item = Self> {
        PolicyKind::ALL.iter().map(|kind| Self::By(*kind)).chain([Self::DModK, Self::DHash])
    }

    const fn word(self) -> &'static str {
        match self {
            Self::By(kind) => kind.word(),
            Self::DModK => "d-mod-k",
            Self::DHash => "d-hash",
        }
    }

    /// The core over which host `dst` of a fat tree with `half` times `half` cores is reached, where it depends on that alone.
    pub(crate) fn core(self, dst: u64, half: u64) -> Option<u64> {
        match self {
            Self::By(_) => None,
            Self::DModK => Some(dst % half * half + dst / half % half),
            Self::DHash => Some(splitmix64(dst) % (half * half)),
        }
    }
}

/// Steele, Lea and Flood's splitmix64: one step of the generator from state `x`.
pub const fn splitmix64(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// The kinds of workloads that are no system's.
pub const KINDS: [&str; 6] = ["long", "incast", "poisson", "udp", "trace", "racks"];

/// What hosts do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Workload {
    /// Each of some pairs moves one stream, endless or of a size.
    Long(Long),
    /// Barrier-synchronised requests: a client asks all servers for a block each, and again once all have come.
    Incast(Incast),
    /// Flows that begin at random times, of random sizes, between random hosts.
    Poisson(Poisson),
    /// Datagrams at a constant rate, or in bursts.
    Udp(Udp),
    /// Flows as a file lists them.
    Trace(Trace),
    /// Flows between racks, at a rate for each rack.
    Racks(Racks),
    /// What a system's machines do: any kind that is not in [`KINDS`].
    #[serde(untagged)]
    System(SystemWorkload),
}

/// See [`Workload::System`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SystemWorkload {
    /// Which system.
    pub kind: String,
    /// Its settings, as they were written: the system reads them.
    #[serde(flatten)]
    pub settings: toml::Table,
}

/// Whom each host sends to.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Pairs {
    /// `permutation`, `halves` or `all`.
    Named(Pattern),
    /// Host i to host (i + n) mod hosts.
    Stride(usize),
    /// As listed, by name or number.
    Listed(Vec<(String, String)>),
}

/// A named pattern of pairs.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// A random one, in which nobody sends to itself.
    Permutation,
    /// Host i of the first half to host i of the second.
    Halves,
    /// Every host to every other.
    All,
}

/// See [`Workload::Long`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Long {
    /// Who sends to whom: `"permutation"`, `"halves"`, `"all"`, a stride, or `[["h0", "h1"], …]`.
    pub pairs: Pairs,
    /// Bytes that each stream has; endless without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteCount>,
    /// When streams begin.
    #[serde(default)]
    pub start: Duration,
    /// Each begins up to so much later, by chance.
    #[serde(default)]
    pub jitter: Duration,
    /// Streams of each pair.
    #[serde(default = "one_stream")]
    pub streams: u32,
    /// Flows smaller than this are sent twice, and the first of the two to be whole counts (RepFlow).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twice_below: Option<ByteCount>,
    /// Their congestion control, where it is not the transport's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
    /// Strict priority of their packets, 0 first.
    #[serde(default = "middle")]
    pub priority: u8,
}

const fn one_stream() -> u32 {
    1
}
const fn middle() -> u8 {
    1
}

/// See [`Workload::Incast`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Incast {
    /// Who asks; the first host without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// How many answer: the hosts after the client, in order.
    pub servers: usize,
    /// Whether they are drawn from the run's seed among all other hosts instead.
    #[serde(default)]
    pub random_servers: bool,
    /// Bytes that each server sends in a round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<ByteCount>,
    /// Bytes that all servers together send in a round, where `block` is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<ByteCount>,
    /// How often.
    #[serde(default = "twenty")]
    pub rounds: u32,
    /// Rounds before those that count: in the first ones windows find their size.
    #[serde(default)]
    pub warmup_rounds: u32,
    /// Bytes of a request.
    #[serde(default = "request")]
    pub request: ByteCount,
    /// Each request leaves up to so much later, by chance.
    #[serde(default)]
    pub jitter: Duration,
    /// Strict priority of their packets, 0 first.
    #[serde(default = "middle")]
    pub priority: u8,
}

const fn twenty() -> u32 {
    20
}
const fn request() -> ByteCount {
    ByteCount::new(64)
}

/// See [`Workload::Poisson`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Poisson {
    /// The mean share of the hosts' own links that the flows' bytes take, headers not counted: above 0, below 1.
    pub load: f64,
    /// `web-search`, `data-mining`, a size such as `"100 kB"`, a range such as `"90 kB to 900 kB"`, all alike, or a file of
    /// the distribution.
    pub sizes: String,
    /// How many flows; without, they come until the run ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<u64>,
    /// Flows smaller than this are sent twice, and the first of the two to be whole counts (RepFlow).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twice_below: Option<ByteCount>,
    /// Strict priority of their packets, 0 first.
    #[serde(default = "middle")]
    pub priority: u8,
}

/// See [`Workload::Udp`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Udp {
    /// Who sends to whom, as for `long`.
    pub pairs: Pairs,
    /// Bits on the wire in a second, while it sends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<BitRate>,
    /// In place of the rate: every pair sends so much that this share of the links' rates is taken, in the mean over all
    /// links of the network.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
    /// Bytes of a datagram on the wire.
    #[serde(default = "mtu")]
    pub packet: ByteCount,
    /// Mean length of a burst, drawn from an exponential distribution; no pauses without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<Duration>,
    /// Mean length of a pause.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off: Option<Duration>,
    /// When it begins.
    #[serde(default)]
    pub start: Duration,
    /// When it ends; with the run without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Duration>,
    /// Whether datagrams come at random, as a Poisson process of this mean rate, rather than evenly.
    #[serde(default)]
    pub random: bool,
    /// With `random`: datagrams that leave back to back.
    #[serde(default = "one_stream")]
    pub batch: u32,
    /// Strict priority of their packets, 0 first.
    #[serde(default = "middle")]
    pub priority: u8,
}

const fn mtu() -> ByteCount {
    ByteCount::new(1_500)
}

/// See [`Workload::Trace`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// A CSV file with the header `start_s,from,to,size_bytes`, sorted or not.
    pub file: String,
    /// Flows smaller than this are sent twice, and the first of the two to be whole counts (RepFlow).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twice_below: Option<ByteCount>,
    /// Strict priority of their packets, 0 first.
    #[serde(default = "middle")]
    pub priority: u8,
}

/// See [`Workload::Racks`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Racks {
    /// Data in a second that the flows of each rack have in the mean. A flow begins as the one before it would end at this
    /// rate; the first one at a random time within its own.
    pub rate: BitRate,
    /// Sizes, as for `poisson`.
    pub sizes: String,
    /// A flow goes to the rack that follows by one of these numbers; all numbers alike without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shifts: Option<Vec<u16>>,
    /// Their congestion control, where it is not the transport's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
    /// Strict priority of their packets, 0 first.
    #[serde(default = "middle")]
    pub priority: u8,
}

/// What is sampled over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// How often.
    pub interval: Duration,
    /// Links, as `FROM-TO`; queue length and use are sampled.
    #[serde(default)]
    pub links: Vec<String>,
    /// The first so many flows of data; goodput is sampled, and how fast their senders may be.
    #[serde(default)]
    pub flows: u32,
}

/// What changes on the way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// When.
    pub at: Duration,
    /// The link, as `FROM-TO`, in this direction.
    pub link: String,
    /// Whether it works from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up: Option<bool>,
    /// Its rate from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<BitRate>,
    /// Its delay from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Duration>,
    /// Its loss from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_ppm: Option<u32>,
    /// What a burst of its losses takes in the mean, from now on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_burst: Option<u32>,
}
