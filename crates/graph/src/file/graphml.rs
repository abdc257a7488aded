//! GraphML as the Internet Topology Zoo writes it.
//!
//! Source: Knight and others, *The Internet Topology Zoo* (2011), whose files declare their fields
//! as `<key>` elements. Fields are found by `attr.name`, so the numbering of the keys does not
//! matter. These are used:
//!
//! | of | field | for |
//! | --- | --- | --- |
//! | graph | `Network`, else `label` | the topology's name |
//! | node | `label` | the site's name, plus ` (id)` if shared or blank; `/` becomes `-` |
//! | node | `Latitude`, `Longitude` | its place, if both are given |
//! | edge | `LinkSpeedRaw` (bit/s), or `LinkSpeed`, `LinkSpeedUnits` (K, M, G, T) | capacity |
//!
//! An undirected edge is a full-duplex cable; an edge that occurs twice is two cables. Capacity is
//! the caller's default where the file has none, or 0. Delay is the delay of a fibre between the
//! places, or the caller's default where a place is missing. Refused, since no topology has them:
//! hyperedges, graphs in nodes, edges from a node to itself, text with a DTD.
//!
//! Leaves out: all other fields. Read [`super::parse`] first.

use super::{At, Defaults, Problem, quoted};
use crate::builtin::fibre_delay;
use crate::{CAPACITY_MAX, LINKS_MAX, LinkProperties, Place, SITE_NAME_BYTES_MAX, SITES_MAX, Topology};
use anabranch_units::BitRate;
use anabranch_units::text::printable;
use roxmltree::{Document, Node, ParsingOptions};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of XML nodes: twice the number that the largest topology with all its fields can
/// have.
const XML_NODES_MAX: u32 = 4_000_000;
/// Maximum number of namespace declarations in a text: the parser's work grows with the cube of
/// nested ones. Real files have 2; files of drawing programs have up to 8.
const NAMESPACES_MAX: usize = 16;
/// Maximum number of attributes of an element: the parser compares each with each. Real files have
/// 4.
const ATTRIBUTES_MAX: usize = 64;
/// Maximum rate of a link.
const RATE_BPS_MAX: f64 = CAPACITY_MAX.as_bps() as f64;

/// Key ids by the kind of element (`node`, `edge`, `graph`) and name.
type Keys<'a> = BTreeMap<(&'a str, &'a str), &'a str>;

pub(super) fn read(text: &str, defaults: &Defaults) -> Result<Topology, At> {
    check_tags(text)?;
    let options = ParsingOptions { nodes_limit: XML_NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|error| syntax(text, &error))?;
    let root = document.root_element();
    if root.tag_name().name() != "graphml" {
        let message = format!("not GraphML: the first element is <{}>", quoted(root.tag_name().name()));
        return Err(Problem::Syntax { message }.at(root.range().start));
    }
    let keys = keys(root);
    let mut graphs = root.children().filter(|n| is(n, "graph"));
    let Some(graph) = graphs.next() else {
        return Err(
            Problem::Syntax { message: "not GraphML: there is no <graph>".into() }.at(root.range().start)
        );
    };
    if let Some(second) = graphs.next() {
        return Err(unsupported(second, "a second <graph>", "keep one graph in a file"));
    }
    let directed = match graph.attribute("edgedefault") {
        None | Some("undirected") => false,
        Some("directed") => true,
        Some(other) => return Err(bad(graph, "edgedefault", other, "`directed` or `undirected`")),
    };

    let data = |node, of, name| field(&keys, node, of, name);
    let name = data(graph, "graph", "Network").or_else(|| data(graph, "graph", "label"));
    let mut topology = Topology::new(name.map_or("topology", |(text, _)| text));
    let ids = add_sites(&mut topology, graph, &keys)?;

    for edge in graph.children().filter(Node::is_element) {
        match edge.tag_name().name() {
            "edge" => {}
            "hyperedge" => {
                return Err(unsupported(edge, "a hyperedge", "write it as edges between pairs of nodes"));
            }
            _ => continue,
        }
        let end = |attribute| match edge.attribute(attribute) {
            None => Err(bad(edge, attribute, "(missing)", "the id of a node")),
            Some(id) => ids
                .get(id)
                .copied()
                .ok_or_else(|| Problem::UnknownNode { id: quoted(id) }.at(edge.range().start)),
        };
        let (from, to) = (end("source")?, end("target")?);
        let delay = match (topology.site(from).place, topology.site(to).place) {
            (Some(a), Some(b)) => fibre_delay(a, b, defaults.stretch),
            _ => defaults.delay,
        };
        let capacity = capacity(edge, &keys)?.unwrap_or(defaults.capacity);
        let is_directed = match edge.attribute("directed") {
            None => directed,
            Some("true") => true,
            Some("false") => false,
            Some(other) => return Err(bad(edge, "directed", other, "`true` or `false`")),
        };
        let properties = LinkProperties::new(capacity, delay);
        let added = if is_directed {
            topology.add_link(from, to, properties).map(|_| ())
        } else {
            topology.add_cable(from, to, properties).map(|_| ())
        };
        added.map_err(|e| Problem::Topology(e).at(edge.range().start))?;
    }
    Ok(topology)
}

/// Checks that no tag exceeds the limits for the parser: see [`NAMESPACES_MAX`] and
/// [`ATTRIBUTES_MAX`]. The parser itself finds text that is not XML.
fn check_tags(text: &str) -> Result<(), At> {
    let mut namespaces = 0;
    let mut at = 0;
    while let Some(open) = text[at..].find('<').map(|more| at + more) {
        let rest = &text[open..];
        let aside = [("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>")];
        if let Some((begin, end)) = aside.iter().find(|(begin, _)| rest.starts_with(begin)) {
            // Without an end, the rest contains no tag.
            let Some(length) = rest[begin.len()..].find(end) else { return Ok(()) };
            at = open + begin.len() + length + end.len();
            continue;
        }
        let (mut quote, mut attributes, mut end) = (None, 0, rest.len());
        for (i, byte) in rest.bytes().enumerate() {
            match (quote, byte) {
                (Some(begun), _) if byte == begun => quote = None,
                (Some(_), _) => {}
                (None, b'"' | b'\'') => quote = Some(byte),
                (None, b'=') => attributes += 1,
                (None, b'x') if rest[i..].starts_with("xmlns") => namespaces += 1,
                (None, b'>') => {
                    end = i + 1;
                    break;
                }
                _ => {}
            }
        }
        for (what, count, most) in [
            ("attributes in an element", attributes, ATTRIBUTES_MAX),
            ("declarations of namespaces (xmlns)", namespaces, NAMESPACES_MAX),
        ] {
            if count > most {
                return Err(Problem::TooMany { what, limit: most }.at(open));
            }
        }
        at = open + end;
    }
    Ok(())
}

fn is(node: &Node<'_, '_>, name: &str) -> bool {
    node.is_element() && node.tag_name().name() == name
}

fn syntax(text: &str, error: &roxmltree::Error) -> At {
    let message = match error {
        roxmltree::Error::NodesLimitReached => {
            format!(
                "more than {XML_NODES_MAX} XML nodes: a topology has at most {SITES_MAX} sites and {LINKS_MAX} links"
            )
        }
        roxmltree::Error::DtdDetected => "a DTD (<!DOCTYPE …>) is not read: delete it".to_owned(),
        other => {
            // The parser ends its messages with a place, which this crate's message repeats.
            let message = other.to_string();
            let message = message.split(" at ").next().unwrap_or(&message).to_owned();
            format!("not XML: {}", quoted(&message))
        }
    };
    // The parser counts lines from 1 and columns in characters. Only the line is needed.
    let line = error.pos().row as usize;
    let starts = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1);
    let offset = std::iter::once(0).chain(starts).nth(line.saturating_sub(1)).unwrap_or(0);
    Problem::Syntax { message }.at(offset)
}

fn unsupported(node: Node<'_, '_>, what: &str, remedy: &'static str) -> At {
    Problem::Unsupported { what: what.to_owned(), remedy }.at(node.range().start)
}

fn bad(node: Node<'_, '_>, field: &str, value: &str, allowed: &str) -> At {
    let table = match node.tag_name().name() {
        "graph" => "graph",
        "node" => "node",
        _ => "edge",
    };
    let (field, value, allowed) = (field.to_owned(), quoted(value), allowed.to_owned());
    Problem::BadValue { table, field, value, allowed }.at(node.range().start)
}

fn keys<'a>(root: Node<'a, 'a>) -> Keys<'a> {
    let mut keys = Keys::new();
    for key in root.children().filter(|n| is(n, "key")) {
        if let (Some(name), Some(id)) = (key.attribute("attr.name"), key.attribute("id")) {
            keys.insert((key.attribute("for").unwrap_or("all"), name), id);
        }
    }
    keys
}

/// Text of an element's field, and the `<data>` that holds it; `None` if missing or empty.
fn field<'a>(keys: &Keys<'_>, node: Node<'a, 'a>, of: &str, name: &str) -> Option<(&'a str, Node<'a, 'a>)> {
    let id = keys.get(&(of, name)).or_else(|| keys.get(&("all", name)))?;
    let data = node.children().find(|n| is(n, "data") && n.attribute("key") == Some(*id))?;
    let text = data.text()?.trim();
    (!text.is_empty()).then_some((text, data))
}

/// A numeric field; `None` if missing.
fn number(
    keys: &Keys<'_>,
    node: Node<'_, '_>,
    of: &str,
    name: &str,
    range: std::ops::RangeInclusive<f64>,
    allowed: &str,
) -> Result<Option<f64>, At> {
    // A borrow with the lifetime of the document is not available here, so the field is looked up
    // again.
    let id = keys.get(&(of, name)).or_else(|| keys.get(&("all", name)));
    let data = id.and_then(|id| node.children().find(|n| is(n, "data") && n.attribute("key") == Some(*id)));
    let Some((data, text)) = data.and_then(|d| Some((d, d.text()?.trim()))) else { return Ok(None) };
    if text.is_empty() {
        return Ok(None);
    }
    match text.parse::<f64>() {
        Ok(x) if range.contains(&x) => Ok(Some(x)),
        _ => {
            let mut error = bad(node, name, text, allowed);
            error.offset = Some(data.range().start);
            Err(error)
        }
    }
}

/// A label turned into a site name: on one line, without `/`, and short enough for a number after
/// it.
fn site_name(label: &str) -> String {
    let words =
        label.split(|c: char| c.is_whitespace() || printable(c.encode_utf8(&mut [0; 4])) == "\u{fffd}");
    let words: Vec<_> = words.filter(|word| !word.is_empty()).collect();
    let name = words.join(" ").replace('/', "-");
    let end = (0..=SITE_NAME_BYTES_MAX / 3).rev().find(|end| name.is_char_boundary(*end)).unwrap_or(0);
    name[..end].trim_end().to_owned()
}

/// Adds a site for every node and returns the site ids by node id.
fn add_sites<'a>(
    topology: &mut Topology,
    graph: Node<'a, 'a>,
    keys: &Keys<'_>,
) -> Result<BTreeMap<&'a str, anabranch_units::SiteId>, At> {
    let nodes: Vec<_> = graph.children().filter(|n| is(n, "node")).collect();
    let label = |node| site_name(field(keys, node, "node", "label").map_or("", |(text, _)| text));
    let mut seen: BTreeMap<String, usize> = BTreeMap::new();
    for node in &nodes {
        *seen.entry(label(*node)).or_default() += 1;
    }
    let mut taken: BTreeSet<String> = seen.keys().cloned().collect();
    let mut ids = BTreeMap::new();
    for node in nodes {
        let Some(id) = node.attribute("id") else { return Err(bad(node, "id", "(missing)", "there")) };
        if node.children().any(|n| is(&n, "graph")) {
            return Err(unsupported(node, "a graph inside a node", "keep its nodes in the outer graph"));
        }
        let label = label(node);
        // The Zoo writes `None` and `?` where its map had no name.
        let says_something = !matches!(label.as_str(), "" | "None" | "?" | "." | "..");
        let name = if says_something && seen[&label] == 1 {
            label
        } else {
            let base = if says_something { &label } else { "site" };
            let mut name = format!("{base} ({})", site_name(id));
            while taken.contains(&name) {
                name.push('\'');
            }
            taken.insert(name.clone());
            name
        };
        let place = match (
            number(keys, node, "node", "Latitude", -90.0..=90.0, "degrees from -90 to 90")?,
            number(keys, node, "node", "Longitude", -180.0..=180.0, "degrees from -180 to 180")?,
        ) {
            (Some(latitude_deg), Some(longitude_deg)) => Some(Place { latitude_deg, longitude_deg }),
            _ => None,
        };
        let site = topology.add_site(name, place).map_err(|e| Problem::Topology(e).at(node.range().start))?;
        if ids.insert(id, site).is_some() {
            return Err(bad(node, "id", id, "unlike every other node's"));
        }
    }
    Ok(ids)
}

/// The capacity that the edge states, if any.
fn capacity(edge: Node<'_, '_>, keys: &Keys<'_>) -> Result<Option<BitRate>, At> {
    let allowed = "a number from 0 to 1e15 bit/s";
    let raw = number(keys, edge, "edge", "LinkSpeedRaw", 0.0..=RATE_BPS_MAX, allowed)?;
    let bps = match raw {
        Some(bps) => bps,
        None => {
            let speed = number(keys, edge, "edge", "LinkSpeed", 0.0..=RATE_BPS_MAX, allowed)?;
            let units = keys.get(&("edge", "LinkSpeedUnits")).and_then(|id| {
                edge.children().find(|n| is(n, "data") && n.attribute("key") == Some(*id))?.text()
            });
            let factor = match units.map(str::trim).unwrap_or("") {
                "" => 1.0,
                "K" | "k" => 1e3,
                "M" => 1e6,
                "G" => 1e9,
                "T" => 1e12,
                other => return Err(bad(edge, "LinkSpeedUnits", other, "one of K, M, G, T")),
            };
            match speed {
                Some(speed) if speed * factor <= RATE_BPS_MAX => speed * factor,
                Some(speed) => return Err(bad(edge, "LinkSpeed", &speed.to_string(), allowed)),
                None => return Ok(None),
            }
        }
    };
    // The Zoo uses zero for "unknown".
    Ok((bps >= 1.0).then(|| BitRate::bps(bps.round() as u64)))
}

#[cfg(test)]
mod tests;
