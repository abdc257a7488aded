//! What players are told: content steering, in the dialects of HLS and DASH.
//!
//! A player asks the address that its manifest names, and is told in which order to prefer the ways (pathways, service locations) by which the manifest
//! can be had, and when to ask again. A network is a pathway of the manifest, a cluster a clone of it with another host. All that the broker
//! has to know of a viewer is in the address that the player is told to reload from, so it keeps nothing.
//!
//! Source: HLS: Pantos, *HTTP Live Streaming 2nd Edition*, draft-pantos-hls-rfc8216bis, section 7; DASH: ETSI TS 103 998, *Content Steering for
//! DASH*. Clones replace hosts only, as DASH has no other, and no clone has its base's name. Leaves out: sockets. Read [`Steering`], [`Ask`] and
//! [`answer`] first.

use crate::broker::ClusterId;
use crate::delivery::{Delivery, Viewer};
use anabranch_units::text::is_printable;
use anabranch_units::{BitRate, PeerId};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// How long an answer holds if nobody says otherwise (HLS: section 7.1, DASH: the same).
pub const TTL_S: u32 = 300;
/// The most ways that a player is told of.
pub const WAYS_MAX: usize = 6;
/// The longest name of a city or provider, and the longest query.
pub const NAME_BYTES_MAX: usize = 128;
/// See above.
pub const QUERY_BYTES_MAX: usize = 2_048;
/// The highest throughput that counts, and the share of it that a viewer is taken to watch at.
const THROUGHPUT_BPS_MAX: u64 = 1_000_000_000_000;
const WATCHES_PERCENT: u64 = 80;

/// Which players ask.
#[derive(Copy, Clone, Debug, PartialEq, Eq)]
pub enum Dialect {
    /// Those of HLS.
    Hls,
    /// Those of DASH.
    Dash,
}

impl Dialect {
    /// Its word in addresses.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Hls => "hls",
            Self::Dash => "dash",
        }
    }
    const fn prefix(self) -> &'static str {
        match self {
            Self::Hls => "_HLS_",
            Self::Dash => "_DASH_",
        }
    }
}

/// A network, as manifests have it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Listed {
    /// The pathway's name in manifests: letters, digits, dots, hyphens and underscores.
    pub pathway: String,
    /// Names of hosts of clusters by their numbers; no ports, as hls.js replaces none. A cluster without one is the pathway itself.
    #[serde(default)]
    pub hosts: BTreeMap<u32, String>,
}

/// All networks by number.
pub type Catalogue = BTreeMap<PeerId, Listed>;

/// What a player asks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ask {
    /// In which dialect.
    pub dialect: Dialect,
    /// For whom.
    pub viewer: Viewer,
    /// By which ways it plays now, those of the dialect's parameter.
    pub pathways: Vec<String>,
    /// How fast data came, if it says so.
    pub throughput: Option<BitRate>,
}

/// Why a question is none.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum AskError {
    /// The query is longer than allowed.
    TooLong {
        /// Its bytes.
        bytes: usize,
    },
    /// A value cannot be what it should.
    Bad {
        /// Of which parameter.
        parameter: String,
        /// The value.
        value: String,
        /// What it must be.
        must_be: &'static str,
    },
}

impl fmt::Display for AskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { bytes } => write!(f, "query of {bytes} bytes: at most {QUERY_BYTES_MAX}"),
            Self::Bad { parameter, value, must_be } => write!(f, "{parameter}={value}: must be {must_be}"),
        }
    }
}
impl std::error::Error for AskError {}

/// What is not said of a viewer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unsaid {
    /// The city by its address, or none known.
    pub location: String,
    /// The provider, the same.
    pub isp: String,
    /// A new number.
    pub number: u64,
    /// The bitrate, if nothing tells it.
    pub bitrate: BitRate,
}

impl Ask {
    /// Reads a query, its parameters decoded: `location`, `isp`, `bitrate` (bit/s) and `viewer` (hexadecimal) are the broker's own, and in the
    /// address that a player reloads from; what players add is the dialect's. Parameters that are neither say nothing.
    ///
    /// Errors: a query that is too long, a value that is none.
    pub fn read<'a>(
        dialect: Dialect,
        query_bytes: usize,
        parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
        unsaid: Unsaid,
    ) -> Result<Self, AskError> {
        if query_bytes > QUERY_BYTES_MAX {
            return Err(AskError::TooLong { bytes: query_bytes });
        }
        let bad = |parameter: &str, value: &str, must_be| AskError::Bad {
            parameter: parameter.chars().take(32).collect(),
            value: value.chars().take(64).collect(),
            must_be,
        };
        let Unsaid { location, isp, number, bitrate } = unsaid;
        let mut ask = Self {
            dialect,
            viewer: Viewer { location, isp, bitrate, number },
            pathways: Vec::new(),
            throughput: None,
        };
        let mut bitrate = None;
        for (parameter, value) in parameters {
            let name = |value: &str| {
                // Operators see the names that strangers send.
                let is_name = (1..=NAME_BYTES_MAX).contains(&value.len()) && is_printable(value);
                if is_name {
                    Ok(value.to_owned())
                } else {
                    Err(bad(parameter, value, "1 to 128 bytes of text"))
                }
            };
            match parameter {
                "location" => ask.viewer.location = name(value)?,
                "isp" => ask.viewer.isp = name(value)?,
                "bitrate" => {
                    let bps = value.parse().ok().filter(|bps| (1..=THROUGHPUT_BPS_MAX).contains(bps));
                    bitrate = Some(
                        bps.ok_or_else(|| bad(parameter, value, "a whole number of bit/s, 1 to 10^12"))?,
                    );
                }
                "viewer" => {
                    ask.viewer.number = u64::from_str_radix(value, 16)
                        .map_err(|_| bad(parameter, value, "up to sixteen hexadecimal digits"))?;
                }
                _ => ask.read_of_player(parameter, value),
            }
        }
        let watches = ask.throughput.map(|rate| rate.as_bps() / 100 * WATCHES_PERCENT);
        if let Some(bps) = bitrate.or(watches).filter(|bps| *bps > 0) {
            ask.viewer.bitrate = BitRate::bps(bps);
        }
        Ok(ask)
    }

    /// What a player adds. What it says wrongly says nothing: it plays on.
    fn read_of_player(&mut self, parameter: &str, value: &str) {
        // DASH quotes lists; HLS has one value.
        let values = value.trim_matches('"').split(',').map(str::trim).filter(|value| !value.is_empty());
        match parameter.strip_prefix(self.dialect.prefix()) {
            Some("pathway") => self.pathways = values.take(WAYS_MAX).map(str::to_owned).collect(),
            Some("throughput") => {
                let rates = values.filter_map(|value| value.parse().ok());
                let fastest = rates.filter(|bps| (1..=THROUGHPUT_BPS_MAX).contains(bps)).max();
                self.throughput = fastest.map(BitRate::bps);
            }
            _ => {}
        }
    }

    /// The query of the address that the player reloads from: all that is known of its viewer.
    pub fn reload_query(&self) -> String {
        let Viewer { location, isp, bitrate, number } = &self.viewer;
        format!(
            "location={}&isp={}&bitrate={}&viewer={number:x}",
            encoded(location),
            encoded(isp),
            bitrate.as_bps()
        )
    }
}

/// Text as a query may have it (RFC 3986, section 2.3).
fn encoded(text: &str) -> String {
    let byte = |byte: u8| match byte {
        b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(byte).to_string(),
        _ => format!("%{byte:02X}"),
    };
    text.bytes().map(byte).collect()
}

/// A clone of a pathway, with another host.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING-KEBAB-CASE")]
pub struct PathwayClone {
    /// Of which.
    pub base_id: String,
    /// Its name.
    pub id: String,
    /// What is another.
    pub uri_replacement: Replacement,
}

/// What of a clone's addresses is another.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING-KEBAB-CASE")]
pub struct Replacement {
    /// The host's name.
    pub host: String,
}

/// What a player is told: the same JSON in both dialects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING-KEBAB-CASE")]
pub struct Steering {
    /// 1.
    pub version: u32,
    /// Seconds until it asks again.
    pub ttl: u32,
    /// Where it asks then: relative to where it has asked.
    pub reload_uri: String,
    /// Ways, the best first.
    pub pathway_priority: Vec<String>,
    /// Ways that the manifest does not have.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub pathway_clones: Vec<PathwayClone>,
}

/// The answer to a question; none where nothing is known of any way.
pub fn answer(
    delivery: &Delivery,
    catalogue: &Catalogue,
    gone: &BTreeSet<PeerId>,
    ask: &Ask,
    ttl_s: u32,
) -> Option<Steering> {
    let mut pathway_priority: Vec<String> = Vec::new();
    let mut pathway_clones: Vec<PathwayClone> = Vec::new();
    for to in delivery.order(&ask.viewer, gone, WAYS_MAX) {
        let Some(listed) = catalogue.get(&to.network) else { continue };
        let (id, clone) = way(listed, to);
        if !pathway_priority.contains(&id) {
            pathway_priority.push(id);
            pathway_clones.extend(clone);
        }
    }
    // The manifest's own ways come last, so that a player has one when all clusters that were chosen have gone.
    let of = |is_gone: bool| catalogue.iter().filter(move |(network, _)| gone.contains(network) == is_gone);
    for (_, listed) in of(false).chain(of(true)) {
        if pathway_priority.len() >= 2 * WAYS_MAX {
            break;
        }
        if !pathway_priority.contains(&listed.pathway) {
            pathway_priority.push(listed.pathway.clone());
        }
    }
    let reload_uri = format!("?{}", ask.reload_query());
    let is_known = !pathway_priority.is_empty();
    is_known.then_some(Steering { version: 1, ttl: ttl_s, reload_uri, pathway_priority, pathway_clones })
}

/// The network that a way belongs to, a manifest's own or a clone.
pub fn network_of(catalogue: &Catalogue, way: &str) -> Option<PeerId> {
    let is_clone = |listed: &Listed| {
        let number = way.strip_prefix(&*listed.pathway).and_then(|rest| rest.strip_prefix('.'));
        number
            .and_then(|number| number.parse().ok())
            .is_some_and(|cluster| listed.hosts.contains_key(&cluster))
    };
    let is_its = |listed: &Listed| listed.pathway == way || is_clone(listed);
    catalogue.iter().find(|(_, listed)| is_its(listed)).map(|(network, _)| *network)
}

/// A cluster's name among ways, and the clone that it is if it is one.
fn way(listed: &Listed, to: ClusterId) -> (String, Option<PathwayClone>) {
    let Some(host) = listed.hosts.get(&to.cluster) else { return (listed.pathway.clone(), None) };
    let id = clone_id(listed, to.cluster);
    let uri_replacement = Replacement { host: host.clone() };
    (id.clone(), Some(PathwayClone { base_id: listed.pathway.clone(), id, uri_replacement }))
}

/// The name of a clone of a network's pathway.
pub fn clone_id(listed: &Listed, cluster: u32) -> String {
    format!("{}.{cluster}", listed.pathway)
}

/// Whether a pathway may be called so (HLS: section 4.4.6.6).
pub fn is_pathway(name: &str) -> bool {
    let is_its = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
    !name.is_empty() && name.len() <= NAME_BYTES_MAX && name.chars().all(is_its)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::broker::{Decision, Placed};
    use proptest::prelude::*;

    fn unsaid() -> Unsaid {
        Unsaid { location: "nowhere".into(), isp: "none".into(), number: 0xabc, bitrate: BitRate::mbps(3) }
    }

    fn read(dialect: Dialect, parameters: &[(&str, &str)]) -> Result<Ask, AskError> {
        Ask::read(dialect, 100, parameters.iter().copied(), unsaid())
    }

    fn world() -> (Delivery, Catalogue) {
        let to = |network, cluster| ClusterId { network: PeerId(network), cluster };
        let placed = |to| Placed { place: 0, bitrate: BitRate::mbps(3), sessions: 5, to: Some((to, 1.0)) };
        let delivery = Delivery::new(&Decision {
            round: 3,
            places: vec![("nowhere".into(), "none".into())],
            placed: vec![placed(to(0, 4)), placed(to(1, 0))],
            prices_per_mbps: BTreeMap::new(),
            gap_share: 0.0,
            standings: BTreeMap::new(),
        });
        let listed = |pathway: &str, hosts: &[(u32, &str)]| Listed {
            pathway: pathway.into(),
            hosts: hosts.iter().map(|(cluster, host)| (*cluster, (*host).to_owned())).collect(),
        };
        let catalogue = [
            (PeerId(0), listed("alpha", &[(4, "a4.example")])),
            (PeerId(1), listed("beta", &[])),
            (PeerId(2), listed("gamma", &[])),
        ];
        (delivery, catalogue.into())
    }

    /// HLS, section 7.2: the keys and the form of an answer.
    #[test]
    fn an_answer_has_the_standards_form() {
        let (delivery, catalogue) = world();
        let ask =
            read(Dialect::Hls, &[("viewer", "1"), ("_HLS_pathway", "alpha"), ("_HLS_throughput", "9000000")]);
        let steering = answer(&delivery, &catalogue, &BTreeSet::new(), &ask.expect("it is one"), 30)
            .expect("there are ways");
        let mut json = serde_json::to_value(&steering).expect("it is JSON");
        let priority = json["PATHWAY-PRIORITY"].take();
        assert_eq!(
            json,
            serde_json::json!({
                "VERSION": 1,
                "TTL": 30,
                "RELOAD-URI": "?location=nowhere&isp=none&bitrate=7200000&viewer=1",
                "PATHWAY-PRIORITY": null,
                "PATHWAY-CLONES": [{"BASE-ID": "alpha", "ID": "alpha.4", "URI-REPLACEMENT": {"HOST": "a4.example"}}],
            })
        );
        let mut ways: Vec<&str> =
            priority.as_array().expect("a list").iter().filter_map(|way| way.as_str()).collect();
        assert_eq!(ways.split_off(2), ["alpha", "gamma"], "the manifest's own come last");
        ways.sort_unstable();
        assert_eq!(ways, ["alpha.4", "beta"]);
        let of = |way: &str| network_of(&catalogue, way).map(|network| network.0);
        assert_eq!((of("alpha"), of("alpha.4"), of("beta")), (Some(0), Some(0), Some(1)));
        assert_eq!((of("alpha.5"), of("beta.1"), of("delta")), (None, None, None));
    }

    #[test]
    fn a_network_that_has_gone_is_told_last() {
        let (delivery, catalogue) = world();
        let ask = read(Dialect::Dash, &[]).expect("it is one");
        let gone = BTreeSet::from([PeerId(0)]);
        let steering = answer(&delivery, &catalogue, &gone, &ask, TTL_S).expect("there are ways");
        assert_eq!(steering.pathway_priority, ["beta", "alpha.4", "gamma", "alpha"]);
        assert_eq!(answer(&delivery, &Catalogue::new(), &gone, &ask, TTL_S), None);
    }

    /// DASH quotes its parameters and has lists in them; HLS has one value of each.
    #[test]
    fn players_parameters_are_read_in_their_dialects() {
        let ask = read(
            Dialect::Dash,
            &[("_DASH_pathway", "\"alpha,beta\""), ("_DASH_throughput", "\"1000000,4000000\"")],
        );
        let ask = ask.expect("it is one");
        assert_eq!(
            (ask.pathways, ask.throughput),
            (vec!["alpha".into(), "beta".into()], Some(BitRate::mbps(4)))
        );
        assert_eq!(ask.viewer.bitrate, BitRate::bps(3_200_000));
        let other = read(Dialect::Hls, &[("_DASH_throughput", "1000000"), ("_HLS_throughput", "soon")])
            .expect("it is one");
        assert_eq!((other.throughput, other.viewer.bitrate), (None, BitRate::mbps(3)));
    }

    #[test]
    fn what_cannot_be_is_refused_in_a_line() {
        let said = |parameters: &[(&str, &str)]| {
            read(Dialect::Hls, parameters).expect_err("it is wrong").to_string()
        };
        assert_eq!(said(&[("bitrate", "fast")]), "bitrate=fast: must be a whole number of bit/s, 1 to 10^12");
        assert_eq!(said(&[("viewer", "xyz")]), "viewer=xyz: must be up to sixteen hexadecimal digits");
        assert_eq!(said(&[("location", "")]), "location=: must be 1 to 128 bytes of text");
        // #48: an operator's page showed a place's name, and the text beside it, backwards.
        for misleading in ["a\u{202e}b", "a\u{200b}", "\u{1b}[2J"] {
            assert!(read(Dialect::Hls, &[("isp", misleading)]).is_err(), "{misleading:?}");
        }
        let long = Ask::read(Dialect::Hls, 3_000, [], unsaid()).expect_err("it is too long");
        assert_eq!(long.to_string(), "query of 3000 bytes: at most 2048");
    }

    proptest! {
        /// Whatever a player says is read without a panic, and what is reloaded says the same of the viewer.
        #[test]
        fn a_reload_says_the_same_of_the_viewer(
            parameters in proptest::collection::vec(("(location|isp|bitrate|viewer|_HLS_pathway|_HLS_throughput|_DASH_throughput|x)", ".{0,20}"), 0..6),
            dash: bool,
        ) {
            let dialect = if dash { Dialect::Dash } else { Dialect::Hls };
            let pairs: Vec<(&str, &str)> = parameters.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect();
            if let Ok(ask) = read(dialect, &pairs) {
                let query = ask.reload_query();
                let decoded: Vec<(String, String)> = query
                    .split('&')
                    .filter_map(|pair| pair.split_once('='))
                    .map(|(key, value)| (key.to_owned(), decode(value)))
                    .collect();
                let again = read(dialect, &decoded.iter().map(|(a, b)| (a.as_str(), b.as_str())).collect::<Vec<_>>());
                prop_assert_eq!(again.map(|ask| ask.viewer), Ok(ask.viewer));
            }
        }
    }

    fn decode(text: &str) -> String {
        let mut bytes = Vec::new();
        let mut rest = text.bytes();
        while let Some(byte) = rest.next() {
            let hex = |byte: u8| char::from(byte).to_digit(16).expect("a digit") as u8;
            bytes.push(match byte {
                b'%' => hex(rest.next().expect("two")) << 4 | hex(rest.next().expect("two")),
                other => other,
            });
        }
        String::from_utf8(bytes).expect("it was text")
    }
}
