//! Content steering: queries of players and the steering manifests that answer them, for HLS and
//! DASH.
//!
//! A player queries the steering server that its manifest names. The answer lists the pathways
//! (DASH: service locations) in order of preference, and sets the time of the next query. A pathway
//! may have clones, which differ by their host. The reload URI contains all that the server needs
//! of the viewer, so a steering server keeps no state of viewers.
//!
//! Source: HLS: Pantos, *HTTP Live Streaming 2nd Edition*, draft-pantos-hls-rfc8216bis, section 7;
//! DASH: ETSI TS 103 998, *Content Steering for DASH*. Differs: clones replace the host only,
//! because DASH has no other replacement, and no clone has the name of its base. Leaves out:
//! sockets; the order of the pathways, which the caller chooses. Read [`SteeringManifest`],
//! [`SteeringQuery`] and [`Pathway`] first.

use anabranch_units::BitRate;
use anabranch_units::text::is_printable;
use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// Default time to live of a steering manifest, in seconds (HLS, section 7.1; DASH has the same).
pub const TTL_S: u32 = 300;
/// Maximum number of preferred pathways of a steering manifest, and of pathways that are read from
/// a player's query.
pub const PATHWAYS_MAX: usize = 6;
/// Longest name of a pathway, a location or a provider.
pub const NAME_BYTES_MAX: usize = 128;
/// Longest query: the parameters of the viewer and of the player, and [`OTHERS_BYTES_MAX`].
pub const QUERY_BYTES_MAX: usize = 4_096;
/// Maximum number of bytes of the parameters for other servers in a query, such as tokens and
/// signatures.
pub const OTHERS_BYTES_MAX: usize = 2_048;
/// Parameter that contains a player's report (CTA-5004).
const REPORT_PARAMETER: &str = "CMCD";
/// Highest bitrate and highest throughput that are read.
const BITRATE_BPS_MAX: u64 = 1_000_000_000_000;
/// Bitrate that a viewer is assumed to watch, in percent of the measured throughput.
const WATCHED_PERCENT: u64 = 80;

/// Standard that a player follows.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// HTTP Live Streaming.
    Hls,
    /// Dynamic Adaptive Streaming over HTTP.
    Dash,
}

impl Dialect {
    /// Name in URLs: `hls` or `dash`.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Hls => "hls",
            Self::Dash => "dash",
        }
    }
    /// Media type of a steering manifest.
    pub const fn content_type(self) -> &'static str {
        match self {
            Self::Hls => "application/vnd.apple.steering-list",
            Self::Dash => "application/json",
        }
    }
    /// Prefix of the query parameters that the standard defines for players.
    const fn prefix(self) -> &'static str {
        match self {
            Self::Hls => "_HLS_",
            Self::Dash => "_DASH_",
        }
    }
}

/// A pathway in the manifests of players, and the pathway's clones.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pathway {
    /// Name in manifests (see [`is_pathway_id`]).
    pub id: String,
    /// Host of each clone, by the clone's number. A host has no port: hls.js replaces none.
    pub hosts: BTreeMap<u32, String>,
}

/// All pathways of a manifest. The steering server chooses the keys.
pub type PathwayTable<K> = BTreeMap<K, Pathway>;

impl Pathway {
    /// Name of the clone with this number.
    pub fn clone_id(&self, number: u32) -> String {
        format!("{}.{number}", self.id)
    }

    /// Whether `id` names this pathway or one of its clones.
    pub fn has(&self, id: &str) -> bool {
        let number = || id.strip_prefix(&*self.id)?.strip_prefix('.')?.parse().ok();
        self.id == id || number().is_some_and(|number: u32| self.hosts.contains_key(&number))
    }

    /// Name of the clone with this number, and the clone itself. For a number without a host, the
    /// name of the pathway and `None`.
    fn clone_of(&self, number: u32) -> (String, Option<PathwayClone>) {
        let Some(host) = self.hosts.get(&number) else { return (self.id.clone(), None) };
        let id = self.clone_id(number);
        let uri_replacement = UriReplacement { host: host.clone() };
        (id.clone(), Some(PathwayClone { base_id: self.id.clone(), id, uri_replacement }))
    }
}

/// Key of the pathway that `id` names, or of the pathway whose clone `id` names.
pub fn pathway_key<K: Copy>(pathways: &PathwayTable<K>, id: &str) -> Option<K> {
    pathways.iter().find(|(_, pathway)| pathway.has(id)).map(|(key, _)| *key)
}

/// Key of the pathway with a clone on this host.
pub fn host_key<K: Copy>(pathways: &PathwayTable<K>, host: &str) -> Option<K> {
    let is_its = |pathway: &Pathway| pathway.hosts.values().any(|own| own == host);
    pathways.iter().find(|(_, pathway)| is_its(pathway)).map(|(key, _)| *key)
}

/// Whether a manifest may use this name for a pathway: letters, digits, `.`, `-` and `_`.
///
/// Source: draft-pantos-hls-rfc8216bis, section 4.4.6.6.
pub fn is_pathway_id(name: &str) -> bool {
    let is_allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(is_allowed)
}

/// A viewer, as far as the steering server needs to know for its choice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Viewer {
    /// City.
    pub location: String,
    /// Internet provider.
    pub isp: String,
    /// Bitrate that the viewer watches, or is likely to watch.
    pub bitrate: BitRate,
    /// Random number of the viewer, the same in each query.
    pub number: u64,
}

/// A player's query to the steering server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SteeringQuery {
    /// The player's standard.
    pub dialect: Dialect,
    /// The player's viewer.
    pub viewer: Viewer,
    /// Pathways in use, as the parameter `_HLS_pathway` or `_DASH_pathway` lists them.
    pub pathways: Vec<String>,
    /// Throughput that the player has measured, from `_HLS_throughput` or `_DASH_throughput`.
    pub throughput: Option<BitRate>,
    /// The player's report, from the parameter `CMCD`.
    pub report: Option<String>,
    /// Parameters for other servers, such as tokens, with their escapes. The reload URI keeps them.
    pub others: String,
}

/// Reason why a query is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum QueryError {
    /// The query is longer than [`QUERY_BYTES_MAX`].
    TooLong {
        /// Length of the query.
        bytes: usize,
    },
    /// The parameters for other servers are longer than [`OTHERS_BYTES_MAX`].
    OthersTooLong {
        /// Length of the parameters for other servers.
        bytes: usize,
    },
    /// A parameter has an invalid value.
    Bad {
        /// The parameter's name.
        parameter: String,
        /// Value of the parameter.
        value: String,
        /// Values that are allowed.
        must_be: &'static str,
    },
}

impl fmt::Display for QueryError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes } => write!(f, "query of {bytes} bytes: at most {QUERY_BYTES_MAX}"),
            Self::OthersTooLong { bytes } => {
                write!(f, "parameters for other servers of {bytes} bytes: at most {OTHERS_BYTES_MAX}")
            }
            Self::Bad { parameter, value, must_be } => write!(f, "{parameter}={value}: must be {must_be}"),
        }
    }
}
impl std::error::Error for QueryError {}

impl SteeringQuery {
    /// Creates the query of a viewer, without further parameters.
    pub const fn new(dialect: Dialect, viewer: Viewer) -> Self {
        let others = String::new();
        Self { dialect, viewer, pathways: Vec::new(), throughput: None, report: None, others }
    }

    /// Reads a query whose text is percent-encoded.
    ///
    /// The server's own parameters are in its reload URI: `location`, `isp`, `bitrate` (bit/s) and
    /// `viewer` (hexadecimal). Absent parameters have the values of `defaults`. The player adds its
    /// report and the parameters of its standard, whose invalid values are ignored. All further
    /// parameters are for other servers.
    ///
    /// Errors: a query that is too long; an invalid value of a parameter of the server.
    /// Source: draft-pantos-hls-rfc8216bis, section 7.1; ETSI TS 103 998 (lists in quotation
    /// marks).
    pub fn read(dialect: Dialect, query: &str, defaults: Viewer) -> Result<Self, QueryError> {
        if query.len() > QUERY_BYTES_MAX {
            return Err(QueryError::TooLong { bytes: query.len() });
        }
        let mut read = Self::new(dialect, defaults);
        let mut bitrate = None;
        for (text, parameter, value) in parameters(query) {
            match &*parameter {
                "location" => read.viewer.location = name(&parameter, &value)?,
                "isp" => read.viewer.isp = name(&parameter, &value)?,
                "bitrate" => {
                    let bps = value.parse().ok().filter(|bps| (1..=BITRATE_BPS_MAX).contains(bps));
                    let bad = || bad(&parameter, &value, "a whole number of bit/s, 1 to 10^12");
                    bitrate = Some(bps.ok_or_else(bad)?);
                }
                "viewer" => {
                    let bad = |_| bad(&parameter, &value, "up to sixteen hexadecimal digits");
                    read.viewer.number = u64::from_str_radix(&value, 16).map_err(bad)?;
                }
                REPORT_PARAMETER => read.report = Some(value.into_owned()),
                _ => match parameter.strip_prefix(dialect.prefix()) {
                    Some(parameter) => read.read_of_player(parameter, &value),
                    None => join(&mut read.others, text),
                },
            }
        }
        if read.others.len() > OTHERS_BYTES_MAX {
            return Err(QueryError::OthersTooLong { bytes: read.others.len() });
        }
        let watched = read.throughput.map(|rate| rate.as_bps() / 100 * WATCHED_PERCENT);
        if let Some(bps) = bitrate.or(watched).filter(|bps| *bps > 0) {
            read.viewer.bitrate = BitRate::bps(bps);
        }
        Ok(read)
    }

    /// Reads a parameter that the player's standard defines. The name has no prefix.
    fn read_of_player(&mut self, parameter: &str, value: &str) {
        // DASH has lists in quotation marks, HLS one value.
        let values = value.trim_matches('"').split(',').map(str::trim).filter(|value| !value.is_empty());
        match parameter {
            "pathway" => self.pathways = values.take(PATHWAYS_MAX).map(str::to_owned).collect(),
            "throughput" => {
                let rates = values.filter_map(|value| value.parse().ok());
                let fastest = rates.filter(|bps| (1..=BITRATE_BPS_MAX).contains(bps)).max();
                self.throughput = fastest.map(BitRate::bps);
            }
            _ => {}
        }
    }

    /// Query of the reload URI: the parameters of the viewer, which [`SteeringQuery::read`] reads,
    /// and the parameters for other servers.
    pub fn reload_query(&self) -> String {
        let Viewer { location, isp, bitrate, number } = &self.viewer;
        let mut query = format!(
            "location={}&isp={}&bitrate={}&viewer={number:x}",
            encoded(location),
            encoded(isp),
            bitrate.as_bps()
        );
        join(&mut query, &self.others);
        query
    }
}

/// The parameters of a query: the encoded text, the name and the value of each.
fn parameters(query: &str) -> impl Iterator<Item = (&str, Cow<'_, str>, Cow<'_, str>)> {
    query.split('&').filter_map(|text| {
        let (name, value) = form_urlencoded::parse(text.as_bytes()).next()?;
        Some((text, name, value))
    })
}

/// Appends parameters to a query.
fn join(query: &mut String, parameters: &str) {
    if !query.is_empty() && !parameters.is_empty() {
        query.push('&');
    }
    query.push_str(parameters);
}

/// The query without the parameters of a steering server, with its encoding, for a redirect.
pub fn without_viewer(query: &str) -> String {
    let mut rest = String::new();
    let is_own = |name: &str| matches!(name, "location" | "isp" | "bitrate" | "viewer");
    let others = parameters(query).filter(|(_, name, _)| !is_own(name));
    others.for_each(|(text, ..)| join(&mut rest, text));
    rest
}

/// Checks the name of a location or provider. Names are sent by untrusted clients, and operators
/// see them.
fn name(parameter: &str, value: &str) -> Result<String, QueryError> {
    let is_name = (1..=NAME_BYTES_MAX).contains(&value.len()) && is_printable(value);
    if is_name { Ok(value.to_owned()) } else { Err(bad(parameter, value, "1 to 128 bytes of text")) }
}

fn bad(parameter: &str, value: &str, must_be: &'static str) -> QueryError {
    let brief = |text: &str, characters| text.chars().take(characters).collect();
    QueryError::Bad { parameter: brief(parameter, 32), value: brief(value, 64), must_be }
}

/// Percent-encodes text for a query (RFC 3986, section 2.3).
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// A clone of a pathway.
///
/// Source: draft-pantos-hls-rfc8216bis, section 7.2 (`PATHWAY-CLONES`).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING-KEBAB-CASE")]
pub struct PathwayClone {
    /// Name of the base pathway.
    pub base_id: String,
    /// Name of the clone.
    pub id: String,
    /// Replacement in the URIs of the base pathway.
    pub uri_replacement: UriReplacement,
}

/// Replacement that turns the URIs of a pathway into the URIs of its clone.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING-KEBAB-CASE")]
pub struct UriReplacement {
    /// Name of the clone's host.
    pub host: String,
}

/// Answer of a steering server. HLS and DASH define the same JSON.
///
/// Source: draft-pantos-hls-rfc8216bis, section 7.2.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING-KEBAB-CASE")]
pub struct SteeringManifest {
    /// Version of the format: 1.
    pub version: u32,
    /// Time to live: seconds until the player's next query.
    pub ttl: u32,
    /// URI of the next query, relative to the URI of the current query.
    pub reload_uri: String,
    /// Names of the pathways in order of preference.
    pub pathway_priority: Vec<String>,
    /// Clones, which the player's manifest does not list.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pathway_clones: Vec<PathwayClone>,
}

impl SteeringManifest {
    /// Answers `query` with clones in order of preference. `preferred` has the key of each clone's
    /// pathway, and the clone's number.
    ///
    /// The manifest's own pathways follow the clones, so that the player keeps a pathway after all
    /// preferred clones have failed. Unavailable pathways, `gone`, are last. Returns `None` if no
    /// pathway would be listed.
    pub fn new<K: Copy + Ord>(
        preferred: impl IntoIterator<Item = (K, u32)>,
        pathways: &PathwayTable<K>,
        gone: &BTreeSet<K>,
        query: &SteeringQuery,
        ttl_s: u32,
    ) -> Option<Self> {
        let mut pathway_priority: Vec<String> = Vec::new();
        let mut pathway_clones: Vec<PathwayClone> = Vec::new();
        for (key, number) in preferred.into_iter().take(PATHWAYS_MAX) {
            let Some(pathway) = pathways.get(&key) else { continue };
            let (id, clone) = pathway.clone_of(number);
            if !pathway_priority.contains(&id) {
                pathway_priority.push(id);
                pathway_clones.extend(clone);
            }
        }
        let of = |is_gone: bool| pathways.iter().filter(move |(key, _)| gone.contains(key) == is_gone);
        for (_, pathway) in of(false).chain(of(true)) {
            if pathway_priority.len() >= 2 * PATHWAYS_MAX {
                break;
            }
            if !pathway_priority.contains(&pathway.id) {
                pathway_priority.push(pathway.id.clone());
            }
        }
        let reload_uri = format!("?{}", query.reload_query());
        let is_known = !pathway_priority.is_empty();
        is_known.then_some(Self { version: 1, ttl: ttl_s, reload_uri, pathway_priority, pathway_clones })
    }

    /// Query of the reload URI, with its `?`.
    pub fn reload_query(&self) -> Option<&str> {
        self.reload_uri.find('?').map(|at| &self.reload_uri[at..])
    }

    /// Adds the clones to `hosts`, which has the host and port of each pathway of the player.
    /// Returns the pathways that are in `hosts`, in order of preference.
    ///
    /// A clone has the port of its base. A clone of an unknown pathway is ignored.
    pub fn apply(&self, hosts: &mut BTreeMap<String, String>) -> Vec<String> {
        for clone in &self.pathway_clones {
            let base = hosts.get(&clone.base_id);
            if let Some((_, port)) = base.and_then(|base| base.rsplit_once(':')) {
                let host = format!("{}:{port}", clone.uri_replacement.host);
                hosts.insert(clone.id.clone(), host);
            }
        }
        self.pathway_priority.iter().filter(|id| hosts.contains_key(*id)).cloned().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn defaults() -> Viewer {
        Viewer { location: "nowhere".into(), isp: "none".into(), number: 0xabc, bitrate: BitRate::mbps(3) }
    }

    fn read(dialect: Dialect, parameters: &[(&str, &str)]) -> Result<SteeringQuery, QueryError> {
        let query = form_urlencoded::Serializer::new(String::new()).extend_pairs(parameters).finish();
        SteeringQuery::read(dialect, &query, defaults())
    }

    fn pathways() -> PathwayTable<u32> {
        let pathway = |id: &str, hosts: &[(u32, &str)]| Pathway {
            id: id.into(),
            hosts: hosts.iter().map(|(number, host)| (*number, (*host).to_owned())).collect(),
        };
        [(0, pathway("alpha", &[(4, "a4.example")])), (1, pathway("beta", &[])), (2, pathway("gamma", &[]))]
            .into()
    }

    /// HLS, section 7.2: keys and format of an answer.
    #[test]
    fn steering_manifest_has_the_standards_json_form() {
        let query =
            read(Dialect::Hls, &[("viewer", "1"), ("_HLS_pathway", "alpha"), ("_HLS_throughput", "9000000")])
                .expect("it is one");
        let manifest =
            SteeringManifest::new([(0, 4), (1, 0), (1, 7)], &pathways(), &BTreeSet::new(), &query, 30)
                .expect("there are pathways");
        assert_eq!(
            serde_json::to_value(&manifest).expect("it is JSON"),
            serde_json::json!({
                "VERSION": 1,
                "TTL": 30,
                "RELOAD-URI": "?location=nowhere&isp=none&bitrate=7200000&viewer=1",
                "PATHWAY-PRIORITY": ["alpha.4", "beta", "alpha", "gamma"],
                "PATHWAY-CLONES": [{"BASE-ID": "alpha", "ID": "alpha.4", "URI-REPLACEMENT": {"HOST": "a4.example"}}],
            })
        );
        assert_eq!(manifest.reload_query(), Some(&*manifest.reload_uri));
        let none = SteeringManifest::new([(0, 4)], &PathwayTable::new(), &BTreeSet::new(), &query, 30);
        assert_eq!(none, None);
    }

    #[test]
    fn pathways_are_found_by_clone_and_host() {
        let pathways = pathways();
        let of = |id: &str| pathway_key(&pathways, id);
        assert_eq!((of("alpha"), of("alpha.4"), of("beta")), (Some(0), Some(0), Some(1)));
        assert_eq!((of("alpha.5"), of("beta.1"), of("delta")), (None, None, None));
        assert_eq!((host_key(&pathways, "a4.example"), host_key(&pathways, "alpha")), (Some(0), None));
    }

    #[test]
    fn unavailable_pathways_are_listed_last() {
        let query = read(Dialect::Dash, &[]).expect("it is one");
        let manifest =
            SteeringManifest::new([(1, 0), (0, 4)], &pathways(), &BTreeSet::from([0]), &query, TTL_S)
                .expect("there are pathways");
        assert_eq!(manifest.pathway_priority, ["beta", "alpha.4", "gamma", "alpha"]);
    }

    #[test]
    fn clones_are_reached_at_the_base_port() {
        let query = read(Dialect::Hls, &[]).expect("it is one");
        let manifest = SteeringManifest::new([(0, 4)], &pathways(), &BTreeSet::new(), &query, TTL_S)
            .expect("there are pathways");
        let mut hosts =
            BTreeMap::from([("alpha".to_owned(), "a:81".to_owned()), ("beta".into(), "b:82".into())]);
        assert_eq!(manifest.apply(&mut hosts), ["alpha.4", "alpha", "beta"], "gamma has no host");
        assert_eq!(hosts["alpha.4"], "a4.example:81");
        let mut other = BTreeMap::from([("beta".to_owned(), "b:82".to_owned())]);
        assert_eq!(manifest.apply(&mut other), ["beta"], "the base of the clone is unknown");
    }

    /// DASH has lists in quotation marks, HLS one value.
    #[test]
    fn only_parameters_of_the_players_standard_are_read() {
        let query = read(
            Dialect::Dash,
            &[("_DASH_pathway", "\"alpha,beta\""), ("_DASH_throughput", "\"1000000,4000000\"")],
        );
        let query = query.expect("it is one");
        assert_eq!(
            (query.pathways, query.throughput),
            (vec!["alpha".into(), "beta".into()], Some(BitRate::mbps(4)))
        );
        assert_eq!(query.viewer.bitrate, BitRate::bps(3_200_000));
        let other = read(Dialect::Hls, &[("_DASH_throughput", "1000000"), ("_HLS_throughput", "soon")])
            .expect("it is one");
        assert_eq!((other.throughput, other.viewer.bitrate), (None, BitRate::mbps(3)));
    }

    #[test]
    fn bad_values_are_refused_in_one_line() {
        let message = |parameters: &[(&str, &str)]| {
            read(Dialect::Hls, parameters).expect_err("it is wrong").to_string()
        };
        assert_eq!(
            message(&[("bitrate", "fast")]),
            "bitrate=fast: must be a whole number of bit/s, 1 to 10^12"
        );
        assert_eq!(message(&[("viewer", "xyz")]), "viewer=xyz: must be up to sixteen hexadecimal digits");
        assert_eq!(message(&[("location", "")]), "location=: must be 1 to 128 bytes of text");
        // #48: an operator's page showed the name of a location, and the text beside the name,
        // backwards.
        for misleading in ["a\u{202e}b", "a\u{200b}", "\u{1b}[2J"] {
            assert!(read(Dialect::Hls, &[("isp", misleading)]).is_err(), "{misleading:?}");
        }
        let long = |query: &str| SteeringQuery::read(Dialect::Hls, query, defaults()).map(drop);
        let message = |length| long(&"x".repeat(length)).expect_err("it is too long").to_string();
        assert_eq!(message(4_097), "query of 4097 bytes: at most 4096");
        assert_eq!(message(2_049), "parameters for other servers of 2049 bytes: at most 2048");
        assert_eq!(long(&"x".repeat(2_048)), Ok(()));
    }

    proptest! {
        /// No parameter causes a panic.
        #[test]
        fn reload_query_preserves_the_viewer(
            parameters in proptest::collection::vec(("(location|isp|bitrate|viewer|_HLS_pathway|_HLS_throughput|_DASH_throughput|x)", ".{0,20}"), 0..6),
            dash: bool,
        ) {
            let dialect = if dash { Dialect::Dash } else { Dialect::Hls };
            let pairs: Vec<(&str, &str)> = parameters.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            if let Ok(query) = read(dialect, &pairs) {
                let again = SteeringQuery::read(dialect, &query.reload_query(), defaults());
                prop_assert_eq!(again.map(|query| (query.viewer, query.others)), Ok((query.viewer, query.others)));
            }
        }
    }

    /// #52: a token was lost with the first reload, and a signature with each redirect.
    #[test]
    fn parameters_for_other_servers_are_kept_as_written() {
        let query =
            "hdnts=exp~9%2Facl&location=berlin&_HLS_pathway=alpha&x=a%20b&CMCD=bl%3D1&flag&&_DASH_x=1";
        let asked = SteeringQuery::read(Dialect::Hls, query, defaults()).expect("no fault");
        assert_eq!(asked.others, "hdnts=exp~9%2Facl&x=a%20b&flag&_DASH_x=1");
        assert_eq!(asked.report.as_deref(), Some("bl=1"));
        let reload =
            "location=berlin&isp=none&bitrate=3000000&viewer=abc&hdnts=exp~9%2Facl&x=a%20b&flag&_DASH_x=1";
        assert_eq!(asked.reload_query(), reload);
        // A redirect passes on the parameters of the player, which the cluster's server reads.
        let passed = "hdnts=exp~9%2Facl&_HLS_pathway=alpha&x=a%20b&CMCD=bl%3D1&flag&_DASH_x=1";
        assert_eq!(without_viewer(query), passed);
        assert_eq!(without_viewer("viewer=1&isp=x"), "");
    }
}
