//! Scenarios: network, transport, workloads, probes, changes, and sweeps of settings.
//!
//! A scenario is a TOML file (or an equivalent [`toml::Table`]). `read` expands it into
//! [`SweepPoint`]s, one for each combination of swept values, each with its resolved [`Scenario`].
//! A missing setting has a default. A setting that is unknown, impossible or contradictory is
//! refused with its line.
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
//! Leaves out: running a scenario (`network`, `traffic`). Read [`Scenario`] and [`Workload`] first.

mod check;
mod circuit;
mod read;

pub(crate) use check::{DURATION_MAX, UDP_RATE_MIN};
pub use circuit::{
    CircuitSpec, Dark, DemandSource, NightSpec, PartialNight, ResizeSpec, ScheduleSpec, Turns,
};
pub use read::{ScenarioError, SweepPoint, place, read};

use anabranch_fabric::switch::PolicyKind;
use anabranch_transport::{Config, Control};
use anabranch_units::{BitRate, ByteCount, Duration};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// One simulation with all settings resolved.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Name of the scenario, for people.
    #[serde(default)]
    pub name: String,
    /// Seed of all random draws. Trial `t` runs with `seed + t`.
    #[serde(default = "one")]
    pub seed: u64,
    /// Latest end of the run. Required if a workload is endless.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duration: Option<Duration>,
    /// Start of the measurement of goodput.
    #[serde(default)]
    pub warmup: Duration,
    /// Hosts, links and queues.
    pub network: NetworkSpec,
    /// A hybrid switch in place of one of the topology's switches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub circuit: Option<CircuitSpec>,
    /// TCP settings of all hosts.
    #[serde(default)]
    pub transport: Config,
    /// Workloads of the hosts.
    #[serde(default)]
    pub workload: Vec<Workload>,
    /// Samples of links and flows over time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub probe: Option<Probe>,
    /// Changes of links during the run.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub change: Vec<Change>,
    /// Further kernel settings of the hosts in emulation: a path below `/proc/sys/net`, such as
    /// `ipv4/tcp_early_retrans`, and its value. The simulator ignores them.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub kernel: BTreeMap<String, String>,
    /// Real time for each second of an emulated run, 1 to 1,024. By default the emulator decides.
    /// The simulator ignores the setting.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub dilation: Option<u32>,
}

const fn one() -> u64 {
    1
}

/// Hosts, links and queues.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NetworkSpec {
    /// `star` (needs `hosts`), `dumbbell` (`pairs`), `leaf-spine` (`tors`, `spines`, `hosts`: per
    /// tor), `fat-tree` (`k`), a built-in topology, or a file.
    pub topology: String,
    /// Number of hosts of a star, or of hosts below each tor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<usize>,
    /// Number of host pairs of a dumbbell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pairs: Option<usize>,
    /// Number of top-of-rack switches of a leaf-spine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tors: Option<usize>,
    /// Number of spine switches of a leaf-spine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spines: Option<usize>,
    /// Number of ports of each switch of a fat tree.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k: Option<usize>,
    /// Rate of links for which the topology gives no rate.
    #[serde(default = "gigabit")]
    pub rate: BitRate,
    /// One-way delay of links for which the topology gives no delay.
    #[serde(default = "microsecond")]
    pub delay: Duration,
    /// Queue limit of a switch's port in bytes.
    #[serde(default = "queue")]
    pub queue: ByteCount,
    /// Queue limit of a switch's port in packets, if limited.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub queue_packets: Option<u32>,
    /// Queue limit of a host's port in bytes. The default is large, because hosts hold data back
    /// rather than drop it.
    #[serde(default = "host_queue")]
    pub host_queue: ByteCount,
    /// Queue length in bytes above which a switch's port marks packets (ECN).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mark: Option<ByteCount>,
    /// True if packets of a flow's receiver (acknowledgements) have the first priority at all
    /// ports.
    #[serde(default)]
    pub acks_first: bool,
    /// Size of a buffer that all ports of a switch share, in addition to the limit `queue`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_buffer: Option<ByteCount>,
    /// Maximum of a queue in a shared buffer, as a multiple of the buffer's free space.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_factor: Option<f64>,
    /// True if each one-way link gets an equal reverse link for acknowledgements. Systems do not
    /// use these links in their plans.
    #[serde(default)]
    pub ways_back: bool,
    /// Random packet loss on every link in parts per million.
    #[serde(default)]
    pub loss_ppm: u32,
    /// Mean length of a loss burst in packets; 1 for independent losses.
    #[serde(default = "one_packet", skip_serializing_if = "is_one_packet")]
    pub loss_burst: u32,
    /// Random bit errors on every link in parts per 10^12.
    #[serde(default)]
    pub bit_errors_ppt: u64,
    /// Rate of links between switches, if different: a dumbbell's bottleneck, a leaf-spine's
    /// uplinks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink_rate: Option<BitRate>,
    /// Delay of links between switches, if different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink_delay: Option<Duration>,
    /// Queue limit of links between switches, if different.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink_queue: Option<ByteCount>,
    /// Method by which switches choose among equal paths.
    #[serde(default)]
    pub spread: PathSpread,
    /// Maximum random delay of a packet's departure from its host; the order of packets is kept. A
    /// delay of up to a packet's transmission time at the bottleneck prevents flows from
    /// synchronising. Simulator only, because emulated hosts are irregular anyway.
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

/// Method by which switches choose among equal paths.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "String", into = "String")]
#[schemars(extend("enum" = Self::all().map(Self::word).collect::<Vec<_>>()))]
pub enum PathSpread {
    /// By the switches' policy with this name.
    By(PolicyKind),
    /// By destination, evenly: host d of a fat tree is reached through core (d mod h) h + (d / h)
    /// mod h, with h = k / 2 (Zahavi, *D-Mod-K routing*, 2010).
    DModK,
    /// By a hash of the destination: host d of a fat tree is reached through core splitmix64(d) mod
    /// h^2.
    DHash,
}

impl Default for PathSpread {
    fn default() -> Self {
        Self::By(PolicyKind::Ecmp)
    }
}

impl From<PathSpread> for String {
    fn from(spread: PathSpread) -> Self {
        spread.word().to_owned()
    }
}

impl TryFrom<String> for PathSpread {
    type Error = String;

    fn try_from(word: String) -> Result<Self, String> {
        let words =
            || Self::all().map(|spread| format!("`{}`", spread.word())).collect::<Vec<_>>().join(", ");
        let found = Self::all().find(|spread| spread.word() == word);
        found.ok_or_else(|| format!("unknown variant `{word}`, expected one of {}", words()))
    }
}

impl PathSpread {
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

    /// Core through which host `dst` of a fat tree with `half` times `half` cores is reached.
    /// `None` unless the destination alone decides.
    pub(crate) fn core(self, dst: u64, half: u64) -> Option<u64> {
        match self {
            Self::By(_) => None,
            Self::DModK => Some(dst % half * half + dst / half % half),
            Self::DHash => Some(splitmix64(dst) % (half * half)),
        }
    }
}

/// One step of the generator splitmix64 (Steele, Lea and Flood) from state `x`.
pub const fn splitmix64(x: u64) -> u64 {
    let mut z = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Kinds of workloads of this room.
pub const KINDS: [&str; 6] = ["long", "incast", "poisson", "udp", "trace", "racks"];

/// A workload of the hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Workload {
    /// One stream per pair, endless or of a given size.
    Long(LongWorkload),
    /// Barrier-synchronised requests: a client requests a block from each server, and repeats this
    /// once all blocks have arrived.
    Incast(Incast),
    /// Flows that begin at random times, of random sizes, between random hosts.
    Poisson(Poisson),
    /// Datagrams at a constant rate, or in bursts.
    Udp(Udp),
    /// Flows listed in a file.
    Trace(Trace),
    /// Flows between racks, at a rate per rack.
    Racks(Racks),
    /// A system's workload: any kind that is not in [`KINDS`].
    #[serde(untagged)]
    #[schemars(skip)]
    System(SystemWorkload),
}

/// A system's workload; see [`Workload::System`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SystemWorkload {
    /// Name of the system.
    pub kind: String,
    /// Settings as written, which the system parses.
    #[serde(flatten)]
    pub settings: toml::Table,
}

/// Pairs of sender and receiver.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(untagged)]
pub enum Pairs {
    /// `permutation`, `halves` or `all`.
    Named(Pattern),
    /// Each host i sends to host (i + n) mod hosts.
    Stride(usize),
    /// Listed pairs, by name or number.
    Listed(Vec<(String, String)>),
}

/// A named pattern of pairs.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Pattern {
    /// A random permutation in which no host sends to itself.
    Permutation,
    /// Host i of the first half sends to host i of the second half.
    Halves,
    /// Every host sends to every other host.
    All,
}

/// Streams between pairs, endless or of a given size.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct LongWorkload {
    /// Pairs: `"permutation"`, `"halves"`, `"all"`, a stride, or `[["h0", "h1"], …]`.
    pub pairs: Pairs,
    /// Bytes of each stream; endless by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub size: Option<ByteCount>,
    /// Start time of the streams.
    #[serde(default)]
    pub start: Duration,
    /// Maximum random delay of each start.
    #[serde(default)]
    pub jitter: Duration,
    /// Number of streams per pair.
    #[serde(default = "one_stream")]
    pub streams: u32,
    /// Size below which flows are sent twice. The first complete copy counts (RepFlow).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twice_below: Option<ByteCount>,
    /// Congestion control, if different from the transport's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
    /// Strict priority of the packets, 0 first.
    #[serde(default = "middle")]
    pub priority: u8,
}

const fn one_stream() -> u32 {
    1
}
const fn middle() -> u8 {
    1
}

/// Barrier-synchronised requests of one client to many servers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Incast {
    /// Host of the client; the first host by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client: Option<String>,
    /// Number of servers: the hosts after the client, in order.
    pub servers: usize,
    /// True if the servers are drawn from all other hosts with the run's seed.
    #[serde(default)]
    pub random_servers: bool,
    /// Bytes from each server in a round.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub block: Option<ByteCount>,
    /// Bytes from all servers together in a round, instead of `block`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub total: Option<ByteCount>,
    /// Number of measured rounds.
    #[serde(default = "twenty")]
    pub rounds: u32,
    /// Number of warm-up rounds, during which congestion windows grow to their usual size.
    #[serde(default)]
    pub warmup_rounds: u32,
    /// Bytes of a request.
    #[serde(default = "request")]
    pub request: ByteCount,
    /// Maximum random delay of each request.
    #[serde(default)]
    pub jitter: Duration,
    /// Strict priority of the packets, 0 first.
    #[serde(default = "middle")]
    pub priority: u8,
}

const fn twenty() -> u32 {
    20
}
const fn request() -> ByteCount {
    ByteCount::new(64)
}

/// Flows at random times, of random sizes, between random hosts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Poisson {
    /// Mean load of the hosts' links by the flows' data without headers, above 0 and below 1.
    pub load: f64,
    /// `web-search`, `data-mining`, a size such as `"100 kB"`, a range such as `"90 kB to 900 kB"`
    /// with equal probabilities, or a file of the distribution.
    pub sizes: String,
    /// Number of flows. By default flows arrive until the run ends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flows: Option<u64>,
    /// Size below which flows are sent twice. The first complete copy counts (RepFlow).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twice_below: Option<ByteCount>,
    /// Strict priority of the packets, 0 first.
    #[serde(default = "middle")]
    pub priority: u8,
}

/// Datagrams at a constant rate, or in bursts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Udp {
    /// Pairs, as for `long`.
    pub pairs: Pairs,
    /// Rate on the wire while sending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<BitRate>,
    /// Load, instead of the rate. Every pair sends at the rate at which the average link uses this
    /// share of its rate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<f64>,
    /// Length of a datagram on the wire in bytes.
    #[serde(default = "mtu")]
    pub packet: ByteCount,
    /// Mean length of a burst, exponentially distributed. By default there are no pauses.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<Duration>,
    /// Mean length of a pause between bursts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub off: Option<Duration>,
    /// Start time of the sources.
    #[serde(default)]
    pub start: Duration,
    /// Stop time of the sources; by default the end of the run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stop: Option<Duration>,
    /// True if datagrams leave at random, as a Poisson process with this mean rate. By default they
    /// leave evenly.
    #[serde(default)]
    pub random: bool,
    /// Number of datagrams that leave back to back, with `random`.
    #[serde(default = "one_stream")]
    pub batch: u32,
    /// Strict priority of the packets, 0 first.
    #[serde(default = "middle")]
    pub priority: u8,
}

const fn mtu() -> ByteCount {
    ByteCount::new(1_500)
}

/// Flows listed in a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Trace {
    /// A CSV file with the header `start_s,from,to,size_bytes`, sorted or not.
    pub file: String,
    /// Size below which flows are sent twice. The first complete copy counts (RepFlow).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub twice_below: Option<ByteCount>,
    /// Strict priority of the packets, 0 first.
    #[serde(default = "middle")]
    pub priority: u8,
}

/// Flows between racks, at a rate per rack.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Racks {
    /// Mean data rate of each rack's flows. A flow starts when the previous flow would end at this
    /// rate. The first flow starts at a random time within its duration.
    pub rate: BitRate,
    /// Sizes of flows, as for `poisson`.
    pub sizes: String,
    /// Numbers k for flows from rack i to rack i + k, modulo the number of racks. By default all
    /// numbers, with equal probability.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shifts: Option<Vec<u16>>,
    /// Congestion control, if different from the transport's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub control: Option<Control>,
    /// Strict priority of the packets, 0 first.
    #[serde(default = "middle")]
    pub priority: u8,
}

/// Samples of links and flows over time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    /// Interval between samples.
    pub interval: Duration,
    /// Links, as `FROM-TO`, whose queue length and use are sampled.
    #[serde(default)]
    pub links: Vec<String>,
    /// Number of data flows, from the first on, whose goodput and allowed rate are sampled.
    #[serde(default)]
    pub flows: u32,
}

/// A change of a link during the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Change {
    /// Time of the change.
    pub at: Duration,
    /// The link, as `FROM-TO`. Only this direction changes.
    pub link: String,
    /// True if the link is up from this time on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub up: Option<bool>,
    /// Rate of the link from this time on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<BitRate>,
    /// Delay of the link from this time on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub delay: Option<Duration>,
    /// Loss from this time on in parts per million.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_ppm: Option<u32>,
    /// Mean length of a loss burst from this time on, in packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss_burst: Option<u32>,
}
