//! Requests to a coordinator: transfers with all settings of a user, the limits and timeouts of the
//! coordinator, and reasons for refusals.
//!
//! Leaves out: answers (`status`), and the checks of a request (`coordinator`).

use crate::control::{DirectoryRules, HopSettings, Submitter, TransferId};
#[cfg(doc)]
use crate::plan::Scheme;
use anabranch_pieces::name::{NameError, directory, normal_entry};
use anabranch_sets::publication::BACKUP_OF_SNAPSHOT;
use anabranch_units::text::printable;
use anabranch_units::{BitRate, Duration, LinkId, SiteId};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeSet;

/// Settings for planning transfers together.
#[derive(Clone, Debug, PartialEq)]
pub struct JointConfig {
    /// Time that a first attempt waits for other transfers, counted from its inquiry.
    pub gather: Duration,
    /// Time that an attempt with a completed inquiry waits for others that still inquire.
    pub gather_max: Duration,
    /// Time that a transfer waits for the stopped transfers that will be planned again with it.
    pub switch: Duration,
    /// Minimum gain for planning running transfers again, as a fraction: of the smallest rate, or
    /// of the sum if the smallest rate does not fall.
    pub gain_min: f64,
    /// Minimum remaining time of each running transfer at its current rate. A switch to a new plan
    /// stops a transfer for some round trips.
    pub left_min: Duration,
    /// Times for which a transfer that was planned again keeps its plan, whatever other transfers
    /// do. They double with each new plan, because measured capacities vary, and each switch loses
    /// the data in flight.
    pub again: Backoff,
    /// Maximum number of transfers that are planned together. If more run, each is planned as if
    /// alone.
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
            again: Backoff { min: Duration::from_secs(5), max: Duration::from_secs(60) },
            transfers_max: 16,
        }
    }
}

/// A user's request for a transfer.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TransferRequest {
    /// The site that holds the file.
    pub source: SiteId,
    /// The file at the source, or the directory, which ends with a slash.
    pub source_path: String,
    /// The destinations, each with the path of the file there.
    pub destinations: Vec<Destination>,
    /// Sites that must not relay.
    #[serde(default)]
    pub avoid_sites: Vec<SiteId>,
    /// Links that must not be used.
    #[serde(default)]
    pub avoid_links: Vec<LinkId>,
    /// The scheme.
    #[serde(default)]
    pub scheme: SchemeChoice,
    /// Settings of hops without an entry in `hop_overrides`.
    pub hop: HopSettings,
    /// Settings of single links, in place of `hop`.
    #[serde(default)]
    pub hop_overrides: Vec<HopOverride>,
    /// Maximum rate of the source.
    #[serde(default)]
    pub bandwidth_limit: Option<BitRate>,
    /// Length of a symbol in bytes, at least 1.
    pub symbol_bytes: u32,
    /// Capacity of each virtual buffer in packets, at least 1.
    pub buffer_packets: u16,
    /// Reaction to data that arrives wrong.
    #[serde(default)]
    pub on_corrupt: CorruptPolicy,
    /// Whether uncoded data of the lowest priority fills the capacity that the plan's flows leave
    /// ([`crate::plan::Group::fills`]).
    #[serde(default)]
    pub fill: bool,
    /// The submitter.
    #[serde(default)]
    pub submitter: Submitter,
    /// Whether the transfer may replace other files of the same names. Otherwise a destination that
    /// has another file of this name is left unchanged.
    #[serde(default)]
    pub replace: bool,
    /// Rules of a directory.
    #[serde(default, skip_serializing_if = "DirectoryRules::is_open")]
    pub rules: DirectoryRules,
}

/// Maximum bytes of a filter ([`anabranch_sets::filter::Rules::bytes`]). Each inquiry and the store
/// carry it.
pub const FILTER_BYTES_MAX: usize = 32 << 10;

/// Returns true if a path is a directory's, or lies below it. Both are normal, with a slash at the
/// end.
fn is_within(path: &str, directory: &str) -> bool {
    path.starts_with(directory)
}

impl TransferRequest {
    /// Approximate size in memory and in the store in bytes: its lists and texts.
    pub fn bytes(&self) -> usize {
        let hop = |h: &HopSettings| h.congestion_control.as_ref().map_or(0, String::len);
        let destinations: usize =
            self.destinations.iter().map(|d| size_of::<Destination>() + d.path.len()).sum();
        let overrides: usize =
            self.hop_overrides.iter().map(|o| size_of::<HopOverride>() + hop(&o.hop)).sum();
        let avoided = size_of_val(&*self.avoid_sites) + size_of_val(&*self.avoid_links);
        let texts = self.source_path.len() + hop(&self.hop) + self.rules.bytes();
        size_of::<Self>() + texts + destinations + overrides + avoided
    }

    /// Number of the source, whose site has this name; 0 for a file.
    pub(super) fn origin(&self, site: &str) -> u64 {
        if !self.is_directory() {
            return 0;
        }
        let mut hasher = blake3::Hasher::new_derive_key("anabranch replicate: source of a directory");
        hasher.update(site.as_bytes()).update(&[0]).update(self.source_path.as_bytes());
        let mut number = [0; 8];
        hasher.finalize_xof().fill(&mut number);
        // 0 stands for an unknown source.
        u64::from_le_bytes(number).max(1)
    }

    /// Checks the rules of a directory.
    pub(super) fn check_rules(&self) -> Result<(), SubmitError> {
        let rules = &self.rules;
        if rules.is_open() {
            return Ok(());
        }
        if !self.is_directory() {
            return Err(SubmitError::RulesOfFile { path: self.source_path.clone() });
        }
        let bytes = rules.filter.bytes();
        if bytes > FILTER_BYTES_MAX {
            let allowed = format!("at most {FILTER_BYTES_MAX}");
            return Err(SubmitError::OutOfRange { what: "bytes of a filter", value: bytes as u64, allowed });
        }
        if let (Some(option), Some(_)) = (rules.filter.beyond_paths(), rules.delete) {
            return Err(SubmitError::DeleteWith { option });
        }
        let Some(backup) = &rules.backup else { return Ok(()) };
        if !rules.publish.is_each() {
            return Err(SubmitError::BackupOfSnapshot);
        }
        let backup = backup_directory(backup)?;
        for d in &self.destinations {
            let path = normal_entry(&d.path).map_err(SubmitError::BadPath)?;
            if is_within(&backup, &path) || is_within(&path, &backup) {
                return Err(SubmitError::BackupInside { backup, path });
            }
        }
        Ok(())
    }

    /// Whether a directory is sent.
    pub(super) fn is_directory(&self) -> bool {
        directory(&self.source_path).is_some()
    }

    /// Whether both requests deliver the same file to the same destination paths for the same
    /// submitter. The order of lists is ignored.
    pub(super) fn is_about_the_same(&self, other: &Self) -> bool {
        fn places(r: &TransferRequest) -> BTreeSet<(SiteId, &str)> {
            r.destinations.iter().map(|d| (d.site, d.path.as_str())).collect()
        }
        (self.submitter, self.source, &self.source_path)
            == (other.submitter, other.source, &other.source_path)
            && places(self) == places(other)
    }

    /// Settings in which this request and `other` for the same file differ, in words: the value of
    /// this request, then of `other`.
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
                (what, Value::Array(_) | Value::Object(_)) => format!("other {what}"),
                (what, its) => format!("{what} {}, not {}", shown(own), shown(its)),
            })
            .collect()
    }

    /// All settings that affect the transfer, by name. New fields are included automatically.
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
        if let Ok(Value::Object(rules)) = serde_json::to_value(&self.rules) {
            all.remove("rules");
            // A rule that is left out counts, too.
            all.extend(RULES.map(|rule| (rule.to_owned(), Value::Null)));
            all.extend(rules);
        }
        all
    }
}

/// Names of the rules of a directory.
const RULES: [&str; 6] = ["filter", "delete", "backup", "compare", "publish", "metadata"];

/// The normal form of a backup directory's name below each site's folder, with a slash at its end.
pub(super) fn backup_directory(name: &str) -> Result<String, SubmitError> {
    if name.starts_with('/') {
        return Err(SubmitError::AbsoluteBackup { backup: name.to_owned() });
    }
    normal_entry(&format!("{name}/")).map_err(SubmitError::BadPath)
}

/// The result of a request.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum SubmitResult {
    /// A new transfer.
    New(TransferId),
    /// A running transfer of the same file with equal settings.
    Attached(TransferId),
}

/// A destination site, and the name of the file there.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Destination {
    /// The site.
    pub site: SiteId,
    /// The file to write there.
    pub path: String,
}

/// Settings of one link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HopOverride {
    /// The link.
    pub link: LinkId,
    /// Its settings.
    pub hop: HopSettings,
}

/// Choice of the scheme of a transfer.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SchemeChoice {
    /// The highest predicted rate; uncoded if rates are equal.
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

/// Reaction to data that arrives wrong.
#[derive(Copy, Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CorruptPolicy {
    /// Names the relay, avoids it, and sends the data again.
    #[default]
    Repair,
    /// Gives the destination up with the verdict `integrity`. Data of another file that an earlier
    /// transfer left at the destination does not count as wrong.
    Refuse,
}

/// Limits and timeouts.
#[derive(Clone, Debug, PartialEq)]
pub struct CoordinatorConfig {
    /// Maximum number of running transfers.
    pub transfers_max: usize,
    /// Maximum number of running transfers of all sites together, so that operators always find
    /// free slots.
    pub sites_transfers_max: usize,
    /// Maximum number of running transfers of one site. The same number of its ended transfers is
    /// remembered.
    pub site_transfers_max: usize,
    /// Maximum number of ended transfers that are remembered. The submitter with the most ended
    /// transfers loses its oldest one first.
    pub finished_max: usize,
    /// Maximum size of a request in bytes ([`TransferRequest::bytes`]).
    pub request_bytes_max: usize,
    /// Maximum number of destinations of one transfer.
    pub destinations_max: usize,
    /// Maximum length of a path in bytes.
    pub path_bytes_max: usize,
    /// Maximum number of ranges that one site may report of one file; further ranges count as
    /// missing.
    pub ranges_max: usize,
    /// Surplus bytes of an attempt for all destinations of a directory from which on an attempt
    /// serves only destinations that lack the same bytes.
    pub surplus_bytes_min: u64,
    /// Maximum number of events that have not been polled; the oldest is dropped first.
    pub events_max: usize,
    /// Time that a new transfer (and every transfer after a restart) waits for its sites to
    /// register before it starts with the available ones.
    pub gather: Duration,
    /// Settings for planning simultaneous transfers together; `None` plans each as if alone.
    pub joint: Option<JointConfig>,
    /// Timeout of an inventory, in addition to the time that `work_rate` gives.
    pub inquire_timeout: Duration,
    /// Timeout of the installation of programs.
    pub install_timeout: Duration,
    /// Maximum time without progress in an attempt.
    pub stall_timeout: Duration,
    /// Timeout of a finished file or a hash, in addition to the time that `work_rate` gives.
    pub finish_timeout: Duration,
    /// Minimum rate at which a site reads or checks a file.
    pub work_rate: BitRate,
    /// Timeout of audits.
    pub audit_timeout: Duration,
    /// Pause after a failed hop, so that the loss of a site is known before the next plan. It is
    /// longer than the time after which a service gives up a silent site; otherwise the next plan
    /// would use that site again.
    pub settle: Duration,
    /// Pauses after attempts that moved no data.
    pub pause: Backoff,
    /// Maximum number of consecutive attempts that move no data.
    pub idle_attempts_max: u32,
    /// Maximum number of attempts.
    pub attempts_max: u32,
    /// Time to wait for an absent site, and for a site to which others cannot connect (with at
    /// least three tries).
    pub site_wait: Duration,
    /// Times for which a failed link is avoided.
    pub avoid: Backoff,
    /// Maximum time for which one destination may delay all other destinations.
    pub slow_hold: Duration,
    /// Fraction of the planned rate below which the other destinations count as delayed.
    pub slow_share: f64,
    /// Fraction of the time for which a destination's disk, or all flows into it, must be blocked
    /// to count as the cause.
    pub slow_blocked: f64,
    /// Time after which a removal counts as received, if the site stayed up. The removal is sent
    /// again if the site was down or registered again within this time.
    pub sweep: Duration,
    /// Maximum number of audits in one attempt.
    pub audits_max: u32,
    /// Number of wrong generations in one attempt after which a named relay is planned around at
    /// once.
    pub corrupt_max: u32,
    /// Number of attempts with wrong data at one destination after which the destination is given
    /// up.
    pub integrity_max: u32,
}

/// Time that doubles with each consecutive failure.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// Time after the first failure.
    pub min: Duration,
    /// Maximum time.
    pub max: Duration,
}

impl Backoff {
    /// Time after `failures` failures before this one.
    pub(super) fn after(self, failures: u32) -> Duration {
        let ps = u128::from(self.min.as_ps()) << failures.min(40);
        if ps >= u128::from(self.max.as_ps()) { self.max } else { Duration::from_ps(ps as u64) }
    }
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
            surplus_bytes_min: 4 << 20,
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
            pause: Backoff { min: Duration::from_ms(500), max: Duration::from_secs(30) },
            idle_attempts_max: 12,
            attempts_max: 10_000,
            site_wait: Duration::from_secs(600),
            avoid: Backoff { min: Duration::from_secs(5), max: Duration::from_secs(60) },
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

/// Why a transfer was refused.
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
    /// The list of destinations is empty.
    NoDestination,
    /// The source is among the destinations.
    SourceIsDestination {
        /// The source's name.
        site: String,
    },
    /// A destination is named twice.
    DuplicateDestination {
        /// The destination's name.
        site: String,
    },
    /// The source or a destination is among the sites to be avoided.
    AvoidedEnd {
        /// The site's name.
        site: String,
    },
    /// A number or a path is out of range.
    OutOfRange {
        /// Name of the quantity.
        what: &'static str,
        /// Its value.
        value: u64,
        /// The allowed values.
        allowed: String,
    },
    /// An invalid path.
    BadPath(NameError),
    /// A file is sent to a directory's name, or a directory to a file's.
    FileAndDirectory {
        /// The name at a destination.
        path: String,
    },
    /// Rules of a directory for a file.
    RulesOfFile {
        /// The file at the source.
        path: String,
    },
    /// Deletes with a filter by which the sites need not agree.
    DeleteWith {
        /// The option of the filter.
        option: &'static str,
    },
    /// A backup directory that does not lie below each site's folder.
    AbsoluteBackup {
        /// Its name.
        backup: String,
    },
    /// A backup directory inside the directory of a destination, or around it.
    BackupInside {
        /// The backup directory.
        backup: String,
        /// The directory of a destination.
        path: String,
    },
    /// A backup for a directory that is published as a whole.
    BackupOfSnapshot,
    /// A setting excludes filling groups.
    FillWith {
        /// The setting.
        what: &'static str,
    },
    /// The topology has no path to a destination, even if all links work.
    NoPath {
        /// The source's name.
        source: String,
        /// The destination's name.
        destination: String,
    },
    /// A name of a congestion control that no kernel can have.
    CongestionControl {
        /// The beginning of the name.
        name: String,
    },
    /// Two overrides for one link.
    RepeatedOverride {
        /// The link.
        link: LinkId,
    },
    /// A running transfer delivers the same file to the same destinations with other settings.
    RunsOtherwise {
        /// The transfer.
        transfer: TransferId,
        /// The differing settings and the running transfer's values.
        differs: Vec<String>,
    },
    /// Too many transfers at the moment.
    TooMany {
        /// The limit.
        limit: usize,
    },
    /// Too many questions about files at the moment.
    TooManyQuestions {
        /// The limit.
        limit: usize,
    },
    /// Too many questions of sites at the moment.
    TooManyQuestionsOfSites {
        /// The limit.
        limit: usize,
    },
    /// Too many questions of this site at the moment.
    TooManyQuestionsOfSite {
        /// The site's name.
        site: String,
        /// The limit.
        limit: usize,
    },
    /// Too many transfers of sites at the moment.
    TooManyOfSites {
        /// The limit.
        limit: usize,
    },
    /// Too many transfers of this site at the moment.
    TooManyOfSite {
        /// The site's name.
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
            Self::FileAndDirectory { path } => write!(
                f,
                "`{}`: a directory and its name at each destination end with a slash, a file and its name do not",
                printable(path)
            ),
            Self::RulesOfFile { path } => write!(
                f,
                "`{}`: filters, deletes, backups, --publish, --owners and --xattrs are for directories",
                printable(path)
            ),
            Self::DeleteWith { option } => write!(
                f,
                "--delete with {option}: an entry could count at one site only: leave one of them out"
            ),
            Self::AbsoluteBackup { backup } => write!(
                f,
                "backup `{}`: must be a name below each site's --dir, without a slash at its beginning",
                printable(backup)
            ),
            Self::BackupInside { backup, path } => write!(
                f,
                "backup `{}` and directory `{}`: neither may contain the other",
                printable(backup),
                printable(path)
            ),
            Self::BackupOfSnapshot => f.write_str(BACKUP_OF_SNAPSHOT),
            Self::FillWith { what } => write!(
                f,
                "fill with {what}: fill takes only capacity that bulk flows leave: leave out fill or {what}"
            ),
            Self::AvoidedEnd { site } => write!(
                f,
                "site `{site}` is to be avoided but is the source or a destination: it can be one or the other"
            ),
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
            Self::TooMany { limit } => write!(
                f,
                "{limit} transfers are under way, which is the limit: wait for one to end or cancel one"
            ),
        }
    }
}
impl std::error::Error for SubmitError {}
