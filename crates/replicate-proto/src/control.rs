//! The messages between the controller and the sites: commands down, reports up.
//!
//! Every message names its transfer and attempt, so that a late one from an attempt that was given up is recognised and
//! ignored. A transfer runs in *attempts*: each attempt has a plan of its own and moves the data that is still missing; when
//! a site or a link breaks, the next attempt is planned around it.
//!
//! Leaves out: how the messages travel (the `replicate` room) and the data itself (the `msg` module). Read [`Command`] and
//! [`Report`] first.

use crate::plan::{Decode, FlowId, Mode, Term};
use anabranch_pieces::{Attributes, ByteRange, FileHash};
use anabranch_units::{BitRate, LinkId, SiteId};
use serde::{Deserialize, Serialize};

/// A transfer: one file from one source to some destinations. Never used twice by a controller.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct TransferId(pub u64);

impl std::fmt::Display for TransferId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One try at the data that is still missing of a transfer, counted from 1.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Attempt(pub u32);

/// A transfer's attempt: what every message is about.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Run {
    /// The transfer.
    pub transfer: TransferId,
    /// Its attempt.
    pub attempt: Attempt,
}

impl Run {
    /// The numbers of questions are above those of transfers.
    const QUESTIONS_FROM: u64 = 1 << 63;

    /// What a question about a source's file has in place of a transfer: it is none of a transfer's attempts. Numbers of
    /// questions repeat after 2^63.
    pub const fn question(number: u64) -> Self {
        Self::of_question(TransferId(number | Self::QUESTIONS_FROM))
    }

    pub(crate) const fn of_question(id: TransferId) -> Self {
        Self { transfer: id, attempt: Attempt(0) }
    }

    /// Whether it is a question's: of no transfer.
    pub const fn is_question(&self) -> bool {
        self.transfer.0 >= Self::QUESTIONS_FROM
    }
}

/// From the controller to a site.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "command")]
#[non_exhaustive]
pub enum Command {
    /// Send the site's inventory of a file: at the source its length and whether it can be read, at a destination the
    /// ranges that are there and verified. Answered by [`Report::Inventory`] or [`Report::Failed`].
    Inquire {
        /// Which attempt asks (the attempt about to be planned).
        run: Run,
        /// Whether the site is the source.
        is_source: bool,
        /// The file at the site.
        path: String,
        /// Who asked for the transfer: a destination has rules about that.
        submitter: Submitter,
    },
    /// Set up the virtual links of an attempt. Answered by [`Report::Ready`] or [`Report::Failed`]. The source does not
    /// wait for the others (a bounded buffer does): its first bytes leave as soon as its own links stand.
    Install {
        /// Everything this site does in the attempt.
        program: Box<SiteProgram>,
    },
    /// Drop the attempt's virtual links. Destinations keep what they have verified.
    Uninstall {
        /// The attempt.
        run: Run,
    },
    /// To a destination: check the whole file, sync it and give it its name; once its sinks are done, if the attempt still
    /// runs there (the hash is told ahead, so that nobody waits for it at the end). Answered by [`Report::Completed`],
    /// [`Report::SinkDone`] (with what is missing or turned out wrong) or [`Report::Failed`].
    Finish(Finish),
    /// To the source: read the whole file and say its hash. Sent when a destination has every byte, or a
    /// finished file of the same length, and nobody has told the hash yet. Answered by [`Report::Hashed`] or [`Report::Failed`].
    Hash {
        /// The attempt, or the inquiry, that needs it.
        run: Run,
        /// The file at the source.
        path: String,
    },
    /// A sink decoded a wrong generation: say the digests of what this site received and sent of it, as far as it
    /// still has them. Answered by [`Report::Audit`].
    Audit {
        /// The attempt.
        run: Run,
        /// The group.
        group: u16,
        /// The generation (coded) or the number of the chunk (routed).
        generation: u64,
        /// Only to the source of a coded group without delayed terms, else empty: for every flow of the group the sum of
        /// streams that it ought to carry. The source works out the digests from the file.
        vectors: Vec<FlowVector>,
    },
    /// The transfer was given up or is over: forget it. A partial file stays for a later transfer of the same path.
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
    /// Its length in bytes.
    pub length: u64,
    /// BLAKE3 of the whole file, as the source read it.
    pub hash: FileHash,
    /// The file's attributes at the source.
    #[serde(default)]
    pub attributes: Option<Attributes>,
    /// Whether it may take the place of another file of that name.
    #[serde(default)]
    pub replace: bool,
}

/// Everything that one site does in one attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SiteProgram {
    /// The attempt.
    pub run: Run,
    /// The site itself.
    pub site: SiteId,
    /// Length of the whole file in bytes.
    pub length: u64,
    /// Bytes of a symbol: what one packet of one flow carries.
    pub symbol_bytes: u32,
    /// Packets that each virtual buffer (vRx, vTx) holds, at least 1.
    pub buffer_packets: u16,
    /// How each group's data is split, by index.
    pub groups: Vec<GroupProgram>,
    /// Set at the source: the file to read.
    pub source_path: Option<String>,
    /// Flows that arrive here.
    pub incoming: Vec<Incoming>,
    /// Flows that leave from here, one virtual link each.
    pub outgoing: Vec<Outgoing>,
    /// Groups that end here, with the file to write.
    pub sinks: Vec<SinkProgram>,
    /// Store all of an incoming flow before passing it on.
    pub store_and_forward: bool,
    /// Ceiling on the source's rate for this file, if the user set one.
    pub bandwidth_limit: Option<BitRate>,
    /// The submitter of the transfer.
    #[serde(default)]
    pub submitter: Submitter,
}

/// The submitter of a transfer, by which scarce things (places, memory) are shared.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Submitter {
    /// An operator.
    #[default]
    Operator,
    /// The site, which is the source.
    Site(SiteId),
}

/// How one group's data is split, as all its sites must know it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct GroupProgram {
    /// Number of streams.
    pub streams: u16,
    /// The rate that the source holds each stream to, by stream; `None` where it does not. Empty where it holds none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub ceilings: Vec<Option<BitRate>>,
    /// Whether they are mixed.
    pub mode: Mode,
    /// The ranges of the file that this attempt carries, ascending and disjoint. Generations count through them as if
    /// they were one piece.
    pub work: Vec<ByteRange>,
    /// Generations of zeros that the source appends (the largest lookahead of a sink).
    pub flush: u16,
    /// The group whose data this one carries too, from the end of the same work on (Figure 6). Such a group is routed, each
    /// of its flows has one connection, and nothing waits for it.
    #[serde(default)]
    pub fills: Option<u16>,
    /// Every destination of the group has another one that fills it: the source ends where the two have met, not after
    /// all of the work.
    #[serde(default)]
    pub filled: bool,
}

/// A flow that arrives.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Incoming {
    /// The flow.
    pub flow: FlowId,
    /// Its group.
    pub group: u16,
    /// The sending site.
    pub from: SiteId,
    /// The name in the sender's certificate.
    pub from_name: String,
    /// The link that it comes over.
    pub link: LinkId,
    /// TCP connections that it is striped over, at least 1.
    pub stripes: u16,
}

/// A flow that leaves.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Outgoing {
    /// The flow.
    pub flow: FlowId,
    /// Its group.
    pub group: u16,
    /// The receiving site.
    pub to: SiteId,
    /// The name in the receiver's certificate.
    pub to_name: String,
    /// The link that it goes over.
    pub link: LinkId,
    /// Where the receiver listens for data on this link, `host:port`.
    pub address: String,
    /// The terms that it carries.
    pub terms: Vec<Term>,
    /// How the hop is run.
    pub hop: HopSettings,
}

/// How one hop's TCP is run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopSettings {
    /// TCP connections to stripe over, at least 1.
    pub stripes: u16,
    /// Congestion control by the kernel's name; `None` takes the machine's default (which is then reported).
    pub congestion_control: Option<String>,
    /// Priority class.
    pub priority: Priority,
}

/// Traffic classes (section 3.2), told to the network by DSCP.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Priority {
    /// Interactive traffic, ours being control messages: highest. DSCP EF (46).
    Interactive,
    /// Coded flows, and uncoded ones that a plan counts on. DSCP AF11 (10).
    Bulk,
    /// Uncoded data that fills capacity that the others leave (Figure 6): lowest. DSCP LE (1, RFC 8622).
    Fill,
}

/// A destination's part of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct SinkProgram {
    /// The group.
    pub group: u16,
    /// Flows taken in, as in [`crate::plan::Sink::inputs`].
    pub inputs: Vec<FlowId>,
    /// How the streams follow from them; `None` for a routed group.
    pub decode: Option<Decode>,
    /// The file to write.
    pub path: String,
}

/// The symbol that a flow of a coded group ought to carry: the sum of `coefficients[i]` times stream `i`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowVector {
    /// The flow.
    pub flow: FlowId,
    /// One for each stream of the group, over GF(2^8) with polynomial 0x11D.
    pub coefficients: Vec<u8>,
}

/// The digest of one flow's symbol (coded) or chunk (routed) in the audited generation.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FlowDigest {
    /// The flow.
    pub flow: FlowId,
    /// Which end of the flow saw it.
    pub side: FlowSide,
    /// XXH3 (64 bits, seed 0) of the payload.
    pub digest: u64,
}

/// Where a digest was taken.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FlowSide {
    /// Worked out by the source from the file, for a flow named in [`Command::Audit`]'s `vectors`.
    Expected,
    /// As handed to TCP at the flow's first site.
    Sent,
    /// As it came from TCP at the flow's last site.
    Received,
}

/// From a site to the controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", tag = "report")]
#[non_exhaustive]
pub enum Report {
    /// Answer to [`Command::Inquire`].
    Inventory {
        /// The attempt.
        run: Run,
        /// Source: the file's length. Destination: length of the finished file, if it is there.
        length: Option<u64>,
        /// Destination: ranges that are there and verified.
        have: Vec<ByteRange>,
        /// BLAKE3 of the finished file at a destination, if it is there already; at the source, if it knows it
        /// without reading the file again.
        hash: Option<FileHash>,
        /// What the file is besides its bytes, the source's or the finished one.
        #[serde(default)]
        attributes: Option<Attributes>,
    },
    /// The attempt is set up here.
    Ready {
        /// The attempt.
        run: Run,
    },
    /// How far things are; sent about twice a second.
    Progress {
        /// The attempt.
        run: Run,
        /// Bytes of the file that this sink has verified since the attempt began (0 elsewhere).
        verified_bytes: u64,
        /// Share of the time, 0 to 1, in which the sink's disk held the flows back.
        sink_stalled: f64,
        /// One for each flow that leaves.
        flows: Vec<FlowProgress>,
    },
    /// The source has read and sent all of the attempt's work.
    SourceDone {
        /// The attempt.
        run: Run,
        /// BLAKE3 of the whole file, if this attempt read all of it or the source has it from an earlier one.
        hash: Option<FileHash>,
    },
    /// Answer to [`Command::Hash`].
    Hashed {
        /// The attempt.
        run: Run,
        /// BLAKE3 of the whole file.
        hash: FileHash,
    },
    /// A sink has seen the end of all its flows.
    SinkDone {
        /// The attempt.
        run: Run,
        /// What is verified now, of the whole file.
        have: Vec<ByteRange>,
    },
    /// A sink decoded a generation whose hash is wrong.
    Corrupt {
        /// The attempt.
        run: Run,
        /// The group.
        group: u16,
        /// The generation.
        generation: u64,
    },
    /// Answer to [`Command::Audit`]. A flow whose digest is no longer known, or that did not carry the chunk, is left out.
    Audit {
        /// The attempt.
        run: Run,
        /// The group.
        group: u16,
        /// The generation or chunk.
        generation: u64,
        /// One for each flow and side that is known here.
        digests: Vec<FlowDigest>,
    },
    /// Answer to [`Command::Finish`]: the file is whole, verified, synced and named.
    Completed {
        /// The attempt.
        run: Run,
    },
    /// The connection of a flow to or from `peer` broke, or could not be made in time.
    HopFailed {
        /// The attempt.
        run: Run,
        /// The flow.
        flow: FlowId,
        /// The other end.
        peer: SiteId,
        /// It never stood, as `peer` could not be reached; said by the flow's first site only.
        #[serde(default)]
        unconnected: bool,
        /// What happened, in a few words.
        reason: String,
    },
    /// This site cannot do its part.
    Failed {
        /// The attempt.
        run: Run,
        /// What kind of thing went wrong.
        kind: FailureKind,
        /// One line: what, value, limit, place, what to do.
        reason: String,
    },
}

/// A reason why a site cannot do its part.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum FailureKind {
    /// The source's file cannot be read, or changed while it was read.
    Unreadable,
    /// The destination's file cannot be written: no space, no permission, read-only.
    Unwritable,
    /// The program asks for more memory than the site ever has for it, or contradicts itself.
    Refused,
    /// Not now: other transfers hold the memory or descriptors that it needs, and will give them back.
    Busy,
}

/// A flow's counters at its sending end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlowProgress {
    /// The flow.
    pub flow: FlowId,
    /// Payload bytes handed to TCP since the attempt began.
    pub sent_bytes: u64,
    /// Share of the time, 0 to 1, in which a packet was ready and TCP did not take it: the network held it back.
    pub blocked: f64,
    /// The congestion control of its connections, by the kernel's name, if one stands.
    pub congestion_control: Option<String>,
}
