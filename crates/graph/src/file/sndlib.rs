//! SNDlib networks in XML.
//!
//! Source: Orlowski, Pióro, Tomaszewski and Wessäly, *SNDlib 1.0: Survivable Network Design
//! Library* (2010), and the schema at `http://sndlib.zib.de/network`. A `<node>` is a site, at its
//! coordinates if they are geographical; a `<link>` is a cable. The capacity is the
//! pre-installed module's, in the unit that `<meta>` states.
//!
//! Leaves out: demands, costs, modules that could be added, and admissible paths. Read
//! [`super::parse`] first.

use super::drawing::{Drawing, Edge, Fields, Node as DrawnNode};
use super::{LocatedProblem, Problem, Warning};
use roxmltree::Node;
use std::collections::BTreeMap;

/// The child of `node` with this name.
fn child<'a>(node: Node<'a, 'a>, name: &str) -> Option<Node<'a, 'a>> {
    node.children().find(|n| is(n, name))
}

fn text<'a>(node: Node<'a, 'a>, name: &str) -> Option<(&'a str, usize)> {
    let found = child(node, name)?;
    Some((found.text()?.trim(), found.range().start))
}

fn missing(node: Node<'_, '_>, table: &'static str, example: &'static str) -> LocatedProblem {
    Problem::MissingField { table, example }.at(node.range().start)
}

/// Reads the graph of an SNDlib document.
pub(super) fn drawing<'a>(
    root: Node<'a, 'a>,
    warnings: &mut Vec<Warning>,
) -> Result<Drawing<'a>, LocatedProblem> {
    let Some(structure) = child(root, "networkStructure") else {
        return Err(missing(root, "<network>", "<networkStructure>"));
    };
    let unit = root.descendants().find(|n| is(n, "unit")).and_then(|unit| unit.text());
    let unit = match unit.map(str::trim) {
        Some("KBITPERSEC") => Some("kbit/s"),
        Some("MBITPERSEC") => Some("Mbit/s"),
        Some("GBITPERSEC") => Some("Gbit/s"),
        _ => None,
    };
    let mut drawing = Drawing { capacity_unit: unit, ..Drawing::default() };
    let nodes =
        child(structure, "nodes").ok_or_else(|| missing(structure, "<networkStructure>", "<nodes>"))?;
    let is_geographical = nodes.attribute("coordinatesType") != Some("pixel");
    for node in nodes.children().filter(|n| is(n, "node")) {
        let Some(id) = node.attribute("id") else { return Err(missing(node, "<node>", "id=\"…\"")) };
        let mut of = BTreeMap::new();
        if let Some(at) = child(node, "coordinates").filter(|_| is_geographical) {
            of.extend(text(at, "x").map(|x| ("Longitude", x)));
            of.extend(text(at, "y").map(|y| ("Latitude", y)));
        }
        let fields = Fields { table: "node", at: node.range().start, of };
        drawing.nodes.push(DrawnNode { id, label: id, fields });
    }
    let mut without_unit = None;
    for link in structure.descendants().filter(|n| is(n, "link")) {
        let (Some((source, _)), Some((target, _))) = (text(link, "source"), text(link, "target")) else {
            return Err(missing(link, "<link>", "<source> and <target>"));
        };
        let mut of = BTreeMap::new();
        let capacity = child(link, "preInstalledModule").and_then(|module| text(module, "capacity"));
        if let Some(capacity) = capacity {
            if unit.is_some() {
                of.insert("capacity", capacity);
            } else {
                without_unit.get_or_insert(capacity.1);
            }
        }
        let fields = Fields { table: "edge", at: link.range().start, of };
        drawing.edges.push(Edge { source, target, is_directed: false, fields });
    }
    if let Some(offset) = without_unit {
        let text = "capacities have no <unit> and are not read".to_owned();
        warnings.push(Warning { offset, text });
    }
    Ok(drawing)
}

/// Returns true if `node` is an element called `name`, in any namespace.
pub(super) fn is(node: &Node<'_, '_>, name: &str) -> bool {
    node.is_element() && node.tag_name().name() == name
}

#[cfg(test)]
mod tests {
    use crate::file::{Defaults, Format, parse_with_warnings};
    use anabranch_units::BitRate;

    const NETWORK: &str = include_str!("../../../../fuzz/corpus/topology_graphml/sndlib.xml");

    #[test]
    fn sndlib_networks_have_positions_and_capacities() {
        let defaults = Defaults::new(BitRate::mbps(7));
        let read = |text: &str| parse_with_warnings(text, Format::GraphMl, "a.xml", &defaults);
        let loaded = read(NETWORK).expect("a good file");
        let topology = &loaded.topology;
        let names: Vec<_> = topology.sites().iter().map(|site| site.name.as_str()).collect();
        assert_eq!(names, ["Aachen", "Berlin", "Essen"]);
        let place = topology.sites()[1].place.expect("it is geographical");
        assert_eq!((place.latitude_deg, place.longitude_deg), (52.52, 13.48));
        let rates: Vec<_> = topology.links().iter().map(|link| link.properties.capacity).collect();
        assert_eq!(rates, [40, 40, 7, 7].map(BitRate::mbps));
        assert_eq!(loaded.warnings, Vec::<String>::new());
        let without = read(&NETWORK.replace("<unit>MBITPERSEC</unit>", "")).expect("a good file");
        assert_eq!(without.warnings, ["capacities have no <unit> and are not read (a.xml:15)"]);
        assert_eq!(without.topology.links()[0].properties.capacity, BitRate::mbps(7));
    }
}
