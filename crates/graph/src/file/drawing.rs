//! Graphs in the formats of drawing programs and collections: nodes, edges and optional fields.
//!
//! The reader of each format fills a [`Drawing`]; [`Drawing::topology`] converts the drawing to a
//! topology. So all formats name sites, fill gaps and warn in the same way. Leaves out: the
//! formats. Read [`Drawing`] first.

use super::{Defaults, LocatedProblem, Problem, Warning, quoted};
use crate::builtin::fibre_delay;
use crate::{CAPACITY_MAX, DELAY_MAX, GeoPoint, LinkProperties, SITE_NAME_BYTES_MAX, Topology};
use anabranch_units::text::printable;
use anabranch_units::{BitRate, Duration, SiteId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

/// Maximum capacity that is accepted, in bit/s.
const RATE_BPS_MAX: f64 = CAPACITY_MAX.as_bps() as f64;
/// Words in the names of fields that are not read, but may state an edge's capacity, delay, loss or
/// price.
const TELLING_WORDS: [&str; 11] = [
    "capacity",
    "bandwidth",
    "speed",
    "rate",
    "throughput",
    "delay",
    "latency",
    "rtt",
    "loss",
    "cost",
    "weight",
];
/// Maximum number of names in a warning.
const NAMES_MAX: usize = 8;
/// Fields of edges that are read.
const EDGE_FIELDS: [&str; 5] = ["LinkSpeedRaw", "LinkSpeed", "LinkSpeedUnits", "capacity", "delay"];

/// A graph as stated in its file.
#[derive(Debug, Default)]
pub(super) struct Drawing<'a> {
    pub(super) name: Option<&'a str>,
    /// Units of the edges' `capacity` and `delay` if these fields are plain numbers, as in files of
    /// FNSS.
    pub(super) capacity_unit: Option<&'a str>,
    pub(super) delay_unit: Option<&'a str>,
    pub(super) nodes: Vec<Node<'a>>,
    pub(super) edges: Vec<Edge<'a>>,
}

#[derive(Debug)]
pub(super) struct Node<'a> {
    pub(super) id: &'a str,
    pub(super) label: &'a str,
    pub(super) fields: Fields<'a>,
}

#[derive(Debug)]
pub(super) struct Edge<'a> {
    pub(super) source: &'a str,
    pub(super) target: &'a str,
    pub(super) is_directed: bool,
    pub(super) fields: Fields<'a>,
}

/// Fields of a node or an edge: each has a text and the text's position.
#[derive(Debug)]
pub(super) struct Fields<'a> {
    /// The table in messages: `node` or `edge`.
    pub(super) table: &'static str,
    pub(super) at: usize,
    pub(super) of: BTreeMap<&'a str, (&'a str, usize)>,
}

impl<'a> Fields<'a> {
    /// Text of a field; `None` if the field is missing or empty.
    pub(super) fn text(&self, name: &str) -> Option<&'a str> {
        self.of.get(name).map(|(text, _)| text.trim()).filter(|text| !text.is_empty())
    }

    fn at(&self, name: &str) -> usize {
        self.of.get(name).map_or(self.at, |(_, at)| *at)
    }

    fn bad(&self, name: &str, value: &str, allowed: &str) -> LocatedProblem {
        let (field, value, allowed) = (name.to_owned(), quoted(value), allowed.to_owned());
        Problem::BadValue { table: self.table, field, value, allowed }.at(self.at(name))
    }

    /// Value of a numeric field. `NaN` means that the value is missing.
    pub(super) fn number(
        &self,
        name: &str,
        range: RangeInclusive<f64>,
        allowed: &str,
    ) -> Result<Option<f64>, LocatedProblem> {
        let Some(text) = self.text(name) else { return Ok(None) };
        match text.parse::<f64>() {
            Ok(x) if x.is_nan() => Ok(None),
            Ok(x) if range.contains(&x) => Ok(Some(x)),
            _ => Err(self.bad(name, text, allowed)),
        }
    }

    fn place(&self) -> Result<Option<GeoPoint>, LocatedProblem> {
        let latitude = self.number("Latitude", -90.0..=90.0, "degrees from -90 to 90")?;
        let longitude = self.number("Longitude", -180.0..=180.0, "degrees from -180 to 180")?;
        Ok(latitude
            .zip(longitude)
            .map(|(latitude_deg, longitude_deg)| GeoPoint { latitude_deg, longitude_deg }))
    }

    /// The capacity stated in the fields of the Internet Topology Zoo.
    fn zoo_capacity(&self) -> Result<Option<BitRate>, LocatedProblem> {
        let allowed = "a number from 0 to 1e15 bit/s";
        let bps = match self.number("LinkSpeedRaw", 0.0..=RATE_BPS_MAX, allowed)? {
            Some(bps) => bps,
            None => {
                let Some(speed) = self.number("LinkSpeed", 0.0..=RATE_BPS_MAX, allowed)? else {
                    return Ok(None);
                };
                let factor = match self.text("LinkSpeedUnits").unwrap_or("") {
                    "" => 1.0,
                    "K" | "k" => 1e3,
                    "M" => 1e6,
                    "G" => 1e9,
                    "T" => 1e12,
                    other => return Err(self.bad("LinkSpeedUnits", other, "one of K, M, G, T")),
                };
                if speed * factor > RATE_BPS_MAX {
                    return Err(self.bad("LinkSpeed", &speed.to_string(), allowed));
                }
                speed * factor
            }
        };
        // In the Zoo's files, zero means that the capacity is unknown.
        Ok((bps >= 1.0).then(|| BitRate::bps(bps.round() as u64)))
    }

    /// Reads a quantity that has its own unit or is a plain number in `unit`. If a plain number has
    /// no `unit`, the field is not read, and a warning is added.
    fn quantity<T: std::str::FromStr>(
        &self,
        name: &'static str,
        unit: Option<&str>,
        allowed: &str,
        plain: &mut UnitlessFields,
    ) -> Result<Option<T>, LocatedProblem> {
        let Some(text) = self.text(name) else { return Ok(None) };
        let Ok(number) = text.parse::<f64>() else {
            return text.parse::<T>().map(Some).map_err(|_| self.bad(name, text, allowed));
        };
        if number.is_nan() {
            return Ok(None);
        }
        let Some(unit) = unit else {
            plain.entry(name).or_insert(self.at(name));
            return Ok(None);
        };
        let read = format!("{number} {unit}").parse::<T>();
        read.map(Some).map_err(|_| self.bad(name, &format!("{text} {unit}"), allowed))
    }
}

/// Position of the first field without a unit, by field name.
type UnitlessFields = BTreeMap<&'static str, usize>;

impl Drawing<'_> {
    /// Converts the graph to a topology.
    ///
    /// Errors: the first mistake, with its position.
    pub(super) fn topology(
        &self,
        defaults: &Defaults,
        warnings: &mut Vec<Warning>,
    ) -> Result<Topology, LocatedProblem> {
        let mut topology = Topology::new(self.name.unwrap_or("topology"));
        let ids = self.add_sites(&mut topology)?;
        let rate_unit = self.capacity_unit.map(|unit| match unit {
            "bps" => "bit/s",
            "Kbps" | "kbps" => "kbit/s",
            "Mbps" => "Mbit/s",
            "Gbps" => "Gbit/s",
            "Tbps" => "Tbit/s",
            other => other,
        });
        let (mut loops, mut plain) = (Vec::new(), UnitlessFields::new());
        for edge in &self.edges {
            let end = |id: &str| {
                let unknown = || Problem::UnknownNode { id: quoted(id) }.at(edge.fields.at);
                ids.get(id).copied().ok_or_else(unknown)
            };
            let (from, to) = (end(edge.source)?, end(edge.target)?);
            if from == to {
                loops.push(edge.fields.at);
                continue;
            }
            let fields = &edge.fields;
            let allowed = "a rate such as `10 Gbit/s`, or a number and the graph's `capacity_unit`";
            let stated = fields.quantity::<BitRate>("capacity", rate_unit, allowed, &mut plain)?;
            let capacity = fields.zoo_capacity()?.or(stated.filter(|rate| rate.as_bps() > 0));
            let allowed = "a time such as `5 ms`, or a number and the graph's `delay_unit`, at most 1 h";
            let stated = fields.quantity::<Duration>("delay", self.delay_unit, allowed, &mut plain)?;
            if stated.is_some_and(|delay| delay > DELAY_MAX) {
                return Err(fields.bad("delay", fields.text("delay").unwrap_or_default(), allowed));
            }
            let delay =
                stated.unwrap_or_else(|| match (topology.site(from).place, topology.site(to).place) {
                    (Some(a), Some(b)) => fibre_delay(a, b, defaults.stretch),
                    _ => defaults.delay,
                });
            let properties = LinkProperties::new(capacity.unwrap_or(defaults.capacity), delay);
            let added = if edge.is_directed {
                topology.add_link(from, to, properties).map(drop)
            } else {
                topology.add_cable(from, to, properties).map(drop)
            };
            added.map_err(|error| Problem::Topology(error).at(fields.at))?;
        }
        if let Some(first) = loops.first() {
            let text = match loops.len() {
                1 => "an edge from a node to itself is left out".to_owned(),
                count => format!("{count} edges from a node to itself are left out"),
            };
            warnings.push(Warning { offset: *first, text });
        }
        for (name, offset) in plain {
            let (example, unit) =
                if name == "delay" { ("5 ms", "delay_unit") } else { ("10 Gbit/s", "capacity_unit") };
            let text = format!(
                "`{name}` of edges is a number without a unit and is not read: write it as `{example}`, or give the graph `{unit}`"
            );
            warnings.push(Warning { offset, text });
        }
        self.warn_of_fields(warnings);
        Ok(topology)
    }

    /// Warns about fields of edges that are not read but may state a property of links.
    fn warn_of_fields(&self, warnings: &mut Vec<Warning>) {
        let mut unread: BTreeMap<&str, usize> = BTreeMap::new();
        for fields in self.edges.iter().map(|edge| &edge.fields) {
            for (name, (_, at)) in &fields.of {
                let lower = name.to_ascii_lowercase();
                let is_telling = TELLING_WORDS.iter().any(|word| lower.contains(word));
                if is_telling && !EDGE_FIELDS.contains(name) {
                    unread.entry(name).or_insert(*at);
                }
            }
        }
        if let Some(offset) = unread.values().min() {
            let shown = unread.keys().take(NAMES_MAX).map(|name| format!("`{}`", quoted(name)));
            let mut names: Vec<_> = shown.collect();
            if let more @ 1.. = unread.len().saturating_sub(NAMES_MAX) {
                names.push(format!("{more} more"));
            }
            let text = format!(
                "fields of edges that are not read: {}: name them `capacity` or `delay`, with a unit as in `10 Gbit/s`, if they are",
                names.join(", ")
            );
            warnings.push(Warning { offset: *offset, text });
        }
    }

    /// Adds a site for every node. Returns the sites' ids, by the ids of the nodes.
    fn add_sites(&self, topology: &mut Topology) -> Result<BTreeMap<&str, SiteId>, LocatedProblem> {
        let labels: Vec<String> = self.nodes.iter().map(|node| site_name(node.label)).collect();
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        for label in &labels {
            *seen.entry(label).or_default() += 1;
        }
        let mut taken: BTreeSet<String> = seen.keys().map(|label| (*label).to_owned()).collect();
        let mut ids = BTreeMap::new();
        for (node, label) in self.nodes.iter().zip(&labels) {
            // The Zoo writes `None` or `?` if its map shows no name.
            let says_something = !matches!(label.as_str(), "" | "None" | "?" | "." | "..");
            let name = if says_something && seen[label.as_str()] == 1 {
                label.clone()
            } else {
                let id = site_name(node.id);
                let mut name = match (says_something, id.as_str()) {
                    (true, _) => format!("{label} ({id})"),
                    (false, "" | "." | "..") => "site".to_owned(),
                    (false, _) => id.clone(),
                };
                while taken.contains(&name) {
                    name.push('\'');
                }
                taken.insert(name.clone());
                name
            };
            let at = node.fields.at;
            let added = topology.add_site(name, node.fields.place()?);
            let site = added.map_err(|error| Problem::Topology(error).at(at))?;
            if ids.insert(node.id, site).is_some() {
                let allowed = "unlike every other node's".to_owned();
                let value = quoted(node.id);
                return Err(Problem::BadValue { table: "node", field: "id".into(), value, allowed }.at(at));
            }
        }
        Ok(ids)
    }
}

/// Converts a label to a site name: one line, without `/`, and short enough to append a number.
fn site_name(label: &str) -> String {
    let words =
        label.split(|c: char| c.is_whitespace() || printable(c.encode_utf8(&mut [0; 4])) == "\u{fffd}");
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let name = words.join(" ").replace('/', "-");
    let end = (0..=SITE_NAME_BYTES_MAX / 3).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    name[..end].trim_end().to_owned()
}
