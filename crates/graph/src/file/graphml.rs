//! GraphML as written by the Internet Topology Zoo, networkx, FNSS and yEd.
//!
//! Source: Knight and others, *The Internet Topology Zoo* (2011), whose files declare their fields
//! as `<key>` elements. Fields are identified by `attr.name`, so the numbering of the keys does not
//! matter. The following fields are used:
//!
//! | of | field | for |
//! | --- | --- | --- |
//! | graph | `Network`, else `label` | the topology's name |
//! | graph | `capacity_unit`, `delay_unit` | units of the edges' `capacity` and `delay` that are plain numbers |
//! | node | `label`, else yEd's `NodeLabel`, else the id | the site's name, with ` (id)` behind it where several nodes share a label; `/` becomes `-` |
//! | node | `Latitude`, `Longitude` | its place, if both are given |
//! | edge | `LinkSpeedRaw` (bit/s), else `LinkSpeed` and `LinkSpeedUnits` (`K`, `M`, `G`, `T`), else `capacity` | capacity |
//! | edge | `delay` | delay |
//! | edge | yEd's `Arrows` | direction: an edge with an arrow at both ends or at none is undirected |
//!
//! An undirected edge is a full-duplex cable; an edge that occurs twice in the file is two cables.
//! If the file states no capacity, or 0, the link gets the caller's default capacity. A delay that
//! is not stated is computed for fibre between the two places, or is the caller's default if a
//! place is missing. Edges from a node to itself are left out, with a warning. Hyperedges, graphs
//! in nodes, and text with a DTD are refused, because no topology can represent them.
//!
//! Leaves out: all other fields. Read [`super::parse`] first.

use super::drawing::{Drawing, Edge, Fields, Node as DrawnNode};
use super::sndlib::{self, is};
use super::{Defaults, LocatedProblem, Problem, Warning, quoted};
use crate::{LINKS_MAX, SITES_MAX, Topology};
use roxmltree::{Document, Node, ParsingOptions};
use std::collections::BTreeMap;

/// Maximum number of XML nodes: twice the number that the largest topology with all its fields can
/// have.
const XML_NODES_MAX: u32 = 4_000_000;
/// Maximum number of namespace declarations in a text: the parser's work grows with the cube of
/// nested declarations. Real files have 2; files of drawing programs have up to 8.
const NAMESPACES_MAX: usize = 16;
/// Maximum number of attributes of an element: the parser compares every pair of attributes. Real
/// files have 4.
const ATTRIBUTES_MAX: usize = 64;
/// Name of each field, by the element that the field is for (`node`, `edge`, `graph`, `all`) and
/// the id of its key.
type Keys<'a> = BTreeMap<(&'a str, &'a str), &'a str>;

pub(super) fn read(
    text: &str,
    defaults: &Defaults,
    warnings: &mut Vec<Warning>,
) -> Result<Topology, LocatedProblem> {
    check_tags(text)?;
    let options = ParsingOptions { nodes_limit: XML_NODES_MAX, ..ParsingOptions::default() };
    let document = Document::parse_with_options(text, options).map_err(|error| syntax(text, &error))?;
    let root = document.root_element();
    let drawing = match root.tag_name().name() {
        "graphml" => drawing(root)?,
        "network" => sndlib::drawing(root, warnings)?,
        other => {
            let message =
                format!("neither GraphML nor SNDlib's XML: the first element is <{}>", quoted(other));
            return Err(Problem::Syntax { message }.at(root.range().start));
        }
    };
    drawing.topology(defaults, warnings)
}

/// Reads the graph of a GraphML document.
fn drawing<'a>(root: Node<'a, 'a>) -> Result<Drawing<'a>, LocatedProblem> {
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
    let is_directed = match graph.attribute("edgedefault") {
        None | Some("undirected") => false,
        Some("directed") => true,
        Some(other) => return Err(bad(graph, "edgedefault", other, "`directed` or `undirected`")),
    };
    let of_graph = fields(&keys, graph, "graph");
    let mut drawing = Drawing {
        name: of_graph.text("Network").or_else(|| of_graph.text("label")),
        capacity_unit: of_graph.text("capacity_unit"),
        delay_unit: of_graph.text("delay_unit"),
        ..Drawing::default()
    };
    for node in graph.children().filter(|n| is(n, "node")) {
        let Some(id) = node.attribute("id") else { return Err(bad(node, "id", "(missing)", "there")) };
        if node.children().any(|n| is(&n, "graph")) {
            return Err(unsupported(node, "a graph inside a node", "keep its nodes in the outer graph"));
        }
        let fields = fields(&keys, node, "node");
        let drawn = || node.descendants().find(|n| is(n, "NodeLabel")).and_then(|label| label.text());
        let label = fields.text("label").or_else(drawn).unwrap_or("");
        drawing.nodes.push(DrawnNode { id, label, fields });
    }
    for edge in graph.children().filter(Node::is_element) {
        match edge.tag_name().name() {
            "edge" => drawing.edges.push(read_edge(&keys, edge, is_directed)?),
            "hyperedge" => {
                return Err(unsupported(edge, "a hyperedge", "write it as edges between pairs of nodes"));
            }
            _ => {}
        }
    }
    Ok(drawing)
}

fn read_edge<'a>(keys: &Keys<'a>, edge: Node<'a, 'a>, is_directed: bool) -> Result<Edge<'a>, LocatedProblem> {
    let end = |attribute| {
        edge.attribute(attribute).ok_or_else(|| bad(edge, attribute, "(missing)", "the id of a node"))
    };
    let (mut source, mut target) = (end("source")?, end("target")?);
    let mut is_directed = match edge.attribute("directed") {
        None => is_directed,
        Some("true") => true,
        Some("false") => false,
        Some(other) => return Err(bad(edge, "directed", other, "`true` or `false`")),
    };
    // yEd writes every graph as directed; arrows show the actual direction.
    if let Some(arrows) = edge.descendants().find(|n| is(n, "Arrows")) {
        let is_drawn = |end| arrows.attribute(end).is_some_and(|kind| kind != "none");
        is_directed = is_drawn("source") != is_drawn("target");
        if is_directed && is_drawn("source") {
            std::mem::swap(&mut source, &mut target);
        }
    }
    Ok(Edge { source, target, is_directed, fields: fields(keys, edge, "edge") })
}

/// Reads the fields of an element.
fn fields<'a>(keys: &Keys<'a>, element: Node<'a, 'a>, table: &'static str) -> Fields<'a> {
    let mut of = BTreeMap::new();
    for data in element.children().filter(|n| is(n, "data")) {
        let name =
            data.attribute("key").and_then(|id| keys.get(&(table, id)).or_else(|| keys.get(&("all", id))));
        if let (Some(name), Some(text)) = (name, data.text()) {
            of.entry(*name).or_insert((text, data.range().start));
        }
    }
    Fields { table, at: element.range().start, of }
}

/// Checks that no tag exceeds the limits [`NAMESPACES_MAX`] and [`ATTRIBUTES_MAX`]. The parser
/// itself refuses text that is not XML.
fn check_tags(text: &str) -> Result<(), LocatedProblem> {
    let mut namespaces = 0;
    let mut at = 0;
    while let Some(open) = text[at..].find('<').map(|more| at + more) {
        let rest = &text[open..];
        let aside = [("<!--", "-->"), ("<![CDATA[", "]]>"), ("<?", "?>")];
        if let Some((begin, end)) = aside.iter().find(|(begin, _)| rest.starts_with(begin)) {
            // Without an end mark, the remaining text contains no tag.
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

fn syntax(text: &str, error: &roxmltree::Error) -> LocatedProblem {
    let message = match error {
        roxmltree::Error::NodesLimitReached => {
            format!(
                "more than {XML_NODES_MAX} XML nodes: a topology has at most {SITES_MAX} sites and {LINKS_MAX} links"
            )
        }
        roxmltree::Error::DtdDetected => "a DTD (<!DOCTYPE …>) is not read: delete it".to_owned(),
        other => {
            // The parser ends its messages with a position, which this crate's message already
            // states.
            let message = other.to_string();
            let message = message.split(" at ").next().unwrap_or(&message).to_owned();
            format!("not XML: {}", quoted(&message))
        }
    };
    // The parser counts lines from 1. Only the line is needed.
    let line = error.pos().row as usize;
    let starts = text.bytes().enumerate().filter(|(_, b)| *b == b'\n').map(|(i, _)| i + 1);
    let offset = std::iter::once(0).chain(starts).nth(line.saturating_sub(1)).unwrap_or(0);
    Problem::Syntax { message }.at(offset)
}

fn unsupported(node: Node<'_, '_>, what: &str, remedy: &'static str) -> LocatedProblem {
    Problem::Unsupported { what: what.to_owned(), remedy }.at(node.range().start)
}

fn bad(node: Node<'_, '_>, field: &str, value: &str, allowed: &str) -> LocatedProblem {
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
            keys.insert((key.attribute("for").unwrap_or("all"), id), name);
        }
    }
    keys
}

#[cfg(test)]
mod tests;
