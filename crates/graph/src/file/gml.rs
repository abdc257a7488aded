//! The Graph Modelling Language (GML), as written by the Internet Topology Zoo, networkx and Gephi.
//!
//! Source: Himsolt, *GML: A portable Graph File Format* (1997). A file is a list of keys with
//! values: numbers, strings, and lists in brackets. Graphs, nodes and edges have the fields that
//! [`super::graphml`] lists, with the fields' names as keys;
//! `graph [ directed 1 ]` makes edges one-way.
//!
//! Differs: keys may also contain `_`, as in files of networkx, and strings may contain any
//! character except `"`. Leaves out: graphics. Read [`super::parse`] first.

use super::drawing::{Drawing, Edge, Fields, Node as DrawnNode};
use super::{Defaults, LocatedProblem, Problem, Warning, quoted};
use crate::{LINKS_MAX, SITES_MAX, Topology};
use std::borrow::Cow;
use std::collections::BTreeMap;

/// Maximum nesting depth of lists. Real files have 4.
const DEPTH_MAX: usize = 32;
/// Maximum number of keys in a file: sixteen for each site and link of the largest topology.
const KEYS_MAX: usize = 16 * (SITES_MAX + LINKS_MAX);

/// A value and its position in the text.
#[derive(Debug)]
enum Value<'a> {
    Text(Cow<'a, str>),
    List(List<'a>),
}

type List<'a> = Vec<(&'a str, Value<'a>, usize)>;

pub(super) fn read(
    text: &str,
    defaults: &Defaults,
    warnings: &mut Vec<Warning>,
) -> Result<Topology, LocatedProblem> {
    let all = Reader { text, at: 0, keys: 0 }.list(0)?;
    let mut graphs = all.iter().filter_map(|(key, value, at)| match value {
        Value::List(graph) if *key == "graph" => Some((graph, *at)),
        _ => None,
    });
    let Some((graph, _)) = graphs.next() else {
        return Err(syntax("not GML: there is no `graph [ … ]`".to_owned(), 0));
    };
    if let Some((_, at)) = graphs.next() {
        let what = "a second graph".to_owned();
        return Err(Problem::Unsupported { what, remedy: "keep one graph in a file" }.at(at));
    }
    drawing(graph)?.topology(defaults, warnings)
}

fn syntax(message: String, at: usize) -> LocatedProblem {
    Problem::Syntax { message }.at(at)
}

fn drawing<'t>(graph: &'t List<'_>) -> Result<Drawing<'t>, LocatedProblem> {
    let of_graph = fields(graph, "graph", 0);
    let mut drawing = Drawing {
        name: of_graph.text("Network").or_else(|| of_graph.text("label")),
        capacity_unit: of_graph.text("capacity_unit"),
        delay_unit: of_graph.text("delay_unit"),
        ..Drawing::default()
    };
    let is_directed = of_graph.text("directed") == Some("1");
    for (key, value, at) in graph {
        let (Value::List(list), "node" | "edge") = (value, *key) else { continue };
        let fields = fields(list, if *key == "node" { "node" } else { "edge" }, *at);
        let must = |example: &'static str| {
            let name = example.split(' ').next().unwrap_or_default();
            let missing = || Problem::MissingField { table: fields.table, example }.at(*at);
            fields.text(name).ok_or_else(missing)
        };
        if *key == "node" {
            let (id, label) = (must("id 1")?, fields.text("label").unwrap_or(""));
            drawing.nodes.push(DrawnNode { id, label, fields });
        } else {
            let (source, target) = (must("source 1")?, must("target 2")?);
            drawing.edges.push(Edge { source, target, is_directed, fields });
        }
    }
    Ok(drawing)
}

fn fields<'t>(list: &'t List<'_>, table: &'static str, at: usize) -> Fields<'t> {
    let mut of = BTreeMap::new();
    for (key, value, at) in list {
        if let Value::Text(text) = value {
            of.entry(*key).or_insert((&**text, *at));
        }
    }
    Fields { table, at, of }
}

/// Position of the reader in the text.
struct Reader<'a> {
    text: &'a str,
    at: usize,
    /// Keys read so far.
    keys: usize,
}

impl<'a> Reader<'a> {
    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// Skips blanks and comments. A comment is between keys and values, from `#` to the end of the
    /// line.
    fn skip(&mut self) {
        loop {
            self.at = self.text.len() - self.rest().trim_start().len();
            if !self.rest().starts_with('#') {
                return;
            }
            self.at += self.rest().find('\n').unwrap_or(self.rest().len());
        }
    }

    /// Consumes the characters for which `is_part` is true, and returns them.
    fn take(&mut self, is_part: impl Fn(char) -> bool) -> &'a str {
        let rest = self.rest();
        let taken = &rest[..rest.find(|c| !is_part(c)).unwrap_or(rest.len())];
        self.at += taken.len();
        taken
    }

    /// Reads keys and values up to the end of the text, or up to the bracket that closes the list.
    fn list(&mut self, depth: usize) -> Result<List<'a>, LocatedProblem> {
        let mut list = Vec::new();
        loop {
            self.skip();
            match self.rest().chars().next() {
                None if depth == 0 => return Ok(list),
                None => return Err(syntax("not GML: a `[` is not closed".to_owned(), self.at)),
                Some(']') if depth > 0 => {
                    self.at += 1;
                    return Ok(list);
                }
                Some(_) => {}
            }
            let at = self.at;
            let key = self.take(|c| c.is_ascii_alphanumeric() || c == '_');
            if !key.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
                let found = quoted(self.text[at..].lines().next().unwrap_or_default());
                return Err(syntax(format!("not GML: `{found}`: a key is expected here"), at));
            }
            self.keys += 1;
            if self.keys > KEYS_MAX {
                return Err(Problem::TooMany { what: "keys", limit: KEYS_MAX }.at(at));
            }
            let value = self.value(key, depth)?;
            list.push((key, value, at));
        }
    }

    fn value(&mut self, key: &str, depth: usize) -> Result<Value<'a>, LocatedProblem> {
        self.skip();
        let at = self.at;
        match self.rest().chars().next() {
            Some('[') if depth == DEPTH_MAX => {
                Err(Problem::TooMany { what: "lists within lists", limit: DEPTH_MAX }.at(at))
            }
            Some('[') => {
                self.at += 1;
                Ok(Value::List(self.list(depth + 1)?))
            }
            Some('"') => {
                self.at += 1;
                let text = self.take(|c| c != '"');
                if self.rest().is_empty() {
                    return Err(syntax(format!("not GML: the text of `{key}` is not closed"), at));
                }
                self.at += 1;
                Ok(Value::Text(plain(text)))
            }
            _ => {
                let number = self.take(|c| !c.is_whitespace() && !matches!(c, '[' | ']' | '"'));
                if number.parse::<f64>().is_err() {
                    let found = quoted(number);
                    let message =
                        format!("not GML: `{key} {found}`: a value is a number, a \"text\" or a [ list ]");
                    return Err(syntax(message, at));
                }
                Ok(Value::Text(number.into()))
            }
        }
    }
}

/// Maximum length of an entity in bytes; the longest useful entity is `&#1114111;`.
const ENTITY_BYTES_MAX: usize = 16;

/// Replaces GML's character entities in a string; unknown entities are unchanged.
fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains('&') {
        return text.into();
    }
    let mut plain = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(begin) = rest.find('&') {
        plain.push_str(&rest[..begin]);
        rest = &rest[begin..];
        let end = rest.bytes().take(ENTITY_BYTES_MAX).position(|byte| byte == b';');
        let entity = end.map(|end| &rest[1..end]);
        match entity.and_then(|entity| Some((entity, character(entity)?))) {
            Some((entity, character)) => {
                plain.push(character);
                rest = &rest[entity.len() + 2..];
            }
            None => {
                plain.push('&');
                rest = &rest[1..];
            }
        }
    }
    plain.push_str(rest);
    plain.into()
}

fn character(entity: &str) -> Option<char> {
    match entity {
        "quot" => Some('"'),
        "amp" => Some('&'),
        "lt" => Some('<'),
        "gt" => Some('>'),
        "apos" => Some('\''),
        _ => {
            let number = entity.strip_prefix('#')?;
            let code = number
                .strip_prefix(['x', 'X'])
                .map_or_else(|| number.parse(), |hex| u32::from_str_radix(hex, 16));
            code.ok().and_then(char::from_u32)
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::file::{Defaults, Format, LoadedTopology, parse_with_warnings};
    use anabranch_units::{BitRate, Duration};
    use proptest::prelude::*;

    const ZOO: &str = include_str!("../../../../fuzz/corpus/topology_gml/zoo.gml");
    const NETWORKX: &str = include_str!("../../../../fuzz/corpus/topology_gml/networkx.gml");

    fn read(text: &str) -> Result<LoadedTopology, String> {
        let defaults = Defaults::new(BitRate::mbps(100));
        parse_with_warnings(text, Format::Gml, "a.gml", &defaults).map_err(|error| error.to_string())
    }

    fn names(loaded: &LoadedTopology) -> Vec<&str> {
        loaded.topology.sites().iter().map(|site| site.name.as_str()).collect()
    }

    #[test]
    fn gml_zoo_files_have_names_positions_and_speeds() {
        let loaded = read(ZOO).expect("a good file");
        assert_eq!((loaded.topology.name(), names(&loaded)), ("Arpa", vec!["UCLA", "Zürich \"ETH\""]));
        let link = &loaded.topology.links()[0];
        assert_eq!((loaded.topology.links().len(), link.properties.capacity), (2, BitRate::bps(50_000)));
        assert!(link.properties.delay > Duration::from_ms(60), "{}", link.properties.delay);
        assert_eq!(loaded.warnings, Vec::<String>::new());
    }

    #[test]
    fn networkx_files_have_units_and_directions() {
        let loaded = read(NETWORKX).expect("a good file");
        assert_eq!(names(&loaded), ["n0", "n1", "2"]);
        let links: Vec<_> = loaded.topology.links().iter().map(|link| (link.from.0, link.to.0)).collect();
        assert_eq!(links, [(0, 1), (2, 0)]);
        let properties = &loaded.topology.links()[0].properties;
        assert_eq!((properties.capacity, properties.delay), (BitRate::gbps(10), Duration::from_ms(3)));
        let warned: Vec<_> =
            loaded.warnings.iter().map(|line| line.split(':').next().unwrap_or("")).collect();
        assert_eq!(
            warned,
            [
                "`delay` of edges is a number without a unit and is not read",
                "fields of edges that are not read"
            ]
        );
    }

    #[test]
    fn gml_errors_name_their_position() {
        for (text, said) in [
            ("", "not GML: there is no `graph [ … ]` (a.gml:1)"),
            ("graph [", "not GML: a `[` is not closed (a.gml:1)"),
            ("graph [\n node [ id 1 ] ]\n]", "not GML: `]`: a key is expected here (a.gml:3)"),
            ("graph [\n node [ label \"x\" ] ]", "node is incomplete: add id 1 (a.gml:2)"),
            (
                "graph [ node [ id ] ]",
                "not GML: `id `: a value is a number, a \"text\" or a [ list ] (a.gml:1)",
            ),
            (
                "graph [ node [ id 1 ]\n edge [ source 1 target 7 ] ]",
                "edge names node `7`, which the file does not have: add the node (a.gml:2)",
            ),
            ("graph [ label \"x ]", "not GML: the text of `label` is not closed (a.gml:1)"),
        ] {
            assert_eq!(read(text).expect_err(text), said);
        }
        let deep =
            |count: usize| format!("graph [ node [ id 1 ] {}{} ]", "a [ ".repeat(count), "]".repeat(count));
        assert!(read(&deep(super::DEPTH_MAX - 1)).is_ok());
        assert!(read(&deep(super::DEPTH_MAX)).expect_err("deeper").contains("lists within lists"));
    }

    proptest! {
        #[test]
        fn damaged_files_do_not_panic(at in 0usize..1_000, remove in 0usize..40, insert in "\\PC{0,8}|[&#;\\[\\]\"0-9]{0,6}") {
            for text in [ZOO, NETWORKX] {
                let mut damaged: Vec<char> = text.chars().collect();
                let at = at % damaged.len();
                let end = (at + remove).min(damaged.len());
                damaged.splice(at..end, insert.chars());
                let _ = read(&damaged.into_iter().collect::<String>());
            }
        }
    }
}
