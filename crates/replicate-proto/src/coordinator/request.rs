//! Requests to a coordinator: transfers, with every choice that a user has; its own limits and patience; and reasons of
//! refusals.
//!
//! Leaves out: answers (`status`), and the checks of a request (`coordinator`).

use crate::control::{HopSettings, Submitter, TransferId};
#[cfg(doc)]
use crate::plan::Scheme;
use anabranch_pieces::name::NameError;
use anabranch_units::{BitRate, Duration, LinkId, SiteId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// How transfers are planned together.
#[derive(Clone, Debug, PartialEq)]
pub struct JointConfig {
    /// How long a first attempt waits for others, counted from its inquiry.
    pub gather: Duration,
    /// How long an attempt whose inquiry is answered waits for others that still inquire.
    pub gather_max: Duration,
    /// How long one waits for those that are stopped to be planned anew with it.
    pub switch: Duration,
    /// By which share the smallest rate, or without loss to it the sum, must gain for running transfers to be planned
    /// anew.
    pub gain_min: f64,
    /// How long each of them must have left at its present rate: a switch stops it for some round trips.
    pub left_min: Duration,
    /// How long one that was planned anew is left alone, whoever comes or goes.
    pub again_min: Duration,
    /// With more transfers under way than that, each is planned as if alone.
    pub transfers_max: usize,
}

impl Default for JointConfig {
    fn default() -> Self {
        Self {
            gather: Duration::from_ms(100),
            gather_max: Duration::from_ms(300),
            switch: Duration::from_secs(3),
            gain_min: 0.1,
            left_min: Duration::from_secs(10),
            again_min: Duration::from_secs(5),
            transfers_max: 16,
        }
    }
}

/// A user's request for a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransferRequest {
    /// The site that holds the file.
    pub source: SiteId,
    /// The file there.
    pub source_path: String,
    /// The destinations, each with the file's path there.
    pub destinations: Vec<Destination>,
    /// Sites that must not relay.
    #[serde(default)]
    pub avoid_sites: Vec<SiteId>,
    /// Links that must not be used.
    #[serde(default)]
    pub avoid_links: Vec<LinkId>,
    /// How to plan.
    #[serde(default)]
    pub scheme: SchemeChoice,
    /// How hops are run, where `hop_overrides` says nothing else.
    pub hop: HopSettings,
    /// Hops that are run differently.
    #[serde(default)]
    pub hop_overrides: Vec<HopOverride>,
    /// Ceiling on the source's rate.
    #[serde(default)]
    pub bandwidth_limit: Option<BitRate>,
    /// Bytes of a symbol, at least 1.
    pub symbol_bytes: u32,
    /// Packets that each virtual buffer holds, at least 1.
    pub buffer_packets: u16,
    /// How to treat data that arrives wrong.
    #[serde(default)]
    pub on_corrupt: CorruptPolicy,
    /// Whether uncoded data of the lowest priority fills capacity that the plan's flows leave ([`crate::plan::Group::fills`]).
    #[serde(default)]
    pub fill: bool,
    /// The submitter.
    #[serde(default)]
    pub submitter: Submitter,
    /// Whether it may take the place of other files of its names; else a destination that has one is left as it is.
    #[serde(default)]
    pub replace: bool,
}

impl TransferRequest {
    /// About how many bytes it takes in memory and in the store: its lists, and its texts.
    pub fn bytes(&self) -> usize {
        let hop = |h: &HopSettings| h.congestion_control.as_ref().map_or(0, String::len);
        let destinations: usize =
            self.destinations.iter().map(|d| size_of::<Destination>() + d.path.len()).sum();
        let overrides: usize =
            self.hop_overrides.iter().map(|o| size_of::<HopOverride>() + hop(&o.hop)).sum();
        let avoided = size_of_val(&*self.avoid_sites) + size_of_val(&*self.avoid_links);
        size_of::<Self>() + self.source_path.len() + hop(&self.hop) + destinations + overrides + avoided
    }

    /// Whether both bring the same file to the same places for the same submitter. The order of lists means nothing.
    pub(super) fn is_about_the_same(&self, other: &Self) -> bool {
        fn places(r: &TransferRequest) -> BTreeSet<(SiteId, &str)> {
            r.destinations.iter().map(|d| (d.site, d.path.as_str())).collect()
        }
        (self.submitter, self.source, &self.source_path)
            == (other.submitter, other.source, &other.source_path)
            && places(self) == places(other)
    }

    /// In which settings a request for the same differs from this one, in words: what this one has, then what the other.
    pub(super) fn differences(&self, other: &Self) -> Vec<String> {
        let (own, its) = (self.settings(), other.settings());
        let shown = |value: &Value| match value {
            Value::Null => "unset".to_owned(),
            Value::Bool(on) => if *on { "on" } else { "off" }.to_owned(),
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let differ = own.iter().filter(|(what, own)| its.get(*what) != Some(*own));
        differ
            .map(|(what, own)| match (what.replace('_', " "), its.get(what).unwrap_or(&Value::Null)) {
                (what, Value::Array(_)) => format!("other {what}"),
                (what, its) => format!("{what} {}, not {}", shown(own), shown(its)),
            })
            .collect()
    }

    /// Everything that decides how it is done, by name; whatever becomes a field is among it.
    fn settings(&self) -> Map<String, Value> {
        let mut sorted = self.clone();
        sorted.destinations.sort_by(|a, b| (a.site, &a.path).cmp(&(b.site, &b.path)));
        sorted.avoid_sites.sort();
        sorted.avoid_sites.dedup();
        sorted.avoid_links.sort();
        sorted.avoid_links.dedup();
        sorted.hop_overrides.sort_by_key(|o| o.link);
        let Ok(Value::Object(mut all)) = serde_json::to_value(sorted) else {
            unreachable!("a request is an object with texts as keys");
        };
        if let Some(Value::Object(hop)) = all.remove("hop") {
            all.extend(hop);
        }
        all
    }
}

/// The result of a request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Submitted {
    /// A transfer of its own.
    New(TransferId),
    /// One that is under way does the same.
    Attached(TransferId),
}

/// A site that wants the file, and its name there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destination {
    /// The site.
    pub site: SiteId,
    /// The file to write there.
    pub path: String,
}

/// One link's own settings.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopOverride {
    /// The link.
    pub link: LinkId,
    /// How it is run.
    pub hop: HopSettings,
}

/// How to plan a transfer.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchemeChoice {
    /// The highest predicted rate, uncoded where they tie.
    #[default]
    Auto,
    /// [`Scheme::Coded`].
    Coded,
    /// [`Scheme::Packed`].
    Packed,
    /// [`Scheme::Steiner`].
    Steiner,
    /// [`Scheme::SteinerStoreAndForward`].
    SteinerStoreAndForward,
    /// [`Scheme::SteinerOneTree`].
    SteinerOneTree,
    /// [`Scheme::MultiPath`].
    MultiPath,
    /// [`Scheme::SinglePath`].
    SinglePath,
}

/// How to treat data that arrives wrong.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CorruptPolicy {
    /// Name the relay, avoid it, send the data again.
    #[default]
    Repair,
    /// Give the destination up with the verdict `integrity`. What an earlier transfer left there of another file is no reason.
    Refuse,
}

/// Limits and patience.
#[derive(Clone, Debug, PartialEq)]
pub struct CoordinatorConfig {
    /// Transfers under way at once.
    pub transfers_max: usize,
    /// Of these, how many sites may have submitted: all together, so that operators always find places.
    pub sites_transfers_max: usize,
    /// And how many one site may have submitted. As many of its transfers that are over are remembered.
    pub site_transfers_max: usize,
    /// Transfers that are over and still remembered; the oldest of whoever submitted most of them goes first.
    pub finished_max: usize,
    /// Bytes of a request ([`TransferRequest::bytes`]).
    pub request_bytes_max: usize,
    /// Destinations of one transfer.
    pub destinations_max: usize,
    /// Bytes of a path.
    pub path_bytes_max: usize,
    /// Ranges that one site may report of one file; what is beyond counts as missing.
    pub ranges_max: usize,
    /// Events not yet polled; the oldest goes first.
    pub events_max: usize,
    /// How long a new transfer (and every transfer after a restart) waits for its sites to show up before it begins with
    /// those that are there.
    pub gather: Duration,
    /// How transfers that run at the same time are planned together; `None` plans each as if alone.
    pub joint: Option<JointConfig>,
    /// How long to wait for an inventory, besides `work_rate`.
    pub inquire_timeout: Duration,
    /// How long to wait until programs are installed.
    pub install_timeout: Duration,
    /// How long an attempt may stand still.
    pub stall_timeout: Duration,
    /// How long to wait for a finished file or a hash, besides `work_rate`.
    pub finish_timeout: Duration,
    /// How fast a site reads or checks a file at the very least.
    pub work_rate: BitRate,
    /// How long to wait for audits.
    pub audit_timeout: Duration,
    /// How long to wait after a hop failed, so that the loss of a site is known before the next plan: longer than a
    /// service waits for a silent site, or the next plan counts on it once more.
    pub settle: Duration,
    /// The first pause after an attempt that moved nothing; doubles each time.
    pub pause_min: Duration,
    /// The longest such pause.
    pub pause_max: Duration,
    /// Attempts in a row that move nothing before the rest is given up.
    pub idle_attempts_max: u32,
    /// Attempts altogether.
    pub attempts_max: u32,
    /// How long an absent site is waited for, and one that others cannot connect to (with at least three tries).
    pub site_wait: Duration,
    /// How long a link that failed is left alone at first; doubles each time.
    pub avoid_min: Duration,
    /// The longest such time.
    pub avoid_max: Duration,
    /// How long a destination may hold the others back.
    pub slow_hold: Duration,
    /// Below which share of the planned rate the others count as held back.
    pub slow_share: f64,
    /// Share of the time that a destination's disk, or all flows into it, must be blocked to count as the cause.
    pub slow_blocked: f64,
    /// How often idle codes are removed again where the site may have missed it.
    pub sweep: Duration,
    /// Audits in one attempt.
    pub audits_max: u32,
    /// Wrong generations in one attempt after which a named relay is planned around at once.
    pub corrupt_max: u32,
    /// Attempts that left one destination with wrong data before it is given up.
    pub integrity_max: u32,
}

impl Default for CoordinatorConfig {
    fn default() -> Self {
        Self {
            transfers_max: 1_000,
            sites_transfers_max: 500,
            site_transfers_max: 100,
            finished_max: 1_000,
            request_bytes_max: 64 << 10,
            destinations_max: 256,
            path_bytes_max: 4_096,
            ranges_max: 65_536,
            events_max: 65_536,
            gather: Duration::from_secs(3),
            joint: None,
            inquire_timeout: Duration::from_secs(30),
            install_timeout: Duration::from_secs(15),
            stall_timeout: Duration::from_secs(60),
            finish_timeout: Duration::from_secs(30),
            work_rate: BitRate::mbps(160),
            audit_timeout: Duration::from_secs(5),
            settle: Duration::from_secs(4),
            pause_min: Duration::from_ms(500),
            pause_max: Duration::from_secs(30),
            idle_attempts_max: 12,
            attempts_max: 10_000,
            site_wait: Duration::from_secs(600),
            avoid_min: Duration::from_secs(5),
            avoid_max: Duration::from_secs(60),
            slow_hold: Duration::from_secs(5),
            slow_share: 0.5,
            slow_blocked: 0.5,
            sweep: Duration::from_secs(30),
            audits_max: 8,
            corrupt_max: 16,
            integrity_max: 3,
        }
    }
}

/// Why a transfer was not accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SubmitError {
    /// A site id outside the topology.
    UnknownSite {
        /// The id.
        site: SiteId,
        /// Number of sites.
        sites: usize,
    },
    /// A link id outside the topology.
    UnknownLink {
        /// The id.
        link: LinkId,
        /// Number of links.
        links: usize,
    },
    /// There is no destination.
    NoDestination,
    /// The source is among the destinations.
    SourceIsDestination {
        /// Its name.
        site: String,
    },
    /// A destination is named twice.
    DuplicateDestination {
        /// Its name.
        site: String,
    },
    /// The source or a destination is to be avoided.
    AvoidedEnd {
        /// Its name.
        site: String,
    },
    /// A number or a path is out of range.
    OutOfRange {
        /// What.
        what: &'static str,
        /// Its value.
        value: u64,
        /// What is allowed.
        allowed: String,
    },
    /// A path that no file can have.
    BadPath(NameError),
    /// A setting leaves nothing for what fills.
    FillWith {
        /// The setting.
        what: &'static str,
    },
    /// No links lead to a destination, even when all of them work.
    NoPath {
        /// The source's name.
        source: String,
        /// The destination's name.
        destination: String,
    },
    /// The name of a congestion control that no kernel has.
    CongestionControl {
        /// Its beginning.
        name: String,
    },
    /// Two overrides of one link.
    RepeatedOverride {
        /// The link.
        link: LinkId,
    },
    /// A transfer that is under way brings the same file to the same places by other settings.
    RunsOtherwise {
        /// The transfer.
        transfer: TransferId,
        /// In which, and what it has.
        differs: Vec<String>,
    },
    /// No more transfers for now.
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// No more questions about files for now.
    TooManyQuestions {
        /// The limit.
        limit: usize,
    },
    /// No more questions of sites for now.
    TooManyQuestionsOfSites {
        /// The limit.
        limit: usize,
    },
    /// No more questions of this site for now.
    TooManyQuestionsOfSite {
        /// Its name.
        site: String,
        /// The limit.
        limit: usize,
    },
    /// No more transfers of sites for now.
    TooManyOfSites {
        /// The limit.
        limit: usize,
    },
    /// No more transfers of this site for now.
    TooManyOfSite {
        /// Its name.
        site: String,
        /// The limit.
        limit: usize,
    },
}

impl SubmitError {
    /// Whether the same request may be accepted later.
    pub fn is_passing(&self) -> bool {
        matches!(
            self,
            Self::TooMany { .. }
                | Self::TooManyOfSites { .. }
                | Self::TooManyOfSite { .. }
                | Self::TooManyQuestions { .. }
                | Self::TooManyQuestionsOfSites { .. }
                | Self::TooManyQuestionsOfSite { .. }
        )
    }
}

impl std::fmt::Display for SubmitError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::UnknownSite { site, sites } => {
                write!(f, "site {site}: the topology has sites 0 to {}", sites - 1)
            }
            Self::UnknownLink { link, links } => write!(f, "link {link}: the topology has {links} links"),
            Self::NoDestination => write!(f, "no destination: name at least one site that wants the file"),
            Self::SourceIsDestination { site } => {
                write!(f, "site `{site}` is both source and destination: leave it out of the destinations")
            }
            Self::DuplicateDestination { site } => {
                write!(f, "destination `{site}` appears twice: name it once")
            }
            Self::BadPath(error) => error.fmt(f),
            Self::FillWith { what } => {
                write!(
                    f,
                    "fill with {what}: fill takes only capacity that bulk flows leave: leave out fill or {what}"
                )
            }
            Self::AvoidedEnd { site } => {
                write!(
                    f,
                    "site `{site}` is to be avoided but is the source or a destination: it can be one or the other"
                )
            }
            Self::OutOfRange { what, value, allowed } => write!(f, "{what} {value}: must be {allowed}"),
            Self::NoPath { source, destination } => write!(
                f,
                "no path from `{source}` to `{destination}` in this topology: avoid less, add a link or drop the \
                 destination"
            ),
            Self::CongestionControl { name } => write!(
                f,
                "congestion control `{name}`: must be a kernel's name for one, at most 15 letters, digits, - and _"
            ),
            Self::RepeatedOverride { link } => {
                write!(f, "link {link} has two hop overrides: leave one out")
            }
            Self::RunsOtherwise { transfer, differs } => write!(
                f,
                "transfer {transfer} sends this file to these destinations already, but with {}: follow it (`anabranch \
                 replicate status --follow {transfer}`), or cancel it (`... status {transfer} --cancel`) and send again",
                differs.join(" and ")
            ),
            Self::TooManyQuestions { limit } => {
                write!(f, "{limit} questions about files are open, which is the limit: ask again in a moment")
            }
            Self::TooManyQuestionsOfSites { limit } => write!(
                f,
                "{limit} questions of sites about files are open, which is the limit: ask again in a moment"
            ),
            Self::TooManyQuestionsOfSite { site, limit } => write!(
                f,
                "{limit} questions of site `{site}` about files are open, the most that one may have: ask again in a \
                 moment"
            ),
            Self::TooManyOfSites { limit } => write!(
                f,
                "{limit} transfers that sites submitted are under way, which is the limit: wait for one to end, or let \
                 an operator submit it"
            ),
            Self::TooManyOfSite { site, limit } => write!(
                f,
                "{limit} transfers that site `{site}` submitted are under way, the most that one may have: wait for one \
                 to end or cancel one"
            ),
            Self::TooMany { limit } => {
                write!(
                    f,
                    "{limit} transfers are under way, which is the limit: wait for one to end or cancel one"
                )
            }
        }
    }
}
impl std::error::Error for SubmitError {}
