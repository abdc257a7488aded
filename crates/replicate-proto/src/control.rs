//! The messages between the controller and the sites: commands to sites, reports to the controller.
//!
//! Every message names its transfer and attempt, so that late messages of an abandoned attempt are
//! recognised and ignored. A transfer runs in *attempts*: each attempt has its own plan and moves
//! the data that is still missing. When a site or a link fails, the next attempt is planned around
//! it.
//!
//! Leaves out: the transport of the messages (the `replicate` room) and the data itself (the `msg`
//! module). Read [`Command`] and [`Report`] first.

use crate::plan::{DecodeMap, FlowId, Mode, Term};
use anabranch_pieces::{Attributes, ByteRange, FileHash};
use anabranch_sets::comparison::{Comparison, NAMED_BYTES_MAX};
use anabranch_sets::deletes::MaxDelete;
use anabranch_sets::filter::Rules;
use anabranch_sets::folding::{Collisions, Folding};
use anabranch_sets::metadata::MetadataRules;
use anabranch_sets::publication::Publication;
use anabranch_units::{BitRate, LinkId, SiteId};
use serde::{Deserialize, Serialize};

/// A transfer: one file from one source to some destinations. A controller never uses an id twice.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TransferId(pub u64);

impl std::fmt::Display for TransferId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Number of an attempt within its transfer, from 1. An attempt moves the data that destinations
/// still lack.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempt(pub u32);

/// Id of one attempt of a transfer. Every message carries the run to which it belongs.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Run {
    /// The transfer.
    pub transfer: TransferId,
    /// The number of the attempt.
    pub attempt: Attempt,
}

impl Run {
    /// Smallest transfer number that marks a question. Real transfers have smaller numbers.
    const QUESTIONS_FROM: u64 = 1 << 63;

    /// The run that identifies a question about a source's file. No transfer has this run. Numbers
    /// of questions repeat after 2^63.
    pub const fn question(number: u64) -> Self {
        Self::of_question(TransferId(number | Self::QUESTIONS_FROM))
    }

    pub(crate) const fn of_question(id: TransferId) -> Self {
        Self { transfer: id, attempt: Attempt(0) }
    }

    /// Whether the id belongs to a question and not to a transfer.
    pub const fn is_question(&self) -> bool {
        self.transfer.0 >= Self::QUESTIONS_FROM
    }
}

/// A message from the controller to a site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "command")]
#[non_exhaustive]
pub enum Command {
    /// Requests the site's inventory of a file: at the source the file's length and whether it can
    /// be read, at a destination the existing verified ranges. Answered by [`Report::Inventory`] or
    /// [`Report::Failed`].
    Inquire {
        /// The attempt that is about to be planned.
        run: Run,
        /// Whether the site is the source.
        is_source: bool,
        /// The file at the site.
        path: String,
        /// The submitter of the transfer; destinations have rules about submitters.
        submitter: Submitter,
        /// Rules of a directory.
        #[serde(default, skip_serializing_if = "DirectoryRules::is_open")]
        rules: DirectoryRules,
    },
    /// Sets up the virtual links of an attempt. Answered by [`Report::Ready`] or
    /// [`Report::Failed`]. The source sends its first bytes as soon as its own links are connected,
    /// without waiting for the other sites. Bounded buffers hold the data until the next site is
    /// ready.
    Install {
        /// Everything that this site does in the attempt.
        program: Box<SiteProgram>,
    },
    /// Removes the virtual links of the attempt. Destinations keep their verified data.
    Uninstall {
        /// The attempt.
        run: Run,
    },
    /// Tells a destination to check the whole file, sync it and give it its name once its sinks are
    /// done, if the attempt is still installed. The controller announces the hash early, so that no
    /// destination waits for the hash at the end. Answered by [`Report::Completed`],
    /// [`Report::SinkDone`] (with the ranges that are missing or wrong) or [`Report::Failed`].
    Finish(Finish),
    /// Tells the source to read the whole file and report its hash. Sent when a destination has
    /// every byte, or a finished file of the same length, and no hash has been reported yet.
    /// Answered by [`Report::Hashed`] or [`Report::Failed`].
    Hash {
        /// The attempt or inquiry that needs the hash.
        run: Run,
        /// The file at the source.
        path: String,
    },
    /// Requests the digests of a generation's symbols that this site received and sent, as far as
    /// they are still available. Sent after a sink decoded a wrong generation. Answered by
    /// [`Report::Audit`].
    Audit {
        /// The attempt.
        run: Run,
        /// The group.
        group: u16,
        /// The generation (coded) or the number of the chunk (routed).
        generation: u64,
        /// For every flow of the group, the sum of streams that the flow should carry. The source
        /// computes the digests from the file. Empty for other sites, routed groups and groups with
        /// delayed terms.
        vectors: Vec<FlowVector>,
    },
    /// Tells the site to forget a transfer that was abandoned or has ended. A partial file is kept
    /// for a later transfer of the same path.
    Forget {
        /// The transfer.
        transfer: TransferId,
    },
}

/// A file to be checked and named; see [`Command::Finish`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finish {
    /// The attempt.
    pub run: Run,
    /// The file's name at the site.
    pub path: String,
    /// The file's length in bytes.
    pub length: u64,
    /// BLAKE3 of the whole file, as the source read it.
    pub hash: FileHash,
    /// The file's attributes at the source.
    #[serde(default)]
    pub attributes: Option<Attributes>,
    /// Whether the file may replace another file of the same name.
    #[serde(default)]
    pub replace: bool,
    /// Rules of a directory.
    #[serde(default, skip_serializing_if = "DirectoryRules::is_open")]
    pub rules: DirectoryRules,
    /// Of a directory: number of its source, by which a destination knows entries of earlier
    /// transfers.
    #[serde(default)]
    pub origin: u64,
    /// Of a directory: ranges of the stream whose files changed at the source before they were
    /// sent.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unsettled: Vec<ByteRange>,
}

/// Rules of a directory's transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct DirectoryRules {
    /// The entries of the source that are sent. Destinations leave other entries unchanged.
    #[serde(skip_serializing_if = "Rules::is_open")]
    pub filter: Rules,
    /// Limit of the entries to delete at each destination, because the source lacks them; `None` to
    /// delete nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub delete: Option<MaxDelete>,
    /// Directory at each destination to which deleted and overwritten entries are moved.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backup: Option<String>,
    /// Whether destinations compare their directory with the source's instead of writing it. Only
    /// the manifest is sent.
    #[serde(skip_serializing_if = "is_false")]
    pub compare: bool,
    /// How entries get their names at the destinations.
    #[serde(skip_serializing_if = "Publication::is_each")]
    pub publish: Publication,
    /// Metadata that is sent beside modes and times.
    #[serde(skip_serializing_if = "MetadataRules::is_none")]
    pub metadata: MetadataRules,
}

impl DirectoryRules {
    /// Returns true if all entries are sent with modes and times only, each one gets its own name,
    /// and nothing is deleted or moved.
    pub fn is_open(&self) -> bool {
        self.filter.is_open()
            && self.delete.is_none()
            && self.backup.is_none()
            && !self.compare
            && self.publish.is_each()
            && self.metadata.is_none()
    }

    /// Bytes of all texts.
    pub fn bytes(&self) -> usize {
        self.filter.bytes() + self.backup.as_ref().map_or(0, String::len)
    }
}

/// Entries of a directory at a destination, after a transfer wrote it.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct EntryCounts {
    /// Entries that the source lacks and that stayed; `None` if the filter looks at more than
    /// paths, so that the destination cannot tell.
    pub surplus: Option<u64>,
    /// Entries that were deleted, or moved to the backup, because the source lacks them.
    pub deleted: u64,
    /// Entries that were left because another program changed them.
    pub conflicts: u64,
    /// Files that were left because they changed at the source before they were sent.
    #[serde(default)]
    pub unsettled: u64,
}

/// Cause for which an entry of a directory was left.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum LeftCause {
    /// Another program changed the entry at the destination.
    Conflict,
    /// The entry changed at the source after the scan.
    Unsettled,
}

impl LeftCause {
    /// The cause as one word.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Conflict => "conflict",
            Self::Unsettled => "unsettled",
        }
    }
}

/// An entry of a directory that was left at a destination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftEntry {
    /// Cause.
    pub cause: LeftCause,
    /// Path at the destination. Bytes that are not printable text are escaped.
    pub path: String,
}

/// Maximum number of entries that a report names as left: 100 for each cause.
pub const LEFT_MAX: usize = 200;

/// Drops entries above [`LEFT_MAX`], and above [`NAMED_BYTES_MAX`] bytes of paths.
pub fn bound_left(left: &mut Vec<LeftEntry>) {
    left.truncate(LEFT_MAX);
    let mut bytes = 0;
    let fits = left.iter().take_while(|entry| {
        bytes += entry.path.len();
        bytes <= NAMED_BYTES_MAX
    });
    let fits = fits.count();
    left.truncate(fits);
    left.shrink_to(LEFT_MAX);
}

/// Entries of a source's directory that changed during the transfer.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Unsettled {
    /// Ranges of the stream whose files changed after the scan. Zeros stand for their bytes.
    pub ranges: Vec<ByteRange>,
    /// Line about entries that the manifest lacks, because they went on changing during the scan.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left_out: Option<String>,
}

impl Unsettled {
    /// Returns true if all entries are sent.
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty() && self.left_out.is_none()
    }
}

/// Names of a directory that a file system may take for equal.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FoldedNames {
    /// At a destination: differences between names that its file system ignores.
    pub folding: Folding,
    /// At the source: entries whose names are equal under a folding.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub collisions: Vec<Collisions>,
}

impl FoldedNames {
    /// Returns true if all names are different.
    pub fn is_empty(&self) -> bool {
        self.folding.is_none() && self.collisions.is_empty()
    }
}

/// Everything that one site does in one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteProgram {
    /// The attempt.
    pub run: Run,
    /// This site.
    pub site: SiteId,
    /// Length of the whole file in bytes.
    pub length: u64,
    /// Of a directory: id of the snapshot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub snapshot: Option<FileHash>,
    /// Length of a symbol in bytes: the data that one packet of one flow carries.
    pub symbol_bytes: u32,
    /// Capacity of each virtual buffer (vRx, vTx) in packets, at least 1.
    pub buffer_packets: u16,
    /// Division of each group's data, by group index.
    pub groups: Vec<GroupProgram>,
    /// The file to read; set only at the source.
    pub source_path: Option<String>,
    /// Flows that arrive at this site.
    pub incoming: Vec<IncomingSpec>,
    /// Flows that leave this site, one virtual link each.
    pub outgoing: Vec<OutgoingSpec>,
    /// Groups that end at this site, with the file to write.
    pub sinks: Vec<SinkProgram>,
    /// Whether to store an entire incoming flow before passing it on.
    pub store_and_forward: bool,
    /// Maximum rate of the source for this file, if the user set one.
    pub bandwidth_limit: Option<BitRate>,
    /// The submitter of the transfer.
    #[serde(default)]
    pub submitter: Submitter,
}

/// The submitter of a transfer. Scarce resources (slots, memory) are shared by submitter.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Submitter {
    /// An operator.
    #[default]
    Operator,
    /// The site that is the source.
    Site(SiteId),
}

/// Division of the data of one group of destinations ([`crate::plan::Group`]). All its sites use
/// the same division.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupProgram {
    /// Number of streams.
    pub streams: u16,
    /// Maximum rate of each stream at the source, by stream; `None` for no limit. Empty if no
    /// stream has a limit.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ceilings: Vec<Option<BitRate>>,
    /// Whether the streams are mixed.
    pub mode: Mode,
    /// The ranges of the file that this attempt carries, ascending and disjoint. Generations are
    /// numbered through these ranges as if they were contiguous.
    pub work: Vec<ByteRange>,
    /// Number of generations of zeros that the source appends: the largest lookahead of a sink.
    pub flush: u16,
    /// The group that this group fills. A filling group carries the same data, starting from the
    /// end of the work (Figure 6). It is routed, each of its flows has one connection, and no other
    /// flow waits for its data. `None` for a group that fills no other.
    #[serde(default)]
    pub fills: Option<u16>,
    /// Whether every destination of this group also has a group that fills it. The source then
    /// stops where the filled and the filling group meet, not at the end of the work.
    #[serde(default)]
    pub filled: bool,
}

/// An incoming flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct IncomingSpec {
    /// The flow.
    pub flow: FlowId,
    /// The flow's group.
    pub group: u16,
    /// The sending site.
    pub from: SiteId,
    /// Name in the sender's certificate.
    pub from_name: String,
    /// The link over which the flow arrives.
    pub link: LinkId,
    /// Number of TCP connections of the flow, at least 1.
    pub stripes: u16,
}

/// An outgoing flow.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OutgoingSpec {
    /// The flow.
    pub flow: FlowId,
    /// The flow's group.
    pub group: u16,
    /// The receiving site.
    pub to: SiteId,
    /// Name in the receiver's certificate.
    pub to_name: String,
    /// The link over which the flow leaves.
    pub link: LinkId,
    /// Address (`host:port`) at which the receiver listens for data on this link.
    pub address: String,
    /// The terms of the flow.
    pub terms: Vec<Term>,
    /// Settings of the hop.
    pub hop: HopSettings,
    /// Maximum padding in bytes that the site sends while the flow has no data ready, so that the
    /// hop shows its link's capacity. 0 for most flows.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub padding_bytes: u64,
}

fn is_zero(bytes: &u64) -> bool {
    *bytes == 0
}

fn is_false(value: &bool) -> bool {
    !value
}

/// TCP settings of one hop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopSettings {
    /// Number of TCP connections, at least 1.
    pub stripes: u16,
    /// Congestion control by the kernel's name; `None` uses the machine's default (which is then
    /// reported).
    pub congestion_control: Option<String>,
    /// Priority class.
    pub priority: Priority,
}

/// Traffic classes (CodedBulk section 3.2), marked with DSCP for the network.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Interactive traffic (here: control messages), with the highest priority. DSCP EF (46).
    Interactive,
    /// Coded flows, and uncoded flows on which a plan relies. DSCP AF11 (10).
    Bulk,
    /// Uncoded data that fills the remaining capacity (Figure 6), with the lowest priority. DSCP LE
    /// (1, RFC 8622).
    Fill,
}

/// A destination's part of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SinkProgram {
    /// The group.
    pub group: u16,
    /// Input flows, as in [`crate::plan::Sink::inputs`].
    pub inputs: Vec<FlowId>,
    /// Computation of the streams from the inputs; `None` for a routed group.
    pub decode: Option<DecodeMap>,
    /// The file to write.
    pub path: String,
}

/// The symbol that a flow of a coded group should carry: the sum of `coefficients[i]` times stream
/// `i`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowVector {
    /// The flow.
    pub flow: FlowId,
    /// One coefficient for each stream of the group, over GF(2^8) with polynomial 0x11D.
    pub coefficients: Vec<u8>,
}

/// Digest of one flow's symbol (coded) or chunk (routed) in the audited generation.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowDigest {
    /// The flow.
    pub flow: FlowId,
    /// End of the flow at which the digest was taken.
    pub side: FlowSide,
    /// XXH3 (64 bits, seed 0) of the payload.
    pub digest: u64,
}

/// Place where a digest was taken.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowSide {
    /// Computed by the source from the file, for a flow named in [`Command::Audit`]'s `vectors`.
    Expected,
    /// Data passed to TCP at the flow's first site.
    Sent,
    /// Data received from TCP at the flow's last site.
    Received,
}

/// Data of a file or a directory at one site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// The attempt.
    pub run: Run,
    /// Source: length of the file, or of a directory's stream. Destination: length of the
    /// finished file, or of the stream that its directory has, if it exists.
    pub length: Option<u64>,
    /// Destination: existing and verified ranges.
    pub have: Vec<ByteRange>,
    /// BLAKE3 of the finished file at a destination, if it already exists; at the source, if it
    /// is known without reading the file again. Of a directory: the id of its snapshot.
    pub hash: Option<FileHash>,
    /// Attributes of the file at the source, or of the finished file.
    #[serde(default)]
    pub attributes: Option<Attributes>,
    /// At a destination of a directory: id of the snapshot to which `have` belongs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arriving: Option<FileHash>,
    /// At the source of a directory: bytes at the beginning of its stream from which a
    /// destination learns which of the other bytes it has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub head_bytes: Option<u64>,
    /// At the source of a directory: entries that it cannot send.
    #[serde(default, skip_serializing_if = "Unsettled::is_empty")]
    pub unsettled: Unsettled,
    /// Of a directory: names that a destination may not keep apart.
    #[serde(default, skip_serializing_if = "FoldedNames::is_empty")]
    pub names: FoldedNames,
}

impl Inventory {
    /// An inventory of nothing.
    pub fn new(run: Run) -> Self {
        Self {
            run,
            length: None,
            have: Vec::new(),
            hash: None,
            attributes: None,
            arriving: None,
            head_bytes: None,
            unsettled: Unsettled::default(),
            names: FoldedNames::default(),
        }
    }
}

/// A message from a site to the controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "report")]
#[non_exhaustive]
pub enum Report {
    /// Answer to [`Command::Inquire`].
    Inventory(Inventory),
    /// This site's part of the attempt is set up.
    Ready {
        /// The attempt.
        run: Run,
    },
    /// Progress, sent about twice per second.
    Progress {
        /// The attempt.
        run: Run,
        /// Bytes of the file that this sink has verified since the attempt began; 0 at a site
        /// without a sink.
        verified_bytes: u64,
        /// Fraction of the time, 0 to 1, in which the sink's disk delayed the flows.
        sink_stalled: f64,
        /// Progress of each outgoing flow.
        flows: Vec<FlowProgress>,
        /// Progress of each incoming flow.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        arrivals: Vec<FlowArrival>,
    },
    /// The source has read and sent all of the attempt's work.
    SourceDone {
        /// The attempt.
        run: Run,
        /// BLAKE3 of the whole file, if this attempt read all of it or the source knows it from an
        /// earlier attempt.
        hash: Option<FileHash>,
    },
    /// Answer to [`Command::Hash`].
    Hashed {
        /// The attempt.
        run: Run,
        /// BLAKE3 of the whole file.
        hash: FileHash,
    },
    /// A sink has reached the end of all its flows.
    SinkDone {
        /// The attempt.
        run: Run,
        /// Verified ranges of the whole file.
        have: Vec<ByteRange>,
    },
    /// A sink decoded a generation with a wrong hash.
    Corrupt {
        /// The attempt.
        run: Run,
        /// The group.
        group: u16,
        /// The generation.
        generation: u64,
    },
    /// Answer to [`Command::Audit`]. Flows whose digest is no longer known, or that did not carry
    /// the chunk, are left out.
    Audit {
        /// The attempt.
        run: Run,
        /// The group.
        group: u16,
        /// The generation or chunk.
        generation: u64,
        /// One digest for each known flow and side.
        digests: Vec<FlowDigest>,
    },
    /// Answer to [`Command::Finish`]: the file is complete, verified, synced and named.
    Completed {
        /// The attempt.
        run: Run,
    },
    /// Answer to [`Command::Finish`] about a directory: its entries are written, and
    /// [`EntryCounts::conflicts`] of them were left.
    Written {
        /// The attempt.
        run: Run,
        /// Counts of the entries.
        entries: EntryCounts,
        /// Line about the entries that were left, if any.
        #[serde(default)]
        conflicts: Option<String>,
        /// The first entries that were left.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        left: Vec<LeftEntry>,
    },
    /// Answer to [`Command::Finish`] with [`DirectoryRules::compare`]: nothing was written.
    Compared {
        /// The attempt.
        run: Run,
        /// Differences of the directory here from the source's.
        comparison: Comparison,
    },
    /// The connection of a flow to or from `peer` broke, or could not be made in time.
    HopFailed {
        /// The attempt.
        run: Run,
        /// The flow.
        flow: FlowId,
        /// The site at the other end of the flow.
        peer: SiteId,
        /// Whether the connection was never made because `peer` could not be reached. Only the
        /// flow's first site reports this.
        #[serde(default)]
        unconnected: bool,
        /// Short description of the failure.
        reason: String,
    },
    /// The site cannot do its part of the attempt.
    Failed {
        /// The attempt.
        run: Run,
        /// Kind of failure.
        kind: FailureKind,
        /// Reason, in one line of text: problem, value, limit, place, remedy.
        reason: String,
    },
}

/// Kind of reason why a site cannot do its part.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureKind {
    /// The source's file cannot be read, or changed while it was read.
    Unreadable,
    /// The destination's file cannot be written: no space, no permission, read-only.
    Unwritable,
    /// The program needs more memory than the site can ever provide for it, or contradicts itself.
    Refused,
    /// Temporary: other transfers hold the needed memory or descriptors, and will return them.
    Busy,
}

/// Counters of a flow at its sending end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowProgress {
    /// The flow.
    pub flow: FlowId,
    /// Payload bytes passed to TCP since the attempt began.
    pub sent_bytes: u64,
    /// Fraction of the time, 0 to 1, in which a packet was ready and TCP did not accept it: the
    /// network was the limit.
    pub blocked: f64,
    /// Congestion control of the flow's connections, by the kernel's name, if a connection exists.
    pub congestion_control: Option<String>,
}

/// Counters of a flow at its receiving end.
#[derive(Copy, Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowArrival {
    /// The flow.
    pub flow: FlowId,
    /// Bytes of symbols and padding received since the attempt began.
    pub received_bytes: u64,
    /// Time since the attempt began at this site, in seconds.
    pub elapsed_s: f64,
    /// Part of `elapsed_s` in which a packet waited for room in the site's buffers. The network was
    /// not the limit then.
    pub waited_s: f64,
}
