//! The JSON that crosses the controller's HTTP interface, sites and links by name.
//!
//! Leaves out: commands and reports, which are `replicate_proto::control`'s own. Read [`SubmitRequest`] and [`TransferView`]
//! first.

use anabranch_pieces::FileHash;
use anabranch_replicate_proto::control::{Command, Priority, Report};
use anabranch_replicate_proto::coordinator::{
    CorruptPolicy, Event, Outcome, PhaseName, SchemeChoice, Verdict,
};
use anabranch_replicate_proto::plan::Scheme;
use anabranch_units::{BitRate, LinkId, fnv1a};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

pub use anabranch_http::answer::{ErrorBody, HealthView};

/// A site says that it is there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegisterRequest {
    /// Chosen at random when the site's process starts.
    pub session: u64,
    /// Where it listens for data, for each link that ends there.
    pub addresses: Vec<LinkAddress>,
    /// The network as the site knows it.
    #[serde(default)]
    pub topology: Option<TopologyDigest>,
    /// Whether to take the place of another process of the site that is there.
    #[serde(default)]
    pub take_over: bool,
}

impl RegisterRequest {
    /// A process that knows what the controller knows, and takes nobody's place.
    pub fn new(session: u64, addresses: Vec<LinkAddress>) -> Self {
        Self { session, addresses, topology: None, take_over: false }
    }
}

/// By which two processes see whether they know the same network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TopologyDigest {
    /// Of the sites' names and the links' ends, in order: what ids mean.
    pub names: u64,
    /// Of the links' rates, delays and costs, too.
    pub whole: u64,
}

impl TopologyDigest {
    /// Of a topology.
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

/// Where data of one link is taken in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LinkAddress {
    /// The link's id.
    #[schema(value_type = u32)]
    pub link: LinkId,
    /// `host:port`.
    pub address: String,
}

/// The controller has taken note.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RegisterReply {
    /// The number after which commands are delivered next.
    pub after: u64,
    /// Tells one numbering of commands from another: numbers begin anew where this changes.
    pub queue: u64,
    /// The site's id in the topology.
    pub site: u16,
    /// What is odd about the site, in one line for its operator.
    #[serde(default)]
    pub warning: Option<String>,
}

/// Commands for one site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct CommandsReply {
    /// In the order in which they must be carried out; none if there was nothing to do in time.
    pub commands: Vec<NumberedCommand>,
}

/// A command and its number, counted from 1 in a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct NumberedCommand {
    /// The number to acknowledge with `after`.
    pub number: u64,
    /// What to do.
    #[schema(value_type = Object)]
    pub command: Command,
}

/// What a site has to say.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ReportsRequest {
    /// The site's session.
    pub session: u64,
    /// Counted from 1 in a session; a batch that comes twice counts once.
    pub batch: u64,
    /// In order.
    #[schema(value_type = Vec<Object>)]
    pub reports: Vec<Report>,
}

/// A transfer to be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SubmitRequest {
    /// The site that holds the file.
    pub source: String,
    /// The file there.
    pub source_path: String,
    /// Who wants it.
    pub destinations: Vec<DestinationRequest>,
    /// Sites that must not relay.
    #[serde(default)]
    pub avoid_sites: Vec<String>,
    /// Links that must not be used.
    #[serde(default)]
    pub avoid_links: Vec<LinkName>,
    /// How to plan: auto, coded, packed, steiner, steiner_store_and_forward, steiner_one_tree, multi_path or
    /// single_path.
    #[serde(default)]
    #[schema(value_type = String)]
    pub scheme: SchemeChoice,
    /// How hops are run.
    #[serde(default)]
    pub hop: HopRequest,
    /// Hops that are run differently.
    #[serde(default)]
    pub hop_overrides: Vec<HopOverrideRequest>,
    /// Ceiling on what the source sends, as in `20 Mbit/s`.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub bandwidth_limit: Option<BitRate>,
    /// Bytes of a symbol.
    #[serde(default = "symbol_bytes")]
    pub symbol_bytes: u32,
    /// Packets that each virtual buffer holds.
    #[serde(default = "buffer_packets")]
    pub buffer_packets: u16,
    /// What to do about data that arrives wrong: repair or refuse.
    #[serde(default)]
    #[schema(value_type = String)]
    pub on_corrupt: CorruptPolicy,
    /// Whether uncoded data of the lowest priority fills what the plan's flows leave of the links.
    #[serde(default)]
    pub fill: bool,
    /// Whether it may take the place of other files of its names at the destinations.
    #[serde(default)]
    pub replace: bool,
    /// Whether a transfer of the same submitter that is under way and does the same is answered instead of a new one. One that
    /// brings the same file to the same places by other settings is refused with 409 then.
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
    /// A transfer with every setting at its default.
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
            attach: false,
        }
    }
}

/// A site that wants the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DestinationRequest {
    /// The site.
    pub site: String,
    /// The file to write there.
    pub path: String,
}

/// All links from one site to another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LinkName {
    /// Where it begins.
    pub from: String,
    /// Where it ends.
    pub to: String,
}

/// How a hop's TCP is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields, default)]
pub struct HopRequest {
    /// TCP connections to stripe over.
    pub stripes: u16,
    /// By the kernel's name; the machine's default if left out.
    pub congestion_control: Option<String>,
    /// interactive, bulk or fill.
    #[schema(value_type = String)]
    pub priority: Priority,
}

impl Default for HopRequest {
    fn default() -> Self {
        Self { stripes: 1, congestion_control: None, priority: Priority::Bulk }
    }
}

/// A link that is run differently.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct HopOverrideRequest {
    /// The link.
    pub link: LinkName,
    /// How it is run.
    pub hop: HopRequest,
}

/// A transfer was taken on, or is under way already.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SubmitReply {
    /// Its id.
    pub id: u64,
    /// Whether it was under way already; only where that was asked for.
    #[serde(default)]
    pub attached: bool,
}

/// What the source says of a file that is not sent yet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct SourceReply {
    /// Its length.
    pub length_bytes: u64,
}

/// What happened to a transfer, sites by name; `event` says what.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// Besides `transfer`, `attempt` and `event`: what belongs to that event.
    #[serde(flatten)]
    #[schema(value_type = Object)]
    pub event: Event<String>,
    /// When, by the controller's clock, in milliseconds since 1970.
    #[serde(default)]
    pub at_unix_ms: Option<u64>,
}

/// How a transfer stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TransferView {
    /// Its id.
    pub id: u64,
    /// waiting, inquiring, installing, running, finishing or over.
    #[schema(value_type = String)]
    pub phase: PhaseName,
    /// done, some_failed, failed, integrity or cancelled, once it is over.
    #[schema(value_type = Option<String>)]
    pub outcome: Option<Outcome>,
    /// The command line's exit code, once it is over: 0 done, 1 failed, 3 some failed, 4 integrity, 5 cancelled.
    pub exit_code: Option<u8>,
    /// The site that holds the file.
    pub source: String,
    /// The file there.
    pub source_path: String,
    /// How it was asked to be planned.
    #[schema(value_type = String)]
    pub scheme_asked: SchemeChoice,
    /// How the present or last attempt was planned.
    #[schema(value_type = Option<String>)]
    pub scheme: Option<Scheme>,
    /// How hops are run.
    pub hop: HopRequest,
    /// Attempts so far.
    pub attempts: u32,
    /// Length of the file, once known.
    pub length_bytes: Option<u64>,
    /// BLAKE3 of the file, once known.
    #[schema(value_type = Option<String>)]
    pub hash: Option<FileHash>,
    /// Predicted rate in bit/s.
    pub planned_bps: Option<u64>,
    /// What no scheme can exceed, in bit/s.
    pub bound_bps: Option<u64>,
    /// The transfers that it was planned together with, by id; none if it was planned as if alone.
    pub planned_with: Vec<u64>,
    /// Generations that arrived wrong.
    pub corrupt: u64,
    /// Sites that were proven to have sent something wrong.
    pub suspects: Vec<String>,
    /// The congestion controls that its connections ran on, by the kernel's names.
    pub congestion_controls: Vec<String>,
    /// Why the last attempt was stopped, if one was.
    pub last_trouble: Option<String>,
    /// When it was accepted, in milliseconds since 1970; null if that is not known.
    #[serde(default)]
    pub began_unix_ms: Option<u64>,
    /// When it was over, in milliseconds since 1970; null before.
    #[serde(default)]
    pub ended_unix_ms: Option<u64>,
    /// One for each destination.
    pub destinations: Vec<DestinationView>,
}

/// How one destination stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct DestinationView {
    /// The site.
    pub site: String,
    /// The file there.
    pub path: String,
    /// Bytes of the file that are there and verified.
    pub verified_bytes: u64,
    /// Over the last seconds, bit/s.
    pub rate_bps: u64,
    /// True while it is left for later because it is slow.
    pub postponed: bool,
    /// Why it is waited for, if it is.
    pub away: Option<String>,
    /// How it ended: `verdict` is done, failed, unreachable or integrity, with a `reason` unless done.
    #[schema(value_type = Option<Object>)]
    pub verdict: Option<Verdict>,
}

/// Transfers that are remembered, as many as fit a reply.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TransfersView {
    /// Oldest first.
    pub transfers: Vec<TransferView>,
    /// Whether there are later ones, to be asked for with `after`.
    #[serde(default)]
    pub more: bool,
}

/// The network.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct TopologyView {
    /// Its name.
    pub name: String,
    /// By id.
    pub sites: Vec<SiteView>,
    /// By id.
    pub links: Vec<LinkView>,
}

/// A site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct SiteView {
    /// Its id.
    pub id: u16,
    /// Its name.
    pub name: String,
    /// Whether it is registered and answers.
    pub up: bool,
    /// Degrees north, if known.
    pub latitude_deg: Option<f64>,
    /// Degrees east, if known.
    pub longitude_deg: Option<f64>,
}

/// A directed link.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct LinkView {
    /// Its id.
    pub id: u32,
    /// Where it begins.
    pub from: String,
    /// Where it ends.
    pub to: String,
    /// Capacity in bit/s.
    pub capacity_bps: u64,
    /// One-way delay in seconds.
    pub delay_s: f64,
    /// Price of a byte.
    pub cost: f64,
}
