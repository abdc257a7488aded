//! Plans of transfers on a network: the decisions, as pure code (CodedBulk sections 2.4 and 4.1).
//!
//! Every scheme, coded or not, makes the same type: a [`Plan`] of flows. A flow occupies one link
//! at the plan's unit rate, or at a multiple of it that is the same for all flows of its stream. It
//! has one of the paper's four functions (Figure 2): forward, mirror, code-and-forward,
//! code-and-mirror. Flows of one plan may share a link, up to the link's capacity in units.
//!
//! Leaves out: execution of a plan. Read [`Plan`], [`Flow`] and [`Sink`] for the parts of a plan,
//! [`Request`] and [`Planner`] for the making of a plan.

mod check;
mod code;
mod describe;
mod effort;
mod field;
mod fill;
mod joint;
mod planner;
mod rates;
mod request;
mod routed;
pub mod schemes;
mod shares;
mod sharing;
pub mod survey;
#[cfg(test)]
mod tests;

pub use check::{CheckCounts, CheckError};
pub use describe::{SiteFunction, SiteWork, sum_text};
pub use effort::{Effort, FileToSend};
pub use joint::{JointRequest, fairer, fairer_by, share_links, together};
pub use planner::{
    Choice, Comparison, Failure, Figures, Offer, PlanWithFigures, Planner, RATE_TOLERANCE, SCHEMES,
    UnknownScheme, plan,
};
pub(crate) use rates::CEILING_MIN;
pub use request::{DESTINATIONS_MAX, Layout, Length, Options, PlanError, Request, STREAMS_MAX};
pub use sharing::{share_flows, share_flows_under};

use anabranch_units::{BitRate, LinkId, SiteId};
use serde::{Deserialize, Serialize};

/// A flow of a plan: an index into [`Plan::flows`].
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct FlowId(pub u32);

impl FlowId {
    /// The id as an index.
    pub const fn index(self) -> usize {
        self.0 as usize
    }
}

/// The scheme of a plan.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Scheme {
    /// Linear network code at the min-cut rate (sections 2.2 to 2.4; Jaggi and others 2005).
    Coded,
    /// Optimal fractional packing of arborescences, by column generation. Not in the paper.
    Packed,
    /// Arborescences packed greedily, each by Watel and Weisser's approximation: the paper's
    /// baseline (section 4.1).
    Steiner,
    /// The trees of `Steiner`, but each site stores its whole share of the file before it forwards
    /// the share (section 4.1).
    SteinerStoreAndForward,
    /// Only the first tree of `Steiner`: a possible reading of "we take the arborescence computed
    /// by the algorithm" (section 4.1).
    SteinerOneTree,
    /// Edge-disjoint paths to each destination separately, with least total length (section 4.1).
    MultiPath,
    /// One shortest path to each destination; a destination relays the file if a path passes
    /// through it.
    SinglePath,
}

/// A plan: every site's part in one transfer.
///
/// Invariants, kept by every planner and checked by [`Plan::check`]: no link carries more units
/// than its capacity, filling flows not counted; a flow's inputs end where the flow begins; every
/// sink gets `streams` flows from which the streams of its group can be computed; every destination
/// is in one group, and in at most one that fills it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// The scheme.
    pub scheme: Scheme,
    /// The site that holds the file.
    pub source: SiteId,
    /// The destinations, ascending.
    pub destinations: Vec<SiteId>,
    /// Rate of a flow of weight 1.
    #[serde(rename = "unit_bps", with = "crate::bps")]
    pub unit: BitRate,
    /// Sets of destinations that are served together. Coded, packed and Steiner plans have one; the
    /// path schemes have one for each copy of the file that the source sends. Groups that fill
    /// others ([`Group::fills`]) come last.
    pub groups: Vec<Group>,
    /// All flows, by id.
    pub flows: Vec<Flow>,
    /// Predicted rate of the slowest destination.
    #[serde(rename = "rate_bps", with = "crate::bps")]
    pub rate: BitRate,
    /// The smallest min-cut from the source to a destination: an upper bound for every scheme.
    #[serde(rename = "bound_bps", with = "crate::bps")]
    pub bound: BitRate,
    /// Whether a site may pass on only whole flows ([`Scheme::SteinerStoreAndForward`]).
    pub store_and_forward: bool,
}

/// Destinations that are served by the same flows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Group {
    /// Number of streams of its data: symbols of a generation (coded) or trees (routed).
    pub streams: u16,
    /// Rate of each stream in units of [`Plan::unit`]; empty if each stream has one unit. Set only
    /// in a routed group.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub weights: Vec<u32>,
    /// Whether the streams are mixed.
    pub mode: Mode,
    /// One sink for each of the group's destinations.
    pub sinks: Vec<Sink>,
    /// The group that this group fills for all or some of its destinations. A filling group has
    /// uncoded flows of the lowest priority over links that the plan or other transfers leave
    /// unused ([`Planner::fill`]). A plan's predictions do not include these flows.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fills: Option<u16>,
}

/// Relation between the streams of a group.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mode {
    /// Generation `g` of the file consists of `streams` symbols; every flow carries one combination
    /// of them, in lock step.
    Coded,
    /// Every chunk of the file travels whole on one stream, whichever has room.
    Routed,
}

/// One flow on one link: the symbols that the link's first site sends on it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Flow {
    /// Index into [`Plan::groups`].
    pub group: u16,
    /// The link.
    pub link: LinkId,
    /// The sum that the flow carries. A routed flow has one term with coefficient 1.
    pub terms: Vec<Term>,
}

/// One summand of a flow: `coefficient * input`, over GF(2^8) with polynomial 0x11D.
#[derive(Copy, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Term {
    /// The multiplied input.
    pub input: Input,
    /// The factor, never 0.
    pub coefficient: u8,
    /// Whether generation `g` of the flow uses generation `g - 1` of the input (zero for `g` = 0).
    /// Delays break the cycles of a code on a cyclic union of paths; always false for a stream.
    pub delayed: bool,
}

/// Origin of a term.
#[derive(Copy, Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Input {
    /// A stream of the flow's group; only at the source.
    Stream(u16),
    /// A flow that arrives at the site.
    Flow(FlowId),
}

/// A destination's end of a group.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sink {
    /// The destination.
    pub site: SiteId,
    /// The input flows, as many as the group has streams. In a routed group they are in the order
    /// of the streams.
    pub inputs: Vec<FlowId>,
    /// Computation of the streams from the inputs; `None` for a routed group.
    pub decode: Option<DecodeMap>,
}

/// The linear map from a sink's inputs to the streams.
///
/// With `y(g)` the inputs' generation `g` and `s(g)` a state that starts at zero:
/// `x(g) = output * [y(g); y(g+1); ...; y(g+lookahead); s(g)]` and `s(g+1) = next * [s(g); x(g)]`.
/// Codes without delayed terms have `lookahead` 0 and no state: `x(g) = output * y(g)`. The source
/// appends `lookahead` generations of zeros (the maximum over the sinks of all groups) to flush the
/// last generations.
///
/// Source: Massey and Sain, *Inverses of linear sequential circuits* (1968), for the inverse with
/// delay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DecodeMap {
    /// Number of generations after `g` that must have arrived before `g` can be decoded.
    pub lookahead: u16,
    /// Number of state symbols.
    pub state: u16,
    /// `streams` rows of `streams * (lookahead + 1) + state` coefficients.
    pub output: Vec<Vec<u8>>,
    /// `state` rows of `state + streams` coefficients.
    pub next: Vec<Vec<u8>>,
}
