//! The JSON that crosses the controller's HTTP interface, with sites and links by name.
//!
//! Leaves out: commands and reports (`replicate_proto::control`). Read [`SubmitRequest`] and
//! [`TransferView`] first.

use anabranch_pieces::FileHash;
use anabranch_replicate_proto::control::{Command, DirectoryRules, EntryCounts, LeftEntry, Priority, Report};
use anabranch_replicate_proto::coordinator::{
    CorruptPolicy, Event, Outcome, PhaseName, SchemeChoice, Verdict,
};
use anabranch_replicate_proto::plan::Scheme;
use anabranch_sets::comparison::Comparison;
use anabranch_units::{BitRate, LinkId, fnv1a};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use anabranch_http::answer::{ErrorBody, HealthView};

/// Registration of a site's process.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegisterRequest {
    /// Session number, drawn at random when the site's process starts.
    pub session: u64,
    /// Data address for each link into the site.
    pub addresses: Vec<LinkAddress>,
    /// Digest of the site's topology.
    #[serde(default)]
    pub topology: Option<TopologyDigest>,
    /// True to replace another running process of the site.
    #[serde(default)]
    pub take_over: bool,
}

impl RegisterRequest {
    /// Creates a registration with the controller's topology, without `take_over`.
    pub fn new(session: u64, addresses: Vec<LinkAddress>) -> Self {
        Self { session, addresses, topology: None, take_over: false }
    }
}

/// Digest by which two processes compare their topologies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopologyDigest {
    /// Digest of sites' names and links' ends in order of ids, which give the ids their meaning.
    pub names: u64,
    /// Digest that also covers the links' rates, delays and costs.
    pub whole: u64,
}

impl TopologyDigest {
    /// Computes the digest of a topology.
    pub fn of(topology: &anabranch_graph::Topology) -> Self {
        let mut text = crate::store::fingerprint(topology);
        let names = fnv1a(text.iter().copied());
        for link in topology.links() {
            let p = &link.properties;
            text.extend_from_slice(&p.capacity.as_bps().to_le_bytes());
            text.extend_from_slice(&p.delay.as_ps().to_le_bytes());
            text.extend_from_slice(&p.cost.to_le_bytes());
        }
        Self { names, whole: fnv1a(text) }
    }
}

/// Address at which a site receives the data of one link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LinkAddress {
    /// Id of the link.
    #[schema(value_type = u32)]
    pub link: LinkId,
    /// Address, as `host:port`.
    pub address: String,
}

/// Answer to a registration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegisterReply {
    /// Number after which commands are delivered next.
    pub after: u64,
    /// Id of the numbering of commands; a new id means that numbers restart.
    pub queue: u64,
    /// Id of the site in the topology.
    pub site: u16,
    /// Warning about the site for its operator, in one line.
    #[serde(default)]
    pub warning: Option<String>,
}

/// Commands for one site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CommandsReply {
    /// Commands in the order of execution; empty if there were none in time.
    pub commands: Vec<NumberedCommand>,
}

/// A command and its number, counted from 1 in a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NumberedCommand {
    /// Number to acknowledge with `after`.
    pub number: u64,
    /// The command.
    #[schema(value_type = Object)]
    pub command: Command,
}

/// A batch of reports from a site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportsRequest {
    /// Session of the site.
    pub session: u64,
    /// Number of the batch, counted from 1 in a session; a repeated batch counts once.
    pub batch: u64,
    /// Reports, in order.
    #[schema(value_type = Vec<Object>)]
    pub reports: Vec<Report>,
}

/// A transfer to start.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitRequest {
    /// Site that holds the file.
    pub source: String,
    /// Path of the file at the source.
    pub source_path: String,
    /// Sites that receive the file.
    pub destinations: Vec<DestinationRequest>,
    /// Sites that must not relay.
    #[serde(default)]
    pub avoid_sites: Vec<String>,
    /// Links that must not be used.
    #[serde(default)]
    pub avoid_links: Vec<LinkName>,
    /// Scheme of the plan: auto, coded, packed, steiner, steiner_store_and_forward,
    /// steiner_one_tree, multi_path or single_path.
    #[serde(default)]
    #[schema(value_type = String)]
    pub scheme: SchemeChoice,
    /// TCP settings of hops.
    #[serde(default)]
    pub hop: HopRequest,
    /// Hops with other TCP settings.
    #[serde(default)]
    pub hop_overrides: Vec<HopOverrideRequest>,
    /// Maximum rate of the source, as in `20 Mbit/s`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub bandwidth_limit: Option<BitRate>,
    /// Length of a symbol in bytes.
    #[serde(default = "symbol_bytes")]
    pub symbol_bytes: u32,
    /// Capacity of each virtual buffer in packets.
    #[serde(default = "buffer_packets")]
    pub buffer_packets: u16,
    /// Reaction to corrupt data: repair or refuse.
    #[serde(default)]
    #[schema(value_type = String)]
    pub on_corrupt: CorruptPolicy,
    /// True to fill the capacity that the plan leaves with uncoded data of the lowest priority.
    #[serde(default)]
    pub fill: bool,
    /// True to replace existing files of the same name at the destinations.
    #[serde(default)]
    pub replace: bool,
    /// Rules of a directory: `filter` (which entries are sent), `delete` (limit of the entries to
    /// delete, as in `10%` or `500`; nothing is deleted without it), `backup` (directory to which
    /// deleted and overwritten entries are moved), `compare` (true to compare, and to write
    /// nothing), `publish` (`each`, `snapshot` or `snapshot keep=COUNT`), `metadata` (an object:
    /// `owners` is `names` or `numbers`, `xattrs` is true to take extended attributes).
    #[serde(default)]
    #[schema(value_type = Object)]
    pub rules: DirectoryRules,
    /// True to attach to an equal active transfer of the same submitter instead of starting one. An
    /// active transfer of the same file to the same places with other settings then gives status
    /// 409.
    #[serde(default)]
    pub attach: bool,
}

fn symbol_bytes() -> u32 {
    65_536
}
fn buffer_packets() -> u16 {
    16
}

impl SubmitRequest {
    /// Creates a request with every setting at its default.
    pub fn new(
        source: impl Into<String>,
        source_path: impl Into<String>,
        destinations: Vec<DestinationRequest>,
    ) -> Self {
        Self {
            source: source.into(),
            source_path: source_path.into(),
            destinations,
            avoid_sites: Vec::new(),
            avoid_links: Vec::new(),
            scheme: SchemeChoice::Auto,
            hop: HopRequest::default(),
            hop_overrides: Vec::new(),
            bandwidth_limit: None,
            symbol_bytes: symbol_bytes(),
            buffer_packets: buffer_packets(),
            on_corrupt: CorruptPolicy::Repair,
            fill: false,
            replace: false,
            rules: DirectoryRules::default(),
            attach: false,
        }
    }
}

/// A site that receives the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DestinationRequest {
    /// Name of the site.
    pub site: String,
    /// Path of the file to write.
    pub path: String,
}

/// All links from one site to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkName {
    /// Site at the start of the link.
    pub from: String,
    /// Site at the end of the link.
    pub to: String,
}

/// TCP settings of a hop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HopRequest {
    /// Number of TCP connections.
    pub stripes: u16,
    /// Kernel's name of the congestion control; the machine's default if absent.
    pub congestion_control: Option<String>,
    /// Priority class: interactive, bulk or fill.
    #[schema(value_type = String)]
    pub priority: Priority,
}

impl Default for HopRequest {
    fn default() -> Self {
        Self { stripes: 1, congestion_control: None, priority: Priority::Bulk }
    }
}

/// A link with other TCP settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HopOverrideRequest {
    /// The link.
    pub link: LinkName,
    /// Its TCP settings.
    pub hop: HopRequest,
}

/// Answer to a submission.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubmitReply {
    /// Id of the transfer.
    pub id: u64,
    /// True if the transfer was already active; only with `attach`.
    #[serde(default)]
    pub attached: bool,
}

/// The source's answer about a file that is not sent yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SourceReply {
    /// Length of the file in bytes.
    pub length_bytes: u64,
}

/// An event of a transfer, with sites by name; `event` is its kind.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// Fields of this kind of event, besides `transfer`, `attempt` and `event`.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub event: Event<String>,
    /// Time of the event by the controller's clock, in milliseconds since 1970.
    #[serde(default)]
    pub at_unix_ms: Option<u64>,
}

/// Status of a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TransferView {
    /// Id of the transfer.
    pub id: u64,
    /// Phase: waiting, inquiring, installing, running, finishing or over.
    #[schema(value_type = String)]
    pub phase: PhaseName,
    /// Outcome, once over: done, some_failed, failed, integrity, cancelled,
    /// conflicts or differs.
    #[schema(value_type = Option<String>)]
    pub outcome: Option<Outcome>,
    /// Exit code of the command line, once over: 0 done, 1 failed, 3 some failed or conflicts, 4
    /// integrity or differences, 5 cancelled.
    pub exit_code: Option<u8>,
    /// Site that holds the file.
    pub source: String,
    /// Path of the file at the source.
    pub source_path: String,
    /// Requested scheme.
    #[schema(value_type = String)]
    pub scheme_asked: SchemeChoice,
    /// Scheme of the current or last attempt.
    #[schema(value_type = Option<String>)]
    pub scheme: Option<Scheme>,
    /// TCP settings of hops.
    pub hop: HopRequest,
    /// Limit, plan and bound of the rate.
    #[serde(flatten)]
    pub rates: RatesView,
    /// Attempts so far.
    pub attempts: u32,
    /// Length of the file in bytes, once known.
    pub length_bytes: Option<u64>,
    /// BLAKE3 hash of the file, once known.
    #[schema(value_type = Option<String>)]
    pub hash: Option<FileHash>,
    /// Ids of the transfers planned jointly with this one; none if it was planned as if alone.
    pub planned_with: Vec<u64>,
    /// Number of corrupt generations.
    pub corrupt: u64,
    /// Sites proven to have sent corrupt data.
    pub suspects: Vec<String>,
    /// Congestion controls of the connections, by the kernel's names.
    pub congestion_controls: Vec<String>,
    /// Reason why the last attempt was stopped, if one was.
    pub last_trouble: Option<String>,
    /// Time of acceptance, in milliseconds since 1970; null if unknown.
    #[serde(default)]
    pub began_unix_ms: Option<u64>,
    /// Time of the end, in milliseconds since 1970; null before.
    #[serde(default)]
    pub ended_unix_ms: Option<u64>,
    /// Status of each destination.
    pub destinations: Vec<DestinationView>,
}

/// Rates of a transfer, in bits per second.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RatesView {
    /// Maximum rate of the source over all copies; null without a limit.
    #[serde(default)]
    pub limit_bps: Option<u64>,
    /// Predicted rate.
    pub planned_bps: Option<u64>,
    /// Upper bound on the rate of every scheme.
    pub bound_bps: Option<u64>,
}

/// Status of one destination.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DestinationView {
    /// Name of the site.
    pub site: String,
    /// Path of the file.
    pub path: String,
    /// Verified bytes of the file.
    pub verified_bytes: u64,
    /// Bytes that arrived in this transfer, without bytes of earlier ones.
    #[serde(default)]
    pub moved_bytes: u64,
    /// Mean rate over the last 5 s, in bits per second.
    pub rate_bps: u64,
    /// True while the destination is postponed because it is slow.
    pub postponed: bool,
    /// Reason for waiting for the destination, if any.
    pub away: Option<String>,
    /// Counts of a directory's entries, once it is written: `surplus` (only at this site),
    /// `deleted`, `conflicts`.
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub entries: Option<EntryCounts>,
    /// The first entries that were left, for operators: `cause` (conflict or unsettled) and `path`.
    #[serde(default)]
    #[schema(value_type = Vec<Object>)]
    pub left: Vec<LeftEntry>,
    /// Differences from the source, once compared, for operators: `missing`, `changed`, `renamed`,
    /// `metadata`, `surplus` (only at this site), `content_bytes` (that a transfer would send) and
    /// `named` (the first entries).
    #[serde(default)]
    #[schema(value_type = Option<Object>)]
    pub comparison: Option<Comparison>,
    /// Result: `verdict` is done, failed, unreachable, integrity, conflict or differs, and has a
    /// `reason` unless it is done.
    #[schema(value_type = Option<Object>)]
    pub verdict: Option<Verdict>,
}

/// Remembered transfers, as many as fit a reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TransfersView {
    /// Transfers, oldest first.
    pub transfers: Vec<TransferView>,
    /// True if there are later transfers, which a request with `after` returns.
    #[serde(default)]
    pub more: bool,
}

/// The network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TopologyView {
    /// Name of the network.
    pub name: String,
    /// Sites, by id.
    pub sites: Vec<SiteView>,
    /// Links, by id.
    pub links: Vec<LinkView>,
}

/// A site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SiteView {
    /// Id of the site.
    pub id: u16,
    /// Name of the site.
    pub name: String,
    /// True if the site is registered and responsive.
    pub up: bool,
    /// Latitude in degrees north, if known.
    pub latitude_deg: Option<f64>,
    /// Longitude in degrees east, if known.
    pub longitude_deg: Option<f64>,
}

impl LinkView {
    /// Capacity that plans use, in bits per second.
    pub fn in_plans_bps(&self) -> u64 {
        self.planned_bps.unwrap_or(self.capacity_bps)
    }
}

/// A directed link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinkView {
    /// Id of the link.
    pub id: u32,
    /// Site at the start of the link.
    pub from: String,
    /// Site at the end of the link.
    pub to: String,
    /// Capacity in the controller's topology, in bits per second.
    pub capacity_bps: u64,
    /// Rate that transfers of the last hour measured, in bits per second; null without a
    /// measurement.
    #[serde(default)]
    pub carried_bps: Option<u64>,
    /// True if the link limited its traffic to the measured rate. Otherwise it can carry at least
    /// as much.
    #[serde(default)]
    pub is_limit: bool,
    /// Capacity that plans use, in bits per second: the measured rate where it differs from the
    /// topology's by a factor of two or more. Null means the topology's.
    #[serde(default)]
    pub planned_bps: Option<u64>,
    /// One-way delay in seconds.
    pub delay_s: f64,
    /// Price of a byte.
    pub cost: f64,
}
